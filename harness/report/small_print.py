"""The end of the report: measurement quality, limitations and configuration."""

from __future__ import annotations

import re
from math import isnan
from typing import Any, Final

from harness.core.states import Status
from harness.diagnosis.client_host import (
    UNKNOWN_HOST,
    HostFigures,
    busy_sentence,
    host_figures,
)
from harness.metrics.metrics import failed_requests
from harness.metrics.numbers import (
    as_int,
    as_sentence,
    count_of,
    memory_text,
    slo_bound,
    slo_name,
)
from harness.report.report_data import ReportData, as_mapping, knee_figures
from harness.units import say_ns

SPELLED_OUT: Final = {"kernel": "kernel (SO_TIMESTAMPNS)", "c": "C", "python": "Python"}
MOST_APART_MS: Final = 2.0
COUNTED_AT_END: Final = (
    "the server counts the tokens of an answer in its last event alone: they are spread evenly "
    "over its events; tokens/s and TPOT follow the count, ITL per token is an estimate"
)
NOT_COUNTED: Final = (
    "the server does not take a request for token counts: unless it counts all the same, each "
    "event counts as one token, and tokens/s and TPOT are wrong where events have several"
)
# Flags of the embedded server that control the simulation; vLLM has none of them.
SIMULATOR_FLAG: Final = re.compile(
    r".*_ns|.*_scale|engine_.*|front_.*|jitter|measured_step|prompts_elsewhere|seed"
)


def instrument_rows(facts: ReportData) -> list[tuple[str, str]]:
    """The quality of the measurement, from the client."""
    client, rows = facts.result.client, []
    names = {
        "stamp_source": "Timestamps",
        "reader": "Reader implementation",
        "addresses": "Server addresses",
        "exact_share": "Events with an exact timestamp",
        "loop_lag_p99_ms": "Reader loop lag (p99, ms)",
        "loop_lag_max_ms": "Reader loop lag (at most, ms)",
        "clock_steps": "System clock steps",
        "clock_apart_ms": "Clocks of the load processes and the master apart (at most, ms)",
        "resent": "Requests sent again (the server had closed the idle connection)",
        "cpu_s": "CPU time of the load processes (s)",
        "decoder_cpu_s": "CPU time of decoding (s)",
        "processes": "Load processes",
        "missing": "Missing records",
    }
    for key, name in names.items():
        if client.get(key) not in (None, "", []):
            value = client[key]
            text = f"{value:.2%}" if key == "exact_share" else str(value)
            text = ", ".join(value) if key == "addresses" else text
            rows.append((name, SPELLED_OUT.get(text, text)))
    if machine := machine_text(facts):
        rows.append(("CPU of this machine", machine))
    rows.append(("Accuracy", "relative to the arrival of TCP segments at this host"))
    return rows


def host_of(facts: ReportData) -> HostFigures:
    """The client's machine during the whole load."""
    readings = facts.run.host
    if not readings:
        return UNKNOWN_HOST
    return host_figures(readings, readings[0].at_ns, readings[-1].at_ns)


def machine_text(facts: ReportData) -> str:
    """Who used the client's machine during the load; "" where it was not read."""
    seen = host_of(facts)
    if isnan(seen.own):
        return ""
    text = (
        f"of {seen.machine_cores:g} cores, {seen.own:.1f} used by this client and what it started, "
        f"{seen.others:.1f} by other programs"
    )
    if not isnan(seen.pressure):
        text += f"; some program waited for a core {seen.pressure:.0%} of the time"
    return text


def limitations(facts: ReportData) -> list[str]:
    """What was lost or not measured, and how far the figures apply."""
    result = facts.result
    out = list(result.damage)
    out += [result.invalid_reason] if result.invalid_reason else []
    out += [f"the replay differs: {text}" for text in result.replay_differences]
    excluded = sum(not level.usable for level in facts.levels)
    out += [f"{count_of(excluded, 'level')} excluded; the table gives the reason"] * bool(excluded)
    if (ms := result.client.get("clock_apart_ms") or 0) > MOST_APART_MS:
        out.append(f"a load process's clock may be off the master's by {ms:g} ms, as its windows")
    if (seen := host_of(facts)).busy_with_others:
        shared = ", which an embedded server shares" if facts.result.target.simulated else ""
        out.append(f"{busy_sentence(seen, 'was')}{shared}")
    out += _missing_sources(facts) + counting_notes(as_mapping(facts.config.get("drive")))
    if facts.status == Status.found:
        out.append(
            "the knee is a number of concurrent requests: each user sends its next request when "
            "the previous one has ended; independent arrivals queue at a lower load"
        )
    if facts.levels:
        out.append(
            "these figures come from one run; other prompts, lengths, flags or hardware change them"
        )
    return [as_sentence(text) for text in out]


