"""A cold start's figures and page; one and two lengths on a real vLLM (three starts)."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import real_vllm
from study_process import load
from test_server_life import LITTLE
from test_server_start_log import seen

from harness.cli.app import main
from harness.core.typed_json import to_json
from harness.errors import ServerUnreachable
from harness.lifecycle import cold_start
from harness.lifecycle.cold_start import (
    NAMES,
    RUN_COLUMNS,
    SERVER_CPU,
    drop_caches,
    figures,
    run_rows,
)
from harness.lifecycle.kv_scaling import COLUMNS, bytes_per_token, with_slopes
from harness.lifecycle.start_log import StartLog, read_start_log
from harness.lifecycle.vllm_start import StartOptions
from harness.report.templates import render
from harness.report.write import as_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOVED = {"disk reads, MB": 3100.0, "growth of the page cache, MB": 3090.0}
NO_GPU = {"before the start": None, "after the requests": None}
# What a start has beside the figures of its requests.
PLAIN_START: dict[str, Any] = {
    "ready_s": 1.0,
    "notes": (),
    "start_log": read_start_log("", 1.0),
    "gpus": [],
    "by_start": MOVED,
    "caches": "",
    "model": "m",
    "system": "Linux",
    "gpu_memory_mib": NO_GPU,
}
TTFTS = (2.0, 0.12, 0.1, 0.1, 0.11, 0.09, 0.1)  # cold_1, warm_1, five runs with a median of 0.1


NO_FAULTS = (0,) * len(NAMES)


def requests(ttfts: tuple[float, ...], faults: tuple[int, ...] = NO_FAULTS) -> list[dict[str, Any]]:
    """Of 100 tokens each, 0.5 s from the first token to the end."""
    of_each = zip(NAMES, ttfts, faults, strict=True)
    return [request(name, ttft_s, n_faults) for name, ttft_s, n_faults in of_each]


def request(name: str, ttft_s: float, n_faults: int) -> dict[str, Any]:
    return {
        "name": name,
        "ttft_s": ttft_s,
        "wall_s": ttft_s + 0.5,
        "total_tokens": 100,
        "output_preview": "w",
        "came_at_once": False,
        "gpu_util_pct": None,
        "server_cpu_pct": 80.0,
        "meanwhile": {"major faults": n_faults, "CPU of others, s": 0.0},
    }


def test_figures() -> None:
    """The parts are the phases and the first request, split at what a warm one takes."""
    got = figures(requests(TTFTS), {"weights": 6.0, "API server": 2.0}, first_token_s=10.5)
    assert got["parts_s"] == {
        "weights": 6.0,
        "API server": 2.0,
        "first request: beyond a warm one": 1.9,
        "first request: as a warm one": 0.1,
    }
    assert (got["cold_wall_s"], got["warm_wall_s"], got["wall_s"]) == (2.5, 0.62, 11.0)
    assert (got["cold_factor"], got["total_tokens"], got["output_preview"]) == (20.0, 100, "w")
    assert got["outliers"] == {}
    assert set(got["sanity"].values()) == {True}  # 10.0 of 10.5 s


@pytest.mark.parametrize(
    ("ttfts", "faults", "outliers"),
    [
        ((0.1, 0.1, 0.1, 0.121), (0, 0, 0, 9), {"run_5": {"major faults": 9}}),  # 21% over
        ((0.1, 0.1, 0.1, 0.079), (0, 0, 0, 9), {"run_5": {}}),  # 21% under: faults make none faster
        ((0.1, 0.1, 0.119, 0.081), (0, 0, 9, 0), {}),  # within 20%
    ],
)
def test_outliers(
    ttfts: tuple[float, ...], faults: tuple[int, ...], outliers: dict[str, Any]
) -> None:
    """What was more than in every other run is said to coincide."""
    all_ttfts = (2.0, 0.1, 0.1, *ttfts)
    all_faults = (0, 0, 0, *faults)
    got = figures(requests(all_ttfts, all_faults), {}, 2.0)
    assert got["outliers"] == outliers


def test_the_table_of_runs() -> None:
    """A row for each request by these names, and the five warm runs by their lowest and highest."""
    ttfts = (2.0, 0.12, 0.1, 0.1, 0.07, 0.3, 0.1)
    start = figures(requests(ttfts, (0, 0, 0, 0, 0, 9, 0)), {}, 2.0)
    rows = run_rows(start)
    assert as_csv(rows, RUN_COLUMNS).splitlines()[:3] == [
        "run,ttft_s,e2e_s,tokens,gpu_util_pct,server_cpu_pct,notes",
        "cold_1,2.0,2.5,100,,80,the first request after the start",
        "warm_1,0.12,0.62,100,,80,",
    ]
    notes = {row["run"]: row["notes"] for row in rows if row["notes"]}
    assert notes == {
        "cold_1": "the first request after the start",
        "run_3": "outlier: TTFT 30% below the median",
        "run_4": "outlier: TTFT 200% above the median; higher than in every other run: "
        "major faults",
    }
    assert start["warm_runs"] == {
        "min": {"name": "run_3", "ttft_s": 0.07},
        "median": {"name": "run_2", "ttft_s": 0.1},
        "max": {"name": "run_4", "ttft_s": 0.3},
    }


class NoConnection:
    """To a server that is not there."""

    def __init__(self, _access: object) -> None: ...

    def fetch(self, _path: str) -> SimpleNamespace:
        return SimpleNamespace(json=lambda: {"data": [{"id": "m"}]})

    def close(self) -> None: ...


def test_what_a_start_took_is_no_count_since_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Others had used 3,900 s of CPU before the start, 3,916 s after it, then 1 s a reading."""
    n_readings = 2 * len(NAMES) + 1  # after the start, before and after each request
    after_start_s = [3_916.0 + n for n in range(n_readings)]
    others_s = iter([3_900.0, *after_start_s])

    @contextmanager
    def started(_options: StartOptions, *, log: Path) -> Iterator[SimpleNamespace]:
        seen = SimpleNamespace(phases_s={}, log=log)
        yield SimpleNamespace(
            pid=1, url="http://127.0.0.1:1", began_s=0.0, wall_s=38.0, notes=(), start_log=seen
        )

    fakes = {
        "started": started,
        "HttpConnection": NoConnection,
        "counters": lambda _session: {SERVER_CPU: 0.0, "CPU of others, s": next(others_s)},
        "timed_stream": lambda _line, _body: requests(TTFTS)[0],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(cold_start, name, fake)
    got = cold_start.measure_cold_start(StartOptions(), tmp_path / "log", "", (1, 1))
    assert got["by_start"]["CPU of others, s"] == 16
    assert [one["meanwhile"]["CPU of others, s"] for one in got["requests"]] == [1.0] * len(NAMES)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"data: {\n\n", "cannot be read (an event is not JSON: "),
        (b'data: {"choices": [7]}\n\n', "cannot be read (an event is JSON, but not that of a comp"),
        (b"<html>", "a request brought no token, but status 200 (<html>)"),
    ],
)
def test_no_stream_of_tokens(body: bytes, said: str) -> None:
    """One sentence, not what Python says."""
    answer = SimpleNamespace(status=200, body=body, sent_ns=0, pieces=[(1, body)])
    line: Any = SimpleNamespace(fetch=lambda *_: answer)
    with pytest.raises(ServerUnreachable, match=re.escape(said)):
        cold_start.timed_stream(line, {"max_tokens": 2})


