"""WATCHED: alerts on the stack itself: is what is seen whole, and may it be believed.

Where to look when latency is over its limit, and a knee's threshold, is told by `recording.py`.
"""

from __future__ import annotations

from typing import Final

from harness.capacity.alert_rules import Alert
from harness.export.metric_definitions import HARNESS_SERIES

LOOP_LAG_S: Final = 0.1  # the kernel's stamps bridge a nap, not this
SEND_LATE_S: Final = 0.05  # a schedule kept worse than this is another load than was asked for
KV_FULL: Final = 0.95
FAILURES: Final = 0.01  # as --max-errors
_UP: Final = 'up{{job=~"vllm|vllm-harness-{}"}}'.format
# a stopped container's name is gone, its target with it; that a knee's ends is no news
_GONE: Final = f"max_over_time({_UP('(exporter|locust)')}[5m]) unless on (job, instance) up"


def _alert(name: str, expr: str, wait: str, summary: str, description: str) -> Alert:
    return Alert(
        name, expr, wait, {"severity": "warning"}, {"summary": summary, "description": description}
    )


WATCHED: Final = (
    _alert(
        "ScrapeTargetDown",
        f"{_UP('.+')} == 0 or {_GONE}",
        "15s",
        "{{ $labels.instance }} does not answer Prometheus, or is gone",
        "Its figures end here; a run that goes on goes on unseen. Look at the process, its port "
        "and whether /metrics asks for a login.",
    ),
    _alert(
        "ServerDown",
        f"{HARNESS_SERIES['target_up']} == 0",
        "10s",
        "the server behind {{ $labels.instance }} does not answer",
        "The exporter beside it gets no figures of vLLM's. Look at the server's log: out of "
        "memory, a crashed engine core, still loading.",
    ),
    _alert(
        "ClientLate",
        f"harness:loop_lag_seconds:max > {LOOP_LAG_S} "
        f"or harness:schedule_lag_seconds:p99 > {SEND_LATE_S}",
        "5s",
        "the load generator is late: what it measures now is partly its own",
        "{{ $labels.instance }} woke or sent {{ $value | humanizeDuration }} late. Give it more "
        "processes or cores, or another machine than the server's.",
    ),
    _alert(
        "UsersMissing",
        f"0 < {HARNESS_SERIES['users_running']} < 0.9 * {HARNESS_SERIES['users_target']} "
        f"and delta({HARNESS_SERIES['users_running']}[30s]) <= 0",  # not while they still start
        "30s",
        "fewer users run than were asked for",
        "{{ $value }} users run on {{ $labels.instance }}. A lost worker's users do not move to "
        "the others by themselves: start the load again.",
    ),
    _alert(
        "RequestsFail",
        f"harness:failures:ratio > {FAILURES}",
        "15s",
        f"more than {FAILURES:.0%} of the requests fail",
        "{{ $value | humanizePercentage }} of the last minute's on {{ $labels.instance }}; "
        f"{HARNESS_SERIES['requests']} says how.",
    ),
    _alert(
        "SloMissed",
        f"harness:slo_misses:ratio > on (job, instance, slo) {HARNESS_SERIES['slo_allowed']}",
        "15s",
        "{{ $labels.slo }} is broken",
        "{{ $value | humanizePercentage }} of the last minute's latencies are over the limit of "
        "{{ $labels.slo }} on {{ $labels.instance }}: more than it allows.",
    ),
    _alert(
        "KvCacheNearlyFull",
        f"harness:server_kv_usage:max > {KV_FULL}",
        "30s",
        "the KV cache is nearly full: preemptions are next",
        "{{ $value | humanizePercentage }} is in use on {{ $labels.instance }}. Fewer or shorter "
        "requests at once, a larger --gpu-memory-utilization, or another replica.",
    ),
)
