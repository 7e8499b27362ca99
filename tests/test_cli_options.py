"""Options: what they become, and what is refused before anything starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import knee, main
from harness.cli.app import parser
from harness.errors import EXIT_INTERRUPTED
from harness.load.lengths import Lengths
from harness.load.workloads import Conversation
from harness.metrics.slo import Slo
from harness.run import options_from_args as plain
from harness.run.run_page import about
from harness.units import MS, SECOND

URL = "http://127.0.0.1:9"


def test_knee_options() -> None:
    """Every option of the documented line arrives with its unit read."""
    args = parser().parse_args(
        f"knee {URL} --model M --slo ttft_p95=500ms --slo itl_p95=50ms --workload chat "
        "--prompt-tokens 200 --output-tokens 100 --min-users 2 --max-users 256 --budget 10m "
        "--max-errors 2% --seed 7 --out DIR --processes 3 --ui --json - --plan-users 99 "
        "--connect-timeout 500ms --dry-run".split()
    )
    got = knee.options(args)
    assert got.target.url == URL
    assert got.target.model == "M"
    assert got.target.engine is None
    assert got.target.timeouts.connect_ns == 500 * MS
    assert got.plan.slos == (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))
    assert got.plan.min_users == 2
    assert got.plan.max_users == 256
    assert got.plan_users == 99
    assert got.plan.budget_ns == 600 * SECOND
    assert got.plan.max_errors == 0.02
    assert got.dry_run is True
    assert got.load.workload.name == "chat"
    assert got.load.workload.prompt.mean == 200
    assert got.load.workload.output.mean == 100
    assert got.load.seed == 7
    assert got.load.processes == 3
    assert str(got.output.out_dir) == "DIR"
    assert got.output.json_to == "-"
    assert got.output.ui_port == 8089


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", (30 * SECOND, 0)),
        ("--duration 1m30s", (90 * SECOND, 0)),
        ("--requests 500", (0, 500)),
    ],
)
def test_run_options(line: str, want: tuple[int, int]) -> None:
    """A level lasts a time or a number of requests, never both."""
    args = parser().parse_args(["run", URL, "--users", "4", *line.split()])
    (hold,) = plain.run_options(args, "run").holds
    assert hold.load.count == 4
    assert (hold.max_ns, hold.max_requests) == want


@pytest.mark.parametrize(("line", "unit"), [("--users 4", ""), ("--rate 4", "requests/s")])
def test_the_unit_of_a_level_on_the_live_page(line: str, unit: str) -> None:
    """Where it is a rate, what the page draws over time are requests in flight."""
    wanted = plain.run_options(parser().parse_args(["run", URL, *line.split()]), "run")
    assert about(wanted, URL, "m")["unit"] == unit


SESSIONS = (
    "--workload conversation --turns uniform:6:0.5 --history last:3 --replies real --tools 2 "
    "--session-budget 9000 --session-timeout 2m --think-time lognormal:2s:0.5"
)


@pytest.mark.parametrize(
    ("line", "think", "talk"),
    [
        (
            SESSIONS,
            Lengths("lognormal", 2000, 0.5),
            Conversation(Lengths("uniform", 6, 0.5), "last:3", "real", 2, 9000, 120 * SECOND),
        ),
        (
            "--workload conversation",
            Lengths("lognormal", 5000, 0.5),
            Conversation(Lengths("lognormal", 5, 0.5)),
        ),
        (
            "--workload conversation --turns 3 --think-time 40ms",
            Lengths("fixed", 40),
            Conversation(Lengths("fixed", 3)),
        ),
        ("--think-time 2s", Lengths("fixed", 2000), None),
        ("", None, None),
    ],
)
def test_sessions_and_think_time(line: str, think: Lengths, talk: Conversation) -> None:
    """Options replace what the workload has; think time is for all of them."""
    args = parser().parse_args(["run", URL, "--users", "4", *line.split()])
    got = plain.run_options(args, "run").load.workload
    assert got.think_ms == think
    assert got.conversation == talk


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--history full", "--history is given and --workload chat has no sessions: expected"),
        ("--turns 3 --workload rag", "--turns is given and --workload rag has no sessions"),
        ("--workload agent --api completions", "--api is given and --workload agent has sessions"),
        ("--workload agent --api completions", "options that go together; try --api chat."),
        ("--workload conversation --batch 8", "has pauses or sessions: expected"),
        ("--batch 8 --think-time 1s", "--batch is given and --workload chat has pauses"),
        ("--think-time 2", "--think-time is '2': expected a mean, or SHAPE:MEAN:CV with one of"),
        ("--think-time normal:2s:0.5", "--think-time is 'normal:2s:0.5': expected a mean, or"),
        ("--think-time lognormal:2s", "try --think-time lognormal:2s:0.5."),
        ("--turns lognormal:8:1.5", "coefficient of variation from 0 to 1; try --turns"),
        ("--workload agent --history last:x", "--history is 'last:x': expected full, last:K"),
        ("--workload agent --session-budget 0", "--session-budget is '0': expected a whole number"),
    ],
)  # fmt: skip
def test_sessions_that_cannot_be(
    line: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One sentence that says what is expected, before anything starts."""
    code = main(["sweep", URL, "--users", "4", *line.split(), "--out", str(tmp_path / "run")])
    assert code == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


