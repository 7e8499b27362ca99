"""Other tools' figures of a few requests, by hand: times in ms, arithmetic in the margin."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from measure_tables import MS, record, table

from harness.compat import TOOLS, parse_tools
from harness.compat.definitions import COMPAT, LINEAR_RULE, PER_WORDS, STEP_RULE
from harness.compat.tool_comparison import (
    OLD_RECORDS,
    ToolComparison,
    WeightedValues,
    instants_of,
)
from harness.core.load import Rate, Users
from harness.errors import ConfigError
from harness.metrics.evidence import Window
from harness.metrics.metrics import METRICS
from harness.metrics.scan import scan
from harness.records.request_record import Outcome

if TYPE_CHECKING:
    from harness.records.record_table import RecordTable

# connects from 5 to 10; the role comes at 100, tokens at 110, 130 and, two of them, at 190: the
# first of the two was in a chunk without text before. An empty finish comes at 200, the end at 205.
CHAT = replace(
    record(0, 10, [110, 130, 190], done=205, tokens=[1, 1, 2]),
    connect_ns=5 * MS,
    first_event_ns=100 * MS,
    output_tokens=4,
    events_before=1,
    silent_events=2,
    last_silent_ns=200 * MS,
)
# on a kept connection, nothing but tokens
PLAIN = replace(
    record(1, 300, [400, 420], done=420),
    first_event_ns=400 * MS,
    output_tokens=2,
    events_before=0,
    silent_events=0,
)
FAILED = replace(
    record(2, 500, [600], done=900, outcome=Outcome.truncated, planned=4), events_before=0
)
ALL = table(CHAT, PLAIN, FAILED)
WINDOW = (0, 1000 * MS)


def compared(whole: RecordTable, windows: list[tuple[int, int]]) -> ToolComparison:
    """The comparison of some windows, with all tokens counted."""
    comparison = ToolComparison(whole, windows)
    scan(whole, comparison.visitors)
    return comparison


def levels_of(name: str, whole: RecordTable, windows: list[Window]) -> list[dict[str, Any]]:
    """The levels of a tool's entry in result.json."""
    spans = [(w.settled_ns, w.end_ns) for w in windows]
    return compared(whole, spans).entry(name, windows)["levels"]


def figures(tool: str, *records: object) -> dict[str, dict[str, object]]:
    """Rows by `name statistic`."""
    whole = table(*records) if records else ALL
    made = compared(whole, [WINDOW]).rows(COMPAT[tool], [WINDOW])
    return {f"{r['name']} {r['statistic']}".strip(): r for r in made}


