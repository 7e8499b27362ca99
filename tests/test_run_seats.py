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
    ("line", "cache", "flags", "seats", "first"),
    [
        ("", {}, {}, 0, 1),
        ("", KV, {}, 60, 16),
        ("", KV, {"max_num_seqs": 20}, 20, 10),
        ("--server-flag max-num-seqs=8", KV, {}, 8, 4),
        ("--server-flag max-num-seqs=8", KV | {"engines": 2}, {}, 16, 8),
        ("--min-users 20", KV, {}, 60, 20),
        ("--max-users 12", KV, {}, 60, 12),
        ("--workload conversation", KV, {}, 0, 1),  # its users pause
        ("--load rate --min-rate 0.2", KV, {}, 0, 20),  # in steps of 0.01/s
    ],
)
def test_a_search_begins_by_what_the_server_can_run_at_once(
    line: str, cache: dict[str, Any], flags: dict[str, Any], seats: int, first: int
) -> None:
    """At half of that, and at 16 users at most; at the lowest level where it is unknown."""
    asked = ["knee", "http://127.0.0.1:9", "--slo", "ttft_p95=500ms", *SIZES.split()]
    wanted = knee.options(parser().parse_args([*asked, *line.split()]))
    plan = with_seats(wanted, capabilities(cache, flags)).plan
    assert (plan.seats, plan.first_count) == (seats, first)
