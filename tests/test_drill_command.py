"""`vllm-harness drill`: what it refuses, and, as a process, one drill with every kind of event."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import psutil
import pytest
from study_process import check_code, started, wait_for

from harness.cli.app import parser
from harness.cli.drill_work import planned, wanted_drill
from harness.core.states import Verdict
from harness.errors import ConfigError, RunFolderError
from harness.server.address import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from study_process import Command

REPLICA_DEATH = Path(__file__).parents[1] / "drills/replica-death.toml"
OURS = "engines = 2\nengine = { max-num-seqs = 8 }"
# Everything at once, in 20 s: the kill comes last, as nothing undoes it.
EVERYTHING = """
[servers]
engines = 2
engine = { max-num-seqs = 8 }
[load]
prompt-tokens = 32
output-tokens = 16
first-token-timeout = "2s"
[clients]
retries = 1
[[phase]]
name = "calm"
rate = "8/s"
for = "6s"
[[phase]]
name = "trouble"
rate = "8/s"
for = "14s"
[[event]]
do = "slow"
at = "6s"
replica = 1
for = "3s"
factor = 3
[[event]]
do = "delay"
at = "6s"
replica = 2
for = "3s"
by = "50ms"
[[event]]
do = "pause"
at = "9s"
replica = 1
for = "1s"
[[event]]
do = "cut"
at = "10s"
replica = 2
for = "1s"
[[event]]
do = "throttle"
at = "11s"
replica = 1
for = "1s"
bytes_per_s = 2000
[[event]]
do = "prompts"
at = "12s"
for = "1s"
count = 3
tokens = 200
[[event]]
do = "disconnect"
at = "12s"
for = "1s"
count = 3
by = "100ms"
[[event]]
do = "burst"
at = "13s"
for = "1s"
factor = 2
[[event]]
do = "restart"
at = "14s"
replica = 1
for = "1s"
[[event]]
do = "kill"
at = "17s"
replica = 2
[[expect]]
lost = 0
[[expect]]
slo = "ttft_p50=60s"
[[expect]]
name = "impossible"
slo = "e2e_p50=1ms"
phase = "calm"
"""


@pytest.mark.parametrize(
    ("change", "flags", "code", "said"),
    [
        (("", ""), ("--dry-run",), 0, "expected  ttft_p95=500ms within 5s after kill 1"),
        (("", ""), ("--max-rate", "5/s"), 2, "expected at most 5/s"),
        (("workload", "wrkload"), (), 2, "has 'wrkload'"),
        (('workload = "chat"', "embedded = true"), (), 2, "has embedded"),
        (("max-num-seqs", "max-num-seq"), (), 2, "try max_num_seqs"),
        (("max-num-seqs = 8", "max-num-seqs = '8'"), (), 2, "max_num_seqs = '8': expected"),
        (("max-num-seqs = 8", "max-num-seqs = -8"), (), 2, "max_num_seqs = -8: expected"),
        ((OURS, 'urls = ["http://10.0.0.1:80"]\npids = [1]'), (), 2, "--allow-host 10.0.0.1"),
        ((OURS, 'urls = ["http://127.0.0.1:80"]\npids = [1]'), (), 2, "pid 1"),
    ],
)  # fmt: skip
def test_before_any_server(
    change: tuple[str, str],
    flags: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    command_here: Command,
) -> None:
    """What cannot work is refused before anything is started."""
    file = tmp_path / "drill.toml"
    file.write_text(REPLICA_DEATH.read_text().replace(*change))
    done = command_here("drill", str(file), "--out", str(tmp_path / "out"), *flags)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", ["1.003/s", "8/s", "0.333333 x knee"])
def test_any_rate(rate: str, tmp_path: Path) -> None:
    """A drill may hold rates between the steps of `run`, of which it takes the other options."""
    file = tmp_path / "drill.toml"
    text = f'[servers]\nengines = 1\n[[phase]]\nname = "a"\nrate = "{rate}"\nfor = "5s"\n'
    file.write_text(text + '[[expect]]\nslo = "ttft_p50=60s"\n')
    args = parser().parse_args(["drill", str(file), "--knee", "12.5", "--max-rate", "100"])
    words = file.read_text()
    wanted = wanted_drill(args, planned(args, words), words)
    assert wanted.load.unit.by_schedule
    assert [str(slo) for slo in wanted.plan.slos] == ["ttft_p50=60s"]


def children_of(pid: int) -> list[psutil.Process]:
    """All that it has started."""
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found


@pytest.mark.process
def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C: nothing that it started is left, and what was measured is."""
    out = tmp_path / "out"
    with started("drill", str(REPLICA_DEATH), "--out", str(out), "--quiet") as process:
        wait_for(lambda: bool(list(out.glob("records.*"))) and (out / "server.jsonl").exists())
        time.sleep(2)
        ours = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert len(ours) >= 4  # two engines, the balancer, a worker
    assert [one for one in ours if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert json.loads((out / "result.json").read_text())["interrupted"] is True


@pytest.mark.process
@pytest.mark.long
def test_every_event_once(
    tmp_path: Path, figure: Callable[[str], None], command_here: Command
) -> None:
    """Each event happens and is undone; true, false and lost are what they are; code 99."""
    file, out = tmp_path / "drill.toml", tmp_path / "out"
    file.write_text(EVERYTHING)
    port = free_port()
    command = ("drill", str(file), "--out", str(out), "--quiet", "--metrics-port", str(port))
    with started(*command) as process:
        watch_its_page(port)
        said, err = process.communicate(timeout=60)
    figure(said)
    check_code(process.returncode, said + err, 99)
    result = json.loads((out / "result.json").read_text())
    assert process.returncode == result["exit_code"]
    if process.returncode == 99:
        check_expectations(result)
    check_events(out)
    check_it_again(out, command_here)


def watch_its_page(port: int) -> None:
    """Prometheus sees the kill that is still to come, what is decided, and then no page."""

    def page() -> str:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())
        return ""

    # on a busy machine the phase may be invalid, and then nothing is decided by it
    decided = 'harness_drill_expectation{expectation="impossible"} 0.0'
    killed = 'harness_drill_events_total{event="kill 2"} 1.0'
    not_yet = 'harness_drill_events_total{event="kill 2"} 0.0'
    wait_for(lambda: not_yet in page(), patience_s=180)  # two engines and a balancer start first
    wait_for(lambda: decided in page() or killed in page())
    wait_for(lambda: not page())  # it waits for the scrape that sees its answer


