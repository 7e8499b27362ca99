"""The end of a process."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int = 0) -> NoReturn:
    """Exit when all is said and written.

    Taking an interpreter apart that has imported Locust takes a quarter of a second of CPU time,
    while other processes may still be measuring. What is registered for the exit is done.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - logging's end
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
    finally:
        os._exit(code)