FLAGS_GIVEN = (
    "--server-flag max_num_seqs=8 --server-flag dtype=fp8 --server-flag enforce-eager=true "
    "--server-flag gpu-memory-utilization=0.9 --gpu-metrics http://h:9400"
)


@pytest.mark.parametrize(
    ("line", "flags", "gpu"),
    [
        ("", {}, None),
        ("--server-flag max-num-seqs=256", {"max_num_seqs": 256}, None),
        (
            FLAGS_GIVEN,
            {"max_num_seqs": 8, "dtype": "fp8", "enforce_eager": True,
             "gpu_memory_utilization": 0.9},
            "http://h:9400",
        ),
    ],
)  # fmt: skip
def test_what_is_known_of_the_server(line: str, flags: dict[str, object], gpu: str | None) -> None:
    """Flags in vLLM's own spelling become names and values."""
    got = knee.options(parser().parse_args(["knee", URL, *line.split()])).target
    assert got.server_flags == flags
    assert got.gpu_metrics == gpu


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", [("hold", 1), ("hold", 8), ("hold", 4)]),
        ("--repeats 2", [("hold", 1), ("hold", 8), ("hold", 4)] * 2),
        ("--batch 9 --repeats 1", [("sequential", 1), ("batch", 1), ("batch", 8), ("batch", 4)]),
        ("--batch 9", [("sequential", 1), ("batch", 1), ("batch", 8), ("batch", 4)] * 3),
    ],
)
def test_sweep_options(line: str, want: list[tuple[str, int]]) -> None:
    """Levels keep their order, repeats take turns, and a batch has one at a time before it."""
    args = parser().parse_args(["sweep", URL, "--users", "1,8,4", *line.split()])
    holds = plain.run_options(args, "sweep").holds
    assert [(hold.purpose, hold.load.count) for hold in holds] == want
    batch = [hold for hold in holds if hold.purpose != "hold"]
    for hold in batch:
        assert (hold.stop, hold.max_requests, hold.max_ns) == ("batch", 9, 0)


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", ()),
        ("--compat vllm-bench", ("vllm-bench",)),
        ("--compat aiperf,guidellm --compat aiperf", ("aiperf", "guidellm")),
    ],
)
def test_compat(line: str, want: tuple[str, ...]) -> None:
    """With commas, repeated, or both; each tool once, in the order given."""
    for command in ("knee", "run --users 4", "sweep --users 4"):
        args = parser().parse_args([*command.split(), *line.split()])
        assert plain.output_options(args, "run").compat == want


