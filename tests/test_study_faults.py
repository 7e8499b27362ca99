"""What becomes of a run when the server goes wrong under load: status, exit code and sentence."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from fault_server import after, fault_servers
from study_process import harness, load

from harness.runfolder import names
from harness.study.results import write_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_server import FaultServer, FaultServers

pytestmark = pytest.mark.process
TOP = Path(__file__).parents[1]
LENGTHS: Final = ("--prompt-tokens", "16", "--output-tokens", "8")
SHORT: Final = (*LENGTHS, "--idle-timeout", "500ms", "--first-token-timeout", "500ms", "--quiet")
RUN: Final = ("--users", "4", "--duration", "3s")
SLOS: Final = ("--slo", "ttft_p95=500ms", "--slo", "itl_p95=500ms")
TOGETHER: Final = 4  # runs at a time: they wait more than they compute


@pytest.fixture(scope="module")
def servers() -> Iterator[FaultServers]:
    """Makers of servers that go wrong."""
    with fault_servers() as made:
        yield made


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        return load(self.folder / names.RESULT)

    @property
    def readable(self) -> bool:
        """The reports are there, and nothing but sentences was printed."""
        there = [(self.folder / name).exists() for name in (names.REPORT_HTML, names.REPORT_MD)]
        return all(there) and "Traceback" not in self.out + self.err and "Warning" not in self.err


def ended(server: FaultServer, folder: Path, command: str, *options: str) -> Ended:
    """One command against a server, to its end."""
    done = harness(command, server.url, *options, *SHORT, "--out", str(folder))
    return Ended(done.returncode, done.stdout, done.stderr, folder)


SAID: Final = {  # what most of the failed requests ended with
    "breaks": "the stream ended",
    "cut": "the server closed the connection",
    "stalls": "no byte in 0.5 s",
    "silent": "no first token in 0.5 s",
    "429": "HTTP 429: too many requests",
    "503": "HTTP 503: engine is overloaded",
    "html": "text/html",
    "malformed": "JSON",
    "closes": "the server closed the connection",
    "dies": "Connection refused",
}


def test_faults(servers: FaultServers, tmp_path: Path) -> None:
    """All goes wrong after some requests: missed, exit code 99; without SLOs it is the target's.

    Without them the same records are looked at again: a run of the same faults would end the same.
    """
    with ThreadPoolExecutor(TOGETHER) as pool:
        runs = dict(zip(SAID, pool.map(
            lambda fault: ended(servers(fault, after(24)), tmp_path / fault, "run", *RUN, *SLOS),
            SAID,
        ), strict=True))  # fmt: skip
    got = {fault: (r.result["status"], r.code, r.readable) for fault, r in runs.items()}
    assert got == dict.fromkeys(SAID, ("missed", 99, True))
    heads = {fault: r.out.splitlines()[1] for fault, r in runs.items()}
    assert {fault: head for fault, head in heads.items() if SAID[fault] not in head} == {}
    assert {head[:12] for head in heads.values()} == {"SLO missed: "}
    again = {}
    for fault, run in runs.items():
        result = without_slos(run.folder)
        named = SAID[fault] in result.invalid_reason
        again[fault] = (result.status, result.exit_code, len(result.slos), named)
    assert again == dict.fromkeys(SAID, ("target_failed", 99, 0, True))


def without_slos(folder: Path) -> Any:
    """The result of the same records, had no SLO been given."""
    other = shutil.copytree(folder, folder.with_name(f"{folder.name}-without"))
    info = load(other / names.RUN)
    info["config"]["plan"]["slos"] = []
    (other / names.RUN).write_text(__import__("json").dumps(info))
    return write_results(other)[1]
