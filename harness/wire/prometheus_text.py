"""Parses the Prometheus text format into samples; histograms stay separate buckets."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

# A brace, a quotation mark or `#` inside a label's value ends nothing; what follows the value (a
# time, an exemplar with labels of its own) is not read.
_LINE: Final = re.compile(
    r"""\s*+ (?P<name>[^\s{]++) \s*+
        (?P<labels>\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\})? \s*+ (?P<value>\S++)""",
    re.VERBOSE,
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\[\\\"n]")
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line: `name{labels} value`."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def parse_metrics(text: bytes | str, wanted: Container[str] | None = None) -> list[MetricSample]:
    """Return all samples, or those of `wanted` names; other lines (comments, HTML) are skipped."""
    # vLLM writes hundreds of lines per scrape, of which we read a few: a line that is not wanted
    # costs two splits and no regular expression.
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    samples = []
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        if wanted is not None:
            up_to_space = line.split(" ", 1)[0]
            name = up_to_space.split("{", 1)[0]
            if name not in wanted:
                continue
        sample = _sample(line)
        if sample is not None:
            samples.append(sample)
    return samples


def _sample(line: str) -> MetricSample | None:
    match = _LINE.match(line)
    if match is None:
        return None
    inside = match["labels"] or ""
    labels = dict(_LABEL.findall(inside))
    if "\\" in inside:
        labels = {name: _unescaped(value) for name, value in labels.items()}
    try:
        return MetricSample(match["name"], float(match["value"]), labels)
    except ValueError:
        return None


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda escape: _ESCAPES[escape[0]], value)
