"""How the tests share two cores, how they print figures, and what CI does about a skip.

All tests are one run of pytest, sorted: pure ones first, then those that start containers, browsers
or processes, which wait more than they compute: four workers for two cores. A test marked
`realtime` measures, so it runs last and alone: it waits until no other test runs, and none starts
before it ends. What it measured it hands to the fixture `figure`; all figures are printed together
at the end. All but the pure ones get a second try, which the summary shows.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import compose
import gevent
import pytest
import real_vllm
from _pytest.runner import runtestprotocol
from hypothesis import settings

from harness.reader.backends import IN_C, IN_PYTHON, VARIABLE, why_not_c

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# A machine may forbid bytecode: then each of our processes would compile all that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ignored in the background and under nohup, and our children would inherit it.
for number, handler in (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Locust's import has gevent wait in place of threads. A worker that waits for its next test would
# end with LoopExit if no timer could ever wake it.
KEEPS_WAITING: Final = gevent.get_hub().loop.timer(60, 60)
KEEPS_WAITING.start(lambda: None)

settings.register_profile("ours", deadline=None)  # a busy machine is no error
settings.load_profile("ours")
IN_CI = os.environ.get("HARNESS_CI") == "1"

# An item is of the last of these kinds whose mark it has.
KINDS: Final = ("", "process", "docker", "browser", "vllm", "vllm_start", "realtime")
AGAIN: Final = "tried again"  # the outcome of a first try that failed
# Tests that share something are run in order by one worker of pytest-xdist. The longest such row
# begins first; what waits for servers of vLLM comes after tests that fill the time until these are
# there; and the longest of the rest begin early, so that all workers end at about the same time.
ORDER: Final = ("", "docker", "vllm_start", "browser", "long", "vllm", "process", "realtime")
SHARE: Final = ("docker", "vllm", "vllm_start", "browser", "realtime")
LONG: Final = (  # files whose processes take 20 s and more
    "test_study_vary", "test_study_two_doors", "test_study_faults", "test_export_dashboards_live",
    "test_study_hosted", "test_study_engine", "test_study_endings", "test_study_replicas",
)  # fmt: skip
WHOLE: Final = (  # files with a folder that takes 10 s to make: one worker does, once
    "test_study_limits", "test_report_page", "test_report_tables", "test_report_waterfall",
    "test_runfolder_frames",
)  # fmt: skip
MISSING: Final[dict[str, Callable[[], str]]] = {  # why what the tests so marked need is not here
    "vllm": real_vllm.not_here,
    "vllm_start": real_vllm.not_installed,
    "docker": compose.said,
    "npm": lambda: os.environ.get("HARNESS_NPM_MISSING", ""),
    "browser": lambda: os.environ.get("HARNESS_CHROMIUM_MISSING", ""),
}


def has(item: pytest.Item, mark: str) -> bool:
    """Whether a test has a mark."""
    return item.get_closest_marker(mark) is not None


def kind(item: pytest.Item) -> str:
    """One of KINDS."""
    return [mark for mark in KINDS if not mark or has(item, mark)][-1]


@pytest.hookimpl(tryfirst=True)  # before xdist writes down the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort, and group."""

    def rank(item: pytest.Item) -> int:
        of = kind(item)
        return ORDER.index("long" if of == "process" and item.path.stem in LONG else of)

    items.sort(key=rank)
    for item in items:
        if kind(item) in SHARE or item.path.stem in WHOLE:
            item.add_marker(pytest.mark.xdist_group(kind(item) or item.path.stem))


UNFREEZE: Final = gc.unfreeze


def pytest_collection_finish() -> None:
    """Set aside what pytest keeps of thousands of tests.

    The reader collects garbage each time that it starts, which would look at all of that.
    """
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None


def pytest_unconfigure() -> None:
    """The interpreter's end needs all of it."""
    gc.unfreeze = UNFREEZE
    gc.unfreeze()


@contextlib.contextmanager
def machine(item: pytest.Item) -> Iterator[None]:
    """Exclusively for what measures, shared by all others."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # one process: nothing to share with
        yield
        return
    alone = has(item, "realtime")
    if alone:  # nor may anything be installed beside it
        real_vllm.not_here()
        compose.said()
    with (Path(tempfile.gettempdir()) / f"harness-tests-{run}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test, and a second time if it failed and is not pure: docs/decisions/0003.

    What the first try tore down, as it was the last of its file, is set up again.
    """
    with machine(item):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if kind(item) and any(report.failed for report in reports):
            for report in reports:
                if report.failed:
                    report.outcome = AGAIN
                    item.ihook.pytest_runtest_logreport(report=report)
            if not any(report.when == "call" for report in reports):
                item.session._setupstate.teardown_exact(None)  # noqa: SLF001 - else it stays failed
            item.user_properties.clear()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A first try that failed is no failure yet."""
    return (AGAIN, "A", "AGAIN") if report.outcome == AGAIN else None


def excused(item: pytest.Item) -> bool:
    """Whether the part that it needs cannot be had on this machine, and `.ci/run` has said why."""
    return any(has(item, mark) and why() for mark, why in MISSING.items())


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


@pytest.fixture(params=[IN_PYTHON, *[IN_C] * (not why_not_c())])
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which code reads the sockets; in C only where there was a compiler."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure("knee 8, planted 8")`: a line for the section `figures` of pytest's summary."""
    return lambda line: record_property("figure", line)


@pytest.fixture(scope="session")
def vllm() -> Generator[Callable[[str], real_vllm.Served], None, None]:
    """Gives one of the real servers by its name; each is started once."""
    with real_vllm.servers() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print first tries that failed, and the figures of all tests, whichever process ran them."""
    for report in terminalreporter.stats.get(AGAIN, []):
        terminalreporter.section(f"{AGAIN}: {report.nodeid}")
        terminalreporter.write(f"{report.longreprtext}\n")
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
    ]
    lines = [
        f"{report.nodeid.rpartition('::')[2].partition('@')[0]}: {line}"
        for report in reports
        for name, line in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join(lines) + "\n")