@pytest.mark.parametrize(
    ("api", "want"),
    [
        ("chat", ("chat", False)),
        ("completions", ("completions", True)),
        ("responses", ("responses", False)),
        ("messages", ("messages", False)),
        ("generate", ("generate", True)),
    ],
)
def test_api(api: str, want: tuple[str, bool]) -> None:
    """Any workload can be sent to any API; token ids go to the two that take them."""
    args = parser().parse_args(["knee", URL, "--workload", "fixed", "--api", api])
    workload = knee.options(args).load.workload
    assert (workload.api, workload.token_ids) == want


def test_what_users_add_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers keep their variables unread, fields are JSON, temperature is 0 unless it is given."""
    monkeypatch.setenv("TENANT", "secret")
    words = [
        "--header",
        "X-T: $TENANT",
        "--header",
        "X-U:{user}",
        "--body",
        "top_p=0.9",
        "--body",
        'stop=["a"]',
        "--model",
        "a=3,b",
        "--model",
        "c",
        "--workload",
        "chat=9,summarize=1",
    ]
    got = knee.options(parser().parse_args(["knee", URL, *words]))
    assert got.target.headers == (("X-T", "$TENANT"), ("X-U", "{user}"))
    assert got.load.body == {"temperature": 0, "top_p": 0.9, "stop": ["a"]}
    mix = got.load.workload
    assert got.target.model == "a"
    assert mix.models == (("a", 3.0), ("b", 1.0), ("c", 1.0))
    weights = {row.name: weight for row, weight in mix.rows}
    assert weights == {"chat": 9.0, "summarize": 1.0}
    monkeypatch.setenv("VLLM_API_KEY", "another")
    words = ["--body", "temperature=null", "--header", "Authorization: Basic $TENANT"]
    own = knee.options(parser().parse_args(["knee", URL, *words]))
    assert own.load.body == {"temperature": None}
    assert own.target.api_key == ""


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", ("lognormal", 256, 0.4, 0, 0)),
        ("--prompt-cv 0", ("fixed", 256, 0.0, 0, 0)),
        ("--prompt-tokens 100 --prompt-cv 1.5 --prompt-min 20 --prompt-max 400",
         ("lognormal", 100, 1.5, 20, 400)),
    ],
)  # fmt: skip
def test_lengths(line: str, want: tuple[str, int, float, int, int]) -> None:
    """The spread of prompts; that of answers stays as it is."""
    load = knee.options(parser().parse_args(["knee", URL, *line.split()])).load.workload
    prompt = load.prompt
    assert (prompt.shape, prompt.mean, prompt.cv, prompt.low, prompt.high) == want
    assert load.output.shape == "lognormal"
    assert load.output.mean == 128


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("no colon", "--header is no header: expected NAME: VALUE; try"),
        ("X Y: 1", "--header is no header"),
        ("X-Y:", "--header is no header"),
        ("Content-Length: 3", "--header Content-Length is the harness's own"),
        ("X-Y: {turn}", "--header X-Y has {turn}: expected {session}, {user} or {request}"),
        ("X-Y: $NO_SUCH", "cannot carry, or a variable that is not set"),
        ("X-Api-Key: hush-hush", "--header X-Api-Key holds a secret, which others see"),
        ("Authorization: Bearer hush-hush", "--header Authorization holds a secret"),
        ("X-Y: a\nb", "--header X-Y has a character that HTTP cannot carry"),
        ("X-Y: $BAD", "--header X-Y has a character that HTTP cannot carry"),
    ],
)
def test_refused_headers(
    header: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any load, in one sentence that never shows a value."""
    monkeypatch.setenv("BAD", "schl\u00fcssel")
    assert main(["knee", URL, "--header", header]) == 2
    said = capsys.readouterr().err
    assert found in said, said
    assert said.count("\n") == 1, said
    assert ("hush" in said) is False, said


