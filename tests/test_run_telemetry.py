"""A whole run with both sides: the server's figures and a GPU exporter's, in the folder's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from little_servers import http, little_server
from study_process import check_code, harness, load

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.records.folder_reader import read_run

if TYPE_CHECKING:
    from pathlib import Path

SEATS = 4
ENGINE = EngineConfig(max_num_seqs=SEATS)
LOAD = ("--users", "8", "--duration", "6s", "--prompt-tokens", "64", "--output-tokens", "32")


class Exporter:
    """A dcgm-exporter of one GPU at 500 W: each question is a second later."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _path: str, _body: dict[str, Any]) -> bytes:
        self.asked += 1
        lines = {
            "GPU_UTIL": 90,
            "FB_USED": 60_000,
            "FB_FREE": 20_000,
            "POWER_USAGE": 500.0,
            "TOTAL_ENERGY_CONSUMPTION": 500_000 * self.asked,
        }
        label = 'gpu="0",UUID="GPU-12345678-1234",modelName="NVIDIA H100"'
        text = "".join(f"DCGM_FI_DEV_{key}{{{label}}} {value}\n" for key, value in lines.items())
        return http(text.encode(), kind="text/plain")


@pytest.mark.long
@pytest.mark.process
def test_both_sides_of_a_run(tmp_path: Path) -> None:
    """Twice as many users as seats: what waits, what the GPU burns, and what was never said."""
    out = tmp_path / "run"
    with start_engine(ENGINE) as engine, little_server(Exporter()) as gpus:
        where = ("--gpu-metrics", f"http://127.0.0.1:{gpus.port}/metrics")
        done = harness("run", engine.url, *LOAD, *where, "--quiet", "--out", str(out))
    check_code(done.returncode, done.stdout + done.stderr, 0)
    info = load(out / "run.json")
    result = load(out / "result.json")
    run = read_run(out)
    server = info["server"]
    step = result["levels"][0]
    assert server["flags"]["max_num_seqs"] == SEATS
    assert "max_num_seqs" in server["read"]
    assert server["kv_blocks"] == ENGINE.blocks
    slots = {"value": SEATS, "source": "read", "engines": 1, "prefill_engines": 0}
    assert result["target"]["max_num_seqs"] == slots
    assert result["lacking"] == []
    gpu = {
        "index": 0,
        "name": "NVIDIA H100",
        "memory_mib": 80_000.0,
        "driver": "",
        "uuid": "GPU-12345678",
    }
    assert info["gpu"] == {
        "where": f"http://127.0.0.1:{gpus.port}",
        "gpus": [gpu],
        "why": "",
        "of_server": False,
    }
    told = step["server"]
    assert told["running_max"] == SEATS
    assert told["samples"] >= 2
    assert told["waiting_mean"] > 1
    assert told["queue_mean_s"] > 0
    assert told["generation_tokens_per_s"] > 0
    assert len(run.server) >= 5
    assert all(set(s.histograms) >= {"ttft", "itl", "queue"} for s in run.server)
    assert step["gpu"]["gpus"] == 1
    assert step["gpu"]["util_pct_mean"] == 90.0
    assert 300 < step["gpu"]["power_w"] < 800  # a reading about each second
    assert step["gpu"]["j_per_output_token"] > 0
    assert len(run.gpu) >= 4
    page = (out / "report.html").read_text()
    assert "NVIDIA H100, 80,000 MiB" in page
    assert "4 (read)" in page


@pytest.mark.process
def test_a_run_without_a_gpu(tmp_path: Path) -> None:
    """One clear line says so, in run.json and in the report; the rest is as ever."""
    out = tmp_path / "run"
    done = harness(
        "run", "--embedded", *LOAD[:2], "--requests", "20", *LOAD[4:], "--quiet", "--out", str(out)
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    info = load(out / "run.json")
    result = load(out / "result.json")
    assert info["gpu"] == {
        "where": "none",
        "gpus": [],
        "why": "no GPU here (the embedded engine needs none)",
        "of_server": False,
    }
    assert [step["gpu"]["gpus"] for step in result["levels"]] == [0]
    assert "No GPU here" in (out / "report.html").read_text()
