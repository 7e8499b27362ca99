"""What users were promised: `ttft_p95=500ms` means 95 % of the TTFTs are at most 500 ms."""

import re
from dataclasses import dataclass
from typing import Final

from harness.errors import ConfigError
from harness.units import duration_ns, exact_ns

LATENCIES: Final = ("ttft", "ttfot", "itl", "tpot", "e2e")
_FORM = re.compile(r"(?P<metric>[a-z0-9]+)_p(?P<q>\d{2}|999)=(?P<limit>.+)")


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
        """Read `ttft_p95=500ms`. Raises ConfigError with an example."""
        match = _FORM.fullmatch(text.strip())
        if match is None or match["metric"] not in LATENCIES:
            raise ConfigError(
                f"--slo is {text!r}: expected METRIC_pQQ=LIMIT with a metric of "
                f"{', '.join(LATENCIES)}; try 'ttft_p95=500ms'."
            )
        limit_ns = duration_ns(match["limit"], f"the limit of --slo {text}")
        q = int(match["q"]) / 10 ** len(match["q"])
        if limit_ns <= 0 or not 0.5 <= q < 1:  # noqa: PLR2004 - a median at least
            raise ConfigError(
                f"--slo is {text!r}: expected a limit above zero and a quantile from p50 to p999; "
                "try 'ttft_p95=500ms'."
            )
        return cls(match["metric"], q, limit_ns)


def quantile_name(q: float) -> str:
    """`50`, `95`, `999`: the digits after the point, two at least."""
    return f"{q:.3f}"[2:].removesuffix("0")
