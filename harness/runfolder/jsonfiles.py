"""JSON as the run folder speaks it: infinity is "inf", NaN is null, and a bad line costs itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from pathlib import Path

INTERVALS: Final = ("ci95", "_instrument", "_bound", "_bucket")  # how their names end
ENDS: Final = ("_lo", "_hi")


def plain(value: Any) -> Any:
    """JSON-like data of dataclasses, enums, numpy scalars and arrays, paths and tuples."""
    if hasattr(value, "tolist"):  # numpy scalars and arrays, array.array
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else _infinity(value) if math.isinf(value) else value
    return str(value)  # paths, enums


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """UTF-8 JSON of `plain(value)`; keys keep their order."""
    return orjson.dumps(plain(value), option=orjson.OPT_INDENT_2 if indent else 0)


def number(value: Any) -> float:
    """A figure as JSON holds it, back as a float: null is NaN, "inf" is infinity."""
    return math.nan if value is None else float(value)


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Scalars alone: `ttft_ms.p95` of nested objects, an interval as `..._lo` and `..._hi`."""
    out: dict[str, Any] = {}
    for key, part in value.items():
        name = f"{before}{key}"
        if isinstance(part, Mapping):
            out |= flat(part, f"{name}.")
        elif key.endswith(INTERVALS) and (part is None or len(part) == len(ENDS)):
            ends = zip(ENDS, part or (None, None), strict=True)
            out |= {f"{name}{end}": limit for end, limit in ends}
        else:
            out[name] = ", ".join(map(str, part)) if isinstance(part, list | tuple) else part
    return out


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is no readable one."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects of a JSON-lines file, and how many lines held none. A missing file is empty."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return [], 0
    rows: list[dict[str, Any]] = []
    bad = 0
    for line in filter(None, lines):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            bad += 1
            continue
        if isinstance(value, dict):
            rows.append(value)
        else:
            bad += 1
    return rows, bad


def _infinity(value: float) -> str:
    return "inf" if value > 0 else "-inf"