REFUSED = {
    # line: parts of the sentence
    "knee --slo ttft_p95=500": ("ttft_p95=500", "no readable unit", "'500ms'"),
    "knee --slo ttft=500ms": ("--slo is 'ttft=500ms'", "expected METRIC_pQQ=LIMIT", "ttft_p95"),
    "knee --slo foo_p95=500ms": ("foo_p95", "ttft, ttfot, itl, itl_per_token, tpot, tps, e2e"),
    "knee --budget 10": ("--budget is '10'", "no readable unit", "try '10s'"),
    "knee --budget 0s": ("--budget is '0s'", "more than zero"),
    "knee --budget 9s": ("--budget is '9s'", "from 10s to 24h", "try '10m'"),
    "knee --connect-timeout 1000000000h": ("--connect-timeout is '1000000000h'", "at most 1000h"),
    f"knee --request-timeout {400 * '9'}h": ("at most 1000h; try '600s'",),
    "knee --budget 25h": ("--budget is '25h'", "from 10s to 24h"),
    "knee --idle-timeout 0": ("--idle-timeout is '0'", "more than zero", "try '60s'"),
    "knee --budget 10min": ("--budget is '10min'", "try '10m'"),
    "knee --budget 1h30min": ("try '1h30m'",),
    "knee --connect-timeout 1,5s": ("try '1.5s'",),
    "run --users 4 --duration 2mins": ("try '2m'",),
    "knee --slo ttft_p95=0.5s,itl_p95=50ms": (
        "expected one limit",
        "try --slo ttft_p95=0.5s --slo itl_p95=50ms.",
    ),
    "knee --slo e2e_p95<10s": ("try 'e2e_p95=10s'",),
    "knee --slo ttft:300": ("try 'ttft_p95=300ms'",),  # as `vllm bench --goodput` has it
    "knee --slo ttfd_p99=3s": ("try 'ttft_p99=3s'",),
    "knee --slo tps_p5>30": ("try 'tps_p5=30'",),
    "knee --precision 0.05": ("--precision is '0.05'", "try '5%'"),
    "knee --precision 3": ("try '3%'",),
    "knee --precision 0%": ("--precision is '0%'", "above 0%", "try --precision 5%"),
    "run --rate 3rps": ("--rate is '3rps'", "try --rate 3/s"),
    "run --rate 180/min": ("try --rate 3/s",),
    "run --users 4,8": ("`run` holds one level", "try `vllm-harness sweep ... --users 4,8`"),
    "run --users 4 --junit no/where": ("try --junit junit.xml",),
    "run 18123 --users 4": ("the URL is '18123'", "try http://127.0.0.1:18123."),
    "run :18123 --users 4": ("try http://127.0.0.1:18123.",),
    f"run {URL}/metrics --users 4": ("one of a server's endpoints", f"try {URL}."),
    "knee --slo e2e_p95=9s --at-least 600": (
        "--at-least is 600 and --max-users 512",
        "try --max-users 600.",
    ),
    "knee --at-least 4": ("--at-least is given without an SLO", "try --slo ttft_p95=500ms"),
    "knee --precision 2%": ("--precision is given without an SLO",),
    "knee --slo e2e_p95=9s --load rate --max-users 30": (
        "--max-users is given with --load rate",
        "does not use it",
        "--max-rate",
        "--load users",
    ),
    "knee --max-rate 30/s": ("--max-rate is given with --load users", "--load rate"),
    "knee --max-in-flight 30": ("--max-in-flight is given with --load users",),
    f"run {URL} --users 4 --arrivals constant": ("--arrivals is given with --users", "with --rate"),
    "vary max-num-seqs=1,2 knee --slo e2e_p95=9s": (
        "has 'knee' among its own words",
        "try `vllm-harness vary max-num-seqs=1,2 -- knee ...`.",
    ),
    "knee --max-errors 1": ("--max-errors is '1'", "percentage", "'1%'"),
    "knee --min-users 8 --max-users 4": ("--min-users is 8", "--max-users is 4", "at most"),
    "knee --min-users 0": ("--min-users is '0'", "whole number from 1 up"),
    "knee --max-users 1.5": ("--max-users is '1.5'", "whole number"),
    "knee --workload talk": ("--workload is 'talk'", "chat, completions, fixed"),
    "knee --workload sumarise": ("--workload is 'sumarise'", "try 'summarize'"),
    "knee --api grpc": ("expected one of chat, completions, responses, messages, generate;",),
    "knee --api chats": ("--api is 'chats'", "try --api chat."),
    "knee --body stream=false": ("--body sets 'stream'", "the harness decides"),
    "knee --body max_tokens=5": ("--body sets 'max_tokens'", "or --output-tokens"),
    "knee --body top_p": ("--body is 'top_p'", "NAME=JSON", "try --body temperature=0.7"),
    "knee --body user=me": ("--body is 'user=me'", "in quotation marks"),
    "knee --body =1": ("--body is '=1'",),
    "knee --model a=0": ("--model is 'a=0'", "weights above zero", "try --model a=3,b=1"),
    "knee --model a,a": ("--model is 'a,a'", "each name once"),
    "knee --workload chat=9,talk=1": ("--workload is 'talk'", "chat, completions, fixed"),
    "knee --workload chat=9, --prompt-tokens 3": ("--workload is ''",),
    f"knee {URL} --workload chat=9,rag=1 --prompt-cv 1": ("mixes several", "lengths of each row"),
    "knee --prompt-cv x": ("--prompt-cv is 'x'", "from 0 to 5 times", "try --prompt-cv 0.5"),
    "knee --output-cv 6": ("--output-cv is '6'",),
    f"knee {URL} --prompt-min 300": (
        "the mean of --prompt-tokens is 256, its range 300 to any",
        "try --prompt-tokens 300",
    ),
    f"knee {URL} --prompt-min 300 --prompt-max 100": (
        "--prompt-min is 300 and --prompt-max is 100",
        "try --prompt-tokens 200 --prompt-min 100 --prompt-max 300.",
    ),
    f"knee {URL} --workload conversation --session-budget 287": (
        "--session-budget is 287 and a first turn has 288 tokens on average (96 prompt, ",
        "expected room for one turn; try --session-budget 1440.",
    ),
    "run --embedded --users 4 --api responses": (
        "--api is responses, which the embedded server does not have",
        "try --api chat.",
    ),
    f"knee {URL} --output-max 100": ("its range 0 to 100", "try --output-tokens 100"),
    "knee --prompt-tokens 0": ("--prompt-tokens is '0'",),
    "knee --max-users ٣": ("--max-users is '٣'", "whole number"),
    "knee --max-errors ٣%": ("--max-errors is '٣%'", "percentage"),
    "knee --budget ٣m": ("--budget is '٣m'", "no readable unit", "try '90s'"),
    "run --users 4 --duration 30": ("--duration is '30'", "no readable unit", "try '30s'"),
    "run --users 4 --duration=-3s": ("--duration is '-3s'", "more than zero", "try '30s'"),
    "run --users 4 --duration 30s --requests 5": ("--requests", "not allowed with", "--duration"),
    "run": ("--users", "required", "run --help"),
    f"run {URL} --user 4": ("no option --user:", "did you mean --users?", "harness run --help"),
    "sweep --users 1,x": ("--users is '1,x'", "whole numbers", "try --users 1,2,4,8"),
    "sweep --users 1,2,": ("--users is '1,2,'", "separated by commas", "try --users 1,2,4,8"),
    "sweep --users 1-8": ("--users is '1-8'", "separated by commas", "try --users 1,2,4,8"),
    "sweep --users 4 --batch 0": ("--batch is '0'", "whole number from 1 up", "try --batch 64"),
    "sweep --users 4 --repeats 0": ("--repeats is '0'", "from 1 up", "try --repeats 3"),
    f"sweep {URL} --users 1,8 --batch 4": ("--batch is 4", "up to 8", "try --batch 32"),
    f"sweep {URL} --users 4 --batch 8 --processes 2": ("--processes is 2", "--processes 1"),
    "sweep --users 4 --batch 8 --duration 5s": ("--duration", "not allowed with", "--batch"),
    "run --users 4 --batch 8": ("has no option --batch", "vllm-harness run --help"),
    "knee --confirm 1m": ("--confirm is given without an SLO", "try --slo ttft_p95"),
    "knee --repeat 2 --junit FILE": ("--repeat is given with --junit", "try --json"),
    "knee --repeat 2 --model-dir DIR": ("a server that is started here", "expected a URL"),
    "knee --batch 8": ("has no option --batch", "vllm-harness knee --help"),
    "knee --connect-timeout 5": ("--connect-timeout is '5'", "no readable unit", "try '5s'"),
    "knee --first-token-timeout 5m --request-timeout 1m": (
        "--first-token-timeout is 300s",
        "--request-timeout 60s",
        "try --request-timeout 300s",
    ),
    "knee --first-token-timeout 11m": ("--request-timeout 600s", "try --request-timeout 660s"),
    "knee --processes 513": ("--processes is 513", "--max-users is 512", "try --processes 512"),
    f"run {URL} --users 4 --processes 5": ("--users is 4", "try --processes 4"),
    f"sweep {URL} --users 1,4 --processes 5": ("--users is 4", "try --processes 4"),
    "knee --ui-port 8000": ("--ui-port is 8000 without --ui", "try --ui --ui-port 8000"),
    "knee --ui --ui-port x": ("--ui-port is 'x'", "try --ui-port 8089"),
    "knee --metrics-host 0.0.0.0": ("without --metrics-port", "try --metrics-port 9401"),
    "knee --gpu-metrics nvidia": ("--gpu-metrics is 'nvidia'", "local, none or the URL"),
    "knee --gpu-metrics http://": ("--gpu-metrics is 'http://'",),
    "knee --server-flag foo=3": ("--server-flag is 'foo=3'", "kv-cache-dtype", "max-num-seqs"),
    "knee --server-flag max-model=3": ("is not a known flag", "try --server-flag max-model-len=3"),
    f"knee {URL} --max-num-seqs 8": ("--max-num-seqs asks for the embedded server", "a URL was"),
    f"knee {URL} --embedded": ("--embedded asks for", "leave out 'http://127.0.0.1:9'"),
    "run --users 4": ("no URL was given", "--embedded", "try http://127.0.0.1:8000"),
    "sweep --users 4": ("no URL was given", "--embedded", "try http://127.0.0.1:8000"),
    "run --users 4 --max-num-seqs 8": (
        "no URL was given, and --max-num-seqs asks for the embedded server",
        "try --embedded",
    ),
    f"knee {URL}/v1/chat/completions": ("one of a server's endpoints", f"try {URL}."),
    f"knee {URL} {URL}": (f"unrecognized arguments: {URL}", "try `vllm-harness knee --help`"),
    f"knee {URL} --server-flag 256": ("--server-flag is '256'", "NAME=VALUE", "max-num-seqs=256"),
    f"knee {URL} --server-flag max-num-seqs=": ("--server-flag is 'max-num-seqs='",),
    "run --embedded --users 4 --server-flag max-num-seqs=8": (
        "no URL was given",
        "try --max-num-seqs",
    ),
    "knee --slos ttft_p95=1s": ("no option --slos: did you mean --slo?", "harness knee --help"),
    f"knee --max-user 10 {URL}": ("no option --max-user: did you mean --max-users?",),
    "knee --xyzzy": ("has no option --xyzzy; try `vllm-harness knee --help`",),
    "--slo ttft_p95=1s": ("vllm-harness has no option --slo; try `vllm-harness --help`",),
    "run --users 4 --compat vllm": ("--compat is 'vllm'", "vllm-bench, guidellm, aiperf"),
    "report DIR --compat aiperf,": ("--compat is ''", "try --compat vllm-bench"),
    "kneel": ("the command is 'kneel'", "expected one of knee, run,", "try vllm-harness knee."),
    "help sweeps": ("the command is 'sweeps'", "try vllm-harness sweep."),
}


