"""What memory, slots and bandwidth have room for, beside the measured knee."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING, Final

from harness.charts.definition import Axis, Chart, Color, Panel, Point, Scale, Series, Shape
from harness.core.states import Status
from harness.engine.shapes import MODELS
from harness.memory.cards import GPUS
from harness.records.record_table import OK
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.report.report_data import ReportData

NEAR: Final = 0.8  # of the lowest bound: a knee from there on is bound by it
MAX_CACHED: Final = 0.05  # of the prompts: with more, requests share blocks


def bounds_of(facts: ReportData) -> dict[str, float]:
    """Concurrent requests that there is room for, the fewest first; {} if prefixes are shared."""
    table = facts.run.table
    done = (table.outcome == OK) & (table.prompt_tokens > 0)
    prompts = int(table.prompt_tokens[done].sum())
    cached = int(table.cached_tokens[done].clip(min=0).sum())
    has_knee_in_users = bool(facts.knee.estimate) and not facts.unit.by_schedule
    if not has_knee_in_users or not prompts or cached > MAX_CACHED * prompts:
        return {}
    # Requests are spread over their lives: a mean one holds its prompt and half of its answer.
    answers = int(table.output_tokens[done].sum())
    n_requests = int(done.sum())
    held = (prompts + answers / 2) / n_requests
    tokens = float(facts.server.get("kv_tokens") or nan)
    block = int(facts.server.get("block_size") or 16)
    held_in_blocks = -(-held // block) * block  # rounded up
    kv = f"KV cache ({tokens:,.0f} tokens / {held:,.0f} of a request at mid-life)"
    found = {
        kv: tokens / held_in_blocks,
        "slots": facts.result.target.max_num_seqs.slots,
        "memory bandwidth within the ITL": _readable_in_time(facts, held),
    }
    known = [(name, requests) for name, requests in found.items() if not isnan(requests)]
    return dict(sorted(known, key=lambda bound: bound[1]))


def _readable_in_time(facts: ReportData, held: float) -> float:
    """Requests of `held` tokens whose KV cache can be read within the ITL; NaN: not known.

    A step reads all weights once, and what every running request holds.
    """
    target = facts.result.target
    model = MODELS.get(str(target.flags.get("model")))
    gpu = GPUS.get(target.gpu)
    if model is None or gpu is None:
        return nan
    readable_bytes = gpu.bandwidth_bytes_s * facts.limit_ms("itl") * MS / SECOND
    free_bytes = readable_bytes - model.weight_bytes
    return max(free_bytes, 0) / (model.kv_bytes_per_token * held)


def is_bound(facts: ReportData, found: dict[str, float]) -> bool:
    """Whether the knee's interval comes near the lowest bound, as far as levels were measured.

    Where none failed, its upper end is the most users that the search was allowed.
    """
    upper_end = facts.knee.ci95[1] or facts.knee.estimate or 0
    return min(upper_end, facts.result.highest_load) >= NEAR * min(found.values())


def bounds_sentence(facts: ReportData) -> str:
    """Each bound, the knee, and which of them binds; "" without bounds."""
    if not (found := bounds_of(facts)):
        return ""
    said = "; ".join(f"{name} {requests:,.0f}" for name, requests in found.items())
    where = "below all of them"
    if is_bound(facts, found):
        lowest = next(iter(found))
        where = f"bound by the {lowest.partition(' (')[0]}"
    what = "The knee was" if facts.status == Status.found else "The best estimate of the knee is"
    knee = f"{what} {facts.knee.estimate:,}: {where}."
    return f"Bounds, in concurrent requests: {said}. {knee}"


def bounds_chart(facts: ReportData) -> Chart | None:
    """The bounds and the knee with its interval on one scale; None without bounds."""
    if not (found := bounds_of(facts)):
        return None
    estimate = float(facts.knee.estimate or nan)
    names = [f"{_short(name)}: {bound:,.0f}" for name, bound in found.items()]
    points = [Point(place, bound) for place, bound in enumerate(found.values())]
    color_of_lowest = Color.red if is_bound(facts, found) else Color.blue
    low, high = estimate, estimate
    if interval := facts.result.knee_interval:
        low = interval.low
        high = inf if interval.high is None else interval.high
    knee = Point(len(found), estimate, low, high)
    series = [
        Series("lowest bound", color_of_lowest, points[:1], Shape.points),
        Series("bound", Color.blue, points[1:], Shape.points),
        Series("knee", Color.ink, [knee], Shape.points),
    ]
    x = Axis(scale=Scale.names, names=[*names, f"measured knee: {estimate:,.0f}"])
    y = Axis(facts.unit.many, scale=Scale.log)
    panel = Panel(series, y, height_px=20 + 30 * len(x.names))
    title = "Bounds and the knee"
    return Chart("bounds", title, [panel], x, sideways=True, note=bounds_sentence(facts))


def _short(name: str) -> str:
    """Without how it is computed: `KV cache`, `memory bandwidth`."""
    return name.partition(" (")[0].partition(" within")[0]
