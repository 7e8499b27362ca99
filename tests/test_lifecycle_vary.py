"""`vary` and `knee --prove`: settings, the order of runs, what is shown, and real processes."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import signal
import sys
from array import array
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isfinite, log
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import real_vllm
import report_example
from report_example import Server
from report_folder import begin, load, measured
from study_process import alive, check_code, descendants, harness, lines, started, wait_for
from study_process import load as json_of

from harness.cli.app import main
from harness.compare.compare_deployments import compare_deployments
from harness.compare.compare_folders import compare_settings
from harness.compare.proof import AS_STARTED, KNOBS, judge, prove, turns
from harness.core.states import Decision
from harness.core.typed_json import to_json
from harness.diagnosis.bottleneck import RULES
from harness.errors import ConfigError, HarnessError
from harness.lifecycle import vary_servers
from harness.lifecycle.context_cost import context_costs
from harness.lifecycle.vary_settings import all_settings, in_order, parse_variable
from harness.lifecycle.vllm_start import StartOptions
from harness.metrics.level_figures import Change, Difference
from harness.metrics.result import Level, Result
from harness.records import names
from harness.records.folder_writer import RecordWriter
from harness.records.request_record import Outcome, RequestRecord
from harness.report.comparison_report import setting_row, settings_report
from harness.report.deployments_report import deployment_findings
from harness.run.results import write_results
from harness.search.comparison import (
    ERROR_SHARE,
    KNEE,
    Comparison,
    Setting,
    Side,
    best_setting,
    compared_best,
    exit_code,
    mean_side,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENGINE = shlex.join([sys.executable, "-m", "harness", "engine"])
TINY = ("--prompt-tokens", "8", "--output-tokens", "8", "--quiet")


@pytest.mark.parametrize(
    ("text", "server", "client"),
    [
        ("server.max-num-seqs=8,16", [["--max-num-seqs=8"], ["--max-num-seqs=16"]], [[], []]),
        ("server.max_num_seqs=8", [["--max-num-seqs=8"]], [[]]),
        ("server.enable-chunked-prefill=true,false",
         [["--enable-chunked-prefill"], ["--no-enable-chunked-prefill"]], [[], []]),
        ("server.kv-cache-dtype=default,fp8", [[], ["--kv-cache-dtype=fp8"]], [[], []]),
        ("server.chat-template=a b,c", [["--chat-template=a b"], ["--chat-template=c"]], [[], []]),
        ('server.speculative-config=default,{"a":1,"b":{"c":[2,3]}},{}',
         [[], ['--speculative-config={"a":1,"b":{"c":[2,3]}}'], ["--speculative-config={}"]],
         [[], [], []]),
        ("prompt-tokens=64,128", [[], []], [["--prompt-tokens=64"], ["--prompt-tokens=128"]]),
        ("slo=ttft_p95=1s,itl_p95=9ms", [[], []], [["--slo=ttft_p95=1s"], ["--slo=itl_p95=9ms"]]),
    ],
)  # fmt: skip
def test_a_variable(text: str, server: list[list[str]], client: list[list[str]]) -> None:
    """Values in the order given, as flags of the server or of the inner command."""
    found = parse_variable(text)
    assert [list(one.server) for one in found] == server
    assert [list(one.client) for one in found] == client


@pytest.mark.parametrize("text", ["x", "x=", "=1,2", "server.=1,2", "x=1,1", "x=1,,2", "x y=1,2"])
def test_what_is_no_variable(text: str) -> None:
    """One sentence with the text."""
    with pytest.raises(ConfigError, match=f"the setting is {re.escape(repr(text))}: expected"):
        parse_variable(text)


@pytest.mark.parametrize(
    ("variables", "once", "want"),
    [
        (["server.a=1,2"], False, ["server.a=1", "server.a=2", "server.a=2", "server.a=1"]),
        (["server.a=1,2"], True, ["server.a=1", "server.a=2"]),
        (["server.a=1,2,3"], False, ["server.a=1", "server.a=2", "server.a=3"]),
        (["a=1,2,3"], False, ["a=1", "a=2", "a=3", "a=3", "a=2", "a=1"]),  # no restarts
        (["a=1,2,3"], True, ["a=1", "a=2", "a=3"]),
        # the server's varies slowest, wherever it stands: two starts in place of four
        (["b=1,2", "server.a=1,2"], False,
         ["server.a=1 b=1", "server.a=1 b=2", "server.a=2 b=1", "server.a=2 b=2"]),
    ],
)  # fmt: skip
def test_the_order_of_runs(
    variables: list[str], once: bool, want: list[str], tmp_path: Path
) -> None:
    """A B B A for two, without a restart between the two Bs; each run in a folder of its own."""
    runs = in_order(all_settings([*map(parse_variable, variables)]), tmp_path, once=once)
    assert [setting.name for setting, _ in runs] == want
    assert len({folder for _, folder in runs}) == len(runs)


def test_kept_servers_are_measured_in_turn(tmp_path: Path) -> None:
    """No start is saved by an order, so drift decides it: A B C C B A, with its options."""
    deployed = tuple(Setting(name, deployment=name, gpus=2) for name in ("tp", "dp"))
    settings = all_settings([deployed, parse_variable("workload=chat,rag")])
    want = ["tp workload=chat", "tp workload=rag", "dp workload=chat", "dp workload=rag"]
    kept = in_order(settings, tmp_path, once=False, keep=True)
    assert [setting.name for setting, _ in kept] == [*want, *want[::-1]]
    assert [setting.name for setting, _ in in_order(settings, tmp_path, once=False)] == want
    assert {setting.gpus for setting in settings} == {2}


@pytest.mark.parametrize("variables", [["a=1"], ["a=1,2,3,4,5", "b=1,2,3,4,5,6,7"]])
def test_too_few_or_too_many(variables: list[str]) -> None:
    """1 and 35 combinations."""
    with pytest.raises(ConfigError, match="expected 2 to 32"):
        all_settings([*map(parse_variable, variables)])


def side(value: float, error: float) -> Side:
    """A normal figure in its logarithm."""
    point = log(value) if 0 < value < inf else (inf if value else -inf)
    ends = (log(40), inf) if value == inf else None
    return Side(value, point, lambda z: ends or (point - z * error, point + z * error))


@pytest.mark.parametrize(
    ("sides", "want"),
    [
        ([side(50, 0.1)], (50, -0.1, 0.1)),
        ([side(50, 0.1), side(50, 0.1)], (50, -0.0707, 0.0707)),  # 0.1 / sqrt(2)
        ([side(40, 0.1), side(62.5, 0.1)], (50, -0.2231, 0.2231)),  # half of log(62.5 / 40)
        ([side(50, 0.3), side(50, 0.4)], (50, -0.25, 0.25)),  # sqrt(0.09 + 0.16) / 2
        ([side(50, 0.1), side(inf, 0)], (50, log(40) - log(50), inf)),
    ],
)
def test_runs_of_one_setting(sides: list[Side], want: tuple[float, float, float]) -> None:
    """Their mean, known as well as the runs are, and no better than they agree."""
    found = mean_side(KNEE, sides)
    lo, hi = found.bounds(1.0)
    got = (found.value, lo - log(50), hi - log(50))
    assert [*map(float, got)] == pytest.approx(want, abs=1e-4)
    share = mean_side(ERROR_SHARE, [share_of(0.0), share_of(0.1)])
    assert share.value == pytest.approx(0.05)


def share_of(value: float) -> Side:
    """A share whose standard error is 1."""
    return Side(value, value, lambda z: (value - z, value + z))


def difference(change: float, verdict: Change, metric: str = KNEE) -> Difference:
    """B against an A of 10."""
    b = 10 * (1 + change)
    ci95 = (change, change)
    return Difference(metric, 0, 10, b, change, ci95, verdict, False, 1)


def pair(a: str, b: str, change: float, verdict: Change, metric: str = KNEE) -> Comparison:
    """One figure of two settings."""
    return Comparison(a, b, 0.05, {}, (difference(change, verdict, metric),))


def setting(name: str, *codes: int, **figures: float) -> Setting:
    """With runs that ended so."""
    runs = {f"{name}{i}": code for i, code in enumerate(codes)}
    known_exactly = {key: (value, value, value) for key, value in figures.items()}
    return Setting(name, runs=runs, figures=known_exactly)


RATE = "output_tokens_per_s"


@pytest.mark.parametrize(
    ("settings", "pairs", "want"),
    [
        (
            [setting("a", 0, knee=10), setting("b", 0, knee=20)],
            [pair("a", "b", 1, Change.better)],
            ("b", []),
        ),
        (
            [setting("a", 0, knee=20), setting("b", 0, knee=10)],
            [pair("a", "b", -0.5, Change.worse)],
            ("a", []),
        ),
        (
            [setting("a", 0, knee=10), setting("b", 0, knee=11)],
            [pair("a", "b", 0.1, Change.inconclusive)],
            ("b", ["a"]),
        ),
        (
            [setting("a", 0, knee=10), setting("b", 0, knee=20), setting("c", 0, knee=21)],
            [
                pair("a", "b", 1, Change.better),
                pair("a", "c", 1.1, Change.better),
                pair("b", "c", 0.05, Change.no_difference_shown),
            ],
            ("c", ["b"]),
        ),
        # of given levels one with which the SLO is missed is not best, however fast
        (
            [setting("a", 0, **{RATE: 10}), setting("b", 99, **{RATE: 20})],
            [pair("a", "b", 1, Change.better, RATE)],
            ("a", []),
        ),
        (
            [setting("a", 99, **{RATE: 10}), setting("b", 99, **{RATE: 20})],
            [pair("a", "b", 1, Change.better, RATE)],
            ("b", []),
        ),
        ([setting("a", 5), setting("b")], [], ("", [])),
    ],
)
def test_the_best(
    settings: list[Setting], pairs: list[Comparison], want: tuple[str, list[str]]
) -> None:
    """The highest knee or throughput, and what it is not shown to be better than."""
    assert best_setting(settings, pairs) == want


@pytest.mark.parametrize(
    ("pairs", "want"),
    [
        ([], ""),  # not with the same load, say
        ([pair("a", "b", 1, Change.inconclusive)], "b"),  # the headline says that it is not shown
        ([pair("a", "b", 1, Change.better)], "b"),
    ],
)
def test_the_best_is_of_those_compared(pairs: list[Comparison], want: str) -> None:
    """As `best` of vary.json."""
    settings = [setting("a", 0, knee=10), setting("b", 0, knee=20)]
    assert compared_best(settings, pairs) == want


@pytest.mark.parametrize(
    ("codes", "want"),
    [
        ([(0, 0), (99, 6)], 0),  # a missed SLO is a result, and one of two runs is enough
        ([(0,), (6, 6)], 6),
        ([(6,), (5, 0), (5, 6)], 5),
        ([(0,), ()], 3),  # its server did not start
    ],
)
def test_the_exit_code(codes: list[tuple[int, ...]], want: int) -> None:
    """0 when every setting has a result, 6 when a knee is inconclusive, else what went wrong."""
    assert exit_code([setting(str(i), *each) for i, each in enumerate(codes)]) == want


def searched(path: Path, seed: int, slots: int) -> str:
    """A search, of a server with so many slots."""
    server = Server(rng=random.Random(seed))  # noqa: S311 - a fixture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_example, "SLOTS", slots)
        windows = load(server, (16, 64, 40, 44, 48, 50, 52, 50), 8.0)
    folder = begin(path)
    measured(folder, server, windows)
    folder.write_json(names.ENDED, {"interrupted": False, "status": "found", "figures": {}})
    write_results(path)
    return str(path)


ONE_WORKER = pytest.mark.xdist_group("settings")  # has `compared` for all


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Setting], list[Comparison]]:
    """40 slots against 30 and against 40 again, of which one run more is invalid."""
    folder = tmp_path_factory.mktemp("settings")
    a = setting_of_runs(folder, "a", 40, (1, 2))
    b = setting_of_runs(folder, "b", 30, (3, 4))
    c = setting_of_runs(folder, "c", 40, (5,))
    c.runs["nowhere"] = 5  # an invalid run has no figures
    settings = [a, b, c]
    return settings, compare_settings(settings, 0.05)


def setting_of_runs(folder: Path, name: str, slots: int, seeds: tuple[int, ...]) -> Setting:
    """With a search for each seed, whose server has so many slots."""
    runs = {}
    for seed in seeds:
        run = searched(folder / f"{name}{seed}", seed, slots)
        runs[run] = 0
    return Setting(name, runs=runs)


@ONE_WORKER
def test_settings_of_recorded_runs(compared: tuple[list[Setting], list[Comparison]]) -> None:
    """The knee by all runs of each."""
    settings, pairs = compared
    compared_names = [f"{pair.a} {pair.b}" for pair in pairs]
    assert compared_names == ["a b", "a c", "b c"]
    knees = [pair.differences[0] for pair in pairs]
    assert [knee.metric for knee in knees] == [KNEE] * 3
    of_ab, of_ac, of_bc = (knee.verdict for knee in knees)
    assert (of_ab, of_bc) == (Change.worse, Change.better)
    assert of_ac in {Change.inconclusive, Change.no_difference_shown}
    assert [int(one.figures[KNEE][0]) for one in settings] == [51, 40, 51]
    assert compare_settings([settings[2]], 0.05) == []


def test_loads_are_not_compared_with_one_another() -> None:
    """A deployment with a chat and with long prompts: neither is better."""
    settings = [
        Setting(
            f"tp-4 scenario={load}.toml", deployment="tp-4", figures={KNEE: (users, users, users)}
        )
        for load, users in (("chat", 47.0), ("long", 4.0))
    ]
    text, _ = settings_report(settings, [], ["ttft_p95=500ms"], 0)
    got = text.splitlines()[0]
    assert got == "Nothing to compare: no two settings were measured with the same load."


@ONE_WORKER
def test_a_report_of_settings(compared: tuple[list[Setting], list[Comparison]]) -> None:
    """The best one first, then what each step gains; a page that needs nothing from outside."""
    text, page = settings_report(*compared, ["ttft_p95=500ms"], 0)
    first = text.splitlines()[0]
    assert re.fullmatch(r"Best for ttft_p95=500ms: [ac]\. No difference to [ac] is shown\.", first)
    assert re.search(r"b against a: knee \(users\) -2\d\.\d% \(", text)
    ends = r"(?:\d\.\d\d to|at least|at most) \d\.\d\d"  # few blocks may not show one of them
    assert re.search(rf", for .*1\.\d\d times the p95 ITL \({ends}", text)
    plain = page.replace("http://www.w3.org/", "")  # the names of SVG's namespaces
    plain = plain[: plain.index("</main>")]  # then the charts' own script
    assert [word for word in ("src=", "http:", "https:") if word in plain] == []
    assert re.findall(r"<h2>(.*)</h2>", page) == ["Settings", "b against a", "c against b"]
    assert re.findall(r">([abc])</th>", page) == ["a", "b", "b", "c"]  # the heads of both steps
    chart = page[page.index("<svg ") : page.index("</svg>")]
    words = ["Knee, users", "p95 TTFT, ms", "p95 ITL, ms", ">a<", ">b<", ">c<"]
    assert [word for word in words if word not in chart] == []


@ONE_WORKER
def test_deployments_are_compared_per_gpu(
    compared: tuple[list[Setting], list[Comparison]],
) -> None:
    """40 slots on two GPUs against 30 on one: fewer users, and more of them per GPU."""
    wide, narrow, _ = compared[0]
    two = Setting("two", deployment="two", gpus=2, servers=2, runs=dict(wide.runs))
    one = Setting("one", deployment="one", gpus=1, runs=dict(narrow.runs))
    pairs, bests = compare_deployments([two, one], 0.05)
    (knee, *_) = pairs[0].differences
    assert (knee.metric, knee.verdict) == (KNEE, Change.better)
    assert (int(knee.a), int(knee.b)) == (25, 40)
    assert int(two.figures[KNEE][0]) == 51
    found = {best.metric: (best.setting, best.ties) for best in bests}
    assert found[KNEE] == ("one", ())
    # at 25 users per GPU two GPUs have 51, above their slots, and one has 25, below
    assert found["ttft_p95"][0] == "one"
    lost = Setting("lost", deployment="lost", gpus=4, failure="no memory")
    findings = deployment_findings([two, one, lost], bests, 2.0)
    words = r"With two each group of 2 servers holds 51 \(.*\) users, 25\.\d \(.*\) per GPU\."
    assert re.fullmatch(words, findings.sentences[0])
    settings = [two, one, lost]
    text, page = settings_report(settings, pairs, ["ttft_p95=500ms"], 0, deployed=findings)
    assert "lost: no memory" in text
    assert text.startswith("Most users per GPU for ttft_p95=500ms: one, 40")
    assert ">Cost of a million output tokens<" in page
    costs = [findings.columns[name]["Cost of a million output tokens"] for name in ("two", "one")]
    value = 2 / 3600 / one.per_gpu["output_tokens_per_s"][0] * 1e6
    assert float(costs[1].partition(" ")[0]) == pytest.approx(value, rel=0.01)


def test_a_knee_above_all_levels_of_a_deployment() -> None:
    """No level failed: the lower end is what it holds."""
    setting = Setting("two", deployment="two", gpus=2, servers=2)
    setting.figures = {KNEE: (inf, 1024.0, inf), "requests_per_s": (252.4, 0.68, 93_300.9)}
    setting.per_gpu = {KNEE: (inf, 512.0, inf)}
    findings = deployment_findings([setting], [], None)
    assert findings.sentences[0] == (
        "With two each group of 2 servers holds at least 1,024 users (95%), 512 per GPU: "
        "its knee is above all levels."
    )
    row = setting_row(setting)
    assert row["Knee"] == "above all levels (1,024 to above all levels)"
    assert row["Requests/s"] == "300 (0 to 93,300)"  # not 0, however little is known


def test_a_refused_run_says_why(tmp_path: Path) -> None:
    """In the headline, where nothing is left to compare."""
    refused = tmp_path / "refused"
    refused.mkdir()
    (refused / names.RESULT).write_text(json.dumps({"invalid_reason": "The client is late."}))
    good = searched(tmp_path / "good", 1, 40)
    a = Setting("a", runs={str(refused): 5})
    b = Setting("b", runs={good: 0})
    c = Setting("c", failure="no memory")
    settings = [a, b, c]
    text, page = settings_report(settings, compare_settings(settings, 0.05), [], 5)
    headline = "Nothing to compare: only b was measured. a: The client is late. c: no memory"
    assert text.splitlines()[0] == headline
    assert (text + page).count("The client is late.") == 3  # the page's title, too


@pytest.mark.parametrize(
    ("cause", "flags", "want"),
    [
        ("batch slots", {"max_num_seqs": 8}, ["server.max-num-seqs=16"]),
        ("batch slots", {"max_num_seqs": None}, []),
        ("KV cache capacity", {"num_gpu_blocks_override": "33"},
         ["server.num-gpu-blocks-override=66", "server.kv-cache-dtype=fp8"]),
        ("KV cache capacity", {"kv_cache_dtype": "fp8"}, []),
        ("prefill-decode interference", {"max_num_batched_tokens": 8192},
         ["server.max-num-batched-tokens=4096"]),
        ("front end", {}, ["server.api-server-count=2"]),
        ("front end", {"api_server_count": 2}, ["server.api-server-count=4"]),
        ("engine process", {"async_scheduling": True}, []),
        ("decode bandwidth", {"max_num_seqs": 8}, []),
        ("client", {}, []),
    ],
)  # fmt: skip
def test_knobs(cause: str, flags: dict[str, object], want: list[str]) -> None:
    """What a cause's flag is turned to; nothing where no flag turns it, or it is turned already."""
    assert turns(cause, flags) == want
    assert KNOBS.keys() < RULES.keys()


