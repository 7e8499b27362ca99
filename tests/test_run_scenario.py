"""Scenarios: files in place of options, what is refused in them, and that each run repeats."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from study_process import harness, load

from harness.cli import knee
from harness.cli.app import main, parser
from harness.metrics.slo import Slo, check_slos
from harness.metrics.slo_presets import SLO_PRESETS
from harness.run import form as forms
from harness.run import options_from_args as plain
from harness.run.option import Option, declare
from harness.run.scenario import expanded, options_of, scenario_of, to_toml

if TYPE_CHECKING:
    from harness.run.study_options import Wanted
    from harness.search.next_level import Hold, SearchPlan

URL = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[1]


def options(words: list[str]) -> tuple[Wanted, SearchPlan, tuple[Hold, ...]]:
    """What a command line asks for."""
    args = parser().parse_args([*words, "--out", "OUT"])
    got = knee.options(args) if words[0] == "knee" else plain.run_options(args, words[0])
    return got, got.plan, got.holds


@pytest.mark.parametrize(
    ("toml", "line", "means"),
    [
        (f'url = "{URL}"\nmax_users = 64', "knee", f"knee {URL} --max-users 64"),
        (
            f'url = "{URL}/v1"\nslo = ["ttft_p95=1s", "itl_p95=50ms"]\nmax-errors = "2%"',
            "knee",
            f"knee {URL}/v1 --slo ttft_p95=1s --slo itl_p95=50ms --max-errors 2%",
        ),
        # a table for NAME=VALUE, an option that holds dots and dashes
        (
            f'url = "{URL}"\n[server_flag]\nmax-num-seqs = 8\nenforce-eager = true',
            "knee",
            f"knee {URL} --server-flag max-num-seqs=8 --server-flag enforce-eager=true",
        ),
        (
            '[header]\nX-Session-ID = "{session}"\n[body]\ntop_p = 0.9\nuser = "me"',
            f"knee {URL}",
            f'knee {URL} --header X-Session-ID:{{session}} --body top_p=0.9 --body user="me"',
        ),
        ('[slo]\nttft_p95 = "1s"', f"knee {URL}", f"knee {URL} --slo ttft_p95=1s"),
        # switches: on, off, and with a --no- form
        (f'url = "{URL}"\ninsecure = true\nprove = false', "knee", f"knee {URL} --insecure"),
        (
            "embedded = true\nenable-chunked-prefill = false\nmax-num-seqs = 8",
            "knee",
            "knee --embedded --no-enable-chunked-prefill --max-num-seqs 8",
        ),
        # a list for an option that is given once
        ("embedded = true\nusers = [1, 2, 4]", "sweep", "sweep --embedded --users 1,2,4"),
        ("embedded = true\nusers = 3", "run", "run --embedded --users 3"),
        # the command line wins, as a whole, and over what excludes it
        (
            'slo = ["ttft_p95=1s", "itl_p95=50ms"]\nbudget = "1m"',
            f"knee {URL} --slo e2e_p90=9s",
            f"knee {URL} --budget 1m --slo e2e_p90=9s",
        ),
        (
            'users = 2\nduration = "9s"',
            f"run {URL} --requests 5",
            f"run {URL} --users 2 --requests 5",
        ),
        ("embedded = true\nmax-num-seqs = 8\nusers = 2", f"run {URL}", f"run {URL} --users 2"),
        (f'url = "{URL}"\nusers = 2', "run --embedded", "run --embedded --users 2"),
        (
            'slo = "preset:chat"',
            f"knee {URL}",
            f"knee {URL} --slo ttft_p99=450ms --slo tpot_p99=40ms",
        ),
    ],
)
@pytest.mark.parametrize("where", ["before", "after", "equals", "folder"])
def test_a_file_means_the_options(
    toml: str, line: str, means: str, where: str, tmp_path: Path
) -> None:
    """The same options as on the command line, wherever --scenario stands."""
    file = tmp_path / "scenario.toml"
    file.write_text(toml)
    command, *rest = line.split()
    words = {
        "before": [command, "--scenario", str(file), *rest],
        "after": [command, *rest, "--scenario", str(file)],
        "equals": [command, f"--scenario={file}", *rest],
        "folder": [command, *rest, "--scenario", str(tmp_path)],
    }[where]
    got, want = (options(each) for each in (words, means.split()))
    assert got == want


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("max-user = 3", "FILE has 'max-user', and `knee` has no option --max-user: expected"),
        ("max-user = 3", "expected names of options; try max-users."),
        ("xyz = 3", "expected names of options; try `vllm-harness knee --help`."),
        ('scenario = "other.toml"', "has no option --scenario"),
        ('help = "yes"', "has no option --help"),
        ("embedded = 1", "embedded of FILE is 1: expected a switch; try true or false."),
        ('embedded = "true"', "expected a switch"),
        ("budget = 1979-05-27", "--budget is '1979-05-27'"),
        ("[budget]\na = [1]", "--budget is 'a=[1]'"),
        ('budget = "1x"', "--budget is '1x'"),
        ('workload = "chatt"', "chat"),
        ("max-users = -1", "--max-users is '-1': expected a whole number"),
        ("url = ", "--scenario is FILE (Invalid value"),
        ('slo = "preset:chatty"', "--slo is 'preset:chatty': expected one of voice, code, chat"),
        ('slo = "preset:chatty"', "batch, agent after preset:; try --slo preset:chat."),
        (None, "--scenario is FILE (No such file or directory): expected a TOML file"),
    ],
)  # fmt: skip
def test_refused(
    toml: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name as it is in the file, and exit code 2."""
    file = tmp_path / "mine.toml"
    if toml is not None:
        file.write_text(toml)
    assert main(["knee", "--scenario", str(file), "--dry-run"]) == 2
    assert says.replace("FILE", str(file)) in capsys.readouterr().err


