"""Every expression of every dashboard, by `promtool test rules`: samples and answers by hand.

The pages below are scraped once a second for a minute. A number is a gauge that stays, `+5` a
counter that grows by 5 each second. Beside each page stands one of another run, model and target
with other values: an expression that does not choose what it should adds it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest
from dashboard_stage import ANY, with_variables
from panels import expressions
from panels.gpu import OF_DCGM
from prometheus_tools import test_rules

if TYPE_CHECKING:
    from pathlib import Path

Key = tuple[str, str, str]  # dashboard, panel, legend
Answer = float | dict[str, float]  # of a single series without labels; by labels

# latency -> (its name, b, its histogram's largest finite bound, the quantile and limit of its SLO)
LATENCIES: Final = {
    "ttft": ("TTFT", 0.1, 200.0, "p95", 0.25),
    "itl": ("ITL", 0.01, 10.0, "p95", 0.05),
    # an SLO on it is no limit of ITL's, whose name it begins with
    "itl_per_token": ("ITL per token", 0.005, 10.0, "p95", 0.02),
    "tpot": ("TPOT", 0.03, 10.0, "p50", 1.0),
    "e2e": ("e2e", 1.0, 1000.0, "p50", 30.0),
}
SLOS: Final = {f"{key}_{q}": limit for key, (*_, q, limit) in LATENCIES.items()}
# histogram -> (b, its largest finite bound)
BOUNDS: Final = {key: row[1:3] for key, row in LATENCIES.items()} | {"schedule_lag": (0.002, 10.0)}
# vLLM's histogram -> (b, its mean)
SERVER_BOUNDS: Final = {
    "time_to_first_token_seconds": (0.5, 0.35), "inter_token_latency_seconds": (0.04, 0.03),
    "e2e_request_latency_seconds": (5.0, 2.6), "request_queue_time_seconds": (0.3, 0.2),
    "request_prefill_time_seconds": (0.3, 0.1), "request_decode_time_seconds": (3.0, 2.0),
    "request_inference_time_seconds": (3.0, 2.1), "iteration_tokens_total": (16.0, 24.0),
    "request_prompt_tokens": (128.0, 150), "request_generation_tokens": (64.0, 80),
}  # fmt: skip


def run_histogram(key: str) -> str:
    """40 a second: 10 up to b, 29 more up to 2 b, and one that failed, which no sum counts."""
    b, last = BOUNDS[key]
    return "\n".join(
        [
            *(
                f'harness_{key}_seconds_bucket{{le="{le}"}} +{n}'
                for le, n in ((b, 10), (2 * b, 39), (last, 39), ("+Inf", 40))
            ),
            f"harness_{key}_seconds_sum +{39 * 1.5 * b}",
            f"harness_{key}_seconds_count +40",
        ]
    )


def server_histogram(name: str) -> str:
    """40 a second: 10 up to b, 30 more up to 2 b."""
    b, mean = SERVER_BOUNDS[name]
    return "\n".join(
        [
            *(
                f'vllm:{name}_bucket{{le="{le}"}} +{n}'
                for le, n in ((b, 10), (2 * b, 40), ("+Inf", 40))
            ),
            f"vllm:{name}_sum +{40 * mean}",
            f"vllm:{name}_count +40",
        ]
    )


RUN: Final = """
harness_run_info{run="r", model="m"} 1
harness_users_target 9
harness_users_running 8
harness_level 3
harness_level_phase{phase="measuring"} 1
harness_level_phase{phase="settling"} 0
harness_level_purpose{purpose="up"} 1
harness_level_purpose{purpose="hold"} 0
harness_levels_total{decision="pass"} +0.5
harness_levels_total{decision="fail"} +0
harness_bracket_low_users 4
harness_bracket_high_users 16
harness_knee_users 6
harness_knee_low_users 5
harness_knee_high_users 7
harness_rate_target_per_second 20
harness_in_flight 11
harness_bracket_low_rate_per_second 15.5
harness_bracket_high_rate_per_second 24.5
harness_knee_rate_per_second 19.5
harness_knee_low_rate_per_second 18.5
harness_knee_high_rate_per_second 21.5
harness_drill_events_total{event="kill 1"} +0.5
harness_drill_expectation{expectation="lost"} 1
harness_requests_total{outcome="ok"} +12
harness_requests_total{outcome="timeout"} +3
harness_requests_total{outcome="status"} +1
harness_requests_total{outcome="connect"} +0
harness_good_requests_total +7
harness_output_tokens_total +50
harness_prompt_tokens_total +90
harness_client_cpu_seconds_total{process="main"} +0.25
harness_client_cpu_seconds_total{process="worker 0"} +0.75
harness_loop_lag_seconds{process="main"} 0.02
harness_loop_lag_seconds{process="worker 0"} 0.15
""" + "\n".join(
    [
        *(f'harness_slo_limit_seconds{{slo="{slo}"}} {limit}' for slo, limit in SLOS.items()),
        'harness_slo_misses_total{slo="ttft_p95"} +1',
        'harness_slo_observations_total{slo="ttft_p95"} +10',
        'harness_slo_misses_total{slo="itl_p95"} +20',
        'harness_slo_observations_total{slo="itl_p95"} +80',
        *map(run_histogram, BOUNDS),
    ]
)
VLLM: Final = """
up 1
process_cpu_seconds_total +0.75
http_requests_total{status="2xx"} +15
http_requests_total{status="5xx"} +5
vllm:spec_decode_num_drafts_total +2
vllm:spec_decode_num_draft_tokens_total +6
vllm:spec_decode_num_accepted_tokens_total +3
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:num_requests_waiting_by_reason{reason="capacity"} 2
vllm:num_requests_waiting_by_reason{reason="deferred"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:num_preemptions_total{engine="0"} +0.5
vllm:num_preemptions_total{engine="1"} +1
vllm:prefix_cache_hits_total +3
vllm:prefix_cache_queries_total +12
vllm:generation_tokens_total{engine="0"} +20
vllm:generation_tokens_total{engine="1"} +40
vllm:prompt_tokens_total +100
vllm:request_success_total{finished_reason="stop"} +2
vllm:request_success_total{finished_reason="length"} +3
vllm:request_success_total{finished_reason="abort"} +5
""" + "\n".join(map(server_histogram, SERVER_BOUNDS))
EXPORTER: Final = """
harness_target_info{target="server"} 1
harness_target_sample_age_seconds 0.5
harness_target_scrape_duration_seconds 0.01
harness_server_max_num_seqs{source="given"} 8
harness_server_slots_free 2
harness_server_kv_tokens 1000
harness_server_kv_free_tokens 250
harness_engine_cpu_seconds_total +1.5
harness_gpu_info{gpu="0", name="H200"} 1
harness_gpu_sample_age_seconds 0.25
harness_gpu_utilization_ratio{gpu="0"} 0.9
harness_gpu_utilization_ratio{gpu="1"} 0.8
harness_gpu_memory_utilization_ratio{gpu="0"} 0.4
harness_gpu_memory_used_bytes{gpu="0"} 60000
harness_gpu_memory_bytes{gpu="0"} 140000
harness_gpu_power_watts{gpu="0"} 500
harness_gpu_sm_clock_hertz{gpu="0"} 1900
harness_gpu_memory_clock_hertz{gpu="0"} 2600
harness_gpu_temperature_celsius{gpu="0"} 60
harness_gpu_pcie_receive_bytes_per_second{gpu="0"} 100
harness_gpu_pcie_transmit_bytes_per_second{gpu="0"} 200
harness_gpu_throttled{gpu="0", reason="power_cap"} 1
harness_gpu_throttled{gpu="0", reason="thermal"} 0
harness_gpu_energy_joules_total{gpu="0"} +500
harness_gpu_energy_joules_total{gpu="1"} +400
"""
DCGM: Final = """
DCGM_FI_DEV_GPU_UTIL{Hostname="h", gpu="0"} 90
DCGM_FI_DEV_MEM_COPY_UTIL{Hostname="h", gpu="0"} 40
DCGM_FI_DEV_FB_USED{Hostname="h", gpu="0"} 1000
DCGM_FI_DEV_POWER_USAGE{Hostname="h", gpu="0"} 500
DCGM_FI_DEV_SM_CLOCK{Hostname="h", gpu="0"} 1900
DCGM_FI_DEV_MEM_CLOCK{Hostname="h", gpu="0"} 2600
DCGM_FI_DEV_GPU_TEMP{Hostname="h", gpu="0"} 60
DCGM_FI_PROF_PCIE_RX_BYTES{Hostname="h", gpu="0"} 100
DCGM_FI_PROF_PCIE_TX_BYTES{Hostname="h", gpu="0"} 200
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{Hostname="h", gpu="0"} +900000
"""
PAGES: Final = {"run": RUN, "server": VLLM, "exporter": EXPORTER}  # by job and instance


def scraped(page: str, where: str, *, decoy: bool = False) -> list[dict[str, str]]:
    """A page's series; a decoy's instance, names and values are others: 3 v + 1."""
    found = []
    for name, labels, grows, text in re.findall(
        r"^([\w:]+)(?:\{(.+)\})? (\+?)(\S+)$", page, re.MULTILINE
    ):
        value = 3 * float(text) + 1 if decoy else float(text)
        shown = f"{labels}, " if labels else ""
        if decoy:
            shown = re.sub(r'(run|model|target)="\w+"', r'\1="other"', shown)
        if name.startswith(("vllm:", "process")):
            shown += f'model_name="{"other" if decoy else "m"}", '
        instance = "other" if decoy else where
        found.append(
            {
                "series": f'{name}{{{shown}job="{where}", instance="{instance}"}}',
                "values": f"0+{value}x60" if grows else f"{value}x60",
            }
        )
    return found


GIVEN: Final = [
    series
    for where, page in PAGES.items()
    for decoy in (False, True)
    for series in scraped(page, where, decoy=decoy)
] + scraped(DCGM, "dcgm")


def quantiles(b: float, last: float) -> dict[float, float]:
    """Of a run's histogram: the 20th of 40, the 38th, and the one that failed."""
    return {0.5: b + b * 10 / 29, 0.95: b + b * 28 / 29, 0.99: last}


def by_le(key: str) -> dict[str, float]:
    """A run's buckets, observations a second."""
    b, last = BOUNDS[key]
    return {'le="+Inf"': 40, f'le="{b}"': 10, f'le="{2 * b}"': 39, f'le="{last}"': 39}


def gpu(value: float) -> dict[str, float]:
    """The answer of the only GPU that has the figure."""
    return {'gpu="0", instance="exporter"': value}


def dcgm(value: float) -> dict[str, float]:
    """The answer of the only GPU of dcgm-exporter's."""
    return {'Hostname="h", gpu="0"': value}


# By panel and legend
USER_SEARCH_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("Users", "Users"): 8,
    ("Level", "Level"): 3,
    ("Output tokens/s", "Output tokens/s"): 50,
    ("Goodput", "Goodput"): 7,
    ("Bracket", "passed"): 4,
    ("Bracket", "failed"): 16,
    ("Knee", "from"): 5,
    ("Knee", "knee"): 6,
    ("Knee", "to"): 7,
    ("Throughput against users", "users"): 8,
    ("Throughput against users", "output tokens/s"): 50,
    ("Search progress", "target"): 9,
    ("Search progress", "users"): 8,
    ("Search progress", "passed up to"): 4,
    ("Search progress", "failed from"): 16,
    ("Search progress", "knee"): 6,
    ("Requests by outcome", "met every SLO"): 7,
    ("Requests by outcome", "{{outcome}}"):
        {'outcome="ok"': 12, 'outcome="status"': 1, 'outcome="timeout"': 3},
    ("Latencies over their SLO limit", "{{slo}}"):
        {'slo="itl_p95"': 20 / 80, 'slo="ttft_p95"': 1 / 10},
    ("measured", ""): {'instance="run", job="run", purpose="up"': 1},
    ("level ended", ""): {'decision="pass", instance="run", job="run"': 0.5 * 10},
    ("drill", ""): {'event="kill 1", instance="run", job="run"': 0.5 * 10},
    ("Expectations of a drill", "{{expectation}}"): {'expectation="lost"': 1},
    ("knee found", ""): {'instance="run", job="run"': 6},
}  # fmt: skip
RATE_SEARCH_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("Rate search", "target"): 20,
    ("Rate search", "sent and ended"): 12 + 3 + 1,
    ("Rate search", "passed up to"): 15.5,
    ("Rate search", "failed from"): 24.5,
    ("Rate search", "knee"): 19.5,
    ("Rate search", "from"): 18.5,
    ("Rate search", "to"): 21.5,
    ("Requests in flight and rate", "in flight"): 11,
    ("Requests in flight and rate", "rate"): 20,
    ("TTFT p95 against rate", "requests/s"): 20,
    ("TTFT p95 against rate", "p95 TTFT"): quantiles(*LATENCIES["ttft"][1:3])[0.95],
    ("TTFT p95 against rate", "limit"): LATENCIES["ttft"][4],
}


