"""A CPU quota: what cgroup 2 and 1 say of it, when it matters, and a real one."""

from __future__ import annotations

import json
import time
from math import inf, nan
from typing import TYPE_CHECKING, Final

import pytest
from compose import wait_for
from test_image import IMAGE, READ_ONLY, docker, image  # noqa: F401 - `image` is a fixture

from harness.diagnosis.client_host import (
    THROTTLED_SHARE,
    HostFigures,
    throttled_sentence,
    throttled_text,
    with_load_processes,
)
from harness.metrics.slo import Slo
from harness.reader.cpu_limit import CpuLimit, read_cpu_limit
from harness.records.samples import ClientSample
from harness.run.checks import Severity, check_throttling
from harness.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

# Recorded on Linux 6.18: a loop for 3 s in a group of cgroup 2 with `cpu.max` of QUOTA_2.
STAT_2: Final = """usage_usec 602544
user_usec 602544
system_usec 0
nice_usec 0
nr_periods 31
nr_throttled 30
throttled_usec 2393067
nr_bursts 0
burst_usec 0
"""
# Recorded in a container with `--cpus 0.1` on cgroup 1, in nanoseconds.
STAT_1: Final = """nr_periods 44
nr_throttled 42
throttled_time 2913977000
nr_bursts 0
burst_time 0
"""
CPU_QUOTA_1: Final = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
IN_2, IN_1 = "0::{}\n", "4:memory:/m\n3:cpu,cpuacct:{}\n0::/\n"
QUOTA_2: Final = {"cpu.max": "20000 100000\n", "cpu.stat": STAT_2}
NO_QUOTA_2: Final = {"cpu.max": "max 100000\n", "cpu.stat": STAT_2}
QUOTA_1: Final = {
    "cpu.cfs_quota_us": "50000\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.stat": STAT_1,
}
NO_QUOTA_1: Final = QUOTA_1 | {"cpu.cfs_quota_us": "-1\n"}
OUTER_2: Final = {"cpu.max": "10000 100000\n", "cpu.stat": "nr_periods 9\nthrottled_usec 500000\n"}
STOPPED_2: Final = CpuLimit(0.2, 2.393067)
STOPPED_1: Final = CpuLimit(0.5, 2.913977)


@pytest.mark.parametrize(
    ("own", "groups", "want"),
    [
        (IN_2.format("/"), {"": QUOTA_2}, STOPPED_2),  # a container with a name space of its own
        (IN_2.format("/docker/1f"), {"": QUOTA_2}, STOPPED_2),  # one that sees its name outside
        (IN_2.format("/a/b"), {"": {}, "a": NO_QUOTA_2, "a/b": QUOTA_2}, STOPPED_2),
        # a tighter limit around it, which has stopped it for half a second besides
        (IN_2.format("/a/b"), {"a": OUTER_2, "a/b": QUOTA_2}, CpuLimit(0.1, 2.893067)),
        (IN_2.format("/a/b"), {"": {}, "a": NO_QUOTA_2, "a/b": NO_QUOTA_2}, CpuLimit(inf, nan)),
        (IN_1.format("/"), {"cpu,cpuacct": QUOTA_1}, STOPPED_1),
        (IN_1.format("/docker/1f"), {"cpu": QUOTA_1}, STOPPED_1),
        (IN_1.format("/k"), {"cpu,cpuacct": NO_QUOTA_1, "cpu,cpuacct/k": QUOTA_1}, STOPPED_1),
        (IN_1.format("/"), {"cpu,cpuacct": NO_QUOTA_1}, CpuLimit(inf, nan)),
        ("", {}, CpuLimit(inf, nan)),  # another system
    ],
)
def test_what_the_kernel_says(tmp_path: Path, own: str, groups: dict, want: CpuLimit) -> None:
    """The tightest limit of those around us, and for how long all of them stopped us."""
    (tmp_path / "own").write_text(own)
    for group, files in groups.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "groups" / group / name).write_text(text)
    got = read_cpu_limit(tmp_path / "groups", tmp_path / "own")
    assert (got.cores, got.throttled_s) == pytest.approx(
        (want.cores, want.throttled_s), nan_ok=True
    )


