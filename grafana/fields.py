"""VISUALS: how each kind of panel becomes Grafana's; the SDK's traps are avoided here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.models import common as values
from grafana_foundation_sdk.models.dashboard import (
    DashboardSpecialValueMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.xychart import MatcherConfig, SeriesMapping, XYShowMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from panels.model import Kind, Panel, Query

    # each has the methods that finished() calls, the SDK no class that says so
    Visual = (
        timeseries.Panel
        | stat.Panel
        | heatmap.Panel
        | xychart.Panel
        | statetimeline.Panel
        | table.Panel
    )

REF_IDS: Final = "ABCDEFGH"
SOURCE: Final = values.DataSourceRef("prometheus", "${datasource}")  # the variable's choice
RED: Final = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "red"})
DASHED: Final = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
NO_TRAFFIC: Final = SpecialValueMap(  # 0 / 0: a quantile or a share of nothing
    options=DashboardSpecialValueMapOptions(
        match=SpecialValueMatch.NA_N, result=ValueMappingResult(text="No traffic")
    )
)
# Chooses the row's server for the dashboard that the table is on, whatever its UID is.
CHOOSE: Final = {
    "title": "Only this one",
    "url": "/d/${__dashboard.uid}?var-target=${__value.raw}"
    "&${datasource:queryparam}&${__url_time_range}",
}
STYLES: Final[dict[str, list[DynamicConfigValue]]] = {
    "limit": [
        RED,
        DASHED,
        DynamicConfigValue("custom.fillOpacity", 0),
        DynamicConfigValue("custom.stacking", {"mode": "none", "group": "limit"}),
    ],
    "users": [
        DynamicConfigValue("custom.axisPlacement", "right"),
        DynamicConfigValue("custom.axisLabel", "users"),
        DynamicConfigValue("unit", "none"),
        DynamicConfigValue("custom.lineInterpolation", "stepAfter"),
        DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "#8e8e8e"}),
    ],
}


def query(of: Query, place: int, kind: Kind) -> prometheus.Dataquery:
    """One target; A, B, C by its place."""
    made = prometheus.Dataquery().expr(of.expr).legend_format(of.legend).ref_id(REF_IDS[place])
    if kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    heat = kind == "heatmap"
    return made.range().format(PromQueryFormat.HEATMAP if heat else PromQueryFormat.TIME_SERIES)


def thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    """From the first colour on; without any, nothing is coloured."""
    steps = [
        Threshold(None if not i else at, colour)
        for i, (at, colour) in enumerate(panel.colours or ((0.0, "text"),))
    ]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def legend() -> common.VizLegendOptions:
    """A line below; the SDK leaves showLegend out, which hides it."""
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(values.LegendDisplayMode.LIST)
        .placement(values.LegendPlacement.BOTTOM)
        .calcs([])
    )


def tooltip() -> common.VizTooltipOptions:
    """All lines at a time."""
    return (
        common.VizTooltipOptions()
        .mode(values.TooltipDisplayMode.MULTI)
        .sort(values.SortOrder.DESCENDING)
    )


def name_of(legend: str) -> str:
    """A regular expression for the names that a legend makes."""
    parts = legend.replace("{{", "\0").replace("}}", "\0").split("\0")
    return "/^" + ".*".join(parts[::2]) + "$/"


def graph(panel: Panel) -> timeseries.Panel:
    """Lines over time."""
    made = (
        timeseries.Panel()
        .legend(legend())
        .tooltip(tooltip())
        .line_width(2)
        .fill_opacity(30 if panel.stacked else 0)
        .show_points(values.VisibilityMode.NEVER)
        .thresholds(thresholds(panel))
    )
    if panel.stacked:
        mode = common.StackingConfig().mode(values.StackingMode.NORMAL).group("A")
        made = made.stacking(mode)
    if panel.colours:
        style = common.GraphThresholdsStyleConfig().mode(values.GraphThresholdsStyleMode.DASHED)
        made = made.thresholds_style(style)
    if panel.least is not None:
        made = made.min(panel.least)
    for each in panel.queries:
        if each.style in STYLES:
            made = made.override_by_regexp(name_of(each.legend), STYLES[each.style])
    return made


def number(panel: Panel) -> stat.Panel:
    """The last known value of each query, also after the run has ended."""
    several = len(panel.queries) > 1 or "{{" in panel.queries[0].legend
    mode = values.BigValueTextMode.VALUE_AND_NAME if several else values.BigValueTextMode.VALUE
    coloured = values.BigValueColorMode.VALUE if panel.colours else values.BigValueColorMode.NONE
    made = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields(""))
        .text_mode(mode)
        .color_mode(coloured)
        .graph_mode(values.BigValueGraphMode.NONE)
        .orientation(values.VizOrientation.VERTICAL)
        .thresholds(thresholds(panel))
    )
    zero = ValueMap({"0": ValueMappingResult(text=panel.empty)})
    return made.mappings([NO_TRAFFIC, zero] if panel.zero_is_empty else [NO_TRAFFIC])


def heat(panel: Panel) -> heatmap.Panel:
    """Buckets over time; the query's rows are cumulative, Grafana takes their differences."""
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .exponent(0.5)
        .steps(64)
    )
    return (
        heatmap.Panel()
        .calculate(False)
        .color(colour)
        .y_axis(heatmap.YAxisConfig().unit(panel.unit).axis_placement(values.AxisPlacement.LEFT))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(values.HeatmapCellLayout.LE))
        .tooltip(heatmap.HeatmapTooltip().mode(values.TooltipDisplayMode.SINGLE).y_histogram(True))
        .show_legend()
    )


