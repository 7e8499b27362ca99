"""Dashboards as files: regenerated equals committed, Grafana's own types, layout, words, YAML."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dashboard_stage import with_variables
from npm_packages import GRAFANAS, packages
from panels import PANELS, expressions
from panels.promql import LENGTHS
from prometheus_tools import test_rules
from yamllint import linter
from yamllint.config import YamlLintConfig

from harness.export.metric_definitions import METRIC_DEFINITIONS
from harness.wire.vllm_series import SERIES_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from panels.model import Panel

ROOT = Path(__file__).parents[1]
GRAFANA = ROOT / "grafana"
SCREEN = 16  # grid lines: 800 pixels less Grafana's two bars and the variables, 38 pixels each
TSC = ("--strict", "--skipLibCheck", "--noEmit", "--module", "nodenext", "--target", "es2022")
FILES = sorted(GRAFANA.rglob("*.yml"))


def dashboard(name: str) -> dict[str, Any]:
    """What is committed."""
    found: dict[str, Any] = json.loads((GRAFANA / f"dashboards/{name}.json").read_text())
    return found


def panels() -> Iterator[tuple[str, int, Panel]]:
    """(dashboard, row, panel)."""
    for name, page in PANELS.items():
        for place, row in enumerate(page.rows):
            yield from ((name, place, panel) for panel in row.panels)


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")  # JSON of the classic kind
def test_regenerated_equals_committed() -> None:
    """`make docs` was run after the last change, and no other dashboard lies about."""
    text = runpy.run_path(str(GRAFANA / "generate.py"))["text"]
    committed = {p.stem: p.read_text() for p in (GRAFANA / "dashboards").glob("*")}
    assert committed == {name: text(name) for name in PANELS}


def page_of(run: str, **values: str) -> list[dict[str, str]]:
    """Series of one run, as `promtool test rules` takes them."""
    info = {"run_info": "1x60", **values}
    where = f'job="j", instance="{run}"'
    more = {
        "run_info": 'run="r", model="m"',
        "level_phase": 'phase="measuring"',
        "levels_total": 'decision="pass"',
    }
    return [
        {"series": f"harness_{name}{{{where}, {more.get(name, '')}}}", "values": shown}
        for name, shown in info.items()
    ]


IDLE = page_of("idle", users_running="0x60", level_phase="0x60")


@pytest.mark.parametrize(
    ("given", "key", "shown"),
    [
        (page_of("a", users_running="8x60", level_phase="1x60"), "users", 8),
        ([*IDLE, *page_of("a", users_running="8x60", level_phase="1x60")], "users", 8),
        ([*IDLE, *page_of("a", users_running="4x55 8x4", level_phase="1x60")], "users", None),
        (page_of("a", levels_total="3x55 4x4"), "level ended", 1),
        (page_of("a", levels_total="3x55 0x4"), "level ended", None),  # the next search began
        (page_of("a", knee_users="8x60"), "knee", 8),
        (page_of("a", knee_users="8x30 stale"), "knee", 0),  # not the last search's
        ([{"series": "harness_knee_users", "values": "8x60"}], "knee", None),
    ],
)
def test_knee_is_drawn_of_what_it_says(given, key, shown, tmp_path: Path) -> None:
    """Points of levels that stand still beside an idle run; marks of levels that ended."""
    names = {
        ("knee", "ITL p95 against users", "users"),
        ("knee", "level ended", ""),
        ("knee", "Knee", "knee"),
    }
    [expr] = [
        e
        for (of, name, legend), e in expressions()
        if (of, name, legend) in names and key in (name, legend)
    ]
    expr = with_variables(expr, {"run": ".*", "model_name": ".*", "__rate_interval": "10s"})
    want = [] if shown is None else [{"labels": "{}", "value": shown}]
    asked = f"count({expr})" if key == "level ended" else expr
    case = {"expr": asked, "eval_time": "60s", "exp_samples": want}
    test_rules(
        "groups: []\n",
        tmp_path,
        [{"interval": "1s", "input_series": given, "promql_expr_test": [case]}],
    )


def test_every_series_is_known() -> None:
    """Each name in an expression is one that we export or that SERIES has."""
    ours = {row.name for rows in METRIC_DEFINITIONS.values() for row in rows}
    theirs = {*SERIES_NAMES, *LENGTHS.values()}
    for key, expr in expressions():
        for name in re.findall(r"\b((?:harness|vllm|process)[a-z0-9_:]+)", expr):
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, plain} & (ours | theirs), (key, name)


def test_what_only_dashboards_show_is_on_a_page_of_vllms() -> None:
    """Series of vLLM's that nothing else reads."""
    path = ROOT / "tests/data/metrics-pages/0.26.0.metrics.txt.gz"
    page = gzip.decompress(path.read_bytes()).decode()
    for name in LENGTHS.values():
        assert f"# TYPE {name} histogram" in page
    assert re.search(r'^http_requests_total\{.*status="\dxx"\}', page, re.MULTILINE)


