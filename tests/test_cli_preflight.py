"""Checks of this machine before a run: the run folder, open files, the model's context."""

from __future__ import annotations

import resource
import socket
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cli.app import main, parser
from harness.errors import ConfigError, RunFolderError
from harness.load.workloads import workload
from harness.metrics.slo import Slo, check_slos
from harness.reader import backends as reading
from harness.records import codec
from harness.records.new_folder import check_new
from harness.run.checks import CHECKS, Severity
from harness.run.options_from_args import run_options
from harness.run.preflight import (
    FILES_WITHOUT_USERS,
    check_lengths,
    check_machine,
    clipping_note,
    offered_tools,
    raise_file_limit,
)
from harness.run.study_options import LoadOptions, OutputOptions
from harness.server.address import check_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "rows", "want"),
    [
        ("", "", 0),
        ("--workload conversation --tools 2", "", 2),
        ("", '{"prompt": "a"}\n', 0),
        ("", '{"messages": [{"role": "user", "content": "a"}], "tools": [{"a": 1}]}\n', 1),
    ],
)
def test_tools_of_a_load(words: str, rows: str, want: int, tmp_path: Path) -> None:
    """Those of its sessions, or of the first row that has some."""
    if rows:
        (tmp_path / "rows").write_text(rows)
        words = f"--data {tmp_path / 'rows'}"
    line = ["run", "http://127.0.0.1:9", "--users", "2", *words.split()]
    load = run_options(parser().parse_args(line), "run").load
    assert len(offered_tools(load)) == want


@pytest.mark.parametrize("kind", ["folder with a file", "file"])
def test_folder_exists(tmp_path: Path, kind: str) -> None:
    """A run never overwrites: a folder with anything in it, or a file, is refused."""
    taken = tmp_path if kind != "file" else tmp_path / "taken"
    (tmp_path / "taken").write_text("earlier")
    with pytest.raises(RunFolderError, match=r"exists and is not an empty folder.*try another"):
        check_new(taken)


