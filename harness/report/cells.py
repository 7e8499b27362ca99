"""The numbers of a report as words: the cards at its top, the lines of its step table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.report.explain import knee_figures
from harness.report.say import Figure, as_float, bounds

if TYPE_CHECKING:
    from harness.report.facts import Facts
    from harness.report.steprow import StepRow


def cards(facts: Facts) -> list[dict[str, str]]:
    """The few numbers that people look for first."""
    out = []
    at, lo, hi = facts.users
    if at == at:  # noqa: PLR0124 - not NaN
        out.append(
            {
                "name": "Knee",
                "value": f"{at:,.0f} users",
                "note": f"95 %: {lo:,.0f} to {hi:,.0f}" if lo == lo else "",  # noqa: PLR0124 - not NaN
            }
        )
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            note = (
                f"95 %: {figure.interval}" if figure.interval else f"at {facts.measured_at:,} users"
            )
            out.append({"name": name, "value": value, "note": note})
    for key, name in (("power", "Power knee"), ("plateau", "Throughput plateau")):
        knee = (facts.run.knee or {}).get(key)
        if isinstance(knee, dict):
            low, high = bounds(knee.get("ci95"))
            note = f"between {low:,.0f} and {high:,.0f}" if low == low else ""  # noqa: PLR0124
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
        "Decision": step.decision,
        "p95 TTFT, ms": _latency(step, "ttft"),
        "p95 ITL, ms": _latency(step, "itl"),
        "Tokens/s": step.figure("output_tokens_per_s").digits,
        "Good req/s": step.figure("goodput_per_s").digits,
        "n": _count(step, "n"),
        "Failed": _count(step, "n_failed"),
        "Running": running.digits,
        "Waiting": waiting.digits,
        "Seconds": f"{step.seconds:.0f}",
        "Purpose": str(step.data.get("purpose") or ""),
        "Why": str(step.data.get("reason") or step.data.get("invalid") or ""),
    }


def _count(step: StepRow, key: str) -> str:
    value = step.data.get(key)
    return f"{value:,}" if isinstance(value, int) else ""


def _latency(step: StepRow, metric: str) -> str:
    figure = step.latency(metric)
    return f"{figure.digits} ({figure.interval})" if figure.interval else figure.digits
