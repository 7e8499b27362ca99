"""Memory that was freed goes back to the machine, where the C library can be told so."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Give freed memory back; nothing where the C library is not glibc.

    It keeps what was freed between two pieces that are still in use, for the process itself: of
    many small arrays that were joined to one, that is as much as the one.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
