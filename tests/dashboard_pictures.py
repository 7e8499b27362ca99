"""Draws what each dashboard shows of a real run, for a person's eyes: docs/pictures/*.png.

    .venv/bin/python tests/dashboard_pictures.py

Starts what the tests start (dashboard_stage) for three minutes, asks Prometheus every expression as
Grafana would, and draws the answers where Grafana places the panels. It is not Grafana.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import textwrap
import time
import warnings
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from dashboard_stage import staged
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter
from PIL import Image

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.metrics.slo import Slo
from harness.server.address import free_port

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "grafana"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from generate import WIDTH, bottom, places
    from panels import PANELS

if TYPE_CHECKING:
    from dashboard_stage import Staged
    from matplotlib.axes import Axes
    from panels.model import Dashboard, Panel, Query
    from prometheus_server import Labels

OUT: Final = ROOT / "docs/pictures"
SLOS: Final = (Slo.parse("ttft_p95=250ms"), Slo.parse("itl_p95=50ms"))
COMMAND: Final = (
    "knee",
    "--budget",
    "80s",
    "--max-users",
    "32",
    "--prompt-tokens",
    "128",
    "--output-tokens",
    "64",
)
ENGINE: Final = EngineConfig(
    max_num_seqs=8, num_gpu_blocks=112, max_model_len=1024
)  # of 16 tokens: 12 hold a request
LINE: Final = 38  # pixels of a grid line
COLOURS: Final = ("#56a64b", "#e0a100", "#3274d9", "#e55400", "#8f3bb8", "#1f8a85", "#8ab8ff")
WINDOW: Final = "5s"
GPU_S: Final = 18.0  # a recorded reading lasts so long
UNITS: Final = {
    "s": "s",
    "reqps": "req/s",
    "percentunit": "%",
    "bytes": "GiB",
    "watt": "W",
    "celsius": "°C",
    "hertz": "GHz",
    "Bps": "MB/s",
    "joule": "J",
    "ops": "/s",
    "count:tok/s": "tokens/s",
}
SCALE: Final = {"percentunit": 100.0, "bytes": 1 / 2**30, "hertz": 1e-9, "Bps": 1e-6}
Series = list[tuple[str, "np.ndarray", "np.ndarray", "Query"]]


def named(legend: str, labels: Labels) -> str:
    """As Grafana fills {{label}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda m: dict(labels).get(m[1], ""), legend)


def asked(stage: Staged, panel: Panel) -> Series:
    """Every line of a panel: name, s since the run's first scrape, values in the unit drawn."""
    found = []
    for query in panel.queries:
        scale = 1.0 if query.style == "users" else SCALE.get(query.unit or panel.unit, 1.0)
        for labels, points in stage.over(query.expr, WINDOW).items():
            at, values = np.array(points).T
            found.append((named(query.legend, labels), at - stage.began, values * scale, query))
    return found


def graph(stage: Staged, panel: Panel, axes: Axes, series: Series) -> None:
    """Lines, stacked ones filled; users on the right."""
    right, base = None, {}
    for place, (name, at, values, query) in enumerate(series):
        colour = COLOURS[place % len(COLOURS)]
        if query.style == "users":
            right = right or axes.twinx()
            right.step(at, values, where="post", color="#8e8e8e", lw=1.2)
            right.set_ylim(0)
            right.tick_params(labelsize=6, length=2)
            axes.plot([], [], color="#8e8e8e", label=f"{name} (right)")
        elif query.style == "limit":
            axes.plot(at, values, "--", color="#e02f44", lw=1.2, label=name)
        elif panel.stacked:
            under = np.array([base.get(t, 0.0) for t in at])
            top = under + np.nan_to_num(values)
            axes.fill_between(at, under, top, color=colour, alpha=0.4, lw=1.2, label=name)
            base |= dict(zip(at.tolist(), top.tolist(), strict=True))
        else:
            axes.plot(at, values, color=colour, lw=1.4, label=name, marker=".", ms=2)
    highest = SCALE.get(panel.unit, 1.0)
    if panel.least is not None:
        axes.set_ylim(bottom=0, top=panel.most and panel.most * highest)
    axes.set_xlim(-2, stage.ended - stage.began + 2)
    axes.legend(
        fontsize=6,
        ncol=5,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.08),
        frameon=False,
        columnspacing=1.0,
        handlelength=1.4,
    )


