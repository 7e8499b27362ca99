"""What is read from vLLM's own logs, recorded: 0.32 on a CPU, 0.26 on an H200."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.server.start_log import SeenLine, StartLog, read_start_log

DATA = Path(__file__).with_name("data")
FIRST_S = 8.0  # from the start of the process to its first line, here


def seen(name: str) -> list[SeenLine]:
    """The lines of a recorded log, at their own times; GPU memory grows by 1 MiB per second."""
    lines, at_s, begin = [], FIRST_S, None
    for text in (DATA / name).read_text().splitlines():
        if found := re.search(r"-\d\d (\d\d):(\d\d):(\d\d) \[", text):
            now = sum(int(n) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True))
            begin = now if begin is None else begin
            at_s = FIRST_S + now - begin
        lines.append(SeenLine(at_s, text, 100 + at_s))
    return [*lines, SeenLine(at_s + 1, "ready", 101 + at_s)]


CPU_PHASES = {
    "process start and imports": 8.0,
    "configuration, engine process": 10.0,  # 21:17:19 to 21:17:29
    "device and workers": 11.0,
    "memory profiling, KV cache": 1.0,
    "warm-up": 1.0,
    "API server": 2.0,
}
H200_PHASES = {
    "process start and imports": 8.0,
    "configuration, engine process": 45.0,  # 21:11:52 to 21:12:37
    "device and workers": 4.0,
    "weights": 3.0,
    "compile": 25.0,
    "memory profiling, KV cache": 3.0,
    "graph capture": 1.0,
    "warm-up": 100.0,  # 21:13:13 to 21:14:53
    "API server": 3.0,
}


@pytest.mark.parametrize(
    ("name", "phases", "device", "figures", "reported"),
    [
        ("vllm_start_cpu.log", CPU_PHASES, ("0.32.0", "cpu"),
         (2_097_152, 1024.0, 1.0, None, None), {"engine initialized": 1.14}),
        ("vllm_start_h200.log", H200_PHASES, ("0.26.0", "cuda"),
         (539_760, 16.47, 14.41, 2.98, 0.14),
         {"model loaded": 3.449949, "compilation": 24.64, "graphs captured": 1.0,
          "engine initialized": 129.27}),
    ],
)  # fmt: skip
def test_recorded_logs(
    name: str,
    phases: dict[str, float],
    device: tuple[str, str],
    figures: tuple[float | None, ...],
    reported: dict[str, float],
) -> None:
    """Phases follow each other and add up to the time until the server was ready."""
    lines = seen(name)
    got = read_start_log(lines, before_mib=100.0)
    assert got.phases_s == phases
    assert sum(got.phases_s.values()) == lines[-1].at_s
    assert list(got.gpu_mib) == list(phases)
    assert got.gpu_mib["API server"] == lines[-1].at_s  # 1 MiB per second
    assert (got.version, got.device) == device
    assert (got.kv_tokens, got.max_concurrency, got.kv_gib, got.weights_gib, got.graphs_gib) == (
        figures
    )
    assert got.reported_s == reported
    assert got.flags["load_format"] == "dummy"


def test_a_log_without_a_known_line() -> None:
    """Nothing is guessed: all of the time is in one phase."""
    got = read_start_log([SeenLine(1.0, "hello"), SeenLine(2.5, "ready")])
    assert got == StartLog(phases_s={"API server": 2.5}, gpu_mib={"API server": 0.0})


def test_flags_without_secrets() -> None:
    """A log of an older vLLM has the API key."""
    line = "INFO [x.py:1] non-default args: {'api_key': 'sesame', 'port': 1}"
    assert read_start_log([SeenLine(1.0, line)]).flags == {"api_key": "[redacted]", "port": 1}
