"""Good, bad or undecided: a level by its SLOs and its failures."""

import pytest
from measure_tables import evidence

from harness.metrics.slo import Slo
from harness.search.judge import judge

TTFT = Slo.parse("ttft_p95=500ms")
ALPHA = 0.05 / 8


@pytest.mark.parametrize(
    ("max_errors", "failed", "over", "want"),
    [
        (0.0, 0, 0, "pass"),
        (0.0, 1, 0, "fail"),  # none may fail: the first one breaks the level
        (0.0, 0, 20, "inconclusive"),
        (1.0, 0, 0, "pass"),
        (1.0, 400, 0, "pass"),  # all may fail: only an SLO breaks it
        (1.0, 400, 400, "fail"),
        (0.01, 1, 0, "pass"),
        (0.01, 12, 0, "pass"),  # 3 %: chance may do that, so the p95 decides
        (0.01, 16, 0, "fail"),
    ],
)
def test_how_many_may_fail(max_errors, failed, over, want):
    """`--max-errors` from 0 % to 100 %, of 400 requests, with a p95 on 400."""
    measured = evidence(8, (400, over), failed=failed)
    got = judge(measured, (TTFT,), ALPHA, max_errors)
    assert got.decision == want
