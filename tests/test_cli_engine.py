"""`vllm-harness engine`: flags in vLLM's names, and the server until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import fields

import pytest

from harness.cli import knee
from harness.cli.app import main, parser
from harness.engine.config import EngineConfig
from harness.run import engine_flags
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.probe import probe
from harness.units import MS

LINE = (
    "--shape qwen2.5-7b --gpu a100 --max-num-seqs 32 --max-num-batched-tokens 4096 "
    "--max-model-len 4096 --block-size 32 --num-gpu-blocks-override 1000 "
    "--no-enable-chunked-prefill --no-enable-prefix-caching --stream-interval 4 "
    "--front-end-delay 3ms --jitter 5%"
)
WANT = EngineConfig(
    model="qwen2.5-7b",
    gpu="a100",
    max_num_seqs=32,
    max_num_batched_tokens=4096,
    max_model_len=4096,
    block_size=32,
    num_gpu_blocks=1000,
    enable_chunked_prefill=False,
    enable_prefix_caching=False,
    stream_interval=4,
    front_end_ns=3 * MS,
    jitter=0.05,
)


@pytest.mark.parametrize(
    ("line", "want"),
    [("", EngineConfig()), ("--max-num-seqs 8", EngineConfig(max_num_seqs=8)), (LINE, WANT)],
)
def test_flags(line: str, want: EngineConfig) -> None:
    """A flag that is not given leaves the engine's default; `knee` takes the same flags."""
    assert engine_flags.engine_config(parser().parse_args(["engine", *line.split()])) == want
    assert (
        knee.options(parser().parse_args(["knee", "--embedded", *line.split()])).target.engine
        == want
    )


def test_flags_name_fields() -> None:
    """Every flag sets a field that EngineConfig has."""
    assert set(engine_flags.FLAGS) - {field.name for field in fields(EngineConfig)} == set()


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--gpu b17", ("--gpu", "b17", "h100")),
        ("--max-num-seqs 64 --max-num-batched-tokens 32", ("--max-num-batched-tokens is 32", "64")),
        ("--num-gpu-blocks-override 10", ("10 blocks", "--max-model-len 160")),
        ("--front-end-delay 3", ("--front-end-delay is '3'", "3ms")),
        ("--shape qwen2.5-32b --gpu l4", ("qwen2.5-32b", "do not fit --gpu l4", "try --gpu a100")),
        ("--port abc", ("--port is 'abc'", "try --port 8000")),
        ("--pace 20ms", ("--first and --pace belong together",)),
    ],
)
def test_refused(line: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Flags that vLLM would refuse are refused, with exit code 2."""
    assert main(["engine", *line.split()]) == 2
    said = capsys.readouterr().err
    assert [part for part in parts if part not in said] == []


@pytest.mark.parametrize("key", ["", "secret"])
def test_serves(key: str) -> None:
    """The command serves until SIGINT, by the name and with the key that it was given."""
    line = "-m harness engine --port 0 --served-model-name m --first 20ms --pace 2ms"
    command = [sys.executable, *line.split()]
    env = os.environ | {"VLLM_API_KEY": key}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as engine:
        assert engine.stdout is not None
        said = engine.stdout.readline()
        try:
            address = Address.parse(said.split()[5].strip(";"))
            got = probe(TargetAccess(address, api_key=key), "chat")
        finally:
            engine.send_signal(signal.SIGINT)
            code = engine.wait()
    assert got.model == "m"
    assert got.continuous_usage is True
    assert code == 0
    assert said == f"The embedded server listens at {address}; Ctrl-C stops it.\n"
