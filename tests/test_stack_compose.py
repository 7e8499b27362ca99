"""The Compose stack in a real Docker: up, loaded, scraped, and with parts of it killed."""

from __future__ import annotations

import json
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING

import pytest
from compose import SEARCH, Stack, wait_for, where
from recording import RECORDED
from study_process import harness, started

from harness.server.address import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.docker
ALWAYS = {"locust-master", "locust-worker", "prometheus"}
SERVICES = {  # by profile
    "gpu": {"vllm", "exporter-gpu"},
    "engine": {"engine", "exporter"},
    "url": {"exporter"},
    "grafana": {"grafana"},
    "ci": {"knee"},
}
STARTED = {
    "engine-1",
    "exporter-1",
    "prometheus-1",
    "locust-master-1",
    "locust-worker-1",
    "locust-worker-2",
}
RECORDINGS = {row.name for group in RECORDED.values() for row in group}
USERS = 8
UP = ("up", "--detach", "--wait", "--no-build", "--scale", "locust-worker=2")
# Prometheus needs up to 11 s to find the search: names every 5 s, targets 5 s later, then a scrape.
# Answers of 600 tokens take 6 s here. To fail, a level needs a warm-up of one answer and then three
# requests, one after another, however often the search looks: 18 s. Ten times that are granted.
NO_KNEE = (
    "--slo ttft_p95=1ms --budget 300s --max-users 2 --workload fixed"
    " --prompt-tokens 64 --output-tokens 600"
)
FORM = {
    "host": "http://engine:8000",
    "slo": "ttft_p95=1ms",
    "workload": "chat",
    "budget": "20s",
    "prompt_tokens": "64",
    "output_tokens": "16",
    "max_users": "2",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """A copy of the tree without an .env."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = int(sock.getsockname()[1])
    return Stack(tmp_path_factory.mktemp("stack"), port)


@pytest.fixture(scope="module")
def stack(bare: Stack) -> Iterator[Stack]:
    """`make up` without a GPU, then a second worker."""
    done = bare.run("make", "up", "PROFILES=engine")
    try:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == f"Locust: {bare.url}"
        bare.compose(*UP)
        bare.login = (bare.folder / ".secrets/locust_password").read_text()
        yield bare
    finally:
        bare.compose("--profile", "*", "down", "--volumes", "--timeout", "2")


def test_without_env_one_sentence(bare: Stack) -> None:
    """Nothing starts, and it says what to do."""
    done = bare.run("docker", "compose", "up")
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert 'Run "make up", which writes one' in line


@pytest.mark.parametrize("profiles", [(), ("gpu", "grafana"), tuple(SERVICES)], ids="-".join)
def test_profiles(bare: Stack, profiles: tuple[str, ...]) -> None:
    """Each adds its services, and neither server comes without its own.

    Compose starts a service if one of its profiles is named; which those are: test_stack_files.py.
    """
    env = {"COMPOSE_PROFILES": ",".join(profiles), "HARNESS_TARGET": "http://x"}
    want = ALWAYS.union(*(SERVICES[name] for name in profiles))
    assert set(bare.compose("config", "--services", **env).split()) == want


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("PROFILES=gpu,engine", "expected one of gpu, engine and url"),
        ("PROFILES=grafana", "expected one of gpu, engine and url"),
        ("PROFILES=url", "PROFILES has url, and there is no URL"),
    ],
)
def test_make_up_refuses(bare: Stack, arguments: str, says: str) -> None:
    """Before a file is written."""
    done = bare.run("make", ".env", arguments)
    assert done.returncode != 0
    assert says in done.stdout
    assert not (bare.folder / ".secrets").exists()


def test_make_up_keeps_what_is_there(stack: Stack) -> None:
    """Other profiles than those in .env are refused, not forgotten."""
    before = (stack.folder / ".env").read_text()
    done = stack.run("make", "up", "PROFILES=gpu")
    assert done.returncode != 0
    assert "PROFILES is gpu, and .env has others" in done.stdout
    assert (stack.folder / ".env").read_text() == before


def test_up_and_healthy(stack: Stack) -> None:
    """Every container, by its own health check."""
    health = {name: c["State"]["Health"]["Status"] for name, c in stack.containers().items()}
    assert health == dict.fromkeys(STARTED, "healthy")


def test_secrets_are_generated_and_kept(stack: Stack) -> None:
    """Passwords of 32 characters, each its own, in no file that others read and in no `inspect`."""
    secrets = stack.folder / ".secrets"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (stack.folder / ".env", secrets)]
    assert modes == [0o600, 0o700]
    words = [(secrets / f"{name}_password").read_text() for name in ("grafana", "locust")]
    assert [len(set(words)), *map(len, words)] == [2, 32, 32]
    shown = json.dumps(stack.containers())
    assert [word for word in words if word in shown] == []


def test_containers_may_little(stack: Stack) -> None:
    """Not root, no capability, nothing written outside volumes; one port, on the loopback."""
    for name, container in stack.containers().items():
        host = container["HostConfig"]
        assert container["Config"]["User"] not in ("", "root", "0"), name
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Init"]) == (True, ["ALL"], True)
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert host["Memory"] > 0, name
        published = [p for ports in host["PortBindings"].values() for p in ports]
        assert [p["HostIp"] for p in published] == ["127.0.0.1"] * (name == "locust-master-1")


def test_login(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the password nothing starts; a browser is led to the page that asks."""
    monkeypatch.setattr(stack, "login", "")
    assert stack.ask("/")[0].startswith("/login")
    assert stack.ask("/swarm", "user_count=1&spawn_rate=1")[0].startswith("/login")
    monkeypatch.undo()
    assert stack.ask("/")[0] == "/"
    assert stack.stats()["state"] == "ready"


def swarm(stack: Stack) -> None:
    """Start the load, until every user runs; and what an earlier try has killed."""
    stack.compose(*UP)
    form = f"user_count={USERS}&spawn_rate={USERS}&host=http://engine:8000"
    assert json.loads(stack.ask("/swarm", form)[1])["success"]
    wait_for(lambda: stack.stats()["user_count"] == USERS)


def test_prometheus_has_what_the_run_did(stack: Stack) -> None:
    """Its targets are up, and it counts the requests that Locust counted."""
    swarm(stack)
    wait_for(lambda: stack.requests() > 5 * USERS)
    wait_for(lambda: (stack.value("harness:ttft_seconds:p95") or 0) > 0)
    assert {row["metric"]["instance"]: row["value"][1] for row in stack.query("up")} == {
        "engine:8000": "1",
        "exporter:9400": "1",
        "locust-master:8089": "1",
        "127.0.0.1:9090": "1",
    }
    stack.ask("/stop", "stop=1")
    wait_for(lambda: stack.stats()["state"] == "stopped")
    # Locust's workers report every 3 s, the last time after the end; ours is whole at once
    wait_for(lambda: stack.value("sum(harness_requests_total)") == stack.requests())
    counted = stack.requests()
    assert stack.value('harness_requests_total{outcome="ok"}') == counted
    assert stack.value("harness_target_up") == 1
    names = stack.query('count by (__name__) ({__name__=~"harness:.+"})')
    assert {row["metric"]["__name__"] for row in names} == RECORDINGS
    assert stack.value("sum(prometheus_rule_evaluation_failures_total)") == 0
    # the server's own count has the probe before the load too
    wait_for(lambda: (stack.value("sum(vllm:request_success_total)") or 0) > counted)


def test_a_killed_worker(stack: Stack) -> None:
    """Its users are gone and do not move to the other; started again, it gets its share."""
    swarm(stack)
    stack.run("docker", "kill", f"{stack.project}-locust-worker-2")
    wait_for(lambda: stack.stats()["user_count"] == USERS // 2)
    before = stack.requests()
    wait_for(lambda: stack.requests() > before)
    found = stack.stats()
    assert (found["state"], found["user_count"]) == ("running", USERS // 2)
    wait_for(lambda: stack.value("harness_users_running") == USERS // 2)
    assert stack.value("harness_users_target") == USERS
    wait_for(lambda: stack.query('ALERTS{alertname="UsersMissing"}'))
    assert stack.containers()["locust-worker-2"]["State"]["ExitCode"] == 137
    stack.compose(*UP)
    wait_for(lambda: stack.stats()["user_count"] == USERS)


def test_a_killed_master(stack: Stack) -> None:
    """Its workers end by themselves and the load with them; what serves goes on, nothing restarts.

    Then the headless service looks for a knee and ends with the code of what it found.
    """
    stack.run("docker", "kill", f"{stack.project}-locust-master-1")
    states = wait_for(lambda: ended(stack))
    wait_for(lambda: not stack.value("sum(vllm:num_requests_running)"))
    knee = ("docker", "compose", "run", "--rm", "--use-aliases", "knee")
    done = stack.run(*knee, KNEE_FLAGS=NO_KNEE)
    assert done.returncode == 99, done.stderr
    assert "No level passes: p95 TTFT" in done.stdout
    assert stack.value('max_over_time(harness_users_running{job="vllm-harness-run"}[1m])') >= 1
    assert states.pop("locust-master-1") == 137
    assert {code < 128 for code in states.values()} == {True}  # they were not killed
    health = {name: c["State"]["Health"]["Status"] for name, c in stack.containers().items()}
    assert {name for name, status in health.items() if status == "healthy"} == {
        "engine-1",
        "exporter-1",
        "prometheus-1",
    }


def ended(stack: Stack) -> dict[str, int]:
    """Exit codes of Locust's containers, once all have ended."""
    states = {name: c["State"] for name, c in stack.containers().items() if "locust" in name}
    if any(state["Running"] for state in states.values()):
        return {}
    return {name: int(state["ExitCode"]) for name, state in states.items()}


def test_a_search_from_the_form(stack: Stack) -> None:
    """As the stack is by default: the master searches, its workers send, a report is there."""
    stack.compose(*UP, HARNESS_LOCUSTFILE=SEARCH)
    assert SEARCH in (stack.folder / ".env").read_text()
    assert json.loads(stack.ask("/harness/start", FORM)[1]) == {"wrong": {}}
    wait_for(lambda: "report.html" in stack.ask("/harness/live.json")[1])
    found = json.loads(stack.ask("/harness/files/result.json")[1])
    assert (found["status"], found["client"]["missing"]) == ("slo_failed_at_min", "")
    assert "<title>" in stack.ask("/harness/files/report.html")[1]


# Three engines of which a drill names two; what it does to them, and what is to be undone.
DRILL = """
[load]
prompt-tokens = 32
output-tokens = 16
first-token-timeout = "2s"
[[phase]]
name = "all"
rate = "6/s"
for = "{seconds}s"
[[expect]]
lost = 0
"""
EVENTS = """
[[event]]
do = "pause"
at = "1s"
replica = 1
for = "{pause}"
[[event]]
do = "restart"
at = "{at}"
replica = 1
for = "1s"
[[event]]
at = "2s"
replica = 2
{last}
"""


def listens(port: int) -> bool:
    """Whether a server does."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def engines(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """URLs of containers beside the stack, by name."""
    for key, value in where().items():
        monkeypatch.setenv(key, value)
    names = [f"{stack.project}-drill-{name}" for name in ("one", "two", "other")]
    ports = dict(zip(names, free_ports(3, set()), strict=True))
    try:
        for name, port in ports.items():
            command = ("vllm-harness", "engine", "--port", str(port), "--max-num-seqs", "8")
            run = ("docker", "run", "--detach", "--init", "--network", "host", "--name", name)
            quiet = "--no-healthcheck"  # its probes would be events, too
            done = stack.run(*run, quiet, "vllm-harness:test", *command)
            assert done.returncode == 0, done.stderr
        wait_for(lambda: all(map(listens, ports.values())))
        yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    finally:
        stack.run("docker", "rm", "--force", *ports)


def drill_of(engines: dict[str, str], folder: Path, events: str, seconds: int = 10) -> Path:
    """The file that names the first two."""
    (one, first), (two, second), _ = engines.items()
    servers = f'[servers]\nurls = ["{first}", "{second}"]\ncontainers = ["{one}", "{two}"]\n'
    text = servers + DRILL.format(seconds=seconds) + events
    (folder / "drill.toml").write_text(text)
    return folder / "drill.toml"


def test_a_drill_acts_on_the_containers_that_it_names(
    stack: Stack, engines: dict[str, str], tmp_path: Path
) -> None:
    """Pause, unpause, kill and start, of these two alone; a name that none has is refused."""
    since = str(time.time())
    file = drill_of(engines, tmp_path, EVENTS.format(pause="2s", at="5s", last='do = "kill"'))
    done = harness("drill", str(file), "--out", str(tmp_path / "out"), "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    form = "{{.Actor.Attributes.name}} {{.Action}}"
    events = ("docker", "events", "--since", since, "--until", str(time.time()), "--format", form)
    listed = stack.run(*events, "--filter", "type=container").stdout.splitlines()
    rows = [row.split(maxsplit=1) for row in listed]  # `exec_start: COMMAND` of others
    one, two, other = engines
    happened = {name: [did for who, did in rows if who == name] for name in engines}
    assert happened == {
        one: ["pause", "unpause", "kill", "die", "start"],
        two: ["kill", "die"],
        other: [],
    }
    file.write_text(file.read_text().replace(two, "nobody"))
    done = harness("drill", str(file), "--out", str(tmp_path / "none"))
    assert (done.returncode, "`docker inspect nobody` fails" in done.stderr) == (3, True)


def test_an_interrupted_drill_leaves_containers_as_they_were(
    stack: Stack, engines: dict[str, str], tmp_path: Path
) -> None:
    """Ctrl-C: what was paused goes on, what was to be started again is started."""
    one, two, _ = engines

    def states() -> list[str]:
        return stack.run(
            "docker", "inspect", "--format", "{{.State.Status}}", one, two
        ).stdout.split()

    events = EVENTS.format(pause="58s", at="59s", last='do = "restart"\nfor = "57s"')
    file = drill_of(engines, tmp_path, events, seconds=60)
    with started("drill", str(file), "--out", str(tmp_path / "out"), "--quiet") as process:
        wait_for(lambda: states() == ["paused", "exited"])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, states()) == (130, ["running", "running"]), err