# What is typed for `run`, and what is offered: one of our options, or what to do instead.
THEIRS = {
    "--concurrency": "did you mean --users?",
    "--max-concurrency": "did you mean --users?",
    "--vus": "did you mean --users?",
    "-u": "did you mean --users?",
    "--host": "try `vllm-harness run http://h:9`",
    "--url": "try `vllm-harness run http://h:9`",
    "--base-url": "try `vllm-harness run http://h:9`",
    "--target": "try `vllm-harness run http://h:9`",
    "--request-rate": "did you mean --rate?",
    "--rps": "did you mean --rate?",
    "--num-prompts": "did you mean --requests?",
    "--request-count": "did you mean --requests?",
    "--input-len": "did you mean --prompt-tokens?",
    "--input-tokens": "did you mean --prompt-tokens?",
    "--random-input-len": "did you mean --prompt-tokens?",
    "--isl": "did you mean --prompt-tokens?",
    "--osl": "did you mean --output-tokens?",
    "--max-tokens": "did you mean --output-tokens?",
    "--run-time": "did you mean --duration?",
    "--time": "did you mean --duration?",
    "--max-seconds": "did you mean --duration?",
    "--output": "did you mean --out?",
    "--result-dir": "did you mean --out?",
    "--goodput": "did you mean --slo?",
    "--dataset-path": "did you mean --data?",
    "--temperature": "did you mean --body?",
    "--endpoint-type": "did you mean --api?",
    "--verbose": "needs none: progress is shown",
    "--num-warmups": "needs none: each level warms up",
    "--otlp-port": "needs none: the server's metrics say where",
    "--api-key": "try `export VLLM_API_KEY=...`",
    "--user": "did you mean --users?",  # by spelling, at most two letters apart
    "--durations": "did you mean --duration?",
    "--xconcurrencyx": "; try `vllm-harness run --help`",  # neither: nothing is made up
}
FOR_KNEE = {
    "--concurrency": "did you mean --max-users?",
    "--users": "did you mean --max-users?",
    "--request-rate": "did you mean --max-rate?",
    "--num-prompts": "did you mean --budget?",
    "--run-time": "did you mean --budget?",
}


