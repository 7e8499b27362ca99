"""Charts as data and as pictures: JSON without holes, colors that everybody can tell apart."""

from __future__ import annotations

import itertools
import json
import re
import sys
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from harness.charts import draw, embed
from harness.charts.definition import (
    Axis,
    Chart,
    Color,
    Limit,
    Panel,
    Point,
    Series,
    Shape,
    as_json,
)

ROOT = Path(__file__).parents[1]
SHEETS = (
    ROOT / "harness/report/templates/style.css.j2",
    ROOT / "harness/webpage/page/live.css",
)
POINT = Point(8, 412.3456789, 398, inf, 120, "level 3", hollow=True)


def chart(*points: Point) -> Chart:
    """Of these points, with a limit."""
    series = Series("passed", Color.blue, points, Shape.points)
    return Chart("one", "A < B", [Panel([series], limits=[Limit(500, "SLO")])], Axis())


@pytest.mark.parametrize(
    ("point", "want"),
    [
        (POINT, [8, 412.346, 398, "inf", 120, "level 3", 1]),
        (Point(1.5, nan), [1.5, None]),
        (Point(1, inf), [1, "inf"]),
        (Point(1, 2, n=3), [1, 2, None, None, 3]),
    ],
)
def test_a_point_as_json(point: Point, want: list[object]) -> None:
    """As long as it has to be; what JSON lacks has a name."""
    (panel,) = as_json(chart(point))["panels"]
    (got,) = panel["series"][0]["points"]
    assert got == want
    assert json.loads(json.dumps(got, allow_nan=False)) == want


def test_the_same_chart_is_the_same_bytes() -> None:
    """Whatever was drawn before it."""
    first = draw.draw(chart(POINT), titled=True)
    draw.draw(chart(POINT, Point(9, 3)), titled=True)
    assert draw.draw(chart(POINT), titled=True) == first
    assert "<title>A &lt; B</title>" in first


def test_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page draws its charts by itself; only the pictures are not there."""
    monkeypatch.setitem(sys.modules, "dukpy", None)
    text = embed.figure(chart(POINT))
    assert "<svg" not in text
    assert "needs JavaScript" in text
    assert '"name":"one"' in text


def test_the_library_is_the_registry_s() -> None:
    """Its version is the one that the docs name, and its licence lies beside it."""
    page = ROOT / "harness/charts/page"
    code = (page / "echarts.common.min.js").read_text()
    (version,) = re.findall(r't\.version="(\d+\.\d+\.\d+)"', code)
    assert f"ECharts {version}" in (ROOT / "docs/dependencies.md").read_text()
    assert "Apache License" in (page / "LICENSE").read_text()
    assert "Apache ECharts" in (page / "NOTICE").read_text()


def palettes(sheet: Path) -> dict[str, dict[str, str]]:
    """The colors of a style sheet in light and in dark."""
    light, dark = re.findall(r":root \{(.*?)\}", sheet.read_text(), re.DOTALL)[:2]
    return {
        "light": dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", light)),
        "dark": dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", dark)),
    }


def linear(color: str) -> np.ndarray:
    """Red, green and blue as light, 0 to 1."""
    digits = color[1:] if len(color) > 4 else "".join(2 * digit for digit in color[1:])
    share = np.array([int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """As the WCAG define it."""
    luminance = [float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (a, b)]
    return (max(luminance) + 0.05) / (min(luminance) + 0.05)


# Viénot, Brettel, Mollon (1999): linear RGB as people without red or green cones see it
NO_RED = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
NO_GREEN = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
VISIONS = {"all cones": np.eye(3), "no red": NO_RED, "no green": NO_GREEN}


def lab(light: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, in which distances are about as people see them."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(np.clip(to_xyz @ light, 0, None) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.stem)
def test_all_pages_and_pictures_have_one_palette(sheet: Path) -> None:
    """Of the live page, the reports and the files for Markdown."""
    pictures = {"light": embed.LIGHT, "dark": embed.DARK}
    for scheme, colors in palettes(sheet).items():
        want = dict(re.findall(r"--(\w+):(#\w+)", pictures[scheme]))
        assert {name: colors[name] for name in want} == want


CASES = [(sheet, scheme) for sheet in SHEETS for scheme in ("light", "dark")]


@pytest.mark.parametrize(("sheet", "scheme"), CASES, ids=lambda one: getattr(one, "stem", one))
def test_the_palette(sheet: Path, scheme: str) -> None:
    """Lines stand out from their card, and no two look the same to anyone."""
    colors = palettes(sheet)[scheme]
    card = colors["card"]
    faint = {name: contrast(colors[name], card) for name in ("ink", "muted", *HUES)}
    assert {
        name: ratio for name, ratio in faint.items() if ratio < (4.5 if name in TEXTS else 3)
    } == {}
    close = {
        (vision, a, b): distance
        for vision, seen in VISIONS.items()
        for a, b in itertools.combinations(HUES, 2)
        if (
            distance := np.linalg.norm(
                lab(seen @ linear(colors[a])) - lab(seen @ linear(colors[b]))
            )
        )
        < 10
    }
    assert close == {}


HUES = ("blue", "red", "green", "gold")
TEXTS = ("ink", "muted", "red", "green")  # of these are the names of marks, too
