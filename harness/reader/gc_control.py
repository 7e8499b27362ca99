"""Python's garbage collector, kept from stalling the reader and the master.

A full collection of a Locust process takes tens of milliseconds, at a moment of its own choosing.
So automatic collection is off while load is sent; young objects are looked through once a second,
which takes a fraction of a millisecond, and all of them only when many have grown old.
"""

from __future__ import annotations

import gc
from typing import Final

import gevent

EVERY_S: Final = 1.0
MANY_OLD: Final = 200_000  # objects that survived the youngest generation


class Collecting:
    """Automatic collection is off from here until `close`."""

    def __init__(self) -> None:
        """What exists now is set aside: nothing looks at it again."""
        self._was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self._old = 0
        self._loop = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            gevent.sleep(EVERY_S)
            self._old += gc.get_count()[0]
            gc.collect(0)
            if self._old > MANY_OLD:
                self._old = 0
                gc.collect(1)

    def close(self) -> None:
        """As it was before."""
        self._loop.kill(block=False)
        gc.unfreeze()
        if self._was_on:
            gc.enable()


def sweep() -> None:
    """Between loads: look at everything, also at what was set aside, and set the rest aside again.

    A run's records hang in cycles with its session, which was there when the load began.
    """
    gc.unfreeze()
    gc.collect()
    if not gc.isenabled():
        gc.freeze()