def knee_answers() -> dict[tuple[str, str], Answer]:
    """Those of both searches, and of the latencies that limit them."""
    answers = USER_SEARCH_ANSWERS | RATE_SEARCH_ANSWERS
    for key in ("ttft", "itl"):
        name, b, last, _, limit = LATENCIES[key]
        p95 = quantiles(b, last)[0.95]
        answers |= {
            (f"p95 {name} / limit", f"p95 {name} / limit"): p95 / limit,
            (f"{name} p95 and users", f"p95 {name}"): p95,
            (f"{name} p95 and users", "limit of {{slo}}"): {f'slo="{key}_p95"': limit},
            (f"{name} p95 and users", "users"): 8,
            (f"{name} p95 against users", "users"): 8,
            (f"{name} p95 against users", f"p95 {name}"): p95,
            (f"{name} p95 against users", "limit"): limit,
        }
    return answers


def latency_answers() -> dict[tuple[str, str], Answer]:
    """By panel and legend."""
    answers: dict[tuple[str, str], Answer] = {
        ("TTFT split", "queue"): 0.2,
        ("TTFT split", "prefill"): 0.1,
        ("TTFT split", "rest"): 0.35 - 0.2 - 0.1,
        ("TTFT split", "TTFT"): 0.35,
        ("Phases of a request", "queue"): 0.2,
        ("Phases of a request", "prefill"): 0.1,
        ("Phases of a request", "decode"): 2.0,
        ("Phases of a request", "inference"): 2.1,
    }
    for key, (name, b, last, slo, limit) in LATENCIES.items():
        for q, value in quantiles(b, last).items():
            answers[f"{name} quantiles", f"p{q * 100:g}"] = value
        answers[f"{name} quantiles", "limit of {{slo}}"] = {f'slo="{key}_{slo}"': limit}
        answers[f"{name} distribution", "{{le}}"] = by_le(key)
    for key, theirs in (
        ("ttft", "time_to_first_token_seconds"),
        ("itl", "inter_token_latency_seconds"),
        ("e2e", "e2e_request_latency_seconds"),
    ):
        title = f"{LATENCIES[key][0]}: client against server"
        b, mean = SERVER_BOUNDS[theirs]
        answers[title, "client p95"] = quantiles(*BOUNDS[key])[0.95]
        answers[title, "server p95"] = b + b * 28 / 30  # the 38th of 40
        answers[title, "client mean"] = 1.5 * BOUNDS[key][0]  # of 39: the failed one is not in it
        answers[title, "server mean"] = mean
    return answers


