"""`vllm-harness compare`: two run folders, the sentences, the files and the exit code."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
import report_example
from report_example import Server
from report_folder import begin, load, measured

from harness.cli.app import main
from harness.compare.compare_folders import compare_folders
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import read_json
from harness.report.comparison_report import difference_row, headline
from harness.search.next_level import SearchPlan

if TYPE_CHECKING:
    from pathlib import Path

    from harness.search.comparison import Comparison

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("compare")
KNEE = (16, 64, 40, 44, 48, 50, 52, 50)


def folder(
    path: Path, seed: int, levels: tuple[int, ...] = KNEE, slots: int = 40, fail_above: int = 999
) -> Path:
    """A search that held these levels, of a server with so many slots."""
    server = Server(rng=random.Random(seed), fail_above=fail_above)  # noqa: S311 - a fixture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_example, "SLOTS", slots)
        windows = load(server, levels, 8.0)
    measured(begin(path), server, windows)
    return path


def change(path: Path, **parts: dict[str, object]) -> None:
    """Write something else into run.json."""
    info = read_json(path / names.RUN) or {}
    for name, value in info.items():
        if isinstance(value, dict):
            info[name] = value | parts.get(name, {})
    RunFolder(path).write_json(names.RUN, info)


def to_rates(path: Path) -> None:
    """Make of levels of users levels of hundredths of a request per second."""
    info = read_json(path / names.RUN) or {}
    change(path, config={"plan": info["config"]["plan"] | {"rate_step_per_s": 0.01}})
    lines = path / names.LEVELS
    as_rate = r'"users":\1,"rate_per_s":\1e-2'
    lines.write_text(re.sub(r'"users":(\d+)', as_rate, lines.read_text()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A; the same again; with three slots of four; with failures; held levels."""
    here = tmp_path_factory.mktemp("runs")
    folder(here / "a", 1)
    folder(here / "same", 2)
    folder(here / "slots", 3, slots=30)
    folder(here / "fails", 4, fail_above=1)
    folder(here / "one", 5, (48,))
    change(folder(here / "held", 6, (48, 48)), config={"kind": "sweep"})
    steps = here / "held" / names.LEVELS  # as a run leaves them: audited when they are read
    steps.write_text(steps.read_text().replace("}", ',"audited":false}'))
    to_rates(folder(here / "rates", 1, slots=40))
    to_rates(folder(here / "lower", 3, slots=30))
    folder(here / "apart", 7, (3,))
    change(here / "apart", config={"kind": "run"})
    return here