def test_every_series_has_a_panel() -> None:
    """Of a run, all but the share that an SLO allows: its name says it (p95: 5%)."""
    shown = {
        name for _, expr in expressions() for name in re.findall(r"\bharness_[a-z0-9_]+", expr)
    }
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} | shown
    left = {row.name for row in METRIC_DEFINITIONS["a run"]} - plain
    assert left == {"harness_slo_allowed_ratio"}


@pytest.mark.parametrize("name", PANELS)
def test_first_row_fits_a_laptop_screen(name: str) -> None:
    """What stands above the first headline ends within 1280 x 800, and nothing overlaps."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(name)["panels"]:
        x, y, w, h = (panel["gridPos"][k] for k in "xywh")
        cells = {(i, j) for i in range(x, x + w) for j in range(y, y + h)}
        assert not taken & cells, panel["title"]
        assert x + w <= 24
        taken |= cells
    headline = next(p["gridPos"]["y"] for p in dashboard(name)["panels"] if p["type"] == "row")
    assert 0 < headline <= SCREEN


@pytest.mark.parametrize("panel", [p for _, _, p in panels()], ids=lambda p: p.title)
def test_a_panel_explains_itself(panel: Panel) -> None:
    """Unit, legends, and what it shows, how to read it, what to do: each a sentence."""
    assert panel.unit
    assert all(query.legend for query in panel.queries)
    for words in (panel.shows, panel.read, panel.do):
        assert re.fullmatch(r"[A-Za-z`-].*[.]", words), words
    assert len(panel.description) < 600


def test_data_source_and_folders_fit_together() -> None:
    """Every panel asks the variable's source, which is asked for at import; no UID is given."""
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/vllm-harness.yml").read_text())
    [found] = source["datasources"]
    assert (found["uid"], found["url"]) == ("prometheus", "http://prometheus:9090")
    assert provider["providers"][0]["options"]["path"] == "/var/lib/grafana/dashboards"
    for name, page in PANELS.items():
        made = dashboard(name)
        assert made.get("uid") is None
        assert made["editable"]
        assert set(re.findall(r'"uid": "([^"]+)"', json.dumps(made))) == {"${datasource}"}
        [asked] = made["__inputs"]
        assert (asked["type"], asked["pluginId"]) == ("datasource", "prometheus")
        variables = made["templating"]["list"]
        chosen = {each["name"]: each["current"]["value"] for each in variables}
        assert list(chosen) == ["datasource", *(v.name for v in page.variables)]
        assert chosen["datasource"] == f"${{{asked['name']}}}"
        for each in variables:
            if each["type"] == "query":
                assert (each["allValue"], each["current"]["value"]) == (".*", ["$__all"])


@pytest.mark.parametrize("name", PANELS)
def test_every_variable_that_is_used_is_there(name: str) -> None:
    """Grafana leaves an unknown `$name` as it is, which matches nothing."""
    page = PANELS[name]
    known = {variable.name for variable in page.variables} | {"__rate_interval"}
    asked = [expr for (of, *_), expr in expressions() if of == name]
    series = [variable.series for variable in page.variables]
    used = {word for text in asked + series for word in re.findall(r"\$(\w+)", text)}
    assert used <= known