def engines(first: float, second: float) -> dict[str, float]:
    """The answers of both engines of the server."""
    return {
        'engine="0", instance="server"': first,
        'engine="1", instance="server"': second,
    }


SERVER_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("Running and waiting", "running"): 3 + 4,
    ("Running and waiting", "waiting"): 1 + 2,
    ("Running and waiting", "max_num_seqs"): 8,
    ("KV cache usage", "mean of engines"): (0.25 + 0.75) / 2,
    ("KV cache usage", "fullest engine"): 0.75,
    ("Preemptions", "per second"): 0.5 + 1,
    ("Prefix cache hits", "hit rate"): 3 / 12,
    ("Tokens per second", "generated"): 20 + 40,
    ("Tokens per second", "prompt"): 100,
    ("Tokens per engine step", "mean"): 24,
    ("Tokens per engine step", "p50"): 16 + 16 * 10 / 30,  # the 20th of 40
    ("Tokens per engine step", "p95"): 16 + 16 * 28 / 30,
    ("Waiting requests by reason", "for a slot or KV blocks"): 2,
    ("Waiting requests by reason", "for something else"): 1,
    ("Running and waiting by engine", "{{instance}} engine {{engine}} running"): engines(3, 4),
    ("Running and waiting by engine", "{{instance}} engine {{engine}} waiting"): engines(1, 2),
    ("KV cache usage by engine", "{{instance}} engine {{engine}}"): engines(0.25, 0.75),
    ("Finished requests by reason", "{{finished_reason}}"):
        {'finished_reason="length"': 3, 'finished_reason="stop"': 2, 'finished_reason="abort"': 5},
    ("Draft tokens accepted", "accepted"): 3 / 6,
    ("Tokens per draft", "tokens"): 1 + 3 / 2,
    ("Prompt length", "p50"): 128 + 128 * 10 / 30,  # the 20th of 40
    ("Prompt length", "p95"): 128 + 128 * 28 / 30,
    ("Output length", "p50"): 64 + 64 * 10 / 30,
    ("Output length", "p95"): 64 + 64 * 28 / 30,
    ("Tokens per engine step, distribution", "{{le}}"):
        {'le="+Inf"': 40, 'le="16.0"': 10, 'le="32.0"': 40},
    ("Free slots and KV cache", "slots free (max_num_seqs)"): 2 / 8,
    ("Free slots and KV cache", "KV tokens free"): 250 / 1000,
    ("Server CPU, cores", "API server"): 0.75,
    ("Server CPU, cores", "engine cores"): 1.5,
    ("Exporter: age and duration of its scrape", "age"): 0.5,
    ("Exporter: age and duration of its scrape", "took"): 0.01,
}  # fmt: skip
GPU_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("GPU utilization", "GPU {{gpu}}"): {**gpu(0.9), 'gpu="1", instance="exporter"': 0.8},
    ("Memory bus utilization", "GPU {{gpu}}"): gpu(0.4),
    ("Memory in use", "GPU {{gpu}}"): gpu(60000),
    ("Memory in use", "GPU {{gpu}}, total"): gpu(140000),
    ("Power", "GPU {{gpu}}"): gpu(500),
    ("SM clock", "GPU {{gpu}}"): gpu(1900),
    ("Temperature", "GPU {{gpu}}"): gpu(60),
    ("Memory clock", "GPU {{gpu}}"): gpu(2600),
    ("PCIe", "GPU {{gpu}} receives"): gpu(100),
    ("PCIe", "GPU {{gpu}} sends"): gpu(200),
    ("Clock throttling", "GPU {{gpu}}: {{reason}}"): {
        'gpu="0", instance="exporter", reason="power_cap"': 1,
        'gpu="0", instance="exporter", reason="thermal"': 0,
    },
    ("Energy per token", "J per generated token"): (500 + 400) / (20 + 40),
    ("GPUs: age of the last reading", "GPU {{gpu}}: {{name}}"): {'gpu="0", name="H200"': 0.25},
    ("GPU utilization", OF_DCGM): dcgm(0.9),
    ("Memory bus utilization", OF_DCGM): dcgm(0.4),
    ("Memory in use", OF_DCGM): dcgm(1000 * 2**20),
    ("Power", OF_DCGM): dcgm(500),
    ("SM clock", OF_DCGM): dcgm(1900e6),
    ("Temperature", OF_DCGM): dcgm(60),
    ("Memory clock", OF_DCGM): dcgm(2600e6),
    ("PCIe", "{{Hostname}} GPU {{gpu}} receives (DCGM)"): dcgm(100),
    ("PCIe", "{{Hostname}} GPU {{gpu}} sends (DCGM)"): dcgm(200),
    ("Energy per token", "J per generated token (DCGM)"): 900 / (20 + 40),
}
CLIENT_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("CPU of each process, cores", "{{process}}"): {
        'process="main"': 0.25,
        'process="worker 0"': 0.75,
    },
    ("Loop lag", "{{process}}"): {'process="main"': 0.02, 'process="worker 0"': 0.15},
    ("Failed requests", "failed"): (3 + 1) / (12 + 3 + 1),
    ("Users: target and running", "target"): 9,
    ("Users: target and running", "running"): 8,
    ("Output tokens: client and server", "received by the client"): 50,
    ("Output tokens: client and server", "generated by the server"): 20 + 40,
    ("Schedule lag", "p50"): quantiles(*BOUNDS["schedule_lag"])[0.5],
    ("Schedule lag", "p99"): quantiles(*BOUNDS["schedule_lag"])[0.99],
    ("Failed requests by outcome", "{{outcome}}"): {'outcome="status"': 1, 'outcome="timeout"': 3},
    ("Tokens per second", "output"): 50,
    ("Tokens per second", "prompt"): 90,
}
TTFT, ITL, E2E = (
    SERVER_BOUNDS[name][0]
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
    )
)
THE_38TH: Final = 1 + 28 / 30  # of 40, in units of b


