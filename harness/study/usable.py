"""May a step be used? The same checks while the run lasts and from its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.measure.audit import audit_sentence
from harness.measure.resets import reset_sentence
from harness.measure.selfcheck import instrument_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.evidence import Window
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.slo import Slo
    from harness.study.counted import CountedStep


def unusable(
    window: Window,
    seen: Recorded,
    samples: Sequence[ServerSample],
    slos: Sequence[Slo],
    *,
    shared: int,
    counted: CountedStep | None = None,
) -> str:
    """Why the step must not be used, or "". `counted`: its tokens, where they were counted already.

    `shared`: tokens that every prompt begins with.
    """
    arrived, gaps = (counted.scraped, counted.tokens.gaps) if counted else (None, None)
    return (
        reset_sentence(window, samples)
        or audit_sentence(seen, window, samples, shared, arrived)
        or instrument_sentence(seen, window, slos, gaps)
    )


def shared_tokens(drive: Mapping[str, Any]) -> int:
    """What every prompt begins with: the chat template and the workload's system message.

    `drive`: the options as run.json has them; 0 where they do not say.
    """
    calibration, workload = drive.get("calibration") or {}, drive.get("workload") or {}
    return int(calibration.get("overhead") or 0) + int(workload.get("system_tokens") or 0)
