"""COMPAT: how other tools define the figures that they print, each with where it says so.

definitions.csv has a row for each figure, so that the docs can be made of it; `tool_comparison`
computes them. A latency runs from one of INSTANTS of a request to another, for each request, token
or gap.

All of them look at requests that ended well only, and take percentiles of any number of values.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

LINEAR_RULE: Final = "linear"  # numpy's default, type 7
STEP_RULE: Final = "step"  # the smallest value up to which at least this share of the weight lies
INSTANTS: Final = {
    "connect": "connecting begins, where the request had to connect; else as sent",
    "own connect": "as connect, for a tool that connects anew for each request: one that was sent "
    "on a kept connection is charged the mean connect time of those that had to connect",
    "sent": "the first byte is written on an open connection",
    "first chunk": "the first chunk with a choice comes, even one with the role only or no text",
    "first token": "the first chunk that carries a token comes",
    "last token": "the last chunk that carries a token comes",
    "last chunk": "the last chunk with a choice comes",
    "done": "the last byte comes",
}
PER_WORDS: Final = {  # Definition.per -> in words
    "request": "request",
    "later token": "token after the first, one mean for each request",
    "token": "token, one mean for each request",
    "gap": "gap, all requests together",
    "token gap": "gap between tokens, those of one chunk 0 apart, all requests together",
    "second": "second from the first start to the last end",
}


@dataclass(frozen=True, slots=True)
class Definition:
    """One figure of one tool: a row of definitions.csv."""

    tool: str  # of COMPAT
    key: str  # of METRICS: ours that it stands beside
    name: str  # what the tool calls it
    start: str
    end: str
    per: str  # of PER
    why: str  # how it differs from ours, in a phrase; "": by the requests and percentiles only
    says: str  # what the source says, in our words
    source: str  # address
    by_tokens: str  # "yes": each request weighs as many as it has tokens (later tokens)


@dataclass(frozen=True, slots=True)
class Tool:
    """One row of COMPAT. `note`: what cannot be had from our records exactly, and what is done."""

    name: str
    title: str
    version: str  # the one whose code was read
    quantile: str  # LINEAR_RULE or STEP_RULE
    quantile_source: str
    note: str

    @property
    def definitions(self) -> list[Definition]:
        return [definition for definition in DEFINITIONS if definition.tool == self.name]


def _read_definitions() -> list[Definition]:
    path = files(__package__) / "definitions.csv"
    with path.open() as file:
        rows = csv.DictReader(file)
        return [Definition(**row) for row in rows]


DEFINITIONS: Final = _read_definitions()

_VLLM_BENCH: Final = Tool(
    name="vllm-bench",
    title="vllm bench serve",
    version="0.32.0",
    quantile=LINEAR_RULE,
    quantile_source="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/benchmarks/serve.py",
    note=(
        "A stream that breaks off cleanly, or that ends in an error object, is a success to "
        "the tool; here it is left out as failed. When a chunk without text came between two "
        "tokens is not in the records: the gap that it divides is divided evenly."
    ),
)
_GUIDELLM: Final = Tool(
    name="guidellm",
    title="GuideLLM",
    version="0.8.1",
    quantile=STEP_RULE,
    quantile_source=(
        "https://github.com/vllm-project/guidellm/"
        "blob/v0.8.1/src/guidellm/schemas/base/statistics.py"
    ),
    note="Request latency is in seconds there and in milliseconds here.",
)
_AIPERF: Final = Tool(
    name="aiperf",
    title="AIPerf",
    version="0.13.0",
    quantile=LINEAR_RULE,
    quantile_source="https://github.com/ai-dynamo/aiperf/blob/v0.13.0/src/aiperf/metrics/metric_dicts.py",
    note=(
        "The tool counts output tokens with a tokenizer of its own unless it is told to take "
        "the server's count; here the server's is taken."
    ),
)
_GENAI_BENCH: Final = Tool(
    name="genai-bench",
    title="genai-bench",
    version="0.0.5",
    quantile=LINEAR_RULE,
    quantile_source=(
        "https://github.com/sgl-project/"
        "genai-bench/blob/main/genai_bench/metrics/aggregated_metrics_collector.py"
    ),
    note=(
        "A kept connection is charged the mean connect time of the requests that had to "
        "connect. The tool stops reading at the usage chunk, which comes with the last bytes, "
        "and gives no TPOT to a request that it read to the end within 1 ms of its first "
        "token; here it has one."
    ),
)
_INFERENCE_PERF: Final = Tool(
    name="inference-perf",
    title="inference-perf",
    version="0.6.1",
    quantile=LINEAR_RULE,
    quantile_source=(
        "https://github.com/kubernetes-sigs/"
        "inference-perf/blob/v0.6.1/inference_perf/reportgen/base.py"
    ),
    note=(
        "The tool counts output tokens with a tokenizer of its own unless its configuration "
        "has `use_server_output_tokens`; here the server's count is taken. It reads `content` "
        "only: where an answer begins with reasoning, its TTFT is later than here. The TTFT "
        "of an answer of one token is left out there and counted here."
    ),
)
_XK6_LLM: Final = Tool(
    name="xk6-llm",
    title="xk6-llm",
    version="0.3.0",
    quantile=LINEAR_RULE,
    quantile_source="https://github.com/grafana/k6/blob/v2.0.0/metrics/sink.go",
    note=(
        "Of an answer with reasoning the tool takes ITL and TPOT of the text only; here they "
        "are of all tokens."
    ),
)
_TOOLS: Final = (_VLLM_BENCH, _GUIDELLM, _AIPERF, _GENAI_BENCH, _INFERENCE_PERF, _XK6_LLM)
COMPAT: Final = {tool.name: tool for tool in _TOOLS}
