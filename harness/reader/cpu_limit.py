"""The CPU limit of this process, and for how long it was stopped by it (throttled).

The kernel hands out a limit as a quota: so many milliseconds of CPU in each 100 ms. Who has used
them up stands still until the next 100 ms begin, with idle cores around: Kubernetes' `limits.cpu`,
`docker run --cpus` and systemd's CPUQuota are all that. Limits nest, and each counts its own stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, isnan, nan
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
MICROSECONDS: Final = 1e6
NANOSECONDS: Final = 1e9
UNLIMITED: Final = ("", "max", "-1")


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """Without a limit: infinite, and NaN."""

    cores: float = inf  # that the tightest limit leaves
    throttled_s: float = nan  # since the groups were made; of several cores the sum


def read_cpu_limit(root: Path = CGROUPS, own: Path = OWN) -> CpuLimit:
    """The counters now, by cgroup 2 or 1; nothing is raised."""
    cores = inf
    throttled_s = 0.0
    for folder in _folders(root, own):
        limit = _limit_of(folder)
        cores = min(cores, limit.cores)
        if not isnan(limit.throttled_s):
            throttled_s += limit.throttled_s
    if cores == inf:
        return CpuLimit()
    return CpuLimit(cores, throttled_s)


@cache
def _folders(root: Path, own: Path) -> tuple[Path, ...]:
    """The groups of this process that exist here, from its own to the outermost.

    In a container its own group is often mounted as the outermost, and the kernel still calls it by
    the name that it has outside: then only the outermost exists.
    """
    folders: list[Path] = []
    for line in text_of(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        if controllers and not top.is_dir():
            top = root / "cpu"
        inner = top / path.lstrip("/")
        above = [folder for folder in inner.parents if folder == top or top in folder.parents]
        folders += [folder for folder in (inner, *above) if folder.is_dir()]
    return tuple(dict.fromkeys(folders))


def _limit_of(folder: Path) -> CpuLimit:
    """Of one group."""
    quota, _, period = text_of(folder / "cpu.max").strip().partition(" ")
    counter, per_s = "throttled_usec", MICROSECONDS
    if not quota:  # no cgroup 2
        quota = text_of(folder / "cpu.cfs_quota_us").strip()
        period = text_of(folder / "cpu.cfs_period_us").strip()
        counter, per_s = "throttled_time", NANOSECONDS
    if quota in UNLIMITED or not period:
        return CpuLimit()
    throttled = _counter(text_of(folder / "cpu.stat"), counter)
    return CpuLimit(int(quota) / int(period), throttled / per_s)


def _counter(text: str, name: str) -> float:
    """The value in a line `name value`; NaN where there is none."""
    lines = [line.split() for line in text.splitlines()]
    values = dict(words for words in lines if len(words) == 2)  # noqa: PLR2004 - a name and a value
    return float(values.get(name, nan))


def text_of(path: Path) -> str:
    """A file of the kernel's; "" where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
