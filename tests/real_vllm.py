"""The real vLLM on the CPU, for tests marked `vllm`: no weights, a tiny model, real scheduling.

    real_vllm.py start    starts all SERVERS, writes AHEAD and leaves them running
    real_vllm.py end      ends them

A start takes half a minute of one core, so each server is there for several tests. `.ci/run` starts
them ahead, while other tests run; elsewhere the fixture `vllm` starts what is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from study_process import alive

from harness.errors import ServerUnreachable
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.http_exchange import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where `.ci/run` puts vLLM (`venv`) and the model (`tiny`); the folder is ignored by git. While it
# is being installed there is no `state`; then it is empty, or says why vLLM cannot be had here.
HOME = Path(os.environ.get("HARNESS_VLLM", Path(__file__).parents[1] / ".vllm"))
INSTALLING = os.environ.get("HARNESS_VLLM_INSTALLING") == "1"
AHEAD = HOME / "servers.json"  # those started ahead
STARTED: Final[dict[int, subprocess.Popen[bytes]]] = {}  # by this process
INSTALL_S = 900
READY_S = 300
GONE_S = 20
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
}
SPARE = "{spare}"  # in flags: a free port of the loopback
SERVERS: Final[dict[str, tuple[str, ...]]] = {
    "4 seats": ("--max-num-seqs", "4", "--otlp-traces-endpoint",
                f"http://127.0.0.1:{SPARE}/v1/traces"),
    # 32 blocks of 32 tokens: about eight requests of 32 + 96 tokens, where 32 slots are free
    "few KV blocks": ("--max-num-seqs", "32", "--block-size", "32", "--num-gpu-blocks-override",
                      "33", "--max-model-len", "1024", "--api-key", "k"),
    "16 seats": ("--max-num-seqs", "16"),
    # at temperature 0 a model of random weights soon repeats itself, which n-grams predict
    "speculating": ("--max-num-seqs", "4", "--override-generation-config", '{"temperature": 0}',
                    "--speculative-config",
                    '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}'),
}  # fmt: skip


# `vllm bench serve`, without the command around it, which looks for a package called vllm; its
# arguments are several such commands, for it imports for ten seconds
BENCH = """
import json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
for flags in map(json.loads, sys.argv[1:]):
    main(parser.parse_args(flags))
"""


class Served(NamedTuple):
    """A server that is ready."""

    url: str
    spare: int  # the port that its flags name as SPARE
    pid: int  # of its process group


@contextlib.contextmanager
def servers() -> Iterator[Callable[[str], Served]]:
    """A function that gives one of SERVERS; those that it started are gone after the `with`.

    Skips the test where vLLM is not installed (which fails in CI: see conftest.py).
    """
    if missing := not_here():
        pytest.skip(missing)
    ahead = _ahead() if INSTALLING else {}
    ready = dict(ahead)

    def server(name: str) -> Served:
        if name not in ready:
            ready[name] = _started(name)
        return ready[name]

    try:
        yield server
    finally:
        for name in ready.keys() - ahead.keys():
            _end(ready[name].pid)


def not_here() -> str:
    """Why there is no vLLM; "" when there is. Waits while it is being installed and started."""
    state = HOME / "state"
    until = time.monotonic() + INSTALL_S
    while INSTALLING and not state.exists() and time.monotonic() < until:
        time.sleep(1)
    said = state.read_text().strip() if state.exists() else ""
    if said or ((HOME / "venv/bin/python").exists() and (HOME / "tiny").exists()):
        return said
    return "vLLM is not installed: see .ci/run"


def bench_serve(url: str, folder: Path, *runs: tuple[str, ...]) -> list[dict[str, Any]]:
    """What `vllm bench serve` saves of random prompts sent to `url`, for each run's flags in turn.

    Fails with it.
    """
    results = [folder / f"bench-{number}.json" for number in range(len(runs))]
    commands = [
        json.dumps([
            "--base-url", url, "--model", "m", "--tokenizer", str(HOME / "tiny"),
            "--dataset-name", "random", "--ignore-eos",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
            "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder),
            "--result-filename", result.name, *flags,
        ])
        for result, flags in zip(results, runs, strict=True)
    ]  # fmt: skip
    done = subprocess.run(
        [str(HOME / "venv/bin/python"), "-c", BENCH, *commands], env=os.environ | ENVIRONMENT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(result.read_text()) for result in results]


def _started(name: str) -> Served:
    """Started now. Fails with the log's end when it does not become ready."""
    with (
        socket.create_server(("127.0.0.1", 0)) as free,
        socket.create_server(("127.0.0.1", 0)) as another,
    ):
        port, spare = free.getsockname()[1], another.getsockname()[1]
    command = [
        str(HOME / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(HOME / "tiny"), "--served-model-name", "m", "--load-format", "dummy",
        "--dtype", "bfloat16", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
        *(flag.replace(SPARE, str(spare)) for flag in SERVERS[name]),
    ]  # fmt: skip
    log = HOME / f"{name}.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, start_new_session=True,
        )  # fmt: skip
    STARTED[server.pid] = server
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(server, url, log)
    except BaseException:
        _end(server.pid)
        raise
    return Served(url, spare, server.pid)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until /health answers 200."""
    for _ in range(READY_S * 2):
        if server.poll() is not None:
            break
        with contextlib.suppress(ServerUnreachable):
            if fetch(TargetAccess(Address.parse(url)), "/health").status == HTTPStatus.OK:
                return
        time.sleep(0.5)
    pytest.fail(f"vLLM did not become ready: {log.read_text(errors='replace')[-2000:]}")


def _end(group: int) -> None:
    """Of the server and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        until = time.monotonic() + GONE_S
        while alive({group: "vLLM"}) and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)
    if server := STARTED.pop(group, None):
        server.wait()


def _ahead() -> dict[str, Served]:
    """Those of AHEAD by name."""
    said = json.loads(AHEAD.read_text()) if AHEAD.exists() else {}
    return {name: Served(*one) for name, one in said.items()}


def start_ahead() -> None:
    """Each in turn; the test that asks for one that does not start tries again and says why."""
    ready: dict[str, Served] = {}
    for name in SERVERS:
        with contextlib.suppress(pytest.fail.Exception):
            ready[name] = _started(name)
            AHEAD.write_text(json.dumps(ready))


def end_ahead() -> None:
    """All of them."""
    for served in _ahead().values():
        _end(served.pid)
    AHEAD.unlink()


if __name__ == "__main__":
    {"start": start_ahead, "end": end_ahead}[sys.argv[1]]()
