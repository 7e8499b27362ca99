"""The gates of a knee for CI pipelines, `--at-least` and `--baseline`: they set the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED
from harness.measure.result import Gate, Knee, Result
from harness.measure.states import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# A search with another status has no knee to compare with.
ANSWERED: Final = (
    Status.found, Status.not_reached, Status.inconclusive, Status.slo_failed_at_min,
)  # fmt: skip
CODES: Final = {
    Verdict.met: EXIT_OK,
    Verdict.inconclusive: EXIT_INCONCLUSIVE,
    Verdict.missed: EXIT_SLO_MISSED,
}


def evaluate_gates(result: Result, folder: Path, config: Mapping[str, Any]) -> list[Gate]:
    """Evaluate the gates in run.json. Raises RunFolderError, ConfigError."""
    users, baseline = config.get("at_least"), config.get("baseline")
    if result.knee is None or result.status not in ANSWERED:
        return []
    gates = [at_least_gate(result.knee, users)] if users else []
    if baseline:
        gates.append(baseline_gate(Path(baseline), folder, float(config.get("tolerance") or 0)))
    return gates


def baseline_gate(baseline: Path, folder: Path, tolerance: float) -> Gate:
    """The result of `vllm-harness compare BASELINE FOLDER` as a gate."""
    from harness.study.compare_folders import compare_folders  # noqa: PLC0415 - it reads plans as we do

    name, limit = f"no worse than {baseline}", f"by more than {tolerance:.1%}"
    found = compare_folders(baseline, folder, tolerance)
    # A difference beyond the tolerance decides; the first one is named.
    if worse := [one for one in found.differences if one.beyond]:
        first, more = worse[0], len(worse) - 1
        what = first.metric + (f" at {first.users:,} users" if first.users else "")
        others = f", and {more} more" if more else ""
        sentence = f"Worse than {baseline} {limit}: {what} {first.change:+.1%}{others}."
        return Gate(name, Verdict.missed, sentence)
    if found.exit_code != EXIT_OK:
        sentence = f"Too little was measured to compare with {baseline}; try a longer --budget."
        return Gate(name, Verdict.inconclusive, sentence)
    return Gate(name, Verdict.met, f"Nothing is shown to be worse than {baseline} {limit}.")


def at_least_gate(knee: Knee, users: int) -> Gate:
    """Met if a level at or above `users` passed, missed if one at or below `users` failed."""
    name, asked = f"holds at least {users}", f"asked for at least {users:,}"
    if (knee.holds or 0) >= users:
        return Gate(name, Verdict.met, f"Holds {knee.holds:,} users; {asked}.")
    if knee.fails_by is not None and knee.fails_by <= users:
        return Gate(name, Verdict.missed, f"Fails by {knee.fails_by:,} users; {asked}.")
    best = "" if knee.estimate is None else f" (best estimate {knee.estimate:,})"
    return Gate(
        name,
        Verdict.inconclusive,
        f"No level at or above {users:,} users passed, and no level at or below failed"
        f"{best}; try a longer --budget.",
    )


def exit_code(status: Status, gates: Sequence[Gate], otherwise: int) -> int:
    """The exit code of the worst gate; `otherwise` without gates or without a knee."""
    if not gates or status not in ANSWERED:
        return otherwise
    return max(CODES[gate.verdict] for gate in gates)
