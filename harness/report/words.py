"""SLOs and sentences in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.slo import Slo

# An underscore inside a word is none to Markdown: `ttft_p95` stays as it is.
_MARKDOWN: Final = re.compile(
    r"[\\`*\[\]<>|&~]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|^[#=]|^[+-](?!\d)"
)


def promise(slos: Sequence[Slo], word: str = "stays") -> str:
    """`p95 TTFT stays under 500 ms and p95 ITL under 50 ms`."""
    verbs = [f" {word}", *[""] * (len(slos) - 1)]
    parts = [f"{slo_name(s)}{verb} under {limit(s)}" for s, verb in zip(slos, verbs, strict=True)]
    return _and(parts)


def slo_name(slo: Slo) -> str:
    """`p95 TTFT`."""
    metric, _, quantile = slo.name.partition("_")
    return f"{quantile} {metric_name(metric)}"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def metric_name(metric: str) -> str:
    """`TTFT`; e2e stays as it is."""
    return metric if metric == "e2e" else metric.upper()


def limit(slo: Slo) -> str:
    """`500 ms`, `1.5 s`: as a person would write it."""
    unit, size = ("s", SECOND) if slo.limit_ns >= SECOND else ("ms", MS)
    return f"{slo.limit_ns / size:g} {unit}"


def sentence(text: str) -> str:
    """With a capital, unless it begins with a name like `p95`, and a full stop."""
    text = text.strip()
    capital = text[:1] if text[1:2].isdigit() else text[:1].upper()
    return capital + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def one_line(text: str) -> str:
    """Without line breaks (U+2028 too), escape sequences and other controls: servers say such."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def ruled(columns: Sequence[str], *texts: str) -> str:
    """The line below a Markdown table's head: figures to the right, `texts` to the left."""
    return "".join(f"| {'---' if name in texts else '---:'} " for name in columns) + "|"


def in_markdown(text: str) -> str:
    """One line that Markdown shows as it is: no tags, no emphasis, no cell of a table ends."""
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))
