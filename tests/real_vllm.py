"""The real vLLM on the CPU, for tests marked `vllm`: no weights, a tiny model, real scheduling.

A start takes half a minute of one core. So where `HARNESS_VLLM_AHEAD` names a folder (conftest.py
does in CI) this file runs as a process of its own that starts all SERVERS in turn, each while no
test measures, and leaves their addresses there. A test that finds none starts its server itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from study_process import alive

from harness.errors import ServerUnreachable
from harness.server.access import Access
from harness.server.address import Address
from harness.server.exchange import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where `.ci/run` puts vLLM (`venv`) and the model (`tiny`); the folder is ignored by git. While it
# is being installed there is no `state`; then it is empty, or says why vLLM cannot be had here.
HOME = Path(os.environ.get("HARNESS_VLLM", Path(__file__).parents[1] / ".vllm"))
INSTALLING = os.environ.get("HARNESS_VLLM_INSTALLING") == "1"
AHEAD = Path(os.environ.get("HARNESS_VLLM_AHEAD", ""))  # of this run of the tests
LOCK = "lock"  # in AHEAD: shared by what may run beside others, exclusive for what measures
STARTED: dict[int, subprocess.Popen[bytes]] = {}  # by this process
INSTALL_S = 900
READY_S = 300
GONE_S = 20
MOST = 4  # that wait for their tests, at 3 GB each
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
}
# by name, in the order of use; SPARE is a free port of the loopback
SPARE = "{spare}"
SERVERS: dict[str, tuple[str, ...]] = {
    "probe": ("--max-model-len", "2048", "--api-key", "k"),
    "compat": ("--max-num-seqs", "8"),
    "dashboards": ("--max-num-seqs", "4"),
    "traces": ("--max-num-seqs", "4", "--otlp-traces-endpoint",
               f"http://127.0.0.1:{SPARE}/v1/traces"),
    **{f"{seats} seats": ("--max-num-seqs", str(seats)) for seats in (2, 4, 8, 16)},
    # 32 blocks of 32 tokens: about eight requests of 32 + 96 tokens, where 32 slots are free
    "few KV blocks": ("--max-num-seqs", "32", "--block-size", "32", "--num-gpu-blocks-override",
                      "33", "--max-model-len", "1024"),
}  # fmt: skip


# `vllm bench serve`, without the command around it, which looks for a package called vllm
BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


class Served(NamedTuple):
    """A server that is ready."""

    url: str
    spare: int  # the port that its flags name as SPARE
    pid: int  # of its process group


@contextlib.contextmanager
def real_vllm(name: str) -> Iterator[Served]:
    """One of SERVERS, ready; it is gone after the `with`.

    Skips the test where vLLM is not installed (which fails in CI: see conftest.py).
    """
    if missing := not_here():
        pytest.skip(missing)
    served = _found(name) or _started(name)
    try:
        yield served
    finally:
        _end(served.pid)


def not_here() -> str:
    """Why there is no vLLM; "" when there is. Waits while it is being installed."""
    state = HOME / "state"
    until = time.monotonic() + INSTALL_S
    while INSTALLING and not state.exists() and time.monotonic() < until:
        time.sleep(1)
    said = state.read_text().strip() if state.exists() else ""
    if said or ((HOME / "venv/bin/python").exists() and (HOME / "tiny").exists()):
        return said
    return "vLLM is not installed: see .ci/run"


def bench_serve(url: str, folder: Path, *flags: str) -> dict[str, Any]:
    """What `vllm bench serve` saves of random prompts sent to the vLLM at `url`; fails with it."""
    command = [
        str(HOME / "venv/bin/python"), "-c", BENCH, "--base-url", url, "--model", "m",
        "--tokenizer", str(HOME / "tiny"), "--dataset-name", "random", "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
        "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder),
        "--result-filename", "bench.json", *flags,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    saved: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return saved


def _found(name: str) -> Served | None:
    """As it was started ahead; None when it was not, and then nobody else starts it."""
    if AHEAD.name and not _claim(name):
        file = AHEAD / f"{name}.json"
        return Served(*json.loads(file.read_text())) if file.exists() else None
    return None


def _claim(name: str) -> bool:
    """Whether we are the first to ask for it."""
    try:
        (AHEAD / f"{name}.claim").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


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
    log = (AHEAD if AHEAD.name else HOME) / f"{name}.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, start_new_session=True,
        )  # fmt: skip
    STARTED[server.pid] = server
    served = Served(f"http://127.0.0.1:{port}", spare, server.pid)
    try:
        _wait(server, served.url, log)
    except BaseException:
        _end(server.pid)
        raise
    return served


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until /health answers 200."""
    for _ in range(READY_S * 2):
        if server.poll() is not None:
            break
        with contextlib.suppress(ServerUnreachable):
            if ask(Access(Address.parse(url)), "/health").status == HTTPStatus.OK:
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


def _room() -> bool:
    """Wait until fewer than MOST wait for their tests; False when standard input ends before."""
    while sum(server.poll() is None for server in STARTED.values()) >= MOST:
        if select.select([sys.stdin], [], [], 1)[0]:
            return False
    return True


def start_ahead() -> None:
    """All SERVERS that no test has claimed, until SIGTERM or the end of standard input."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        for name in SERVERS if not not_here() else ():
            if not _room():  # not under the lock: what measures must go on
                break
            with (AHEAD / LOCK).open("w") as lock, contextlib.suppress(pytest.fail.Exception):
                fcntl.flock(lock, fcntl.LOCK_SH)
                if _claim(name):
                    one = _started(name)
                    (AHEAD / "new").write_text(json.dumps(one))
                    (AHEAD / "new").rename(AHEAD / f"{name}.json")
        sys.stdin.read()
    finally:
        for pid in list(STARTED):
            _end(pid)


if __name__ == "__main__":
    start_ahead()
