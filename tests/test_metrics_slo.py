"""An SLO and its text: run.json holds the text, and a replay judges by what it reads there."""

import pytest

from harness.errors import ConfigError
from harness.metrics.slo import Slo
from harness.units import MS, SECOND, say_ns


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ttft_p95=50ms", "ttft_p95=50ms"),
        ("ttft_p95=1000ms", "ttft_p95=1s"),
        ("itl_p999=12.5ms", "itl_p999=12.5ms"),
        ("itl_p99.9=12.5ms", "itl_p999=12.5ms"),
        ("e2e_p50=1.5s", "e2e_p50=1.5s"),
        ("ttft_p95=1234ms", "ttft_p95=1.234s"),  # every digit: three would be another SLO
        ("e2e_p95=2m30s", "e2e_p95=150s"),
        ("tpot_p95=1.234567891s", "tpot_p95=1.234567891s"),
        ("itl_p95=0.5us", "itl_p95=500ns"),
        ("tps_p5=30", "tps_p5=30"),
        ("tps_p5=30 tokens/s", "tps_p5=30"),
        ("tps_p50=12.5/s", "tps_p50=12.5"),
        ("tps_p1=33.3", "tps_p1=33.3"),
    ],
)
def test_an_slo_as_text(text: str, want: str) -> None:
    """Short, with all digits that it needs, and read as the same SLO again."""
    slo = Slo.parse(text)
    assert str(slo) == want
    assert Slo.parse(str(slo)) == slo


@pytest.mark.parametrize(
    ("ns", "want"),
    [
        (0, "0 ns"),
        (12.34 * MS, "12.3 ms"),
        (100 * MS, "100 ms"),  # a nought before the point is a digit
        (SECOND, "1 s"),
        (1.25 * SECOND, "1.25 s"),
        (40 * SECOND, "40 s"),
        (125 * SECOND, "2 min 05 s"),
    ],
)
def test_durations_for_people(ns: float, want: str) -> None:
    """Three digits at most, and no noughts after the point."""
    assert say_ns(ns) == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ttft=500ms", "expected METRIC_pQQ=LIMIT"),
        ("speed_p95=500ms", "with a metric of ttft, ttfot, itl, itl_per_token, tpot, tps, e2e"),
        ("ttft_p95=500", "has no readable unit"),
        (
            "output_tokens_per_s=500",
            "SLOs are limits on latencies.* itl_per_token, tpot, tps, e2e",
        ),
        ("tttf_p95=500ms", "SLOs are limits on latencies.* try 'ttft_p95=500ms'"),
        ("e2_p95=500ms", "try 'e2e_p95=500ms'"),
        ("ttft_p95=0ms", "more than zero"),
        ("ttft_p95=-5ms", "more than zero"),
        ("ttft_p49=500ms", "a quantile from p50 to p99, or p999"),
        ("ttft_p0=500ms", "a quantile from p50 to p99, or p999"),
        ("ttft_p99.5=500ms", "a quantile from p50 to p99, or p999"),
        ("itl_mean=50ms", "a quantile from p50 to p99, or p999 .*; try 'itl_p95=50ms'"),
        ("ttft_p100=500ms", "expected METRIC_pQQ=LIMIT with a quantile"),
        ("", "expected METRIC_pQQ=LIMIT"),
        ("tps_p95=30", "a speed, whose slow requests are its lower tail.*p50; try 'tps_p5=30'"),
        ("tps_p999=30", "p1 to p50; try 'tps_p5=30'"),
        ("tps_p0=30", "p1 to p50; try 'tps_p5=30'"),
        ("tps=30", "p1 to p50; try 'tps_p5=30'"),
        ("tps_p5=30ms", "is '30ms': expected tokens per second, a number .*; try 'tps_p5=30'"),
        ("tps_p10=0", "is '0': expected tokens per second, a number above zero; try 'tps_p10=30'"),
        ("tps_p5=-3", "expected tokens per second"),
        ("ttft_p5=500ms", "a quantile from p50 to p99, or p999"),
    ],
)
def test_what_is_no_slo(text: str, why: str) -> None:
    """Refused with what was expected and an example."""
    with pytest.raises(ConfigError, match=why) as refused:
        Slo.parse(text)
    assert "try '" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "q", "allowed"), [("itl_p50=1s", 0.5, 0.5), ("itl_p95=1s", 0.95, 0.05),
                               ("itl_p99=1s", 0.99, 0.01), ("itl_p999=1s", 0.999, 0.001),
                               ("tps_p5=30", 0.95, 0.05), ("tps_p1=30", 0.99, 0.01)]
)  # fmt: skip
def test_the_share_that_may_exceed(text: str, q: float, allowed: float) -> None:
    """A p95 allows 5 %."""
    slo = Slo.parse(text)
    assert slo.q == q
    assert slo.allowed == allowed