def test_a_chat_stream() -> None:
    """A gateway may answer completions as a chat: its tokens count, without a text."""
    body = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    answer = SimpleNamespace(status=200, body=body, sent_ns=0, pieces=[(10**9, body)])
    line: Any = SimpleNamespace(fetch=lambda *_: answer)
    got = cold_start.timed_stream(line, {"max_tokens": 1})
    assert (got["ttft_s"], got["output_preview"]) == (1.0, "")


def test_parts_that_do_not_add_up() -> None:
    """10 s of parts where 11.2 s passed: more than 10% are missing."""
    got = figures(requests(TTFTS), {"weights": 8.0}, first_token_s=11.2)
    assert [what for what, holds in got["sanity"].items() if not holds] == [
        "the parts add up within 10%"
    ]


def test_answers_that_came_whole() -> None:
    """All tokens in one read: the page says first that no TTFT can be told, and none is stable."""
    whole = [one | {"came_at_once": True} for one in requests(TTFTS)]
    start = figures(whole, {}, 2.0) | PLAIN_START
    assert [what for what, holds in start["sanity"].items() if not holds] == [
        "the first token came before the last"
    ]
    page = render("first_token_latency.md.j2", starts=[to_json(start)], rows=run_rows(start))
    assert "cannot be told from e2e**: all tokens of 7 of 7 answers came at once" in page
    assert "**Stable**" not in page


