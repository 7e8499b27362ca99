"""The end of the report: measurement quality, limitations and configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import CONCURRENT
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

if TYPE_CHECKING:
    from harness.core.load import LoadUnit
    from harness.metrics.level_figures import MaxNumSeqs

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


# result.json's keys of `client` -> how a reader knows them
CLIENT_NAMES: Final = {
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


def instrument_rows(facts: ReportData) -> list[tuple[str, str]]:
    """The quality of the measurement, from the client."""
    rows = []
    for key, name in CLIENT_NAMES.items():
        value = facts.result.client.get(key)
        if value not in (None, "", []):
            rows.append((name, _client_text(key, value)))
    if machine := machine_text(facts):
        rows.append(("CPU of this machine", machine))
    rows.append(("Accuracy", "relative to the arrival of TCP segments at this host"))
    return rows


def _client_text(key: str, value: Any) -> str:
    if key == "exact_share":
        return f"{value:.2%}"
    if key == "addresses":
        return ", ".join(value)
    text = str(value)
    return SPELLED_OUT.get(text, text)


def host_of(facts: ReportData) -> HostFigures:
    """The client's machine during the whole load."""
    readings = facts.run.host
    if not readings:
        return UNKNOWN_HOST
    return host_figures(readings, readings[0].at_ns, readings[-1].at_ns)


def machine_text(facts: ReportData) -> str:
    """Who used the client's machine during the load; "" where it was not read."""
    host = host_of(facts)
    if isnan(host.own):
        return ""
    text = (
        f"of {host.machine_cores:g} cores, {host.own:.1f} used by this client and what it started, "
        f"{host.others:.1f} by other programs"
    )
    if not isnan(host.pressure):
        text += f"; some program waited for a core {host.pressure:.0%} of the time"
    return text


def limitations(facts: ReportData) -> list[str]:
    """What was lost or not measured, and how far the figures apply."""
    texts = _flaws(facts)
    texts += _missing_sources(facts)
    texts += counting_notes(as_mapping(facts.config.get("drive")))
    if facts.status == Status.found and not facts.unit.by_schedule:
        texts.append(_closed_loop(facts.unit))
    if facts.levels:
        texts.append(
            "these figures come from one run; other prompts, lengths, flags or hardware change them"
        )
    return [as_sentence(text) for text in texts]


def _closed_loop(unit: LoadUnit) -> str:
    """What a knee by users or sessions does not say."""
    if unit == CONCURRENT:
        waits = "user sends its next request when the previous one has ended"
    else:
        waits = (
            f"{unit.one} sends its next request when the previous one has ended and it has paused"
        )
    return (
        f"the knee is a number of {unit.many}: each {waits}; independent arrivals queue at a lower "
        "load"
    )


def _flaws(facts: ReportData) -> list[str]:
    """What went wrong with the run itself."""
    result = facts.result
    texts = list(result.damage)
    if result.invalid_reason:
        texts.append(result.invalid_reason)
    texts += [f"the replay differs: {difference}" for difference in result.replay_differences]
    if facts.left_out:
        excluded = count_of(len(facts.left_out), "level")
        texts.append(f"{excluded} excluded; the table gives the reason")
    apart_ms = result.client.get("clock_apart_ms") or 0
    if apart_ms > MOST_APART_MS:
        texts.append(
            f"a load process's clock may be off the master's by {apart_ms:g} ms, as its windows"
        )
    host = host_of(facts)
    if host.busy_with_others:
        sentence = busy_sentence(host, "was")
        if result.target.simulated:
            sentence += ", which an embedded server shares"
        texts.append(sentence)
    return texts


def counting_notes(drive: dict[str, Any]) -> list[str]:
    """How far tokens are known, where not every event says how many it has; `drive`: run.json's."""
    if drive.get("continuous_usage", True):
        return []
    return [COUNTED_AT_END if drive.get("final_usage") else NOT_COUNTED]


def _missing_sources(facts: ReportData) -> list[str]:
    texts = []
    if not facts.run.server:
        no_metrics = "the server exposed no metrics"
        if why := str(facts.server.get("no_metrics") or ""):
            no_metrics += f" ({why.rstrip('.')})"
        texts.append(f"{no_metrics}, so all server-side figures are missing")
    elif facts.result.lacking:
        texts.append(f"the server does not report: {', '.join(facts.result.lacking)}")
    lacking = facts.server.get("lacking")
    if isinstance(lacking, list):
        texts += map(str, lacking)
    if not facts.run.gpu:
        reading = as_mapping(facts.run.info.get("gpu"))
        why = str(reading.get("why") or "no GPU was read")
        texts.append(f"{why}: clocks, power and utilization are unknown")
    unobserved = _unobserved_at_knee(facts)
    if unobserved and facts.levels and facts.searched:
        load = facts.unit.short(facts.measured_at)
        texts.append(f"{' and '.join(unobserved)}: no observations at {load}")
    if facts.result.client.get("stamp_source") not in (None, "", "kernel"):
        texts.append("no kernel timestamps: each latency includes the client's own delay")
    return texts


