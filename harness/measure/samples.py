"""One reading of the server's own figures, in the harness's names."""

from dataclasses import dataclass

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class ServerSample:
    """Counters since the server's start and gauges at `at_ns`; NaN where the server does not say.

    `at_ns` is on the records' clock, the middle between sending the scrape and its last byte.
    Sums and counts come from vLLM's histograms; several engines are summed.
    """

    at_ns: int
    running: float = NAN
    waiting: float = NAN
    kv_usage: float = NAN  # share of KV blocks in use, 0 to 1; the mean over engines
    preemptions_total: float = NAN
    prompt_tokens_total: float = NAN
    generation_tokens_total: float = NAN
    requests_total: float = NAN  # finished ones, any reason
    prefix_queries_total: float = NAN  # tokens looked up
    prefix_hits_total: float = NAN  # tokens found
    ttft_sum_s: float = NAN
    ttft_count: float = NAN
    queue_sum_s: float = NAN
    queue_count: float = NAN
    prefill_sum_s: float = NAN
    prefill_count: float = NAN