def check_expectations(result: dict[str, Any]) -> None:
    """What is true, and what is false; where the client was late, some of it is not judged."""
    found = {one["name"]: one["verdict"] for one in result["gates"]}
    left_out = [name for name, verdict in found.items() if verdict == Verdict.inconclusive]
    want = {
        "at most 0 requests lost without an error": Verdict.met,
        "ttft_p50=60s": Verdict.met,
        "impossible": Verdict.missed,
    }
    assert found == want | dict.fromkeys(left_out, Verdict.inconclusive)
    assert found["impossible"] == Verdict.missed  # or the code would be another


def check_events(out: Path) -> None:
    """All ten began, and all but the kill are over."""
    rows = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    begun = [row["name"] for row in rows if row["what"] == "begins"]
    over = {row["name"] for row in rows if row["what"] == "is over"}
    assert len(begun) == 10
    assert over == set(begun) - {"kill 2"}


def check_it_again(out: Path, command_here: Command) -> None:
    """`report` gives the same from the folder alone, refuses other SLOs, and misses the file."""
    before = json.loads((out / "result.json").read_text())
    again = command_here("report", str(out))
    assert json.loads((out / "result.json").read_text()) == before, again.stderr
    with_slo = command_here("report", str(out), "--slo", "ttft_p95=1s")
    assert with_slo.returncode == ConfigError.exit_code
    (out / "drill.toml").unlink()
    assert command_here("report", str(out)).returncode == RunFolderError.exit_code
