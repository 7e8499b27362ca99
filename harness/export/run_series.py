"""The metrics of a running test: its counters and the state of its load, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import Users
from harness.core.states import Decision, Purpose, Verdict
from harness.export.metric_definitions import RUN, render_metrics
from harness.metrics.run_counts import RunCounts
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.core.load import Load
    from harness.metrics.result import Result
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
        """`kind`: the name of one of RUN_KINDS.

        Of two limits for one quantile the stricter counts. `tap` is called with each latency's new
        values in ns, for the live page.
        """
        strictest: dict[str, Slo] = {}
        for slo in slos:
            known = strictest.get(slo.name)
            if known is None or slo.limit_ns <= known.limit_ns:
                strictest[slo.name] = slo
        self.counts = RunCounts(list(strictest.values()), tap)
        limits_s = {}
        allowed = {}
        for name, slo in strictest.items():
            limits_s[name] = slo.limit_ns / SECOND
            allowed[name] = slo.allowed
        self._values: dict[str, Any] = {
            "slo_limit": _labeled(limits_s),
            "slo_allowed": _labeled(allowed),
        }
        self._about = (kind, workload)
        self._unit = Users.option  # of levels
        self.set_run_info("", "", "")

    def set_run_info(self, run: str, model: str, target: str) -> None:
        """Set the run's name (that of its folder), and the model and HOST:PORT that it loads."""
        self._values["run_info"] = {(*self._about, run, model, target): 1.0}

    def set_load(self, target: Load, running: int) -> None:
        """Set the target, and how many users run, or requests are in flight."""
        self._unit = target.option
        self._values |= {
            f"{self._unit}_target": float(target.number),
            target.there: float(running),
        }

    def set_level(self, number: int, phase: str, purpose: str) -> None:
        """Set the current level; without a phase and a purpose ("") between two levels."""
        self._values["level"] = float(number)
        self._values["level_phase"] = _one_of(PHASES, phase)
        self._values["level_purpose"] = _one_of(tuple(Purpose), purpose)

    def set_progress(self, decisions: Iterable[str], low: float = nan, high: float = nan) -> None:
        n_decided = Counter(decisions)
        levels = {str(decision): n_decided[decision] for decision in Decision}
        self._values["levels"] = _labeled(levels)
        self._values[f"bracket_low_{self._unit}"] = low
        self._values[f"bracket_high_{self._unit}"] = high

    def set_client_samples(self, samples: Iterable[ClientSample]) -> None:
        loop_lag = {}
        client_cpu = {}
        for sample in samples:
            client_cpu[sample.process,] = sample.cpu_s
            if not sample.process.startswith("decoder"):  # a decoder has no event loop
                loop_lag[sample.process,] = sample.loop_lag_ms * MS / SECOND
        self._values |= {"loop_lag": loop_lag, "client_cpu": client_cpu}

    def set_drill(self, events: Mapping[str, int]) -> None:
        """Set how often each event has begun."""
        self._values["drill_events"] = _labeled(events)

    def set_expectations(self, verdicts: Mapping[str, Verdict]) -> None:
        """Set which expectations are true or false; one that is inconclusive is left out."""
        decided = {}
        for name, verdict in verdicts.items():
            if verdict != Verdict.inconclusive:
                decided[name] = verdict == Verdict.met
        self._values["drill_expectation"] = _labeled(decided)

    def set_knee(self, result: Result) -> None:
        """Its estimate and the ends of its interval, as far as they are known."""
        values = {"knee": result.knee.estimate if result.knee else None}
        if interval := result.knee_interval:
            values |= {"knee_low": interval.low, "knee_high": interval.high}
        for name, value in values.items():
            if value is not None:
                self._values[f"{name}_{self._unit}"] = float(value)

    def page(self) -> bytes:
        counts = self.counts
        slo_names = [slo.name for slo in counts.slos]
        requests = {str(outcome): n for outcome, n in counts.outcomes.items()}
        observations = dict(zip(slo_names, counts.observed, strict=True))
        misses = dict(zip(slo_names, counts.missed, strict=True))
        counted = {
            "output_tokens": counts.output_tokens,
            "prompt_tokens": counts.prompt_tokens,
            "requests": _labeled(requests),
            "good_requests": counts.good,
            "slo_observations": _labeled(observations),
            "slo_misses": _labeled(misses),
        }
        latencies = {key: counter.histogram() for key, counter in counts.latency.items()}
        return render_metrics(RUN, self._values | latencies | counted)


def _labeled(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Of a metric with one label, as `render_metrics` takes it."""
    return {(label,): float(value) for label, value in values.items()}


def _one_of(names: Sequence[str], chosen: str) -> dict[tuple[str, ...], float]:
    """1 for the one that is chosen, 0 for the others."""
    return _labeled({name: name == chosen for name in names})
