"""One knee as settings of KEDA, an HPA, llm-d and vLLM; docs/autoscaling.md has the sources."""

from __future__ import annotations

import json
from argparse import Namespace
from math import ceil
from typing import TYPE_CHECKING, Final

from harness.capacity.alert_rules import in_flight
from harness.capacity.sizing import threshold_with_lead
from harness.diagnosis.triage import p95_limits_ns
from harness.errors import ConfigError
from harness.units import MS, NS_PER, SECOND, say_ns

if TYPE_CHECKING:
    from harness.capacity.threshold import Threshold

SEEN_LATE_NS: Final = 30 * SECOND  # a scrape of Prometheus and a sync of the HPA
SCORERS: Final = ("queue-scorer", "prefix-cache-scorer")


def autoscaler(threshold: Threshold, args: Namespace) -> str:
    """KEDA's ScaledObject, or an HPA on a custom metric. Raises ConfigError for a lead too long."""
    delay_ns = args.start_up + SEEN_LATE_NS
    lead = (args.growth or 0) * delay_ns / NS_PER["m"]
    replicas = args.min_replicas
    target = threshold_with_lead(threshold.requests, lead, replicas)
    if target < 1:
        raise ConfigError(
            f"{ceil(lead):,} requests come by --growth until a replica is ready, too many for "
            f"{replicas} of them: try --min-replicas {ceil(2 * lead / threshold.requests)}."
        )
    grown = f"{ceil(lead)} are the growth in {say_ns(delay_ns)} (start, scrape and sync)"
    why = f"Target {target} of {threshold.requests}: an HPA acts 10% above it, and {grown}."
    resource = _keda(threshold, args, target) if args.form == "keda" else _hpa(args, target)
    return f"{_comments(threshold, why)}{resource}"


def _keda(threshold: Threshold, args: Namespace, target: int) -> str:
    name = json.dumps(args.deployment)
    return f"""apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: {name}}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  minReplicaCount: {args.min_replicas}
  maxReplicaCount: {args.max_replicas}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata: {{serverAddress: {json.dumps(args.prometheus)}, threshold: "{target}",
                 query: {json.dumps(in_flight(threshold.model))}}}
"""


def _hpa(args: Namespace, target: int) -> str:
    name = json.dumps(args.deployment)
    return f"""apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {name}}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  minReplicas: {args.min_replicas}
  maxReplicas: {args.max_replicas}
  metrics:
    - type: Pods
      pods:
        metric: {{name: vllm_requests_in_flight}}
        target: {{type: AverageValue, averageValue: "{target}"}}
"""


def endpoint_picker(threshold: Threshold) -> str:
    """llm-d's EndpointPickerConfig: how much a replica is given, and when its cache is left."""
    limit_ns, _ = p95_limits_ns(threshold.slos)
    speed, low, high = threshold.prefill
    parameters = {"concurrency-detector": f"maxConcurrency: {threshold.users}"}
    if threshold.waiting >= 1:
        parameters["utilization-detector"] = f"queueDepthThreshold: {threshold.waiting:.0f}"
    why = "peakPrefillThroughput is not known: measure long prompts of varied lengths."
    if speed * limit_ns > 0:
        parameters["prefix-cache-affinity-filter"] = (
            f"peakPrefillThroughput: {speed:.0f}, maxTTFTPenaltyMs: {limit_ns / MS:.0f}"
        )
        why = f"The 95% interval of peakPrefillThroughput is {low:,.0f} to {high:,.0f} tokens/s."
    plugins = [
        f"  - {{type: {plugin}, parameters: {{{values}}}}}\n"
        for plugin, values in parameters.items()
    ]
    plugins += [f"  - {{type: {scorer}}}\n" for scorer in SCORERS]
    steps = [f"      - {{pluginRef: {plugin}}}\n" for plugin in (*parameters, *SCORERS)]
    return f"""{_comments(threshold, why)}apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
{"".join(plugins)}flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}}}
schedulingProfiles:
  - name: default
    plugins:
{"".join(steps)}"""


def admission_flags(threshold: Threshold) -> str:
    """Flags of `vllm serve` that refuse, with status 503, what would wait too long."""
    limit_ns, _ = p95_limits_ns(threshold.slos)
    # With vLLM's formula requests wait for the target on average: the mean that goes with the p95.
    target_ns = limit_ns * threshold.ttft_mean_of_p95
    tokens = target_ns / SECOND * threshold.prompt_tokens_per_s
    flags = f"--max-num-queued-reqs {threshold.requests}"
    why = "No --max-num-queued-tokens: it needs a p95 TTFT SLO and the server's metrics."
    if tokens >= 1:
        flags += f" --max-num-queued-tokens {tokens:.0f}"
        speed = f"{threshold.prompt_tokens_per_s:,.0f} prompt tokens/s"
        why = f"{speed} at the knee for {say_ns(target_ns)}, the mean TTFT at the p95's limit."
    return f"{_comments(threshold, why)}{flags}\n"


def bare(threshold: Threshold) -> str:
    """The query and its threshold, for any other autoscaler."""
    return f"{in_flight(threshold.model)}\n{threshold.requests}\n"


def _comments(threshold: Threshold, why: str) -> str:
    return "".join(f"# {line}\n" for line in (threshold.sentence, *threshold.notes, why))
