"""The loop lag's figures, from samples given by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.reader.clock import CLOCK
from harness.reader.loop_lag import LoopLag

MS = 10**6


@pytest.mark.parametrize(
    ("lags_ms", "want"),
    [
        ([], (0, None, None)),
        ([0], (0, 0, 0)),
        ([1] * 99 + [30], (30, 30, 30)),  # one in a hundred lies beyond
        ([1] * 199 + [30], (30, 1.016, 30)),  # fewer do: the end of the bin that 1 ms lies in
        ([30] + [1] * 199, (1, 1.016, 30)),  # the worst was more than a second ago
    ],
)
def test_figures(lags_ms: list[int], want: tuple[float | None, ...]) -> None:
    """The worst of the last second, the p99 and the worst of the run, in ms."""
    lag = LoopLag(CLOCK)
    lag.close()
    for each in lags_ms:
        lag.add(each * MS)
    got = lag.figures()
    assert tuple(got.values()) == want


def test_p99_is_at_most_7_percent_too_high() -> None:
    """Against the sorted samples, over five magnitudes."""
    draw = np.random.default_rng(3)
    for scale_ms in (0.1, 1, 10, 100, 1000):
        lag = LoopLag(CLOCK)
        lags = (draw.exponential(scale_ms, 5000) * MS).astype(int).tolist()
        lag.close()
        for each in lags:
            lag.add(each)
        true_ms = sorted(lags)[4950] / MS
        p99_ms = lag.figures()["loop_lag_p99_ms"] or 0
        assert true_ms - 0.001 <= p99_ms <= true_ms * 1.07
