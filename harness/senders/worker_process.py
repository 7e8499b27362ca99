"""One load process of children.py, which starts it by worker.py; options come by stdin.

It dies with its parent: the pipe that brought the options ends when the parent does. It has a
session of its own, so Ctrl-C never reaches it: ending in order is the parent's part.
"""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

import gevent
from gevent.fileobject import FileObject
from locust import runners
from locust.env import Environment
from locust.event import Events

from harness.core.fast_exit import leave
from harness.errors import HarnessError
from harness.senders.drive_options import DriveOptions
from harness.senders.load_runner import REPORT_S, LoadRunner
from harness.senders.users import session_user
from harness.server.address import LOOPBACK

if TYPE_CHECKING:
    from locust.runners import WorkerRunner


def main(port: int) -> None:
    """Connect to the master on `port` of this machine and serve until it says quit."""
    logging.getLogger("locust").setLevel(logging.ERROR)
    # gevent's, as `_until_eof` waits for the pipe: a plain read would stop the whole loop.
    brief = FileObject(sys.stdin.buffer, "rb")
    options = DriveOptions.from_json(json.loads(brief.readline()))
    runners.WORKER_REPORT_INTERVAL = REPORT_S
    environment = Environment(
        user_classes=[session_user(options)],
        events=Events(),
        host=options.url,
        # Without any, Locust parses its own at the first spawn message, from environment variables
        # and configuration files. Its classes read these two.
        parsed_options=Namespace(web_base_path="", stop_timeout=0.0),
    )
    runner: WorkerRunner = environment.create_worker_runner(LOOPBACK, port)
    load = LoadRunner(environment)
    watch = gevent.spawn(_until_eof, brief, runner)
    try:
        load.drive(options)  # before any user: the decoder's process takes a moment to start
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        leave(error.exit_code)
    # Until Locust's greenlets are gone: by the master's "quit", or by `_until_eof`.
    runner.greenlet.join()
    watch.kill(block=False)
    load.close()
    leave()


def _until_eof(brief: FileObject, runner: WorkerRunner) -> None:
    """The parent holds the other end of the pipe; without it there is nobody to report to."""
    brief.read()
    runner.greenlet.kill(block=False)