def test_the_page() -> None:
    """All tables, from the log of an H200; with the page cache warm in a second start."""
    log = read_start_log(seen("vllm_start_h200.log"), 100.0)
    start = figures(requests((2.0, 0.12, 0.1, 0.1, 0.13, 0.09, 0.1)), log.phases_s, 194.0) | {
        "ready_s": 192.0,
        "notes": ("--x: y",),
        "start_log": log,
        "gpus": ["NVIDIA H200"],
        "by_start": MOVED,
        "caches": "as it was",
        "model": "qwen",
        "system": "Debian, Linux 6.1",
        "gpu_memory_mib": {"before the start": 4.0, "before the requests": 130_000.0},
    }
    told = [to_json(start), to_json(start)]
    page = render("first_token_latency.md.j2", starts=told, rows=run_rows(start))
    for line in (
        "| model | qwen |",
        "| OS and kernel | Debian, Linux 6.1 |",
        "| device | cuda |",
        "| GPU | NVIDIA H200 |",
        "| GPU memory in use before the requests, MiB | 130,000 |",
        "| run | ttft_s | e2e_s | tokens | gpu_util_pct | server_cpu_pct | notes |",
        "| cold_1 | 2.0000 | 2.5000 | 100 |  | 80 | the first request after the start |",
        "Of the 5 warm runs: min 90.0 ms (run_4), median 100.0 ms (run_2), max 130.0 ms (run_3).",
        (
            "**Disk to host.** Until it was ready, the server read 3,100 MB from disk, and the "
            "page cache grew by 3,090 MB: the program's files (the weights are random and in no "
            "file) came from disk."
        ),
        "| disk reads, MB | 3,100 |",
        "| model loaded, GiB (vLLM's log) | 2.98 |",
        "| warm-up | 100.00 | 51.5% | 189 |",
        "The parts add up to 194.00 s; from the start of the process to the first token it was",
        "| cold_1 | 2,000.0 | 2,500.0 | 100 | 0 | 0 |",
        "- run_3 is 30% slower; nothing that was recorded tells why.",
        "| the parts add up within 10% | yes |",
        "| page cache and compiled kernels pre-warmed by the start before | 192.0 | 2,000.0 |",
        (
            "- The longest part is *warm-up*, 100.0 s: keep the caches of kernels that are "
            "compiled then (~/.triton, ~/.cache/flashinfer)."
        ),
    ):
        assert f"\n{line}\n" in page
    assert "/" not in page.partition("## Where")[0].replace("tokens/s", "")  # no paths
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Server config",
        "## Where the cold time goes",
        "## Runs",
        "## Single run (cold_1, warm_1)",
        "## Warm variance (5 runs)",
        "## Sanity metrics",
        "## Pre-warmed against cold",
        "## How to explain it to an SRE",
    ]


@pytest.mark.parametrize(
    ("flags", "moved", "before_mib", "want"),
    [
        (
            {},
            MOVED,
            4.0,
            (
                "MB from disk, and the page cache grew by 3,090 MB: the files came from disk.",
                "Loading the weights took 6.0 s, after which 3,000 MiB of GPU memory were in use.",
                "reading the files and copying them, so the copy to the GPU took at most as long.",
            ),
        ),
        (
            {"load_format": "dummy"},
            MOVED | {"disk reads, MB": 20.0, "growth of the page cache, MB": -355.0},
            4.0,
            (
                "read 20 MB from disk, and the page cache shrank by 355 MB: the program's files ",
                "files (the weights are random and in no file) were already in the page cache, or ",
                "The weights are random and were made on the GPU, so none were copied to it.",
            ),
        ),
        ({}, MOVED, None, ("No GPU was read here, so it is not known what was copied to one.",)),
    ],
)
def test_what_came_from_disk_and_what_went_to_the_gpu(
    flags: dict[str, str], moved: dict[str, float], before_mib: float | None, want: tuple[str, ...]
) -> None:
    """A sentence for each of the two ways; random weights go neither."""
    log = StartLog(flags=flags, phases_s={"weights": 6.0}, gpu_mib={"weights": 3000.0})
    start = figures(requests(TTFTS), log.phases_s, 8.0) | PLAIN_START
    start |= {
        "ready_s": 7.0,
        "start_log": log,
        "by_start": moved,
        "gpu_memory_mib": {"before the start": before_mib},
    }
    page = render("first_token_latency.md.j2", starts=[to_json(start)], rows=run_rows(start))
    assert [sentence for sentence in want if sentence not in page] == []


