"""The live page without a browser: what it is told, what a form may say, whom a login lets in."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from browser_run import TOP, get, locust

from harness.core.run_kinds import DrillRun, KneeRun, LocustRun, RunKind
from harness.core.states import Decision, Status, Verdict
from harness.errors import ConfigError
from harness.export import live_state
from harness.export.live_state import COLUMNS, STATES, History, LiveState, state_facts
from harness.locust import arguments
from harness.metrics.recent_latencies import RecentLatencies
from harness.metrics.result import Gate, Knee, Latency, Level, Result, SloResult, Target
from harness.metrics.slo import Slo
from harness.run import form as forms
from harness.run.run_page import RunPage, ending
from harness.server.address import free_port
from harness.webpage import login
from harness.webpage.login import credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MS = 1e6
PACKAGE = Path(__file__).parents[1] / "harness"


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([], [None, None, None]),
        ([5.0], [5.0, 5.0, 5.0]),
        ([1.0, 3.0], [3.0, 3.0, 3.0]),  # the upper one of two
        (range(1, 21), [11.0, 20.0, 20.0]),  # ranks from 0: 9.5, 18.05 and 18.81, each rounded up
        (range(1, 101), [51.0, 96.0, 100.0]),  # 49.5, 94.05, 98.01
        ([*range(1, 90), *[inf] * 11], [51.0, "inf", "inf"]),  # 11% failed
    ],
)
def test_recent_quantiles(values: Any, want: list[Any]) -> None:
    """Order statistics, in ms, as soon as there is a value."""
    recent = RecentLatencies()
    recent.take("ttft", np.array(list(values), float) * MS)
    assert recent.look()[:3] == want


def test_recent_forgets() -> None:
    """A value is seen in as many looks as the span has seconds; no more than `most` are kept."""
    recent = RecentLatencies(span_s=2, max_values=4)
    recent.take("itl", np.array([1.0] * 2 + [9.0] * 4) * MS)
    assert [recent.look()[3] for _ in range(3)] == [9.0, 9.0, None]


def test_recent_is_cleared() -> None:
    """Neither what was looked at nor what waits is seen again."""
    recent = RecentLatencies()
    for _ in range(2):
        recent.take("tpot", np.array([3.0] * 4) * MS)
        seen = recent.look()[6]
    recent.take("tpot", np.array([3.0] * 4) * MS)
    recent.clear()
    assert seen == 3.0
    assert recent.look()[6] is None


def test_points_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 points in room for 10: evenly spaced, the first one kept, the newest never far away."""
    monkeypatch.setattr(live_state, "MAX_POINTS", 10)
    history = History()
    for second in range(1000):
        history.add([second])
        assert len(history.points) < 10
    times = [point[0] for point in history.points]
    assert times == [i * history.every for i in range(len(times))]
    assert 1000 - times[-1] <= history.every
    assert history.every == 128  # 10 * 128 > 1,000 > 10 * 64


def test_a_page_is_told_only_what_is_new() -> None:
    """By its cursor; all of it for a cursor of another run, of before a thinning, or none."""
    state = LiveState({"kind": "knee"})
    state.begin(state="running")
    first = state.changes_since()
    assert first["whole"] is True
    assert first["points"] == []
    assert first["facts"]["columns"] == COLUMNS
    state.add([1.0], ended=3)
    second = state.changes_since(first["cursor"])
    assert second == {
        "cursor": second["cursor"],
        "now": {"ended": 3},
        "points": [[1.0]],
        "whole": False,
    }
    state.update_facts(state="running")  # nothing new
    assert state.changes_since(second["cursor"])["points"] == []
    assert "facts" not in state.changes_since(second["cursor"])
    state.update_facts(state="computing")
    assert state.changes_since(second["cursor"])["facts"]["state"] == "computing"
    state.begin(state="starting")
    anew = state.changes_since(second["cursor"])
    assert anew["whole"] is True
    assert anew["points"] == []
    assert anew["facts"]["kind"] == "knee"
    for cursor in ("x", "0-0-0-0", second["cursor"] + "9" * 40, "-1-2-3"):
        assert state.changes_since(cursor)["whole"] is True
    for second_ in range(2000):
        state.add([float(second_)])
    assert state.changes_since(anew["cursor"])["whole"] is True  # thinned meanwhile
    assert len(json.dumps(state.changes_since(state.changes_since()["cursor"]))) < 200


