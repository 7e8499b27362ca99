"""COMPAT: how other tools define the figures that they print, each with where it says so.

Plain data, so that the docs can be made of it; `figures.py` computes the figures. A latency
runs from one of INSTANTS of a request to another, for each request, token or gap.

All of them look at requests that ended well only, and take percentiles of any number of values.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    "second": "second from the first start to the last end",
}


@dataclass(frozen=True, slots=True)
class Definition:
    """One figure of one tool."""

    key: str  # of METRICS: ours that it stands beside
    name: str  # what the tool calls it
    start: str
    end: str
    per: str  # of PER
    why: str  # how it differs from ours, in a phrase; "": by the requests and percentiles only
    says: str  # what the source says, in our words
    source: str  # address
    by_tokens: bool = False  # each request weighs as many as it has tokens (later tokens)


@dataclass(frozen=True, slots=True)
class Tool:
    """One row of COMPAT. `note`: what cannot be had from our records exactly, and what is done."""

    name: str
    title: str
    version: str  # the one whose code was read
    quantile: str  # LINEAR or STEP
    quantile_source: str
    definitions: tuple[Definition, ...]
    note: str


_VLLM = "https://github.com/vllm-project/vllm/blob"
_VLLM_DOC = f"{_VLLM}/main/docs/benchmarking/cli.md#understanding-the-latency-metrics"
_VLLM_SENDS = f"{_VLLM}/v0.32.0/vllm/benchmarks/lib/endpoint_request_func.py"
_VLLM_SUMS = f"{_VLLM}/v0.32.0/vllm/benchmarks/serve.py"
_GUIDELLM_DOC = "https://blog.vllm.ai/guidellm/main/guides/metrics"
_GUIDELLM = "https://github.com/vllm-project/guidellm/blob/v0.8.1/src/guidellm"
_GUIDELLM_HTTP = f"{_GUIDELLM}/backends/openai/http.py"
_GUIDELLM_STATS = f"{_GUIDELLM}/schemas/base/request_stats.py"
_GUIDELLM_SUMS = f"{_GUIDELLM}/benchmark/schemas/metrics.py"
_AIPERF = "https://docs.nvidia.com/aiperf/v0.13.0/reference/ai-perf-metrics-reference.md"
_AIPERF_CODE = "https://github.com/ai-dynamo/aiperf/blob/v0.13.0/src/aiperf"
_GENAI = "https://github.com/sgl-project/genai-bench/blob/main"
_GENAI_DOC = f"{_GENAI}/docs/getting-started/metrics-definition.md"
_GENAI_SENDS = f"{_GENAI}/genai_bench/user/openai_user.py"
_GENAI_SUMS = f"{_GENAI}/genai_bench/metrics/aggregated_metrics_collector.py"
_SAME: Final = ""
_WHOLE: Final = "all tokens of a request when it ends, not each when it arrives"

COMPAT: Final[dict[str, Tool]] = {
    t.name: t
    for t in (
        Tool(
            "vllm-bench", "vllm bench serve", "0.32.0", LINEAR_RULE, _VLLM_SUMS,
            (
                Definition(
                    "ttft", "TTFT", "connect", "first chunk", "request",
                    "starts before connecting, ends at the first chunk, even an empty one",
                    "From sending to the first streamed output. The clock starts before the pooled "
                    "connection is asked for; the first chunk with a choice counts, whatever is "
                    "in it.",
                    _VLLM_SENDS,
                ),
                Definition(
                    "tpot", "TPOT", "first chunk", "last chunk", "later token",
                    "from first to last chunk, empty ones too",
                    "(end-to-end latency - TTFT) / (output tokens - 1), once per request; the "
                    "tokens are those of the usage.",
                    _VLLM_DOC,
                ),
                Definition(
                    "itl", "ITL", "first chunk", "last chunk", "gap",
                    "gaps between all chunks, empty ones too",
                    "The time between consecutive streamed outputs, the gaps of all successful "
                    "requests together.",
                    _VLLM_DOC,
                ),
                Definition(
                    "e2e", "E2EL", "connect", "last chunk", "request",
                    "starts before connecting, ends at the last chunk, not the last byte",
                    "The request's latency ends at the last chunk with a choice: usage and the "
                    "terminator come after it.",
                    _VLLM_SENDS,
                ),
                Definition(
                    "output_tokens_per_s", "Output token throughput", "connect", "done", "second",
                    _WHOLE,
                    "Output tokens of the successful requests, divided by the time from the start "
                    "of the benchmark to the end of its last request.",
                    _VLLM_SUMS,
                ),
                Definition(
                    "requests_per_s", "Request throughput", "connect", "done", "second", _SAME,
                    "Successful requests, divided by the same time.",
                    _VLLM_SUMS,
                ),
            ),
            "A stream that breaks off cleanly, or that ends in an error object, is a success to "
            "the tool; here it is left out as failed. When a chunk without text came between two "
            "tokens is not in the records: the gap that it divides is divided evenly.",
        ),
        Tool(
            "guidellm", "GuideLLM", "0.8.1", STEP_RULE, f"{_GUIDELLM}/schemas/base/statistics.py",
            (
                Definition(
                    "ttft", "Time to First Token", "sent", "first token", "request", _SAME,
                    "From the first write of the request's head, on a connection that is open by "
                    "then, to the first line with text, reasoning or a tool call.",
                    _GUIDELLM_HTTP,
                ),
                Definition(
                    "itl", "ITL", "first token", "last token", "later token",
                    "the mean of each request, weighted by its tokens, not its gaps",
                    "The average time between tokens, without the first: one figure per request, "
                    "(last - first) / (output tokens - 1), weighing output tokens - 1.",
                    _GUIDELLM_DOC, by_tokens=True,
                ),
                Definition(
                    "tpot", "Time Per Output Token", "sent", "last token", "token",
                    "TTFT is in it; weighted by tokens",
                    "The average time of each output token, the first one included: (last token - "
                    "start) / output tokens, weighing output tokens.",
                    _GUIDELLM_DOC, by_tokens=True,
                ),
                Definition(
                    "e2e", "Request Latency", "sent", "done", "request", _SAME,
                    "From the same start to the end of the stream.",
                    _GUIDELLM_STATS,
                ),
                Definition(
                    "output_tokens_per_s", "Output Tokens Per Second", "sent", "done", "second",
                    _WHOLE,
                    "The mean of the rate over the measured time; tokens are spread evenly between "
                    "a request's first and last chunk.",
                    _GUIDELLM_SUMS,
                ),
                Definition(
                    "requests_per_s", "Requests Per Second", "sent", "done", "second", _SAME,
                    "The mean of the rate at which successful requests end, over the same time.",
                    _GUIDELLM_SUMS,
                ),
            ),
            "Request latency is in seconds there and in milliseconds here.",
        ),
        Tool(
            "aiperf", "AIPerf", "0.13.0", LINEAR_RULE, f"{_AIPERF_CODE}/metrics/metric_dicts.py",
            (
                Definition(
                    "ttft", "Time to First Token", "connect", "first token", "request",
                    "starts before connecting",
                    "The first chunk with content less the request's start, which is taken before "
                    "the pooled connection is asked for.",
                    _AIPERF,
                ),
                Definition(
                    "itl", "Inter Token Latency", "first token", "last token", "later token",
                    "the mean of each request, not its gaps",
                    "(request latency - TTFT) / (output sequence length - 1), one figure per "
                    "request.",
                    _AIPERF,
                ),
                Definition(
                    "itl", "Inter Chunk Latency", "first token", "last token", "gap",
                    _SAME,
                    "The gaps between all consecutive chunks with content, of all requests "
                    "together.",
                    _AIPERF,
                ),
                Definition(
                    "e2e", "Request Latency", "connect", "last token", "request",
                    "starts before connecting, ends at the last token, not the last byte",
                    "From the request's start to the last chunk with content.",
                    _AIPERF,
                ),
                Definition(
                    "output_tokens_per_s", "Output Token Throughput", "connect", "last token",
                    "second", _WHOLE,
                    "Output tokens of the valid requests, divided by the time from the first "
                    "request to the last response.",
                    _AIPERF,
                ),
                Definition(
                    "requests_per_s", "Request Throughput", "connect", "last token", "second",
                    _SAME,
                    "Valid requests, divided by the same time.",
                    _AIPERF,
                ),
            ),
            "The tool counts output tokens with a tokenizer of its own unless it is told to take "
            "the server's count; here the server's is taken.",
        ),
        Tool(
            "genai-bench", "genai-bench", "0.0.5", LINEAR_RULE, _GENAI_SUMS,
            (
                Definition(
                    "ttft", "TTFT", "own connect", "first token", "request",
                    "each request connects anew, and that is in it",
                    "The first chunk with content or reasoning less the start, which is taken "
                    "before a request that keeps no connection.",
                    _GENAI_SENDS,
                ),
                Definition(
                    "tpot", "TPOT", "first token", "done", "later token",
                    "ends with the stream, not at the last token",
                    "(e2e latency - TTFT) / (output tokens - 1), once per request.",
                    _GENAI_DOC,
                ),
                Definition(
                    "e2e", "End-to-End Latency", "own connect", "done", "request",
                    "each request connects anew, and that is in it",
                    "From the same start to the end of reading the stream.",
                    _GENAI_DOC,
                ),
                Definition(
                    "output_tokens_per_s", "Mean Output Throughput", "own connect", "done",
                    "second", _WHOLE,
                    "Output tokens of all completed requests, divided by the run's duration.",
                    _GENAI_DOC,
                ),
                Definition(
                    "requests_per_s", "Requests Per Second", "own connect", "done", "second",
                    _SAME,
                    "Completed requests, divided by the run's duration.",
                    _GENAI_SUMS,
                ),
            ),
            "A kept connection is charged the mean connect time of the requests that had to "
            "connect. The tool stops reading at the usage chunk, which comes with the last bytes, "
            "and gives no TPOT to a request that it read to the end within 1 ms of its first "
            "token; here it has one.",
        ),
    )
}  # fmt: skip
