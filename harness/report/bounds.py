"""What memory, slots and bandwidth have room for, beside the measured knee."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Final

from harness.core.states import Status
from harness.engine.shapes import MODELS
from harness.memory.cards import GPUS
from harness.records.record_table import OK
from harness.report.curves import log_ticks
from harness.report.svg import BLUE, INK, RED, drawing, to_svg
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.report.report_data import ReportData

NEAR: Final = 0.8  # of the lowest bound: a knee from there on is bound by it
TICKS_RATIO: Final = 50  # of the largest to the smallest: up to it there is room for 1, 2 and 5
MAX_CACHED: Final = 0.05  # of the prompts: with more, requests share blocks


def bounds_of(facts: ReportData) -> dict[str, float]:
    """Concurrent requests that there is room for, the fewest first; {} if prefixes are shared."""
    table, server, target = facts.run.table, facts.server, facts.result.target
    done = (table.outcome == OK) & (table.prompt_tokens > 0)
    prompts = int(table.prompt_tokens[done].sum())
    cached = int(table.cached_tokens[done].clip(min=0).sum())
    if (
        not facts.knee.estimate
        or facts.unit.by_schedule
        or not prompts
        or cached > MAX_CACHED * prompts
    ):
        return {}
    # Requests are spread over their lives: a mean one holds its prompt and half of its answer.
    held = (prompts + int(table.output_tokens[done].sum()) / 2) / int(done.sum())
    tokens, block = float(server.get("kv_tokens") or nan), int(server.get("block_size") or 16)
    kv = f"KV cache ({tokens:,.0f} tokens / {held:,.0f} of a request at mid-life)"
    found = {kv: tokens / (-(-held // block) * block), "slots": target.max_num_seqs.slots}
    model, gpu = MODELS.get(str(target.flags.get("model"))), GPUS.get(target.gpu)
    if model and gpu:
        free = gpu.bandwidth_bytes_s * facts.limit_ms("itl") * MS / SECOND - model.weight_bytes
        found["memory bandwidth within the ITL"] = max(free, 0) / (model.kv_bytes_per_token * held)
    return dict(sorted(((k, v) for k, v in found.items() if not isnan(v)), key=lambda kv: kv[1]))


def is_bound(facts: ReportData, found: dict[str, float]) -> bool:
    """Whether the knee's interval comes near the lowest bound."""
    return (facts.knee.ci95[1] or facts.knee.estimate or 0) >= NEAR * min(found.values())


def bounds_sentence(facts: ReportData) -> str:
    """Each bound, the knee, and which of them binds; "" without bounds."""
    if not (found := bounds_of(facts)):
        return ""
    said = "; ".join(f"{name} {requests:,.0f}" for name, requests in found.items())
    end = f"bound by the {next(iter(found)).partition(' (')[0]}" * is_bound(facts, found)
    what = "The knee was" if facts.status == Status.found else "The best estimate of the knee is"
    knee = f"{what} {facts.knee.estimate:,}: {end or 'below all of them'}."
    return f"Bounds, in concurrent requests: {said}. {knee}"


def bounds_chart(facts: ReportData) -> str:
    """The bounds and the knee with its interval on one scale; "" without bounds."""
    if not (found := bounds_of(facts)):
        return ""
    estimate = float(facts.knee.estimate or nan)
    rows = {**found, "measured knee": estimate}
    with drawing(400, 70 + 26 * len(rows)) as (figure, (axes,)):
        axes.set(title="Bounds and the knee", xlabel=facts.unit.many, xscale="log")
        least, most = min(rows.values()), max(rows.values())
        axes.set_xlim(max(least, 1) / 2, 2 * most)
        log_ticks(axes.xaxis)
        if most > TICKS_RATIO * least:
            axes.set_xticks([10.0**n for n in range(9) if least / 2 < 10**n < 2 * most])
        colors = [RED if is_bound(facts, found) else BLUE, *[BLUE] * (len(found) - 1), INK]
        axes.hlines(range(len(rows)), max(least, 1) / 2, [*rows.values()], colors=colors, alpha=0.4)
        axes.scatter([*rows.values()], range(len(rows)), c=colors, zorder=3)
        axes.plot([float(x or estimate) for x in facts.knee.ci95], [len(found)] * 2, color=INK)
        short = [name.partition(" (")[0].partition(" within")[0] for name in rows]
        labels = [f"{name}: {value:,.0f}" for name, value in zip(short, rows.values(), strict=True)]
        axes.set_yticks(range(len(rows)), labels)
        axes.margins(y=0.2)
        return to_svg(figure, "bounds", bounds_sentence(facts))
