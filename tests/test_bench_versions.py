"""What `make versions` asks of a server, and what it calls wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import versions
from versions import Tried

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.server.access import TargetAccess
from harness.server.address import Address

if TYPE_CHECKING:
    from pathlib import Path

ALL = dict.fromkeys(versions.APIS, "yes")
GOOD = Tried("0.26.0", ALL, 2_097_152, (), 8, 10, "batch slots")
BAD = "http://x/v1/responses closes the connection early"


@pytest.mark.parametrize(
    ("tried", "want"),
    [
        (GOOD, []),
        (replace(GOOD, apis=ALL | {"messages": "not yet"}), []),
        (replace(GOOD, apis=ALL | {"responses": BAD}), [f"responses: {BAD}"]),
        (replace(GOOD, holds=None, fails_by=None, named=""), []),  # a busy machine
        (replace(GOOD, holds=5), ["8 slots, and it holds 5 and fails at 10"]),
        (replace(GOOD, fails_by=12), ["8 slots, and it holds 8 and fails at 12"]),
        (replace(GOOD, named="client"), ["named client"]),
        (replace(GOOD, named=""), ["named nothing"]),
        (replace(GOOD, kv_tokens=None), ["KV tokens unknown"]),
        (replace(GOOD, missing=("queue time",)), ["no queue time"]),
        (Tried("0.9", broken="pip failed"), ["pip failed"]),
    ],
)
def test_what_is_wrong(tried: Tried, want: list[str]) -> None:
    """Each in words; what could not be decided is not wrong."""
    assert tried.wrong == want


@pytest.mark.parametrize(
    ("result", "want"),
    [
        (
            {
                "status": "found",
                "knee": {"holds": 8, "fails_by": 10},
                "bottleneck": {"bound_by": "batch slots"},
            },
            (8, 10, "batch slots"),
        ),
        ({"status": "invalid", "knee": None, "bottleneck": None}, (None, None, "")),
        ({}, (None, None, "")),  # no result.json
    ],
)
def test_a_search_that_decides(result: dict[str, Any], want: tuple[object, ...]) -> None:
    """Only one that found the knee."""
    got = versions.with_search(Tried("0.26.0"), result)
    assert (got.holds, got.fails_by, got.named) == want


def test_the_table() -> None:
    """A row for each version; what was said of an API stands at its end."""
    rows = [GOOD, Tried("0.11.0", ALL | {"responses": BAD, "messages": "not yet"}, 1000)]
    lines = versions.table(rows).splitlines()
    marks = {"chat": "yes", "completions": "yes", "responses": "no", "messages": "not yet"}
    cells = " | ".join(marks[api] for api in versions.APIS)
    assert lines[2].endswith(" | 2,097,152 | 8, 10 | batch slots |  |")
    assert lines[3] == f"| 0.11.0 | {cells} | 1,000 | undecided |  | responses: {BAD} |"


def test_a_server_is_asked(tmp_path: Path) -> None:
    """The embedded engine in place of vLLM: every API that it has, and its page is kept."""
    with start_engine(EngineConfig()) as engine:
        got = versions.ask(engine.url, "0.32.0", tmp_path / "page.txt")
        old = versions.api_of(TargetAccess(Address.parse(engine.url)), "messages", "0.11.0")
    assert {api for api, how in got.apis.items() if how == "yes"} >= {"chat", "completions"}
    assert got.missing == ()
    assert old == "not yet"
    assert got.kv_tokens
    assert "vllm:num_requests_running" in (tmp_path / "page.txt").read_text()
