"""Writes dashboards/*.json from PANELS: `make docs`. Needs grafana-foundation-sdk (`dev`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fields import SOURCE, VISUALS
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from panels import PANELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from panels.model import Dashboard, Note, Panel, Row, Variable

HERE = Path(__file__).parent
WIDTH = 24  # of Grafana's grid
INPUT: Final = {  # asked for when somebody imports the file
    "name": "DS_PROMETHEUS",
    "label": "Prometheus",
    "description": "It scrapes vLLM, and the exporter where there is one.",
    "type": "datasource",
    "pluginId": "prometheus",
    "pluginName": "Prometheus",
}
# Defaults that the SDK writes out and that 10.4 does not know, or 13 no longer.
NOT_IN_ALL: Final = {
    "allowCustomValue",
    "footer",
    "perPage",
    "selectionMode",
}
SOURCE_PLUGIN: Final = {
    "type": "datasource",
    "id": "prometheus",
    "name": "Prometheus",
    "version": "1.0.0",
}
OLDEST: Final = "10.4.0"  # Grafana that a dashboard is checked for
OLDEST_WITH_XY: Final = "13.0.0"  # XY charts have other options in 10.4


def places(row: Row, top: int) -> Iterator[tuple[Panel, GridPos]]:
    """From left to right, then below."""
    x = y = tallest = 0
    for panel in row.panels:
        if x + panel.width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        yield panel, GridPos(h=panel.height, w=panel.width, x=x, y=top + y)
        x, tallest = x + panel.width, max(tallest, panel.height)


def bottom(row: Row, top: int) -> int:
    """The first free line below a row."""
    return max(place.y + place.h for _, place in places(row, top))


def dashboard(of: Dashboard) -> build.Dashboard:
    """One page."""
    page = (
        build.Dashboard(f"vLLM harness: {of.title}")
        .description(of.says)
        .tags(["vllm-harness"])
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            build.DashboardLink("Others")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["vllm-harness"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .link(
            build.DashboardLink("vLLM's own")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["vllm"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    page = page.with_variable(source())
    for each in of.variables:
        page = page.with_variable(variable(each))
    for note in of.notes:
        page = page.annotation(annotation(note))
    top = number = 0
    for row in of.rows:
        if row.title:
            page = page.with_row(build.Row(row.title).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=top)))
            top += 1
        for panel, place in places(row, top):
            number += 1
            visual = VISUALS[panel.kind](panel).id(number).grid_pos(place)
            page = page.with_panel(visual.datasource(SOURCE))
        top = bottom(row, top)
    return page


def source() -> build.DatasourceVariable:
    """Which Prometheus: the one chosen at import; provisioned, the first there is."""
    chosen = f"${{{INPUT['name']}}}"
    return (
        build.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(VariableOption(selected=True, text=chosen, value=chosen))
    )


def variable(of: Variable) -> build.QueryVariable | build.TextBoxVariable:
    """A choice of a label's values, or a text to type."""
    if of.text:
        typed = VariableOption(selected=True, text=of.text, value=of.text)
        box = build.TextBoxVariable(of.name).default_value(of.text).current(typed)
        return box.options([typed]).label(of.label).description(of.says)
    text = f"label_values({of.series}, {of.of_label})"
    everything = VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        build.QueryVariable(of.name)
        .label(of.label)
        .description(of.says)
        .datasource(SOURCE)
        .query({"query": text, "refId": of.name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_DESC)  # the newest run first
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def annotation(of: Note) -> build.AnnotationQuery:
    """Regions where the expression has a value."""
    asked = prometheus.Dataquery().expr(of.expr).ref_id("Anno").interval("2s").range()
    return (
        build.AnnotationQuery()
        .name(of.name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(of.colour)
        .title_format(of.title)
        .target(asked)
    )


def _for_every_version(part: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in part.items() if key not in NOT_IN_ALL}
    if kept.get("placement") == "inControlsMenu":  # of links: 10.4 has them at the top, as before
        del kept["placement"]
    return kept


def text(name: str) -> str:
    """The file's content: a dashboard as Grafana exports it for others, without a UID."""
    built = json.dumps(dashboard(PANELS[name]).build(), cls=JSONEncoder)
    made = json.loads(built, object_hook=_for_every_version)
    plugins = {panel["type"] for panel in made["panels"]} - {"row"}
    panels = [
        {"type": "panel", "id": plugin, "name": "", "version": ""} for plugin in sorted(plugins)
    ]
    oldest = OLDEST_WITH_XY if "xychart" in plugins else OLDEST
    grafana = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": oldest}
    whole = {**made, "__inputs": [INPUT], "__requires": [grafana, SOURCE_PLUGIN, *panels]}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write every dashboard."""
    for name in PANELS:
        (HERE / "dashboards" / f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main()
