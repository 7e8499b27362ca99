"""SLOs, limits on latencies: `ttft_p95=500ms` means that 95% of the TTFTs are at most 500 ms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import ConfigError, closest
from harness.metrics.metrics import GAPS, LATENCIES, SLO_METRICS, SPEEDS
from harness.records.record_table import OK
from harness.units import MS, SECOND, duration_ns, exact_ns

if TYPE_CHECKING:
    from harness.core.arrays import Bools
    from harness.records.record_table import RecordTable

_FORM = re.compile(r"(?P<metric>\w+?)(_(?P<q>p[0-9.]+|mean|avg|median|max|min))?=(?P<limit>.+)")
_QUANTILES = re.compile(r"p([5-9][0-9]|999)")
_LOWER_QUANTILES = re.compile(r"p([1-9]|[1-4][0-9]|50)")
# An SLO in other words: `e2e_p95<10s`, `p99 ttft <= 1s`, `TTFT:500`, as `vllm bench` has it in ms.
_WORDED = re.compile(
    r"(?:(?P<before>p[0-9.]+)[ _])?(?P<metric>[a-z][a-z0-9_]*?)(?:[ _.-]?(?P<after>p[0-9.]+))?"
    r"\s*(?:<=|>=|=<|==|<|>|=|:|\s)\s*(?P<limit>[0-9].*)"
)
_SIGN = re.compile("[=<>:]")
_SPELLED = {
    "time_to_first_token": "ttft", "inter_token_latency": "itl", "time_per_output_token": "tpot",
    "request_latency": "e2e", "end_to_end_latency": "e2e", "latency": "e2e", "e2el": "e2e",
}  # fmt: skip
_PER_SECOND = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:(?:tok|tokens)?/s)?\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """The share of `metric` above `limit_ns` may be at most `allowed`.

    For an output speed, the limit is its inverse, the time per token: slower is above it.
    """

    metric: str  # one of SLO_METRICS
    q: float  # 0.95 for p95, and for a speed's p5
    limit_ns: float

    @property
    def allowed(self) -> float:
        """Share of observations that may exceed the limit: 0.05 for a p95."""
        return round(1 - self.q, 6)

    @property
    def statistic(self) -> str:
        """`p95`."""
        return statistic(self.metric, self.q)

    @property
    def speed(self) -> bool:
        """Whether it is a limit on tokens/s, where more is better."""
        return self.metric in SPEEDS

    @property
    def limit(self) -> float:
        """The limit for people: in ms, or in tokens/s."""
        return per_second(self.limit_ns) if self.speed else self.limit_ns / MS

    @property
    def unit(self) -> str:
        return SLO_METRICS[self.metric].unit

    @property
    def beyond(self) -> str:
        """The side of the limit on which an observation misses it."""
        return "under" if self.speed else "over"

    @property
    def name(self) -> str:
        """`ttft_p95`."""
        return f"{self.metric}_{self.statistic}"

    def __str__(self) -> str:
        """`ttft_p95=500ms`, as stored in run.json; `parse` reads it back."""
        limit = f"{self.limit:.12g}" if self.speed else exact_ns(int(self.limit_ns))
        return f"{self.name}={limit}"

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read `ttft_p95=500ms`; p99.9 is p999. Raises ConfigError with an example."""
        parts = re.split(r"[,;]\s*", text.strip())
        limits = [part for part in parts if _SIGN.search(part)]
        if len(limits) > 1:
            options = " ".join(f"--slo {_as_meant(limit) or limit}" for limit in limits)
            raise ConfigError(
                f"--slo is {text!r}: expected one limit, and --slo again for each other; "
                f"try {options}."
            )
        match = _FORM.fullmatch(text.strip())
        if match is None or match["metric"] not in SLO_METRICS:
            metric = closest(match["metric"] if match else "", LATENCIES, "ttft")
            raise ConfigError(
                f"--slo is {text!r}, and SLOs are limits on latencies and output speed: "
                f"expected METRIC_pQQ=LIMIT with a metric of {', '.join(SLO_METRICS)}; "
                f"try {_as_meant(text) or f'{metric}_p95=500ms'!r}."
            )
        if match["metric"] in SPEEDS:
            return cls._parse_speed(text, match)
        quantile = (match["q"] or "").replace("p99.9", "p999")
        digits = _QUANTILES.fullmatch(quantile)
        if digits is None:
            raise ConfigError(
                f"--slo is {text!r}: expected METRIC_pQQ=LIMIT with a quantile from p50 to p99, "
                f"or p999 (p99.9); try '{match['metric']}_p95={match['limit']}'."
            )
        q = int(digits[1]) / 10 ** len(digits[1])
        limit_ns = duration_ns(match["limit"], f"the limit of --slo {text}")
        return cls(match["metric"], q, limit_ns)

    @classmethod
    def _parse_speed(cls, text: str, match: re.Match[str]) -> Slo:
        metric = match["metric"]
        limit = _PER_SECOND.fullmatch(match["limit"])
        example = limit[1] if limit and float(limit[1]) > 0 else "30"
        digits = _LOWER_QUANTILES.fullmatch(match["q"] or "")
        if digits is None:
            raise ConfigError(
                f"--slo is {text!r}, and {metric} is a speed, whose slow requests are its lower "
                f"tail: expected a quantile from p1 to p50; try '{metric}_p5={example}' (95% of "
                f"the requests have at least {example} tokens/s)."
            )
        if limit is None or not float(limit[1]) > 0:
            raise ConfigError(
                f"the limit of --slo {text} is {match['limit']!r}: expected tokens per second, a "
                f"number above zero; try '{metric}_p{digits[1]}={example}'."
            )
        q = 1 - int(digits[1]) / 100  # of the time per token
        tokens_per_s = float(f"{float(limit[1]):.12g}")
        return cls(metric, q, SECOND / tokens_per_s)


