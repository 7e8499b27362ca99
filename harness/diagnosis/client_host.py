"""What kept a client from measuring: its machine's CPU, and whose programs used it.

In: readings of the machine (`HostSample`), or the text of the kernel's files. Out: figures of a
window, and the remedy that fits the cause. More load processes help only where cores are idle: on
a machine that other programs keep busy, they would wait as the first one does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import TYPE_CHECKING, Final

from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.slo import Slo
    from harness.records.samples import ClientSample, HostSample

CONTENDED_SHARE: Final = 0.2  # of the time in which some program waits for a core
OTHERS_SHARE: Final = 0.25  # of the machine's CPU that is used by programs which are not ours
THROTTLED_SHARE: Final = 0.05  # of the time for which a CPU limit stops us: that of a p95
IDLE_CORES: Final = 0.5  # fewer leave no room for another load process
MORE_PROCESSES: Final = "try --processes 4, or fewer users per worker"

_TOTAL: Final = re.compile(r"^some .*\btotal=(\d+)$", re.MULTILINE)
_RECENT: Final = re.compile(r"^some .*\bavg10=([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostFigures:
    """The machine in one window; NaN: not known."""

    cores: float = nan  # that the client may use
    machine_cores: float = nan
    own: float = nan  # cores used by the client and by what it started
    others: float = nan  # cores used by all other programs
    pressure: float = nan  # share of the time in which some program was ready and had no core
    throttled: float = nan  # share of the time for which a CPU limit stopped the client
    load_1m: float = nan

    @property
    def idle(self) -> float:
        """Cores that nobody used, of those that the client may use."""
        free_on_machine = self.machine_cores - self.own - self.others
        free_of_limit = self.cores - self.own
        return min(free_on_machine, free_of_limit)

    @property
    def limited(self) -> bool:
        """Whether a CPU limit stopped the client for a while that matters."""
        return self.throttled >= THROTTLED_SHARE

    @property
    def contended(self) -> bool:
        """Whether programs wait for cores."""
        if isnan(self.pressure):  # an older kernel, or a container that hides it
            return self.load_1m > self.machine_cores
        return self.pressure >= CONTENDED_SHARE

    @property
    def busy_with_others(self) -> bool:
        """Whether other programs keep the machine busy, and the client waits for them."""
        return self.contended and self.others >= OTHERS_SHARE * self.machine_cores


UNKNOWN_HOST: Final = HostFigures()


def waited_s(text: str) -> float:
    """Of /proc/pressure/cpu: seconds in which some program was ready and had no core; or NaN."""
    found = _TOTAL.search(text)
    return int(found[1]) / 1e6 if found else nan


def recent_pressure(text: str) -> float:
    """The same as a share of the last ten seconds; NaN where the kernel does not say."""
    found = _RECENT.search(text)
    return float(found[1]) / 100 if found else nan


def host_figures(samples: Sequence[HostSample], start_ns: int, end_ns: int) -> HostFigures:
    """Between the last reading before the window, or the first in it, and the last one in it."""
    before = [sample for sample in samples if sample.at_ns <= start_ns]
    inside = [sample for sample in samples if start_ns < sample.at_ns <= end_ns]
    span = [*before[-1:], *inside]
    if len(span) < 2:  # noqa: PLR2004 - counters say nothing alone
        return UNKNOWN_HOST
    first = span[0]
    last = span[-1]
    seconds = (last.at_ns - first.at_ns) / SECOND
    used_cores = (last.cpu_s - first.cpu_s) / seconds
    own_cores = (last.own_cpu_s - first.own_cpu_s) / seconds
    waiting_share = (last.waited_s - first.waited_s) / seconds
    # The kernel adds up the time for which each core was denied: of several, more than all of it.
    stopped_share = (last.stopped_s - first.stopped_s) / seconds
    return HostFigures(
        cores=last.cores,
        machine_cores=last.machine_cores,
        own=own_cores,
        others=max(used_cores - own_cores, 0.0),
        pressure=min(waiting_share, 1.0),
        throttled=min(stopped_share, 1.0),
        load_1m=max(sample.load_1m for sample in span),
    )


def with_load_processes(
    host: HostFigures, samples: Sequence[ClientSample], start_ns: int, end_ns: int
) -> HostFigures:
    """With the load process that was throttled most: it may be in a pod with a limit of its own."""
    worst = host.throttled
    by_process: dict[str, list[ClientSample]] = {}
    for sample in samples:
        if sample.at_ns > end_ns or isnan(sample.throttled_s):
            continue
        own = by_process.setdefault(sample.process, [])
        if sample.at_ns <= start_ns:
            own.clear()  # of those before the window only the last one counts
        own.append(sample)
    for own in by_process.values():
        seconds = (own[-1].at_ns - own[0].at_ns) / SECOND
        if seconds > 0:
            share = min((own[-1].throttled_s - own[0].throttled_s) / seconds, 1.0)
            worst = share if isnan(worst) else max(worst, share)
    return replace(host, throttled=worst)


def throttled_text(host: HostFigures) -> str:
    """`the CPU limit of 0.5 cores throttled the client 12% of the time`."""
    limit = "a CPU limit" if isnan(host.cores) else f"the CPU limit of {host.cores:g} cores"
    return f"{limit} throttled the client {host.throttled:.0%} of the time"


def throttled_sentence(host: HostFigures, slos: Sequence[Slo] = ()) -> str:
    """Why figures must not be used if a CPU limit stopped the client too often, or "".

    Who stands still for 2% of the time may be late with 2% of what it does, which moves a p99 and
    no p95: it matters from the share on that the SLO's quantile leaves above it.
    """
    share = min((1 - slo.q for slo in slos), default=THROTTLED_SHARE)
    if not host.throttled >= share:
        return ""
    return (
        f"{throttled_text(host)}, so that it may have been late with as much of what it sent and "
        f"read: expected less than {share:.3g} of it; run it without a CPU limit (requests alone), "
        "or raise that"
    )


def busy_sentence(host: HostFigures, verb: str = "is") -> str:
    """`this machine is busy with other programs (CPU pressure 85%, load 7.0 on 2 cores, ...)`."""
    parts = []
    if not isnan(host.pressure):
        parts.append(f"CPU pressure {host.pressure:.0%}")
    if not isnan(host.load_1m):
        parts.append(f"load {host.load_1m:.1f} on {host.machine_cores:g} cores")
    if not isnan(host.others):
        parts.append(f"{host.others:.1f} cores used by them, {host.own:.1f} by this client")
    return f"this machine {verb} busy with other programs ({', '.join(parts)})"


def remedy(host: HostFigures, otherwise: str = MORE_PROCESSES) -> str:
    """What to try against the cause that the machine shows; `otherwise`: it shows none."""
    if host.limited:
        return f"{throttled_text(host)}; raise that limit, or try a lower load"
    if host.busy_with_others:
        return f"{busy_sentence(host)}; stop them, or measure from another machine"
    if host.idle < IDLE_CORES:
        return (
            f"no core was idle: this client and what it started used {host.own:.1f} of the "
            f"{host.cores:g} that they may use; try a lower load, or more cores"
        )
    return otherwise