@pytest.mark.parametrize(
    ("throttled", "slos", "says"),
    [
        (0.12, "", "throttled the client 12% of the time"),
        (0.04, "", ""),
        (nan, "", ""),
        (0.02, "ttft_p95=1s", ""),
        (0.02, "ttft_p99=1s", "expected less than 0.01 of it"),  # late with 2% moves a p99
        (0.02, "ttft_p95=1s itl_p99=1s", "expected less than 0.01 of it"),
        (0.06, "ttft_p90=1s", ""),
        (0.12, "ttft_p90=1s", "expected less than 0.1 of it"),
    ],
)
def test_when_it_matters(throttled: float, slos: str, says: str) -> None:
    """From the share on that the quantile leaves above it."""
    host = HostFigures(cores=0.5, throttled=throttled)
    said = throttled_sentence(host, [Slo.parse(text) for text in slos.split()])
    assert (bool(said), says in said) == (bool(says), True)


def sample(second: int, throttled_s: float, process: str = "worker 0") -> ClientSample:
    return ClientSample(second * SECOND, process, 0.0, throttled_s=throttled_s)


@pytest.mark.parametrize(
    ("samples", "machine", "want"),
    [
        ([sample(0, 1.0), sample(4, 1.5)], nan, 0.125),
        # the worst of all pods, and of this machine
        (
            [sample(0, 0), sample(4, 1), sample(0, 0, "worker 1"), sample(4, 2, "worker 1")],
            nan,
            0.5,
        ),
        ([sample(0, 1.0), sample(4, 1.5)], 0.25, 0.25),
        ([sample(0, nan), sample(4, nan)], nan, nan),
        ([sample(4, 1.5)], nan, nan),
        ([sample(0, 0), sample(4, 0), sample(90, 30)], nan, 0.0),  # after the window
        ([sample(0, 0), sample(4, 9)], nan, 1.0),  # of several cores each is counted
    ],
)
def test_the_worst_load_process(samples, machine: float, want: float) -> None:
    """Whose pod may have a limit of its own."""
    got = with_load_processes(HostFigures(throttled=machine), samples, 0, 4 * SECOND)
    assert got.throttled == pytest.approx(want, nan_ok=True)


def test_the_words() -> None:
    """Of a pod elsewhere the limit itself is not known."""
    assert throttled_text(HostFigures(throttled=0.12)) == (
        "a CPU limit throttled the client 12% of the time"
    )
    slow = check_throttling(CpuLimit(0.5, 1.0), CpuLimit(0.5, 3.4), 20.0)
    assert (slow.level, slow.what) == (
        Severity.fail,
        "throttled 12% of the time by the limit of 0.5 cores",
    )


@pytest.mark.docker
def test_a_real_quota(image) -> None:  # noqa: F811 - the fixture
    """A thirtieth of a core while it measures: invalid with that reason; the share is a figure."""
    assert image
    run = "run --embedded --users 8 --duration 20s --quiet --json - --slo ttft_p95=5s"
    name = docker("run", "--detach", *READ_ONLY[1:], IMAGE, *run.split()).stdout.strip()
    try:
        # its start alone would take half a minute with such a quota
        # and a slow warm-up would outlast it: 40 KB of records are some 3 s of load
        records = ("exec", name, "find", "reports", "-name", "records*", "-size", "+80")
        wait_for(lambda: docker(*records).stdout)
        docker("update", "--cpus", "0.03", name)
        time.sleep(8)  # of 20: Docker may take some of them to set a quota
        checks = docker("exec", name, "cat", "/sys/fs/cgroup/cpu.max", CPU_QUOTA_1).stdout
        docker("update", "--cpus", "2", name)
        code = int(docker("wait", name).stdout)
        said = docker("logs", name)
    finally:
        docker("rm", "--force", "--volumes", name)
    result = json.loads(said.stdout)
    assert "3000" in checks  # microseconds of each 100 ms
    assert (code, result["status"]) == (5, "invalid"), said.stderr
    assert "throttled the client" in result["invalid_reason"]
    [level] = result["levels"]
    assert level["client"]["throttled_share"] > THROTTLED_SHARE