@pytest.mark.parametrize("name", ["new", "a/b/new", "."])
def test_folder_free(tmp_path: Path, name: str) -> None:
    """A new folder, however deep, or an empty one is fine, and is not made yet."""
    check_new(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limit of open files, restored afterwards (the soft one: the hard one stays)."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_file_limit_is_raised(limits: tuple[int, int]) -> None:
    """A low soft limit goes up to the hard one when the load needs more."""
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    raise_file_limit(1_000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1_000


def test_file_limit_is_left_alone(limits: tuple[int, int]) -> None:
    """A soft limit that is enough stays as it is."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
    assert raise_file_limit(300) == 300


def test_too_few_files(tmp_path: Path, limits: tuple[int, int]) -> None:
    """More users than the hard limit allows are refused, with the number that would fit."""
    hard = limits[1]
    fit = hard - FILES_WITHOUT_USERS
    for option in ("--max-users", "--users"):
        with pytest.raises(ConfigError, match=f"can open {hard} files.*try {option} {fit}"):
            check_machine(OutputOptions(tmp_path / "new"), hard, option)


def test_busy_port(tmp_path: Path) -> None:
    """A web UI whose port is taken is refused, and a free one is named."""
    said = (
        r"--ui-port is \d+ \(Address already in use\): expected a free port.*try --ui-port \d+\.$"
    )
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match=said):
        check_machine(OutputOptions(tmp_path / "new", ui_port=other.getsockname()[1]), users=1)


def test_free_port() -> None:
    """A port that nobody listens at passes, and is left free."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    check_port("--ui-port", "127.0.0.1", port)
    check_port("--ui-port", "127.0.0.1", port)


def test_no_such_port() -> None:
    """What is no port is said so."""
    with pytest.raises(ConfigError, match=r"--ui-port is 70000 \(no such port\)"):
        check_port("--ui-port", "127.0.0.1", 70_000)


@pytest.mark.parametrize(
    ("name", "context", "tries"),
    [
        # fixed: 256 + 128 tokens in every request; rag: 2048 + 64 on average, more at most
        ("fixed", 384, None),
        ("rag", 2112, None),
        ("agent", 1312, None),
        ("fixed", 383, (255, 127)),
        ("rag", 2111, (2047, 63)),
        # agent: 192 + 96 beside a system message of 1024
        ("agent", 1311, (191, 95)),
    ],
)
def test_context(name: str, context: int, tries: tuple[int, int] | None) -> None:
    """A workload whose mean request is longer than the context is refused with one that fits."""
    if tries is None:
        check_lengths(workload(name), context)
        return
    with pytest.raises(ConfigError) as caught:
        check_lengths(workload(name), context)
    said = f"context {context:,}: expected it to fit; try --prompt-tokens {tries[0]} "
    assert said + f"--output-tokens {tries[1]}" in str(caught.value)
    check_lengths(workload(name).sized(*tries), context)


@pytest.mark.parametrize(
    ("name", "context", "budget", "want"),
    [
        ("chat", None, 0, ""),
        ("chat", 8192, 0, ""),
        ("rag", 4096, 0, "4 of 1,000 planned requests are clipped to the model's context of 4,096"),
        ("fixed", 384, 0, ""),
        ("conversation", 8192, 2000, ""),
        (
            "conversation",
            8192,
            400,
            "139 of 1,000 planned requests are clipped to --session-budget of 400",
        ),
        (
            "conversation",
            300,
            400,
            "384 of 1,000 planned requests are clipped to the model's context of 300",
        ),
    ],
)
def test_what_is_said_of_clipped_requests(
    name: str, context: int | None, budget: int, want: str
) -> None:
    """Nothing where all fit, or where neither limit is known; of two limits the smaller one."""
    work = workload(name)
    if budget and work.conversation:
        work = replace(work, conversation=replace(work.conversation, session_budget=budget))
    got = clipping_note(LoadOptions(work, seed=1), context)
    assert got == (f"{want} tokens" if want else "")


@pytest.mark.parametrize(
    ("line", "tokens", "said"),
    [
        ("ttft_p95=1s itl_p95=50ms itl_p99=90ms", 2, ""),
        ("ttft_p95=1s e2e_p95=5s", 1, ""),
        ("itl_p95=50ms", 1, "--slo itl_p95=50ms is on the time between output tokens"),
        ("ttft_p95=1s tpot_p50=50ms", 1, "--slo tpot_p50=50ms is on"),
        ("itl_p95=9ms itl_p95=9ms", 128, "--slo itl_p95 is given 2 times"),
        ("ttft_p95=500ms itl_p95=9ms ttft_p95=100ms", 128,
         "--slo ttft_p95 is given 2 times.*; try --slo ttft_p95=100ms alone"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["chat", "fixed"])
def test_slos(line: str, tokens: int, said: str, name: str) -> None:
    """Two on one quantile, and one that no answer could show, are refused."""
    slos = [Slo.parse(text) for text in line.split()]
    work = workload(name).sized(None, tokens)
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        check_slos(slos, work.output.mean)


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a check, each judged; a machine that runs these tests passes."""
    assert main(["doctor", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(("ok ", "warn "))] == []
    assert [line for line in lines if line.startswith("warn") and "->" not in line] == []


@pytest.mark.parametrize("name", ["reader", "codec"])
def test_what_was_not_compiled_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `doctor` and in run.json, with the reason; the other one is as it was."""
    why = "it does not load (invalid ELF header)"
    if name == "reader":
        monkeypatch.setattr(reading, "why_not_c", lambda: why)
    else:
        monkeypatch.setattr(codec, "WHY_PYTHON", why)
    found = CHECKS[name]()
    assert found.level == Severity.warn
    assert found.what == f"in Python: {why}"
    said = reading.code_in_use()
    assert said[name] == "python"
    assert said[f"{name}_fallback"] == why
    other = "codec" if name == "reader" else "reader"
    assert (f"{other}_fallback" in said) == (said[other] == "python")


def test_a_reader_in_python_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is the reason."""
    monkeypatch.setenv("HARNESS_READER", "python")
    said = reading.code_in_use()
    assert said["reader"] == "python"
    assert said["reader_fallback"] == "HARNESS_READER is python"