def replica(value: float) -> dict[str, float]:
    """The answer of the only server chosen."""
    return {'instance="server"': value}


REPLICA_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("Replicas", "up"): replica(1),
    ("Replicas", "running"): replica(3 + 4),
    ("Replicas", "waiting"): replica(1 + 2),
    ("Replicas", "KV cache"): replica(0.75),
    ("Replicas", "p95 TTFT"): replica(TTFT * THE_38TH),
    ("Replicas", "p95 ITL"): replica(ITL * THE_38TH),
    ("Replicas", "output"): replica(20 + 40),
}
OVERVIEW_ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("p95 TTFT", "p95 TTFT"): TTFT * THE_38TH,
    ("p95 ITL", "p95 ITL"): ITL * THE_38TH,
    ("p95 e2e", "p95 e2e"): E2E * THE_38TH,
    ("Targets down", "Targets down"): 0,
    ("Waiting", "Waiting"): 1 + 2,
    ("Fullest KV cache", "Fullest KV cache"): 0.75,
    ("TTFT of production", "p50"): TTFT * (1 + 10 / 30),
    ("TTFT of production", "p95"): TTFT * THE_38TH,
    ("TTFT of production", "p99"): TTFT * (1 + 29.6 / 30),
    ("Running and waiting", "running"): 3 + 4,
    ("Running and waiting", "waiting"): 1 + 2,
    **REPLICA_ANSWERS,
    ("Tokens per second", "generated"): 20 + 40,
    ("Tokens per second", "prompt"): 100,
    ("Requests that failed", "aborted"): 5 / 10,
    ("Requests that failed", "HTTP 5xx"): 5 / 20,
    ("Cost per million output tokens", "cost"): 1e6 * 2 / 3600 / 60,  # 2 an hour, 60 tokens/s
}
ANSWERS: Final[dict[Key, Answer]] = {
    (dashboard, *key): answer
    for dashboard, answers in {
        "knee": knee_answers(),
        "latency": latency_answers(),
        "overview": OVERVIEW_ANSWERS,
        "server": SERVER_ANSWERS | REPLICA_ANSWERS,
        "gpu": GPU_ANSWERS,
        "client": CLIENT_ANSWERS,
    }.items()
    for key, answer in answers.items()
}
CHOSEN: Final = {**ANY, "price": "2", "run": "r", "model_name": "m", "target": "server"}


