"""What a run says of itself while it runs: its counts and the state of its load, as a page."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.export.exported import RUN, page_of
from harness.measure.counts import RunCounts
from harness.measure.states import Decision, Purpose
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.measure.recent import Recent
    from harness.measure.result import Knee
    from harness.measure.samples import ClientSample
    from harness.measure.slo import Slo

PHASES: Final = ("draining", "ramping", "settling", "measuring")


class LiveRun:
    """Collects; `page` may be asked for at any time."""

    def __init__(
        self, kind: str, workload: str, slos: Sequence[Slo] = (), recent: Recent | None = None
    ) -> None:
        """`kind`: knee, run, sweep, locust. Of two limits for one quantile the stricter counts.

        `recent` is given each latency too, where somebody looks at it once a second.
        """
        strictest = {s.name: s for s in sorted(slos, key=lambda s: s.limit_ns, reverse=True)}
        self.counts = RunCounts(tuple(strictest.values()), recent.take if recent else None)
        self._values: dict[str, Any] = {
            "slo_limit": {(s.name,): s.limit_ns / SECOND for s in self.counts.slos},
            "slo_allowed": {(s.name,): s.allowed for s in self.counts.slos},
        }

        self._about = (kind, workload)
        self.known("", "", "")

    def known(self, run: str, model: str, target: str) -> None:
        """The run's name (its folder's), and the model that it loads at HOST:PORT."""
        self._values["run_info"] = {(*self._about, run, model, target): 1.0}

    def users(self, target: int, running: int) -> None:
        """What is asked for, and what there is."""
        self._values |= {"users_target": float(target), "users_running": float(running)}

    def step(self, number: int, phase: str, purpose: str) -> None:
        """The load step under way; "" for neither phase nor purpose: between two steps."""
        self._values |= {
            "step": float(number),
            "step_phase": {(one,): float(one == phase) for one in PHASES},
            "step_purpose": {(one,): float(one == purpose) for one in Purpose},
        }

    def past(self, decisions: Iterable[str], low: float = nan, high: float = nan) -> None:
        """What the steps that ended showed; the levels between which the knee lies."""
        told = list(decisions)
        self._values |= {
            "steps": {(one,): float(told.count(one)) for one in Decision},
            "bracket_low_users": low,
            "bracket_high_users": high,
        }

    def clients(self, samples: Iterable[ClientSample]) -> None:
        """What each process of the load generator says of itself."""
        told = list(samples)
        self._values |= {
            "loop_lag": {
                (s.process,): s.loop_lag_ms * MS / SECOND
                for s in told
                if not s.process.startswith("decoder")  # it has no loop
            },
            "client_cpu": {(s.process,): s.cpu_s for s in told},
        }

    def found(self, knee: Knee) -> None:
        """A knee that was found."""
        low, high = knee.ci95
        told = {"knee_users": knee.estimate, "knee_low_users": low, "knee_high_users": high}
        self._values |= {key: float(value) for key, value in told.items() if value is not None}

    def page(self) -> bytes:
        """All of RUN that is known."""
        counts = self.counts
        names = [(slo.name,) for slo in counts.slos]
        return page_of(
            RUN,
            self._values
            | {key: each.histogram() for key, each in counts.latency.items()}
            | {
                "output_tokens": counts.output_tokens,
                "prompt_tokens": counts.prompt_tokens,
                "requests": {(str(o),): n for o, n in counts.outcomes.items()},
                "good_requests": counts.good,
                "slo_observations": dict(zip(names, counts.observed, strict=True)),
                "slo_misses": dict(zip(names, counts.missed, strict=True)),
            },
        )
