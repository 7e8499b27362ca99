"""How many requests a server can run at once, as far as it is known before any load."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cli import knee
from harness.cli.app import parser
from harness.run.seats import with_seats
from harness.server.probe import Capabilities

KV = {"engines": 1, "block_size": 16, "kv_blocks": 3000, "kv_tokens": 48_000}
SIZES = "--prompt-tokens 700 --output-tokens 100"


def capabilities(cache: dict[str, Any], flags: dict[str, Any]) -> Capabilities:
    return Capabilities(
        url="http://127.0.0.1:9",
        api="chat",
        model="m",
        models=("m",),
        max_model_len=None,
        version="0.26.0",
        fixed_length=True,
        continuous_usage=True,
        final_usage=True,
        tokenize=True,
        metrics=True,
        cache=cache,
        flags=flags,
    )


@pytest.mark.parametrize(
    ("line", "cache", "flags", "want"),
    [
        ("", {}, {}, 0),
        ("", KV, {}, 60),
        ("", KV, {"max_num_seqs": 20}, 20),
        ("--server-flag max-num-seqs=8", KV, {}, 8),
        ("--server-flag max-num-seqs=8", KV | {"engines": 2}, {}, 16),
        ("--workload conversation", KV, {}, 0),  # its users pause
        ("--load rate --min-rate 0.2", KV, {}, 0),
    ],
)
def test_a_search_knows_what_the_server_can_run_at_once(
    line: str, cache: dict[str, Any], flags: dict[str, Any], want: int
) -> None:
    """The fewer of its slots and of the mean requests in its KV cache, of all engines."""
    asked = ["knee", "http://127.0.0.1:9", "--slo", "ttft_p95=500ms", *SIZES.split()]
    wanted = knee.options(parser().parse_args([*asked, *line.split()]))
    assert with_seats(wanted, capabilities(cache, flags)).plan.seats == want
