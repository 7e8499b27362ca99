"""The remedy is the cause's: what the client's machine showed, and what to try against it."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest

from harness.diagnosis.client_host import (
    MORE_PROCESSES,
    HostFigures,
    host_figures,
    recent_pressure,
    remedy,
    waited_s,
)
from harness.records.samples import HostSample
from harness.run.checks import Severity, judge_programs
from harness.units import SECOND

# Eight users on two cores, of which other programs use 1.4: more load processes would wait, too.
BUSY = HostFigures(2, 2, own=0.5, others=1.4, pressure=0.85, throttled=nan, load_1m=7.0)
CALM = HostFigures(2, 2, own=0.5, others=0.1, pressure=0.05, throttled=nan, load_1m=0.6)
SAID = "this machine is busy with other programs (CPU pressure 85%, load 7.0 on 2 cores, 1.4 cores"


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        (BUSY, SAID),
        (CALM, MORE_PROCESSES),
        (HostFigures(), MORE_PROCESSES),  # nothing is known: a folder of an older version
        # our own processes compete with each other: the cause is nobody else
        (replace(CALM, own=1.9, others=0.05, pressure=0.9), "no core was idle: this client"),
        (replace(CALM, own=1.2, others=0.05, pressure=0.3), MORE_PROCESSES),
        # bound to two cores of many, as by the command taskset
        (replace(CALM, own=1.9, machine_cores=64), "no core was idle: this client and what it sta"),
        (replace(CALM, own=1.2, machine_cores=64), MORE_PROCESSES),
        # other programs use much of a machine with idle cores, for which nobody waits
        (replace(BUSY, machine_cores=64, others=20, pressure=0.01), MORE_PROCESSES),
        (replace(BUSY, machine_cores=64, others=60, pressure=0.5), "this machine is busy with"),
        # without pressure in the kernel, more programs than cores
        (replace(BUSY, pressure=nan), "this machine is busy with other programs (load 7.0 on 2"),
        (replace(BUSY, pressure=nan, load_1m=1.0, others=0.6), MORE_PROCESSES),
        # a container's own limit, whatever else the machine does
        (
            replace(BUSY, cores=0.5, throttled=0.3),
            "the CPU limit of 0.5 cores throttled the client 30%",
        ),
        (replace(CALM, cores=1, throttled=0.01), MORE_PROCESSES),
        # 30 ms of work each second, of which a limit of 13 ms in 100 ms makes 204 ms: far below
        # the limit on average, and stopped for 174 ms all the same
        (
            replace(CALM, cores=0.13, own=0.03, throttled=0.174),
            "the CPU limit of 0.13 cores throttled",
        ),
    ],
)
def test_the_remedy_is_the_causes(seen: HostFigures, want: str) -> None:
    """More processes only where a core is idle for them."""
    said = remedy(seen)
    assert said.startswith(want)
    assert ("--processes" in said) is (want == MORE_PROCESSES)


def reading(
    second: int, *, used_s: float, own_s: float, waited_s: float, load: float
) -> HostSample:
    """A machine of two cores, with what its counters grew by."""
    return HostSample(
        at_ns=second * SECOND,
        cores=2,
        machine_cores=2,
        cpu_s=1_000 + used_s,
        own_cpu_s=10 + own_s,
        waited_s=500 + waited_s,
        load_1m=load,
    )


def test_the_window_of_a_level() -> None:
    """Differences of counters: 4 s in which all programs used 7 s of CPU, of which 1 s was ours."""
    readings = [
        reading(0, used_s=0, own_s=0, waited_s=0, load=1.0),
        reading(10, used_s=5, own_s=2, waited_s=1, load=2.0),
        reading(12, used_s=9, own_s=2.5, waited_s=2.5, load=6.0),
        reading(14, used_s=12, own_s=3, waited_s=4, load=7.0),
        reading(20, used_s=12, own_s=3, waited_s=4, load=5.0),
    ]
    got = host_figures(readings, 10 * SECOND, 15 * SECOND)
    want = HostFigures(2, 2, own=0.25, others=1.5, pressure=0.75, throttled=nan, load_1m=7.0)
    assert repr(got) == repr(want)  # NaN differs from itself
    assert repr(host_figures(readings[:1], 0, SECOND)) == repr(HostFigures())


@pytest.mark.parametrize(("stopped_s", "want"), [(nan, nan), (0.5, 0.25), (6.0, 1.0)])
def test_the_time_of_a_limit(stopped_s: float, want: float) -> None:
    """Of 2 s; three cores that were denied for all of it count 6 s, and are 100% of the time."""
    readings = [HostSample(at_ns=0, stopped_s=0.0), HostSample(2 * SECOND, stopped_s=stopped_s)]
    assert host_figures(readings, 0, 2 * SECOND).throttled == pytest.approx(want, nan_ok=True)


PRESSURE = """some avg10=73.66 avg60=76.78 avg300=43.31 total=211102507
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""


def test_the_kernels_words() -> None:
    """Shares and microseconds of /proc/pressure/cpu; an older kernel has no such file."""
    assert waited_s(PRESSURE) == 211.102507
    assert recent_pressure(PRESSURE) == pytest.approx(0.7366)
    assert isnan(waited_s(""))
    assert isnan(recent_pressure(""))


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        (HostFigures(machine_cores=2, pressure=0.85, load_1m=7), Severity.warn),
        (HostFigures(machine_cores=2, pressure=0.05, load_1m=7), Severity.ok),
        (HostFigures(machine_cores=2, load_1m=7), Severity.warn),
        (HostFigures(machine_cores=2, load_1m=1), Severity.ok),
    ],
)
def test_doctor_says_that_the_machine_is_busy(seen: HostFigures, want: Severity) -> None:
    """With what the kernel says, and the remedy."""
    found = judge_programs(seen)
    assert found.level == want
    assert bool(found.remedy) == (want is Severity.warn)
    assert f"load {seen.load_1m:.1f} on 2 cores" in found.what