def test_each_way_to_end_has_its_sentence() -> None:
    """STATES has every status that result.json can have; none of the texts lacks a word."""
    assert set(Status) - set(STATES) == set()
    for name in STATES:
        told = state_facts(name, "Some words.")
        assert "{" not in told["sentence"]
        assert told["badge"]


SLO = SloResult("ttft_p95=500ms", Verdict.met, 460.0, 34)
TTFT = Latency(n=239, p95=460.2, p95_ci95=(440.1, 490.3))
ITL = Latency(n=900, p95=12.0, p95_ci95=(10.7, nan))
LEVEL = Level(
    0,
    34,
    decision=Decision.held,
    latencies={"ttft_ms": TTFT, "itl_ms": ITL},
    output_tokens_per_s=1546.2,
    slos=(SLO,),
)
KNEE = Knee(
    34,
    35,
    40,
    (34, 37),
    p95s_ms={"ttft_p95_ms": 470.0, "ttft_p95_ms_ci95": (450.0, 480.0)},
    output_tokens_per_s=1550.0,
)
FIGURES = [
    ("p95 TTFT", (460.2, 440.1, 490.3), "ms", "at 34 users", 500.0),
    ("p95 ITL", (12.0, 10.7, None), "ms", "at 34 users", None),
    ("Output tokens/s", [1546.2, None, None], "", "at 34 users", None),
]


@pytest.mark.parametrize(
    ("result", "want"),
    [
        (
            Result(knee=KNEE, slos=(SLO,), levels=(LEVEL,)),
            [
                ("Holds", "34", "users", "fails at 40", None),
                ("Best estimate", "35", "users", "95% CI: 34 to 37", None),
                ("p95 TTFT", (470.0, 450.0, 480.0), "ms", "at 34 users", 500.0),
                ("p95 ITL", (None, None, None), "ms", "at 34 users", None),
                ("Output tokens/s", [1550.0, None, None], "", "at 34 users", None),
            ],
        ),
        (
            Result(command="run", slos=(SLO,), levels=(LEVEL,)),
            [("ttft_p95=500ms", "met", "", "at 34 users", None), *FIGURES],
        ),
        (Result(command="run", levels=(LEVEL,)), [(*one[:4], None) for one in FIGURES]),
        (
            Result(command="sweep", slos=(SLO,), levels=(LEVEL, LEVEL)),
            [("ttft_p95=500ms", "met", "", "at 34 users", None)],  # figures: of no single level
        ),
        (Result(), []),
    ],
)
def test_the_tiles_show_the_result(result: Result, want: list[Any]) -> None:
    """After the end: what was found, not the last seconds of load."""
    keys = ("name", "value", "unit", "note", "limit")
    lists = [[list(x) if isinstance(x, tuple) else x for x in one] for one in want]
    told = ending(result, "Holds 34.\nMore.\nThe run folder: x")
    assert told["tiles"] == [dict(zip(keys, one, strict=True)) for one in lists]
    assert told["sentence"] == "Holds 34."
    assert told["answer"] == ["More."]


@pytest.mark.parametrize(
    ("kind", "title", "searches", "decides"),
    [
        (KneeRun, "search for the knee", True, True),
        (DrillRun, "drill", False, True),
        (LocustRun, "locust", False, False),
    ],
)
def test_the_page_is_told_of_the_kind(
    kind: type[RunKind],
    title: str,
    searches: bool,
    decides: bool,
) -> None:
    """Also before a run begins, and of the next one."""
    page = RunPage(kind)
    page.starting("http://h:1")
    told = {key: page.state.facts[key] for key in ("kind", "title", "searches", "decides")}
    assert told == {"kind": kind.name, "title": title, "searches": searches, "decides": decides}


