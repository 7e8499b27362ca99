"""`python -m harness.drive.worker PORT`: one load process of a session; options come by stdin.

It dies with its parent: the pipe that brought the options ends when the parent does.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

import gevent
from gevent.fileobject import FileObject
from locust import runners
from locust.env import Environment
from locust.event import Events

from harness.drive.crew import LOOPBACK
from harness.drive.driver import Driver
from harness.drive.files import RecordFiles
from harness.drive.leaving import leave
from harness.drive.options import DriveOptions
from harness.drive.registry import register
from harness.drive.relay import WorkerRelay
from harness.drive.users import session_user

if TYPE_CHECKING:
    from locust.runners import WorkerRunner

REPORT_S = 1.0  # Locust's own 3 s make the master's user count late


def main(port: int) -> None:
    """Connect to the master on `port` of this machine and serve until it says quit."""
    # Ctrl-C in a terminal reaches the whole group: ending in order is the master's part
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("locust").setLevel(logging.ERROR)
    brief = FileObject(sys.stdin.buffer, "rb")
    options = DriveOptions.from_json(json.loads(brief.readline()))
    runners.WORKER_REPORT_INTERVAL = REPORT_S
    environment = Environment(
        user_classes=[session_user(options.workload.api)],
        events=Events(),
        host=options.url,
        parsed_options=Namespace(web_base_path="", stop_timeout=0.0),
    )
    runner: WorkerRunner = environment.create_worker_runner(LOOPBACK, port)
    driver = Driver(options, runner.worker_index)
    register(environment, driver)
    files = RecordFiles(options.run_folder)
    relay = WorkerRelay(runner, driver, kept=files.shared())
    driver.sinks.sinks += [relay, *files.writers(driver.worker)]
    watch = gevent.spawn(_until_eof, brief, runner)
    driver.start()
    relay.tell()
    runner.greenlet.join()
    watch.kill(block=False)
    relay.close()
    driver.close()
    files.close()
    leave()


def _until_eof(brief: FileObject, runner: WorkerRunner) -> None:
    """The parent holds the other end of the pipe; without it there is nobody to report to."""
    brief.read()
    runner.greenlet.kill(block=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
