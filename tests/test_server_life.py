"""vLLM's life: what it is started with, when it is ready, and that nothing of it is left."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from recorded_nvml import Recorded
from study_process import alive, descendants, wait_for

from harness.cli.app import main
from harness.cli.serve import PRESETS
from harness.errors import ConfigError, HarnessError, ServerUnreachable
from harness.lifecycle import vllm_start
from harness.lifecycle.vllm_start import StartOptions, command_line, started
from harness.records.samples import GpuSample
from harness.server.address import check_port, free_port
from harness.server.gpu import GpuReadings, NvmlGpus
from harness.server.model_config import context_limit, model_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.server.gpu import GpuSource

LITTLE = f"{sys.executable} {Path(__file__).with_name('little_vllm.py')}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder without weights."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    return folder


def cpu_info(folder: Path, features: str) -> Path:
    """What Linux says of a processor with these features."""
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: fpu {features}\n")
    return file


@pytest.fixture
def cpu_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A `vllm` whose own Python says that its version is a CPU build's, on a recent processor."""
    monkeypatch.setattr(vllm_start, "CPU_INFO", cpu_info(tmp_path, "sse2 avx2 avx512f"))
    python = tmp_path / "python"
    command = tmp_path / "vllm"
    python.write_text("#!/bin/sh\necho 0.32.0+cpu\n")
    command.write_text(f"#!{python}\n")
    for path in (python, command):
        path.chmod(0o755)
    return str(command)


@pytest.mark.parametrize(
    ("given", "weights", "flags", "notes"),
    [
        ((), False, "--load-format dummy --enforce-eager --max-model-len 2048 --dtype bfloat16", 4),
        ((), True, "--enforce-eager --max-model-len 2048 --dtype bfloat16", 3),
        (("--no-enforce-eager", "--dtype=float16", "--max_model_len", "512", "--load-format", "x"),
         False, "--no-enforce-eager --dtype=float16 --max_model_len 512 --load-format x", 0),
    ],
)  # fmt: skip
def test_what_is_added(
    model: Path, cpu_vllm: str, given: tuple[str, ...], weights: bool, flags: str, notes: int
) -> None:
    """A CPU build and a folder without weights get their flags, unless they were given."""
    if weights:
        (model / "model-00001-of-00001.safetensors").touch()
    command, said = command_line(StartOptions(cpu_vllm, model_dir=model, start_args=given), (), 8)
    host = "--host 127.0.0.1 --served-model-name tiny"
    assert " ".join(command) == f"{cpu_vllm} serve {model} {host} {flags} --port 8"
    assert len(said) == notes