def test_every_expectation_of_a_drill_is_on_the_page() -> None:
    """Also those that are over only with the load; what nothing decided is neither."""
    page = RunPage(DrillRun)
    page.live.set_expectations({"early": Verdict.met, "late": Verdict.inconclusive})
    assert '"late"' not in page.live.page().decode()
    verdicts = {"early": Verdict.met, "late": Verdict.missed, "vague": Verdict.inconclusive}
    gates = tuple(Gate(name, verdict, "") for name, verdict in verdicts.items())
    page.answer(Result(command="drill", status=Status.measured, gates=gates), "0 of 3.")
    lines = page.live.page().decode().splitlines()
    assert [line for line in lines if line.startswith("harness_drill_expectation")] == [
        'harness_drill_expectation{expectation="early"} 1.0',
        'harness_drill_expectation{expectation="late"} 0.0',
    ]


def test_a_simulated_run_says_so_in_a_badge() -> None:
    """With model and GPU; the headline stays the headline."""
    target = Target(model="llama", simulated=True, gpu="h100")
    told = ending(Result(status=Status.met, target=target), "Simulated: llama.\nMet.")
    assert [told[key] for key in ("badge", "simulated", "sentence")] == [
        "SLO met",
        "simulated llama on h100",
        "Met.",
    ]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, "host"),
        ({"host": "ftp://x"}, "host"),
        ({"slo": "ttft=5"}, "slo"),
        ({"workload": "<script>"}, "workload"),
        ({"prompt_tokens": "-3"}, "prompt_tokens"),
        ({"max_users": "1e3"}, "max_users"),
        ({"max_users": "٣" * 9}, "max_users"),
        ({"min_users": "9", "max_users": "8"}, "min_users"),
        ({"budget": "3s"}, "budget"),
        ({"max_errors": "2"}, "max_errors"),
    ],
)
def test_a_form_that_makes_no_sense(given: dict[str, str], want: str) -> None:
    """Its field is named, with what was found, expected, and to try."""
    host = {} if want == "host" else {"host": "http://127.0.0.1:8000"}
    _, wrong = forms.read_form(host | given)
    assert list(wrong) == [want]
    assert "expected" in wrong[want]
    assert "--" not in wrong[want]


def test_a_form_is_read() -> None:
    """Each value in its unit; several SLOs with blanks or commas between them."""
    form = {"host": "http://h:1/v1", "slo": " ttft_p95=1s,itl_p99=20ms ", "budget": "1m30s"}
    values, wrong = forms.read_form(form)
    assert wrong == {}
    assert values["host"] == "http://h:1"
    assert values["slo"] == (Slo.parse("ttft_p95=1s"), Slo.parse("itl_p99=20ms"))
    assert values["budget"] == 90_000_000_000
    assert values["max_users"] == 512


def test_an_emptied_number_has_its_default() -> None:
    """Of an SLO or a model, nothing means nothing."""
    empty = ("prompt_tokens", "output_tokens", "min_users", "max_users", "slo", "model")
    values, wrong = forms.read_form({"host": "http://h:1"} | dict.fromkeys(empty, " "))
    assert wrong == {}
    assert [values[name] for name in empty] == [0, 0, 1, 512, (), ""]


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("--slo is 'x': try 'ttft_p95=500ms'.", "SLO is 'x': try 'ttft_p95=500ms'."),
        ("try --prompt-tokens 9 or --max-users 8.", "try Prompt tokens 9 or Highest level 8."),
        ("try --ca-file FILE.", "try --ca-file FILE."),  # no field: the command line's
    ],
)
def test_the_page_names_fields(said: str, want: str) -> None:
    """Where the command line names options."""
    assert forms.in_labels(said) == want


def test_locusts_form_can_show_the_options() -> None:
    """Its labels show a help text as it is, its select shows every choice: none is blank."""
    parser = ArgumentParser()
    arguments.add_arguments(parser)
    forms.add_arguments(parser)
    shown = {action.dest: action for action in parser._actions if action.dest != "help"}  # noqa: SLF001
    assert {name for name, action in shown.items() if "%" in (action.help or "%")} == set()
    given = parser.parse_args([])
    assert given.max_errors == "1%"
    assert given.workload in shown["workload"].choices
    assert all(shown["workload"].choices)


