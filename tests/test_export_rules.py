"""Alert routing, and what a knee becomes: rules that fire when they should and say why."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from itertools import product
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_tools import check_rules
from prometheus_tools import test_rules as run_rules

from harness.capacity.alert_rules import knee_file, routing_alerts, rule_file
from harness.capacity.threshold import Threshold, threshold
from harness.cli.app import main
from harness.core.states import Decision, Verdict
from harness.diagnosis.triage import p95_limits_ns
from harness.metrics.result import Knee, Level, Result, SloResult
from harness.metrics.slo import Slo
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.request_record import Outcome, RequestRecord
from harness.report.answer import triage_sentences
from harness.report.report_data import ReportData

ROOT = Path(__file__).parents[1]
MS = 1_000_000
QUEUE = "queueing and prefill"
DECODE = "decode scheduling and memory pressure"
BOTH = f"p95 TTFT and p95 ITL are over their limits: inspect {QUEUE}, and inspect {DECODE}"
NAMES = {"ttft": "InspectQueueingAndPrefill", "itl": "InspectDecodeAndMemory"}
SLOS = (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))


def test_limits_are_those_of_the_p95s():
    """Other quantiles and other latencies route nothing; the stricter of two counts."""
    given = ("ttft_p99=2s", "ttft_p95=900ms", "ttft_p95=700ms", "ttft_p95=800ms", "e2e_p95=9s")
    ttft, itl = p95_limits_ns(Slo.parse(text) for text in given)
    assert ttft == 700 * MS
    assert isnan(itl)


def level(users: int, ttft: float, itl: float, decision: str = "fail") -> Level:
    """A level of 10 s with the shares that are over the p95s' limits."""
    over = {"ttft_p95": ttft, "itl_p95": itl}
    return Level(0, users, decision=Decision(decision), end_ns=10**10, over_share=over)


@pytest.mark.parametrize(
    ("steps", "knee", "want"),
    [
        ([level(8, 0.04, 0)], None, []),
        (
            [level(8, 0.4, 0.01), level(16, 1, 0.2)],
            None,
            [f"At 8 concurrent requests p95 TTFT is over its limit: inspect {QUEUE}."],
        ),
        (
            [level(8, 0.4, 0.01), level(16, 1, 0.2)],
            8,  # by chance a passed level may be over
            [f"At 16 concurrent requests {BOTH}."],
        ),
        (
            [level(1, 0.04, 1)],
            None,
            [f"At 1 concurrent request p95 ITL is over its limit: inspect {DECODE}."],
        ),
        ([level(8, 0.4, 0.4, "inconclusive")], None, []),  # not decided: never called over
        ([level(8, 0.4, 0.4, "pass")], None, []),
        ([level(8, 1, 1, "invalid")], None, []),
    ],
)
def test_report_says_where_to_look(steps, knee, want):
    """One line, of the lowest level that is over."""
    slos = tuple(SloResult(str(slo), Verdict.inconclusive) for slo in SLOS)
    result = Result(slos=slos, levels=tuple(steps), knee=Knee(estimate=knee))
    assert triage_sentences(ReportData(None, result)) == want  # type: ignore[arg-type]


def buckets(name: str, limit_s: float, labels: str, bad: bool) -> list[dict[str, str]]:
    """Sixty observations every 15 s for ten minutes: all of half the limit, or all over it.

    Over it they lie in (limit, 2 limit]: the p95 that Prometheus interpolates is 1.95 limits.
    """
    n_within = 0 if bad else 60
    counts = {limit_s / 2: n_within, limit_s: n_within, 2 * limit_s: 60, "+Inf": 60}
    series = []
    for bound, n in counts.items():
        bucket = f'{name}_bucket{{{labels},le="{bound}"}}'
        series.append({"series": bucket, "values": f"0+{n}x40"})
    return series


SOURCES = {
    "server": (
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        {"job": "vllm", "model_name": "m"},
    ),
    "client": ("harness_ttft_seconds", "harness_itl_seconds", {"job": "run"}),
}


def quadrant(source: str, ttft_bad: bool, itl_bad: bool) -> dict[str, object]:
    """One case of `promtool test rules`: after ten minutes exactly these alerts fire."""
    ttft, itl, labels = SOURCES[source]
    where = ",".join(f'{k}="{v}"' for k, v in {**labels, "instance": "a"}.items())
    series = buckets(ttft, 0.5, where, ttft_bad) + buckets(itl, 0.05, where, itl_bad)
    cases = [
        routing_case(source, "ttft", labels, "975ms", ttft_bad),
        routing_case(source, "itl", labels, "97.5ms", itl_bad),
    ]
    return {"interval": "15s", "input_series": series, "alert_rule_test": cases}


