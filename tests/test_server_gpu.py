"""GPUs: an H200's recorded readings, a dcgm-exporter's text over a socket, and machines without."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path

import psutil
import pytest
from little_servers import http, little_server
from recorded_nvml import Recorded
from study_process import wait_for

from harness.diagnosis.gpu_window import gpu_figures
from harness.errors import ConfigError, RunFolderError, ServerUnreachable
from harness.metrics.level_figures import GpuFigures
from harness.records.samples import GpuSample
from harness.run import checks
from harness.server.address import Address
from harness.server.gpu import (
    GpuInfo,
    GpuReadings,
    NoGpu,
    NvmlGpus,
    local_gpus,
    open_gpus,
    visible_gpus,
)
from harness.wire.gpu_pages import GpuKey, gpu_labels, gpu_samples

H200 = GpuInfo(0, "NVIDIA H200", 143771.0, "580.159.04", "GPU-12345678")
# names, labels and units as dcgm-exporter 4 writes them; two GPUs, of which one has no energy
DCGM = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA L4"} 2040
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aaaaaaaa-bbbb",device="nvidia0",modelName="NVIDIA L4"} 1500
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aaaaaaaa-bbbb",device="nvidia0",modelName="NVIDIA L4"} 97
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aaaaaaaa-bbbb",device="nvidia0",modelName="NVIDIA L4"} 71
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aaaaaaaa-bbbb",modelName="NVIDIA L4"} 71.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aaaaaaaa-bbbb"} 5000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-b"} 9223372036854775794
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aaaaaaaa-bbbb",DCGM_FI_DRIVER_VERSION="580.65"} 20000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aaaaaaaa-bbbb",DCGM_FI_DRIVER_VERSION="580.65"} 2500
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-aaaaaaaa-bbbb"} 36
DCGM_FI_PROF_PCIE_RX_BYTES{gpu="0",UUID="GPU-aaaaaaaa-bbbb"} 2500000
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-aaaaaaaa-bbbb",err_msg="No Error"} 0
go_goroutines 12
"""
MIG = (Path(__file__).parent / "data" / "gpu-pages" / "dcgm_mig.txt").read_text()
HERE = Address.parse("http://127.0.0.1:8000")
NEARBY = Address.parse("http://10.0.0.7:8000")