def asked(expr: str, answer: Answer, chosen: dict[str, str]) -> dict[str, object]:
    """One case of promtool's, which compares floats bit by bit: rounded to a millionth."""
    expr = with_variables(expr, {**chosen, "__rate_interval": "10s"})
    each = answer if isinstance(answer, dict) else {"": answer}
    samples = [{"labels": f"{{{labels}}}", "value": round(v, 6)} for labels, v in each.items()]
    return {"expr": f"round({expr}, 1e-6)", "eval_time": "60s", "exp_samples": samples}


def check(cases: list[dict[str, object]], folder: Path) -> None:
    """All of them over the pages above."""
    test = {"interval": "1s", "input_series": GIVEN, "promql_expr_test": cases}
    test_rules("groups: []\n", folder, [test])


def test_every_expression(tmp_path: Path) -> None:
    """Each query and each note, once, about one run of one model on one target."""
    asked_for = dict(expressions())
    assert sorted(ANSWERS) == sorted(asked_for)
    check([asked(asked_for[key], answer, CHOSEN) for key, answer in ANSWERS.items()], tmp_path)


CHOICES: Final = ("run", "model_name", "target")
ALL: Final = {**ANY, **dict.fromkeys(CHOICES, ".*")}
USERS = ("knee", "Users", "Users")
TOKENS = ("knee", "Output tokens/s", "Output tokens/s")
RUNNING, SEATS = (("server", "Running and waiting", name) for name in ("running", "max_num_seqs"))
CPU: Final = ("server", "Server CPU, cores", "API server")
FULLEST: Final = ("server", "KV cache usage", "fullest engine")
LIMIT: Final = ("knee", "TTFT p95 against users", "limit")