def routing_case(
    source: str, key: str, labels: dict[str, str], p95: str, bad: bool
) -> dict[str, object]:
    """Whether the alert of this latency fires, and with which words."""
    alerts = routing_alerts(500 * MS, 50 * MS)
    of_source = [alert for alert in alerts if alert.labels["seen_by"] == source]
    alert = next(alert for alert in of_source if alert.name == NAMES[key])
    description = alert.annotations["description"]
    text = description.replace("{{ $value | humanizeDuration }}", p95)
    fires = {
        "exp_labels": {**alert.labels, **labels},
        "exp_annotations": {**alert.annotations, "description": text},
    }
    return {"eval_time": "10m", "alertname": alert.name, "exp_alerts": [fires] if bad else []}


def test_routing_rules_fire_in_their_quadrant(tmp_path):
    """Prometheus itself: neither, the first, the second, both; by vLLM's histograms and by ours."""
    each = product(SOURCES, (False, True), (False, True))
    cases = [quadrant(source, ttft_bad, itl_bad) for source, ttft_bad, itl_bad in each]
    rules = (ROOT / "prometheus/rules/harness_routing.yml").read_text()
    run_rules(rules, tmp_path, cases)


KNEE = {
    "status": "found",
    "target": {"model": 'qwen"7b', "versions": {"server": "0.32.0"}, "flags": {"max_num_seqs": 16}},
    "slos": [{"slo": slo, "verdict": "met"} for slo in ("ttft_p95=500ms", "itl_p95=50ms")],
    "knee": {"holds": 40, "estimate": 48, "ci95": [40, 52], "measured_at_users": 48},
    # of 48 users the server saw 16 + 20 = 36 for 30 s, 16 + 26 = 42 for 10 s: 37.5, 78.1 %
    "levels": [
        {
            "index": 0,
            "users": 48,
            "settled_ns": 0,
            "end_ns": 30,
            "decision": "pass",
            "server": {"running_mean": 16.0, "waiting_mean": 20.0},
        },
        {
            "index": 1,
            "users": 48,
            "settled_ns": 40,
            "end_ns": 50,
            "decision": "inconclusive",
            "server": {"running_mean": 16.0, "waiting_mean": 26.0},
        },
        {
            "index": 2,
            "users": 48,
            "settled_ns": 60,
            "end_ns": 99,
            "decision": "invalid",
            "server": {"running_mean": 1.0, "waiting_mean": 0.0},
        },
        {
            "index": 3,
            "users": 64,
            "settled_ns": 99,
            "end_ns": 199,
            "decision": "fail",
            "server": {"running_mean": 16.0, "waiting_mean": 48.0},
        },
    ],
}


def folder(path: Path, knee: dict[str, object]) -> Path:
    """A run folder as far as rules need it."""
    (path / "result.json").write_text(json.dumps(knee))
    return path


def test_threshold_is_in_the_servers_count(tmp_path):
    """The lower end of the knee, 40, times what the server sees of so many users: 31.25."""
    found = replace(threshold(folder(tmp_path, KNEE)), notes=(), waiting=0, ttft_mean_of_p95=0)
    want = Threshold(31, 40, 48, SLOS, 0.78125, 'qwen"7b', waiting=0, ttft_mean_of_p95=0)
    assert str(found) == str(want)  # the rest is not known: NaN


def test_the_threshold_of_a_simulated_server_says_so(tmp_path):
    """Nobody scales a fleet by a simulator without being told."""
    target = {"model": "m", "simulated": True, "gpu": "h100"}
    found = threshold(folder(tmp_path, {**KNEE, "target": target}))
    assert found.sentence.startswith("Measured on a server that was simulated m on h100: ")


def test_threshold_without_the_servers_figures(tmp_path):
    """Then a user counts as a request, and the sentence says so."""
    found = threshold(folder(tmp_path, {**KNEE, "levels": []}))
    assert found.requests == 40
    assert isnan(found.share)
    assert found.sentence == (
        "Measured: ttft_p95=500ms and itl_p95=50ms holds up to 40 concurrent users at least (the "
        "knee is 48); the server's own count of them is not known."
    )