@pytest.mark.parametrize(
    ("add", "want"),
    [
        (
            arguments.add_arguments,
            {
                "model": "",
                "workload": "default",
                "prompt_tokens": 0,
                "output_tokens": 0,
                "max_errors": "1%",
                "slo": [],
                "seed": 1,
                "api_key_env": "VLLM_API_KEY",
                "run_folder": None,
                "ca_file": None,
                "insecure": False,
            },
        ),
        (
            forms.add_arguments,
            {
                "min_users": "1",
                "max_users": "512",
                "budget": "10m",
                "precision": "5%",
                "runs": "reports",
                "server_flag": [],
                "gpu_metrics": None,
            },
        ),
    ],
)
def test_the_options_of_a_locustfile(
    add: Callable[[ArgumentParser], None], want: dict[str, Any]
) -> None:
    """They stay texts until a run begins, except the numbers that Locust itself refuses."""
    parser = ArgumentParser()
    add(parser)
    assert vars(parser.parse_args([])) == want


def test_no_locustfile_has_an_option_of_its_own() -> None:
    """Each is a row of harness/run/option_table.py; by hand, nothing is added to the parser."""
    doors = [*(PACKAGE / "locust").glob("*.py"), PACKAGE / "run" / "form.py"]
    by_hand = [path.name for path in doors if ".add_argument(" in path.read_text()]
    assert by_hand == []


@pytest.mark.parametrize("asked", ["", arguments.AS_USERS])
def test_the_workload_of_the_locustfile(asked: str) -> None:
    """Not chosen: the one that is named like the users' API, and our own form's default."""
    users = [type("Users", (), {"api": "completions"})]
    environment = Environment(Namespace(workload=asked), "", users)
    assert arguments.workload_name(environment) == "completions"
    assert forms.form_values(Namespace(workload=asked), "")["workload"] == "chat"


@pytest.mark.parametrize(
    ("slo", "want"),
    [
        ([], forms.FIELDS["slo"].default),
        (["ttft_p95=1s", "itl_p99=20ms"], "ttft_p95=1s itl_p99=20ms"),
    ],
)
def test_the_command_line_fills_the_form_in(slo: list[str], want: str) -> None:
    """What it says; the field's default where it says nothing."""
    assert forms.form_values(Namespace(slo=slo, budget=""), "http://h:1")["slo"] == want


def test_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the environment or a file; a file that is empty or missing is refused, not ignored."""
    file = tmp_path / "secret"
    for name in (login.USER, login.PASSWORD, login.PASSWORD_FILE):
        monkeypatch.delenv(name, raising=False)
    assert credentials() is None
    monkeypatch.setenv(login.PASSWORD_FILE, str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        credentials()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        credentials()
    file.write_text("two words\n")
    assert credentials() == ("admin", "two words")
    monkeypatch.setenv(login.PASSWORD, "nearer")
    monkeypatch.setenv(login.USER, "ops")
    assert credentials() == ("ops", "nearer")


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "form", "want"),
    [
        (["--web-login"], {}, "--web-login was given and no password"),
        ([], {login.PASSWORD_FILE: "/nowhere/secret"}, "which cannot be read"),
    ],
)
def test_a_login_without_a_password_is_refused(
    flags: list[str], form: dict[str, str], want: str
) -> None:
    """Exit code 2 with a sentence, before anything is served."""
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        "locustfiles/knee.py",
        "--web-port",
        str(free_port()),
        "--web-host",
        "127.0.0.1",
        *flags,
    ]
    done = subprocess.run(
        command,
        cwd=TOP,
        env=os.environ | form,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert want in done.stderr
    assert "Traceback" not in done.stderr


@dataclass(eq=False)
class Environment:
    """As much of Locust's as is looked at: its own patches what it runs in."""

    parsed_options: Namespace
    host: str
    user_classes: list[type] = field(default_factory=list)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://vllm:8000", True),
        ("http://VLLM:8000/v1", True),
        ("https://vllm:8000", False),
        ("http://vllm:8001", False),
        ("http://vllm.evil:8000", False),
        ("not a url", False),
    ],
)
def test_secrets_go_to_the_named_host_only(url: str, want: bool) -> None:
    """A form names another server, or another variable: nothing is sent there."""
    options = Namespace(api_key_env="KEY", ca_file="", insecure=False, run_folder="")
    environment = Environment(parsed_options=options, host="http://vllm:8000")
    fixed = arguments.fixed(environment)
    options.api_key_env, options.insecure = "HOME", True  # as Locust's /swarm would take them
    assert arguments.is_named(fixed["host"], url) == want
    assert fixed["api_key_env"] == "KEY"
    assert fixed["insecure"] is False


