"""The end of a load process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """Exit when all is said and written.

    Taking an interpreter apart that has imported Locust takes a quarter of a second of CPU time,
    while other processes may still be measuring.
    """
    try:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
    finally:
        os._exit(0)