def requests_of(
    instance: str, model: str, engine: int, *, running: int, waiting: int
) -> list[dict[str, str]]:
    """What an engine of a replica says for ten minutes."""
    labels = f'{{job="vllm",instance="{instance}",model_name="{model}",engine="{engine}"}}'
    return [
        {"series": f"vllm:num_requests_running{labels}", "values": f"{running}x40"},
        {"series": f"vllm:num_requests_waiting{labels}", "values": f"{waiting}x40"},
    ]


def test_knee_rules(tmp_path):
    """The alert fires above the threshold on one replica, for this model, and not at it."""
    text = knee_file(threshold(folder(tmp_path, KNEE)))
    assert check_rules(text, tmp_path).count("SUCCESS: 5 rules found") == 1  # and four that route
    series = [  # replica b: 16 + 16 = 32; replica a 31 in two engines; another model more
        *requests_of("b", 'qwen\\"7b', 0, running=16, waiting=16),
        *requests_of("a", 'qwen\\"7b', 0, running=10, waiting=5),
        *requests_of("a", 'qwen\\"7b', 1, running=10, waiting=6),
        *requests_of("c", "other", 0, running=90, waiting=90),
    ]
    fires = {
        "exp_labels": {
            "severity": "warning",
            "job": "vllm",
            "instance": "b",
            "model_name": 'qwen"7b',
        },
        "exp_annotations": {
            "summary": "more than 31 requests run or wait on one replica",
            "description": "b holds 32 requests. Measured: ttft_p95=500ms and itl_p95=50ms holds "
            "up to 40 concurrent users at least (the knee is 48); the server counts 78% of them. "
            "Add a replica, or admit fewer.",
        },
    }
    case = {"eval_time": "5m", "alertname": "ReplicaPastKnee", "exp_alerts": [fires]}
    (trigger,) = form(tmp_path, "keda")["spec"]["triggers"]
    total = {  # 32 + 31: KEDA asks for ceil(63 / 31) = 3 replicas
        "expr": trigger["metadata"]["query"],
        "eval_time": "5m",
        "exp_samples": [{"labels": "{}", "value": 63}],
    }
    rules = {"alert_rule_test": [case], "promql_expr_test": [total]}
    run_rules(text, tmp_path, [{"interval": "15s", "input_series": series, **rules}])


@pytest.mark.parametrize(
    ("knee", "decision", "want"),
    [
        ({}, "pass", "Knee: 95%: at least 40"),  # an earlier version wrote no `fails_by`
        ({}, "fail", "Knee: 95% interval 40 to 52"),  # and then the levels tell it
        ({"fails_by": 53}, "pass", "Knee: 95% interval 40 to 52"),
        ({"ci95": [1040, 2048], "fails_by": None}, "pass", "Knee: 95%: at least 1,040"),
    ],
)
def test_the_interval_of_a_knee_may_be_open(tmp_path, knee, decision, want):
    """Where no level failed its upper end is only the most users allowed."""
    levels = [level | {"decision": decision} for level in KNEE["levels"][:1]]
    result = KNEE | {"levels": levels, "knee": KNEE["knee"] | knee}
    note, *_ = threshold(folder(tmp_path, result)).notes
    assert note == f"{want}; its lower end counts."


def form(run: Path, name: str, *options: str) -> dict[str, Any]:
    """What `kubectl apply` or llm-d reads; its comments say where the numbers come from."""
    out = run / "form.yml"
    assert main(["rules", str(run), "--form", name, "--out", str(out), *options]) == 0
    comments = [line for line in out.read_text().splitlines() if line.startswith("# ")]
    assert comments[1:3] == [
        "# Knee: 95% interval 40 to 52; its lower end counts.",
        "# Measured on 1970-01-01 (server 0.32.0; max_num_seqs=16).",
    ]
    found: dict[str, Any] = yaml.safe_load(out.read_text())
    return found


def test_autoscalers(tmp_path):
    """KEDA's and Kubernetes' own, field by field: an HPA acts 10% above 28, at 30.8 of 31."""
    run = folder(tmp_path, KNEE)
    both = (
        'sum(vllm:num_requests_running{model_name="qwen\\"7b"} '
        '+ vllm:num_requests_waiting{model_name="qwen\\"7b"})'
    )
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "qwen"}
    metadata = {"serverAddress": "http://prom:9090", "query": both, "threshold": "28"}
    trigger = {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}
    where = ("--deployment", "qwen", "--prometheus", "http://prom:9090", "--max-replicas", "4")
    assert form(run, "keda", *where) == {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "qwen"},
        "spec": {
            "scaleTargetRef": ref,
            "minReplicaCount": 1,
            "maxReplicaCount": 4,
            "triggers": [trigger],
        },
    }
    target = {"type": "AverageValue", "averageValue": "28"}
    pods = {"metric": {"name": "vllm_requests_in_flight"}, "target": target}
    assert form(run, "hpa", *where) == {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "qwen"},
        "spec": {
            "scaleTargetRef": ref,
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [{"type": "Pods", "pods": pods}],
        },
    }


