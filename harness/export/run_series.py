"""The metrics of a running test: its counters and the state of its load, as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Decision, Purpose, Verdict
from harness.export.metric_definitions import RUN, render_metrics
from harness.metrics.run_counts import RunCounts
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.metrics.result import Knee
    from harness.metrics.slo import Slo
    from harness.records.samples import ClientSample

PHASES: Final = ("draining", "ramping", "settling", "measuring")


class RunSeries:
    """Collects the metrics; `page` renders them at any time."""

    def __init__(
        self,
        kind: str,
        workload: str,
        slos: Sequence[Slo] = (),
        tap: Callable[[str, NDArray[Any]], None] | None = None,
    ) -> None:
        """`kind`: knee, run, sweep, locust. Of two limits for one quantile the stricter counts.

        `tap` is called with each latency's new values in ns, for the live page.
        """
        strictest = {s.name: s for s in sorted(slos, key=lambda s: s.limit_ns, reverse=True)}
        self.counts = RunCounts([strictest[x] for x in dict.fromkeys(s.name for s in slos)], tap)
        self._values: dict[str, Any] = {
            "slo_limit": {(s.name,): s.limit_ns / SECOND for s in self.counts.slos},
            "slo_allowed": {(s.name,): s.allowed for s in self.counts.slos},
        }
        self._about = (kind, workload)
        self._unit = "users"  # of levels; or rate
        self.set_run_info("", "", "")

    def set_run_info(self, run: str, model: str, target: str) -> None:
        """Set the run's name (that of its folder), and the model and HOST:PORT that it loads."""
        self._values["run_info"] = {(*self._about, run, model, target): 1.0}

    def set_users(self, target: int, running: int, rate_per_s: float | None = None) -> None:
        """Set the target number of users (or rate) and the number running (or in flight)."""
        if rate_per_s is None:
            self._values |= {"users_target": float(target), "users_running": float(running)}
        else:
            self._unit = "rate"
            self._values |= {"rate_target": rate_per_s, "in_flight": float(running)}

    def set_level(self, number: int, phase: str, purpose: str) -> None:
        """Set the current level; without a phase and a purpose ("") between two levels."""
        self._values |= {
            "level": float(number),
            "level_phase": {(one,): float(one == phase) for one in PHASES},
            "level_purpose": {(one,): float(one == purpose) for one in Purpose},
        }

    def set_progress(self, decisions: Iterable[str], low: float = nan, high: float = nan) -> None:
        decided = list(decisions)
        self._values |= {
            "levels": {(one,): float(decided.count(one)) for one in Decision},
            f"bracket_low_{self._unit}": low,
            f"bracket_high_{self._unit}": high,
        }

    def set_client_samples(self, samples: Iterable[ClientSample]) -> None:
        latest = list(samples)
        self._values |= {
            "loop_lag": {
                (s.process,): s.loop_lag_ms * MS / SECOND
                for s in latest
                if not s.process.startswith("decoder")  # a decoder has no event loop
            },
            "client_cpu": {(s.process,): s.cpu_s for s in latest},
        }

    def set_drill(self, events: Mapping[str, int]) -> None:
        """Set how often each event has begun."""
        self._values["drill_events"] = {(name,): float(n) for name, n in events.items()}

    def set_expectations(self, verdicts: Mapping[str, Verdict]) -> None:
        """Set which expectations are true or false; one that is inconclusive is left out."""
        known = {Verdict.met: 1.0, Verdict.missed: 0.0}
        self._values["drill_expectation"] = {
            (name,): known[verdict] for name, verdict in verdicts.items() if verdict in known
        }

    def set_knee(self, knee: Knee) -> None:
        low, high = knee.ci95
        ends = {"knee": knee.estimate, "knee_low": low, "knee_high": high}
        known = {key: float(value) for key, value in ends.items() if value is not None}
        self._values |= {f"{key}_{self._unit}": value for key, value in known.items()}

    def page(self) -> bytes:
        counts = self.counts
        names = [(slo.name,) for slo in counts.slos]
        return render_metrics(
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
