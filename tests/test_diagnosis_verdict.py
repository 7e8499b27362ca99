"""What stops it there: rules over the server's figures, some of which may be missing."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest

from harness.diagnosis.bottleneck import MIN_PROBABILITY, RULES, UNKNOWN, diagnose
from harness.diagnosis.rules.inputs import VerdictInputs
from harness.metrics.level_figures import (
    ClientFigures,
    GapFigures,
    GpuFigures,
    MaxNumSeqs,
    ServerFigures,
    Source,
)
from harness.metrics.result import Level
from harness.units import SECOND

NAN = float("nan")
# 64 users, 16 slots, 48 wait, first tokens too late; a quiet client, a busy GPU, even arrivals
FULL = VerdictInputs(
    users=64,
    seconds=30,
    broken="ttft",
    limit_ms=500,
    samples=30,
    running=16,
    running_max=16,
    running_flat=1,
    waiting=48,
    waiting_max=48,
    capacity=48,
    kv_max=0.5,
    preemptions=0,
    ttft_ms=1000,
    queue_ms=900,
    prefill_ms=80,
    api_cores=0.2,
    engine_cores=1,
    gpu_util=0.97,
    throttle=0,
    throttled="",
    clock_share=1,
    client_ttft_ms=1005,
    client_cores=0.3,
    instrument_share=0.001,
    turnaround_ms=0.3,
    gap_p50_ms=20,
    gap_p95_ms=22,
    gap_mean_ms=20,
    alone_p95_ms=21,
    beside_p50_ms=20,
    beside_share=0.3,
    longest_beside_share=0.4,
    late_share=0,
    low_late_share=0,
    base_ms=19,
    slope_ms=2,
    prompt_tokens=50,
    decode_ms=300,
    memory_kept=1,
    dispersion=0.9,
    low_users=1,
    low_gap_ms=18,
    queue_share=0.9,
    outside_share=0.02,
)
# 64 users run at once, gaps are too long: 40 ms where 30 were promised
LONG = replace(
    FULL,
    broken="itl",
    limit_ms=30,
    running=64,
    running_max=64,
    waiting=0,
    waiting_max=0,
    capacity=0,
    running_flat=NAN,
    ttft_ms=100,
    queue_ms=5,
    prefill_ms=90,
    client_ttft_ms=101,
    gap_p50_ms=38,
    gap_p95_ms=40,
    gap_mean_ms=38,
    alone_p95_ms=39,
    base_ms=37,
)
NUMBERS = [f.name for f in fields(VerdictInputs) if f.type == "float" and f.name != "seconds"]

# what changes from FULL or LONG -> what is named, how surely
TABLE = {
    "every slot is taken": (FULL, {}, "batch slots", 0.9),
    "16 slots, as the server says": (
        FULL,
        {"slots": 16, "slots_source": "read"},
        "batch slots",
        0.9,
    ),
    "16 of 32 slots are taken": (FULL, {"slots": 32, "slots_source": "read"}, "undecided", 0),
    "what runs changes": (FULL, {"running_flat": 0.5}, "undecided", 0),
    "half a request waits, a slot is the smaller part": (
        FULL,
        {"capacity": 0.5, "queue_share": 0.4},
        "batch slots",
        0.6,
    ),
    "all blocks are in use": (FULL, {"kv_max": 0.97}, "KV cache capacity", 0.9),
    "blocks are lost, but how full it is is not said": (
        FULL,
        {"preemptions": 2, "kv_max": NAN},
        "KV cache capacity",
        0.7,
    ),
    "every step is full of prompts": (
        FULL,
        {"running_flat": 0.5, "beside_share": 1, "low_gap_ms": 8},
        "prefill compute",
        0.9,
    ),
    "every step is full of prompts, what runs stands still for it": (
        FULL,
        {"beside_share": 1, "low_gap_ms": 8},
        "prefill compute",
        0.86,
    ),
    "every step is full, all the 16 slots that the server has are taken": (
        FULL,
        {"beside_share": 1, "low_gap_ms": 8, "slots": 16, "slots_source": "read"},
        "batch slots",
        0.6,
    ),
    "prompts wait while others decode for long": (
        FULL,
        {"running_flat": 0.5, "beside_share": 1, "low_gap_ms": 8, "decode_ms": 900},
        "prefill-decode interference",
        0.9,
    ),
    "prefill is the larger part": (
        FULL,
        {"capacity": 0, "waiting": 0, "queue_ms": 0, "prefill_ms": 600, "base_ms": 8},
        "prefill compute",
        0.9,
    ),
    "prefill, but the GPU has time": (
        FULL,
        {
            "capacity": 0,
            "waiting": 0,
            "queue_ms": 0,
            "prefill_ms": 600,
            "base_ms": 8,
            "gpu_util": 0.4,
            "engine_cores": 0.5,
        },
        "engine process",
        0.9,
    ),
    "neither queue nor prefill, a whole core": (
        FULL,
        {"capacity": 0, "queue_share": 0.01, "outside_share": 0.9, "api_cores": 0.99},
        "front end",
        0.89,
    ),
    "neither queue nor prefill, CPU not known": (
        FULL,
        {"capacity": 0, "queue_share": 0.01, "outside_share": 0.9, "api_cores": NAN},
        "front end",
        0.5,
    ),
    "every thread of a Rust front end is busy": (
        FULL,
        {
            "capacity": 0,
            "queue_share": 0.01,
            "outside_share": 0.9,
            "api_cores": 0.9,
            "api_threads": 16,
        },
        "front end",
        0.89,
    ),
    "a Rust front end with as much CPU in all, over 16 threads": (
        FULL,
        {
            "capacity": 0,
            "queue_share": 0.01,
            "outside_share": 0.9,
            "api_cores": 0.06,
            "api_threads": 16,
        },
        "undecided",
        0,
    ),
    "the step is long": (LONG, {}, "decode bandwidth", 0.9),
    "the GPU is not seen": (LONG, {"gpu_util": NAN, "engine_cores": NAN}, "decode bandwidth", 0.6),
    "the GPU waits, the engine has no CPU left": (LONG, {"gpu_util": 0.4}, "engine process", 0.9),
    "they take turns": (LONG, {"gpu_util": 0.4, "engine_cores": 0.6}, "engine process", 0.9),
    "the GPU waits for half of the time": (LONG, {"gpu_util": 0.55}, "engine process", 0.6),
    "the GPU waits, the engine's CPU is not known": (
        LONG,
        {"gpu_util": 0.5, "engine_cores": NAN},
        "engine process",
        0.5,
    ),
    "the GPU waits for somebody else": (
        LONG,
        {"gpu_util": 0.5, "engine_cores": 0.2},
        "undecided",
        0,
    ),
    "long where a prompt is computed, half of it would do": (
        LONG,
        {"alone_p95_ms": 21, "gap_p50_ms": 20, "longest_beside_share": 0.95, "beside_p50_ms": 41},
        "prefill compute",
        0.9,
    ),
    "half of it would do, but so would a smaller budget: 3,000 prompt tokens in a step": (
        LONG,
        {
            "alone_p95_ms": 21,
            "gap_p50_ms": 20,
            "longest_beside_share": 0.95,
            "beside_p50_ms": 41,
            "prompt_tokens": 900,
        },
        "prefill-decode interference",
        0.75,
    ),
    "every step has a prompt, prompts take four steps, what runs stands still for it": (
        FULL,
        {"beside_share": 1, "low_gap_ms": 2, "gap_p95_ms": 30, "decode_ms": 900},
        "prefill-decode interference",
        0.86,
    ),
    "a prompt's step is three times too long": (
        LONG,
        {"alone_p95_ms": 21, "gap_p50_ms": 20, "longest_beside_share": 0.95, "beside_p50_ms": 90},
        "prefill-decode interference",
        0.9,
    ),
    "prompts' long steps are as rare as the longest gaps": (
        LONG,
        {
            "alone_p95_ms": 21,
            "gap_p50_ms": 20,
            "gap_p95_ms": 22,
            "beside_share": 0.045,
            "longest_beside_share": 0.95,
            "beside_p50_ms": 90,
        },
        "prefill-decode interference",
        0.9,
    ),
    "events wait for the API server": (LONG, {"api_cores": 0.97}, "front end", 0.47),
    "events are sent late": (
        LONG,
        {"api_cores": 0.6, "late_share": 0.08, "alone_p95_ms": 21},
        "front end",
        0.84,
    ),
    "events that seem late although the API servers have time": (
        LONG,
        {"api_cores": 0.4, "late_share": 0.2, "alone_p95_ms": 21},
        "decode bandwidth",
        0.6,
    ),
    "heat": (
        LONG,
        {"throttle": 0.6, "throttled": "heat (hardware) 60%", "clock_share": 0.5},
        "GPU throttled",
        0.83,
    ),
    "a power cap that explains a quarter of the slow-down": (
        LONG,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": 0.8},
        "decode bandwidth",
        0.81,
    ),
    "a power cap that slows the clocks a little, steps are twice as long": (
        LONG,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": 0.9},
        "decode bandwidth",
        0.9,
    ),
    "a GPU at its power cap, as it was at no lower level": (  # as an H200 at 86 to 96% busy
        LONG,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": NAN},
        "decode bandwidth",
        0.9,
    ),
    "a power cap that lowers the clocks as much as steps are slower": (
        LONG,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": 0.6},
        "GPU throttled",
        0.7,
    ),
    "a power cap that slows the clocks, first tokens take twenty times as long": (
        FULL,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": 0.8, "low_ttft_ms": 50},
        "batch slots",
        0.9,
    ),
    "heat under which first tokens take twice as long": (
        FULL,
        {
            "throttle": 1,
            "throttled": "heat (hardware) 100%",
            "clock_share": 0.5,
            "low_ttft_ms": 500,
            "queue_share": 0.1,
            "capacity": 0,
        },
        "GPU throttled",
        0.98,
    ),
    "a power cap that costs no speed": (
        LONG,
        {"throttle": 1, "throttled": "power cap 100%", "clock_share": 0.97},
        "decode bandwidth",
        0.9,
    ),
    "bursts of a schedule": (
        FULL,
        {
            "dispersion": 9,
            "scheduled": 1,
            "waiting": 3,
            "capacity": 3,
            "waiting_max": 40,
            "running": 8,
            "running_flat": 0.2,
            "queue_ms": 600,
        },
        "arrival bursts",
        0.85,
    ),
    "clumps of a closed loop, in which answers end together": (
        FULL,
        {
            "dispersion": 9,
            "scheduled": 0,
            "waiting": 3,
            "capacity": 3,
            "waiting_max": 40,
            "running": 8,
            "running_flat": 0.2,
            "queue_ms": 600,
        },
        "undecided",
        0,
    ),
    "one API server of an H200 at 144 users": (  # four of them hold twice as many
        FULL,
        {
            "dispersion": 106,
            "scheduled": 0,
            "waiting": 15.8,
            "waiting_max": 63,
            "running": 92,
            "running_max": 144,
            "running_flat": 0.1,
            "queue_ms": 133,
            "prefill_ms": 75,
            "ttft_ms": 314,
            "client_ttft_ms": 397,
            "api_cores": 0.88,
            "engine_cores": 0.68,
            "gpu_util": 0.36,
            "kv_max": 0.06,
            "capacity": 0,
            "queue_share": 0.3,
            "outside_share": 0.7,
        },
        "front end",
        0.59,
    ),
    "bursts at a full server": (
        FULL,
        {
            "dispersion": 9,
            "waiting": 3,
            "capacity": 3,
            "waiting_max": 40,
            "running": 8,
            "running_flat": 0.9,
            "queue_ms": 600,
        },
        "batch slots",
        0.84,
    ),
    "the client blurs what it measures": (
        FULL,
        {"instrument_share": 0.2, "client_cores": 0.99},
        "client",
        0.9,
    ),
    "the client sends late": (FULL, {"turnaround_ms": 700, "client_cores": 0.99}, "client", 0.9),
    "the client is kept from the CPU, first tokens are seen late": (
        FULL,
        {
            "turnaround_ms": 717,
            "client_cores": 0.02,
            "client_ttft_ms": 1700,
            "capacity": 0,
            "queue_ms": 100,
        },
        "client",
        0.9,
    ),
    "users pause for longer than a first token may take, which comes in time": (
        FULL,
        {"turnaround_ms": 4, "limit_ms": 3, "client_cores": 0.02},
        "batch slots",
        0.9,
    ),
    "late on the way": (
        FULL,
        {"client_ttft_ms": 2500, "capacity": 0, "queue_ms": 100, "engine_cores": NAN},
        "network",
        0.85,
    ),
    "late on the way from a server on this machine": (
        FULL,
        {"client_ttft_ms": 2500, "capacity": 0, "queue_ms": 100},
        "undecided",
        0,
    ),
    "nothing is said": (VerdictInputs(64, 30, "itl"), {}, "undecided", 0),
}
# Two causes that both hold are both said.
BESIDE = {"events wait for the API server": "decode bandwidth"}


def test_the_rule_that_fits() -> None:
    """One change each from a server that is full, or one whose gaps are too long."""
    got = {}
    for case, (start, change, *_) in TABLE.items():
        verdict = diagnose(replace(start, **change))
        got[case] = verdict.bound_by, verdict.confidence
    assert got == {case: (want, confidence) for case, (*_, want, confidence) in TABLE.items()}


def test_every_other_cause_is_ruled_out_in_words() -> None:
    """A verdict says why it is none of the others, and what to turn next with its trade."""
    for case, (start, change, want, _) in TABLE.items():
        verdict = diagnose(replace(start, **change))
        names = [line.partition(":")[0] for line in verdict.ruled_out]
        # what is said beside the first one is not ruled out
        assert names == [n for n in RULES if n not in (want, BESIDE.get(case))], case
        assert [line for line in verdict.ruled_out if not line.partition(": ")[2]] == [], case
        assert bool(verdict.evidence) == (want != "undecided"), case
        assert bool(verdict.try_next) == (want != "undecided"), case


def test_what_nobody_says_is_never_a_figure() -> None:
    """A rule says in words which figure is missing: `nan` is no evidence."""
    wrong = []
    for name, (case, (start, change, _, _)), rule in product(
        NUMBERS, TABLE.items(), RULES.values()
    ):
        finding = rule(replace(start, **change | {name: NAN}))
        said = [finding.sentence, *finding.evidence, finding.against]
        wrong += [(name, case, line) for line in said if "nan" in line.lower()]
        if not finding.confidence <= 1:
            wrong.append((name, case, finding))
    assert wrong == []


def test_a_slot_bound_server_without_kv_usage() -> None:
    """The verdict stands, and its evidence says what is missing and whose figures these are."""
    found = diagnose(replace(FULL, kv_max=NAN, preemptions=NAN))
    assert found.bound_by == "batch slots"
    assert found.window == "64 users held for 30 s, 30 readings of the server"
    assert list(found.evidence) == [
        "16.0 requests run on average, 16 at most",
        "max_num_seqs 16, inferred: running stays the same while requests wait",
        "48.0 requests wait on average",
        (
            "of the wait of late requests 90% is in the queue, 8% for their prompt, "
            "2% outside the engine"
        ),
        "KV cache usage is not among the server's figures",
        "preemptions are not among the server's figures",
    ]


def test_without_metrics_there_is_no_verdict() -> None:
    """Long gaps alone do not say what made them long."""
    found = diagnose(VerdictInputs(64, 30, "itl"))
    assert found.bound_by == "undecided"
    assert found.sentence == "not decided: the server does not show its running requests"


BUSY_LEVEL = Level(
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
LOW_LEVEL = replace(
    BUSY_LEVEL,
    users=2,
    gpu=GpuFigures(util_pct_mean=85, sm_clock_mhz_mean=2000),
    gaps=GapFigures(p50_ms=9),
)


def test_the_facts_of_a_step() -> None:
    """Of the entry's own figures; the fullest engine's KV cache counts, a busy level's clock."""
    max_num_seqs = MaxNumSeqs(8, Source.GIVEN, engines=2)
    found = VerdictInputs.of(BUSY_LEVEL, [LOW_LEVEL, BUSY_LEVEL], "ttft", 250, max_num_seqs)
    assert found.users == 20
    assert found.seconds == 30
    assert found.broken == "ttft"
    assert found.limit_ms == 250
    assert found.kv_max == 0.98
    assert found.preemptions == 3
    assert found.ttft_ms == 300
    assert found.gpu_util == 0.88
    assert found.clock_share == 0.7
    assert found.client_cores == 0.7
    assert found.instrument_share == 0.01
    assert found.engine_cores == 0.4
    assert found.slots == 16
    assert found.slots_source == "given"
    assert found.low_gap_ms == 9
    assert found.api_cores == 0.75
    assert found.api_threads == 16  # of each thread
    assert found.prompt_part == 0.25  # 15 of 20 ms without prompts
    assert np.isnan([found.queue_ms, found.waiting, found.dispersion]).all()  # nobody says