def test_what_made_a_run_slow() -> None:
    """Its share and what was higher; of a faster one, its share alone."""
    ttfts = (2.0, 0.12, 0.1, 0.1, 0.07, 0.3, 0.1)
    start = figures(requests(ttfts, (0, 0, 0, 0, 0, 9, 0)), {}, 2.0) | PLAIN_START
    page = render("first_token_latency.md.j2", starts=[to_json(start)], rows=run_rows(start))
    want = (
        "\n- run_3 is 30% faster.\n"
        "- run_4 is 200% slower; higher than in every other run: major faults 9.\n"
    )
    assert want in page


def test_a_busy_machine() -> None:
    """Others used 3.1 s of CPU in the 6.2 s of all requests: half a core, which is said."""
    busy = requests(TTFTS)
    busy[0]["meanwhile"]["CPU of others, s"] = sum(one["wall_s"] for one in busy) / 2
    got = [figures(each, {}, 2.0)["others_cores"] for each in (busy, requests(TTFTS))]
    assert got == [0.5, 0.0]


def test_drop_caches(tmp_path: Path) -> None:
    """Where the machine's page cache cannot be emptied, the model's files are."""
    (tmp_path / "model.safetensors").write_bytes(b"x" * 9000)
    said = drop_caches(tmp_path)
    if said == "all was dropped":
        return
    why = said.removeprefix("the model's files were dropped (dropping all: ").removesuffix(")")
    assert why in ("Permission denied", "Read-only file system", "Operation not permitted")


def row(length: int, used: float | None, **more: Any) -> dict[str, Any]:
    """A measured length."""
    return dict.fromkeys(COLUMNS) | {"max_model_len": length, "gpu_mem_used_mb": used} | more


def test_slopes() -> None:
    """The naive slope is told, and that it is not the cost of a token; none without a GPU."""
    pool = {"kv_tokens": 540_000.0, "block_size": 16, "bytes_per_token_model": 28_672}
    above = row(65_536, None, notes="above the model's own limit of 32,768 tokens")
    short = row(512, 27_000.0, **pool)
    long = row(1024, 27_002.0, **pool)
    got = with_slopes([short, long, above])
    csv_lines = as_csv(got, COLUMNS).splitlines()
    assert csv_lines[:3] == [
        (
            "max_model_len,gpu_mem_used_mb,delta_mb_from_prev,bytes_per_token_est,notes,kv_tokens,"
            "kv_blocks,block_size,max_concurrency,bytes_per_token_model"
        ),
        "512,27000.0,,,,540000.0,,16,,28672",
        (
            "1024,27002.0,2.0,4096.0,the slope is not the cost of a token: vLLM fills its memory "
            "share,540000.0,,16,,28672"
        ),  # 2 MiB over 512 tokens
    ]
    without_gpu = with_slopes([row(512, None), row(1024, None)])
    no_gpu = "no GPU: its columns are empty"
    assert without_gpu == [row(512, None, notes=no_gpu), row(1024, None, notes=no_gpu)]
    page = render("kv_cache_scaling_notes.md.j2", rows=got, own=32_768)
    for line in (
        "A token costs **28,672 bytes** by the model's shape",
        "## Largest safe length with N users",
        "| Users (N) | Tokens |",
        "| 16 | 30,368 |",  # 540,000 x 0.9 / 16 = 30,375: 1,898 blocks of 16
        "| 4 | 32,768 (the model's own limit) |",
        "A length of 65,536 tokens was not measured: above the model's own limit of 32,768 tokens.",
        "The KV tokens differ by 0.0% between these lengths: twice the length, half as many ",
        "| 2,048 | 237 |",  # 540,000 x 0.9 / 2,048
        "**A latency-focused service:** set `--max-num-seqs` to at most the number",
        "**A throughput-focused service:** set `--max-num-seqs` above that number",
    ):
        assert line in page


@pytest.mark.process
def test_a_length_that_vllm_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is named with vLLM's reason, and the other lengths are measured all the same."""
    options = ["--start-command", LITTLE, "--start-args=--refuses=1024", "--out", str(tmp_path)]
    assert main(["kv-scaling", "--lengths", "1024,512", *options]) == 0
    refused = (
        "--max-model-len 1024: not measured (vLLM ended with exit code 1 (ValueError: no room "
    )
    assert f"\n{refused}" in capfd.readouterr().out
    assert (tmp_path / "kv_cache_scaling.csv").read_text().splitlines()[1:] == [
        "512,,,,no GPU: its columns are empty,,,,,",
        "1024,,,,vLLM ended with exit code 1 (ValueError: no room for 1024 tokens),,,,,",
    ]


