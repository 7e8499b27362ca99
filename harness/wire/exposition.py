"""Prometheus' text format, written: families in, the bytes of a page out.

A figure that is NaN is not known: its line is left out, so that a query sees nothing where there is
nothing. A histogram's sum is of its finite observations, since one +Inf would hide all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Final, Literal

from harness.measure.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal["gauge", "counter", "histogram"]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its lines share a name and differ in the values of its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float | Histogram]  # by the labels' values


def page(families: Iterable[Family]) -> bytes:
    """Families without a known figure are left out."""
    lines: list[str] = []
    for family in families:
        found = list(_lines(family))
        if found:
            lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += found
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(family: Family) -> Iterator[str]:
    for labels, value in family.values.items():
        pairs = [
            f'{name}="{text.translate(_ESCAPES)}"'
            for name, text in zip(family.labels, labels, strict=True)
        ]
        if isinstance(value, Histogram):
            yield from _buckets(family.name, pairs, value)
        elif not isnan(value):
            yield f"{family.name}{_braced(pairs)} {number(value)}"


def _buckets(name: str, pairs: list[str], histogram: Histogram) -> Iterator[str]:
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        le = f'le="{"+Inf" if bound == inf else float(bound)}"'  # 1.0, as Prometheus 3 keeps it
        yield f"{name}_bucket{_braced([*pairs, le])} {number(count)}"
    yield f"{name}_sum{_braced(pairs)} {number(histogram.sum)}"
    yield f"{name}_count{_braced(pairs)} {number(histogram.count)}"


def _braced(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def number(value: float) -> str:
    """The shortest text that reads as the same number; whole ones without `.0`."""
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    whole = int(value)
    return str(whole) if whole == value else repr(float(value))
