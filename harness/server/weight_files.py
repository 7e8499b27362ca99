"""The size of the weight files beside a config.json, as vLLM loads them."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any, Final

import orjson

from harness.server.config_values import ConfigValues

PART: Final = re.compile(r"-of-(\d+)\.safetensors$")
LENGTH_BYTES: Final = 8  # at the start of a file: of the header behind them
LARGEST_HEADER: Final = 100_000_000  # that the format allows
FLOAT32: Final = "F32"
FLOAT32_BYTES: Final = 4


def stored_bytes(path: Path | None) -> int:
    """Return the bytes of all files; 0: there are none, or not all. Raises ConfigError.

    Where a part is missing, is a link to nothing, or is what Git LFS leaves in a file's place, the
    size of the rest says nothing.
    """
    if path is None:
        return 0
    folder = path if path.is_dir() else path.parent
    files = list(folder.glob("model*.safetensors"))
    parts = [part for file in files if (part := PART.search(file.name))]
    expected = max((int(part[1]) for part in parts), default=0)
    if len(parts) < expected:
        return 0
    headers = [_header(file) for file in files]
    if not all(headers):
        return 0
    stored = sum(file.stat().st_size for file in files)
    in_32_bit = sum(_float32_bytes(header) for header in headers)
    # vLLM loads a model of 32 bit in 16 bit; a few scales of a quantized one stay as they are.
    if 2 * in_32_bit > stored:
        return stored - in_32_bit // 2
    return stored


def _header(file: Path) -> dict[str, Any]:
    """Return what a file of safetensors says of its tensors; {}: it is none."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            header = orjson.loads(opened.read(min(length, LARGEST_HEADER)))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return header if isinstance(header, dict) else {}


def _float32_bytes(header: dict[str, Any]) -> int:
    values = ConfigValues(header, file="a header of safetensors")
    tensors = [values.part(name) for name in header]
    in_32_bit = [tensor for tensor in tensors if tensor.word("dtype") == FLOAT32]
    return FLOAT32_BYTES * sum(prod(tensor.wholes("shape")) for tensor in in_32_bit)