@pytest.mark.parametrize(
    ("options", "target"),
    [
        # 6 a minute for 60 + 30 s are 9: (31 - 9) / 1.1
        (("--growth", "6", "--start-up", "60s"), "20"),
        (("--growth", "6", "--start-up", "60s", "--min-replicas", "3"), "25"),  # (31 - 3) / 1.1
        (("--growth", "6"), "9"),  # 3 min and 30 s: (31 - 21) / 1.1
    ],
)
def test_lead(tmp_path, options, target):
    """What comes while a replica starts has its place, and more replicas share it."""
    spec = form(folder(tmp_path, KNEE), "keda", *options)["spec"]
    assert spec["triggers"][0]["metadata"]["threshold"] == target
    assert (
        f"and {21 if len(options) == 2 else 9} are the growth"
        in (tmp_path / "form.yml").read_text()
    )


def test_a_lead_that_no_threshold_leaves_room_for(tmp_path, capsys):
    """Is refused, with a number of replicas that works."""
    run = str(folder(tmp_path, KNEE))
    growth = ["rules", run, "--form", "keda", "--growth", "60", "--start-up", "60s"]
    assert main(growth) == 2
    assert capsys.readouterr().err == (
        "vllm-harness: 90 requests come by --growth until a replica is ready, too many for 1 of "
        "them: try --min-replicas 6.\n"
    )
    assert main([*growth, "--min-replicas", "6"]) == 0


# Two requests of 512 + 64 tokens end each second; 20 wait. The mean TTFT is 0.8 of its p95.
SERVED = KNEE | {
    "knee": KNEE["knee"] | {"output_tokens_per_s": 128.0, "requests_per_s": 2.0},
    "levels": [
        level
        | {
            "ttft_ms": {"mean": 400.0, "p95": 500.0},
            "server": level["server"] | {"prompt_tokens_per_s": 1024.0, "requests_per_s": 2.0},
        }
        for level in KNEE["levels"]
    ],
}


def test_endpoint_picker(tmp_path):
    """llm-d's, with names and shape as its own configurations have them."""
    found = form(folder(tmp_path, SERVED), "llm-d")
    picked = {
        "concurrency-detector": {"maxConcurrency": 40},
        "utilization-detector": {"queueDepthThreshold": 22},
    }
    scorers = ["queue-scorer", "prefix-cache-scorer"]
    plugins = [{"type": name, "parameters": given} for name, given in picked.items()]
    plugins += [{"type": name} for name in scorers]
    profile = [{"pluginRef": name} for name in (*picked, *scorers)]
    assert found == {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "featureGates": ["flowControl"],
        "plugins": plugins,
        "flowControl": {"saturationDetector": {"pluginRef": "concurrency-detector"}},
        "schedulingProfiles": [{"name": "default", "plugins": profile}],
    }


def test_prefill_speed_comes_from_the_records(tmp_path):
    """Of requests that take 20 ms and 50 us for a prompt token, 20,000 per second."""
    run = folder(tmp_path, SERVED)
    writer = RecordWriter(RunFolder(run), 0)
    for number in range(400):
        sent = number * 10**9
        tokens = 600 + number * 7
        first = sent + 20 * MS + 50_000 * tokens + (number * 7919 % 13) * MS  # and part of a step
        at_ns = array("q", [first])
        events = {"at_ns": at_ns, "not_before_ns": at_ns, "tokens": array("q", [1])}
        request = RequestRecord(
            0, number, 0, sent, first, Outcome.ok, prompt_tokens=tokens, **events
        )
        writer.put([request])
    writer.close()
    plugins = form(run, "llm-d")["plugins"]
    (affinity,) = [one for one in plugins if one["type"] == "prefix-cache-affinity-filter"]
    given = affinity["parameters"]
    assert given["peakPrefillThroughput"] == pytest.approx(20_000, rel=0.02)
    assert given["maxTTFTPenaltyMs"] == 500


