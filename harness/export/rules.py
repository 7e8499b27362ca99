"""Prometheus alerting rules as YAML: where to look, and when a replica is past its knee.

Every string is written as JSON has it, which is YAML too. Thresholds are seconds and requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final, Protocol

from harness.measure.metrics import METRICS
from harness.measure.routing import SIGNS, Q, limits_ns
from harness.units import SECOND, say_ns
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.export.threshold import Threshold
    from harness.measure.routing import Sign

SERVER: Final = {row.key: row.spellings[0].name for row in SERIES}  # the newest spelling
RATE: Final = "5m"  # what the server's p95 looks back over
RATE_LIVE: Final = "1m"  # ours, during a run
WAIT: Final = "2m"  # how long it stays so before somebody is told
REPLICA: Final = "job, instance, model_name"
NAMES: Final = {"ttft": "InspectQueueingAndPrefill", "itl": "InspectDecodeAndMemory"}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule."""

    name: str
    expr: str
    wait: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def lines(self) -> list[str]:
        """As it stands under `rules:`."""
        said = [f"      - alert: {self.name}", f"        expr: {json.dumps(self.expr)}"]
        said.append(f"        for: {self.wait}")
        for key, values in (("labels", self.labels), ("annotations", self.annotations)):
            said.append(f"        {key}:")
            said += [f"          {k}: {json.dumps(v)}" for k, v in values.items()]
        return said


def p95(name: str, by: str, back: str) -> str:
    """The p95 of a histogram, as far as its buckets tell (Prometheus interpolates in them)."""
    return f"histogram_quantile({Q}, sum by (le, {by}) (rate({name}_bucket[{back}])))"


def routing_alerts(ttft_ns: float, itl_ns: float) -> list[Alert]:
    """Of each sign that has a limit: by the server's own histogram, and by ours during a run.

    The two signs are alerts of their own, so that both fire when both are bad.
    """
    alerts = []
    for sign, limit_ns in zip(SIGNS, (ttft_ns, itl_ns), strict=True):
        if not isnan(limit_ns):
            server = p95(SERVER[sign.metric], "job, model_name", RATE)
            client = p95(METRICS[sign.metric].prometheus, "job", RATE_LIVE)
            alerts += [
                _routed(sign, server, limit_ns, WAIT, "server"),
                _routed(sign, client, limit_ns, "0s", "client"),
            ]
    return alerts


def _routed(sign: Sign, expr: str, limit_ns: float, wait: str, seen_by: str) -> Alert:
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
    """Requests of a model that run or wait: in all, or per replica with `by`."""
    only = f"{{model_name={json.dumps(model)}}}" if model else ""
    both = f"{SERVER['running']}{only} + {SERVER['waiting']}{only}"
    return f"sum by ({by}) ({both})" if by else f"sum({both})"


def knee_alert(threshold: Threshold) -> Alert:
    """A replica holds more than the measured knee's lower end."""
    return Alert(
        "ReplicaPastItsKnee",
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
        """As it stands under `rules:`."""


def rule_file(groups: Mapping[str, Sequence[Rule]], about: Sequence[str]) -> str:
    """A Prometheus rule file; `about`: the comment at its top. Groups without a rule are left out.

    Check it with `promtool check rules FILE`.
    """
    lines = [*(f"# {line}".rstrip() for line in about), "groups:"]
    for name, rules in groups.items():
        if rules:
            lines += [f"  - name: {name}", "    rules:"]
            lines += [line for rule in rules for line in rule.lines()]
    return "\n".join(lines) + "\n"


def knee_file(threshold: Threshold) -> str:
    """The knee's alert, and the routing alerts with the limits that the knee was measured by."""
    groups = {
        "harness_knee": [knee_alert(threshold)],
        "harness_routing": routing_alerts(*limits_ns(threshold.slos)),
    }
    return rule_file(groups, [threshold.sentence])
