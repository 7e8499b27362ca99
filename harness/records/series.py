"""Which of vLLM's series a field of ServerSample is read from: the field itself says it.

Counters carry `_total` in the text format. An exporter that re-exports vLLM's series may turn the
colon into an underscore, and Ray Serve puts its own name before them, so `vllm:x` also matches
`vllm_x`, `ray_vllm:x` and `ray_vllm_x`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
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
NOT_VLLMS: Final[Spellings] = ()  # of a field that no page of vLLM's has


@dataclass(frozen=True, slots=True)
class Exported:
    """The metric of our exporter that has a field's last reading, called after `key` and `unit`.

    Prometheus reads vLLM's own series from vLLM, so this is for what vLLM does not export.
    """

    key: str
    unit: str = ""  # one of Prometheus' base units; "": none
    help: str = ""  # "": the field's words


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
    live: bool = False  # the live page draws it: a gauge of requests
    exported: Exported | None = None

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


def _field(
    kind: Kind,
    name: str | Spellings,
    words: str,
    *,
    since: str = "",
    over: Combine = fsum,
    where: tuple[str, str] = ("", ""),
    live: bool = False,
    exported: Exported | None = None,
) -> Any:
    """A field of ServerSample, and all that is made of it; NaN: not reported.

    `since`: the first vLLM with the series.
    """
    spellings = same_name(name, since) if isinstance(name, str) else name
    row = Series("", kind, spellings, over, where, words=words, live=live, exported=exported)
    return field(default=nan, metadata={ROW: row})


gauge = partial(_field, "gauge")
counter = partial(_field, "counter")


def counter_by(label: str, name: str, words: str) -> Any:
    """A field with a counter's value for each value of a label."""
    row = Series("", "counter", same_name(name), by=label, words=words)
    return field(default_factory=dict, metadata={ROW: row})


def series_of(sample: Any) -> tuple[Series, ...]:
    """The series of each field of a class that is declared with one of these, by its name."""
    return tuple(
        replace(one.metadata[ROW], key=one.name) for one in fields(sample) if ROW in one.metadata
    )