B, W, N, I = Change.better, Change.worse, Change.no_difference_shown, Change.inconclusive  # noqa: E741


@pytest.mark.parametrize(
    ("named", "rival", "between", "want"),
    [
        ((0.9, B), (0.0, N), (-0.5, W), "confirmed"),
        ((0.9, B), None, None, "confirmed"),  # no other cause
        ((0.9, B), (0.8, B), (-0.05, I), "confirmed"),  # both hold; the named one seems to more
        ((0.8, B), (0.9, B), (0.05, I), "not shown"),
        ((0.3, B), (0.9, B), (0.46, B), "refuted"),
        ((0.0, N), (0.9, B), (0.9, B), "refuted"),
        ((0.0, N), None, None, "refuted"),
        ((-0.3, W), (0.0, N), (0.4, B), "refuted"),
        ((0.1, I), (0.0, I), (-0.1, I), "not shown"),
        (None, (0.9, B), None, "not shown"),  # no flag turns the named one
        (None, None, None, "not shown"),
    ],
)
def test_the_verdict_of_a_proof(
    named: tuple[float, Change] | None,
    rival: tuple[float, Change] | None,
    between: tuple[float, Change] | None,
    want: str,
) -> None:
    """Right is the cause whose knob moves the knee most."""
    assert judge(*[one and difference(*one) for one in (named, rival, between)]) == want


