"""The server's side of a window: what its counters grew by, restarts, seats inferred."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from harness.core.load import Users
from harness.core.typed_json import to_json
from harness.diagnosis.server_window import missing_figures, reset_sentence, server_figures
from harness.diagnosis.slots import infer_max_num_seqs
from harness.errors import ConfigError
from harness.metrics.evidence import Window
from harness.metrics.level_figures import MaxNumSeqs, ServerFigures, Source
from harness.metrics.server_summary import summaries
from harness.records.folder_reader import NUMBER_FIELDS, Damage, read_server
from harness.records.histogram import Histogram
from harness.records.samples import ServerSample, samples_within, without_buckets
from harness.server.max_num_seqs import max_num_seqs, merge_flags
from harness.wire.vllm_metrics import server_sample
from harness.wire.vllm_series import HISTOGRAMS

S = 10**9
LONG_PROMPTS = Path(__file__).parent / "data/seats_h200"
BOUNDS = (0.1, 1.0, inf)
FIRST = ServerSample(
    10 * S,
    running=4.0,
    waiting=0.0,
    kv_usage=0.25,
    preemptions_total=3.0,
    prompt_tokens_total=1000.0,
    generation_tokens_total=500.0,
    requests_total=10.0,
    prefix_queries_total=1000.0,
    prefix_hits_total=100.0,
    api_cpu_s=7.0,
    started_s=1e9,
    ttft_sum_s=1.0,
    ttft_count=10.0,
    queue_sum_s=0.0,
    queue_count=10.0,
    finished={"length": 10.0, "abort": 0.0},
    histograms={"ttft": Histogram(BOUNDS, (10.0, 10.0, 10.0), 1.0)},
)
MIDDLE = replace(FIRST, at_ns=11 * S, running=8.0, waiting=6.0, kv_usage=0.75)
# two seconds after FIRST
LAST = replace(
    FIRST,
    at_ns=12 * S,
    running=6.0,
    waiting=3.0,
    kv_usage=0.5,
    preemptions_total=5.0,
    prompt_tokens_total=3000.0,
    generation_tokens_total=1500.0,
    requests_total=230.0,
    prefix_queries_total=3000.0,
    prefix_hits_total=600.0,
    api_cpu_s=8.5,
    ttft_sum_s=45.0,
    ttft_count=230.0,
    queue_sum_s=11.0,
    queue_count=230.0,
    finished={"length": 229.0, "abort": 1.0},
    histograms={"ttft": Histogram(BOUNDS, (200.0, 229.0, 230.0), 45.0)},
)
WINDOW = Window(0, Users(8), "up", 0, 9 * S, 10 * S, 12 * S, 14 * S)


def test_the_figures_of_a_window() -> None:
    """Means and maxima of gauges, growth of counters, means and bucket bounds of histograms."""
    got = to_json(server_figures([FIRST, MIDDLE, LAST]))
    assert {key: value for key, value in got.items() if value is not None} == {
        "samples": 3,
        "running_mean": 6.0,
        "running_max": 8.0,
        "running_flat_share": 0.5,
        "waiting_mean": 3.0,
        "waiting_max": 6.0,
        "kv_usage_mean": 0.5,
        "kv_usage_max": 0.75,
        "preemptions": 2.0,
        "prefix_hit_share": 0.25,  # 500 of 2,000
        "prompt_tokens_per_s": 1000.0,
        "generation_tokens_per_s": 500.0,
        "requests_per_s": 110.0,
        "api_server_cores": 0.75,
        "ttft_mean_s": 0.2,
        "queue_mean_s": 0.05,  # 44 s and 11 s by 220
        "ttft_p95_s": [0.1, 1.0],  # of 190, 29, 1: rank 208.05 is in the second bucket
        "finished": {"length": 219, "abort": 1},
    }


SPECULATING = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts:.1f}
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {tokens:.1f}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted:.1f}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {accepted:.1f}
"""