def counting_notes(drive: dict[str, Any]) -> list[str]:
    """How far tokens are known, where not every event says how many it has; `drive`: run.json's."""
    if drive.get("continuous_usage", True):
        return []
    return [COUNTED_AT_END if drive.get("final_usage") else NOT_COUNTED]


def _missing_sources(facts: ReportData) -> list[str]:
    out = []
    if not facts.run.server:
        why = str(facts.server.get("no_metrics") or "")
        found = f" ({why.rstrip('.')})" if why else ""
        out.append(f"the server exposed no metrics{found}, so all server-side figures are missing")
    elif facts.result.lacking:
        out.append(f"the server does not report: {', '.join(facts.result.lacking)}")
    lacking = facts.server.get("lacking")
    out += [str(one) for one in lacking] if isinstance(lacking, list) else []
    if not facts.run.gpu:
        why = str(as_mapping(facts.run.info.get("gpu")).get("why") or "no GPU was read")
        out.append(f"{why}: clocks, power and utilization are unknown")
    short = [name for name, figure in knee_figures(facts).items() if not figure.known]
    level = facts.result.at_knee
    if level is not None and not level.tells_ttft:  # it was observed, and the answer says so
        short.remove("p95 TTFT")
    if short and facts.levels and facts.searched:
        missing = " and ".join(short)
        out.append(f"{missing}: no observations at {count_of(facts.measured_at, 'user')}")
    if facts.result.client.get("stamp_source") not in (None, "", "kernel"):
        out.append("no kernel timestamps: each latency includes the client's own delay")
    return out


def target_text(facts: ReportData) -> str:
    """`llama-3.1-8b at http://127.0.0.1:8000`, as far as it is known."""
    server = facts.server
    url = facts.result.target.label or str(server.get("url") or "")
    if facts.result.target.simulated:
        return url
    return " at ".join(filter(None, [str(server.get("model") or ""), url]))


def configuration_rows(facts: ReportData) -> list[tuple[str, str]]:
    """Target, load, versions, machine."""
    info, config, server = facts.run.info, facts.config, facts.server
    drive = as_mapping(config.get("drive"))
    models = as_mapping(drive.get("workload")).get("models")
    known = facts.result.target.max_num_seqs
    rows = [
        ("Server", f"{server.get('url', '')} {'(embedded engine)' * bool(server.get('embedded'))}"),
        ("Model", str(server.get("model", ""))),
        ("Server version", str(server.get("version") or "")),
        ("Flags", _pairs(_flags(server))),
        ("max_num_seqs", f"{known.slots:,.0f} ({known.source})" if known.value else ""),
        ("KV cache", _kv_cache(server)),
        ("GPUs", _gpus(facts)),
        ("SLOs", ", ".join(f"{slo_name(slo)} {slo_bound(slo)}" for slo in facts.slos)),
        ("Requests", _requests_sent(facts)),
        ("Loop", loop_text(config)),
        ("Workload", _lengths(config)),
        ("Request fields", _pairs(drive.get("body"))),
        ("Headers", ", ".join(name for name, _ in drive.get("headers") or ())),
        ("Models", ", ".join(f"{name} {weight:g}" for name, weight in models or ())),
        ("Data", _data(facts)),
        ("Seeds", _pairs(info.get("seeds"))),
        ("Versions", _pairs(info.get("versions"))),
        ("Client machine", _pairs(info.get("hardware"))),
        ("Started", str(as_mapping(info.get("clock")).get("started", ""))),
    ]
    return [(name, value) for name, value in rows if value.strip(" :")]


def loop_text(config: dict[str, Any]) -> str:
    """`closed: ...` or `open: ...`: who decides when a request is sent."""
    drive = as_mapping(config.get("drive"))
    if not drive.get("arrivals"):
        return "closed: each user sends its next request when the last one has ended"
    return (
        f"open: requests are sent when they are due ({drive['arrivals']} arrivals, at most "
        f"{as_int(drive.get('max_in_flight')):,} in flight), and latencies count from then"
    )


def _flags(server: dict[str, Any]) -> dict[str, Any]:
    """The flags that vLLM has too."""
    flags = as_mapping(server.get("flags"))
    own = server.get("embedded")
    return {k: v for k, v in flags.items() if not (own and SIMULATOR_FLAG.fullmatch(k))}


