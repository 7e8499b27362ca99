"""A record's three arrays in the fewest bytes: `codec` has the format. In C where that was built.

`pack` and `unpack` take half of an encoding's time in Python, and a twentieth of it in C; the bytes
are the same. In C they need no numpy, whose import takes a load process longer than its own code.
"""

from __future__ import annotations

from typing import Final

from harness.extensions import load_extension

LAYOUT: Final = 1  # as in `_arrays.c`
WHY_PYTHON: Final = load_extension("harness.runfolder._arrays", LAYOUT)

if not WHY_PYTHON:
    from harness.runfolder._arrays import pack, unpack
else:
    from harness.runfolder.plainarrays import pack_in_python as pack
    from harness.runfolder.plainarrays import unpack_in_python as unpack

__all__ = ["WHY_PYTHON", "pack", "unpack"]
