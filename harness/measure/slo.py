"""What users were promised: `ttft_p95=500ms` means 95% of the TTFTs are at most 500 ms."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.errors import ConfigError, closest
from harness.units import duration_ns, exact_ns

LATENCIES: Final = ("ttft", "ttfot", "itl", "tpot", "e2e")
_FORM = re.compile(r"(?P<metric>\w+?)(_(?P<q>p[0-9.]+|mean|avg|median|max|min))?=(?P<limit>.+)")
_QUANTILES = re.compile(r"p([5-9][0-9]|999)")


@dataclass(frozen=True, slots=True)
class Slo:
    """The share of `metric` above `limit_ns` may be at most `allowed`."""

    metric: str  # one of LATENCIES
    q: float  # 0.95 for p95
    limit_ns: int

    @property
    def allowed(self) -> float:
        """Share of observations that may exceed the limit: 0.05 for a p95."""
        return round(1 - self.q, 6)

    @property
    def name(self) -> str:
        """`ttft_p95`."""
        return f"{self.metric}_p{quantile_name(self.q)}"

    def __str__(self) -> str:
        """`ttft_p95=500ms`: what `parse` reads as the same SLO, for run.json holds it so."""
        return f"{self.name}={exact_ns(self.limit_ns)}"

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Read `ttft_p95=500ms`; p99.9 is p999. Raises ConfigError with an example."""
        match = _FORM.fullmatch(text.strip())
        if match is None or match["metric"] not in LATENCIES:
            metric = closest(match["metric"] if match else "", LATENCIES, "ttft")
            raise ConfigError(
                f"--slo is {text!r}, and SLOs are limits on latencies: expected METRIC_pQQ=LIMIT "
                f"with a metric of {', '.join(LATENCIES)}; try '{metric}_p95=500ms'."
            )
        digits = _QUANTILES.fullmatch((match["q"] or "").replace("p99.9", "p999"))
        if digits is None:
            raise ConfigError(
                f"--slo is {text!r}: expected METRIC_pQQ=LIMIT with a quantile from p50 to p99, "
                f"or p999 (p99.9); try '{match['metric']}_p95={match['limit']}'."
            )
        limit_ns = duration_ns(match["limit"], f"the limit of --slo {text}")
        return cls(match["metric"], int(digits[1]) / 10 ** len(digits[1]), limit_ns)


def check_slos(slos: Sequence[Slo], output_tokens: float) -> None:
    """Each is on a quantile of its own, of what requests have. Raises ConfigError."""
    for slo in slos:
        same = sorted(other.limit_ns for other in slos if other.name == slo.name)
        if len(same) > 1:
            raise ConfigError(
                f"--slo {slo.name} is given {len(same)} times: expected one limit for each "
                f"quantile; try --slo {slo.name}={exact_ns(same[0])} alone."
            )
        if slo.metric in ("itl", "tpot") and output_tokens < 2:  # noqa: PLR2004 - a gap's ends
            raise ConfigError(
                f"--slo {slo} is on the time between output tokens, and a request has one: "
                "expected two or more; try --output-tokens 16."
            )


def quantile_name(q: float) -> str:
    """`50`, `95`, `999`: the digits after the point, two at least."""
    return f"{q:.3f}"[2:].removesuffix("0")