@pytest.mark.parametrize(
    ("tool", "chat", "plain"),
    [
        ("vllm-bench", {
            "TTFT mean": 95,  # 100 - 5: from connecting to the role
            "TPOT mean": 33.333333,  # (200 - 100) / 3
            "ITL mean": 20,  # (10 + 20 + 30 + 30 + 10) / 5
            "ITL p50": 20,
            "E2EL mean": 195,  # 200 - 5: to the finish
            "Output token throughput": 4,  # in the window of 1 s
            "Request throughput": 1,
        }, {
            "TTFT mean": 100, "TPOT mean": 20, "ITL mean": 20, "E2EL mean": 120,
            "Output token throughput": 2, "Request throughput": 1,
        }),
        ("guidellm", {
            "Time to First Token mean": 100,  # 110 - 10
            "ITL mean": 26.666667,  # (190 - 110) / 3
            "Time Per Output Token mean": 45,  # (190 - 10) / 4
            "Request Latency mean": 195,  # 205 - 10
            "Output Tokens Per Second": 4, "Requests Per Second": 1,
        }, {
            "Time to First Token mean": 100, "ITL mean": 20,
            "Time Per Output Token mean": 60,  # 120 / 2
            "Request Latency mean": 120, "Output Tokens Per Second": 2,
            "Requests Per Second": 1,
        }),
        ("aiperf", {
            "Time to First Token mean": 105,  # 110 - 5
            "Inter Token Latency mean": 26.666667,  # (190 - 110) / 3
            "Inter Chunk Latency mean": 40,  # (20 + 60) / 2
            "Request Latency mean": 185,  # 190 - 5
            "Output Token Throughput": 4, "Request Throughput": 1,
        }, {
            "Time to First Token mean": 100, "Inter Token Latency mean": 20,
            "Inter Chunk Latency mean": 20, "Request Latency mean": 120,
            "Output Token Throughput": 2, "Request Throughput": 1,
        }),
        ("genai-bench", {
            "TTFT mean": 105, "TPOT mean": 31.666667,  # (205 - 110) / 3
            "End-to-End Latency mean": 200,  # 205 - 5
            "Mean Output Throughput": 4, "Requests Per Second": 1,
        }, {
            "TTFT mean": 100, "TPOT mean": 20, "End-to-End Latency mean": 120,
            "Mean Output Throughput": 2, "Requests Per Second": 1,
        }),
        ("inference-perf", {
            "Time to First Token mean": 105,  # 110 - 5
            "Time per Output Token mean": 26.666667,  # (190 - 110) / 3
            "Normalized Time per Output Token mean": 50,  # (205 - 5) / 4
            "Inter-token Latency mean": 26.666667,  # (20 + 60 + 0) / 3
            "Inter-token Latency p50": 20,
            "Request Latency mean": 200,  # 205 - 5
            "Output Tokens per Second": 4, "Requests per Second": 1,
        }, {
            "Time to First Token mean": 100, "Time per Output Token mean": 20,
            "Normalized Time per Output Token mean": 60,  # 120 / 2
            "Inter-token Latency mean": 20, "Request Latency mean": 120,
            "Output Tokens per Second": 2, "Requests per Second": 1,
        }),
        ("xk6-llm", {
            "llm_ttft mean": 105,
            "llm_itl mean": 40,  # (20 + 60) / 2
            "llm_tpot mean": 31.666667,  # (205 - 110) / 3
            "llm_request_duration mean": 200,
            "llm_completion_tokens rate": 4, "llm_requests rate": 1,
        }, {
            "llm_ttft mean": 100, "llm_itl mean": 20, "llm_tpot mean": 20,
            "llm_request_duration mean": 120,
            "llm_completion_tokens rate": 2, "llm_requests rate": 1,
        }),
    ],
)  # fmt: skip
def test_a_tools_figures_of_one_request(
    tool: str, chat: dict[str, float], plain: dict[str, float]
) -> None:
    """Each definition by hand, of a request with chunks that carry nothing and of one without."""
    for request, want in ((CHAT, chat), (PLAIN, plain)):
        got = figures(tool, request)
        assert {name: got[name]["theirs"] for name in want} == want


@pytest.mark.parametrize(
    ("tool", "name", "ours", "theirs"),
    [
        ("vllm-bench", "TTFT mean", 100, 97.5),  # (95 + 100) / 2; the failed one has no mean
        ("vllm-bench", "TTFT p50", 100, 97.5),  # 100, 100, inf: the second; (95 + 100) / 2
        ("vllm-bench", "Output token throughput", 7, 6),  # the failed one had one
        ("guidellm", "ITL mean", 33.333333, 25),  # (20 + 60 + 20) / 3; (3 * 26.67 + 1 * 20) / 4
        ("guidellm", "Time Per Output Token mean", 23.333333, 50),  # (4 * 45 + 2 * 60) / 6
        ("guidellm", "Time Per Output Token p95", "inf", 60),  # of three, one failed
        ("aiperf", "Inter Token Latency mean", 33.333333, 23.333333),  # (26.67 + 20) / 2
        ("aiperf", "Inter Chunk Latency mean", 33.333333, 33.333333),
        ("genai-bench", "TTFT mean", 100, 105),  # the second connects in 5 too: 400 - 295
        ("genai-bench", "End-to-End Latency mean", 157.5, 162.5),  # (195 + 120) / 2 and 5 more
        ("genai-bench", "Requests Per Second", 2, 2),
    ],
)
def test_ours_beside_theirs(tool: str, name: str, ours: float | None, theirs: float) -> None:
    """Ours is what result.json says of the window; theirs leaves the failed request out."""
    row = figures(tool)[name]
    assert row["ours"] == ours
    assert row["theirs"] == theirs


