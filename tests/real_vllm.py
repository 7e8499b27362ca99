"""The real vLLM on the CPU, for tests marked `vllm`: no weights, a tiny model, real scheduling.

A start takes half a minute of one core, so each of SERVERS is started once, when it is asked for
first, and answers all that do not ask about starting.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from harness.lifecycle.vllm_start import StartOptions, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where `.ci/run` puts vLLM (`venv`) and the model (`tiny`); the folder is ignored by git.
HOME = Path(__file__).parents[1] / ".vllm"
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
YIELDS: Final = 10  # the `nice` of a server that is ready

# `vllm bench serve` without the command around it; its input is several such commands, for it
# imports for ten seconds
BENCH = """
import json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
for flags in map(json.loads, sys.stdin):
    main(parser.parse_args(flags))
"""
BENCH_FLAGS: Final = f"""
    --model m --tokenizer {HOME / "tiny"} --dataset-name random --ignore-eos
    --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99
    --disable-tqdm --save-result --save-detailed
"""


def missing() -> str:
    """Why there is no vLLM here; "" where there is."""
    here = (HOME / "venv/bin/vllm").exists() and (HOME / "tiny").exists()
    return "" if here else "vLLM is not installed: see CONTRIBUTING.md"


@contextlib.contextmanager
def servers() -> Iterator[Callable[[str], str]]:
    """A function that gives the URL of one of SERVERS; all that it started end with the `with`."""
    with contextlib.ExitStack() as running:
        yield cache(lambda name: running.enter_context(_served(name)))


@contextlib.contextmanager
def benchmark() -> Iterator[subprocess.Popen[str]]:
    """`vllm bench serve`, which imports now, and runs what `bench_serve` tells it."""
    command = [str(HOME / "venv/bin/python"), "-c", BENCH]
    with subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENT | {"OPENAI_API_KEY": KEY},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def bench_serve(
    tool: subprocess.Popen[str], url: str, folder: Path, *runs: tuple[str, ...]
) -> list[dict[str, Any]]:
    """What it saves of random prompts sent to `url`, for each run's flags in turn.

    Fails with it.
    """
    results = [folder / f"bench-{number}.json" for number in range(len(runs))]
    commands = []
    for result, flags in zip(results, runs, strict=True):
        to = ("--base-url", url, "--result-dir", str(folder), "--result-filename", result.name)
        commands.append(json.dumps([*shlex.split(BENCH_FLAGS), *to, *flags]))
    _, err = tool.communicate("\n".join(commands), timeout=300)
    assert tool.returncode == 0, err[-2000:]
    return [json.loads(result.read_text()) for result in results]


def start_options() -> StartOptions:
    """How the harness starts it."""
    return StartOptions(str(HOME / "venv/bin/vllm"), model_dir=HOME / "tiny")


@contextlib.contextmanager
def _served(name: str) -> Iterator[str]:
    """The URL of one of SERVERS, as the product starts it; fails with the log's end."""
    flags = shlex.split(f"--max-model-len 32768 --served-model-name m {SERVERS[name]}")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for variable, value in (ENVIRONMENT | {"VLLM_API_KEY": KEY}).items():
            patch.setenv(variable, value)
        server = stack.enter_context(started(start_options(), flags, log=HOME / f"{name}.log"))
        patch.undo()
        _give_way(server.pid)
        yield server.url


def _give_way(session: int) -> None:
    """Let the client that measures go first, as it does where it has cores of its own.

    On two cores vLLM's processes spin on both. Linux weighs sessions against each other where it
    groups processes by session (autogroup), and single processes by `nice` where it does not.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(YIELDS))
    os.setpriority(os.PRIO_PGRP, session, YIELDS)
