"""What stops it there: rules over the server's figures, some of which may be missing."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from harness.diagnosis.bottleneck import MIN_PROBABILITY, RULES, UNKNOWN, diagnose
from harness.diagnosis.rules.inputs import NO_LEVEL, VerdictInputs
from harness.metrics.level_figures import (
    ClientFigures,
    GapFigures,
    GpuFigures,
    LateSplit,
    MaxNumSeqs,
    ServerFigures,
    Source,
)
from harness.metrics.result import Level
from harness.units import SECOND

NAN = float("nan")
OWN_NAMES = {one.name for one in fields(VerdictInputs)}


def changed(start: VerdictInputs, change: Mapping[str, Any]) -> VerdictInputs:
    """`start` with other figures: of its own, or, by "server.running_mean", of its level."""
    for path, value in change.items():
        names = path.split(".")
        start = _with(start, names if names[0] in OWN_NAMES else ["level", *names], value)
    return start


def _with(whole: Any, names: Sequence[str], value: Any) -> Any:
    first, *rest = names
    new = _with(getattr(whole, first), rest, value) if rest else value
    if isinstance(whole, Level) and first in whole.latencies:
        return replace(whole, latencies=whole.latencies | {first: new})
    return replace(whole, **{first: new})


# 64 users, 16 slots, 48 wait, first tokens too late; a quiet client, a busy GPU, even arrivals
FULL = changed(
    VerdictInputs(),
    {
        "users": 64,
        "end_ns": 30 * SECOND,
        "broken": "ttft",
        "limit_ms": 500,
        "server.samples": 30,
        "server.running_mean": 16,
        "server.running_max": 16,
        "server.running_flat_share": 1,
        "server.waiting_mean": 48,
        "server.waiting_max": 48,
        "server.waiting_capacity_mean": 48,
        "server.kv_usage_max": 0.5,
        "server.preemptions": 0,
        "server.ttft_mean_s": 1,
        "server.queue_mean_s": 0.9,
        "server.prefill_mean_s": 0.08,
        "server.api_server_cores": 0.2,
        "server.engine_cores": 1,
        "gpu.util_pct_mean": 97,
        "gpu.throttled_share": 0,
        "gpu.throttled": "",
        "clock_share": 1,
        "ttft_ms.mean": 1005,
        "client.cpu": {"main": 0.3},
        "client.instrument_share": {"ttft": 0.001},
        "client.turnaround_ms.p99": 0.3,
        "gaps.p50_ms": 20,
        "gaps.p95_ms": 22,
        "gaps.mean_ms": 20,
        "gaps.alone_p95_ms": 21,
        "gaps.beside_p50_ms": 20,
        "gaps.prompt_share": 0.3,
        "gaps.longest_prompt_share": 0.4,
        "gaps.late_share": 0,
        "lowest.gaps.late_share": 0,
        "gaps.base_ms": 19,
        "gaps.slope_ms": 2,
        "gaps.prompt_tokens_mean": 50,
        "server.decode_mean_s": 0.3,
        "memory_kept": 1,
        "arrivals.dispersion": 0.9,
        "lowest.users": 1,
        "lowest.gaps.p50_ms": 18,
        "late.queue": 0.9,
        "late.outside": 0.02,
    },
)
# 64 users run at once, gaps are too long: 40 ms where 30 were promised
LONG = changed(
    FULL,
    {
        "broken": "itl",
        "limit_ms": 30,
        "server.running_mean": 64,
        "server.running_max": 64,
        "server.waiting_mean": 0,
        "server.waiting_max": 0,
        "server.waiting_capacity_mean": 0,
        "server.running_flat_share": NAN,
        "server.ttft_mean_s": 0.1,
        "server.queue_mean_s": 0.005,
        "server.prefill_mean_s": 0.09,
        "ttft_ms.mean": 101,
        "gaps.p50_ms": 38,
        "gaps.p95_ms": 40,
        "gaps.mean_ms": 38,
        "gaps.alone_p95_ms": 39,
        "gaps.base_ms": 37,
    },
)
# Composed: eight prompts at a server that only prefills, of which two run; first tokens come to the
# client from another one. Nothing is known of gaps and of the GPUs of the one.
PREFILLING = changed(
    FULL,
    {
        "prefills_only": True,
        "memory_kept": NAN,
        "clock_share": NAN,
        "gaps": GapFigures(),
        "lowest.gaps": GapFigures(),
        "late": LateSplit(),
        "gpu": GpuFigures(),
        "prefill": ServerFigures(),
        "server.running_mean": 2,
        "server.running_max": 2,
        "server.waiting_mean": 6,
        "server.waiting_capacity_mean": 6,
        "server.waiting_max": 9,
        "server.kv_usage_max": 0.2,
        "server.ttft_mean_s": 0.75,
        "server.queue_mean_s": 0.55,
        "server.prefill_mean_s": 0.18,
        "server.decode_mean_s": 0,
        "ttft_ms.mean": 900,
        "ttft_split.residual_ms": 20,
    },
)
UNKNOWN_LEVEL = VerdictInputs(Level(0, 64, end_ns=30 * SECOND), broken="itl")
PARTS: dict[str, Any] = {
    "": UNKNOWN_LEVEL,
    "server.": NO_LEVEL.server,
    "gpu.": NO_LEVEL.gpu,
    "gaps.": NO_LEVEL.gaps,
    "lowest.gaps.": NO_LEVEL.gaps,
    "arrivals.": NO_LEVEL.arrivals,
    "late.": NO_LEVEL.late,
    "ttft_ms.": NO_LEVEL.ttft_ms,
    "client.turnaround_ms.": NO_LEVEL.client.turnaround_ms,
}
NUMBERS = [
    start + one.name for start, part in PARTS.items() for one in fields(part) if one.type == "float"
]
# figures of several, none of which is known
NOBODY_SAYS = [
    *((name, NAN) for name in NUMBERS),
    ("users", NAN),
    ("lowest.users", NAN),
    ("client.cpu", {}),
    ("client.instrument_share", {}),
]

# what changes from FULL or LONG -> what is named, how surely
TABLE: dict[str, tuple[VerdictInputs, dict[str, Any], str, float]] = {
    "every slot is taken": (FULL, {}, "batch slots", 0.9),
    "16 slots, as the server says": (
        FULL,
        {"slots": 16, "slots_source": "read"},
        "batch slots",
        0.9,
    ),
    "16 of 32 slots are taken": (FULL, {"slots": 32, "slots_source": "read"}, "undecided", 0),
    "what runs changes": (FULL, {"server.running_flat_share": 0.5}, "undecided", 0),
    "half a request waits, a slot is the smaller part": (
        FULL,
        {"server.waiting_capacity_mean": 0.5, "late.queue": 0.4},
        "batch slots",
        0.6,
    ),
    "all blocks are in use": (FULL, {"server.kv_usage_max": 0.97}, "KV cache capacity", 0.9),
    "blocks are lost, but how full it is is not said": (
        FULL,
        {"server.preemptions": 2, "server.kv_usage_max": NAN},
        "KV cache capacity",
        0.7,
    ),
    "every step is full of prompts": (
        FULL,
        {"server.running_flat_share": 0.5, "gaps.prompt_share": 1, "lowest.gaps.p50_ms": 8},
        "prefill compute",
        0.9,
    ),
    "every step is full of prompts, what runs stands still for it": (
        FULL,
        {"gaps.prompt_share": 1, "lowest.gaps.p50_ms": 8},
        "prefill compute",
        0.86,
    ),
    "every step is full, all the 16 slots that the server has are taken": (
        FULL,
        {"gaps.prompt_share": 1, "lowest.gaps.p50_ms": 8, "slots": 16, "slots_source": "read"},
        "batch slots",
        0.6,
    ),
    "prompts wait while others decode for long": (
        FULL,
        {
            "server.running_flat_share": 0.5,
            "gaps.prompt_share": 1,
            "lowest.gaps.p50_ms": 8,
            "server.decode_mean_s": 0.9,
        },
        "prefill-decode interference",
        0.9,
    ),
    "prefill is the larger part": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "server.waiting_mean": 0,
            "server.queue_mean_s": 0,
            "server.prefill_mean_s": 0.6,
            "gaps.base_ms": 8,
        },
        "prefill compute",
        0.9,
    ),
    "prefill, but the GPU has time": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "server.waiting_mean": 0,
            "server.queue_mean_s": 0,
            "server.prefill_mean_s": 0.6,
            "gaps.base_ms": 8,
            "gpu.util_pct_mean": 40,
            "server.engine_cores": 0.5,
        },
        "engine process",
        0.9,
    ),
    "neither queue nor prefill, a whole core": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "late.queue": 0.01,
            "late.outside": 0.9,
            "server.api_server_cores": 0.99,
        },
        "front end",
        0.89,
    ),
    "neither queue nor prefill, CPU not known": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "late.queue": 0.01,
            "late.outside": 0.9,
            "server.api_server_cores": NAN,
        },
        "front end",
        0.5,
    ),
    "every thread of a Rust front end is busy": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "late.queue": 0.01,
            "late.outside": 0.9,
            "server.api_server_cores": 14.4,
            "server.api_server_threads": 16,
        },
        "front end",
        0.89,
    ),
    "a Rust front end with as much CPU in all, over 16 threads": (
        FULL,
        {
            "server.waiting_capacity_mean": 0,
            "late.queue": 0.01,
            "late.outside": 0.9,
            "server.api_server_cores": 0.96,
            "server.api_server_threads": 16,
        },
        "undecided",
        0,
    ),
    "the step is long": (LONG, {}, "decode bandwidth", 0.9),
    "the GPU is not seen": (
        LONG,
        {"gpu.util_pct_mean": NAN, "server.engine_cores": NAN},
        "decode bandwidth",
        0.6,
    ),
    "the GPU waits, the engine has no CPU left": (
        LONG,
        {"gpu.util_pct_mean": 40},
        "engine process",
        0.9,
    ),
    "they take turns": (
        LONG,
        {"gpu.util_pct_mean": 40, "server.engine_cores": 0.6},
        "engine process",
        0.9,
    ),
    "the GPU waits for half of the time": (LONG, {"gpu.util_pct_mean": 55}, "engine process", 0.6),
    "the GPU waits, the engine's CPU is not known": (
        LONG,
        {"gpu.util_pct_mean": 50, "server.engine_cores": NAN},
        "engine process",
        0.5,
    ),
    "the GPU waits for somebody else": (
        LONG,
        {"gpu.util_pct_mean": 50, "server.engine_cores": 0.2},
        "undecided",
        0,
    ),
    "long where a prompt is computed, half of it would do": (
        LONG,
        {
            "gaps.alone_p95_ms": 21,
            "gaps.p50_ms": 20,
            "gaps.longest_prompt_share": 0.95,
            "gaps.beside_p50_ms": 41,
        },
        "prefill compute",
        0.9,
    ),
    "half of it would do, but so would a smaller budget: 3,000 prompt tokens in a step": (
        LONG,
        {
            "gaps.alone_p95_ms": 21,
            "gaps.p50_ms": 20,
            "gaps.longest_prompt_share": 0.95,
            "gaps.beside_p50_ms": 41,
            "gaps.prompt_tokens_mean": 900,
        },
        "prefill-decode interference",
        0.75,
    ),
    "every step has a prompt, prompts take four steps, what runs stands still for it": (
        FULL,
        {
            "gaps.prompt_share": 1,
            "lowest.gaps.p50_ms": 2,
            "gaps.p95_ms": 30,
            "server.decode_mean_s": 0.9,
        },
        "prefill-decode interference",
        0.86,
    ),
    "a prompt's step is three times too long": (
        LONG,
        {
            "gaps.alone_p95_ms": 21,
            "gaps.p50_ms": 20,
            "gaps.longest_prompt_share": 0.95,
            "gaps.beside_p50_ms": 90,
        },
        "prefill-decode interference",
        0.9,
    ),
    "prompts' long steps are as rare as the longest gaps": (
        LONG,
        {
            "gaps.alone_p95_ms": 21,
            "gaps.p50_ms": 20,
            "gaps.p95_ms": 22,
            "gaps.prompt_share": 0.045,
            "gaps.longest_prompt_share": 0.95,
            "gaps.beside_p50_ms": 90,
        },
        "prefill-decode interference",
        0.9,
    ),
    "events wait for the API server": (LONG, {"server.api_server_cores": 0.97}, "front end", 0.47),
    "events are sent late": (
        LONG,
        {"server.api_server_cores": 0.6, "gaps.late_share": 0.08, "gaps.alone_p95_ms": 21},
        "front end",
        0.84,
    ),
    "events that seem late although the API servers have time": (
        LONG,
        {"server.api_server_cores": 0.4, "gaps.late_share": 0.2, "gaps.alone_p95_ms": 21},
        "decode bandwidth",
        0.6,
    ),
    "heat": (
        LONG,
        {"gpu.throttled_share": 0.6, "gpu.throttled": "heat (hardware) 60%", "clock_share": 0.5},
        "GPU throttled",
        0.83,
    ),
    "a power cap that explains a quarter of the slow-down": (
        LONG,
        {"gpu.throttled_share": 1, "gpu.throttled": "power cap 100%", "clock_share": 0.8},
        "decode bandwidth",
        0.81,
    ),
    "a power cap that slows the clocks a little, steps are twice as long": (
        LONG,
        {"gpu.throttled_share": 1, "gpu.throttled": "power cap 100%", "clock_share": 0.9},
        "decode bandwidth",
        0.9,
    ),
    "a GPU at its power cap, as it was at no lower level": (  # as an H200 at 86 to 96% busy
        LONG,
        {"gpu.throttled_share": 1, "gpu.throttled": "power cap 100%", "clock_share": NAN},
        "decode bandwidth",
        0.9,
    ),
    "a power cap that lowers the clocks as much as steps are slower": (
        LONG,
        {"gpu.throttled_share": 1, "gpu.throttled": "power cap 100%", "clock_share": 0.6},
        "GPU throttled",
        0.7,
    ),
    "a power cap that slows the clocks, first tokens take twenty times as long": (
        FULL,
        {
            "gpu.throttled_share": 1,
            "gpu.throttled": "power cap 100%",
            "clock_share": 0.8,
            "lowest.ttft_ms.mean": 50,
        },
        "batch slots",
        0.9,
    ),
    "heat under which first tokens take twice as long": (
        FULL,
        {
            "gpu.throttled_share": 1,
            "gpu.throttled": "heat (hardware) 100%",
            "clock_share": 0.5,
            "lowest.ttft_ms.mean": 500,
            "late.queue": 0.1,
            "server.waiting_capacity_mean": 0,
        },
        "GPU throttled",
        0.98,
    ),
    "a power cap that costs no speed": (
        LONG,
        {"gpu.throttled_share": 1, "gpu.throttled": "power cap 100%", "clock_share": 0.97},
        "decode bandwidth",
        0.9,
    ),
    "bursts of a schedule": (
        FULL,
        {
            "arrivals.dispersion": 9,
            "arrivals.scheduled": 1,
            "server.waiting_mean": 3,
            "server.waiting_capacity_mean": 3,
            "server.waiting_max": 40,
            "server.running_mean": 8,
            "server.running_flat_share": 0.2,
            "server.queue_mean_s": 0.6,
        },
        "arrival bursts",
        0.85,
    ),
    "clumps of a closed loop, in which answers end together": (
        FULL,
        {
            "arrivals.dispersion": 9,
            "arrivals.scheduled": 0,
            "server.waiting_mean": 3,
            "server.waiting_capacity_mean": 3,
            "server.waiting_max": 40,
            "server.running_mean": 8,
            "server.running_flat_share": 0.2,
            "server.queue_mean_s": 0.6,
        },
        "undecided",
        0,
    ),
    "one API server of an H200 at 144 users": (  # four of them hold twice as many
        FULL,
        {
            "arrivals.dispersion": 106,
            "arrivals.scheduled": 0,
            "server.waiting_mean": 15.8,
            "server.waiting_max": 63,
            "server.running_mean": 92,
            "server.running_max": 144,
            "server.running_flat_share": 0.1,
            "server.queue_mean_s": 0.133,
            "server.prefill_mean_s": 0.075,
            "server.ttft_mean_s": 0.314,
            "ttft_ms.mean": 397,
            "server.api_server_cores": 0.88,
            "server.engine_cores": 0.68,
            "gpu.util_pct_mean": 36,
            "server.kv_usage_max": 0.06,
            "server.waiting_capacity_mean": 0,
            "late.queue": 0.3,
            "late.outside": 0.7,
        },
        "front end",
        0.59,
    ),
    "bursts at a full server": (
        FULL,
        {
            "arrivals.dispersion": 9,
            "server.waiting_mean": 3,
            "server.waiting_capacity_mean": 3,
            "server.waiting_max": 40,
            "server.running_mean": 8,
            "server.running_flat_share": 0.9,
            "server.queue_mean_s": 0.6,
        },
        "batch slots",
        0.84,
    ),
    "the client blurs what it measures": (
        FULL,
        {"client.instrument_share": {"ttft": 0.2}, "client.cpu": {"main": 0.99}},
        "client",
        0.9,
    ),
    "the client sends late": (
        FULL,
        {"client.turnaround_ms.p99": 700, "client.cpu": {"main": 0.99}},
        "client",
        0.9,
    ),
    "the client is kept from the CPU, first tokens are seen late": (
        FULL,
        {
            "client.turnaround_ms.p99": 717,
            "client.cpu": {"main": 0.02},
            "ttft_ms.mean": 1700,
            "server.waiting_capacity_mean": 0,
            "server.queue_mean_s": 0.1,
        },
        "client",
        0.9,
    ),
    "users pause for longer than a first token may take, which comes in time": (
        FULL,
        {"client.turnaround_ms.p99": 4, "limit_ms": 3, "client.cpu": {"main": 0.02}},
        "batch slots",
        0.9,
    ),
    "late on the way": (
        FULL,
        {
            "ttft_ms.mean": 2500,
            "server.waiting_capacity_mean": 0,
            "server.queue_mean_s": 0.1,
            "server.engine_cores": NAN,
        },
        "network",
        0.85,
    ),
    "late on the way from a server on this machine": (
        FULL,
        {"ttft_ms.mean": 2500, "server.waiting_capacity_mean": 0, "server.queue_mean_s": 0.1},
        "undecided",
        0,
    ),
    "nothing is said": (UNKNOWN_LEVEL, {}, "undecided", 0),
    "prompts wait for the servers that only prefill": (PREFILLING, {}, "prefill compute", 0.9),
    "they take in few of 256 slots": (
        PREFILLING,
        {"slots": 256, "slots_source": "read"},
        "prefill compute",
        0.9,
    ),
    "both of their slots are taken": (
        PREFILLING,
        {"slots": 2, "slots_source": "read"},
        "batch slots",
        0.7,
    ),
    "no prompt waits, each takes long": (
        PREFILLING,
        {
            "server.waiting_mean": 0,
            "server.waiting_capacity_mean": 0,
            "server.queue_mean_s": 0,
            "server.prefill_mean_s": 0.73,
        },
        "prefill compute",
        0.9,
    ),
    "their KV cache is full of what nobody has fetched": (
        PREFILLING,
        {"server.kv_usage_max": 0.99},
        "KV cache capacity",
        0.6,
    ),
    "their API server has no CPU left": (
        PREFILLING,
        {
            "server.api_server_cores": 0.95,
            "server.waiting_mean": 0,
            "server.waiting_capacity_mean": 0,
            "server.queue_mean_s": 0.01,
            "server.prefill_mean_s": 0.09,
        },
        "front end",
        0.78,
    ),
    "what decodes afterwards is not the network": (
        PREFILLING,
        {"ttft_ms.mean": 1900, "server.engine_cores": NAN},
        "prefill compute",
        0.9,
    ),
}
# Two causes that both hold are both said.
BESIDE = {"events wait for the API server": "decode bandwidth"}


def test_the_rule_that_fits() -> None:
    """One change each from a server that is full, or one whose gaps are too long."""
    got = {}
    wanted = {}
    for case, (start, change, want, confidence) in TABLE.items():
        found = diagnose(changed(start, change))
        got[case] = (found.bound_by, found.confidence)
        wanted[case] = (want, confidence)
    assert got == wanted


def test_every_other_cause_is_ruled_out_in_words() -> None:
    """A verdict says why it is none of the others, and what to turn next with its trade."""
    for case, (start, change, want, _) in TABLE.items():
        found = diagnose(changed(start, change))
        # what is said beside the first one is not ruled out
        others = [name for name in RULES if name not in (want, BESIDE.get(case))]
        names = []
        for line in found.ruled_out:
            name, _, reason = line.partition(": ")
            names.append(name)
            assert reason, (case, line)
        assert names == others, case
        is_decided = want != "undecided"
        assert bool(found.evidence) == is_decided, case
        assert bool(found.try_next) == is_decided, case


def test_what_nobody_says_is_never_a_figure() -> None:
    """A rule says in words which figure is missing: `nan` is no evidence."""
    wrong: list[tuple[Any, ...]] = []
    cases = {case: changed(start, change) for case, (start, change, _, _) in TABLE.items()}
    for (name, value), (case, known) in product(NOBODY_SAYS, cases.items()):
        inputs = changed(known, {name: value})
        for rule in RULES.values():
            found = rule(inputs)
            told = [found.sentence, *found.evidence, found.against]
            wrong += [(name, case, line) for line in told if "nan" in line.lower()]
            wrong += [(name, case, found)] * (not found.confidence <= 1)
    assert wrong == []


def test_a_slot_bound_server_without_kv_usage() -> None:
    """The verdict stands, and its evidence says what is missing and whose figures these are."""
    found = diagnose(changed(FULL, {"server.kv_usage_max": NAN, "server.preemptions": NAN}))
    assert (found.bound_by, found.window) == (
        "batch slots",
        "64 users held for 30 s, 30 readings of the server",
    )
    assert list(found.evidence) == [
        "16.0 requests run on average, 16 at most",
        "max_num_seqs 16, inferred: running stays the same while requests wait",
        "48.0 requests wait on average",
        (
            "late requests spend 90% of their wait in the queue, 8% for their prompt, "
            "2% outside the engine"
        ),
        "KV cache usage is not among the server's figures",
        "preemptions are not among the server's figures",
    ]


def test_what_a_server_that_only_prefills_is_told_by() -> None:
    """Its own queue and prefill; nothing of gaps or of decoding, which others do."""
    found = diagnose(PREFILLING)
    assert found.sentence == (
        "first tokens wait for prompts to be processed: 180 ms each, after 550 ms in the queue"
    )
    assert list(found.evidence) == [
        "6.0 requests wait on average",
        "the server's mean TTFT is 750 ms: 550 ms in the queue and 180 ms in prefill",
    ]
    assert found.try_next[-1] == "add a server that prefills"
    told = " ".join([*found.evidence, *found.try_next])
    assert not any(word in told for word in ("gap", "decod", "disaggregate"))


def test_without_metrics_there_is_no_verdict() -> None:
    """Long gaps alone do not say what made them long."""
    found = diagnose(UNKNOWN_LEVEL)
    assert (found.bound_by, found.sentence) == (
        "undecided",
        "not decided: the server does not report running requests",
    )


def test_the_facts_of_a_step() -> None:
    """Of the entry's own figures; the fullest engine's KV cache counts, a busy level's clock."""
    step = Level(
        0,
        20,
        end_ns=30 * SECOND,
        server=ServerFigures(
            samples=30,
            running_mean=12.5,
            kv_usage_max=0.6,
            kv_usage_fullest_max=0.98,
            kv_usage_mean=0.5,
            preemptions=3,
            ttft_mean_s=0.3,
            engine_cores=0.4,
            api_server_cores=12,
            api_server_threads=16,
        ),
        gpu=GpuFigures(util_pct_mean=88, sm_clock_mhz_mean=1400, throttled="power cap 40%"),
        client=ClientFigures({"ttft_p95": 0.01}, cpu={"main": 0.2, "worker 0": 0.7}),
        gaps=GapFigures(p50_ms=20, base_ms=15, mean_ms=20),
    )
    low = replace(
        step,
        users=2,
        gpu=GpuFigures(util_pct_mean=85, sm_clock_mhz_mean=2000),
        gaps=GapFigures(p50_ms=9),
    )
    found = VerdictInputs.of(step, [low, step], "ttft", 250, MaxNumSeqs(8, Source.GIVEN, engines=2))
    assert (found.level, found.lowest, found.broken, found.limit_ms) == (step, low, "ttft", 250)
    assert (found.kv_max, found.server.preemptions) == (0.98, 3)
    assert (found.ttft_ms, found.gpu_util, found.clock_share) == (300, 0.88, 0.7)
    assert (found.client_cores, found.instrument_share) == (0.7, 0.01)
    assert (found.slots, found.slots_source) == (16, "given")
    assert found.api_cores == 0.75  # of each thread
    assert found.prompt_part == 0.25  # 15 of 20 ms without prompts
    assert np.isnan([found.queue_ms, found.queue_share, found.memory_kept]).all()  # nobody says