@pytest.mark.parametrize(
    ("b", "code", "headline"),
    [
        ("a", 0, "No significant difference between A and B was found."),
        ("same", 0, "No significant difference between A and B was found."),
        ("slots", 99, "B is worse than A by more than 5%: knee (users) 40, not 52: -23.1% ("),
        ("fails", 99, "B is worse than A by more than 5%: "),
        ("held", 0, "No significant difference between A and B was found."),
    ],
)
def test_the_answer(
    runs: Path, b: str, code: int, headline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """First the sentence, then what it is about, then the figures."""
    assert main(["compare", str(runs / "a"), str(runs / b)]) == code
    first, summary, *table = capsys.readouterr().out.splitlines()
    assert first.startswith(headline)
    assert summary.endswith(f"A is {runs / 'a'}, B is {runs / b}, the tolerance 5%.")
    assert len({len(line) for line in table}) == 1  # aligned
    assert table[2].startswith("| knee (users)") == (b != "held")


def test_what_is_compared(runs: Path) -> None:
    """The knees first, then each level that both held, all its holds together."""

    def told(b: str) -> Comparison:
        return compare_folders(runs / "a", runs / b, 0.05)

    every = {
        "ttft_p50",
        "ttft_p95",
        "itl_p50",
        "itl_p95",
        "tpot_p50",
        "tpot_p95",
        "e2e_p50",
        "e2e_p95",
        "output_tokens_per_s",
        "requests_per_s",
        "error_share",
    }
    got = [(d.users, d.metric) for d in told("same").differences]
    assert got[0] == (0, "knee")
    assert set(got[1:]) == {(users, metric) for users in KNEE for metric in every}
    assert len(got) == 1 + 7 * 11
    assert {d.users for d in told("held").differences} == {48}  # a sweep has no knee
    worse = {d.metric for d in told("fails").differences if d.beyond}
    assert {"error_share"} <= worse
    itself = told("a").differences
    assert {d.change for d in itself} == {0}
    assert {d.verdict.value for d in itself} <= {"no_difference_shown", "inconclusive"}


def test_what_else_differs_is_said_first(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model, a flag, the version, GPUs, the workload."""
    folder(tmp_path / "b", 2)
    info = read_json(tmp_path / "b" / names.RUN) or {}
    server = info["server"] | {"model": "other-7b", "version": "0.27.0"}
    server["flags"] = {"max_num_seqs": 8, "max_num_batched_tokens": 8192}
    work = {"name": "chat", "prompt": {"mean": 512}, "output": {"mean": 48, "shape": "normal"}}
    change(
        tmp_path / "b",
        server=server,
        config={"drive": {"workload": work}},
        gpu={"gpus": [{"name": "H200"}]},
    )
    main(["compare", str(runs / "a"), str(tmp_path / "b"), "--markdown", str(tmp_path / "c.md")])
    want = (
        "CAUTION: A and B were measured differently: model (example-1.5b in A, other-7b in B), "
        "version (0.26.0 in A, 0.27.0 in B), flags max_num_seqs (40 in A, 8 in B), workload "
        "prompt mean (256 in A, 512 in B), workload prompt shape (fixed in A, ? in B)."
    )
    assert capsys.readouterr().out.splitlines()[0] == want
    first = (tmp_path / "c.md").read_text().splitlines()[0]
    assert first.startswith("> **CAUTION: A and B were measured differently: model")


def check_worse_knee(knee: dict[str, Any]) -> None:
    """By more than 5%, and its interval says so."""
    assert knee["metric"] == "knee"
    assert knee["verdict"] == "worse"
    assert knee["beyond"] is True
    lowest, highest = knee["ci95"]
    assert lowest < knee["change"] < highest < -0.05


def test_files(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON to stdout, words to stderr; Markdown with the rest folded; one page without links."""
    page = tmp_path / "c.html"
    comment = tmp_path / "c.md"
    line = ["compare", str(runs / "a"), str(runs / "slots"), "--json", "-"]
    assert main([*line, "--html", str(page), "--markdown", str(comment)]) == 99
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err.startswith(result["headline"])
    assert list(result) == [
        "exit_code",
        "headline",
        "a",
        "b",
        "tolerance",
        "unlike",
        "differences",
    ]
    check_worse_knee(result["differences"][0])
    seen, folded = comment.read_text().split("<details>")
    assert seen.startswith("**B is worse than A by more than 5%: knee (users) 40, not 52: -23.1%")
    assert seen.count("\n| ") <= 2 + 12
    assert folded.count("\n| ") == 2 + len(result["differences"])
    html = page.read_text()
    assert result["headline"] in html
    shown = html[: html.index("</main>")].replace("http://www.w3.org/", "")  # SVG's name
    assert [word for word in ("src=", "http:", "https:") if word in shown] == []
    assert "What changed from A to B" in shown


def test_rates_are_compared_by_rate(runs: Path) -> None:
    """Levels of hundredths of a request per second: the knee and each level in that unit."""
    found = compare_folders(runs / "rates", runs / "lower", 0.05)
    assert {d.users for d in found.differences} == {0, *(users / 100 for users in KNEE)}
    assert {d.unit for d in found.differences} == {"requests/s"}
    names = [row["Figure"] for row in map(difference_row, found.differences)]
    assert names[:2] == ["knee (requests/s)", "p50 TTFT (ms) at 0.16 requests/s"]
    first = found.differences[0]
    before = compare_folders(runs / "a", runs / "slots", 0.05)
    assert (first.a, first.b) == pytest.approx((0.52, 0.4), abs=0.01)
    assert first.change == pytest.approx(before.differences[0].change)
    assert headline(found).startswith(
        "B is worse than A by more than 5%: knee (requests/s) 0.4, not 0.52: -2"
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("a rates", 2, "a has levels of users and rates of requests/s: expected two runs of one "),
        ("a apart", 2, "found valid levels of [16, 40, 44, 48, 50, 52, 64] and [3] users"),
        ("a nowhere", 4, "is not a run folder"),
        ("a same --tolerance 5", 2, "--tolerance is '5': expected a percentage"),
        ("a same --json nowhere/x.json", 4, "cannot be written"),
    ],
)
def test_refusals(
    runs: Path,
    line: str,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line on stderr."""
    monkeypatch.chdir(runs)
    assert main(["compare", *line.split()]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("vllm-harness: ")
    assert err.count("\n") == 1


def test_a_level_is_judged_by_the_baselines_slos(runs: Path, tmp_path: Path) -> None:
    """B searched with other SLOs: its knee is still by A's, and that is said."""
    slos = ["ttft_p95=5s"]
    plan = {"plan": {"slos": slos, "seed": SearchPlan(()).seed}, "slos": slos}
    change(folder(tmp_path / "b", 1), config=plan)
    found = compare_folders(runs / "a", tmp_path / "b", 0.05)
    assert found.differences[0].change == 0
    assert list(found.unlike) == ["SLOs"]