@pytest.mark.parametrize(
    ("first", "last", "acceptance", "length"),
    [
        ((100, 300, 150), (300, 900, 450), 0.5, 2.5),  # 300 of 600 tokens; 1 + 300 / 200 drafts
        ((0, 0, 0), (10, 40, 0), 0, 1),  # nothing accepted: a token a step
        ((100, 300, 150), (100, 300, 150), None, None),  # no draft in the window
        ((100, 300, 150), (5, 15, 3), None, None),  # restarted
        (None, None, None, None),  # a server that does not speculate
    ],
)
def test_speculative_decoding(first, last, acceptance, length):
    """Acceptance by vLLM's counters, read from pages as vLLM writes them."""
    names = ("drafts", "tokens", "accepted")
    samples = []
    for at_s, counts in ((10, first), (12, last)):
        page = "vllm:num_requests_running 1\n"
        page += SPECULATING.format(**dict(zip(names, counts, strict=True))) if counts else ""
        samples.append(server_sample(page, at_s * S))
    got = to_json(server_figures(samples))
    assert got["spec_acceptance"] == acceptance
    assert got["spec_accepted_length"] == length


# as vLLM 0.32 writes them with --enable-mfu-metrics
FURTHER = """\
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt:.1f}
vllm:prompt_tokens_cached_total{{engine="0",model_name="m"}} {cached:.1f}
vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_reqs"}} {rejected:.1f}
vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_tokens"}} 3.0
vllm:estimated_flops_per_gpu_total{{engine="0",model_name="m"}} {flops}
vllm:estimated_flops_per_gpu_total{{engine="1",model_name="m"}} {flops}
vllm:estimated_read_bytes_per_gpu_total{{engine="0",model_name="m"}} {read}
vllm:estimated_write_bytes_per_gpu_total{{engine="0",model_name="m"}} {written}
vllm:request_num_preemptions_bucket{{engine="0",le="+Inf",model_name="m"}} {ended:.1f}
vllm:request_num_preemptions_count{{engine="0",model_name="m"}} {ended:.1f}
vllm:request_num_preemptions_sum{{engine="0",model_name="m"}} {preempted:.1f}
vllm:request_prefill_kv_computed_tokens_bucket{{engine="0",le="+Inf",model_name="m"}} {ended:.1f}
vllm:request_prefill_kv_computed_tokens_count{{engine="0",model_name="m"}} {ended:.1f}
vllm:request_prefill_kv_computed_tokens_sum{{engine="0",model_name="m"}} {computed:.1f}
"""


def test_further_series() -> None:
    """What only newer servers report, over two seconds of it."""
    names = (
        "prompt",
        "cached",
        "rejected",
        "flops",
        "read",
        "written",
        "ended",
        "preempted",
        "computed",
    )
    counts = (
        (1000, 100, 1, 5e12, 1e9, 1e8, 10, 0, 900),
        (2000, 350, 5, 9e12, 3e9, 3e8, 20, 5, 1650),
    )
    pages = [FURTHER.format(**dict(zip(names, row, strict=True))) for row in counts]
    got = server_figures(
        [server_sample(page, at * S) for at, page in zip((10, 12), pages, strict=True)]
    )
    assert got.prompt_cached_share == 0.25
    assert got.computed_tokens_mean == 75  # 250 of 1,000
    assert got.preemptions_per_request == 0.5
    assert got.admission_rejections == 4
    assert got.flops_per_s == 2e12
    assert got.memory_bytes_per_s == 1.1e9  # of one GPU


@pytest.mark.parametrize("samples", [[], [FIRST]])
def test_too_few_samples(samples: list[ServerSample]) -> None:
    """Nothing grew that we know of; a gauge is known from one reading."""
    got = to_json(server_figures(samples))
    assert got["preemptions"] is None
    assert got["ttft_mean_s"] is None
    assert got["ttft_p95_s"] is None
    assert got["running_mean"] == (4.0 if samples else None)


def test_an_older_folder_without_buckets() -> None:
    """Means come from the sums that it has, quantiles from nowhere."""
    got = to_json(server_figures([replace(s, histograms={}) for s in (FIRST, LAST)]))
    assert got["ttft_mean_s"] == 0.2
    assert got["queue_mean_s"] == 0.05
    assert got["ttft_p95_s"] is None