def test_confidence_is_a_share() -> None:
    """Below MIN_PROBABILITY nothing is named; with "unknown" they add up to one."""
    for start, change, want, confidence in TABLE.values():
        found = diagnose(replace(start, **change))
        assert 0 <= found.confidence <= 1
        assert (want == "undecided") == (confidence < MIN_PROBABILITY)
        assert sum(one.probability for one in found.causes) == pytest.approx(1)
        assert sorted(found.causes, key=lambda one: -one.probability) == list(found.causes)
        assert {one.name for one in found.causes} <= {*RULES, UNKNOWN}


def test_a_front_end_in_rust_gets_other_advice() -> None:
    """It is one process: vLLM refuses --api-server-count beside it."""
    start, change, *_ = TABLE["every thread of a Rust front end is busy"]
    found = diagnose(replace(start, **change))
    assert "API server CPU: 0.90 cores of each of the Rust front end's 16" in found.evidence
    assert found.try_next[0].startswith("more CPUs for the Rust front end")
    assert not any("--api-server-count" in line for line in found.try_next)


def test_two_causes_that_both_hold_are_both_said() -> None:
    """Neither is sure, both are named with their evidence, and each has its advice."""
    start, change, *_ = TABLE["events wait for the API server"]
    found = diagnose(replace(start, **change))
    assert [(one.name, one.probability) for one in found.causes] == [
        ("front end", 0.47),
        ("decode bandwidth", 0.47),
        (UNKNOWN, 0.06),
    ]
    first, second = found.sentence.split("; or ")
    assert first.startswith("the API server cannot keep up")
    assert second.startswith("each engine step takes too long")
    assert found.try_next[0].startswith("--api-server-count")
    assert any("--max-num-seqs lower" in line for line in found.try_next)
    assert found.try_next[-1] == "another replica"