@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ("sse2 avx2", "float32"),
        ("sse2 avx2 avx512f", "bfloat16"),
        ("sse2 avx512f avx512_bf16", "bfloat16"),
        ("asimd bf16", "bfloat16"),  # Arm
        (None, "bfloat16"),  # another system
    ],
)
def test_what_the_processor_computes_with(
    features: str | None,
    dtype: str,
    model: Path,
    cpu_vllm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Float32 where an x86 processor has no AVX-512."""
    file = tmp_path / "none"
    if features is not None:
        file = cpu_info(tmp_path, features)
    monkeypatch.setattr(vllm_start, "CPU_INFO", file)
    command, _ = command_line(StartOptions(cpu_vllm, model_dir=model), (), 8)
    assert command[command.index("--dtype") + 1] == dtype


def test_a_folder_with_a_blank_in_its_name(model: Path, cpu_vllm: str) -> None:
    """It is one argument, and so is the name that the server gives its model."""
    folder = model.rename(model.with_name("my model"))
    command, said = command_line(StartOptions(cpu_vllm, model_dir=folder), (), 8)
    assert command[2] == str(folder)
    assert command[command.index("--served-model-name") + 1] == "my model"
    assert said[1] == "--enforce-eager: a CPU build of vLLM"


def test_a_start_command_is_the_users_own(model: Path) -> None:
    """Of what no Python can be asked nothing is assumed; what is varied comes last."""
    options = StartOptions(start_command="env A=1 serve", model_dir=model, start_args=("--x", "1"))
    command, said = command_line(options, ("--x", "2"), 8)
    assert command == [
        "env",
        "A=1",
        "serve",
        str(model),
        "--host",
        "127.0.0.1",
        "--served-model-name",
        "tiny",
        "--load-format",
        "dummy",
        "--x",
        "1",
        "--x",
        "2",
        "--port",
        "8",
    ]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (StartOptions("/nowhere/vllm"), "'/nowhere/vllm' is no program.*in Compose or on another"),
        (StartOptions(start_command="'a b"), "is no program that can be run"),
        (StartOptions("/bin/true"), "no --model-dir was given"),
        (
            StartOptions("/bin/true", model_dir=Path("/nowhere")),
            "--model-dir is /nowhere: expected.*config.json",
        ),
        (StartOptions(start_command="true --api-key sesame"), "holds a secret.*VLLM_API_KEY"),
        (StartOptions(start_command="true", start_args=("--hf-token=abc",)), "holds a secret"),
    ],
)
def test_what_cannot_be_started(
    options: StartOptions, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, before anything is started."""
    monkeypatch.delenv("HARNESS_VLLM_COMMAND", raising=False)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    with pytest.raises(ConfigError, match=message):
        command_line(options, (), 8)


def test_the_models_own_limit(model: Path) -> None:
    """config.json names it, also inside of a multimodal model's text part."""
    assert context_limit(model_config(model)) == 4096
    (model / "config.json").write_text('{"text_config": {"max_position_embeddings": 8}}')
    assert context_limit(model_config(model)) == 8
    (model / "config.json").write_text("{}")
    assert context_limit(model_config(model)) is None


@pytest.mark.process
def test_a_life(tmp_path: Path) -> None:
    """Ready by /health; afterwards neither a process nor the port is in use."""
    before = descendants(os.getpid())  # servers of other tests, which stay
    with started(StartOptions(start_command=LITTLE), log=tmp_path / "log") as server:
        family = born_since(before)
        assert server.start_log.device == "cpu"
        assert sum(server.start_log.phases_s.values()) == pytest.approx(server.wall_s)
        assert server.pid in family
        with pytest.raises(ConfigError, match="--port is"):
            check_port("--port", "127.0.0.1", server.port)
    assert alive(family) == []
    check_port("--port", "127.0.0.1", server.port)


def born_since(before: dict[int, str]) -> dict[int, str]:
    """Our descendants that were not there."""
    now = descendants(os.getpid())
    return {pid: line for pid, line in now.items() if pid not in before}


class Gpu:
    """A GPU of which 1,000 MiB are in use, 3,000 while a new child runs, and what is left."""

    def __init__(self, left_mib: float) -> None:
        self.left_mib = left_mib
        self.before = descendants(os.getpid())

    def read(self, at_ns: int) -> list[GpuSample]:
        begun = bool(born_since(self.before))
        self.used = 3000.0 if begun else 1000.0 if self.used == 1000.0 else 1000.0 + self.left_mib
        return [GpuSample(at_ns, 0, memory_used_mib=self.used)]

    used = 1000.0

    def close(self) -> None:
        """Nothing."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("left_mib", "said"),
    [(0.0, ""), (255.0, ""), (500.0, "GPUs have 500 MiB less than before: see nvidia-smi\n"),
     (math.nan, "")],
)  # fmt: skip
def test_gpu_memory(
    tmp_path: Path,
    left_mib: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the server takes is told by phase, and what it leaves is said."""
    readings = GpuReadings("local", source=cast("GpuSource", Gpu(left_mib)))
    monkeypatch.setattr(vllm_start, "local_gpus", lambda: readings)
    monkeypatch.setattr(vllm_start, "MEMORY_BACK_S", 0.2)
    with started(StartOptions(start_command=LITTLE), log=tmp_path / "log") as server:
        assert set(server.start_log.gpu_mib.values()) == {2000.0}
    assert capsys.readouterr().err == said


@pytest.mark.process
def test_nvml_is_closed_where_something_is_left(tmp_path: Path, monkeypatch) -> None:
    """Of a server that is gone here and said to be there."""
    nvml = Recorded()
    readings = GpuReadings("local", source=NvmlGpus.open(nvml))
    end = vllm_start._end  # noqa: SLF001 - it does its work, too

    def end_but_say_otherwise(process: subprocess.Popen[bytes], port: int) -> None:
        end(process, port)
        raise HarnessError("something is left")

    monkeypatch.setattr(vllm_start, "local_gpus", lambda: readings)
    monkeypatch.setattr(vllm_start, "_end", end_but_say_otherwise)
    with (
        pytest.raises(HarnessError, match="something is left"),
        started(StartOptions(start_command=LITTLE), log=tmp_path / "log"),
    ):
        assert nvml.inits == 1
    assert nvml.inits == 0


@pytest.mark.process
def test_a_server_that_dies(tmp_path: Path) -> None:
    """The sentence has the end of its log; its child is gone."""
    before = descendants(os.getpid())
    options = StartOptions(start_command=LITTLE, start_args=("--dies",))
    with (
        pytest.raises(
            ServerUnreachable,
            match=r"(?s)exit code 1 \(RuntimeError: Engine core initialization fail",
        ),
        started(options, log=tmp_path / "log"),
    ):
        pytest.fail("it was ready")
    assert descendants(os.getpid()).keys() - before.keys() == set()


def test_a_port_in_use(tmp_path: Path) -> None:
    """Refused before the start."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="expected a free port"),
        started(
            StartOptions(start_command=LITTLE), log=tmp_path / "x", port=taken.getsockname()[1]
        ),
    ):
        pytest.fail("it started")
    assert not (tmp_path / "x").exists()


RUN = """
import sys
from pathlib import Path
from harness.lifecycle import vllm_start

with vllm_start.started(vllm_start.StartOptions(start_command=sys.argv[1]),
                        sys.argv[3:], log=Path(sys.argv[2])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flags", [("--hangs",), ()], ids=["while starting", "while serving"])
def test_interrupted(tmp_path: Path, number: signal.Signals, flags: Sequence[str]) -> None:
    """Ctrl-C or SIGTERM at any moment: nothing is left, although its child ignores SIGTERM."""
    log = tmp_path / "log"
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, LITTLE, str(log), *flags],
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if flags:
        wait_for(lambda: log.exists() and "Initializing" in log.read_text())
    else:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    family = descendants(process.pid)
    assert len(family) == 2
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in said
    assert alive(family) == []
    check_port("--port", "127.0.0.1", port)


@pytest.mark.process
@pytest.mark.parametrize(
    ("to_vllm", "number", "code", "said"),
    [
        (False, signal.SIGTERM, 0, ""),
        (False, signal.SIGINT, 0, ""),
        (True, signal.SIGKILL, 3, "vLLM ended by itself"),
    ],
)
def test_serve(tmp_path: Path, to_vllm: bool, number: signal.Signals, code: int, said: str) -> None:
    """Prints the URL and the phases; ends with Ctrl-C, or when vLLM ends."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "harness",
            "serve",
            "--start-command",
            LITTLE,
            "--port",
            "0",
            "--log",
            str(tmp_path / "log"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = next(line for line in process.stdout if " serves at " in line)
    assert printed.startswith("vLLM 0.32.0 serves at http://127.0.0.1:")
    family = descendants(process.pid)
    vllm = next(pid for pid, command in family.items() if "little_vllm" in command)
    os.kill(vllm if to_vllm else process.pid, number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == code
    assert said in error
    assert alive(family) == []


@pytest.mark.process
def test_a_preset_within_the_models_context(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its context is at most the model's own; each value is printed with its reason."""
    monkeypatch.chdir(model)
    flags = ["--preset", "interactive", "--start-args=--dies", "--log", "log"]
    assert main(["serve", "--start-command", LITTLE, "--model-dir", str(model), *flags]) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "--max-num-batched-tokens 2048: " + PRESETS["interactive"][0][2]
    assert "--max-model-len 4096: the model has no more" in said


def test_the_documented_presets() -> None:
    """docs/starting-vllm.md has each of them with its reason."""
    page = (Path(__file__).parents[1] / "docs/starting-vllm.md").read_text()
    rows = [
        f"| {name} | `{f'{flag} {value}'.strip()}` | {why} |"
        for name, preset in PRESETS.items()
        for flag, value, why in preset
    ]
    assert [row for row in rows if row not in page] == []