def _unobserved_at_knee(facts: ReportData) -> list[str]:
    """The names of the figures that have no observation."""
    names = [name for name, figure in knee_figures(facts).items() if not figure.known]
    level = facts.result.at_knee
    if level is not None and not level.tells_ttft:  # it was observed, and the answer says so
        names.remove("p95 TTFT")
    return names


def target_text(facts: ReportData) -> str:
    """`llama-3.1-8b at http://127.0.0.1:8000`, as far as it is known."""
    server = facts.server
    url = facts.result.target.label or str(server.get("url") or "")
    if facts.result.target.simulated:
        return url
    model = str(server.get("model") or "")
    return " at ".join(filter(None, [model, url]))


def configuration_rows(facts: ReportData) -> list[tuple[str, str]]:
    """Target, load, versions, machine."""
    rows = [*_server_rows(facts), *_load_rows(facts), *_run_rows(facts)]
    return [(name, value) for name, value in rows if value.strip(" :")]


def _server_rows(facts: ReportData) -> Iterator[tuple[str, str]]:
    server = facts.server
    embedded = "(embedded engine)" if server.get("embedded") else ""
    yield "Server", f"{server.get('url', '')} {embedded}"
    yield "Model", str(server.get("model", ""))
    yield "Server version", str(server.get("version") or "")
    yield "Flags", _pairs(_flags(server))
    yield "max_num_seqs", _max_num_seqs(facts.result.target.max_num_seqs)
    yield "KV cache", _kv_cache(server)
    yield "GPUs", _gpus(facts)


def _load_rows(facts: ReportData) -> Iterator[tuple[str, str]]:
    drive = as_mapping(facts.config.get("drive"))
    limits = [f"{slo_name(slo)} {slo_bound(slo)}" for slo in facts.slos]
    workload = as_mapping(drive.get("workload"))
    headers = [name for name, _ in drive.get("headers") or ()]
    models = [f"{name} {weight:g}" for name, weight in workload.get("models") or ()]
    yield "SLOs", ", ".join(limits)
    yield "Requests", _requests_sent(facts)
    yield "Loop", loop_text(facts.config)
    yield "Workload", _lengths(facts.config)
    yield "Request fields", _pairs(drive.get("body"))
    yield "Headers", ", ".join(headers)
    yield "Models", ", ".join(models)
    yield "Data", _data(facts)


def _run_rows(facts: ReportData) -> Iterator[tuple[str, str]]:
    info = facts.run.info
    yield "Seeds", _pairs(info.get("seeds"))
    yield "Versions", _pairs(info.get("versions"))
    yield "Client machine", _pairs(info.get("hardware"))
    yield "Started", started_text(info)


def started_text(info: dict[str, Any]) -> str:
    """`25 Nov 2026, 17:29 UTC`, of `2026-11-25T17:29:56+0000`; what is no time stays as it is."""
    text = str(as_mapping(info.get("clock")).get("started", ""))
    try:
        started = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return text
    return f"{started.day} {started:%b %Y, %H:%M %Z}"


def _max_num_seqs(limit: MaxNumSeqs) -> str:
    """`512 (read)`: the slots of all engines, and who says so."""
    return f"{limit.slots:,.0f} ({limit.source})" if limit.value else ""


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
    if not server.get("embedded"):
        return flags
    return {name: value for name, value in flags.items() if not SIMULATOR_FLAG.fullmatch(name)}


def _requests_sent(facts: ReportData) -> str:
    """`2,345 sent, 12 failed, in 1 min 30 s`, warm-up and drain included."""
    table = facts.run.table
    if not len(table):
        return ""
    text = f"{len(table):,} sent"
    if failed := int(failed_requests(table).sum()):
        text += f", {failed:,} failed"
    first_ns = table.sent_ns.min()
    last_ns = table.done_ns.max()
    took_ns = int(last_ns - first_ns)
    return f"{text}, in {say_ns(took_ns)}"


