"""Prometheus alerting rules as YAML: what to inspect, and when a replica is past its knee.

Strings are written as JSON, which is valid YAML. Thresholds are in seconds and requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, log
from typing import Final, Protocol

from harness.capacity.threshold import MIX_FACTOR, Threshold
from harness.diagnosis.triage import SYMPTOMS, TRIAGE_QUANTILE, Symptom, p95_limits_ns
from harness.export.metric_definitions import (
    HARNESS_SERIES,
    REPLICA,
    newest_name,
    quantile_of,
    rate,
)
from harness.units import SECOND, say_ns

RATE: Final = "5m"  # range of the server's p95
RATE_LIVE: Final = "1m"  # range of our own p95, during a run
WAIT: Final = "2m"  # how long the condition must hold before the alert fires
MIX: Final = ("30m", "job, model_name")  # of which time mean lengths are, and of whose requests
NAMES: Final = {"ttft": "InspectQueueingAndPrefill", "itl": "InspectDecodeAndMemory"}


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    wait: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def lines(self) -> list[str]:
        return [
            f"      - alert: {self.name}",
            f"        expr: {json.dumps(self.expr)}",
            f"        for: {self.wait}",
            "        labels:",
            *_yaml_items(self.labels),
            "        annotations:",
            *_yaml_items(self.annotations),
        ]


def _yaml_items(values: Mapping[str, str]) -> list[str]:
    return [f"          {key}: {json.dumps(value)}" for key, value in values.items()]


def routing_alerts(ttft_ns: float, itl_ns: float) -> list[Alert]:
    """Return an alert on the server's histogram and one on ours for each symptom with a limit.

    The symptoms have separate alerts, so that both fire if both limits are exceeded.
    """
    alerts = []
    for sign, limit_ns in zip(SYMPTOMS, (ttft_ns, itl_ns), strict=True):
        if isnan(limit_ns):
            continue
        servers = newest_name(sign.metric)
        ours = HARNESS_SERIES[sign.metric]
        server = quantile_of(TRIAGE_QUANTILE, servers, RATE, "job, model_name")
        client = quantile_of(TRIAGE_QUANTILE, ours, RATE_LIVE, "job")
        alerts.append(_routed(sign, server, limit_ns, WAIT, "server"))
        alerts.append(_routed(sign, client, limit_ns, "0s", "client"))
    return alerts


def _routed(sign: Symptom, expr: str, limit_ns: float, wait: str, seen_by: str) -> Alert:
    return Alert(
        NAMES[sign.metric],
        f"{expr} > {limit_ns / SECOND:g}",
        wait,
        {"severity": "warning", "seen_by": seen_by},
        {
            "summary": f"{sign.title} is over {say_ns(limit_ns)}: inspect {sign.inspect}",
            "description": f"{sign.title}, seen by the {seen_by}, is "
            f"{{{{ $value | humanizeDuration }}}}. Look at: {sign.look}.",
        },
    )


def in_flight(model: str, by: str = "") -> str:
    """Return the requests of a model that run or wait: in total, or per replica with `by`."""
    selector = _model_selector(model)
    both = f"{newest_name('running')}{selector} + {newest_name('waiting')}{selector}"
    return f"sum by ({by}) ({both})" if by else f"sum({both})"


def _model_selector(model: str) -> str:
    return f"{{model_name={json.dumps(model)}}}" if model else ""


def knee_alert(threshold: Threshold) -> Alert:
    """Return the alert on a replica with more requests than the lower end of the knee."""
    return Alert(
        "ReplicaPastKnee",
        f"{in_flight(threshold.model, REPLICA)} > {threshold.requests}",
        WAIT,
        {"severity": "warning"},
        {
            "summary": f"more than {threshold.requests} requests run or wait on one replica",
            "description": "{{ $labels.instance }} holds {{ $value }} requests. "
            f"{threshold.sentence} Add a replica, or admit fewer.",
        },
    )


class Rule(Protocol):
    """An alerting or a recording rule."""

    def lines(self) -> list[str]:
        """Return the rule's lines of YAML, as they stand under `rules:`."""


def rule_file(groups: Mapping[str, Sequence[Rule]], about: Sequence[str]) -> str:
    """Return a Prometheus rule file with the comment `about`; groups without rules are left out.

    Check it with `promtool check rules FILE`.
    """
    lines = [f"# {line}".rstrip() for line in about]
    lines.append("groups:")
    for name, rules in groups.items():
        if rules:
            lines += [f"  - name: {name}", "    rules:"]
            for rule in rules:
                lines += rule.lines()
    return "\n".join(lines) + "\n"


def mix_alerts(threshold: Threshold) -> list[Alert]:
    """Return alerts on requests of other lengths than those for which the knee is valid."""
    selector = _model_selector(threshold.model)
    alerts = []
    if threshold.prompt_tokens > 0:
        prompts = f"{newest_name('prompt_tokens_total')}_total{selector}"
        alerts.append(_mix_alert("prompt", prompts, selector, threshold.prompt_tokens))
    if threshold.output_tokens > 0:
        outputs = f"{newest_name('generation_tokens_total')}_total{selector}"
        alerts.append(_mix_alert("output", outputs, selector, threshold.output_tokens))
    return alerts


def _mix_alert(what: str, series: str, selector: str, measured_tokens: float) -> Alert:
    """The alert on a mean length that is too far from the measured one, either way."""
    # Of a ratio's logarithm, twice as long and half as long are equally far from 0.
    tokens = rate(series, *MIX)
    ended = rate(f"{newest_name('requests_total')}_total{selector}", *MIX)
    ratio = f"{tokens} / {ended} / {measured_tokens:.5g}"
    return Alert(
        "RequestMixLeft",
        f"abs(ln({ratio})) > {log(MIX_FACTOR):.4f}",
        WAIT,
        {"severity": "warning", "tokens": what},
        {
            "summary": f"{what}s are not of the {measured_tokens:,.0f} tokens that the knee was "
            "measured with",
            "description": "The knee is another; measure it with them.",
        },
    )


def knee_file(threshold: Threshold) -> str:
    """Return the knee's alert, those on the SLO limits that it was measured with, and the mix's."""
    groups = {
        "harness_knee": [knee_alert(threshold)],
        "harness_mix": mix_alerts(threshold),
        "harness_routing": routing_alerts(*p95_limits_ns(threshold.slos)),
    }
    return rule_file(groups, (threshold.sentence, *threshold.notes))
