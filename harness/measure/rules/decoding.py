"""The engine step is too long by itself: the batch's own memory traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.measure.rules.evidence import alone, gpu_evidence, growth
from harness.measure.rules.finding import Finding, ms, n, waiting
from harness.measure.rules.prompts import IDLE, no_longer_gaps

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

BUSY: Final = 0.85  # of the time the GPU works: nothing holds it up


def decode(f: Facts) -> Finding:
    """Gaps are long even without prompts: the batch's step itself takes too long."""
    if f.first or not f.broken:
        return Finding.no("gaps between tokens are in time")
    if not f.running > 0:
        return Finding.no("the server shows no running requests")
    if not no_longer_gaps(f):
        return Finding.no(f"gaps without a prompt beside them are {ms(f.alone_ms)} at p95")
    if f.gpu_util < IDLE:
        return Finding.no(f"the GPU is busy {n(f.gpu_util, '.0%')} of the time only")
    steady = f.gpu_util >= BUSY and f.alone_ms >= 0.9 * f.limit_ms and _undisturbed(f)
    return Finding(
        0.4 if f.preemptions > 0 else 0.85 if steady else 0.6,
        f"each engine step takes too long with {n(f.running, '.0f')} requests in the batch",
        [
            f"{n(f.running)} requests run together",
            *growth(f),
            *alone(f),
            waiting(f.waiting),
            *gpu_evidence(f),
        ],
        [
            "--max-num-seqs lower (shorter gaps, earlier queueing)",
            "--kv-cache-dtype fp8 (half the bytes to read, some accuracy)",
            "shorter history (less to read for each token)",
            "another replica",
        ],
    )


def _undisturbed(f: Facts) -> bool:
    """Whether neither prompts nor the API server may be what is slow."""
    return not f.computing and not f.perhaps_late