@pytest.mark.parametrize(
    ("flags", "config", "want"),
    [
        ({}, {}, 28_672),  # 2 x 28 layers x 2 heads x 128 x 2 bytes
        ({"kv_cache_dtype": "fp8"}, {}, 14_336),
        ({"kv_cache_dtype": "int8_per_token_head"}, {}, 14_784),  # 28 x 2 x (2 x 128 + 2 x 4)
        ({"kv_cache_dtype": "int4_per_token_head"}, {}, 7616),
        ({"kv_cache_dtype": "nvfp4"}, {}, 8064),
        ({"kv_cache_dtype": "turboquant_4bit_nc"}, {}, 10_528),  # 2 x (4 x 512 + 24 x 134)
        ({"dtype": "float32", "kv_cache_dtype": "auto"}, {}, 57_344),
        ({}, {"head_dim": 64}, 14_336),
        ({}, {"num_attention_heads": None}, None),
    ],
)
def test_bytes_per_token(flags: dict[str, str], config: dict[str, Any], want: int | None) -> None:
    """By the shape of config.json: Qwen2's 1.5B."""
    shape = {
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "model_type": "qwen2",
    } | config
    shape = {name: value for name, value in shape.items() if value is not None}
    assert bytes_per_token(shape, flags) == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kv-scaling", "--lengths", "512,x"], "--lengths is '512,x': expected whole numbers"),
        (["kv-scaling", "--lengths", "65536"], "above the model's own limit of 4,096 tokens"),
        (["coldstart", "--vllm", "/nowhere"], "'/nowhere' is no program that can be run"),
        (["coldstart", "--start-args", "'"], "--start-args is .* expected flags as in a shell"),
        (["serve", "--preset", "fast"], "expected one of interactive, throughput"),
    ],
)
def test_bad_input(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence and exit code 2, before anything is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    assert main([*arguments, "--model-dir", str(tmp_path)]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.vllm
def test_coldstart_of_a_real_vllm(
    tmp_path: Path, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whole start, seven requests; the parts add up, and no figure of a GPU is invented."""
    for name, value in real_vllm.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "cold"
    server = ["--vllm", str(real_vllm.VLLM), "--model-dir", str(real_vllm.MODEL)]
    sent = ["--prompt-tokens", "64", "--output-tokens", "8", "--out", str(out)]
    assert main(["coldstart", *server, *sent]) == 0
    got = load(out / "coldstart.json")
    # which request is the slowest, and whether tokens come one by one, a busy machine decides
    sure = {name: got["sanity"][name] for name in got["sanity"] if "first" not in name}
    assert sure == {
        "all requests have as many tokens": True,
        "TTFT is below e2e": True,
        "the parts add up within 10%": True,
    }
    assert got["total_tokens"] == 72
    assert got["gpus"] == []
    assert set(got["start_log"]["gpu_mib"].values()) == {0.0}
    assert "## How to explain it to an SRE" in (out / "first_token_latency.md").read_text()
    first, warm = got["requests"][0]["ttft_s"], got["warm_ttft_s"]
    figure(
        f"first token {got['first_token_s']:.1f} s after the start of the process, TTFT cold "
        f"{1e3 * first:.0f} ms, warm {1e3 * warm:.0f} ms"
    )


@pytest.mark.vllm
def test_two_lengths_of_a_real_vllm(vllm_command: str, tmp_path: Path) -> None:
    """Two starts: a quarter of the requests fit at four times the length; GPU columns are empty."""
    out = tmp_path / "kv"
    lengths = ["--lengths", "512,2048,65536", "--out", str(out)]
    server = ["--vllm", vllm_command, "--model-dir", str(real_vllm.MODEL)]
    assert main(["kv-scaling", *server, *lengths]) == 0
    text = (out / "kv_cache_scaling.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()]
    assert tuple(rows[0]) == COLUMNS
    for cells, length in zip(rows[1:], ("512", "2048", "65536"), strict=True):
        assert cells[:4] == [length, "", "", ""]
    short = dict(zip(COLUMNS, rows[1], strict=False))
    long = dict(zip(COLUMNS, rows[2], strict=False))
    assert short["kv_tokens"] == long["kv_tokens"]
    assert float(short["max_concurrency"]) == 4 * float(long["max_concurrency"])
    assert int(short["kv_blocks"]) * int(short["block_size"]) == int(short["kv_tokens"])
    assert "above the model's own" in rows[3][4]
