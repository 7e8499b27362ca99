"""What a live page shows of a study, once a second: points, the current level, the levels so far.

Almost nothing is computed here: users and server figures come from the controller, tokens and
latencies from RunCounts. The p95 values of a level are computed once, when it has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.export.live_state import LiveState, state_facts
from harness.measure.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.measure.metrics import HEADLINES
from harness.measure.records.request_record import Outcome
from harness.measure.states import Decision
from harness.measure.window_summary import WindowTokens
from harness.study.knee_estimate import bracket_users
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.measure.recent_latencies import RecentLatencies
    from harness.measure.records.record_source import RecordSource
    from harness.measure.run_counts import RunCounts
    from harness.measure.search.evidence import Window
    from harness.study.controller import KneeController
    from harness.study.experiment import Experiment
    from harness.study.level_state import HeldLevel

P95: Final = 0.95
MAX_WINDOW_NS: Final = 30 * SECOND  # older tokens of a given level are no longer in memory
Quantile = tuple[float, float, float]  # (value, lo, hi) in ms; NaN: not known


@dataclass(frozen=True, slots=True)
class EndedLevel:
    """A level that ended, from the records in memory at that time; results use all records."""

    p95_ms: dict[str, Quantile]  # of HEADLINES
    output_tokens_per_s: float
    ended: int
    failed: int


def ended_levels(experiment: Experiment) -> list[EndedLevel]:
    """The levels so far; each is computed once."""
    seen, levels = experiment.ended, experiment.controller.levels
    seen += [_ended(experiment, level.window) for level in levels[len(seen) :]]
    return seen


def _ended(experiment: Experiment, window: Window) -> EndedLevel:
    ledger, start, end = experiment.ledger, window.settled_ns, window.end_ns
    look = ledger.look(start, end)
    # A search keeps all tokens of its levels; other runs forget old ones.
    latest = start if experiment.wanted.kind == "knee" else max(start, end - MAX_WINDOW_NS)
    tokens = WindowTokens.of(look, (latest, end))
    return EndedLevel(
        headline_latencies(look, (start, end), tokens),
        tokens.arrived.tokens * SECOND / max(end - latest, 1),
        *ledger.ended(start, end),
    )


def headline_latencies(
    recorded: RecordSource, window: tuple[int, int], tokens: WindowTokens
) -> dict[str, Quantile]:
    """The p95 of each of HEADLINES; NaN where nothing was observed."""
    table = recorded.table
    spans = blocked_windows(table, [window])
    return {
        key: p95_ms(tokens.gaps[key] if key in tokens.gaps else sample_figures(table, key, spans))
        for key in HEADLINES
    }


def p95_ms(seen: LatencyFigures) -> Quantile:
    """The p95 with its interval, which has no upper end if there are too few observations."""
    interval = seen.interval(P95) if seen.n else None
    ends = (interval.lo, interval.hi) if interval is not None else (None, None)
    value, lo, hi = (math.nan if ns is None else ns / MS for ns in (seen.quantile(P95), *ends))
    return value, lo, hi


class LivePageViewer:
    """Updates the state of a live page."""

    def __init__(self, state: LiveState, counts: RunCounts, recent: RecentLatencies) -> None:
        """`counts` and `recent` receive the records of the run."""
        self.state = state
        self._counts, self._recent = counts, recent
        self._levels: list[dict[str, Any]] = []
        self._tokens = 0
        self._at_ns = -1

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        controller = experiment.controller
        counts, server = self._counts, controller.server
        # Tokens per second since the previous call; 0 on the first one.
        seconds = (now_ns - self._at_ns) / SECOND if self._at_ns >= 0 else math.inf
        rate = round((counts.output_tokens - self._tokens) / seconds, 1)
        self._at_ns, self._tokens = now_ns, counts.output_tokens
        server_counts = (
            (server.running, server.waiting) if server is not None else (math.nan, math.nan)
        )
        point = [
            round((now_ns - controller.began_ns) / SECOND, 1),
            running_users,
            rate,
            *(None if math.isnan(figure) else int(figure) for figure in server_counts),
            *self._recent.look(),
        ]
        self.state.add(point, **self._ended(), **self._now(controller, now_ns))
        if len(controller.levels) != len(self._levels):
            self._tell_levels(experiment)
        elif self.state.facts["state"] == "starting":
            self.state.update_facts(**state_facts("running", experiment.url))

    def _now(self, controller: KneeController, now_ns: int) -> dict[str, Any]:
        """The level in progress."""
        left = controller.plan.budget_ns - (now_ns - controller.began_ns)
        now = controller.now
        if now is None:
            return {}
        return {
            "step": len(controller.levels) + 1,
            "users": controller.plan.load_of(now.hold.users),
            "unit": "requests/s" if controller.plan.rate_step_per_s else "",
            "purpose": now.hold.purpose,
            "phase": now.phase,
            "left_s": max(left, 0) // SECOND,
        }

    def over(self, experiment: Experiment) -> None:
        self._tell_levels(experiment)
        self.state.now = self._ended()

    def _ended(self) -> dict[str, Any]:
        ended = sum(self._counts.outcomes.values())
        return {"ended": ended, "failed": ended - self._counts.outcomes[Outcome.ok]}

    def _tell_levels(self, experiment: Experiment) -> None:
        """Publish the levels that ended since the last call, and the bracket after each."""
        controller = experiment.controller
        for number in range(len(self._levels), len(controller.levels)):
            bracket = bracket_users(controller.plan, controller.levels[: number + 1])
            self._levels.append(
                self._row(experiment, controller.levels[number]) | {"bracket": bracket}
            )
            # The page's script knows the levels by this name.
            self.state.update_facts(steps=list(self._levels), bracket=bracket)

    def _row(self, experiment: Experiment, level: HeldLevel) -> dict[str, Any]:
        window, began_ns = level.window, experiment.controller.began_ns
        seen = ended_levels(experiment)[window.index]
        return {
            "users": experiment.controller.plan.load_of(window.users),
            "purpose": window.purpose,
            "decision": Decision.invalid if level.invalid else level.judgement.decision,
            "why": level.invalid or level.judgement.reason,
            "from_s": round((window.settled_ns - began_ns) / SECOND, 1),
            "to_s": round((window.end_ns - began_ns) / SECOND, 1),
            **{f"{key}_p95_ms": [_json(ms) for ms in p95] for key, p95 in seen.p95_ms.items()},
        }


def _json(ms: float) -> float | str | None:
    if math.isnan(ms):
        return None
    return "inf" if math.isinf(ms) else round(ms, 2)
