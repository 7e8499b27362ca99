"""What a live page is told of a study, once a second: points, the step under way, the steps so far.

Nothing is computed that the run does not have: users and the server's figures from the controller,
tokens and latencies from RunCounts. Only when a step has ended, its own p95s are looked up once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.export.states import facts_of
from harness.measure.figures import sample_of, spans_of
from harness.measure.records import Outcome
from harness.measure.states import Decision
from harness.measure.summary import Tokens
from harness.study.outcome import bracket_users
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.export.history import LiveState
    from harness.measure.counts import RunCounts
    from harness.measure.evidence import Window
    from harness.measure.figures import Figures
    from harness.measure.recent import Recent
    from harness.study.controller import KneeController, Step
    from harness.study.experiment import Experiment, Viewer

P95: Final = 0.95
LATEST_NS: Final = 30 * SECOND  # of a longer level that was given: its older tokens were let go
Quantile = tuple[float, float, float]  # (value, lo, hi) in ms; NaN: not known


@dataclass(frozen=True, slots=True)
class Ended:
    """A level that ended, by what is in memory right then; the results are made of all records."""

    ttft_p95_ms: Quantile
    itl_p95_ms: Quantile
    output_tokens_per_s: float
    ended: int
    failed: int


def levels_ended(experiment: Experiment) -> list[Ended]:
    """Of each level so far; each is looked up once."""
    seen, steps = experiment.ended, experiment.controller.steps
    seen += [_ended(experiment, step.window) for step in steps[len(seen) :]]
    return seen


def _ended(experiment: Experiment, window: Window) -> Ended:
    ledger, start, end = experiment.ledger, window.settled_ns, window.end_ns
    look = ledger.look(start, end)
    latest = start if experiment.wanted.kind == "knee" else max(start, end - LATEST_NS)
    tokens = Tokens.of(look, (latest, end))
    return Ended(
        p95_ms(sample_of(look.table, "ttft", spans_of(look.table, [(start, end)]))),
        p95_ms(tokens.gaps),
        tokens.arrived.tokens * SECOND / max(end - latest, 1),
        *ledger.ended(start, end),
    )


def p95_ms(seen: Figures) -> Quantile:
    """The p95 with its interval; without an upper end where there are too few for one."""
    interval = seen.interval(P95) if seen.n else None
    ends = (interval.lo, interval.hi) if interval is not None else (None, None)
    value, lo, hi = (math.nan if ns is None else ns / MS for ns in (seen.quantile(P95), *ends))
    return value, lo, hi


class PageView:
    """A viewer that tells `state`, and then another viewer."""

    def __init__(
        self, state: LiveState, counts: RunCounts, recent: Recent, beside: Viewer | None = None
    ) -> None:
        """`counts` and `recent` are fed by the run's records."""
        self.state = state
        self._counts, self._recent, self._beside = counts, recent, beside
        self._steps: list[dict[str, Any]] = []
        self._tokens = 0
        self._at_ns = -1

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """A second has passed."""
        controller = experiment.controller
        counts, server = self._counts, controller.server
        seconds = (now_ns - self._at_ns) / SECOND if self._at_ns >= 0 else math.inf
        rate = round((counts.output_tokens - self._tokens) / seconds, 1)
        self._at_ns, self._tokens = now_ns, counts.output_tokens
        told = (server.running, server.waiting) if server is not None else (math.nan, math.nan)
        point = [
            round((now_ns - controller.began_ns) / SECOND, 1),
            running_users,
            rate,
            *(None if math.isnan(figure) else int(figure) for figure in told),
            *self._recent.look(),
        ]
        self.state.add(point, **self._ended(), **self._now(controller, now_ns))
        if len(controller.steps) != len(self._steps):
            self.steps(experiment)
        elif self.state.facts["state"] == "starting":
            self.state.tell(**facts_of("running", experiment.url))
        if self._beside is not None:
            self._beside.show(experiment, now_ns, running_users)

    def _now(self, controller: KneeController, now_ns: int) -> dict[str, Any]:
        """The step under way."""
        left = controller.plan.budget_ns - (now_ns - controller.began_ns)
        now = controller.now
        if now is None:
            return {}
        return {
            "step": len(controller.steps) + 1,
            "users": now.hold.users,
            "purpose": now.hold.purpose,
            "phase": now.phase,
            "left_s": max(left, 0) // SECOND,
        }

    def over(self, experiment: Experiment) -> None:
        """The load has ended and every record is here."""
        self.steps(experiment)
        self.state.now = self._ended()
        if self._beside is not None:
            self._beside.over(experiment)

    def _ended(self) -> dict[str, Any]:
        ended = sum(self._counts.outcomes.values())
        return {"ended": ended, "failed": ended - self._counts.outcomes[Outcome.ok]}

    def steps(self, experiment: Experiment) -> None:
        """Tell of the steps that ended, and of the bracket that they leave."""
        controller = experiment.controller
        for number in range(len(self._steps), len(controller.steps)):
            bracket = bracket_users(controller.plan, controller.steps[: number + 1])
            self._steps.append(
                self._row(experiment, controller.steps[number]) | {"bracket": bracket}
            )
            self.state.tell(steps=list(self._steps), bracket=bracket)

    def _row(self, experiment: Experiment, step: Step) -> dict[str, Any]:
        window, began_ns = step.window, experiment.controller.began_ns
        seen = levels_ended(experiment)[window.index]
        return {
            "users": window.users,
            "purpose": window.purpose,
            "decision": Decision.invalid if step.invalid else step.judgement.decision,
            "why": step.invalid or step.judgement.reason,
            "from_s": round((window.settled_ns - began_ns) / SECOND, 1),
            "to_s": round((window.end_ns - began_ns) / SECOND, 1),
            "ttft_p95_ms": [_json(ms) for ms in seen.ttft_p95_ms],
            "itl_p95_ms": [_json(ms) for ms in seen.itl_p95_ms],
        }


def _json(ms: float) -> float | str | None:
    if math.isnan(ms):
        return None
    return "inf" if math.isinf(ms) else round(ms, 2)
