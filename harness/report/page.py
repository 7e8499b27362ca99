"""report.html: one self-contained file, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.report.curves import curves
from harness.report.distributions import distributions
from harness.report.explain import knee_figures
from harness.report.say import Figure, as_float, bounds
from harness.report.timeline import timeline

if TYPE_CHECKING:
    from harness.report.answer import Answer
    from harness.report.facts import Facts
    from harness.report.steprow import StepRow

TEXTS: Final = ("Purpose", "Decision", "Why")


def html(facts: Facts, answer: Answer) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only here

    environment = Environment(
        loader=PackageLoader("harness.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:] + "."
    rows = [table_row(step) for step in facts.steps]
    verdict = {"evidence": [], "knobs": [], "sentence": "", "confidence": 0} | facts.verdict
    return environment.get_template("report.html.j2").render(
        title=f"vllm-harness: {answer.headline}",
        answer=answer,
        cards=cards(facts),
        curves=curves(facts),
        distributions=distributions(facts),
        timeline=timeline(facts),
        verdict=verdict,
        columns=list(rows[0]) if rows else [],
        texts=TEXTS,
        rows=rows,
        instrument=instrument(facts),
        unknown=facts.run.damage.sentences() + unknown(facts),
        settings=settings(facts),
        command=" ".join(facts.run.info.get("command") or ["vllm-harness"]),
        folder=facts.run.path.name,
    )


def cards(facts: Facts) -> list[dict[str, str]]:
    """The few numbers that people look for first."""
    out = []
    at, lo, hi = facts.users
    if at == at:  # noqa: PLR0124 - not NaN
        out.append(
            {
                "name": "Knee",
                "value": f"{at:,.0f} users",
                "note": f"95 % interval {lo:,.0f} to {hi:,.0f}",
            }
        )
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            note = f"95 % interval {figure.interval}" if figure.interval else "at the knee"
            out.append({"name": name, "value": value, "note": note})
    for key, name in (("power", "Power knee"), ("plateau", "Throughput plateau")):
        knee = (facts.run.knee or {}).get(key)
        if isinstance(knee, dict):
            low, high = bounds(knee.get("ci95"))
            note = f"between {low:,.0f} and {high:,.0f}"
            out.append(
                {"name": name, "value": f"{as_float(knee['users']):,.0f} users", "note": note}
            )
    return out


def table_row(step: StepRow) -> dict[str, str]:
    """One line of the step table."""
    server = step.part("server")
    waiting = Figure.of(server, "waiting_mean")
    running = Figure.of(server, "running_mean")
    return {
        "#": str(step.index + 1),
        "Users": f"{step.users:,}",
        "Purpose": str(step.data.get("purpose") or ""),
        "s": f"{step.seconds:.0f}",
        "n": _count(step, "n"),
        "Failed": _count(step, "n_failed"),
        "p95 TTFT, ms": _latency(step, "ttft"),
        "p95 ITL, ms": _latency(step, "itl"),
        "Tokens/s": step.figure("output_tokens_per_s").digits,
        "Good req/s": step.figure("goodput_per_s").digits,
        "Running": running.digits,
        "Waiting": waiting.digits,
        "Decision": step.decision,
        "Why": str(step.data.get("reason") or ""),
    }


def _count(step: StepRow, key: str) -> str:
    value = step.data.get(key)
    return f"{value:,}" if isinstance(value, int) else ""


def _latency(step: StepRow, metric: str) -> str:
    figure = step.latency(metric)
    return f"{figure.digits} ({figure.interval})" if figure.interval else figure.digits


def instrument(facts: Facts) -> list[tuple[str, str]]:
    """What the client says of its own measuring."""
    client, rows = facts.client, []
    names = {
        "stamp_source": "Time stamps",
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
            rows.append((name, told.replace("kernel", "the kernel's (SO_TIMESTAMPNS)")))
    step = facts.at_knee()
    for metric in ("ttft", "itl"):
        lo, hi = bounds((step.data if step else {}).get(f"{metric}_p95_ms_instrument"))
        if lo == lo:  # noqa: PLR0124 - not NaN
            rows.append(
                (f"Instrument's interval of p95 {metric.upper()}", f"{lo:.3f} to {hi:.3f} ms")
            )
    rows.append(("Accuracy", "against the arrival of segments at this host"))
    return rows


def unknown(facts: Facts) -> list[str]:
    """What a reader should not take for granted."""
    knee, out = facts.run.knee or {}, []
    if knee.get("invalid_reason"):
        out.append(str(knee["invalid_reason"]))
    out += [f"the replay differs: {text}" for text in knee.get("replay_differences") or []]
    if not facts.run.server:
        out.append("the server showed no metrics: its side of the figures is missing")
    return out


def settings(facts: Facts) -> list[tuple[str, str]]:
    """Target, load, versions, machine."""
    info, config, server = facts.run.info, facts.config, facts.server
    drive = config.get("drive") or {}
    work = drive.get("workload") or {}
    rows = [
        (
            "Server",
            f"{server.get('url', '')} {'(embedded engine)' if server.get('embedded') else ''}",
        ),
        ("Model", str(server.get("model", ""))),
        ("Server's version", str(server.get("version") or "")),
        ("Flags", _pairs(server.get("flags") or {})),
        ("SLOs", ", ".join(config.get("slos") or [])),
        ("Workload", f"{work.get('name', '')}: {_lengths(work)}"),
        ("Seeds", _pairs(info.get("seeds") or {})),
        ("Versions", _pairs(info.get("versions") or {})),
        ("Client's machine", _pairs(info.get("hardware") or {})),
        ("Started", str((info.get("clock") or {}).get("started", ""))),
    ]
    return [(name, value) for name, value in rows if value.strip(" :")]


def _lengths(work: dict[str, Any]) -> str:
    parts = [
        f"{kind} {part.get('mean')} tokens ({part.get('shape')})"
        for kind in ("prompt", "output")
        if (part := work.get(kind))
    ]
    return ", ".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