def heatmap(stage: Staged, _panel: Panel, axes: Axes, series: Series) -> None:
    """Differences of cumulative rows, on a scale of logarithms."""
    rows = sorted((float(name), at, values) for name, at, values, _ in series)
    times = rows[0][1]
    counts = np.diff(np.array([np.interp(times, at, v) for _, at, v in rows]), axis=0, prepend=0.0)
    used = np.nonzero(counts.sum(axis=1) > 1e-9)[0]
    first, last = max(used.min() - 1, 0), min(used.max() + 2, len(rows) - 1)
    bounds = [rows[i][0] for i in range(first, last)]
    cells = np.ma.masked_less(counts[first + 1 : last], 1e-9)
    axes.pcolormesh(np.append(times, times[-1] + 1), bounds, np.sqrt(cells), cmap="Oranges")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if bounds[-1] < 8 * bounds[0] else NullFormatter())
    axes.tick_params(which="minor", labelsize=6, length=2)
    axes.set_xlim(-2, stage.ended - stage.began + 2)


def stat(_stage: Staged, panel: Panel, axes: Axes, series: Series) -> None:
    """The last value of each, coloured by its threshold."""
    axes.axis("off")
    said = []
    for name, _, values, _ in series:
        known = values[np.isfinite(values)]
        value = known[-1] if len(known) else nan
        said.append(name if panel.unit == "s" else "" if len(series) == 1 else name)
        nothing = panel.zero_is_empty and value == 0
        said[-1] += f" {panel.empty if nothing else number(value, panel)}"
    raw = [v / SCALE.get(panel.unit, 1.0) for _, _, v, _ in series for v in v[-1:]]
    colour = next((c for at, c in reversed(panel.colours) if raw and raw[-1] >= at), "black")
    words = "\n".join(said).strip() or panel.empty
    size = 17 if len(said) < 2 else 11
    axes.text(0.5, 0.45, words, ha="center", va="center", fontsize=size, color=colour)


def number(value: float, panel: Panel) -> str:
    """With its unit."""
    if not isfinite(value):
        return "No traffic"
    digits = panel.decimals if panel.decimals is not None else 0 if value == round(value) else 2
    return f"{value:.{digits}f} {UNITS.get(panel.unit, '')}"


def against(_stage: Staged, panel: Panel, axes: Axes, series: Series) -> None:
    """Joined by time; x is the first query."""
    x = dict(zip(series[0][1].tolist(), series[0][2].tolist(), strict=True))
    for place, (name, at, values, query) in enumerate(series[1:]):
        pairs = sorted((x[t], v) for t, v in zip(at.tolist(), values, strict=True) if t in x)
        style = (
            {"ls": "--", "color": "#e02f44"}
            if query.style == "limit"
            else {"ls": "", "marker": "o", "ms": 4, "alpha": 0.6, "color": COLOURS[place]}
        )
        axes.plot([p for p, _ in pairs], [v for _, v in pairs], label=name, **style)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(panel.queries[0].legend, fontsize=7, labelpad=1)
    axes.legend(fontsize=6, frameon=False)


def states(stage: Staged, _panel: Panel, axes: Axes, series: Series) -> None:
    """A lane each, red where it is 1."""
    for lane, (_, at, values, _) in enumerate(series):
        for state, colour in ((0, "#c8e6c0"), (1, "#e02f44")):
            on = [(t, 1.0) for t, v in zip(at, values, strict=True) if v == state]
            axes.broken_barh(on, (lane + 0.1, 0.8), color=colour)
        axes.text(
            0.01,
            lane + 0.5,
            series[lane][0],
            fontsize=7,
            va="center",
            transform=axes.get_yaxis_transform(),
        )
    axes.set_yticks([])
    axes.set_xlim(-2, stage.ended - stage.began + 2)


