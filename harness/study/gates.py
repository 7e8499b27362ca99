"""What a pipeline asks of a knee, `--at-least` and `--baseline`: a gate decides the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED
from harness.measure.result import Gate
from harness.measure.states import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.result import Knee, Result

# a search that ended otherwise answers no question about its knee
ANSWERED: Final = (
    Status.found, Status.not_reached, Status.inconclusive, Status.slo_failed_at_min,
)  # fmt: skip
CODES: Final = {
    Verdict.met: EXIT_OK,
    Verdict.inconclusive: EXIT_INCONCLUSIVE,
    Verdict.missed: EXIT_SLO_MISSED,
}


def gates_of(result: Result, folder: Path, config: Mapping[str, Any]) -> list[Gate]:
    """What the run.json of a folder asks of its knee. Raises RunFolderError, ConfigError."""
    users, baseline = config.get("at_least"), config.get("baseline")
    if result.knee is None or result.status not in ANSWERED:
        return []
    gates = [at_least(result.knee, users)] if users else []
    if baseline:
        gates.append(no_worse(Path(baseline), folder, float(config.get("tolerance") or 0)))
    return gates


def no_worse(baseline: Path, folder: Path, tolerance: float) -> Gate:
    """As `vllm-harness compare BASELINE FOLDER` has it."""
    from harness.study.compare import compare_folders  # noqa: PLC0415 - it reads plans as we do

    name, limit = f"no worse than {baseline}", f"by more than {tolerance:.1%}"
    found = compare_folders(baseline, folder, tolerance)
    if worse := [one for one in found.differences if one.beyond]:
        first, more = worse[0], len(worse) - 1
        what = first.metric + (f" at {first.users:,} users" if first.users else "")
        others = f", and {more} more" if more else ""
        told = f"Worse than {baseline} {limit}: {what} {first.change:+.1%}{others}."
        return Gate(name, Verdict.missed, told)
    if found.exit_code != EXIT_OK:
        told = f"Too little was measured to compare with {baseline}; try a longer --budget."
        return Gate(name, Verdict.inconclusive, told)
    return Gate(name, Verdict.met, f"Nothing is shown to be worse than {baseline} {limit}.")


def at_least(knee: Knee, users: int) -> Gate:
    """By what was shown: a level that passed there or above, or one that failed there or below."""
    name, asked = f"holds at least {users}", f"asked for at least {users:,}"
    if (knee.holds or 0) >= users:
        return Gate(name, Verdict.met, f"Holds {knee.holds:,} users; {asked}.")
    if knee.fails_by is not None and knee.fails_by <= users:
        return Gate(name, Verdict.missed, f"Fails by {knee.fails_by:,} users; {asked}.")
    best = "" if knee.estimate is None else f" (best estimate {knee.estimate:,})"
    return Gate(
        name,
        Verdict.inconclusive,
        f"No level of {users:,} users or more was shown to pass, and none up to there to fail"
        f"{best}; try a longer --budget.",
    )


def exit_code(status: Status, gates: Sequence[Gate], otherwise: int) -> int:
    """The worst gate's; `otherwise` where none was asked for or the search has no answer."""
    if not gates or status not in ANSWERED:
        return otherwise
    return max(CODES[gate.verdict] for gate in gates)
