"""Figures as inline SVG: the same bytes each time, text as text, colors from the page's CSS.

Matplotlib draws with the placeholder colors below; each is then replaced by a CSS variable, so
that one drawing serves light, dark and print. Sizes are CSS pixels at full width.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

INK, MUTED, RULE, PAPER = "#111111", "#777777", "#dddddd", "#fefefe"
BLUE, RED, GREEN, GOLD = "#0072b2", "#d55e00", "#009e73", "#e69f00"
VARIABLES: Final = {
    INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--card",
    BLUE: "--blue", RED: "--red", GREEN: "--green", GOLD: "--gold",
}  # fmt: skip
PX: Final = 1 / 72  # matplotlib's SVG unit is the point; the page takes it as a pixel
LIMIT_LINE: Final[dict[str, Any]] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (4, 3))}
# Pixels of a title, a line of text, a digit, and a tick's mark.
TOP: Final = 20
LINE: Final = 17
DIGIT: Final = 7
BESIDE: Final = 10

STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none", "svg.hashsalt": "vllm-harness", "font.size": 12,
    "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": RULE,
    "axes.grid": True, "axes.axisbelow": True, "grid.linewidth": 1, "lines.linewidth": 1.6,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "axes.labelsize": 11, "xtick.labelsize": 11, "ytick.labelsize": 11, "legend.fontsize": 11,
    "legend.frameon": False,
    "axes.formatter.limits": (-9, 9),
}  # fmt: skip


@contextmanager
def drawing(
    width: int, height: int, ratios: tuple[int, ...] = (1,)
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of so many pixels, with axes of these relative heights that share x."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it logs that it builds its font cache
    import matplotlib as mpl  # noqa: PLC0415 - 0.4 s, and only reports draw
    from matplotlib import artist  # noqa: PLC0415

    # Matplotlib generates documentation for each class on import, which takes a fifth of the time.
    described = artist.kwdoc
    artist.kwdoc = lambda artist: ""  # noqa: ARG005 - its name
    from matplotlib.figure import Figure  # noqa: PLC0415

    artist.kwdoc = described

    style = cast("Any", {**mpl.rcParamsDefault, **STYLE})
    with mpl.rc_context(style):
        figure = Figure((width * PX, height * PX))
        axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)
        yield figure, list(axes[:, 0])


def to_svg(figure: Figure, name: str, label: str, *, top: int = TOP, right: int = BESIDE) -> str:
    """The figure as an `<svg>` element; `name` keeps its ids apart, `label` says what it shows.

    `top`, `right`: pixels above the axes, for the title, and beside them.
    """
    _make_room(figure, top, right)
    out = StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format"))
    figure.savefig(out, format="svg", transparent=True, metadata=metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Placeholder colors become CSS variables, so that one chart serves light, dark and print.
    for color, variable in VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    # The ids of several charts on one page must not clash, as clip paths refer to them.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    # Drop matplotlib's font family, so that the text inherits the font of the page.
    text = re.sub(r"font: ((?:\w+ )?)([\d.]+)px [^;\"]*", _font, text)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    space = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    start = f'<svg class="plot" role="img" {box[0] if box else ""} {space}>'
    return f"{start}<title>{escape(label, quote=False)}</title>{rest}".strip()


def _make_room(figure: Figure, top: int, right: int) -> None:
    """Set margins from the lengths of the tick labels.

    Constrained layout gives about the same result, but it measures every text twice and doubles the
    time of a chart.
    """
    rows = figure.axes
    width, height = (inches / PX for inches in figure.get_size_inches())
    longest_y = max(_longest(axes.get_yticklabels()) for axes in rows)
    has_y_label = any(axes.get_ylabel() for axes in rows)
    has_x_label = any(axes.get_xlabel() for axes in rows)
    left = BESIDE + DIGIT * longest_y + LINE * has_y_label
    bottom = BESIDE + LINE + LINE * has_x_label
    # Half of the last tick's label stands out to the right of the axes.
    half_label = DIGIT * _longest(rows[-1].get_xticklabels()) / 2
    between_rows = top + BESIDE
    free = height - top - bottom - between_rows * (len(rows) - 1)
    figure.subplots_adjust(
        left=left / width,
        right=1 - max(right, half_label) / width,
        bottom=bottom / height,
        top=1 - top / height,
        hspace=between_rows * len(rows) / free,
    )
    for axes in rows:
        box = axes.get_position()
        # In parts of the axes; negative, as the labels lie below and to the left of them.
        below = (BESIDE / 2 + LINE) / -(box.height * height)
        beside = (left - LINE) / -(box.width * width)
        axes.xaxis.set_label_coords(0.5, below)
        axes.yaxis.set_label_coords(beside, 0.5)


def _longest(labels: Sequence[Text]) -> int:
    return max((len(label.get_text()) for label in labels), default=0)


def _font(match: re.Match[str]) -> str:
    weight = f"; font-weight: {match[1].strip()}" if match[1] else ""
    return f"font-size: {match[2]}px{weight}"