def test_what_another_command_has_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file serves three commands; that something does not count is said."""
    file = tmp_path / "mine.toml"
    file.write_text('embedded = true\nbudget = "1m"\nmax_users = 9')
    from_file = options(["run", "--users", "2", "--scenario", str(file)])
    assert from_file == options(["run", "--users", "2", "--embedded"])
    assert capsys.readouterr().err == f"{file}: `run` leaves out budget, max_users\n"


LINES = [
    f"knee {URL} --slo itl_p95=50ms --slo preset:voice --server-flag max-num-seqs=8 --seed 7",
    f"knee {URL} --model é\"'\\{chr(127)}{chr(9)}😀 --ca-file a.pem --insecure --gpu-metrics none",
    "knee --embedded --slo e2e_p95=9s --no-enable-prefix-caching --jitter 3% --baseline B",
    "knee --embedded --slo e2e_p95=9s --at-least 4 --plan-users 9",
    "run --embedded --users 3 --requests 40 --workload rag --prompt-tokens 99 --api completions",
    f'run {URL} --users 3 --body user="me" --header X-A:{{user}} --header X-B:$HOME',
    "sweep --embedded --users 1,2,4 --duration 5s --repeats 2 --idle-timeout 9s",
    "sweep --embedded --users 1,2 --batch 8 --max-errors 3%",
    "sweep --embedded --rate 5,10,20 --arrivals gamma:2 --max-in-flight 64",
    f"knee {URL} --load rate --slo preset:agent --metrics-url http://h:1 --metrics-url http://h:2",
    "run --embedded --users 3 --workload conversation --turns 4 --history last:3 --think-time 1s",
]


@pytest.mark.parametrize("line", LINES)
def test_what_a_run_writes_repeats_it(line: str, tmp_path: Path) -> None:
    """The options, from what they were written as; nothing of where results went."""
    words = re.split(" ", line)
    elsewhere = ["--quiet", "--json", str(tmp_path / "j.json")]
    asked = options([*words, *elsewhere])
    file = tmp_path / "scenario.toml"
    file.write_text(to_toml(asked[0].output.scenario, words[0]))
    assert options([words[0], "--scenario", str(file), *elsewhere]) == asked
    keys = tomllib.loads(file.read_text()).keys()
    assert {"out", "json", "quiet", "scenario"} & keys == set()
    # defaults are written down: a later version may have others
    assert tomllib.loads(file.read_text()).keys() >= {"workload", "seed", "max-errors"}


def test_rows_of_options_need_no_further_code() -> None:
    """Headers, JSON, lists, switches: an option that is declared can be in a file."""
    rows = (
        Option("--header", "", metavar="NAME:VALUE", action="append"),
        Option("--body", "", metavar="KEY=JSON", action="append"),
        Option("--rate"),
        Option("--ids", "", None),
        SCENARIO,
    )
    command = argparse.ArgumentParser()
    declare(command, rows)
    words = expanded(["run", "--scenario", str(ROWS)], {"run": command})
    want: dict[str, Any] = {
        "header": ["X-Session-ID:{session}", "X-Team:a b"],
        "body": ["temperature=0.7", 'user="me"', 'stop=["x"]', "logprobs=true"],
        "rate": "5,10.5",
        "ids": True,
        "scenario": None,
    }
    assert vars(command.parse_args(words[1:])) == want
    again = scenario_of(words[1:], options_of(command), ())
    assert again == {key: value for key, value in want.items() if value}


SCENARIO = Option("--scenario")
ROWS = ROOT / "tests/data/scenario_rows.toml"


def test_presets_are_documented() -> None:
    """Each is well formed and stands in docs/scenarios.md as it is, with where it is from."""
    page = (ROOT / "docs/scenarios.md").read_text()
    rows = dict(re.findall(r"^\| `preset:(\w+)` \| (.+?) \| .*https?://", page, re.MULTILINE))
    assert rows == {
        name: ", ".join(f"`{one}`" for one in slos) for name, slos in SLO_PRESETS.items()
    }
    for slos in SLO_PRESETS.values():
        check_slos([Slo.parse(text) for text in slos], 128)
        assert [str(Slo.parse(text)) for text in slos] == list(slos)


def test_a_form_is_a_scenario_too(tmp_path: Path) -> None:
    """A search that was started in a browser can be repeated on the command line."""
    form = {"host": URL, "slo": "ttft_p95=1s", "max_users": "40", "budget": "2m"}
    values, wrong = forms.read_form(form)
    assert wrong == {}
    file = tmp_path / "scenario.toml"
    file.write_text(to_toml(forms.scenario_of(form, values), "knee"))
    got, *_ = options(["knee", "--scenario", str(file)])
    want, *_ = options(["knee", URL, "--slo", "ttft_p95=1s", "--max-users", "40", "--budget", "2m"])
    assert got.target == want.target
    assert got.load == want.load
    assert got.plan == want.plan


@pytest.mark.long
@pytest.mark.process
def test_a_run_is_repeated_from_its_folder(tmp_path: Path) -> None:
    """The second run sends what the first sent, and writes the same scenario."""
    first = tmp_path / "1"
    second = tmp_path / "2"
    done = harness(
        "run",
        "--embedded",
        "--users",
        "2",
        "--requests",
        "6",
        "--output-tokens",
        "8",
        "--prompt-tokens",
        "33",
        "--max-num-seqs",
        "4",
        "--slo",
        "preset:batch",
        "--seed",
        "5",
        "--quiet",
        "--out",
        str(first),
    )
    assert (first / "scenario.toml").exists(), done.stdout + done.stderr
    harness("run", "--scenario", str(first / "scenario.toml"), "--quiet", "--out", str(second))
    texts = [(folder / "scenario.toml").read_text() for folder in (first, second)]
    assert texts[0] == texts[1]
    drives = [load(folder / "run.json")["config"] for folder in (first, second)]
    for one in drives:
        for key in ("run_id", "url"):
            one["drive"].pop(key)
        one.pop("folder")
    assert drives[0] == drives[1]
    assert drives[0]["slos"] == ["ttft_p99=6s", "tpot_p99=175ms"]
