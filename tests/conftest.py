"""How the tests share two cores, how they print figures, and what CI does about a skip.

Pure tests run side by side under pytest-xdist, then those marked `process`, which wait more than
they compute. A test marked `realtime` or `vllm` measures, so it runs last and alone: it waits until
no other test runs, and none starts before it ends. What it measured it hands to the fixture
`figure`; all figures are printed together at the end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import compose
import pytest
import real_vllm
from hypothesis import settings

from harness.drive.reading import IN_C, IN_PYTHON, VARIABLE, built

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup: our children would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ours", deadline=None)  # a busy machine is no error
settings.load_profile("ours")
ALONE = ("realtime", "vllm")
IN_CI = os.environ.get("HARNESS_CI") == "1"

MISSING: Final[dict[str, Callable[[], str]]] = {  # why what the tests so marked need is not here
    "vllm": real_vllm.not_here,
    "docker": compose.said,
    "npm": lambda: os.environ.get("HARNESS_NPM_MISSING", ""),
    "browser": lambda: os.environ.get("HARNESS_CHROMIUM_MISSING", ""),
}
AHEAD: Final = pytest.StashKey[subprocess.Popen[bytes]]()


def alone(item: pytest.Item) -> bool:
    """Whether the test needs the machine for itself."""
    return any(item.get_closest_marker(name) for name in ALONE)


@pytest.hookimpl(tryfirst=True)  # before xdist writes down the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need the machine last, in one group: one worker runs them in order.

    Those of the stack in Docker come first: they take minutes, and wait more than they compute.
    """

    def late(item: pytest.Item) -> tuple[bool, ...]:
        waits = [
            item.get_closest_marker(name) is not None for name in ("docker", "process", "browser")
        ]
        return alone(item), not waits[0], any(waits)

    items.sort(key=late)
    for item in items:
        if alone(item):
            item.add_marker(pytest.mark.xdist_group("alone"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Hold the machine: shared by pure tests, exclusively by the others."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # one process: nothing to share with
        return (yield)
    shared = Path(tempfile.gettempdir()) / f"harness-tests-{run}"
    if real_vllm.AHEAD.name:
        shared = real_vllm.AHEAD / real_vllm.LOCK
    with shared.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone(item) else fcntl.LOCK_SH)
        return (yield)


def excused(item: pytest.Item) -> bool:
    """Whether the part that it needs cannot be had on this machine, and `.ci/run` has said why."""
    return any(item.get_closest_marker(name) and why() for name, why in MISSING.items())


def pytest_configure(config: pytest.Config) -> None:
    """In CI the real servers are started ahead, by the process that starts the others."""
    if IN_CI and "PYTEST_XDIST_WORKER" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="harness-tests-"))
        real_vllm.AHEAD = folder
        os.environ["HARNESS_VLLM_AHEAD"] = str(folder)
        config.stash[AHEAD] = subprocess.Popen(
            [sys.executable, real_vllm.__file__], stdin=subprocess.PIPE
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """They end with the tests."""
    ahead = config.stash.get(AHEAD, None)
    if ahead is not None and ahead.stdin is not None:
        ahead.terminate()
        ahead.wait()
        ahead.stdin.close()
        shutil.rmtree(real_vllm.AHEAD)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """In CI a skip is a failure, except where it is excused."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and not excused(item):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """The same for a whole file, as `pytest.importorskip` skips it."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(params=[IN_PYTHON, *[IN_C] * built()])
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which code reads the sockets; in C only where there was a compiler."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure("knee 8, planted 8")`: a line for the section `figures` of pytest's summary."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of all tests, whichever process ran them."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
    ]
    lines = [
        f"{report.nodeid.rpartition('::')[2].removesuffix('@alone')}: {line}"
        for report in reports
        for name, line in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join(lines) + "\n")