def test_confidence_is_a_share() -> None:
    """Below MIN_PROBABILITY nothing is named; with "unknown" they add up to one."""
    for start, change, want, confidence in TABLE.values():
        found = diagnose(changed(start, change))
        assert 0 <= found.confidence <= 1
        assert (want == "undecided") == (confidence < MIN_PROBABILITY)
        assert sum(one.probability for one in found.causes) == pytest.approx(1)
        assert sorted(found.causes, key=lambda one: -one.probability) == list(found.causes)
        assert {one.name for one in found.causes} <= {*RULES, UNKNOWN}


def test_a_front_end_in_rust_gets_other_advice() -> None:
    """It is one process: vLLM refuses --api-server-count beside it."""
    start, change, *_ = TABLE["every thread of a Rust front end is busy"]
    found = diagnose(changed(start, change))
    assert "API server CPU: 0.90 cores of each of the Rust front end's 16" in found.evidence
    assert found.try_next[0].startswith("give the Rust front end more CPUs")
    assert not any("--api-server-count" in line for line in found.try_next)


def test_two_causes_that_both_hold_are_both_said() -> None:
    """Neither is sure, both are named with their evidence, and each has its advice."""
    start, change, *_ = TABLE["events wait for the API server"]
    found = diagnose(changed(start, change))
    assert [(one.name, one.probability) for one in found.causes] == [
        ("front end", 0.47),
        ("decode bandwidth", 0.47),
        (UNKNOWN, 0.06),
    ]
    first, second = found.sentence.split("; or ")
    assert first.startswith("the API server cannot keep up")
    assert second.startswith("each engine step takes too long")
    assert found.try_next[0].startswith("raise --api-server-count")
    assert any("lower --max-num-seqs" in line for line in found.try_next)
    assert found.try_next[-1] == "add a replica"
