"""How the tests share two cores, how they print figures, and what CI does about a skip.

Pure tests run side by side under pytest-xdist. A test marked `realtime` or `vllm` measures, so it
runs last and alone: it waits until no other test runs, and none starts before it ends. What it
measured it hands to the fixture `figure`; all figures are printed together at the end.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ALONE = ("realtime", "vllm")
IN_CI = os.environ.get("HARNESS_CI") == "1"
VLLM_MISSING = os.environ.get("HARNESS_VLLM_MISSING", "")  # why it cannot be installed here


def alone(item: pytest.Item) -> bool:
    """Whether the test needs the machine for itself."""
    return any(item.get_closest_marker(name) for name in ALONE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need the machine last, in one group: one worker runs them in order."""
    items.sort(key=alone)
    for item in items:
        if alone(item):
            item.add_marker(pytest.mark.xdist_group("alone"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Hold the machine: shared by pure tests, exclusively by the others."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # one process: nothing to share with
        return (yield)
    with (Path(tempfile.gettempdir()) / f"harness-tests-{run}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone(item) else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """In CI a skip is a failure, except for vLLM where it truly cannot be installed."""
    report = yield
    excused = VLLM_MISSING and item.get_closest_marker("vllm")
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and not excused:
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
        f"{report.nodeid.rpartition('::')[2]}: {line}"
        for report in reports
        for name, line in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join(lines) + "\n")