@pytest.mark.parametrize(
    ("chosen", "want"),
    [
        (
            ALL,
            {
                USERS: 8 + 25,
                TOKENS: 50 + 151,
                RUNNING: 7 + 10 + 13,
                SEATS: 8 + 25,
                CPU: 0.75 + 3.25,
                FULLEST: 3.25,
                LIMIT: 1.75,
            },
        ),
        # an exporter names no model
        ({**ALL, "model_name": "m"}, {USERS: 8, TOKENS: 50, RUNNING: 7, SEATS: 8 + 25, CPU: 0.75}),
        ({**ALL, "run": "other"}, {USERS: 25, TOKENS: 151, RUNNING: 7 + 10 + 13, SEATS: 8 + 25}),
        ({**ALL, "target": "server"}, {USERS: 8 + 25, RUNNING: 7, SEATS: 8, CPU: 0.75}),
        (
            {**ALL, **dict.fromkeys(CHOICES, "other")},
            {USERS: 25, RUNNING: 10 + 13, SEATS: 25, CPU: 3.25},
        ),
        (
            {**ALL, **dict.fromkeys(CHOICES, "none")},
            {key: {} for key in (USERS, TOKENS, RUNNING, SEATS, CPU)},
        ),
    ],
)
def test_what_is_chosen(chosen: dict[str, str], want: dict[Key, Answer], tmp_path: Path) -> None:
    """Where several runs or servers are chosen, counts add up and limits are the largest."""
    asked_for = dict(expressions())
    check([asked(asked_for[key], answer, chosen) for key, answer in want.items()], tmp_path)