@pytest.mark.parametrize(
    ("tool", "name", "records", "why"),
    [
        ("vllm-bench", "TPOT mean", [CHAT], "from first to last chunk, empty ones too"),
        ("vllm-bench", "TPOT mean", [PLAIN], ""),  # 20 and 20
        ("guidellm", "Time to First Token p50", [PLAIN, CHAT] * 10, ""),
        (
            "guidellm",
            "Time to First Token p50",
            [*[CHAT] * 10, *[record(3, 300, [500], done=510)] * 10],  # ten of 100, ten of 200
            "theirs is the value before, ours the upper one",
        ),
        (
            "aiperf",
            "Inter Chunk Latency p50",
            [CHAT],  # 40 of 20 and 60
            "theirs is between two values, ours the upper one",
        ),
        (
            "aiperf",
            "Time to First Token p50",
            [PLAIN, *[FAILED] * 20],
            "failed requests are infinite in ours and left out of theirs",
        ),
    ],
)
def test_why_they_differ(tool: str, name: str, records: list[object], why: str) -> None:
    """One phrase for each row: the definition's, or what keeps ours from being a number."""
    assert figures(tool, *records)[name]["why"] == why


@pytest.mark.parametrize(
    ("q", "rule", "weights", "want"),
    [
        (-1, LINEAR_RULE, [1, 1, 1, 1], 25),
        (-1, STEP_RULE, [1, 1, 1, 3], 30),  # (10 + 20 + 30 + 3 * 40) / 6 = 180 / 6
        (0.5, LINEAR_RULE, [1, 1, 1, 1], 25),
        (0.95, LINEAR_RULE, [1, 1, 1, 1], 38.5),  # place 2.85
        (0.5, STEP_RULE, [1, 1, 1, 1], 20),  # half of the weight is reached there
        (0.5, STEP_RULE, [1, 1, 1, 3], 30),  # 3 of 6
        (0.95, STEP_RULE, [1, 1, 1, 1], 40),
    ],
)
def test_means_and_quantiles(q: float, rule: str, weights: list[float], want: float) -> None:
    """Numpy's default, and the weighted one that takes a value as it is."""
    seen = WeightedValues(np.array([30.0, 10, 20, 40]), np.array(weights, np.float64)[[2, 0, 1, 3]])
    assert seen.statistic(q, rule) == pytest.approx(want)


def test_a_tool_with_nothing_to_look_at() -> None:
    """No requests, or only failed ones: rows without figures."""
    for records in ([], [FAILED], [record(0, 1, [], done=2)]):
        for tool in COMPAT.values():
            made = compared(table(*records), [WINDOW]).rows(tool, [WINDOW])
            theirs = [r["theirs"] for r in made if r["metric"] in ("ttft", "itl")]
            assert set(theirs) == {None}


def test_records_of_an_older_version_are_approximate() -> None:
    """Without the count of empty chunks the tokens stand for the chunks, and it is said."""
    old = replace(CHAT, events_before=-1, silent_events=-1, last_silent_ns=-1)
    window = Window(0, Users(2), "hold", 0, 0, 1, 1000 * MS, 1000 * MS)
    levels = {name: levels_of(name, table(old), [window]) for name in COMPAT}
    assert [name for name in COMPAT if levels[name][0]["approximate"]] == ["vllm-bench"]
    assert levels["vllm-bench"][0]["approximate"] == OLD_RECORDS
    got = {f"{r['name']} {r['statistic']}": r["theirs"] for r in levels["vllm-bench"][0]["rows"]}
    assert got["TTFT mean"] == 95
    assert got["E2EL mean"] == 185  # the last token, at 190
    assert got["ITL mean"] == 30  # 10, 20 and 60