def test_samples_of_a_window() -> None:
    """Both ends belong to it."""
    assert samples_within([FIRST, MIDDLE, LAST], 10 * S, 11 * S) == [FIRST, MIDDLE]


RESTARTED = replace(FIRST, at_ns=12 * S, generation_tokens_total=20.0)
EARLY = replace(FIRST, at_ns=9 * S)


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        ([EARLY, FIRST, MIDDLE, LAST], ""),
        ([], ""),
        ([FIRST], ""),
        ([EARLY, FIRST, MIDDLE, RESTARTED], "generation tokens fell from 500 to 20"),
        # before the step's first scrape, and after the last one before that
        ([replace(EARLY, requests_total=99.0), FIRST, LAST], "requests fell from 99 to 10"),
        # earlier still: the step itself is whole
        ([replace(EARLY, at_ns=8 * S, requests_total=99.0), EARLY, FIRST, LAST], ""),
        # after the step
        ([FIRST, LAST, replace(LAST, at_ns=13 * S, requests_total=0.0)], ""),
        ([FIRST, replace(LAST, started_s=1e9 + 30)], "started 30 s later than before"),
        (
            [FIRST, replace(LAST, histograms={"ttft": Histogram(BOUNDS, (1.0, 2.0, 3.0), 1.0)})],
            "the count of ttft fell from 10 to 3",
        ),
        # what a server no longer says, or says only now, is no restart
        ([FIRST, replace(LAST, requests_total=nan, histograms={}, started_s=nan)], ""),
    ],
)
def test_a_restart_is_noticed(samples: list[ServerSample], want: str) -> None:
    """A counter that fell makes the step invalid, in a sentence that says which."""
    got = reset_sentence(WINDOW, samples)
    assert got == reset_sentence(WINDOW, list(map(without_buckets, samples)))  # as while it lasts
    assert want in got
    assert bool(got) == bool(want)
    if got:
        assert got.endswith("give each server's URL with --metrics-url")


def test_nothing_is_made_of_a_restart() -> None:
    """Growth across it is not known: neither negative nor zero."""
    got = to_json(server_figures([FIRST, RESTARTED]))
    assert got["generation_tokens_per_s"] is None
    assert got["preemptions"] is None


def run(*states: tuple[float, float], **more: float) -> list[ServerSample]:
    """A second each of (running, waiting)."""
    samples = []
    for second, (running, waiting) in enumerate(states):
        sample = replace(FIRST, at_ns=second * S, running=running, waiting=waiting, **more)
        samples.append(sample)
    return samples


FULL = ((16.0, 9.0),) * 6


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        (run(*FULL), 16),
        (run((2.0, 0.0), (8.0, 0.0), *FULL, (15.0, 3.0)), 16),  # one had just ended
        (run(*FULL[:5]), None),  # four in a row with one before: too few
        (run(*((8.0, 0.0),) * 30), None),  # nothing ever waited
        (run(*((8.0, 1.0), (9.0, 0.0)) * 20), None),  # it had only just come
        (run(*FULL, kv_usage=0.95), None),  # blocks bind
        (run(*FULL, kv_usage=0.5, kv_usage_fullest=0.97), None),  # in one engine
        (run(*FULL, waiting_capacity=0.0), None),  # what waits does not wait for a seat
        (run(*FULL, kv_usage=nan), 16),  # not said
        # running swings while requests wait: prompts or blocks bind
        (run(*((16.0, 5.0), (9.0, 5.0), (12.0, 5.0)) * 8), None),
        ([], None),
    ],
)
def test_seats_are_inferred(samples: list[ServerSample], want: int | None) -> None:
    """What runs, flat, while others wait and blocks are free."""
    assert infer_max_num_seqs(samples) == want


