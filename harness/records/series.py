"""Which of vLLM's series a field of ServerSample is read from: the field itself says it.

Counters carry `_total` in the text format. An exporter that re-exports vLLM's series may turn the
colon into an underscore, and Ray Serve puts its own name before them, so `vllm:x` also matches
`vllm_x`, `ray_vllm:x` and `ray_vllm_x`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from math import fsum, nan
from typing import Any, Final, Literal

Kind = Literal["gauge", "counter", "histogram"]
# How the names of a kind's lines end.
ENDS: Final[dict[Kind, tuple[str, ...]]] = {
    "gauge": ("",),
    "counter": ("_total", ""),
    "histogram": ("_bucket", "_sum", "_count"),
}
ROW: Final = "series"  # its key in a field's metadata

Combine = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name without `_total`, `_bucket`, `_sum`, `_count`; "" where no version bounds it."""

    name: str
    since: str = ""  # the first vLLM with it
    until: str = ""  # the first without it


Spellings = tuple[Spelling, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One field of ServerSample (or key of its `histograms`), and the series it is read from."""

    key: str
    kind: Kind
    spellings: Spellings
    over: Combine = fsum  # how values of several engines are combined
    where: tuple[str, str] = ("", "")  # only the lines with this label
    by: str = ""  # kept apart by this label instead of added up
    words: str = ""  # what a field of ServerSample has

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return the names that lines may begin with, a tuple for each spelling."""
        return tuple(_written(self.kind, spelling.name) for spelling in self.spellings)


def _written(kind: Kind, name: str) -> tuple[str, ...]:
    return tuple(written + end for written in written_by_all(name) for end in ENDS[kind])


def written_by_all(name: str) -> tuple[str, ...]:
    """`vllm:x` as vLLM, an exporter that knows no colon, and Ray Serve write it; others as is."""
    if not name.startswith("vllm:"):
        return (name,)
    underscored = name.replace(":", "_", 1)
    return name, underscored, f"ray_{name}", f"ray_{underscored}"


def same_name(name: str, since: str = "") -> Spellings:
    """Of a series that has never been called otherwise."""
    return (Spelling(name, since),)


def renamed(new: str, since: str, old: str, until: str) -> Spellings:
    return Spelling(new, since), Spelling(old, until=until)


def gauge(
    name: str | Spellings,
    words: str,
    *,
    since: str = "",
    over: Combine = fsum,
    where: tuple[str, str] = ("", ""),
) -> Any:
    """A field that is read from a gauge; NaN: not reported. `since`: the first vLLM with it."""
    row = Series("", "gauge", _spellings(name, since), over, where, words=words)
    return field(default=nan, metadata={ROW: row})


def counter(
    name: str | Spellings,
    words: str,
    *,
    since: str = "",
    over: Combine = fsum,
    where: tuple[str, str] = ("", ""),
) -> Any:
    """The same of a counter."""
    row = Series("", "counter", _spellings(name, since), over, where, words=words)
    return field(default=nan, metadata={ROW: row})


def counter_by(label: str, name: str, words: str) -> Any:
    """A field with a counter's value for each value of a label."""
    row = Series("", "counter", same_name(name), by=label, words=words)
    return field(default_factory=dict, metadata={ROW: row})


def _spellings(name: str | Spellings, since: str) -> Spellings:
    return same_name(name, since) if isinstance(name, str) else name


def series_of(sample: Any) -> tuple[Series, ...]:
    """The series of each field of a class that is declared with one of these, by its name."""
    return tuple(
        replace(one.metadata[ROW], key=one.name) for one in fields(sample) if ROW in one.metadata
    )
