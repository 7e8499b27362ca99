"""The report's tables about the instrument: each quantile's two intervals, each step's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.report.say import UNKNOWN, Figure, as_float, say

if TYPE_CHECKING:
    from harness.measure.result import Level
    from harness.report.facts import Facts

LATENCIES: Final = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "End to end"}
STATISTICS: Final = ("p50", "p95", "p99")


def quantiles(facts: Facts) -> list[dict[str, str]]:
    """At the knee: each quantile with its sampling interval and the instrument's, in ms."""
    step = facts.result.at_knee
    if step is None:
        return []
    rows = []
    for key, title in LATENCIES.items():
        latency = step.latency(key)
        for name in STATISTICS:
            figure = Figure.of(latency, name)
            if figure.known:
                rows.append(
                    {
                        "Quantile": f"{title} {name}",
                        "ms": figure.digits,
                        "95% interval (sampling)": figure.interval or UNKNOWN,
                        "instrument": _sharp(getattr(latency, f"{name}_instrument")),
                    }
                )
    return rows


def _sharp(pair: tuple[float, float]) -> str:
    """To the microsecond: the instrument's bounds lie close together."""
    lo, hi = pair
    return UNKNOWN if lo != lo else f"{lo:,.3f} to {hi:,.3f}"  # noqa: PLR0124 - NaN


def clients(facts: Facts) -> list[dict[str, str]]:
    """Per step, what the load generator shows of itself."""
    return [
        _client(step) for step in facts.steps if step.client.cpu or step.client.instrument_share
    ]


def _client(step: Level) -> dict[str, str]:
    client = step.client
    return {
        "#": str(step.index + 1),
        "Users": f"{step.users:,}",
        "Instrument's share": _share(max(client.instrument_share.values(), default=0)),
        "Exact stamps": _share(step.exact_share),
        "Stamped reads": _share(client.stamp_coverage),
        "Next request after, ms": say(client.turnaround_ms.mean),
        "p99": say(client.turnaround_ms.p99),
        "Worst loop lag, ms": say(client.loop_lag_max_ms),
        "Clock steps": str(client.clock_steps),
        **{f"CPU {name}": _share(cores) for name, cores in client.cpu.items()},
    }


def _share(value: Any) -> str:
    number = as_float(value)
    return UNKNOWN if number != number else f"{number:.1%}"  # noqa: PLR0124 - NaN