def against(panel: Panel) -> xychart.Panel:
    """Queries joined by their time; the first is x, each other one a row of points."""
    x, *others = (q.legend for q in panel.queries)
    made = (
        xychart.Panel()
        .with_transformation(
            DataTransformerConfig("joinByField", options={"byField": "Time", "mode": "outer"})
        )
        .mapping(SeriesMapping.MANUAL)
        .series([_points(x, y) for y in others])
        .show(XYShowMode.POINTS)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(6))
        .legend(legend())
        .tooltip(tooltip())
        .min(0)
        .override_by_name(
            x, [DynamicConfigValue("unit", "none"), DynamicConfigValue("custom.axisLabel", "users")]
        )
    )
    for each in panel.queries:
        if each.style == "limit":
            lines = DynamicConfigValue("custom.show", "lines")
            made = made.override_by_name(each.legend, [RED, DASHED, lines])
    return made


def _points(x: str, y: str) -> xychart.XYSeriesConfig:
    by_name = [MatcherConfig("byName", name) for name in (x, y)]
    frame = _matcher(MatcherConfig("byIndex", 0))
    return (
        xychart.XYSeriesConfig()
        .frame(xychart.XychartXYSeriesConfigFrame().matcher(frame))
        .x(xychart.XychartXYSeriesConfigX().matcher(_matcher(by_name[0])))
        .y(xychart.XychartXYSeriesConfigY().matcher(_matcher(by_name[1])))
    )


def _matcher(of: MatcherConfig) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id(of.id_val).options(of.options)


def states(panel: Panel) -> statetimeline.Panel:
    """A lane for each series, coloured where it is 1."""
    words = {
        "0": ValueMappingResult(text="no", color="green"),
        "1": ValueMappingResult(text="yes", color="red"),
    }
    return (
        statetimeline.Panel()
        .mappings([ValueMap(words)])
        .show_value(values.VisibilityMode.NEVER)
        .merge_values(True)
        .legend(legend())
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds(panel))
    )


def rows(panel: Panel) -> table.Panel:
    """A row for each instance, a column for each query, as they are now."""
    names = {f"Value #{REF_IDS[i]}": each.legend for i, each in enumerate(panel.queries)}
    renamed = {"instance": "replica", **names}
    order = {name: place for place, name in enumerate(renamed)}
    columns = {"renameByName": renamed, "excludeByName": {"Time": True}, "indexByName": order}
    made = (
        table.Panel()
        .show_header(True)
        .cell_options(values.TableAutoCellOptions())
        .with_transformation(DataTransformerConfig("merge", options={}))
        .with_transformation(DataTransformerConfig("organize", options=columns))
        .mappings([NO_TRAFFIC])
        .override_by_name("replica", [DynamicConfigValue("links", [CHOOSE])])
    )
    for each in panel.queries:
        if each.unit:
            made = made.override_by_name(each.legend, [DynamicConfigValue("unit", each.unit)])
    return made


def finished(make: Callable[[Panel], Visual]) -> Callable[[Panel], Visual]:
    """With what all kinds have."""

    def whole(panel: Panel) -> Visual:
        made = make(panel).title(panel.title).description(panel.description).unit(panel.unit)
        for place, each in enumerate(panel.queries):
            made = made.with_target(query(each, place, panel.kind))
        if panel.most is not None:
            made = made.max(panel.most)
        if panel.decimals is not None:
            made = made.decimals(panel.decimals)
        return made.no_value(panel.empty) if panel.empty else made

    return whole


VISUALS: Final[dict[str, Callable[[Panel], Visual]]] = {
    "graph": finished(graph),
    "stat": finished(number),
    "heatmap": finished(heat),
    "xy": finished(against),
    "states": finished(states),
    "table": finished(rows),
}