IN_CLUSTER: Final = 'namespace="prod", pod="vllm-0", '
OF_THE_SERVER: Final = re.compile(r"vllm:|DCGM_")  # what Prometheus finds in the server's pod


def in_cluster(series: dict[str, str]) -> dict[str, str]:
    """As a PodMonitor labels it."""
    return {**series, "series": series["series"].replace("{", "{" + IN_CLUSTER, 1)}


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"namespace": "prod", "pod": "vllm-0"}, True),
        ({"namespace": "prod|test"}, True),
        ({}, True),  # All
        ({"namespace": "test"}, False),
        ({"pod": "vllm-1"}, False),
    ],
)
def test_a_pod_is_chosen(chosen: dict[str, str], found: bool, tmp_path: Path) -> None:
    """With a cluster's labels every answer is what it is without; of another pod there is none."""
    given = [in_cluster(series) for series in GIVEN]
    asked_for = dict(expressions())
    cases = []
    for key, answer in ANSWERS.items():
        # what a run or our exporter says is of no pod; `limit` and the like may be of both
        if not OF_THE_SERVER.search(asked_for[key]) or "harness_" in asked_for[key]:
            continue
        if key[1] == "Targets down":
            continue  # 0 of none, too
        cases.append(asked(asked_for[key], answer if found else {}, {**CHOSEN, **chosen}))
    assert len(cases) > 30
    test = {"interval": "1s", "input_series": given, "promql_expr_test": cases}
    test_rules("groups: []\n", tmp_path, [test])


@pytest.mark.parametrize(
    ("up", "want"),
    [("1x60", 0), ("1x50 0x9", 1), ("1x30 stale", 0)],
    ids=["up", "no answer", "out of service discovery"],
)
def test_a_target_that_is_down_is_counted(up: str, want: int, tmp_path: Path) -> None:
    """A server whose series ended ten seconds ago, beside something that is no vLLM."""
    labels = 'job="j", instance="server", model_name="m"'
    given = [
        {"series": 'up{job="j", instance="server"}', "values": up},
        {"series": f"vllm:num_requests_running{{{labels}}}", "values": "3x50 stale"},
        {"series": 'up{job="node", instance="n"}', "values": "0x60"},
    ]
    expr = dict(expressions())["overview", "Targets down", "Targets down"]
    test = {"interval": "1s", "input_series": given, "promql_expr_test": [asked(expr, want, ALL)]}
    test_rules("groups: []\n", tmp_path, [test])