@pytest.mark.process
def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    """Before anything is served: a test would overwrite it."""
    (tmp_path / "old").write_text("")
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        "locustfiles/chat.py",
        "--web-port",
        str(free_port()),
        "--web-host",
        "127.0.0.1",
        "--run-folder",
        tmp_path,
    ]
    done = subprocess.run(
        command,
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 4
    assert "is not an empty folder" in done.stderr


OPEN = {"/login", "/harness/login", "/assets/<path:path>", "/static/<path:filename>"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Locust with a login, that lists its own rules at /rules (test only, hence unguarded)."""
    file = tmp_path_factory.mktemp("file") / "knee.py"
    source = Path(__file__).parents[1] / "locustfiles/knee.py"
    listing = """
from locust import events
@events.init.add_listener
def _rules(environment, web_ui, **_):
    if web_ui is not None:
        app = web_ui.app
        app.add_url_rule("/rules", "rules", lambda: [
            [rule.rule, sorted(rule.methods)] for rule in app.url_map.iter_rules()])
"""
    file.write_text(source.read_text() + listing)
    env = {login.PASSWORD: "sesame"}
    with locust("--host", "http://127.0.0.1:1", env=env, file=str(file)) as url:
        yield url


BASIC = {"Authorization": "Basic YWRtaW46c2VzYW1l"}  # admin:sesame
ELSEWHERE = {"Origin": "http://elsewhere.example"}


@pytest.fixture(scope="module")
def unguarded() -> Iterator[str]:
    """Locust without a login."""
    with locust("--host", "http://127.0.0.1:1") as url:
        yield url


def answer(url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
    """(status, headers); a GET without a body."""
    asked = urllib.request.Request(url, body, headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(asked, timeout=20) as found:  # noqa: S310 - loopback
            return found.status, found.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


@pytest.mark.process
@pytest.mark.parametrize(("where", "who"), [("unguarded", {}), ("guarded", BASIC)])
def test_what_another_site_may_not_do(
    where: str, who: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """No button, Locust's or ours, and no figure to read; a login changes nothing of that."""
    url = request.getfixturevalue(where)
    for path in ("/harness/start", "/harness/stop", "/swarm", "/stop", "/stats/reset", "/user"):
        assert answer(url + path, b"{}", who | ELSEWHERE)[0] == 403, path
    for path in ("/", "/stats/requests", "/harness/live.json", "/harness/metrics"):
        status, headers = answer(url + path, None, who | ELSEWHERE)
        assert status == 200, path
        assert headers["Access-Control-Allow-Origin"] is None, path
    assert answer(f"{url}/harness/start", b"[]", who)[0] == 400
    assert answer(f"{url}/harness/files/passwd", None, who)[0] == 404
    assert answer(f"{url}/stats/reset", b"", who | {"Origin": url})[0] == 200
    assert answer(f"{url}/stats/reset", b"", who)[0] == 200


@pytest.mark.process
@pytest.mark.parametrize(
    ("where", "who", "host", "want"),
    [
        ("unguarded", {}, "evil.example:{port}", 403),  # DNS rebinding: its name, our address
        ("unguarded", {}, "localhost.evil.example:{port}", 403),
        ("unguarded", {}, "127.0.0.1.evil.example", 403),
        ("unguarded", {}, "[evil", 403),
        ("unguarded", {}, "localhost:{port}", 200),
        ("unguarded", {}, "LOCALHOST", 200),
        ("unguarded", {}, "127.0.0.1:{port}", 200),
        ("unguarded", {}, "[::1]:{port}", 200),
        ("unguarded", {}, "192.0.2.7:{port}", 200),  # an address cannot be rebound
        ("guarded", BASIC, "bench.example:{port}", 200),  # the login decides
        ("guarded", {}, "bench.example:{port}", 302),
    ],
)
def test_names_that_another_site_may_have(
    where: str, who: dict[str, str], host: str, want: int, request: pytest.FixtureRequest
) -> None:
    """Without a login only an address, localhost or --web-host's name is answered."""
    url = request.getfixturevalue(where)
    name = host.format(port=urlsplit(url).port)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    with contextlib.closing(connection):
        for method, path in (("GET", "/stats/requests"), ("POST", "/stats/reset")):
            origin = {"Origin": f"http://{name}"}
            connection.request(method, path, headers=who | {"Host": name} | origin)
            answered = connection.getresponse()
            body = answered.read()
            assert answered.status == want, (path, body)
            assert (b"without a login expected" in body) == (want == 403)


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ("/harness", "/harness"),
        ("/harness/files/report.html", "/harness/files/report.html"),
        ("/", "/"),
        ("/harness/live.json", "/"),  # an old page polls it; nobody wants to read it
        ("https://elsewhere.example/harness", "/"),
        ("//elsewhere.example/harness", "/"),
        ("/\\elsewhere.example", "/"),
        ("", "/"),
    ],
)
def test_after_the_login(guarded: str, asked: str, want: str) -> None:
    """One is where one wanted to go, if that is a page of ours."""
    shown = f"{guarded}/login?{urllib.parse.urlencode({'next': asked})}"
    login_form = urllib.parse.urlencode({"username": "admin", "password": "sesame"}).encode()
    jar = urllib.request.HTTPCookieProcessor()
    ways: list[str] = []

    class Ways(urllib.request.HTTPRedirectHandler):
        """Notes them, and follows none."""

        def redirect_request(self, *told: Any) -> None:
            ways.append(told[-1])

    browser = urllib.request.build_opener(jar, Ways())
    browser.open(shown, timeout=20).close()
    with pytest.raises(urllib.error.HTTPError, match="302"):
        browser.open(f"{guarded}/harness/login", login_form, timeout=20)
    assert ways == [guarded + want]