@pytest.mark.parametrize(("command", "table"), [("run", THEIRS), ("knee", FOR_KNEE)])
def test_the_words_of_other_tools(
    command: str, table: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has our option's name; the value, which may be a secret, is never repeated."""
    said = {}
    for theirs, want in table.items():
        value = "http://h:9" if "http" in want else "sk-1"
        assert main([command, theirs, value]) == 2
        said[theirs] = capsys.readouterr().err
    without_ours = [theirs for theirs, text in said.items() if table[theirs] not in text]
    assert without_ours == []
    assert [text for text in said.values() if "sk-1" in text] == []


# Command lines as people post them, of vllm bench serve, genai-perf, guidellm and Locust.
POSTED = {
    "vllm bench serve": """--base-url http://h:1 --dataset-name random --random-output-len 1
        --random-input-len 3100 --num-prompts 1024 --max-concurrency 32 --save-result
        --result-filename result.json""",
    "genai-perf": """--service-kind openai --endpoint-type chat --endpoint v1/chat/completions
        --streaming --url http://h:1 --synthetic-input-tokens-mean 3000 --tokenizer T
        --synthetic-input-tokens-stddev 0 --output-tokens-mean 150 --output-tokens-stddev 0
        --extra-inputs max_tokens:150 --concurrency 1 --request-count 10
        --warmup-request-count 1""",
    "guidellm": "--target http://h:1 --rate-type sweep --max-seconds 30 --max-requests 100",
    "locust": "-u 100 --spawn-rate 10 --run-time 5m --host http://h:1 --headless",
}


@pytest.mark.parametrize("tool", POSTED)
def test_no_option_of_a_posted_line_is_left_alone(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gets our name for it, or what is done in its place."""
    answers = {}
    for flag in re.findall(r"(?<!\S)--?[a-z][\w-]*", POSTED[tool]):
        assert main(["run", flag, "1"]) == 2
        answers[flag] = capsys.readouterr().err
    helped = ("did you mean --", "and needs none: ", "the server's URL is an argument")
    for flag, said in answers.items():
        assert any(words in said for words in helped), flag


def test_a_url_with_a_password_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """It would stay in a terminal's history and in a CI's log."""
    assert main(["run", "--host", "http://me:hush@h:9"]) == 2
    assert "hush" not in capsys.readouterr().err


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """What could be meant, and a line that works without a server."""
    assert main([]) == 2
    assert "try `vllm-harness knee --embedded --slo" in capsys.readouterr().err


def test_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Each unreadable or contradictory option gets one sentence and exit code 2."""
    ended = {}
    missing = {}
    for line, parts in REFUSED.items():
        command, *words = line.split()
        if command == "knee" and URL not in line:
            words = [URL, *words]
        code = main([command, *words])
        out, said = capsys.readouterr()
        ended[line] = code, out, said.count("\n")
        missing[line] = [part for part in parts if part not in said]
    assert ended == dict.fromkeys(REFUSED, (2, "", 1))
    assert missing == {line: [] for line in REFUSED}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([""], ("the URL is empty", "try http://127.0.0.1:8000")),  # "$URL" of a CI that has none
        ([" "], ("the URL is empty",)),
        (["", "--embedded"], ("--embedded asks for the embedded server", "leave out ''")),
        (["http://127.0.0.1 :9"], ("the URL is 'http://127.0.0.1 :9'", "without spaces")),
        (["http://127.0.0.1:9/a b"], ("without spaces",)),
        ([URL, "--out", ""], ("--out is empty", "try --out result")),
        ([URL, "--json", ""], ("--json is '' (Is a directory)",)),
        ([URL, "--json", "."], ("--json is '.' (Is a directory)",)),
        ([URL, "--json", "no/where.json"], ("(No such file or directory)", "--json result.json")),
        ([URL, "--json", "/proc/result.json"], ("--json is '/proc/result.json'",)),
    ],
)
def test_refused_words(
    words: list[str], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each study's URL and files, before anything heavy is imported; no file is left."""
    before = list(Path().iterdir())
    for command in ("knee", "run --users 4", "sweep --users 4"):
        assert main([*command.split(), *words]) == 2, command
        out, said = capsys.readouterr()
        assert out == "", command
        assert said.count("\n") == 1, command
        assert list(Path().iterdir()) == before, command
        assert [part for part in parts if part not in said] == [], command


@pytest.mark.parametrize("kind", ["new", "file", "pipe", "-"])
def test_json_file(kind: str, tmp_path: Path) -> None:
    """It is left as it was; a pipe is not opened, or its reader would see it end."""
    where = tmp_path / "result.json" if kind != "-" else Path("-")
    if kind == "file":
        where.write_text("earlier")
    if kind == "pipe":
        os.mkfifo(where)
    assert parser().parse_args(["report", "DIR", "--json", str(where)]).json == str(where)
    assert where.exists() == (kind in ("file", "pipe"))
    assert kind != "file" or where.read_text() == "earlier"


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_bad_key(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that no header can carry is refused by its variable's name; the key is not shown."""
    monkeypatch.setenv("VLLM_API_KEY", key)
    assert main(["knee", URL]) == 2
    said = capsys.readouterr().err
    assert "VLLM_API_KEY holds a blank" in said
    assert key not in said


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({}, ("", "")),
        ({"OPENAI_API_KEY": "o"}, ("o", "OPENAI_API_KEY")),
        ({"VLLM_API_KEY": "v", "OPENAI_API_KEY": "o"}, ("v", "VLLM_API_KEY")),
        ({"VLLM_API_KEY": "", "OPENAI_API_KEY": "o"}, ("o", "OPENAI_API_KEY")),
    ],
)
def test_key_source(
    variables: dict[str, str], want: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM's own variable counts before OpenAI's, and its name is kept for error texts."""
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, key in variables.items():
        monkeypatch.setenv(name, key)
    target = knee.options(parser().parse_args(["knee", URL])).target
    assert (target.api_key, target.key_source) == want
    assert "api_key" not in repr(target)


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C outside a study still ends with 130 and without a traceback."""

    def interrupt(_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli.doctor_work.execute", interrupt)
    assert main(["doctor"]) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "vllm-harness: interrupted\n"


def test_closed_pipe() -> None:
    """`vllm-harness doctor | head -0` ends quietly."""
    line = f"{sys.executable} -m harness doctor --quick | true"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stderr == ""
