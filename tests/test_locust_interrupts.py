"""SIGINT under gevent: the main greenlet gets one KeyboardInterrupt, whichever greenlet runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An inner greenlet runs, or all of them wait, when the signal comes. Three are waited for in turn.
# The inner one ends after that, and not before a second interrupt could have come.
PROGRAM = """
import os, signal, sys, time
import gevent
from gevent.event import Event
from harness.locust.interrupts import interrupt_main_greenlet

interrupt_main_greenlet()
interrupted = Event()

def inner():
    if sys.argv[1] == "running":
        os.kill(os.getpid(), signal.SIGINT)
    interrupted.wait(10)
    gevent.sleep(0.2)
    return "inner"

def outer():
    return gevent.spawn(gevent.spawn(inner).get).get()

came, waited = 0, gevent.spawn(outer)
if sys.argv[1] == "waiting":
    thread = gevent.get_hub().threadpool
    thread.spawn(lambda: (time.sleep(0.1), os.kill(os.getpid(), signal.SIGINT)))
if sys.argv[1] == "main":
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        came += 1
        interrupted.set()
until = time.monotonic() + 20
while not waited.ready() and time.monotonic() < until:
    try:
        waited.join()
    except KeyboardInterrupt:
        came += 1
        interrupted.set()
print(came, waited.value)
"""


@pytest.mark.process
@pytest.mark.parametrize("when", ["running", "waiting", "main"])
def test_one_interrupt_comes_to_the_main_greenlet(when: str) -> None:
    """And what the others were doing goes on."""
    command = [sys.executable, "-c", PROGRAM, when]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "1 inner\n"
    assert done.stderr == ""