def test_an_h200_under_load() -> None:
    """Each figure in our units; PCIe from the byte counters, a reading after the first."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    assert [GpuInfo.of(said) for said in source.gpus()] == [H200]
    first = source.read(nvml.go_to(0))[0]
    second = source.read(nvml.go_to(2))[0]
    third = source.read(nvml.go_to(3))[0]
    assert (isnan(first.pcie_rx_mb_per_s), first.throttled) == (True, ())  # idle is no throttling
    # from 2 to 3: 1.045,749,862 s, 16,232,516 bytes received and 245,743,808 sent
    assert asdict(third) == {
        "at_ns": 33423796162,
        "gpu": 0,
        "util_pct": 99.0,
        "memory_util_pct": 23.0,
        "memory_used_mib": 1704853504 / 2**20,
        "power_w": 692.465,
        "energy_j": 4806.272,
        "sm_clock_mhz": 1440.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 59.0,
        "pcie_rx_mb_per_s": pytest.approx(15.522, abs=1e-3),
        "pcie_tx_mb_per_s": pytest.approx(234.993, abs=1e-3),
        "throttled": ("power cap",),
    }
    without_pcie = {"pcie_rx_mb_per_s": 0, "pcie_tx_mb_per_s": 0}
    assert asdict(gpu_figures([second, third], 1000.0)) | without_pcie == {
        "gpus": 1,
        "samples": 2,
        "util_pct_mean": 99.0,
        "memory_util_pct_mean": 23.0,
        "memory_used_mib_max": 1625.875,
        "power_w": 724.5891,  # 757.739 J in that time
        "j_per_output_token": 0.7246,
        "sm_clock_mhz_min": 1440.0,
        "sm_clock_mhz_mean": 1447.5,
        "sm_clock_mhz_max": 1455.0,
        "temperature_c_max": 59.0,
        "throttled_share": 1.0,
        "pcie_rx_mb_per_s": 0,
        "pcie_tx_mb_per_s": 0,
        "throttled": "power cap 100%",
    }
    source.close()
    assert nvml.inits == 0


@pytest.mark.parametrize(
    ("users", "lacks", "want"),
    [
        ((), (), [0, 1, 2]),  # nobody was asked for
        ((41,), (), [1]),
        ((41, 43), (), [1, 2]),  # tensor parallel
        ((99,), (), [0, 1, 2]),  # a container that hides who computes
        ((41,), ("nvmlDeviceGetComputeRunningProcesses",), [0, 1, 2]),
    ],
)
def test_only_the_gpus_of_the_server(
    users: tuple[int, ...], lacks: tuple[str, ...], want: list[int]
) -> None:
    """On a machine of three GPUs, figures are of those that the server computes on."""
    nvml = Recorded(devices=3, lacks=lacks, users={40: 0, 41: 1, 43: 2})
    source = NvmlGpus.open(nvml, users)
    assert [one["index"] for one in source.gpus()] == want
    assert [one.gpu for one in source.read(0)] == want


@pytest.mark.parametrize(
    ("visible", "want", "of_server"),
    [
        ((), [0, 1, 2], False),
        (("2",), [2], True),
        (("0", "1"), [0, 1], True),  # one of each data-parallel engine
        (("7",), [0, 1, 2], False),  # numbered otherwise
    ],
)
def test_gpus_that_a_container_hides(
    visible: tuple[str, ...], want: list[int], of_server: bool
) -> None:
    """Those that the server was given, where nobody is seen to compute."""
    nvml = Recorded(devices=3, users={40: 0})
    source = NvmlGpus.open(nvml, users=(99,), visible=visible)
    assert ([one["index"] for one in source.gpus()], source.of_server) == (want, of_server)


def test_the_gpus_that_processes_were_given() -> None:
    """As CUDA_VISIBLE_DEVICES of a real process has them; none where it is not set."""
    names = {"CUDA_VISIBLE_DEVICES": "1, GPU-6fee"}
    with subprocess.Popen(["sleep", "60"], env=os.environ | names) as process:
        started = psutil.Process(process.pid)
        wait_for(started.environ)  # Linux shows none while the program is being loaded
        given = visible_gpus([started])
        process.kill()
    assert given == {"1", "GPU-6fee"}
    assert visible_gpus([]) == set()


def test_pcie_counters_wrap() -> None:
    """They are 32 bits wide: 3.3e9 down to 2e8 is 1.2e9 more."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    source.read(nvml.go_to(3))
    nvml.reading = nvml.reading | {"rx": 200_000_000, "tx": nvml.reading["tx"]}
    got = source.read(33423796162 + 10**9)[0]
    assert got.pcie_rx_mb_per_s == pytest.approx((2**32 + 200_000_000 - 3281134800) / 1e6)
    assert got.pcie_tx_mb_per_s == 0.0


@pytest.mark.parametrize(
    ("lacks", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "util_pct"),  # a GPU cut into instances
        ("nvmlDeviceGetMemoryInfo", "memory_used_mib"),  # memory shared with the CPU
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_j"),  # older than Volta
        ("nvmlDeviceGetFieldValues", "pcie_rx_mb_per_s"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
    ],
)
def test_what_a_gpu_does_not_show(lacks: str, field: str) -> None:
    """It is NaN, in the summary nothing; the rest is read."""
    nvml = Recorded(lacks=(lacks,))
    source = NvmlGpus.open(nvml)
    samples = [source.read(nvml.go_to(i))[0] for i in (1, 2)]
    assert isnan(getattr(samples[-1], field))
    assert samples[-1].sm_clock_mhz == 1455.0
    assert gpu_figures(samples).sm_clock_mhz_min == 1455.0


def test_power_without_an_energy_counter() -> None:
    """The mean of the power readings then: (614.514 + 687.804) / 2."""
    nvml = Recorded(lacks=("nvmlDeviceGetTotalEnergyConsumption",))
    source = NvmlGpus.open(nvml)
    samples = [source.read(nvml.go_to(i))[0] for i in (1, 2)]
    assert gpu_figures(samples).power_w == 651.159


@pytest.mark.parametrize(
    ("lacks", "want"),
    [
        (("nvmlDeviceGetCurrentClocksEventReasons",), ("power cap",)),  # an older driver
        (
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            None,
        ),
    ],
)
def test_throttle_reasons_by_either_name(lacks: tuple[str, ...], want: object) -> None:
    """The newer call, else the older, else it is not known."""
    nvml = Recorded(lacks=lacks)
    source = NvmlGpus.open(nvml)
    sample = source.read(nvml.go_to(1))[0]
    assert sample.throttled == want


def test_no_gpu_here() -> None:
    """The real NVML on a machine without one, and a driver that sees none: a sentence."""
    got = local_gpus()
    if got.source is not None:
        pytest.skip("there is a GPU here")
    assert got.why.startswith("no GPU here (")
    with pytest.raises(NoGpu, match=r"no GPU here \(NVIDIA's driver sees none\)"):
        NvmlGpus.open(Recorded(devices=0))


