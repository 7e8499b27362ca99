"""What each expression of PANELS should answer, written a second time: (dashboard, panel, legend).

R: of the run's page. V: vLLM's. X: the exporter's. The names are those of docs/exporter.md and of
vLLM's documentation, spelled out here on purpose.
"""

from __future__ import annotations

from functools import partial
from math import isnan
from typing import TYPE_CHECKING

from promql_again import by, each, gauge, mean, only_while, over, pair, per_s, quantile, window

if TYPE_CHECKING:
    from promql_again import Stored, Term, Vector

R, V, X = (partial(gauge, page) for page in ("run", "server", "beside"))
R_s, V_s, X_s = (partial(per_s, page) for page in ("run", "server", "beside"))


def sub(a: Term, b: Term) -> Term:
    """A - b."""
    return pair(a, b, lambda x, y: x - y)


def largest(of: Term, *names: str) -> Term:
    """Max by (names)."""
    return by(of, *names, over=max)


def positive(of: Term) -> Term:
    """`> 0`."""
    return each(of, lambda v: v if v > 0 else None)


def run_q(q: float, key: str) -> Term:
    """A run's histogram."""
    return quantile(q, "run", f"harness_{key}_seconds")


def server_q(q: float, name: str) -> Term:
    """VLLM's histogram."""
    return quantile(q, "server", f"vllm:{name}")


def limits(key: str) -> Term:
    """By SLO."""
    return largest(R("harness_slo_limit_seconds", slo=f"{key}_*"), "slo")


def limit(key: str) -> Term:
    """Of one p95."""
    return largest(R("harness_slo_limit_seconds", slo=f"{key}_p95"))


def run_mean(key: str, largest_bound: str) -> Term:
    """Failures are in no sum and in no finite bucket."""
    finite = R_s(f"harness_{key}_seconds_bucket", le=largest_bound)
    return over(by(R_s(f"harness_{key}_seconds_sum")), by(finite))


def server_mean(name: str) -> Term:
    """Sum over count."""
    return over(by(V_s(f"vllm:{name}_sum")), by(V_s(f"vllm:{name}_count")))


def measured(s: Stored, t: float) -> Vector:
    """The purpose, while the phase of the same run is measuring."""
    phase = R("harness_step_phase", phase="measuring")(s, t)
    on = {dict(labels)["instance"] for labels, v in phase.items() if v == 1}
    purposes = R("harness_step_purpose")(s, t).items()
    return {k: v for k, v in purposes if v == 1 and dict(k)["instance"] in on}


def ended(s: Stored, t: float) -> Vector:
    """By how much a decision's counter grew in the window."""
    return positive(each(R_s("harness_steps_total"), lambda v: v * s.window_s))(s, t)


def or_none(of: Term) -> Term:
    """0 while a run is there and has none."""

    def term(s: Stored, t: float) -> Vector:
        none = {(): 0.0} if R("harness_run_info")(s, t) else {}
        return of(s, t) or none

    return term


USERS = by(R("harness_users_running"))
MEASURING = each(R("harness_step_phase", phase="measuring"), lambda v: v if v == 1 else None)


def unmoved(s: Stored, t: float) -> Vector:
    """Non-empty while the users of every run stay as they are throughout the window."""
    inside = [
        {v for _, v in window(points, t - s.window_s, t)}
        for labels, points in s.of("run", "harness_users_running")
        if not isnan(s.scraped(labels, t))
    ]
    return {(): 1.0} if max(map(len, inside), default=0) == 1 else {}


def during(of: Term) -> Term:
    """In a measured part, and users were the same in the whole window."""
    return only_while(only_while(of, MEASURING), unmoved)


TOKENS, GOOD = by(R_s("harness_output_tokens_total")), by(R_s("harness_good_requests_total"))
BAD = R_s("harness_requests_total", outcome="!ok")
GENERATED = by(V_s("vllm:generation_tokens_total"))
TTFT_V, ITL_V, E2E_V = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
)  # fmt: skip
QUEUE, PREFILL, DECODE, INFERENCE = (
    server_mean(f"request_{name}_time_seconds")
    for name in ("queue", "prefill", "decode", "inference")
)
LAST = {"ttft": "200.0", "itl": "10.0", "tpot": "10.0", "e2e": "1000.0"}  # finite bounds
LOW, HIGH, KNEE = (
    largest(R(f"harness_{name}_users")) for name in ("bracket_low", "bracket_high", "knee")
)


def by_gpu(name: str) -> Term:
    """Each GPU of each machine."""
    return by(X(f"harness_gpu_{name}"), "instance", "gpu")


