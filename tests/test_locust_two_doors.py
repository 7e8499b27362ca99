"""The same load by `vllm-harness run` and by Locust's own command, alone and with workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from browser_run import PATIENCE_S, TOP, get

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.export.live_state import FINAL_STATES
from harness.metrics.result import read_result
from harness.records import names
from harness.run.run_page import ending
from harness.server.address import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# one worker has `doors`, half a minute, for all
pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.xdist_group("doors")]
USERS = 4
REQUESTS = 60  # as of enough_requests.py, which would bring Locust's listeners into this process
SAME = (
    "--slo",
    "e2e_p95=1ms",
    "--prompt-tokens",
    "16",
    "--output-tokens",
    "8",
)
RUN = ("-m", "harness", "run")
LOCUST = (
    "-m",
    "locust",
    "-f",
    "tests/enough_requests.py",
    "--autostart",
    "--users",
    str(USERS),
    "--spawn-rate",
    str(USERS),
    "--web-host",
    "127.0.0.1",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A simulated server."""
    with start_engine(EngineConfig()) as engine:
        yield engine.url


def ran(command: list[str], page: str) -> tuple[int, dict[str, Any]]:
    """(exit code, what the page was told last): a person watches, and ends Locust's web UI."""
    facts: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=TOP,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
    ) as process:
        until = time.monotonic() + 2 * PATIENCE_S
        while process.poll() is None and facts.get("state") not in FINAL_STATES:
            if time.monotonic() > until:
                process.kill()
                pytest.fail(f"no answer after {2 * PATIENCE_S} s: {facts}")
            with contextlib.suppress(OSError, ValueError):
                facts = json.loads(get(f"{page}/harness/live.json")[1])["facts"]
            time.sleep(0.1)
        if "locust" in command:
            process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in out, out
    return process.returncode, facts


@pytest.fixture(scope="module")
def doors(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By door (folder, exit code, facts of the page)."""
    found = {}
    for door, more in (("run", []), ("locust", []), ("workers", ["--processes", "2"])):
        folder = tmp_path_factory.mktemp(door) / "run"
        web, bind = free_ports(2, set())
        if door == "run":
            own = [*RUN, url, "--users", str(USERS), "--requests", str(REQUESTS), "--quiet"]
            own += ["--ui", "--ui-port", str(web), "--out", str(folder)]
        else:
            own = [*LOCUST, "--host", url, "--web-port", str(web), "--run-folder", str(folder)]
            own += [*more, "--master-bind-port", str(bind), "--master-port", str(bind)]
        found[door] = (folder, *ran([*own, *SAME], f"http://127.0.0.1:{web}"))
    return found


def files(folder: Path) -> set[str]:
    """Each kind of file: how many processes wrote records depends on how many there were."""
    return {re.sub(r"^(records|sends)\.\d+\.", r"\1.0.", path.name) for path in folder.iterdir()}


def test_the_same_files(doors: dict[str, Any]) -> None:
    """Whatever a run folder has, it has by either door; run.json has the same fields."""
    folders = [folder for folder, *_ in doors.values()]
    want = files(folders[0])
    assert {names.RUN, names.RESULT, names.SERVER, names.CLIENT, names.REPORT_HTML} <= want
    ours = {names.SCENARIO}  # options of our own commands
    assert [files(folder) for folder in folders] == [want, want - ours, want - ours]
    fields = []
    for folder in folders:
        run = json.loads((folder / names.RUN).read_text())
        fields.append({key: sorted(value) for key, value in run.items() if isinstance(value, dict)})
    assert fields == [fields[0]] * len(folders)


def test_the_same_exit_code(doors: dict[str, Any]) -> None:
    """That of the result: no answer is as quick as the SLO asks for."""
    assert {door: code for door, (_, code, _) in doors.items()} == dict.fromkeys(doors, 99)


def test_the_same_page(doors: dict[str, Any]) -> None:
    """Its tiles are those of the result, with the same names, units and notes by either door."""
    shown = []
    for folder, _, facts in doors.values():
        result = read_result(folder)
        assert result is not None
        assert facts["tiles"] == ending(result, "")["tiles"]
        tiles = [tuple(tile[key] for key in ("name", "unit", "note")) for tile in facts["tiles"]]
        shown.append((facts["state"], facts["folder"], facts["model"], facts["slos"], tiles))
    assert shown == [shown[0]] * len(doors)
    assert [name for name, *_ in shown[0][-1]] == [
        "e2e_p95=1ms",
        "p95 TTFT",
        "p95 ITL",
        "Output tokens/s",
    ]