@pytest.mark.process
def test_a_login_guards_every_page(guarded: str) -> None:
    """Each rule that Locust and we serve leads to the login; with Basic they answer."""
    rules: list[tuple[str, list[str]]] = json.loads(get(f"{guarded}/rules")[1])
    paths = [rule for rule, methods in rules if "GET" in methods and rule not in OPEN | {"/rules"}]
    assert {
        "/",
        "/harness",
        "/harness/live.json",
        "/harness/metrics",
        "/stats/requests",
        "/harness/files/<name>",
        "/harness/latencies.csv",
    } <= set(paths)
    for path in paths:
        status, _ = get(guarded + path.replace("<name>", "run.json").split("<")[0])
        assert status in (302, 404), path  # 404: a path with a converter, cut off
    for method_rule in ("/harness/start", "/harness/stop", "/swarm"):
        asked = urllib.request.Request(guarded + method_rule, b"{}", method="POST")  # noqa: S310
        with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310 - loopback
            assert "/login" in answer.url
    assert get(f"{guarded}/harness/metrics", BASIC)[0] == 200
    assert json.loads(get(f"{guarded}/harness/live.json", BASIC)[1])["facts"]["state"] == "idle"
    wrong = {"Authorization": "Basic YWRtaW46c2VzYW1"}
    assert get(f"{guarded}/harness/live.json", wrong)[0] == 302
