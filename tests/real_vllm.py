"""The real vLLM on the CPU, for tests marked `vllm`: no weights, a tiny model, real scheduling.

A start takes a minute of one core, nearly all of it for imports. So tests that do not ask about it
start forks of a process that has imported it, and each of SERVERS once, when it is asked for first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from harness.lifecycle.vllm_start import StartOptions, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where `.ci/run` puts vLLM (`venv`) and the model (`tiny`); the folder is ignored by git.
HOME = Path(__file__).parents[1] / ".vllm"
VLLM, MODEL = HOME / "venv/bin/vllm", HOME / "tiny"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
KEY: Final = "k"  # what every server asks for under /v1
SERVERS: Final = {
    # For tests that may run beside others. At temperature 0 a model of random weights soon repeats
    # itself, which n-grams predict; /inference/v1/generate is there only with --enable-scale-out.
    "speculating": """
        --max-num-seqs 4 --enable-scale-out --override-generation-config '{"temperature": 0}'
        --speculative-config
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}'
    """,
    # The others are for those that measure.
    "16 slots": "--max-num-seqs 16",
    # 32 blocks of 32 tokens: about eight requests of 32 + 96 tokens, where 32 slots are free
    "few KV blocks": """
        --max-num-seqs 32 --block-size 32 --num-gpu-blocks-override 33 --max-model-len 1024
    """,
}
FORKS: Final = Path(__file__).with_name("vllm_forks.py")
COMMAND: Final = """#!{python}
import sys
sys.path.append('{folder}')
from vllm_forks import ask_for_a_fork
ask_for_a_fork('{path}')
"""
YIELDS: Final = 5  # the `nice` of a server that is ready: a third of the weight of its client

# of `vllm bench serve`
BENCH_FLAGS: Final = f"""
    --model m --tokenizer {MODEL} --dataset-name random --ignore-eos
    --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99
    --disable-tqdm --save-result --save-detailed
"""


def missing() -> str:
    """Why there is no vLLM here; "" where there is."""
    here = VLLM.exists() and MODEL.exists()
    return "" if here else "vLLM is not installed: see CONTRIBUTING.md"


@contextlib.contextmanager
def forks() -> Iterator[str]:
    """The path of a command `vllm` whose imports are done, or soon will be."""
    python = HOME / "venv/bin/python"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        path, command = f"{folder}/socket", Path(folder) / "vllm"
        command.write_text(COMMAND.format(python=python, folder=FORKS.parent, path=path))
        command.chmod(0o755)
        listening.bind(path)
        listening.listen()
        with (HOME / "forks.log").open("wb") as log:
            server = subprocess.Popen(
                [python, FORKS, str(listening.fileno())],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.PIPE,  # whose end is the server's
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
            )
        listening.close()
        with server:
            yield str(command)


@contextlib.contextmanager
def servers(vllm: str) -> Iterator[Callable[[str], str]]:
    """A function that gives the URL of one of SERVERS; all that it started end with the `with`."""
    with contextlib.ExitStack() as running:
        yield cache(lambda name: running.enter_context(_served(vllm, name)))


def bench_serve(vllm: str, url: str, result: Path, *flags: str) -> dict[str, Any]:
    """What `vllm bench serve` saves of random prompts; fails with it."""
    to = ("--base-url", url, "--result-dir", str(result.parent), "--result-filename", result.name)
    done = subprocess.run(
        [vllm, "bench", "serve", *shlex.split(BENCH_FLAGS), *to, *flags],
        env=os.environ | ENVIRONMENT | {"OPENAI_API_KEY": KEY},
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(result.read_text()))


def one_core() -> dict[str, str]:
    """For a server that leaves its client the other core: of two, vLLM's threads spin on both."""
    return {"VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0)))}


@contextlib.contextmanager
def _served(vllm: str, name: str) -> Iterator[str]:
    """The URL of one of SERVERS, as the product starts it; fails with the log's end."""
    flags = shlex.split(f"--max-model-len 32768 --served-model-name m {SERVERS[name]}")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for variable, value in (ENVIRONMENT | one_core() | {"VLLM_API_KEY": KEY}).items():
            patch.setenv(variable, value)
        options = StartOptions(vllm, model_dir=MODEL)
        server = stack.enter_context(started(options, flags, log=HOME / f"{name}.log"))
        patch.undo()
        _give_way(server.port)
        yield server.url


def _give_way(port: int) -> None:
    """Let a client that measures go first, as it does where it has cores of its own.

    Only a little: beside a third process a server of less weight answers nothing for a minute.
    Linux weighs sessions against each other where it groups processes by session (autogroup), and
    single processes by `nice` where it does not.
    """
    sockets = psutil.net_connections("tcp4")
    [session] = {
        os.getsid(one.pid)
        for one in sockets
        if one.laddr.port == port and one.status == psutil.CONN_LISTEN
    }
    with contextlib.suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(YIELDS))
    os.setpriority(os.PRIO_PGRP, session, YIELDS)