@pytest.mark.parametrize(
    ("ci95", "want"),
    [
        ((-0.02, 3.39), "not shown"),  # from 3 to 7 users, after a short search
        ((-0.02, 0.21), "not shown"),
        ((-0.02, 0.19), "refuted"),
    ],
)
def test_refuted_is_shown(ci95: tuple[float, float], want: str) -> None:
    """Only where the whole interval is below 20%: no loss alone is no proof of no gain."""
    moved = difference(0.1, Change.no_difference_shown)
    assert judge(replace(moved, ci95=ci95), None, None) == want


def test_the_words_of_a_proof() -> None:
    """Both knees; why one was not turned; the second knob where the first does not start."""
    full, fp8 = Setting("server.x=2", failure="no memory"), setting("server.kv=fp8", 0)
    pairs = [pair(AS_STARTED, fp8.name, 0.9, Change.better)]
    found = prove({"KV cache capacity": [full, fp8], "decode bandwidth": []}, pairs)
    assert found.verdict == "confirmed"
    assert found.sentence == (
        "Diagnosis confirmed: KV cache capacity: --kv=fp8 moves the knee from 10 to 19 "
        "(+90%, +90% to +90%); decode bandwidth: no flag turns it."
    )
    assert list(found.knees) == [fp8.name]
    assert prove({}, []).sentence == "Diagnosis not shown: no cause is named."
    alone = prove({"KV cache capacity": [full], "batch slots": []}, [])
    assert alone.sentence == (
        "Diagnosis not shown: KV cache capacity: no memory; "
        "batch slots: its flag's present value is not known."
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vary server.a=1,2 --start-command true -- bench", "expected one of knee, run, sweep"),
        ("vary server.a=1,2 --start-command true", "the command to measure is ''"),
        ("vary server.a=1,2 -- knee", "vllm"),  # nothing to start: the starter's own sentence
        ("vary a=1,2 -- knee --embedded", "vllm-harness knee has no option --a"),
        ("vary users=1,x -- run --embedded", "--users is 'x': expected a whole number"),
        ("vary users=1,2 -- run", "no URL was given"),
        ("vary users=1,2 -- run --embedded --out x", "--out is given to each run of run"),
        ("vary server.a=1,2 --start-command true -- run --embedded --users 1", "one of the two"),
        ("vary server.a=1,2 --start-command nosuch -- run --users 1", "'nosuch' is no program"),
        ("vary server.a=1,2 --start-command true -- knee --slo ttft_p95=1s --prompt-tokens 0",
         "--prompt-tokens is '0'"),
        ("knee --prove", "expected --prove with --model-dir DIR or --start-command"),
        ("knee --prove http://127.0.0.1:1 --model-dir x", "Where it runs elsewhere"),
        ("knee http://127.0.0.1:1 --model-dir x", "expected --prove with"),
        ("knee --prove --start-command nosuch", "'nosuch' is no program"),
        ("knee --prove --start-command true --slo nonsense=1s", "nonsense"),
    ],
)  # fmt: skip
def test_refusals(
    line: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is started: exit code 2, one line on stderr, no folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_is_left_of_a_server_is_not_the_next_setting_s(tmp_path, monkeypatch) -> None:
    """Nothing more is measured: the next server would start beside it."""

    @contextmanager
    def launched(*_: object) -> Iterator[list[SimpleNamespace]]:
        yield [SimpleNamespace(ready=lambda: None)]
        raise HarnessError("processes [7]: expected none; try `kill -9`.")

    @contextmanager
    def serving(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(flags={}, start_s=1.0)

    monkeypatch.setattr(vary_servers, "launched", launched)
    monkeypatch.setattr(vary_servers, "serving", serving)
    first, second = Setting("a", server=("--x=1",)), Setting("b", server=("--x=2",))
    servers = vary_servers.VariedServers(StartOptions(start_command=ENGINE), io.StringIO())
    assert servers.endpoint(first, tmp_path / "1.log") is not None
    with pytest.raises(HarnessError, match="processes"):
        servers.endpoint(second, tmp_path / "2.log")
    assert (first.failure, second.failure) == ("", "")


@pytest.mark.long
@pytest.mark.process
def test_with_real_processes(tmp_path: Path) -> None:
    """A B B A of a server that starts in a second; the two Bs are on one; what does not start."""
    out = tmp_path / "vary"
    done = harness(
        "vary",
        "server.max-num-seqs=2,8",
        "--start-command",
        ENGINE,
        "--out",
        str(out),
        "--json",
        "-",
        "--",
        "run",
        "--users",
        "2",
        "--requests",
        "10",
        *TINY,
    )
    assert done.returncode in {0, 5}, done.stderr  # 5: a busy machine
    told = json_of(out / "vary.json")
    assert json.loads(done.stdout)["best"] == told["best"]  # nothing else is on stdout
    a, b = told["settings"]
    assert [len(one["runs"]) for one in (a, b)] == [2, 2]
    assert [len(one["starts_s"]) for one in (a, b)] == [2, 1]
    servers = servers_of(out)
    urls = [server["url"] for server in servers]
    assert [urls.count(url) for url in urls] == [1, 2, 2, 1]
    slots = [server["flags"]["max_num_seqs"] for server in servers]
    assert slots == [2, 8, 8, 2]
    assert (out / "vary.md").read_text().startswith(told["headline"])
    assert told["headline"] in (out / "vary.html").read_text()
    left_out = tmp_path / "left out"
    done = harness(
        "vary",
        "server.max-num-seqs=0,2",
        "--once",
        "--start-command",
        ENGINE,
        "--out",
        str(left_out),
        "--",
        "run",
        "--users",
        "2",
        "--requests",
        "10",
        *TINY,
    )
    assert done.returncode == 3
    bad, good = json_of(left_out / "vary.json")["settings"]
    assert ([*bad["runs"]], len(good["runs"])) == ([], 1)
    assert "--max-num-seqs is '0'" in bad["failure"]
    assert "server.max-num-seqs=0 is left out: " in done.stdout


@pytest.mark.long
@pytest.mark.process
def test_client_options_need_no_restart(tmp_path: Path) -> None:
    """Combinations of them on one server; `--once`."""
    done = harness(
        "vary",
        "users=1,2",
        "--once",
        "--start-command",
        ENGINE,
        "--out",
        str(tmp_path / "vary"),
        "--",
        "run",
        "--requests",
        "20",
        *TINY,
    )
    assert done.returncode in {0, 5}, done.stderr  # 5: a busy machine
    one, two = json_of(tmp_path / "vary/vary.json")["settings"]
    assert [len(each["starts_s"]) for each in (one, two)] == [1, 0]
    assert [each["client"] for each in (one, two)] == [["--users=1"], ["--users=2"]]


MOMENTS: dict[str, Callable[[int, Path], bool]] = {
    "the server starts": lambda pid, _: len(descendants(pid)) == 1,
    "the second run": lambda _, out: any(map(lines, out.glob("2-*/server.jsonl"))),
}


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("moment", "number"),
    [("the server starts", signal.SIGINT), ("the second run", signal.SIGINT),
     ("the second run", signal.SIGHUP)],
)  # fmt: skip
def test_ctrl_c(moment: str, number: int, tmp_path: Path) -> None:
    """Exit 130, what was measured is there, also the run under way, and nothing is left running."""
    out = tmp_path / "vary"
    with started(
        "vary",
        "server.max-num-seqs=2,8",
        "--start-command",
        ENGINE,
        "--out",
        str(out),
        "--",
        "run",
        "--users",
        "2",
        "--duration",
        "4s",
        *TINY,
    ) as process:
        wait_for(lambda: MOMENTS[moment](process.pid, out))
        family = descendants(process.pid)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert alive(family) == []
    told = json_of(out / "vary.json")
    assert told["exit_code"] == 130
    n_runs = [len(one["runs"]) for one in told["settings"]]
    assert n_runs == ([1, 0] if moment == "the second run" else [0, 0])
    for folder in out.glob("2-*/"):
        assert json_of(folder / names.RESULT)["interrupted"] is True


@pytest.mark.process
@pytest.mark.long
def test_a_diagnosis_is_proven(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Two slots are too few: their knob is turned, on a real server, and the knee moves with it."""
    out = tmp_path / "knee"
    done = harness(
        "knee",
        "--prove",
        "--start-command",
        ENGINE,
        "--start-args",
        "--max-num-seqs 2",
        "--out",
        str(out),
        "--slo",
        "ttft_p95=200ms",
        "--budget",
        "12s",
        "--prompt-tokens",
        "32",
        "--output-tokens",
        "16",
        "--max-users",
        "64",
        "--quiet",
    )
    check_code(done.returncode, done.stdout + done.stderr, 0, 6)
    result = json_of(out / names.RESULT)
    proof = result["proof"]
    figure(proof["sentence"])
    assert proof["sentence"] in done.stdout
    assert proof["sentence"] in (out / names.REPORT_MD).read_text().replace("\\", "")
    turned = out / "server.max-num-seqs=4"
    if result["bottleneck"]["bound_by"] == "batch slots":  # a busy machine may leave it undecided
        # after 12 s the knee's interval may be too wide to show it, but never shows the opposite
        assert proof["verdict"] in {"confirmed", "not shown"}
        assert turned.name in proof["knees"]
        assert json_of(turned / names.RUN)["server"]["flags"]["max_num_seqs"] == 4
    else:
        assert (proof["verdict"], turned.exists()) == ("not shown", False)


@pytest.mark.vllm
def test_a_and_b_on_a_real_vllm(
    vllm_command: str,
    tmp_path: Path,
    figure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One slot against eight, for batches of 16 requests: both are measured, eight are better.

    On two cores vLLM leaves the client little time while it computes: with one slot all users that
    wait go on when it is idle, so their loop is not closed, and `run` is refused. A batch is
    judged by its time as a whole, in which the client hardly matters, nor do tests beside it.
    """
    for variable, value in real_vllm.one_core().items():
        monkeypatch.setenv(variable, value)
    out = tmp_path / "vary"
    done = harness(
        "vary",
        "server.max-num-seqs=1,8",
        "--once",
        "--vllm",
        vllm_command,
        "--model-dir",
        str(real_vllm.MODEL),
        "--out",
        str(out),
        "--",
        "sweep",
        "--users",
        "8",
        "--batch",
        "16",
        "--repeats",
        "1",
        "--workload",
        "fixed",
        "--prompt-tokens",
        "32",
        "--output-tokens",
        "32",
        "--quiet",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json_of(out / "vary.json")
    figure((out / "vary.md").read_text())
    assert told["best"] == "server.max-num-seqs=8"  # seven times as fast; the figure says how sure
    assert [one["flags"]["max_num_seqs"] for one in told["settings"]] == [1, 8]
    assert [len(one["starts_s"]) for one in told["settings"]] == [1, 1]
    seen = [server["flags"]["max_num_seqs"] for server in servers_of(out)]
    assert sorted(seen) == [1, 8]  # which /server_info shows


def servers_of(out: Path) -> list[dict[str, Any]]:
    """What the run.json of each run says of its server, in the order of the runs."""
    folders = sorted(out.glob("?-*/"))
    return [json_of(folder / names.RUN)["server"] for folder in folders]


def by_length(path: Path, prompt: int, seed: int) -> str:
    """30 s of two users whose TTFT is 20 ms + 30 per 1,000 prompt tokens + 4 per their square.

    Gaps are 10 ms and 500 us per 1,000 tokens of context; everything has 1% of noise.
    """
    rng = random.Random(seed)  # noqa: S311 - a fixture
    records: list[RequestRecord] = []
    begin_ns = at = report_example.T0
    thousands = prompt / 1000
    ttft_ms = 20 + 30 * thousands + 4 * thousands**2
    while at < begin_ns + 30 * report_example.S:
        stamps = [at + int(ttft_ms * 1e6 * rng.gauss(1, 0.01))]
        for token in range(63):
            gap_us = 10_000 + 0.5 * (prompt + token + 1)
            gap_ns = int(gap_us * 1e3 * rng.gauss(1, 0.01))
            stamps.append(stamps[-1] + gap_ns)
        for user in range(2):
            number = len(records)
            records.append(answered(number, user, at, prompt, stamps))
        at = stamps[-1] + 10**6
    folder = begin(path)
    writer = RecordWriter(folder, 0)
    writer.put(records)
    writer.close()
    level = Level(0, 2, decision=Decision.held, settled_ns=begin_ns, end_ns=at)
    folder.write_json(names.RESULT, to_json(Result(levels=(level,))))
    return str(path)


def answered(number: int, user: int, sent_ns: int, prompt: int, stamps: list[int]) -> RequestRecord:
    """A request whose 64 tokens came at these instants."""
    return RequestRecord(
        0,
        number,
        user,
        sent_ns,
        stamps[-1],
        Outcome.ok,
        prompt_tokens=prompt,
        output_tokens=64,
        planned_tokens=64,
        at_ns=array("q", stamps),
        not_before_ns=array("q", stamps),
        tokens=array("q", [1] * 64),
    )


@pytest.mark.parametrize(("times", "lengths"), [(2, 4), (2, 3), (1, 3), (2, 2)])
def test_cost_of_length(times: int, lengths: int, tmp_path: Path) -> None:
    """The planted coefficients are found, within intervals where each length was measured twice."""
    settings = [*parse_variable("prompt-tokens=128,512,2048,8192")][-lengths:]
    for one in settings:
        size = int(one.name.partition("=")[2])
        for i in range(times):
            run = by_length(tmp_path / f"{size}-{i}", size, size + i)
            one.runs[run] = 0
        one.figures = {"output_tokens_per_s": (1, 1, 1)}
    found = context_costs(settings)
    values = {one.name: one.value for one in found}
    # of two lengths only a line: 4 per square is 4 * (2.048 + 8.192) per 1,000 between them
    want = [20, 30, 4]
    if lengths == 2:
        want = [20 - 4 * 2.048 * 8.192, 30 + 4 * (2.048 + 8.192)]
    assert [*values.values()] == pytest.approx([*want, 10_000, 500], rel=0.1)
    assert {one.load for one in found} == {2.0}
    for one in found:
        lo, hi = one.ci95
        is_known = isfinite(hi - lo) and lo < one.value < hi
        assert is_known == (times == 2), one.name
    assert context_costs([*settings, Setting("server.a=1", server=("--a=1",))]) == []
    text, page = settings_report(settings, [], [], 0, found)
    assert "By length, at 2 users:" in text
    assert page.count("ITL per 1,000 tokens of context, µs") == 1
