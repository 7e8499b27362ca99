"""The content of run.json: everything a reader needs to know about the origin of the figures."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    if command is None:
        # `python -m harness` is the command `vllm-harness`
        program = Path(sys.argv[0]).name.replace("__main__.py", "vllm-harness")
        command = [program, *sys.argv[1:]]
    return {
        "format": FORMAT,
        "command": list(command),
        "config": dict(config),
        "seeds": dict(seeds),
        "server": dict(server or {}),
        "versions": versions(),
        "hardware": hardware(),
        "clock": clock(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the harness, Python and the main packages, without importing them."""
    version_of = {"harness": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            version_of[package] = metadata.version(package)
    return version_of


def hardware() -> dict[str, Any]:
    """Describe the client's machine: the load generator is part of the measurement."""
    cpu = _after(Path("/proc/cpuinfo"), "model name")
    usable_cores = None
    if hasattr(os, "sched_getaffinity"):
        usable_cores = len(os.sched_getaffinity(0))
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores,
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
    for line in lines:
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return ""
