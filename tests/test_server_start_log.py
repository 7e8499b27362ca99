"""What is read from vLLM's own logs, recorded: 0.32 on a CPU, 0.26 on an H200."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.lifecycle.start_log import SeenLine, StartLog, read_start_log, why_it_failed

DATA = Path(__file__).with_name("data")
FIRST_S = 8.0  # from the start of the process to its first line, here


def seen(name: str) -> list[SeenLine]:
    """The lines of a recorded log, at their own times; GPU memory grows by 1 MiB per second."""
    lines = []
    at_s = FIRST_S
    begin = None
    for text in (DATA / name).read_text().splitlines():
        if found := re.search(r"-\d\d (\d\d):(\d\d):(\d\d) \[", text):
            parts = zip(found.groups(), (3600, 60, 1), strict=True)
            now = sum(int(n) * unit for n, unit in parts)
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
         (2_097_152, 1024.0), {"engine initialized, s": 1.14, "KV cache, GiB": 1.0}),
        ("vllm_start_h200.log", H200_PHASES, ("0.26.0", "cuda"),
         (539_760, 16.47),
         {"model loaded, s": 3.449949, "model loaded, GiB": 2.98, "compilation, s": 24.64,
          "graphs captured, s": 1.0, "graphs captured, GiB": 0.14, "engine initialized, s": 129.27,
          "KV cache, GiB": 14.41}),
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
    assert (got.kv_tokens, got.max_concurrency) == figures
    assert got.reported == reported
    assert got.flags["load_format"] == "dummy"


def test_a_log_without_a_known_line() -> None:
    """Nothing is guessed: all of the time is in one phase."""
    got = read_start_log([SeenLine(1.0, "hello"), SeenLine(2.5, "ready")])
    assert got == StartLog(phases_s={"API server": 2.5}, gpu_mib={"API server": 0.0})


def test_flags_without_secrets() -> None:
    """A log of an older vLLM has the API key."""
    line = "INFO [x.py:1] non-default args: {'api_key': 'sesame', 'port': 1}"
    log = read_start_log([SeenLine(1.0, line)])
    assert log.flags == {"api_key": "[redacted]", "port": 1}


COLORED = "\x1b[1;36m(EngineCore_DP0 pid=272)\x1b[0;0m "  # as vLLM 0.11 to 0.15 write


def started_by(last: str) -> list[SeenLine]:
    """A start of 20 s whose last line but one is `last`."""
    return [
        SeenLine(1.0, f"{COLORED}INFO 11-22 21:17:19 [x.py:1] non-default args: {{'port': 1}}"),
        SeenLine(3.0, f"{COLORED}INFO 11-22 21:17:29 [core.py:77] Initializing a V1 LLM engine"),
        SeenLine(9.0, f"{COLORED}INFO 11-22 21:17:30 [kv_cache_utils.py:7] KV cache size: 1,024 "),
        SeenLine(9.5, f"{COLORED}INFO 11-22 21:17:30 [core.py:4] init engine (profile) took 1.0 s"),
        SeenLine(19.0, COLORED + last),
        SeenLine(20.0, "ready"),
    ]


@pytest.mark.parametrize(
    ("last", "phases", "compiled_s"),
    [
        # 0.18 to 0.26 write it twice in an --enforce-eager start, once at its end
        (
            "WARNING [vllm.py:892] Enforce eager set, disabling torch.compile and CUDAGraphs.",
            {
                "memory profiling, KV cache": 6.0,
                "warm-up": 0.5,
                "API server": 10.5,
            },
            None,
        ),
        # each version's word for the time that it took
        ("INFO [monitor.py:34] torch.compile takes 9.85 s in total", {"compile": 16.0}, 9.85),
        (
            "INFO [monitor.py:35] torch.compile and initial profiling run took 29.93 s in total",
            {"compile": 16.0},
            29.93,
        ),
        (
            "INFO torch.compile and initial profiling/warmup run together took 24.70 s in total",
            {"compile": 16.0},
            24.7,
        ),
    ],
)
def test_the_compile_phase(last: str, phases: dict[str, float], compiled_s: float | None) -> None:
    """It is there only in a start that compiled."""
    got = read_start_log(started_by(last))
    first = {"process start and imports": 1.0, "configuration, engine process": 2.0}
    end = {"API server": 1.0} if compiled_s else {}
    assert dict(got.phases_s) == first | phases | end
    assert got.reported.get("compilation, s") == compiled_s
    assert got.flags == {"port": 1}


DIED = """\
(APIServer pid=716) WARNING 11-22 21:11:53 [system_utils.py:299] Errors like `OSError: [Errno 24]`
(EngineCore pid=1196) ERROR 11-22 21:13:14 [core.py:1330]     raise ValueError(
(EngineCore pid=1196) ERROR 11-22 21:13:14 [core.py:1330] ValueError: To serve at least one request
(APIServer pid=716) RuntimeError: Engine core initialization failed. See root cause above.
"""
# vLLM 0.10 to 0.15, by public reports
PYDANTIC = """\
(APIServer pid=29)     s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs))
(APIServer pid=29) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=29)   Value error, Expecting value: line 1 column 1 [type=value_error, input_value=A]
(APIServer pid=29)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
FIELD = """\
pydantic_core._pydantic_core.ValidationError: 2 validation errors for SchedulerConfig
max_num_seqs
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]
"""
MEMORY = f"{COLORED}ERROR 11-22 21:13:14 [core.py:708] torch.OutOfMemoryError: CUDA out of memory."
TWO_ERRORS = "ValidationError: 2 validation errors for SchedulerConfig"
CAUSE = "ValidationError: 1 validation error for ModelConfig: Value error, Expecting value: line 1"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        # the root cause comes long before the last line (as vLLM 0.26 wrote it on an H200)
        (DIED, "ValueError: To serve at least one request"),
        (PYDANTIC, f"{CAUSE} column 1"),
        (
            PYDANTIC.replace("(APIServer pid=29)", "\x1b[1;36m(APIServer pid=29)\x1b[0;0m"),
            f"{CAUSE} column 1",
        ),
        (FIELD, f"{TWO_ERRORS}: max_num_seqs: Input should be greater than or equal to 1"),
        (MEMORY, "OutOfMemoryError: CUDA out of memory."),
        ("ValidationError: 1 validation error for X", "ValidationError: 1 validation error for X"),
        (re.sub("^", "vllm-1  | ", PYDANTIC, flags=re.MULTILINE), f"{CAUSE} column 1"),  # Compose
        ("OSError is a word\n", ""),
    ],
)
def test_why_it_failed(text: str, want: str) -> None:
    """The first error, in whatever module and color, and what pydantic says of it."""
    assert why_it_failed(text) == want
