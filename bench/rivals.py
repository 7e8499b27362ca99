"""The other clients: plain Locust, vLLM's two benchmarks, aiperf, guidellm. CLIENTS has all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from clients import PROMPT_TOKENS, SPREAD_S, Read, c_client, harness, note_of, watched
from servers import HERE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clients import Load, Values
    from servers import Server

VLLM: Final = Path(os.environ.get("HARNESS_VLLM", HERE.parent / ".vllm"))
VLLM_RS: Final = Path(os.environ.get("HARNESS_VLLM_RS", VLLM / "vllm-rs"))
TOKENIZER: Final = VLLM / "tiny"
AIPERF: Final = Path(os.environ.get("HARNESS_AIPERF", VLLM / "aiperf/bin/aiperf"))
GUIDELLM: Final = Path(os.environ.get("HARNESS_GUIDELLM", VLLM / "guidellm/bin/guidellm"))
PROMPTS: Final = 1_000  # that aiperf makes before it begins, at most: it sends them in turn
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
            *(["--insecure"] if server.is_tls else []),
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
        TOKENIZER,
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


def aiperf(server: Server, load: Load, folder: Path) -> Read:
    """`aiperf profile`, with the offline tokenizer and without its screen."""
    spread_s = 0 if load.burst else SPREAD_S
    done, watch = watched(
        server,
        [
            AIPERF,
            "profile",
            "--model",
            "bench",
            "--url",
            server.url,
            "--endpoint-type",
            load.api,
            "--streaming",
            "--tokenizer",
            TOKENIZER,
            "--isl",
            PROMPT_TOKENS,
            "--isl-stddev",
            0,
            "--osl",
            load.tokens,
            "--osl-stddev",
            0,
            "--extra-inputs",
            "ignore_eos:true",
            "--num-dataset-entries",
            min(load.requests, PROMPTS),
            "--concurrency",
            load.streams,
            *(["--concurrency-ramp-duration", spread_s] if spread_s else []),
            "--request-count",
            load.requests,
            "--wait-for-model-timeout",
            0,
            "--ui",
            "none",
            "--artifact-dir",
            folder,
        ],
    )
    read = Read(watch, note=note_of(done))
    file = folder / "profile_export.jsonl"
    if file.exists():
        read.ttft_ns, read.itl_ns = read_aiperf(file)
    return read


def read_aiperf(file: Path) -> tuple[Values, Values]:
    """(TTFT, gaps between chunks) of its export: a line for each request, in ms."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows.sort(key=lambda row: row["metadata"]["request_start_ns"])
    metrics = [row["metrics"] for row in rows if "time_to_first_token" in row["metrics"]]
    ttft_ms = [metric["time_to_first_token"]["value"] for metric in metrics]
    gaps_ms = [metric["inter_chunk_latency"]["value"] for metric in metrics]
    return _ns(ttft_ms), _ns(np.concatenate([[], *gaps_ms]))


def guidellm(server: Server, load: Load, folder: Path) -> Read:
    """`guidellm run`, so many at once, of synthetic text."""
    out = folder / "guidellm.json"
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[load.api]
    done, watch = watched(
        server,
        [
            GUIDELLM,
            "run",
            "--backend",
            f"kind=openai_http,target={server.url},model=bench,request_format={path}",
            "--profile",
            f"kind=concurrent,streams={load.streams}",
            "--constraint",
            f"kind=max_requests,count={load.requests}",
            "--tokenizer",
            f"kind=hf_auto,model={TOKENIZER}",
            "--data",
            f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
            "--output",
            f"kind=json,path={out}",
            "--disable-console",
        ],
        {"HF_HUB_OFFLINE": "1"},
    )
    read = Read(watch, note=note_of(done))
    if out.exists():
        read.ttft_ns = read_guidellm(out)
        read.note = read.note or "it keeps a mean ITL of each request, no gaps"
    return read


def read_guidellm(file: Path) -> Values:
    """TTFT in its report."""
    (benchmark,) = json.loads(file.read_text())["benchmarks"]
    rows = benchmark["requests"]["successful"]
    rows.sort(key=lambda row: row["request_start_time"])
    return _ns([row["time_to_first_token_ms"] for row in rows])


def _ns(values_ms: Sequence[float]) -> Values:
    return (np.asarray(values_ms, float) * 1e6).astype(np.int64)


CLIENTS: Final[dict[str, Callable[[Server, Load, Path], Read]]] = {
    "C client": c_client,
    "vllm-harness": harness,
    "Locust HttpUser": locust,
    "vllm bench": vllm_bench,
    "vllm-rs bench": vllm_rs_bench,
    "aiperf": aiperf,
    "guidellm": guidellm,
}


def missing(client: str) -> str:
    """Why a client cannot run here; "" when it can."""
    programs = {
        "vllm bench": ("HARNESS_VLLM", VLLM / "venv/bin/python"),
        "vllm-rs bench": ("HARNESS_VLLM_RS", VLLM_RS),
        "aiperf": ("HARNESS_AIPERF", AIPERF),
        "guidellm": ("HARNESS_GUIDELLM", GUIDELLM),
    }
    if client not in programs:
        return ""
    variable, program = programs[client]
    if not program.exists():
        return f"it is not installed here ({variable} names none)"
    if not TOKENIZER.exists():
        return "its tokenizer is not here (HARNESS_VLLM names no folder with tiny)"
    return ""


def versions() -> dict[str, str]:
    """Of the rivals that are here."""
    found: dict[str, str] = {}
    programs = {"vllm": VLLM / "venv/bin/python", "aiperf": AIPERF, "guidellm": GUIDELLM}
    for name, program in programs.items():
        packages = program.parent.parent.glob(f"lib/python*/site-packages/{name}-*.dist-info")
        for package in packages:
            found[name] = package.name.removesuffix(".dist-info").removeprefix(f"{name}-")
    if VLLM_RS.exists():
        command = [VLLM_RS, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found["vllm-rs"] = done.stdout.strip().removeprefix("vllm-rs ")
    return found