def _requests_sent(facts: ReportData) -> str:
    """`2,345 sent, 12 failed, in 1 min 30 s`, warm-up and drain included."""
    table = facts.run.table
    if not len(table):
        return ""
    bad, took_ns = int(failed_requests(table).sum()), int(table.done_ns.max() - table.sent_ns.min())
    lost = f", {bad:,} failed" if bad else ""
    return f"{len(table):,} sent{lost}, in {say_ns(took_ns)}"


def _kv_cache(server: dict[str, Any]) -> str:
    """`2 engines, 1,900 blocks of 16 tokens, 30,400 tokens in total`."""
    blocks, size, engines = (as_int(server.get(k)) for k in ("kv_blocks", "block_size", "engines"))
    if not blocks or not size:
        return ""
    tokens = as_int(server.get("kv_tokens"))
    size_text = f"{blocks:,} blocks of {count_of(size, 'token')}, {tokens:,} tokens in total"
    return f"{count_of(engines, 'engine')}, {size_text}" if engines > 1 else size_text


def _gpus(facts: ReportData) -> str:
    """`NVIDIA H200, 143,771 MiB, driver 580.159.04`, one after another."""
    found = as_mapping(facts.run.info.get("gpu")).get("gpus")
    each = [as_mapping(gpu) for gpu in found] if isinstance(found, list) else []
    memory = [memory_text(as_int(gpu.get("memory_mib"))) for gpu in each]
    return "; ".join(
        f"{gpu.get('name', '')}, {mib}, driver {gpu.get('driver')}"
        for gpu, mib in zip(each, memory, strict=True)
    )


def _lengths(config: dict[str, Any]) -> str:
    """`chat: prompt 256 tokens (lognormal; 7 of the chat template), output 128 tokens (fixed)`."""
    drive = as_mapping(config.get("drive"))
    work, clipped = as_mapping(drive.get("workload")), as_int(config.get("clipped_of_1000"))
    shared = as_int(work.get("system_tokens"))
    template = as_int(as_mapping(drive.get("calibration")).get("overhead"))
    prompt, output = (as_mapping(work.get(kind)) for kind in ("prompt", "output"))
    prompt_parts = [_shape(prompt)]
    prompt_parts += [f"{shared:,} of a shared system message"] * bool(shared)
    prompt_parts += [f"{template:,} of the chat template"] * bool(template)
    parts = [f"prompt {as_int(prompt.get('mean')) + shared:,} tokens ({'; '.join(prompt_parts)})"]
    parts += [f"output {as_int(output.get('mean')):,} tokens ({_shape(output)})"]
    talk, think = as_mapping(work.get("conversation")), as_mapping(work.get("think_ms"))
    turns = as_int(as_mapping(talk.get("turns")).get("mean"))
    parts += [f"sessions of {turns} turns, history {talk.get('history')}"] * bool(talk)
    parts += [f"{talk.get('replies')} replies"] * bool(talk)
    parts += [f"think time {as_int(think.get('mean')):,} ms ({think.get('shape')})"] * bool(think)
    context = as_int(work.get("max_model_len"))
    parts += [f"{clipped} of 1,000 requests clipped to {context:,} tokens"] * bool(clipped)
    return f"{work.get('name')}: {', '.join(parts)}" if prompt and output else ""


def _shape(lengths: dict[str, Any]) -> str:
    """`lognormal, cv 1.5, from 16 to 4096`, with what was given."""
    words = (("cv", "cv"), ("low", "from"), ("high", "to"))
    given = [f"{word} {lengths[name]:g}" for name, word in words if lengths.get(name)]
    return ", ".join([str(lengths.get("shape")), *given])


def _data(facts: ReportData) -> str:
    """`chats.jsonl: 120 rows, sent 2.5 times; 3 clipped to the model's context; no salt`."""
    own = as_mapping(as_mapping(facts.config.get("drive")).get("data"))
    counts = as_mapping(facts.config.get("data"))
    if not (rows := as_int(counts.get("rows"))):
        return ""
    sent = f"{own.get('path')}: {rows:,} rows, sent {len(facts.run.table) / rows:.1f} times"
    clipped = f"{as_int(counts.get('clipped')):,} clipped to the model's context"
    end = "" if own.get("repeat") else ", and the run ended"
    return f"{sent}{end}; {clipped}; {'with' if own.get('salt') else 'no'} salt"


def _pairs(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in as_mapping(values).items())