@pytest.mark.parametrize(
    ("prompts", "steps", "engines", "want"),
    [
        (0.9, 7, 1, 16),  # slots: now and then none is computed
        (2.0, 1, 1, 16),  # slots: requests are short, and a step takes two whole prompts
        (
            1.8,
            4.7,
            1,
            None,
        ),  # prompts fill the steps of one of 512 slots: H200, 2,048 tokens a step
        (1.8, 4.7, 2, 16),  # 0.9 an engine
        (nan, 4.7, 1, 16),  # not said
    ],
)
def test_seats_are_not_inferred_from_prompts(
    prompts: float, steps: float, engines: int, want: int | None
) -> None:
    """With so many prompts computed at a time, each for so many steps of 10 ms."""
    each_s = steps * 0.01
    samples = []
    for second, sample in enumerate(run(*FULL)):
        step_tokens = Histogram(BOUNDS, (0.0, 0.0, 100.0 * engines * second), 1.0)
        samples.append(
            replace(
                sample,
                prefill_sum_s=second * prompts,
                prefill_count=second * prompts / each_s,
                histograms={"step_tokens": step_tokens},
            )
        )
    assert infer_max_num_seqs(samples, engines) == want


def test_seats_are_not_inferred_from_what_a_gpu_ran() -> None:
    """63 of 512 slots, as prompts of 4,096 tokens share steps of 2,048."""
    damage = Damage()
    samples = read_server(LONG_PROMPTS, damage)
    assert len(samples) == 80
    assert damage == Damage()
    assert infer_max_num_seqs(samples) is None


def test_seats_are_not_inferred_from_preemptions() -> None:
    """Requests that lose their blocks wait too."""
    samples = [replace(s, preemptions_total=float(i)) for i, s in enumerate(run(*FULL))]
    assert infer_max_num_seqs(samples) is None


@pytest.mark.parametrize(
    ("server", "want"),
    [
        ({"flags": {"max_num_seqs": 8}, "read": ["max_num_seqs"]}, (8, "read", 8)),
        ({"flags": {"max_num_seqs": 8}, "read": []}, (8, "given", 8)),
        ({"flags": {"max_num_seqs": 8}}, (8, "given", 8)),  # an older folder
        ({"flags": {}}, (16, "inferred", 16)),
        ({"engines": 2}, (8, "inferred", 16)),  # vLLM's flag is an engine's
        ({}, (16, "inferred", 16)),
    ],
)
def test_where_the_seats_are_from(server: dict[str, object], want: tuple[int, str, int]) -> None:
    """Read or given, else inferred, and which; of one engine and of all."""
    found = max_num_seqs(server, run(*FULL))
    assert (found.value, found.source, found.slots) == want


def test_unknown_seats() -> None:
    """Nobody says and nothing waited."""
    assert max_num_seqs({}, [FIRST]) == MaxNumSeqs(None, Source.UNKNOWN)
    assert np.isnan(MaxNumSeqs().slots)


def test_flags_that_contradict() -> None:
    """A person's word against the server's is refused before any load."""
    read = {"max_num_seqs": 8}
    assert merge_flags(read, {"dtype": "fp8"}) == {"max_num_seqs": 8, "dtype": "fp8"}
    assert merge_flags(read, {"max_num_seqs": 8}) == read
    with pytest.raises(ConfigError, match=r"--server-flag max-num-seqs=9 contradicts.*says 8"):
        merge_flags(read, {"max_num_seqs": 9})


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        ([FIRST], ["prefill time"]),
        ([replace(FIRST, kv_usage=nan), replace(LAST, prefill_count=3.0)], []),
        (
            [replace(FIRST, kv_usage=nan, queue_count=nan)],
            ["KV cache usage", "queue time", "prefill time"],
        ),
    ],
)
def test_what_the_server_never_says(samples: list[ServerSample], want: list[str]) -> None:
    """In words, for the report."""
    assert missing_figures(samples) == want
    assert len(missing_figures([])) == 8


def test_every_figure_is_made_of_what_is_read() -> None:
    """A figure of the window that names a key which no sample has would stay unknown for ever."""
    read = {*NUMBER_FIELDS, *(series.key for series in HISTOGRAMS)}
    rows = summaries(ServerFigures).items()
    assert [(name, row.keys) for name, row in rows if not read.issuperset(row.keys)] == []
