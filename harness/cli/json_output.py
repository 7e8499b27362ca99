"""`--json`: where a result goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.records.json_files import dumps


def write_json(where: str, result: Any) -> None:
    """Standard output for "-", else a file."""
    data = dumps(result, indent=True) + b"\n"
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(where).write_bytes(data)
