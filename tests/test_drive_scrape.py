"""vLLM's series become one sample, in every spelling, summed over engines."""

import math

import pytest

from harness.measure.samples import ServerSample
from harness.wire.vllm_series import VLLM_SERIES, server_sample, wanted_names


@pytest.mark.parametrize("series", VLLM_SERIES, ids=lambda series: series.field)
def test_every_spelling_is_read(series: object) -> None:
    """Each name, with colon or underscore, fills its field; two engines of 3 give 6 (or mean 3)."""
    row = next(row for row in VLLM_SERIES if row is series)
    want = 3.0 if row.field == "kv_usage" else 6.0
    for name in row.names:
        for spelling in (name, name.replace(":", "_", 1)):
            assert spelling in wanted_names()
            assert server_sample({spelling: [3.0, 3.0]}, 9) == ServerSample(9, **{row.field: want})


def test_the_newest_spelling_wins() -> None:
    """Where a server gives both names of a gauge, the newer one counts, once."""
    both = {"vllm:kv_cache_usage_perc": [0.25], "vllm:gpu_cache_usage_perc": [0.75]}
    assert server_sample(both, 1) == ServerSample(1, kv_usage=0.25)


def test_what_the_server_does_not_say_is_nan() -> None:
    """A field without a series is NaN, a server without any of them gives no sample."""
    sample = server_sample({"vllm:num_requests_running": [2.0]}, 1)
    assert sample is not None
    assert math.isnan(sample.waiting)
    assert server_sample({"go_goroutines": [12.0]}, 1) is None
