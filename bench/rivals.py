"""The other clients: a plain Locust `HttpUser` and `vllm bench serve`. CLIENTS lists all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from clients import PROMPT_TOKENS, SPREAD_S, Read, c_client, harness, note_of, watched
from servers import HERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from clients import Load
    from servers import Server

VLLM: Final = Path(os.environ.get("HARNESS_VLLM", HERE.parent / ".vllm"))
VLLM_RS: Final = Path(os.environ.get("HARNESS_VLLM_RS", VLLM / "venv/bin/vllm-rs"))
VLLM_RESULT: Final = "bench.json"  # what both of its benchmarks write
# `vllm bench serve` without the rest of the command line, which needs the package's metadata.
VLLM_BENCH: Final = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


def locust(server: Server, load: Load, folder: Path) -> Read:
    """A plain HttpUser in one Locust process."""
    out = folder / "locust.npz"
    done, watch = watched(
        server,
        [
            sys.executable,
            "-m",
            "locust",
            "-f",
            HERE / "plain_locust.py",
            "--headless",
            "--host",
            server.url,
            "-u",
            load.streams,
            "-r",
            load.streams,
            "--only-summary",
        ],
        {
            "BENCH_REQUESTS": str(load.requests),
            "BENCH_TOKENS": str(load.tokens),
            "BENCH_SPREAD_S": str(0.0 if load.burst else SPREAD_S),
            "BENCH_OUT": str(out),
        },
    )
    read = Read(watch, note=note_of(done))
    if out.exists():
        with np.load(out) as data:
            read.ttft_ns, read.itl_ns = data["ttft_ns"], data["itl_ns"]
    return read


def vllm_bench(server: Server, load: Load, folder: Path) -> Read:
    """`vllm bench serve`, all requests offered at once, so many at a time."""
    done, watch = watched(
        server,
        [
            VLLM / "venv/bin/python",
            "-c",
            VLLM_BENCH,
            "--backend",
            "openai-chat",
            "--endpoint",
            "/v1/chat/completions",
            *_vllm_options(server, load, folder),
            "--disable-tqdm",
            "--ready-check-timeout-sec",
            "0",
        ],
        {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    )
    read = Read(watch, note=note_of(done))
    _read_vllm_result(read, folder / VLLM_RESULT)
    return read


def vllm_rs_bench(server: Server, load: Load, folder: Path) -> Read:
    """`vllm-rs bench serve`, vLLM's own in Rust: the binary is in its wheel for GPUs."""
    done, watch = watched(
        server,
        [
            VLLM_RS,
            "bench",
            "serve",
            "--backend",
            "openai",
            "--prompt-token-ids",
            *_vllm_options(server, load, folder),
        ],
    )
    read = Read(watch, note=note_of(done))
    _read_vllm_result(read, folder / VLLM_RESULT)
    return read


def _vllm_options(server: Server, load: Load, folder: Path) -> list[object]:
    """The options that both of vLLM's own benchmarks take."""
    rate = "inf" if load.burst else load.streams / SPREAD_S
    return [
        "--base-url",
        server.url,
        "--model",
        "bench",
        "--tokenizer",
        VLLM / "tiny",
        "--dataset-name",
        "random",
        "--random-input-len",
        PROMPT_TOKENS,
        "--random-output-len",
        load.tokens,
        "--num-prompts",
        load.requests,
        "--max-concurrency",
        load.streams,
        "--request-rate",
        rate,
        "--ignore-eos",
        "--save-result",
        "--save-detailed",
        "--result-dir",
        folder,
        "--result-filename",
        VLLM_RESULT,
    ]


def _read_vllm_result(read: Read, file: Path) -> None:
    if not file.exists():
        return
    body = json.loads(file.read_text())
    read.ttft_ns = (np.array(body["ttfts"]) * 1e9).astype(np.int64)
    read.itl_ns = (np.concatenate(body["itls"]) * 1e9).astype(np.int64)


CLIENTS: Final[dict[str, Callable[[Server, Load, Path], Read]]] = {
    "C client": c_client,
    "vllm-harness": harness,
    "Locust HttpUser": locust,
    "vllm bench": vllm_bench,
    "vllm-rs bench": vllm_rs_bench,
}


def missing(client: str) -> str:
    """Why a client cannot run here; "" when it can."""
    if client == "vllm bench" and not (VLLM / "tiny").exists():
        return "vLLM is not installed (HARNESS_VLLM names no folder with venv and tiny)"
    if client == "vllm-rs bench" and not VLLM_RS.exists():
        return "its binary is not here (HARNESS_VLLM_RS names no file)"
    return ""
