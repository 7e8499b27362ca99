"""Recorded series and alerts on the stack: each figure recomputed, each alert tried both ways."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
import yaml
from prometheus_tools import promtool, test_rules
from recording import RECORDED
from watching import WATCHED

from harness.capacity.alert_rules import rule_file
from harness.export.metric_definitions import METRIC_DEFINITIONS
from harness.wire.vllm_series import SERIES_NAMES

PROMETHEUS = Path(__file__).parents[1] / "prometheus"
ALL = rule_file({**RECORDED, "harness_watched": WATCHED}, [])
RECORDINGS = [row.name for group in RECORDED.values() for row in group]
RUN = '{job="run", instance="a"'
REPLICA = '{job="vllm", instance="b", model_name="m"'


def series(name: str, labels: str, per_s: float) -> dict[str, str]:
    """A counter that grows evenly for two minutes, sampled once a second."""
    return {"series": f"{name}{labels}}}", "values": f"0+{per_s}x120"}


def flat(name: str, labels: str, value: float) -> dict[str, str]:
    """A gauge that stays."""
    return {"series": f"{name}{labels}}}", "values": f"{value}x120"}


def histogram(name: str, labels: str, at: dict[str, float], total: float) -> list[dict[str, str]]:
    """Observations per second at or below each bound, and their sum."""
    buckets = [series(f"{name}_bucket", f'{labels}, le="{le}"', n) for le, n in at.items()]
    ends = [series(f"{name}_count", labels, at["+Inf"]), series(f"{name}_sum", labels, total)]
    return buckets + ends


def outcomes(ok: float, timeout: float) -> list[dict[str, str]]:
    """Requests per second by how they ended."""
    name = "harness_requests_total"
    return [
        series(name, f'{RUN}, outcome="ok"', ok),
        series(name, f'{RUN}, outcome="timeout"', timeout),
    ]


def stopped(job: str, pod: str = "1", values: str = "1x30") -> list[dict[str, str]]:
    """A target that answered for half a minute and then was none any more."""
    return [
        {"series": f'up{{job="{job}", instance="b", pod="{pod}"}}', "values": f"{values} stale"}
    ]


def slo(misses: float, more: str = "") -> list[dict[str, str]]:
    """Of ten latencies a second, so many over the limit of a p95."""
    label = f'{RUN}, slo="ttft_p95"{more}'
    return [
        series("harness_slo_misses_total", label, misses),
        series("harness_slo_observations_total", label, 10),
        flat("harness_slo_allowed_ratio", label, 0.05),
    ]


def lags(*seconds: float) -> list[dict[str, str]]:
    """The loop lag of each worker."""
    return [
        flat("harness_loop_lag_seconds", f'{RUN}, process="worker {i}"', s)
        for i, s in enumerate(seconds)
    ]


def users(asked: int, values: str) -> list[dict[str, str]]:
    """Asked for and running."""
    running = {"series": f"harness_users_running{RUN}}}", "values": values}
    return [flat("harness_users_target", RUN, asked), running]


# five below 100 ms, five between 100 and 200; one more failed; the sum is of the ten
TTFT = histogram("harness_ttft_seconds", RUN, {"0.1": 5, "0.2": 10, "200.0": 10, "+Inf": 11}, 1.2)
SERVER_TTFT = [
    *histogram("vllm:time_to_first_token_seconds", REPLICA, {"0.1": 5, "0.2": 10, "+Inf": 10}, 1),
    *histogram("vllm:request_queue_time_seconds", REPLICA, {"+Inf": 10}, 0.2),
    *histogram("vllm:request_prefill_time_seconds", REPLICA, {"+Inf": 10}, 0.3),
]
PREFIX = [
    series("vllm:gpu_prefix_cache_hits_total", REPLICA, 3),
    series("vllm:gpu_prefix_cache_queries_total", REPLICA, 12),
]


@pytest.mark.parametrize(
    ("given", "name", "want"),
    [
        (TTFT, "harness:ttft_seconds:p50", 0.1 + 0.1 * 0.5 / 5),  # the 5.5th of 11
        (TTFT, "harness:ttft_seconds:p99", 200.0),  # the failed one: the largest finite bound
        (TTFT, "harness:ttft_seconds:mean", 1.2 / 10),
        ([series("harness_output_tokens_total", RUN, 50)], "harness:output_tokens:rate", 50),
        ([series("harness_good_requests_total", RUN, 7)], "harness:goodput:rate", 7),
        (outcomes(9, 1), "harness:requests:rate", 10),
        (outcomes(9, 1), "harness:failures:ratio", 1 / 10),
        (slo(1), "harness:slo_misses:ratio", 1 / 10),
        (lags(0.02, 0.15), "harness:loop_lag_seconds:max", 0.15),
        (SERVER_TTFT, "harness:server_ttft_seconds:p95", 0.1 + 0.1 * 4.5 / 5),  # the 9.5th of 10
        (SERVER_TTFT, "harness:server_ttft_seconds:mean", 1 / 10),
        (SERVER_TTFT, "harness:server_queue_seconds:mean", 0.2 / 10),
        (SERVER_TTFT, "harness:server_ttft_rest_seconds:mean", (1 - 0.2 - 0.3) / 10),
        (
            [flat("vllm:num_requests_waiting", f'{REPLICA}, engine="{i}"', 3 + i) for i in (0, 1)],
            "harness:server_waiting:sum",
            3 + 4,
        ),
        (
            [
                flat("vllm:kv_cache_usage_perc", f'{REPLICA}, engine="{i}"', 0.2 + i)
                for i in (0, 0.5)
            ],
            "harness:server_kv_usage:max",
            0.2 + 0.5,
        ),
        (PREFIX, "harness:server_prefix_hits:ratio", 3 / 12),  # in vLLM's spelling before 0.12
        (
            histogram("vllm:iteration_tokens_total", REPLICA, {"+Inf": 4}, 100),
            "harness:server_step_tokens:mean",
            100 / 4,
        ),
    ],
)
def test_recorded_is_what_it_says(given, name, want, tmp_path):
    """The series' values make the figure, by hand."""
    close = {
        "expr": f"count(abs({name} - {want}) < 1e-9)",
        "eval_time": "2m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    case = {"interval": "1s", "input_series": given, "promql_expr_test": [close]}
    test_rules(ALL, tmp_path, [case])


KV = "vllm:gpu_cache_usage_perc"


@pytest.mark.parametrize(
    ("given", "alert", "fires"),
    [
        ([flat("up", '{job="vllm", instance="b"', 0)], "ScrapeTargetDown", 1),
        ([flat("up", '{job="vllm", instance="b"', 1)], "ScrapeTargetDown", 0),
        ([flat("up", '{job="prometheus", instance="b"', 0)], "ScrapeTargetDown", 0),
        (stopped("vllm"), "ScrapeTargetDown", 1),
        (stopped("vllm-harness-exporter"), "ScrapeTargetDown", 1),
        (stopped("vllm-harness-run"), "ScrapeTargetDown", 0),  # a search has ended
        ([*stopped("vllm", "2"), *stopped("vllm", "1", "1x120")], "ScrapeTargetDown", 0),
        ([flat("harness_target_up", RUN, 0)], "ServerDown", 1),
        ([flat("harness_target_up", RUN, 1)], "ServerDown", 0),
        (lags(0.02, 0.15), "ClientLate", 1),
        (lags(0.02, 0.1), "ClientLate", 0),
        (
            histogram(
                "harness_schedule_lag_seconds", RUN, {"0.05": 98, "0.1": 100, "+Inf": 100}, 1
            ),
            "ClientLate",
            1,
        ),  # p99 is 75 ms
        (users(8, "8x30 4x90"), "UsersMissing", 1),
        (users(8, "8x120"), "UsersMissing", 0),
        (users(200, "0+1x120"), "UsersMissing", 0),  # they still start
        (users(8, "8x30 0x90"), "UsersMissing", 0),  # it has ended
        (outcomes(98, 2), "RequestsFail", 1),
        (outcomes(99.5, 0.5), "RequestsFail", 0),
        (slo(1), "SloMissed", 1),
        (slo(0.5), "SloMissed", 0),  # 5 % is what a p95 allows
        (slo(1, ', pod="p"'), "SloMissed", 1),  # a label that discovery adds
        ([flat("vllm:kv_cache_usage_perc", REPLICA, 0.97)], "KvCacheNearlyFull", 1),
        ([flat(KV, REPLICA, 0.97)], "KvCacheNearlyFull", 1),
        ([flat(KV, REPLICA, 0.9)], "KvCacheNearlyFull", 0),
    ],
)
def test_alerts_fire_when_they_should(given, alert, fires, tmp_path):
    """And only then."""
    firing = {
        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
        "eval_time": "2m",
        "exp_samples": [{"labels": "{}", "value": fires}],
    }
    case = {"interval": "1s", "input_series": given, "promql_expr_test": [firing]}
    test_rules(ALL, tmp_path, [case])


def test_every_alert_says_what_to_do():
    """The texts have a value where they promise one, and an alert fires for each row above."""
    for alert in WATCHED:
        assert set(alert.annotations) == {"summary", "description"}
        assert alert.annotations["description"].endswith((".", ". "))


def test_names_in_rules_exist():
    """Every series that a rule reads is exported, is vLLM's, or is recorded by another rule."""
    ours = set()
    for row in chain.from_iterable(METRIC_DEFINITIONS.values()):
        ends = ("_bucket", "_sum", "_count") if row.kind == "histogram" else ("",)
        ours |= {row.name + end for end in ends}
    known = ours | SERIES_NAMES | set(RECORDINGS)
    read = set()
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                read |= set(re.findall(r"\b(?:harness_|harness:|vllm:)[\w:]+", rule["expr"]))
    assert len(read) > 50
    assert read - known == set()


def test_recorded_names_are_unique():
    """Two rules that record the same series would overwrite each other."""
    assert len(set(RECORDINGS)) == len(RECORDINGS)


def test_promtool_accepts_the_configuration():
    """With every rule file, and without a target elsewhere."""
    said = promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert said.count("rules found") == len(list((PROMETHEUS / "rules").glob("*.yml")))


def test_the_colon_is_put_back_for_vllm_only():
    """vllm_x becomes vllm:x in vLLM's job; in no other job is a name touched."""
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    relabelled = {job["job_name"]: job.get("metric_relabel_configs") for job in jobs}
    assert {name for name, rules in relabelled.items() if rules} == {"vllm"}
    (rule,) = relabelled["vllm"]
    renamed = re.sub(rf"^(?:{rule['regex']})$", r"vllm:\1", "vllm_num_requests_running")
    assert renamed == "vllm:num_requests_running"
    assert rule["replacement"] == "vllm:$1"