@pytest.mark.parametrize(
    ("choice", "server", "want"),
    [
        ("none", HERE, GpuReadings("none", why="GPUs were not read (--gpu-metrics none)")),
        (None, None, GpuReadings("none", why="no GPU here (the embedded engine needs none)")),
        (
            None,
            NEARBY,
            GpuReadings(
                "none",
                why="the server's GPUs are elsewhere (--gpu-metrics URL reads an exporter's)",
            ),
        ),
    ],
)
def test_where_nothing_is_read(
    choice: str | None, server: Address | None, want: GpuReadings
) -> None:
    """And why, in words for the report."""
    assert open_gpus(choice, [server] if server else []) == want


def without(label: str, page: str) -> str:
    """A page whose lines lack a label."""
    return re.sub(rf',{label}="[^"]*"', "", page)


def without_lines(word: str, page: str) -> str:
    """A page without the lines that have a word."""
    return "".join(line for line in page.splitlines(keepends=True) if word not in line)


def two_hosts(page: str) -> str:
    """The page of h1, and the same of h2 with another GPU and more of all."""
    other = page.replace("GPU-cccc", "GPU-dddd").replace('"h1"', '"h2"')
    return page + re.sub(r"\b120.5", "300", other)


WHOLE = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-cccc",Hostname="h1"} 18100
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-cccc",Hostname="h1"} 22400
"""
TOTAL = 'DCGM_FI_DEV_FB_TOTAL{gpu="0",UUID="GPU-cccc",Hostname="h1"} 40960\n'
SHARED = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="h1",container="vllm",pod="p1"} 9000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="h1",container="other",pod="p2"} 9000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",Hostname="h1",container="vllm",pod="p1"} 1000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",Hostname="h1",container="other",pod="p2"} 1000
"""


@pytest.mark.parametrize(
    ("page", "want"),
    [
        # index -> memory in MiB, of it used, and power: two instances of 20,000 MiB each
        (MIG, {0: (40_000, 18_000, 120.5)}),
        (MIG + MIG, {0: (40_000, 18_000, 120.5)}),
        (MIG + WHOLE, {0: (40_500, 18_100, 120.5)}),  # the GPU has a line of its own
        (two_hosts(MIG), {0: (40_000, 18_000, 120.5), 1: (40_000, 18_000, 300)}),
        (
            without("Hostname", two_hosts(MIG)),
            {0: (40_000, 18_000, 120.5), 1: (40_000, 18_000, 300)},
        ),
        (without("UUID", two_hosts(MIG)), {0: (40_000, 18_000, 120.5), 1: (40_000, 18_000, 300)}),
        (SHARED, {0: (10_000, 9_000, None)}),
        (without_lines("FB_FREE", WHOLE), {0: (0, 18_100, None)}),  # not exported: not known
        (without_lines("FB_FREE", WHOLE) + TOTAL, {0: (40_960, 18_100, None)}),
    ],
    ids=[
        "MIG",
        "doubled",
        "MIG and the GPU",
        "two hosts",
        "by UUID",
        "by host",
        "containers",
        "without the free",
        "with the total",
    ],
)
def test_the_gpus_of_a_page(page: str, want: dict[int, tuple[float, float, float | None]]) -> None:
    """What belongs to one GPU is one; memory is the whole GPU's, used and free together."""
    memory = {gpu["index"]: gpu["memory_mib"] for gpu in gpu_labels(page)}
    got = {}
    for one in gpu_samples(page, 7):
        power_w = None if isnan(one.power_w) else one.power_w
        got[one.gpu] = (memory[one.gpu], one.memory_used_mib, power_w)
    assert got == want
    assert all(isnan(one.util_pct) for one in gpu_samples(page, 7))  # blank in MIG mode


def test_a_host_that_is_gone_for_a_page() -> None:
    """The other host's GPU keeps its number, so that its energy does not jump."""
    numbers: dict[GpuKey, int] = {}
    both = two_hosts(MIG)
    assert [one.gpu for one in gpu_samples(both, 1, numbers)] == [0, 1]
    second = "".join(line for line in both.splitlines(keepends=True) if '"h2"' in line)
    (left,) = gpu_samples(second, 2, numbers)
    assert left.gpu == 1
    assert left.power_w == 300


def test_memory_that_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that shares the CPU's memory: unknown, never `nan`."""
    source = NvmlGpus.open(Recorded(lacks=("nvmlDeviceGetMemoryInfo",)))
    found = tuple(map(GpuInfo.of, source.gpus()))
    assert found == (replace(H200, memory_mib=0.0),)
    monkeypatch.setattr(checks, "local_gpus", lambda: GpuReadings("local", found, source))
    assert checks.gpu().what == "NVIDIA H200, memory unknown, driver 580.159.04"


