"""The Prometheus text format: lines to samples. Histograms stay what they are: buckets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: `name{labels} value`."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def parse(text: bytes | str) -> list[Sample]:
    """All samples; lines that are none (comments, a page of HTML) are left out."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    samples = []
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        sample = _sample(line)
        if sample is not None:
            samples.append(sample)
    return samples


def _sample(line: str) -> Sample | None:
    if "{" in line:
        name, _, rest = line.partition("{")
        inside, brace, tail = rest.rpartition("}")
        if not brace:
            return None
        labels = {k: _unescape(v) for k, v in _LABEL.findall(inside)}
    else:
        name, _, tail = line.partition(" ")
        labels = {}
    fields = tail.split()
    if not fields:
        return None
    try:
        return Sample(name.strip(), float(fields[0]), labels)
    except ValueError:
        return None


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], value)


def by_name(samples: list[Sample]) -> dict[str, list[float]]:
    """Values of each name, one per label set."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.name, []).append(sample.value)
    return values
