"""The real vLLM on the CPU, for tests marked `vllm`: no weights, a tiny model, real scheduling."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import ServerUnreachable
from harness.server.access import Access
from harness.server.address import Address
from harness.server.exchange import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where `.ci/run` put vLLM (`venv`) and the model (`tiny`); the folder is ignored by git.
HOME = Path(os.environ.get("HARNESS_VLLM", Path(__file__).parents[1] / ".vllm"))
READY_S = 180
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@contextlib.contextmanager
def real_vllm(log: Path, *flags: str) -> Iterator[str]:
    """The URL of a vLLM started with `flags`, ready; it is gone after the `with`.

    Skips the test where vLLM is not installed (which fails in CI: see conftest.py).
    """
    python, model = HOME / "venv/bin/python", HOME / "tiny"
    if not python.exists() or not model.exists():
        pytest.skip(os.environ.get("HARNESS_VLLM_MISSING", "vLLM is not installed: see .ci/run"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "m", "--load-format", "dummy", "--dtype", "bfloat16",
        "--enforce-eager", "--host", "127.0.0.1", "--port", str(port), *flags,
    ]  # fmt: skip
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdout=out, stderr=out, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(server, url, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until /health answers 200. Fails with the log's end when the server dies."""
    for _ in range(READY_S * 2):
        if server.poll() is not None:
            break
        with contextlib.suppress(ServerUnreachable):
            if ask(Access(Address.parse(url)), "/health").status == HTTPStatus.OK:
                return
        time.sleep(0.5)
    pytest.fail(f"vLLM did not become ready: {log.read_text(errors='replace')[-2000:]}")
