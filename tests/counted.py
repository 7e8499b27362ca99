"""Requests of every kind, cut into parts as a run cuts them, and what METRICS says of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.metrics.metrics import ALL_LATENCIES, HISTOGRAMS, delivered_tokens
from harness.metrics.slo import good_requests
from harness.records.record_table import CANCELLED, OUTCOMES
from harness.records.request_record import Outcome, RequestRecord, ns_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

MS = 1_000_000
Series = tuple[str, tuple[tuple[str, str], ...]]  # a line's name and labels


def records(seed: int, count: int, worker: int = 0) -> list[RequestRecord]:
    """Some fail, some before their first token; events carry one to four tokens."""
    rng = np.random.default_rng(seed)
    return [_record(rng, worker, number) for number in range(count)]


def _record(rng: np.random.Generator, worker: int, number: int) -> RequestRecord:
    # In the order of the fields: what a seed gives depends on it.
    sent = 1_000 * MS + int(rng.integers(0, 9_000 * MS))
    outcome = rng.choice(
        [Outcome.ok, Outcome.timeout, Outcome.cancelled, Outcome.truncated], p=[0.7, 0.1, 0.1, 0.1]
    )
    events = int(rng.integers(0, 40))
    gaps = rng.choice([10 * MS, 50 * MS, int(rng.integers(1, 900 * MS))], events)
    at = (sent + np.cumsum(gaps)).tolist()
    tokens = rng.integers(1, 5, events).tolist()
    scheduled = sent - int(rng.integers(0, 30 * MS)) if number % 2 else -1
    last = at[-1] if at else sent
    done = last + int(rng.integers(0, 50 * MS))
    missing = 0 if outcome == "ok" else int(rng.integers(0, 9))
    prompt_tokens = int(rng.integers(-1, 300))
    answer_index = int(rng.integers(-1, max(events, 1))) if events else -1
    return RequestRecord(
        worker=worker,
        number=number,
        user=number,
        sent_ns=sent,
        scheduled_ns=scheduled,
        done_ns=done,
        outcome=Outcome(outcome),
        planned_tokens=sum(tokens) + missing,
        prompt_tokens=prompt_tokens,
        answer_index=answer_index,
        at_ns=ns_array(at),
        not_before_ns=ns_array(at),
        tokens=ns_array(tokens),
    )


def with_parts(record: RequestRecord, cuts: Sequence[float]) -> list[RequestRecord]:
    """Its parts, cut at these shares of its events, then the record itself."""
    ends = sorted(round(cut * len(record.at_ns)) for cut in cuts)
    out = []
    begin = 0
    for place, end in enumerate(ends):
        known = record.sent_ns + place + 1
        out.append(
            replace(
                record,
                outcome=Outcome.open,
                done_ns=known,
                at_ns=record.at_ns[begin:end],
                not_before_ns=record.not_before_ns[begin:end],
                tokens=record.tokens[begin:end],
            )
        )
        begin = end
    return [*out, record]


def bucketed(key: str, ns: np.ndarray) -> tuple[tuple[float, ...], float]:
    """(cumulative counts, sum in s) the slow way: one comparison for each bound."""
    whole = [round(value) if np.isfinite(value) else value for value in ns.tolist()]
    counts = []
    for bound_s in HISTOGRAMS[key].buckets_s:
        bound_ns = round(bound_s * 1e9) if bound_s < inf else inf
        counts.append(float(sum(value <= bound_ns for value in whole)))
    return tuple(counts), sum(value for value in whole if value != inf) / 1e9


def first_tokens_ns(table: RecordTable) -> np.ndarray:
    """TTFTs; infinite without a token, and none of a request that was cut off before it."""
    had = table.counts > 0
    first = np.where(had, table.offsets[:-1], 0)
    arrived = table.at_ns[first] if len(table.at_ns) else table.sent_ns
    cut = table.outcome == CANCELLED
    return np.where(had, arrived - table.begun_ns, np.inf)[had | ~cut]


def expected(table: RecordTable, slos: Sequence[Slo]) -> dict[str, Any]:
    """What METRICS says of whole records; TTFT as it is counted: by the first token, if it came.

    Of those that the harness cut off: what had come, and nothing else.
    """
    observed = {}
    for key, latency in ALL_LATENCIES.items():
        values = latency.observe(table)
        observed[key] = values.ns[~values.only_age]
    observed["ttft"] = first_tokens_ns(table)
    planned = table.scheduled_ns >= 0
    want = (table.sent_ns - table.scheduled_ns)[planned].tolist()
    assert observed["schedule_lag"].tolist() == want
    counts = np.bincount(table.outcome, minlength=len(OUTCOMES)).tolist()
    outcomes = dict(zip(OUTCOMES, counts, strict=True))
    del outcomes[Outcome.open]
    n_observed, n_missed = [], []
    for slo in slos:
        latencies_ns = observed[slo.metric]
        n_observed.append(len(latencies_ns))
        n_missed.append(int((latencies_ns > slo.limit_ns).sum()))
    prompt_tokens = table.prompt_tokens.clip(min=0)
    return {
        "latency": {key: bucketed(key, observed[key]) for key in HISTOGRAMS},
        "outcomes": outcomes,
        "output_tokens": int(delivered_tokens(table).sum()),
        "prompt_tokens": int(prompt_tokens.sum()),
        "good": int(good_requests(table, slos).sum()),
        "observed": n_observed,
        "missed": n_missed,
    }


def histogram_lines(key: str, counts: Sequence[float], total: float) -> dict[Series, float]:
    """Of one latency: its buckets, sum and count."""
    name = f"harness_{key}_seconds"
    lines: dict[Series, float] = {}
    for bound, count in zip(HISTOGRAMS[key].buckets_s, counts, strict=True):
        le = "+Inf" if bound == inf else str(bound)
        lines[f"{name}_bucket", (("le", le),)] = count
    lines[f"{name}_sum", ()] = total
    lines[f"{name}_count", ()] = counts[-1]
    return lines


def exposed(want: dict[str, Any], slos: Sequence[Slo]) -> dict[Series, float]:
    """The same as the lines of a page: (name, labels) -> value."""
    lines: dict[Series, float] = {}
    for key, (counts, total) in want["latency"].items():
        lines |= histogram_lines(key, counts, total)
    for name in ("output_tokens", "prompt_tokens"):
        lines[f"harness_{name}_total", ()] = want[name]
    lines["harness_good_requests_total", ()] = want["good"]
    for outcome, count in want["outcomes"].items():
        lines["harness_requests_total", (("outcome", str(outcome)),)] = count
    for slo, observed, missed in zip(slos, want["observed"], want["missed"], strict=True):
        label = (("slo", slo.name),)
        lines["harness_slo_limit_seconds", label] = slo.limit_ns / 1e9
        lines["harness_slo_allowed_ratio", label] = slo.allowed
        lines["harness_slo_observations_total", label] = observed
        lines["harness_slo_misses_total", label] = missed
    return lines
