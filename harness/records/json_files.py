"""JSON of the run folder: infinity is "inf", NaN is null, and a bad line is skipped and counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from harness.core.typed_json import to_json

INTERVALS: Final = ("ci95", "_instrument", "_bound", "_bucket")  # suffixes of their names
ENDS: Final = ("_lo", "_hi")


def dumps(value: Any, *, indent: bool = False) -> bytes:
    """Return `to_json(value)` as UTF-8 JSON; keys keep their order."""
    option = orjson.OPT_INDENT_2 if indent else 0
    return orjson.dumps(to_json(value), option=option)


def number(value: Any) -> float:
    """Convert a number of our JSON to a float: null is NaN, "inf" is infinity."""
    if value is None:
        return math.nan
    return float(value)


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested objects to `ttft_ms.p95`, and an interval to `..._lo` and `..._hi`."""
    out: dict[str, Any] = {}
    for key, part in value.items():
        name = f"{before}{key}"
        if isinstance(part, Mapping):
            out |= flat(part, f"{name}.")
        elif key.endswith(INTERVALS) and (part is None or len(part) == len(ENDS)):
            limits = part or (None, None)
            for end, limit in zip(ENDS, limits, strict=True):
                out[f"{name}{end}"] = limit
        elif isinstance(part, list | tuple):
            out[name] = ", ".join(map(str, part))
        else:
            out[name] = part
    return out


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if it is missing or unreadable."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return a JSON-lines file's objects and its number of bad lines. A missing file is empty."""
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
            value = None
        if isinstance(value, dict):
            rows.append(value)
        else:
            bad += 1
    return rows, bad