def test_a_table_has_a_row_for_each_replica() -> None:
    """Columns by name, one click to choose a replica, and a word for what is no number."""
    [replicas] = [p for p in dashboard("overview")["panels"] if p["type"] == "table"]
    assert all(target["instant"] for target in replicas["targets"])
    assert {target["format"] for target in replicas["targets"]} == {"table"}
    options = replicas["transformations"][1]["options"]
    names, places = options["renameByName"], options["indexByName"]
    in_order = [names[column] for column in sorted(names, key=places.__getitem__)]
    assert in_order[:3] == ["replica", "up", "running"]
    assert len(in_order) == 1 + len(replicas["targets"])
    by_column = {each["matcher"]["options"]: each for each in replicas["fieldConfig"]["overrides"]}
    [link] = by_column["replica"]["properties"][0]["value"]
    assert "var-target=${__value.raw}" in link["url"]
    [nan] = replicas["fieldConfig"]["defaults"]["mappings"]
    assert nan["options"] == {"match": "nan", "result": {"text": "No traffic"}}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_yaml_is_clean(path: Path) -> None:
    """By yamllint's own rules, lines of 100."""
    rules = "extends: default\nrules: {line-length: {max: 100}, document-start: disable}"
    assert list(linter.run(path.read_text(), YamlLintConfig(rules))) == []


@pytest.fixture(scope="module", params=GRAFANAS)
def types(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the types of a Grafana and TypeScript, from npm; its name is the version."""
    folder = tmp_path_factory.mktemp("types") / request.param
    folder.mkdir()
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
    command = ["npm", "install", "--prefix", str(folder), *quiet, *packages(request.param)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.copy(ROOT / "tests/data/dashboard_types.ts", folder / "types.ts")
    return folder


def checked(folder: Path, text: str) -> str:
    """What tsc says of dashboards; "" where it has nothing to say."""
    (folder / "dashboards.ts").write_text(f"import type {{Whole}} from './types.js';\n{text}")
    tsc = [str(folder / "node_modules/.bin/tsc"), *TSC, "dashboards.ts"]
    done = subprocess.run(tsc, capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout


def oldest_grafana(name: str) -> str:
    """What the file says that it needs."""
    required = {each["type"]: each["version"] for each in dashboard(name)["__requires"]}
    return required["grafana"]


def number_of(version: str) -> tuple[int, ...]:
    """10.4 and 10.4.19 are the same here: a patch has the types of its minor version."""
    return tuple(map(int, version.split(".")[:2]))


@pytest.mark.npm
@pytest.mark.process
def test_grafanas_own_types(types: Path) -> None:
    """Every dashboard that is for this Grafana is one, with its panels' options."""
    names = [n for n in PANELS if number_of(oldest_grafana(n)) <= number_of(types.name)]
    assert {"overview", "server", "gpu"} <= set(names)
    assert ("knee" in names) == (number_of(types.name) >= (13, 0))  # XY charts
    texts = {name: (GRAFANA / f"dashboards/{name}.json").read_text() for name in names}
    assert (
        checked(types, "".join(f"export const {n}: Whole = {t};\n" for n, t in texts.items())) == ""
    )


@pytest.mark.npm
@pytest.mark.process
def test_grafanas_own_types_refuse_what_is_wrong(types: Path) -> None:
    """A value, an option or a word that no panel has."""
    server = (GRAFANA / "dashboards/server.json").read_text()
    for good, bad in (
        ('"showLegend": true', '"showLegend": "yes"'),
        ('"mode": "absolute"', '"mode": "absolut"'),
        ('"showHeader"', '"showHeaders"'),
        ('"lineWidth"', '"lineWidht"'),
    ):
        assert good in server
        wrong = server.replace(good, bad)
        assert "error TS" in checked(types, f"export const x: Whole = {wrong};")