def _kv_cache(server: dict[str, Any]) -> str:
    """`2 engines, 1,900 blocks of 16 tokens, 30,400 tokens in total`."""
    blocks = as_int(server.get("kv_blocks"))
    block_tokens = as_int(server.get("block_size"))
    engines = as_int(server.get("engines"))
    if not blocks or not block_tokens:
        return ""
    tokens = as_int(server.get("kv_tokens"))
    text = f"{blocks:,} blocks of {count_of(block_tokens, 'token')}, {tokens:,} tokens in total"
    if engines > 1:
        return f"{count_of(engines, 'engine')}, {text}"
    return text


def _gpus(facts: ReportData) -> str:
    """`NVIDIA H200, 143,771 MiB, driver 580.159.04`, one after another."""
    gpus = as_mapping(facts.run.info.get("gpu")).get("gpus")
    if not isinstance(gpus, list):
        return ""
    texts = []
    for gpu in map(as_mapping, gpus):
        memory = memory_text(as_int(gpu.get("memory_mib")))
        texts.append(f"{gpu.get('name', '')}, {memory}, driver {gpu.get('driver')}")
    return "; ".join(texts)


def _lengths(config: dict[str, Any]) -> str:
    """`chat: prompt 256 tokens (lognormal; 7 of the chat template), output 128 tokens (fixed)`."""
    drive = as_mapping(config.get("drive"))
    workload = as_mapping(drive.get("workload"))
    prompt = as_mapping(workload.get("prompt"))
    output = as_mapping(workload.get("output"))
    if not prompt or not output:
        return ""
    shared_tokens = as_int(workload.get("system_tokens"))
    calibration = as_mapping(drive.get("calibration"))
    template_tokens = as_int(calibration.get("overhead"))
    parts = [_prompt_lengths(prompt, shared_tokens, template_tokens)]
    parts.append(f"output {as_int(output.get('mean')):,} tokens ({_shape(output)})")
    if conversation := as_mapping(workload.get("conversation")):
        turns = as_mapping(conversation.get("turns"))
        mean = as_int(turns.get("mean"))
        parts.append(f"sessions of {mean} turns, history {conversation.get('history')}")
        parts.append(f"{conversation.get('replies')} replies")
    if think_ms := as_mapping(workload.get("think_ms")):
        mean_ms = as_int(think_ms.get("mean"))
        parts.append(f"think time {mean_ms:,} ms ({think_ms.get('shape')})")
    if clipped := as_int(config.get("clipped_of_1000")):
        context = as_int(workload.get("max_model_len"))
        parts.append(f"{clipped} of 1,000 requests clipped to {context:,} tokens")
    return f"{workload.get('name')}: {', '.join(parts)}"


def _prompt_lengths(prompt: dict[str, Any], shared_tokens: int, template_tokens: int) -> str:
    """`prompt 256 tokens (lognormal; 7 of the chat template)`."""
    tokens = as_int(prompt.get("mean")) + shared_tokens
    parts = [_shape(prompt)]
    if shared_tokens:
        parts.append(f"{shared_tokens:,} of a shared system message")
    if template_tokens:
        parts.append(f"{template_tokens:,} of the chat template")
    return f"prompt {tokens:,} tokens ({'; '.join(parts)})"


def _shape(lengths: dict[str, Any]) -> str:
    """`lognormal, cv 1.5, from 16 to 4096`, with what was given."""
    words = (("cv", "cv"), ("low", "from"), ("high", "to"))
    given = [f"{word} {lengths[name]:g}" for name, word in words if lengths.get(name)]
    shape = str(lengths.get("shape"))
    return ", ".join([shape, *given])


def _data(facts: ReportData) -> str:
    """`chats.jsonl: 120 rows, sent 2.5 times; 3 clipped to the model's context; no salt`."""
    drive = as_mapping(facts.config.get("drive"))
    own_data = as_mapping(drive.get("data"))
    counts = as_mapping(facts.config.get("data"))
    rows = as_int(counts.get("rows"))
    if not rows:
        return ""
    times = len(facts.run.table) / rows
    sent = f"{own_data.get('path')}: {rows:,} rows, sent {times:.1f} times"
    if not own_data.get("repeat"):
        sent += ", and the run ended"
    clipped = f"{as_int(counts.get('clipped')):,} clipped to the model's context"
    salt = "with salt" if own_data.get("salt") else "no salt"
    return f"{sent}; {clipped}; {salt}"


def _pairs(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in as_mapping(values).items())