def _as_meant(text: str) -> str:
    """The same SLO as `Slo.parse` reads it, its numbers kept; "" where nothing shows what it is."""
    match = _WORDED.fullmatch(text.strip().lower())
    if match is None:
        return ""
    metric = _SPELLED.get(match["metric"], match["metric"])
    if metric not in SLO_METRICS:
        metric = closest(metric, LATENCIES, "ttft")
    limit = match["limit"].strip()
    usual = "p5" if metric in SPEEDS else "p95"
    if metric not in SPEEDS and re.fullmatch(r"[0-9.]+", limit):
        limit += "ms"
    meant = f"{metric}_{match['before'] or match['after'] or usual}={limit}"
    try:
        str(Slo.parse(meant))  # it may still be refused
    except ConfigError:
        return ""
    return meant


def check_slos(slos: Sequence[Slo], output_tokens: float) -> None:
    """Check that no quantile has two limits and that requests have gaps. Raises ConfigError."""
    for slo in slos:
        same = [other for other in slos if other.name == slo.name]
        if len(same) > 1:
            strictest = min(same, key=lambda other: other.limit_ns)
            raise ConfigError(
                f"--slo {slo.name} is given {len(same)} times: expected one limit for each "
                f"quantile; try --slo {strictest} alone."
            )
        if slo.metric in {*GAPS, *SPEEDS, "tpot"} and output_tokens < 2:  # noqa: PLR2004 - a gap's ends
            raise ConfigError(
                f"--slo {slo} is on the time between output tokens, and a request has one: "
                "expected two or more; try --output-tokens 16."
            )


def statistic(metric: str, q: float) -> str:
    """`p50`, `p95`, `p999`; for a speed, whose q is that of its slow tail, `p5`."""
    if metric in SPEEDS:
        return f"p{round(100 * (1 - q))}"
    decimals = f"{q:.3f}"[2:]
    return "p" + decimals.removesuffix("0")


def per_second(ns: float) -> float:
    """The speed in tokens/s of a time per token in ns, to twelve digits; 0 if infinite."""
    return float(f"{SECOND / max(ns, 1):.12g}")


def good_requests(table: RecordTable, slos: Sequence[Slo]) -> Bools:
    """Requests that succeeded and met every SLO by their own figures."""
    good = np.asarray(table.outcome == OK)
    for slo in slos:
        judged_by = SLO_METRICS[slo.metric].judged_by or slo.metric
        seen = SLO_METRICS[judged_by].observe(table)
        missed = seen.row[seen.ns > slo.limit_ns]
        good[missed] = False
    return good