def info_age(s: Stored, t: float) -> Vector:
    """Each GPU's name with the age of its page's readings."""
    ages = {dict(k)["instance"]: v for k, v in X("harness_gpu_sample_age_seconds")(s, t).items()}
    named = X("harness_gpu_info")(s, t).items()
    each_age = {k: v * ages[dict(k)["instance"]] for k, v in named}
    return largest(lambda _s, _t: each_age, "gpu", "name")(s, t)


def knee_wants() -> dict[tuple[str, str], Term]:
    """By panel and legend."""
    wants: dict[tuple[str, str], Term] = {
        ("Users", "Users"): USERS,
        ("Step", "Step"): largest(R("harness_step")),
        ("Output tokens/s", "Output tokens/s"): TOKENS,
        ("Goodput", "Goodput"): GOOD,
        ("Bracket", "passed"): or_none(LOW),
        ("Bracket", "failed"): or_none(HIGH),
        ("Knee", "from"): or_none(largest(R("harness_knee_low_users"))),
        ("Knee", "knee"): or_none(KNEE),
        ("Knee", "to"): or_none(largest(R("harness_knee_high_users"))),
        ("Throughput against users", "users"): during(USERS),
        ("Throughput against users", "output tokens/s"): during(TOKENS),
        ("Search progress", "target"): largest(R("harness_users_target")),
        ("Search progress", "users"): USERS,
        ("Search progress", "passed up to"): LOW,
        ("Search progress", "failed from"): HIGH,
        ("Search progress", "knee"): KNEE,
        ("Requests by outcome", "met every SLO"): GOOD,
        ("Requests by outcome", "{{outcome}}"):
            positive(by(R_s("harness_requests_total"), "outcome")),
        ("Latencies over their SLO limit", "{{slo}}"):
            over(by(R_s("harness_slo_misses_total"), "slo"),
                 by(R_s("harness_slo_observations_total"), "slo")),
        ("measured", ""): measured,
        ("step ended", ""): ended,
        ("knee found", ""): positive(R("harness_knee_users")),
    }  # fmt: skip
    for key, name in (("ttft", "TTFT"), ("itl", "ITL")):
        p95 = run_q(0.95, key)
        wants |= {
            (f"p95 {name} / limit",) * 2: over(p95, limit(key)),
            (f"{name} p95 and users", f"p95 {name}"): p95,
            (f"{name} p95 and users", "limit of {{slo}}"): limits(key),
            (f"{name} p95 and users", "users"): USERS,
            (f"{name} p95 against users", "users"): during(USERS),
            (f"{name} p95 against users", f"p95 {name}"): during(p95),
            (f"{name} p95 against users", "limit"): during(limit(key)),
        }  # type: ignore[misc]
    return wants


def latency_wants() -> dict[tuple[str, str], Term]:
    """By panel and legend."""
    wants: dict[tuple[str, str], Term] = {
        ("TTFT split", "queue"): QUEUE,
        ("TTFT split", "prefill"): PREFILL,
        ("TTFT split", "rest"): sub(sub(server_mean(TTFT_V), QUEUE), PREFILL),
        ("TTFT split", "TTFT"): server_mean(TTFT_V),
        ("Phases of a request", "queue"): QUEUE,
        ("Phases of a request", "prefill"): PREFILL,
        ("Phases of a request", "decode"): DECODE,
        ("Phases of a request", "inference"): INFERENCE,
    }
    for key, name in (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "e2e")):
        for q, legend in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
            wants[f"{name} quantiles", legend] = run_q(q, key)
        wants[f"{name} quantiles", "limit of {{slo}}"] = limits(key)
        heat = by(R_s(f"harness_{key}_seconds_bucket"), "le")
        wants[f"{name} distribution", "{{le}}"] = heat
    for key, name, theirs in (("ttft", "TTFT", TTFT_V), ("itl", "ITL", ITL_V),
                              ("e2e", "e2e", E2E_V)):  # fmt: skip
        title = f"{name}: client against server"
        wants[title, "client p95"] = run_q(0.95, key)
        wants[title, "server p95"] = server_q(0.95, theirs)
        wants[title, "client mean"] = run_mean(key, LAST[key])
        wants[title, "server mean"] = server_mean(theirs)
    return wants


