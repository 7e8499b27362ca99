"""Whether what Prometheus stored is what the run folder says: at the end, and sample by sample."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.buckets import BUCKETS_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboard_stage import Staged
    from promql_again import Stored

    from harness.measure.samples import ClientSample, ServerSample
    from harness.measure.table import RecordTable

COUNTERS = {  # a field of ServerSample -> vLLM's name
    "preemptions_total": "vllm:num_preemptions_total",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "prefix_queries_total": "vllm:prefix_cache_queries_total",
    "prefix_hits_total": "vllm:prefix_cache_hits_total",
    "api_cpu_s": "process_cpu_seconds_total",
}
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "inference": "vllm:request_inference_time_seconds",
    "step_tokens": "vllm:iteration_tokens_total",
}
GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}
LATE_S = 4.0  # records reach the process that counts them about a second after they arrived
SCRAPE_S = 0.25  # at most, of a page on loopback


def events(table: RecordTable) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Latency -> (when each is known, its value), both in s; of requests that ended well."""
    first = table.offsets[:-1][table.counts > 0]
    last = table.offsets[1:][table.counts > 0] - 1
    gaps = np.diff(table.at_ns)
    inside = np.ones(len(gaps), bool)
    inside[first[first > 0] - 1] = False
    had = table.counts > 0
    tokens = np.add.reduceat(table.tokens, first) - table.tokens[first]
    several = last > first
    span = (table.at_ns[last] - table.at_ns[first])[several]
    return {
        "ttft": (table.at_ns[first] / 1e9, (table.at_ns[first] - table.sent_ns[had]) / 1e9),
        "itl": (table.at_ns[1:][inside] / 1e9, gaps[inside] / 1e9),
        "tpot": (table.done_ns[had][several] / 1e9, span / tokens[several] / 1e9),
        "e2e": (table.done_ns / 1e9, (table.done_ns - table.sent_ns) / 1e9),
    }


def counters(table: RecordTable) -> Iterator[tuple[str, str, np.ndarray]]:
    """(name, le, the sorted instants at which it counted one)."""
    for key, (at, value) in events(table).items():
        for bound in BUCKETS_S[key]:
            le = "+Inf" if bound == inf else str(bound)
            counted = np.round(value * 1e9) <= round(bound * 1e9) if bound < inf else value < inf
            yield f"harness_{key}_seconds_bucket", le, np.sort(at[counted])
    yield "harness_output_tokens_total", "", np.sort(np.repeat(table.at_ns, table.tokens)) / 1e9


def lateness(stored: Stored, table: RecordTable) -> float:
    """How long, at worst, something had arrived before a scrape counted it, s. Fails on a surplus.

    Between "all that arrived so long ago" and "all that has arrived" every sample lies then.
    """
    worst = 0.0
    for name, le, at in counters(table):
        for labels, points in stored.of("run", name):
            if labels.get("le", "") != le:
                continue
            for ts, value in points:
                assert value <= bisect_right(at, ts + 1e-3), (name, le, ts)
                if value < len(at):
                    worst = max(worst, ts - at[int(value)])  # the first that is not counted
    return worst


def beside_samples(stored: Stored, samples: list[ServerSample]) -> int:
    """Every stored counter of vLLM's lies between its neighbours of server.jsonl; how many did."""
    before = [s.at_ns / 1e9 + s.took_ns / 2e9 for s in samples]
    after = [s.at_ns / 1e9 - s.took_ns / 2e9 for s in samples]
    compared = 0
    for name, label, values in _told(samples):
        for labels, points in stored.of("server", name):
            if any(labels.get(k) != v for k, v in label.items()):
                continue
            for ts, value in points:
                low, high = bisect_right(before, ts) - 1, bisect_left(after, ts + SCRAPE_S)
                if low >= 0 and high < len(values):
                    assert values[low] <= value <= values[high] * (1 + 1e-12), (name, labels, ts)
                    compared += 1
    return compared


def _told(samples: list[ServerSample]) -> Iterator[tuple[str, dict[str, str], list[float]]]:
    """(name, labels that matter, its value in each sample)."""
    for field, name in COUNTERS.items():
        if not isnan(getattr(samples[-1], field)):
            yield name, {}, [getattr(s, field) for s in samples]
    for reason in samples[-1].finished:
        told = [s.finished.get(reason, 0.0) for s in samples]
        yield "vllm:request_success_total", {"finished_reason": reason}, told
    for key, name in HISTOGRAMS.items():
        each = [s.histograms[key] for s in samples]
        yield f"{name}_sum", {}, [h.sum for h in each]
        yield f"{name}_count", {}, [h.count for h in each]
        for place, bound in enumerate(each[0].bounds):
            le = "+Inf" if bound == inf else str(bound)
            yield f"{name}_bucket", {"le": le}, [h.counts[place] for h in each]


def gauges_apart(stored: Stored, samples: list[ServerSample]) -> dict[str, tuple[float, float]]:
    """Gauge -> (mean of what Prometheus stored, mean of server.jsonl) over the same time."""
    begin, end = samples[0].at_ns / 1e9, samples[-1].at_ns / 1e9
    found = {}
    for field, name in GAUGES.items():
        [(_, points)] = stored.of("server", name)
        ours = [v for ts, v in points if begin <= ts <= end]
        found[field] = (float(np.mean(ours)), float(np.mean([getattr(s, field) for s in samples])))
    return found


def own_samples(stored: Stored, samples: list[ClientSample]) -> int:
    """Each stored CPU time and loop lag is that of client.jsonl's newest lines; how many were."""
    compared = 0
    for name, field in (("harness_client_cpu_seconds_total", "cpu_s"),
                        ("harness_loop_lag_seconds", "loop_lag_ms")):  # fmt: skip
        unit = 1000.0 if field == "loop_lag_ms" else 1.0
        for labels, points in stored.of("run", name):
            lines = [s for s in samples if s.process == labels["process"]]
            for ts, value in points:
                recent = [s for s in lines if ts - LATE_S <= s.at_ns / 1e9 <= ts + 0.1]
                if recent:
                    told = {round(getattr(s, field) / unit, 9) for s in recent}
                    assert round(value, 9) in told, (name, labels, ts, told)
                    compared += 1
    return compared


def steps_as_written(stage: Staged, stored: Stored) -> int:
    """Inside each measured part: number, users, phase and purpose are those of steps.jsonl."""
    lines = (stage.folder / "steps.jsonl").read_text().splitlines()
    compared = 0
    for line in map(json.loads, lines):
        begin, end = line["settled_ns"] / 1e9 + 1.2, line["end_ns"] / 1e9  # a tick is a second
        want = {
            ("harness_step", ""): line["index"] + 1,
            ("harness_users_target", ""): line["users"],
            ("harness_users_running", ""): line["users"],
            ("harness_step_phase", "measuring"): 1,
            ("harness_step_purpose", line["purpose"]): 1,
        }
        for (name, value_of), number in want.items():
            for labels, points in stored.of("run", name):
                if value_of in ("", *labels.values()):
                    inside = [v for ts, v in points if begin <= ts <= end]
                    assert set(inside) <= {number}, (name, line, inside)
                    compared += len(inside)
    return compared


def decisions(stage: Staged) -> dict[str, int]:
    """How many steps ended how, by steps.jsonl."""
    lines = map(json.loads, (stage.folder / "steps.jsonl").read_text().splitlines())
    told = ["invalid" if line["invalid"] else line["decision"] for line in lines]
    return {one: told.count(one) for one in set(told)}
