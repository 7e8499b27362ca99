"""The whole command against targets and places that cannot work: refused before any load.

A process of its own shows each exit code once; the rest is asked of the command's function.
"""

from __future__ import annotations

import resource
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme
from little_servers import Reply, http, little_server, models, vllm_like
from study_process import harness

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from study_process import Command

LOAD = ("/v1/chat/completions", "/v1/completions")


KNEE = ("knee", "--slo", "ttft_p95=500ms")


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """One line on stderr with these parts, at most what is probed on stdout, this exit code."""
    told = [line for line in done.stdout.splitlines() if not line.startswith("probing http")]
    assert done.returncode == code, done.stderr
    assert told == [], done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert [part for part in parts if part not in done.stderr] == []


SERVERS: dict[str, tuple[Reply, tuple[str, ...], int, tuple[str, ...]]] = {
    # name: reply, options, exit code, parts of the sentence
    "not HTTP": (lambda *_: b"220 smtp\r\n", (), 3, ("does not answer in HTTP", "220 smtp")),
    "wrong port": (lambda *_: http({}, 404), (), 3, ("/v1/models answers 404", "try the port")),
    "401": (lambda *_: http({}, 401), (), 3, ("answers 401", "VLLM_API_KEY")),
    "unknown model": (vllm_like(), ("--model", "n"), 2, ("--model is 'n'", "try --model m")),
    "several models": (vllm_like(models=models("a", "b")), (), 2, ("serves 2 models", "a, b")),
    "does not stream": (
        vllm_like(**{"chat/completions": http({"choices": []})}),
        (),
        3,
        ("does not stream",),
    ),
    "context too small": (
        vllm_like(models=models("m", max_model_len=64)),
        (),
        2,
        ("context 64", "--prompt-tokens"),
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_bad_target(name: str, tmp_path: Path, command_here: Command) -> None:
    """Sentence and exit code; at most the probe's one request; no run folder is left."""
    reply, options, code, parts = SERVERS[name]
    with little_server(reply) as server:
        done = command_here(
            *KNEE, f"http://127.0.0.1:{server.port}", "--out", str(tmp_path / "out"), *options
        )
    refused(done, code, *parts)
    assert sum(path in LOAD for path in server.paths) <= 1
    assert not (tmp_path / "out").exists()


def test_no_server(tmp_path: Path) -> None:
    """A closed port. In a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    done = harness(*KNEE, f"http://127.0.0.1:{port}", "--out", str(tmp_path / "out"))
    refused(done, 3, "nothing listens", "vllm serve")


def test_tls_name_mismatch(tmp_path: Path, command_here: Command) -> None:
    """A certificate for another name."""
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)
    with little_server(vllm_like(), context) as server:
        url = f"https://127.0.0.1:{server.port}"
        done = command_here(*KNEE, url, "--ca-file", str(ca_file), "--out", str(tmp_path / "out"))
    refused(done, 3, "certificate for another name")


def test_gpu_metrics_that_nobody_serves(tmp_path: Path, command_here: Command) -> None:
    """Said before any load, and no folder is left."""
    with little_server(vllm_like()) as server:
        url = f"http://127.0.0.1:{server.port}"
        more = ("--gpu-metrics", "http://127.0.0.1:1", "--out", str(tmp_path / "out"))
        done = command_here(*KNEE, url, *more)
    refused(done, 3, "--gpu-metrics is http://127.0.0.1:1", "--gpu-metrics none")
    assert sum(path in LOAD for path in server.paths) <= 1
    assert not (tmp_path / "out").exists()


def test_taken_folder(tmp_path: Path) -> None:
    """An output folder with something in it; the server is not even asked. A process of its own."""
    (tmp_path / "earlier").touch()
    with little_server(vllm_like()) as server:
        done = harness(*KNEE, f"http://127.0.0.1:{server.port}", "--out", str(tmp_path))
    refused(done, 4, "exists", "try another --out")
    assert server.asked == []


def test_too_few_files(tmp_path: Path) -> None:
    """More users than files may be open; the server is not even asked. A process of its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with little_server(vllm_like()) as server:
        url = f"http://127.0.0.1:{server.port}"
        done = harness(*KNEE, url, "--max-users", str(hard), "--out", str(tmp_path / "out"))
    refused(done, 2, f"can open {hard} files", "--max-users")
    assert server.asked == []


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("run --users {hard}", ("can open {hard} files", "try --users")),
        ("sweep --users 1,{hard}", ("can open {hard} files", "try --users")),
        ("run --users 4 --slo itl_p95=50ms --output-tokens 1", ("--slo itl_p95=50ms is on",)),
        ("knee --slo itl_p95=50ms --slo itl_p95=9ms --dry-run", ("itl_p95 is given 2 times",)),
    ],
)
def test_what_makes_no_sense(line: str, parts: tuple[str, ...], command_here: Command) -> None:
    """The server is not even asked."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with little_server(vllm_like()) as server:
        name, *words = line.format(hard=hard).split()
        done = command_here(name, f"http://127.0.0.1:{server.port}", *words)
    refused(done, 2, *(part.format(hard=hard) for part in parts))
    assert server.asked == []


def test_busy_ui_port(tmp_path: Path, command_here: Command) -> None:
    """A port for the web UI that is taken; the server is not even asked."""
    with little_server(vllm_like()) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        url = f"http://127.0.0.1:{server.port}"
        done = command_here(*KNEE, url, "--ui", "--ui-port", port, "--out", str(tmp_path / "out"))
    refused(done, 2, f"--ui-port is {port} (Address already in use)", "try --ui-port")
    assert server.asked == []
    assert not (tmp_path / "out").exists()