STEP = "iteration_tokens_total"
SERVER_WANTS: dict[tuple[str, str], Term] = {
    ("Running and waiting", "running"): by(V("vllm:num_requests_running")),
    ("Running and waiting", "waiting"): by(V("vllm:num_requests_waiting")),
    ("Running and waiting", "max_num_seqs"): by(X("harness_server_seats")),
    ("KV cache usage", "mean of engines"): by(V("vllm:kv_cache_usage_perc"), over=mean),
    ("KV cache usage", "fullest engine"): largest(V("vllm:kv_cache_usage_perc")),
    ("Preemptions", "per second"): by(V_s("vllm:num_preemptions_total")),
    ("Prefix cache hits", "hit rate"):
        over(by(V_s("vllm:prefix_cache_hits_total")), by(V_s("vllm:prefix_cache_queries_total"))),
    ("Tokens per second", "generated"): GENERATED,
    ("Tokens per second", "prompt"): by(V_s("vllm:prompt_tokens_total")),
    ("Tokens per engine step", "mean"): server_mean(STEP),
    ("Tokens per engine step", "p50"): server_q(0.5, STEP),
    ("Tokens per engine step", "p95"): server_q(0.95, STEP),
    ("Waiting requests by reason", "for a slot or KV blocks"):
        by(V("vllm:num_requests_waiting_by_reason", reason="capacity")),
    ("Waiting requests by reason", "for something else"):
        by(V("vllm:num_requests_waiting_by_reason", reason="deferred")),
    ("Finished requests by reason", "{{finished_reason}}"):
        by(V_s("vllm:request_success_total"), "finished_reason"),
    ("Tokens per engine step, distribution", "{{le}}"): by(V_s(f"vllm:{STEP}_bucket"), "le"),
    ("Free slots and KV cache", "slots free (max_num_seqs)"):
        over(by(X("harness_server_seats_left")), by(X("harness_server_seats"))),
    ("Free slots and KV cache", "KV tokens free"):
        over(by(X("harness_server_kv_free_tokens")), by(X("harness_server_kv_tokens"))),
    ("Server CPU, cores", "API server"):
        only_while(by(V_s("process_cpu_seconds_total")), V("vllm:num_requests_running")),
    ("Server CPU, cores", "engine cores"): by(X_s("harness_engine_cpu_seconds_total")),
    ("Exporter: age and duration of its scrape", "age"):
        largest(X("harness_target_sample_age_seconds")),
    ("Exporter: age and duration of its scrape", "took"):
        largest(X("harness_target_scrape_duration_seconds")),
}  # fmt: skip
GPU_WANTS: dict[tuple[str, str], Term] = {
    ("GPU utilization", "GPU {{gpu}}"): by_gpu("utilization_ratio"),
    ("Memory bus utilization", "GPU {{gpu}}"): by_gpu("memory_utilization_ratio"),
    ("Memory in use", "GPU {{gpu}}"): by_gpu("memory_used_bytes"),
    ("Memory in use", "GPU {{gpu}}, total"): by_gpu("memory_bytes"),
    ("Power", "GPU {{gpu}}"): by_gpu("power_watts"),
    ("SM clock", "GPU {{gpu}}"): by_gpu("sm_clock_hertz"),
    ("Temperature", "GPU {{gpu}}"): by_gpu("temperature_celsius"),
    ("Memory clock", "GPU {{gpu}}"): by_gpu("memory_clock_hertz"),
    ("PCIe", "GPU {{gpu}} receives"): by_gpu("pcie_receive_bytes_per_second"),
    ("PCIe", "GPU {{gpu}} sends"): by_gpu("pcie_transmit_bytes_per_second"),
    ("Clock throttling", "GPU {{gpu}}: {{reason}}"):
        largest(X("harness_gpu_throttled"), "instance", "gpu", "reason"),
    ("Energy per token", "J per generated token"):
        over(by(X_s("harness_gpu_energy_joules_total")), GENERATED),
    ("GPUs: age of the last reading", "GPU {{gpu}}: {{name}}"): info_age,
}  # fmt: skip
CLIENT_WANTS: dict[tuple[str, str], Term] = {
    ("CPU of each process, cores", "{{process}}"): by(
        R_s("harness_client_cpu_seconds_total"), "process"
    ),
    ("Loop lag", "{{process}}"): largest(R("harness_loop_lag_seconds"), "process"),
    ("Failed requests", "failed"): over(by(BAD), by(R_s("harness_requests_total"))),
    ("Users: target and running", "target"): largest(R("harness_users_target")),
    ("Users: target and running", "running"): USERS,
    ("Output tokens: client and server", "received by the client"): TOKENS,
    ("Output tokens: client and server", "generated by the server"): GENERATED,
    ("Schedule lag", "p50"): run_q(0.5, "schedule_lag"),
    ("Schedule lag", "p99"): run_q(0.99, "schedule_lag"),
    ("Failed requests by outcome", "{{outcome}}"): positive(by(BAD, "outcome")),
    ("Tokens per second", "output"): TOKENS,
    ("Tokens per second", "prompt"): by(R_s("harness_prompt_tokens_total")),
}
WANTS: dict[tuple[str, str, str], Term] = {
    (dashboard, *key): term
    for dashboard, wants in {
        "knee": knee_wants(), "latency": latency_wants(), "server": SERVER_WANTS,
        "gpu": GPU_WANTS, "client": CLIENT_WANTS,
    }.items()
    for key, term in wants.items()
}  # fmt: skip