@pytest.mark.parametrize(
    ("knee", "flags"),
    [
        # 0.5 s x 400 / 500 x 1,024 tokens/s
        (SERVED, "--max-num-queued-reqs 31 --max-num-queued-tokens 410\n"),
        (KNEE, "--max-num-queued-reqs 31\n"),  # the server did not say
    ],
)
def test_admission(tmp_path, capsys, knee, flags):
    """The flags of vLLM."""
    assert main(["rules", str(folder(tmp_path, knee)), "--form", "admission"]) == 0
    assert capsys.readouterr().out.splitlines(keepends=True)[-1] == flags


def mix_alert(what: str, tokens: int) -> dict[str, dict[str, str]]:
    """Prompts or outputs are not as long as they were when the knee was measured."""
    labels = {"severity": "warning", "tokens": what, "job": "vllm", "model_name": 'qwen"7b'}
    summary = f"{what}s are not of the {tokens} tokens that the knee was measured with"
    annotations = {"summary": summary, "description": "The knee is another; measure it with them."}
    return {"exp_labels": labels, "exp_annotations": annotations}


@pytest.mark.parametrize(
    ("prompt", "output", "fire"),
    [
        (512, 64, []),
        (630, 52, []),  # 1.23 times as long, 0.81
        (645, 64, ["prompt"]),
        (405, 81, ["output", "prompt"]),
    ],
)
def test_the_rule_of_the_mix_fires(tmp_path, prompt, output, fire):
    """Prometheus itself: two requests a second, whose mean lengths leave what was measured."""
    text = knee_file(threshold(folder(tmp_path, SERVED)))
    labels = '{job="vllm",instance="a",model_name="qwen\\"7b"}'
    rates = {"prompt_tokens": 2 * prompt, "generation_tokens": 2 * output, "request_success": 2}
    series = [
        {"series": f"vllm:{name}_total{labels}", "values": f"0+{15 * rate}x200"}
        for name, rate in rates.items()
    ]
    measured = {"prompt": 512, "output": 64}
    alerts = [mix_alert(what, tokens) for what, tokens in measured.items() if what in fire]
    case = {"eval_time": "45m", "alertname": "RequestMixLeft", "exp_alerts": alerts}
    run_rules(
        text, tmp_path, [{"interval": "15s", "input_series": series, "alert_rule_test": [case]}]
    )


@pytest.mark.parametrize(
    ("knee", "code", "says"),
    [
        ({**KNEE, "status": "inconclusive"}, 6, "no knee to use (its status is inconclusive)"),
        ({**KNEE, "knee": {"estimate": 1, "ci95": [0, 2]}}, 6, "(its interval reaches 0)"),
        ({"status": "met", "levels": []}, 6, "(its status is met)"),
        (
            {"command": "sweep", "status": "met", "levels": []},
            6,
            "is of `vllm-harness sweep`, which",
        ),
        ({**KNEE, "status": "not_reached"}, 6, "with a higher --max-users."),
    ],
)
def test_no_knee_is_one_sentence(tmp_path, capsys, knee, code, says):
    """And an exit code of its own."""
    assert main(["rules", str(folder(tmp_path, knee))]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_no_run_folder_and_no_place_to_write(tmp_path, capsys):
    """Both are refused with exit code 4."""
    assert main(["rules", str(tmp_path)]) == 4
    assert "has no result.json" in capsys.readouterr().err
    folder(tmp_path, KNEE)
    assert main(["rules", str(tmp_path), "--out", str(tmp_path / "no/where.yml")]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_forms_of_the_command(tmp_path, capsys):
    """Rules go to a file; the query and its threshold to the terminal."""
    run = str(folder(tmp_path, KNEE))
    assert main(["rules", run, "--out", str(tmp_path / "knee.yml")]) == 0
    assert main(["rules", run, "--form", "query"]) == 0
    written = yaml.safe_load((tmp_path / "knee.yml").read_text())
    assert [len(group["rules"]) for group in written["groups"]] == [1, 4]
    assert capsys.readouterr().out == (
        'sum(vllm:num_requests_running{model_name="qwen\\"7b"} '
        '+ vllm:num_requests_waiting{model_name="qwen\\"7b"})\n31\n'
    )


def test_a_sign_without_a_limit_has_no_rule():
    """No promise, no alert."""
    alerts = routing_alerts(nan, 50 * MS)
    assert [alert.name for alert in alerts] == [NAMES["itl"]] * 2
    assert "InspectQueueing" not in rule_file({"routing": alerts}, [])