def rows(stage: Staged, panel: Panel, axes: Axes, _series: Series) -> None:
    """A row for each instance: the last value of each query."""
    columns = []
    for query in panel.queries:
        told = {}
        for labels, points in stage.over(query.expr, WINDOW).items():
            value = points[-1][1] * SCALE.get(query.unit, 1.0)
            told[dict(labels)["instance"]] = number(value, replace(panel, unit=query.unit))
        columns.append(told)
    instances = sorted({instance for told in columns for instance in told})
    cells = [[each, *(told.get(each, "") for told in columns)] for each in instances]
    names = ["replica", *(query.legend for query in panel.queries)]
    axes.axis("off")
    axes.table(cells, colLabels=names, loc="upper center", edges="horizontal")


KINDS: Final[dict[str, Any]] = {
    "table": rows,
    "graph": graph,
    "heatmap": heatmap,
    "stat": stat,
    "xy": against,
    "states": states,
}


def notes(stage: Staged, page: Dashboard, axes: Axes) -> None:
    """Shaded measured parts, a mark where a step ended and where the knee was found."""
    for note in page.notes:
        for points in stage.over(note.expr, WINDOW).values():
            at = [t - stage.began for t, _ in points]
            if note.name == "measured":
                for t in at:
                    axes.axvspan(t - 0.5, t + 0.5, color="#5794f2", alpha=0.12, lw=0)
            else:
                first = [t for t, before in zip(at, [-9.0, *at], strict=False) if t - before > 1.5]
                for t in first:
                    axes.axvline(t, color=note.colour, lw=0.8, ls=":")


def picture(stage: Staged, name: str) -> int:
    """Write one; its size in bytes."""
    page, top = PANELS[name], 0
    placed = []
    for row in page.rows:
        top += bool(row.title)
        placed += list(places(row, top))
        top = bottom(row, top)
    figure = plt.figure(figsize=(12.8, top * LINE / 100), dpi=100)
    for panel, place in placed:
        left, width = place.x / WIDTH + 0.03, place.w / WIDTH - 0.045
        low = 1 - (place.y + place.h) / top + 1.3 / top
        axes = figure.add_axes((left, low, width, (place.h - 2.3) / top))
        series = asked(stage, panel)
        title = panel.title + (f" [{UNITS[panel.unit]}]" if panel.unit in UNITS else "")
        axes.set_title("\n".join(textwrap.wrap(title, place.w * 6)), fontsize=8, pad=3)
        axes.tick_params(labelsize=6, length=2)
        axes.grid(alpha=0.25)
        if series:
            KINDS[panel.kind](stage, panel, axes, series)
        else:
            axes.text(0.5, 0.5, panel.empty or "no data", ha="center", transform=axes.transAxes)
        if panel.kind in ("graph", "heatmap"):
            notes(stage, page, axes)
    held = io.BytesIO()
    figure.savefig(held, dpi=100)
    plt.close(figure)
    path = OUT / f"dashboard-{name}.png"
    Image.open(held).convert("RGB").quantize(96).save(path, optimize=True)
    return path.stat().st_size


def main() -> None:
    """A run, then a picture of each dashboard."""
    mpl.use("Agg")
    OUT.mkdir(exist_ok=True)
    with start_engine(ENGINE) as engine, tempfile.TemporaryDirectory() as at:
        model = "llama-3.1-8b"
        with staged(engine.url, model, Path(at), SLOS, free_port(), *COMMAND, gpu_s=GPU_S) as stage:
            time.sleep(3)
            for name in PANELS:
                print(f"{name}: {picture(stage, name) // 1000} kB")  # noqa: T201


if __name__ == "__main__":
    main()
