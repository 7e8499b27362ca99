"""The report's small print: how well it was measured, with what, and what is not known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from harness.measure.metrics import failed
from harness.measure.states import Status
from harness.report.explain import knee_figures
from harness.report.facts import mapping
from harness.report.say import as_int, count
from harness.report.words import limit, sentence, slo_name
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.report.facts import Facts

SPELLED: Final = {"kernel": "the kernel's (SO_TIMESTAMPNS)", "c": "C", "python": "Python"}
# of the embedded server's flags: how it simulates, which no vLLM has
SIMULATOR: Final = re.compile(r".*_ns|.*_scale|engine_.*|front_.*|jitter|prompts_elsewhere|seed")


def instrument(facts: Facts) -> list[tuple[str, str]]:
    """What the client says of its own measuring."""
    client, rows = facts.result.client, []
    names = {
        "stamp_source": "Time stamps",
        "reader": "Reader's inner loop",
        "exact_share": "Events with an exact stamp",
        "loop_lag_p99_ms": "Reader's loop lag, p99 in ms",
        "clock_steps": "Steps of the machine's clock",
        "cpu_s": "CPU of the load processes, s",
        "decoder_cpu_s": "of that, decoding, s",
        "processes": "Load processes",
        "missing": "Missing records",
    }
    for key, name in names.items():
        if client.get(key) not in (None, ""):
            value = client[key]
            told = f"{value:.2%}" if key == "exact_share" else str(value)
            rows.append((name, SPELLED.get(told, told)))
    rows.append(("Accuracy", "against the arrival of segments at this host"))
    return rows


def unknown(facts: Facts) -> list[str]:
    """What is lost, what was not measured, and what a reader should not take for granted."""
    result = facts.result
    out = list(result.damage)
    out += [result.invalid_reason] if result.invalid_reason else []
    out += [f"the replay differs: {text}" for text in result.replay_differences]
    thrown = sum(not step.usable for step in facts.steps)
    out += [f"{count(thrown, 'level')} thrown out, for the reason in the table"] * bool(thrown)
    out += _silent(facts)
    if facts.status == Status.found:
        out.append(
            "the knee is one of concurrent requests: each user sends its next request when the "
            "last one has ended; a rate of independent arrivals holds less before it queues"
        )
    if facts.steps:
        out.append("other prompts, lengths, flags or hardware move these figures; this is one run")
    return [sentence(text) for text in out]


def _silent(facts: Facts) -> list[str]:
    """Sources that said nothing."""
    out = []
    if not facts.run.server:
        out.append("the server showed no metrics: its side of the figures is missing")
    elif facts.result.lacking:
        out.append(f"the server does not report: {', '.join(facts.result.lacking)}")
    if not facts.run.gpu:
        why = str(mapping(facts.run.info.get("gpu")).get("why") or "no GPU was read")
        out.append(f"{why}: clocks, power and utilization are not known")
    short = [name for name, figure in knee_figures(facts).items() if not figure.known]
    if short and facts.steps:
        told = " and ".join(short)
        out.append(f"{told}: nothing was observed at {count(facts.measured_at, 'user')}")
    if facts.result.client.get("stamp_source") not in (None, "", "kernel"):
        out.append("no kernel stamps here: the client's own delay is part of each latency")
    return out


def target(facts: Facts) -> str:
    """`llama-3.1-8b at http://127.0.0.1:8000`, as far as it is known."""
    server = facts.server
    url = facts.result.target.label or str(server.get("url") or "")
    if facts.result.target.simulated:
        return url
    return " at ".join(filter(None, [str(server.get("model") or ""), url]))


def settings(facts: Facts) -> list[tuple[str, str]]:
    """Target, load, versions, machine."""
    info, config, server = facts.run.info, facts.config, facts.server
    rows = [
        (
            "Server",
            f"{server.get('url', '')} {'(embedded engine)' if server.get('embedded') else ''}",
        ),
        ("Model", str(server.get("model", ""))),
        ("Server's version", str(server.get("version") or "")),
        ("Flags", _pairs(_flags(server))),
        ("max_num_seqs", _slots(facts)),
        ("KV cache", _kv_cache(server)),
        ("GPUs", _gpus(facts)),
        ("SLOs", ", ".join(f"{slo_name(slo)} under {limit(slo)}" for slo in facts.slos)),
        ("Requests", _sent(facts)),
        ("Workload", _lengths(config)),
        ("Seeds", _pairs(info.get("seeds"))),
        ("Versions", _pairs(info.get("versions"))),
        ("Client's machine", _pairs(info.get("hardware"))),
        ("Started", str(mapping(info.get("clock")).get("started", ""))),
    ]
    return [(name, value) for name, value in rows if value.strip(" :")]


def _flags(server: dict[str, Any]) -> dict[str, Any]:
    """Those that vLLM has too."""
    flags = mapping(server.get("flags"))
    own = server.get("embedded")
    return {k: v for k, v in flags.items() if not (own and SIMULATOR.fullmatch(k))}


def _sent(facts: Facts) -> str:
    """`2,345 sent, 12 of them failed, in 1 min 30 s`, warm-up and drain included."""
    table = facts.run.table
    if not len(table):
        return ""
    bad, took_ns = int(failed(table).sum()), int(table.done_ns.max() - table.sent_ns.min())
    lost = f", {bad:,} of them failed" if bad else ""
    return f"{len(table):,} sent{lost}, in {say_ns(took_ns)}"


def _slots(facts: Facts) -> str:
    """`256 (given)`; "" where nobody knows."""
    known = facts.result.target.max_num_seqs
    return f"{known.slots:,.0f} ({known.source})" if known.value else ""


def _kv_cache(server: dict[str, Any]) -> str:
    """`2 engines, 1,900 blocks of 16 tokens, 30,400 tokens in all`."""
    blocks, size, engines = (as_int(server.get(k)) for k in ("kv_blocks", "block_size", "engines"))
    if not blocks or not size:
        return ""
    told = f"{blocks:,} blocks of {count(size, 'token')}, {blocks * size:,} tokens in all"
    return f"{count(engines, 'engine')}, {told}" if engines > 1 else told


def _gpus(facts: Facts) -> str:
    """`NVIDIA H200, 143,771 MiB, driver 580.159.04`, one after another."""
    found = mapping(facts.run.info.get("gpu")).get("gpus")
    each = [mapping(gpu) for gpu in found] if isinstance(found, list) else []
    return "; ".join(
        f"{gpu.get('name', '')}, {as_int(gpu.get('memory_mib')):,} MiB, driver {gpu.get('driver')}"
        for gpu in each
    )


def _lengths(config: dict[str, Any]) -> str:
    """`chat: prompt 256 tokens (lognormal; 7 the chat template's), output 128 tokens (fixed)`."""
    drive = mapping(config.get("drive"))
    work, clipped = mapping(drive.get("workload")), as_int(config.get("clipped_of_1000"))
    shared = as_int(work.get("system_tokens"))
    template = as_int(mapping(drive.get("calibration")).get("overhead"))
    prompt, output = (mapping(work.get(kind)) for kind in ("prompt", "output"))
    of_it = [str(prompt.get("shape"))]
    of_it += [f"{shared:,} a system message that all share"] * bool(shared)
    of_it += [f"{template:,} the chat template's"] * bool(template)
    told = [f"prompt {as_int(prompt.get('mean')) + shared:,} tokens ({'; '.join(of_it)})"]
    told += [f"output {as_int(output.get('mean')):,} tokens ({output.get('shape')})"]
    context = as_int(work.get("max_model_len"))
    told += [f"{clipped} of 1,000 requests clipped to {context:,} tokens"] * bool(clipped)
    return f"{work.get('name')}: {', '.join(told)}" if prompt and output else ""


def _pairs(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping(values).items())
