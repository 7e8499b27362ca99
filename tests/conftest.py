"""What marks mean: what runs side by side, what is not here, and what CI does about a skip.

Tests run side by side, four workers on two cores, as most of them wait more than they compute.
Those marked `realtime` measure, and have a run of pytest to themselves (`make test-all`). What a
test measured it hands to the fixture `figure`; all figures are printed together at the end.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import browser_run
import compose
import gevent
import pytest
import real_vllm
from hypothesis import settings
from npm_packages import npm_missing
from study_process import wait_for

from harness.cli import main
from harness.reader.backends import IN_C, IN_PYTHON, VARIABLE, why_not_c

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from study_process import Command

# A machine may forbid bytecode: then each of our processes would compile all that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ignored in the background and under nohup, and our children would inherit it.
for number, handler in (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# The first import of Locust replaces threads, sockets and `select` by gevent's, also for tests that
# have nothing to do with it. So it is imported here, and told to leave this process as it is; our
# children are not told.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
import locust  # noqa: E402, F401 - see above

del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

# Tests of Locust wait by gevent all the same. A worker that waits for its next test would end with
# LoopExit if no timer could ever wake it.
KEEPS_WAITING: Final = gevent.get_hub().loop.timer(60, 60)
KEEPS_WAITING.start(lambda: None)

settings.register_profile("ours", deadline=None)  # a busy machine is no error
settings.load_profile("ours")
IN_CI = os.environ.get("HARNESS_CI") == "1"

# Why what the tests so marked need is not here; "" where it is.
NEEDS: Final[dict[str, Callable[[], str]]] = {
    "docker": cache(compose.missing),
    "vllm": cache(real_vllm.missing),
    "browser": cache(browser_run.missing),
    "npm": cache(npm_missing),
}
# `.ci/run` installs these while tests run already: .ci-logs/NAME.installing is there meanwhile.
INSTALLED: Final = ("docker", "vllm")
LOGS: Final = Path(__file__).parents[1] / ".ci-logs"
INSTALLS_S: Final = 1_200  # at most
# Tests that take long come first, and the shortest are last, so that all workers end at about the
# same time. What waits for an installation comes when that has had time, and a browser, which
# starves beside installations, comes last of all that is slow. One worker runs all that share a
# stack, a server or a browser; so no more than one waits for each installation.
FIRST: Final = ("long", "docker", "vllm", "realtime", "process", "browser")


def has(item: pytest.Item, mark: str) -> bool:
    """Whether a test has a mark."""
    return item.get_closest_marker(mark) is not None


@pytest.hookimpl(tryfirst=True)  # before xdist writes down the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort, and group."""

    def rank(item: pytest.Item) -> int:
        ranks = [number for number, mark in enumerate(FIRST) if has(item, mark)]
        return min(ranks, default=len(FIRST))

    items.sort(key=rank)
    for item in items:
        for mark in INSTALLED:
            if has(item, mark):
                item.add_marker(pytest.mark.xdist_group(mark))


def wait_until_installed(name: str, logs: Path = LOGS) -> None:
    """Until `.ci/run` has it, or has failed to get it; elsewhere nothing is installed meanwhile."""
    installing = logs / f"{name}.installing"
    wait_for(lambda: not installing.exists(), patience_s=INSTALLS_S, every_s=0.2)


@pytest.hookimpl(tryfirst=True)  # before fixtures, which start what is needed
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Wait for what is being installed; skip what needs what is not here, and say what."""
    for mark in INSTALLED:
        if IN_CI and has(item, mark):
            wait_until_installed(mark)
    for mark, why in NEEDS.items():
        if has(item, mark) and (missing := why()):
            pytest.skip(missing)


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


def forbid_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI it is a failure: `.ci/run` leaves out what cannot be had on its machine."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    forbid_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """For a whole file, as `pytest.importorskip` skips it."""
    report = yield
    forbid_a_skip(report)
    return report


@pytest.fixture(params=[IN_PYTHON, *[IN_C] * (not why_not_c())])
def each_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which code reads the sockets; in C only where there was a compiler."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def command_here(capsys: pytest.CaptureFixture[str]) -> Command:
    """`command_here("report", ...)` in this process: what no process of its own has to show."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = main(words)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    return run


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure("knee 8, planted 8")`: a line for the section `figures` of pytest's summary."""
    return lambda line: record_property("figure", line)


@pytest.fixture(scope="session")
def vllm_command() -> Generator[str, None, None]:
    """The path of a `vllm` that starts soon, for tests that do not ask about starting."""
    with real_vllm.forks() as command:
        yield command


@pytest.fixture(scope="session")
def vllm_servers(vllm_command: str) -> Generator[Callable[[str], str], None, None]:
    with real_vllm.servers(vllm_command) as server:
        yield server


@pytest.fixture
def vllm(
    vllm_servers: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Gives the URL of a real server by its name; each is started once. Its key is set."""
    monkeypatch.setenv("VLLM_API_KEY", real_vllm.KEY)
    return vllm_servers


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of all tests, whichever process ran them."""
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
