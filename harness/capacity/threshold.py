"""Converts a measured knee to the load per replica at which another replica should be added."""

# The knee counts concurrent users, while a server counts requests that run or wait in it. The rest
# of the users is between two requests, in the front end or on the network. So the threshold is the
# lower end of the knee times the share of users that the server saw at the knee's own level.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor, fsum, isnan, nan
from pathlib import Path
from typing import Final

from harness.capacity.sizing import UNKNOWN, prefill_speed
from harness.core.load import Number, unit_named
from harness.core.states import Status
from harness.errors import NoKnee, RunFolderError
from harness.metrics.result import Knee, Level, Result, read_result
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.folder_reader import read_run
from harness.units import SECOND

MIX_FACTOR: Final = 1.25  # by which mean lengths may differ, either way
MAX_HIT_SHARE: Final = 0.05  # of prompts in the prefix cache; with more, their lengths mislead


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limit of requests that run or wait on one replica, and the knee that it comes from."""

    requests: int  # the SLOs are met up to this number
    users: int  # the knee's lower end
    knee: int  # 0: not known
    slos: tuple[Slo, ...]  # none: the power knee
    share: float  # of the users, counted by the server; NaN: unknown, taken as 1
    model: str  # the server's name for it; "": unknown
    simulated: str = ""  # what was simulated; "": a real server was measured
    notes: tuple[str, ...] = ()  # its interval, date, server and flags, and the lengths
    prompt_tokens: float = nan  # of a request at the knee, on average
    output_tokens: float = nan
    waiting: float = nan  # the mean queue at the knee
    prompt_tokens_per_s: float = nan  # that the server took in at the knee
    ttft_mean_of_p95: float = nan  # at the knee: its mean, as a share of its p95
    prefill: tuple[float, float, float] = UNKNOWN  # prompt tokens/s, and its interval
    unit: str = "users"  # or sessions

    @property
    def sentence(self) -> str:
        where = "Measured"
        if self.simulated:
            where = f"Measured on a server that was {self.simulated}"
        promise = " and ".join(map(str, self.slos)) or "the best throughput for the waiting time"
        counted = f"the server counts {self.share:.0%} of them"
        if isnan(self.share):
            counted = "the server's own count of them is not known"
        knee = f"the knee is {self.knee}" if self.knee else "the knee is not known"
        return (
            f"{where}: {promise} holds up to {self.users} concurrent {self.unit} at least "
            f"({knee}); {counted}."
        )


NO_KNEE: Final = {  # what helps where a search ended without one
    Status.not_reached: "`vllm-harness knee` with a higher --max-users",
    Status.slo_failed_at_min: "a looser --slo, as the lowest level missed it",
    Status.target_failed: "a server that does not fail under load; see its log",
    Status.invalid: f"what {names.REPORT_MD} says, and `vllm-harness knee` again",
}


def usable_knee(folder: Path) -> tuple[Result, Knee, Number]:
    """The result, its knee and what that promises. Raises RunFolderError, NoKnee."""
    result = read_result(folder)
    if result is None:
        raise RunFolderError(
            f"{folder} has no {names.RESULT} that can be read: expected a run folder of "
            f"`vllm-harness knee`; try `vllm-harness report {folder}`, which writes it."
        )
    knee = result.knee or Knee()
    low = knee.holds or knee.ci95[0] or 0
    if not result.kind.searches:
        raise NoKnee(
            f"{folder} is of `vllm-harness {result.command}`, which promises no knee: expected a "
            "run folder of `knee`; try `vllm-harness knee http://HOST:8000 --slo ttft_p95=500ms`."
        )
    is_shown = result.status in (Status.found, Status.holds)
    if not is_shown or not low:
        why = f"its status is {result.status}"
        if is_shown:
            why = "its interval reaches 0"
        hint = NO_KNEE.get(result.status, "`vllm-harness knee` with a longer --budget")
        raise NoKnee(
            f"{folder} has no knee to use ({why}): expected one that was found, or a level shown "
            f"to hold; try {hint}."
        )
    return result, knee, low


def threshold(folder: Path) -> Threshold:
    """Compute the threshold from a run folder. Raises RunFolderError, NoKnee."""
    result, knee, promised = usable_knee(folder)
    if unit_named(knee.unit).by_schedule:
        raise NoKnee(
            f"{folder} has a knee in {knee.unit}: expected one in users, by which replicas are "
            "counted; try `vllm-harness knee` without --load rate."
        )
    users = int(promised)
    # the level that the knee's own figures are of
    at_knee = [level for level in result.used if level.load == knee.measured_at]
    # It may be above 1: a request ends in the server a little after its user has the last token.
    share = min(_mean(at_knee, _counted_share), 1.0)
    requests = users if isnan(share) else floor(users * share)
    waiting = _mean(at_knee, lambda level: level.server.waiting_mean)
    prompt_tokens_per_s = _mean(at_knee, lambda level: level.server.prompt_tokens_per_s)
    requests_per_s = _mean(at_knee, lambda level: level.server.requests_per_s or nan)
    prompt_tokens = prompt_tokens_per_s / requests_per_s
    output_tokens = knee.output_tokens_per_s / (knee.requests_per_s or nan)
    level = result.at_knee or Level(0, users)  # an empty one, whose figures are NaN
    ttft = level.ttft_ms
    slos = tuple(Slo.parse(judged.slo) for judged in result.slos)
    return Threshold(
        requests=max(requests, 1),
        users=users,
        knee=int(knee.estimate or 0),
        slos=slos,
        share=share,
        model=result.target.model,
        simulated=result.target.label,
        notes=_notes(result, prompt_tokens, output_tokens),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        waiting=waiting,
        prompt_tokens_per_s=prompt_tokens_per_s,
        ttft_mean_of_p95=ttft.mean / ttft.p95,
        prefill=_prefill(folder, result),
        unit=knee.unit,
    )


def _counted_share(level: Level) -> float:
    """The share of the users whose requests the server counts."""
    counted = level.server.running_mean + level.server.waiting_mean
    return counted / level.users


def _notes(result: Result, prompt_tokens: float, output_tokens: float) -> tuple[str, ...]:
    """Sentences on where the threshold comes from and what it is valid for."""
    began_ns = min((level.start_ns for level in result.levels), default=0)
    date = datetime.fromtimestamp(began_ns / SECOND, UTC).date()
    version = result.target.versions.get("server", "unknown")
    set_flags = {flag: value for flag, value in result.target.flags.items() if value}
    flags = ", ".join(f"{flag}={value}" for flag, value in set_flags.items())
    lengths = f"{_number(prompt_tokens)} prompt and {_number(output_tokens)} output tokens"
    interval = result.knee_interval
    of_knee = [f"Knee: {interval.words}; its lower end counts."] if interval else []
    return (
        *of_knee,
        f"Measured on {date} (server {version}; {flags or 'flags unknown'}).",
        f"Valid for {lengths} on average, within a factor of {MIX_FACTOR}.",
    )


def _number(tokens: float) -> str:
    return "an unknown number of" if isnan(tokens) else f"{tokens:,.0f}"


def _mean(levels: Sequence[Level], figure_of: Callable[[Level], float]) -> float:
    """The mean of a figure, weighted with the seconds of the levels that have it."""
    figures = []
    for level in levels:
        figure = figure_of(level)
        # A figure that is not known is NaN, and no comparison is true of NaN.
        if figure >= 0:
            figures.append((figure, level.seconds))
    total = fsum(figure * seconds for figure, seconds in figures)
    all_seconds = fsum(seconds for _, seconds in figures)
    return total / (all_seconds or nan)


def _prefill(folder: Path, result: Result) -> tuple[float, float, float]:
    """From the requests of a folder that still has its records."""
    # A prompt that is in the prefix cache is not computed: its length says nothing of the speed.
    cached = any(level.server.prefix_hit_share > MAX_HIT_SHARE for level in result.used)
    if cached or not names.record_files(folder):
        return UNKNOWN
    table = read_run(folder).table
    answered = (table.counts > 0) & (table.prompt_tokens > 0)
    table = table.select(answered)
    first_ns = table.at_ns[table.offsets[:-1]]
    return prefill_speed(table.prompt_tokens, table.sent_ns, first_ns)
