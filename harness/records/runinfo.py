"""The content of run.json: everything a reader needs to know about the origin of the figures."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from harness import __version__

FORMAT: Final = 1  # of the run folder
PACKAGES: Final = ("locust", "gevent", "httptools", "orjson", "msgpack", "numpy", "pyarrow")


def run_info(
    config: Mapping[str, Any],
    *,
    seeds: Mapping[str, int],
    server: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the content of run.json; `RunFolder.write_json` removes the secrets.

    `config` is the resolved plan, `server` describes the target (url, version, model, flags, who
    started it). Written once before any load; the server's part may be written again.
    """
    return {
        "format": FORMAT,
        # `python -m harness` is the command `vllm-harness`
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "vllm-harness"), *sys.argv[1:]]
        if command is None
        else list(command),
        "config": dict(config),
        "seeds": dict(seeds),
        "server": dict(server or {}),
        "versions": versions(),
        "hardware": hardware(),
        "clock": clock(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the harness, Python and the main packages, without importing them."""
    found = {"harness": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Describe the client's machine: the load generator is part of the measurement."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _after(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory": _after(Path("/proc/meminfo"), "MemTotal"),
    }


def clock() -> dict[str, Any]:
    """Return one instant on both clocks, which relates the monotonic clock to real time."""
    return {
        "realtime_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _after(path: Path, key: str) -> str:
    """Return the value of the first `key : value` line; "" if there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
