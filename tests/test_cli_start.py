"""How knee, run and sweep begin: the first line, what is refused before Locust, the plan."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from little_servers import http, little_server, vllm_like
from study_process import started

from harness.cli.app import main, parser
from harness.run.options_from_args import target_options
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAVY = ("locust", "gevent", "numpy", "dukpy", "pyarrow", "jinja2")
SPY = f"""
import sys
from harness.cli import main
code = main(sys.argv[1:])
sys.stderr.write("imported: " + " ".join(name for name in {HEAVY} if name in sys.modules) + "\\n")
sys.exit(code)
"""


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def closed() -> Iterator[str]:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def unauthorized() -> Iterator[str]:
    """Asks for a key."""
    with little_server(lambda _path, _body: http({}, 401)) as server:
        yield f"http://127.0.0.1:{server.port}"


@contextlib.contextmanager
def wrong() -> Iterator[str]:
    """No scheme that can be measured."""
    yield "ftp://127.0.0.1"


REFUSED = {
    # where: exit code, lines on stdout, what stderr says
    wrong: (2, [], "expected http:// or https://"),
    closed: (3, ["probing {}"], "nothing listens"),
    silent: (3, ["probing {}"], "does not finish an answer within 300 ms"),
    unauthorized: (3, ["probing {}"], "answers 401"),
}


@pytest.mark.parametrize("where", REFUSED, ids=lambda where: where.__name__)
def test_refused_before_anything_heavy_is_imported(where: Any, tmp_path: Path) -> None:
    """What it waits for is said first, and no refusal of a target waits for Locust or numpy."""
    code, lines, said = REFUSED[where]
    with where() as url:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SPY,
                "run",
                url,
                "--users",
                "1",
                "--out",
                str(tmp_path / "run"),
                "--first-token-timeout",
                "300ms",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == code
    assert done.stdout.splitlines() == [li.format(url) for li in lines]
    refusal, imported = done.stderr.splitlines()
    assert said in refusal
    assert imported == "imported: "


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", 60),
        ("--first-token-timeout 5s", 5),
        ("--first-token-timeout 5m", 300),
        ("--request-timeout 7s", 7),
        ("--request-timeout 7s --first-token-timeout 6s", 6),
        ("--request-timeout 1h", 60),
    ],
)
def test_how_long_the_probe_waits(line: str, want: int) -> None:
    """As long as a first token may take; a minute where nothing was said."""
    args = parser().parse_args(["knee", "http://127.0.0.1:9", *line.split()])
    assert target_options(args).timeouts.answer_ns == want * SECOND


@contextlib.contextmanager
def hanging(path_of_it: str, key: str) -> Iterator[tuple[str, threading.Event]]:
    """Answers until a request for a path has a key in its body, sets the event, then hangs."""
    reached = threading.Event()
    over = threading.Event()
    usual = vllm_like()

    def reply(path: str, body: dict[str, Any]) -> bytes:
        if path == path_of_it and key in {"", *body}:
            reached.set()
            over.wait()
        return usual(path, body)

    with little_server(reply) as server:
        try:
            yield f"http://127.0.0.1:{server.port}", reached
        finally:
            over.set()


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "key", "to"),
    [
        ("/v1/models", "", "stdout"),  # the probe
        ("/tokenize", "messages", "stderr"),  # prompts are calibrated: Locust is there by then
    ],
)
def test_ctrl_c_before_the_load(path: str, key: str, to: str, tmp_path: Path) -> None:
    """One line and 130, whatever it was waiting for; stdout is left to `--json -`."""
    more = ("--json", "-") if to == "stderr" else ()
    with hanging(path, key) as (url, reached):
        process = started("knee", url, "--out", str(tmp_path / "run"), *more)
        first = getattr(process, to).readline()
        assert reached.wait(60)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:  # it came just before a blocking read: press again
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert first == f"probing {url}\n"
    assert process.returncode == 130
    assert out == ""
    assert err == "vllm-harness: interrupted\n"


PLANS = {
    # line: rows of the plan, in order
    "knee {url} --slo ttft_p95=500ms --slo itl_p95=50ms --max-users 6 --budget 90s": {
        "target": "the only model at http://127.0.0.1:9",
        "workload": "chat: about 256 prompt tokens and 128 output tokens a request, "
        "by /v1/chat/completions",
        "clipped": "to the context that the server names",
        "SLOs": "ttft_p95=500ms and itl_p95=50ms; at most 1% of requests may fail",
        "levels": "1 to 6 users: the fewest, as many as the server can easily run at once, then "
        "two to four times as many, until one fails; then between pass and fail",
        "budget": "90 s of load at most, less once the knee's interval is 5% wide, and a minute "
        "to drain; in simulation 68% of searches of 60 s end with a level shown to hold and half "
        "of them with one that fails within 238% of it",
    },
    "run --embedded --users 1 --requests 1 --workload agent --gpu l4 --shape qwen2.5-7b": {
        "target": "simulated: qwen2.5-7b on l4, in place of a server",
        "workload": "agent: about 1,216 prompt tokens (1,024 of them shared by all) and "
        "96 output tokens a request, by /v1/chat/completions",
        "sessions": "8 turns on average, history full, planned replies; a level is a number of "
        "sessions",
        "pauses": "1,000 ms on average",
        "SLOs": "none: nothing is judged",
        "levels": "1 user for 1 request",
    },
    "sweep --embedded --users 1,800 --duration 1m --prompt-tokens 4000 --output-tokens 500": {
        "target": "simulated: llama-3.1-8b on h100, in place of a server",
        "workload": "chat: about 4,000 prompt tokens and 500 output tokens a request, "
        "by /v1/chat/completions",
        "clipped": "28 of 1,000 planned requests are clipped to the model's context of "
        "8,192 tokens",
        "SLOs": "none: nothing is judged",
        "levels": "1, 800 users for 60 s each",
    },
}


@pytest.mark.parametrize("line", PLANS)
def test_the_plan(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run prints the whole plan without a server, and starts nothing."""
    out = tmp_path / "new"
    words = line.format(url="http://127.0.0.1:9").split()
    assert main([*words, "--dry-run", "--out", str(out)]) == 0
    rows = {**PLANS[line], "results": str(out)}
    told = [f"  {name:<10}{what}" for name, what in rows.items()]
    assert capsys.readouterr() == ("\n".join(["Plan (nothing was sent):", *told, ""]), "")
    assert not out.exists()


def test_the_plan_contacts_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """The server named is not even connected to; with `--json -` words go to stderr."""
    with little_server(vllm_like()) as server:
        code = main(["knee", f"http://127.0.0.1:{server.port}", "--dry-run", "--json", "-"])
        paths = server.paths
    out, err = capsys.readouterr()
    assert code == 0
    assert out == ""
    assert paths == []
    assert err.startswith("Plan (nothing was sent):\n")