def test_levels_are_told_apart() -> None:
    """Windows of one level make one entry; what was sent before it settled is counted apart."""
    windows = [
        Window(0, Users(4), "hold", 0, 0, 100 * MS, 350 * MS, 0),
        Window(1, Users(2), "hold", 350 * MS, 0, 400 * MS, 450 * MS, 0),
        Window(2, Users(4), "hold", 450 * MS, 0, 460 * MS, 1000 * MS, 0),
    ]
    levels = levels_of("aiperf", ALL, windows)
    assert [(x["users"], x["requests"], x["left_out"]) for x in levels] == [(2, 0, 0), (4, 2, 1)]
    by_rate = [replace(w, load=Rate(w.load.users / 8)) for w in windows]
    levels = levels_of("aiperf", ALL, by_rate)
    assert [(x["users"], x["rate_per_s"]) for x in levels] == [(0, 0.25), (0, 0.5)]


def test_a_level_has_totals_and_further_statistics() -> None:
    """What formats of other tools need: of the two that ended well, beside one that failed."""
    window = Window(0, Users(2), "hold", 0, 0, 0, 1000 * MS, 1000 * MS)
    whole = table(replace(CHAT, prompt_tokens=30), replace(PLAIN, prompt_tokens=10), FAILED)
    (level,) = levels_of("vllm-bench", whole, [window])
    assert level["totals"] == {
        "succeeded": 2,
        "failed": 1,
        "prompt_tokens": 40,
        "output_tokens": 6,
        "seconds": 1.0,
        "prompt_tokens_per_s": 40.0,
    }
    ttft = level["figures"]["TTFT"]  # 95 and 100
    got = [ttft[name] for name in ("mean", "std", "min", "p25", "p99.9", "max")]
    assert got == [97.5, 2.5, 95, 96.25, 99.995, 100]
    rows = {(row["name"], row["statistic"]): row["theirs"] for row in level["rows"]}
    for name, figures_ms in level["figures"].items():
        for statistic in ("mean", "p50", "p95", "p99"):
            assert figures_ms[statistic] == rows[name, statistic]


def test_prompts_that_no_server_counts_have_no_total() -> None:
    """A server that counts no prompt tokens of one request: not known, and no sum without it."""
    window = Window(0, Users(2), "hold", 0, 0, 0, 1000 * MS, 1000 * MS)
    whole = table(replace(CHAT, prompt_tokens=30), replace(PLAIN, prompt_tokens=-1))
    (level,) = levels_of("aiperf", whole, [window])
    totals = level["totals"]
    assert (totals["prompt_tokens"], totals["prompt_tokens_per_s"]) == (None, None)


@pytest.mark.parametrize(
    ("text", "want"),
    [("vllm-bench", ("vllm-bench",)), ("aiperf, guidellm", ("aiperf", "guidellm"))],
)
def test_names_are_read(text: str, want: tuple[str, ...]) -> None:
    """One tool, or several with commas."""
    assert parse_tools(text) == want


@pytest.mark.parametrize("text", ["", "vllm", "aiperf,", "aiperf;guidellm"])
def test_an_unknown_tool_is_refused(text: str) -> None:
    """One sentence that lists them."""
    with pytest.raises(ConfigError, match="expected one or more of vllm-bench, guidellm, aiperf"):
        parse_tools(text)


def test_the_names_are_those_of_the_table() -> None:
    """`--help` knows them without importing the definitions."""
    assert tuple(COMPAT) == TOOLS


@pytest.mark.parametrize("tool", COMPAT.values(), ids=COMPAT)
def test_every_definition_is_cited(tool) -> None:
    """An address, what it says, and instants that exist; an address that states a version fits."""
    known = set(instants_of(ALL))
    for d in tool.definitions:
        assert {d.start, d.end} <= known
        assert d.key in METRICS
        assert d.per in PER_WORDS
        assert d.source.startswith("https://")
        assert d.says.endswith(".")
        assert re.findall(r"/v(\d[\d.]*)/", d.source) in ([], [tool.version])