def test_nvml_is_closed_where_a_run_is_refused() -> None:
    """A run that begins closes it at its end."""
    nvml = Recorded()
    readings = GpuReadings("local", source=NvmlGpus.open(nvml))
    with readings.closed_if_refused():
        pass
    assert nvml.inits == 1
    with pytest.raises(RunFolderError), readings.closed_if_refused():
        raise RunFolderError("the folder is not empty")
    assert nvml.inits == 0


@pytest.mark.parametrize("path", ["", "/metrics", "/metrics/"])
def test_a_dcgm_exporter(path: str) -> None:
    """Over a real socket: units, blanks, labels; asked again and again."""
    with little_server(lambda _path, _body: http(DCGM.encode(), kind="text/plain")) as server:
        found = open_gpus(f"http://127.0.0.1:{server.port}{path}", [NEARBY])
        assert found.source is not None
        samples = found.source.read(7)
        asked = server.paths
        found.source.close()
    first = GpuInfo(0, "NVIDIA L4", 22500.0, "580.65", "GPU-aaaaaaaa")
    second = GpuInfo(1, "NVIDIA L4", 0.0, "", "GPU-b")
    assert found.found == (first, second)
    assert repr(samples) == repr(
        [
            GpuSample(
                7,
                0,
                util_pct=97.0,
                memory_used_mib=20000.0,
                power_w=71.5,
                energy_j=5.0,
                sm_clock_mhz=1500.0,
                temperature_c=71.0,
                pcie_rx_mb_per_s=2.5,
                throttled=("power cap", "heat (software)"),
            ),
            GpuSample(7, 1, sm_clock_mhz=2040.0, throttled=None),
        ]
    )
    assert asked == ["/metrics", "/metrics"]
    assert found.source.read(8) == []  # the exporter is gone: the run goes on


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (
            "EXPORTER",
            ConfigError,
            ("this `vllm-harness exporter` sees no GPU on its machine", "--gpu-metrics none"),
        ),
        ("PORT", ConfigError, ("shows no GPU", "dcgm-exporter", "--gpu-metrics none")),
        (
            "http://127.0.0.1:1",
            ServerUnreachable,
            (
                "--gpu-metrics is http://127.0.0.1:1",
                "Connection refused",
                "`vllm-harness exporter`",
                "try `curl http://127.0.0.1:1/metrics`, or --gpu-metrics none",
            ),
        ),
        ("h200", ConfigError, ("--gpu-metrics is 'h200'", "local, none or the URL")),
    ],
)
def test_an_exporter_that_is_none(url: str, error: type[Exception], words: tuple[str, ...]) -> None:
    """It was asked for by name, so it is said before any load."""
    page = b"harness_target_up 1\n" if url == "EXPORTER" else b"go_goroutines 12\n"
    with little_server(lambda _path, _body: http(page)) as server:
        target = url if ":" in url or url == "h200" else f"http://127.0.0.1:{server.port}"
        with pytest.raises(error) as caught:
            open_gpus(target, [HERE])
    assert [word for word in words if word not in str(caught.value)] == []
    assert "vLLM server" not in str(caught.value)


def reading(at_s: int, gpu: int) -> GpuSample:
    """The second GPU is busier, hotter and, from 1 s on, held down."""
    is_throttled = gpu == 1 and at_s > 0
    return GpuSample(
        at_s * 10**9,
        gpu,
        util_pct=50.0 + 50 * gpu,
        memory_used_mib=1000.0 * (gpu + at_s),
        energy_j=100.0 * at_s * (gpu + 1),
        sm_clock_mhz=1000.0 - gpu - at_s,
        temperature_c=50.0 + gpu,
        throttled=("power cap",) if is_throttled else (),
    )


def test_two_gpus_in_one_window() -> None:
    """Power and memory add up, utilisation is the mean, clocks and heat the worst."""
    samples = []
    for at_s in (0, 1, 2):
        samples += [reading(at_s, 0), reading(at_s, 1)]
    got = gpu_figures(samples, 150.0)
    assert got.gpus == 2
    assert got.samples == 6
    assert got.util_pct_mean == 75.0
    assert got.memory_used_mib_max == 5000.0  # 2000 and 3000
    assert (got.power_w, got.j_per_output_token) == (300.0, 2.0)  # 100 and 200 W
    assert got.sm_clock_mhz_min == 997.0
    assert got.temperature_c_max == 51.0
    assert got.throttled == "power cap 33%"
    assert isnan(got.pcie_rx_mb_per_s)
    assert gpu_figures([]) == GpuFigures()
