"""Packs a record's three arrays into few bytes, in C if the extension was built; format: `codec`.

`pack` and `unpack` take half of the encoding time in Python and a twentieth of it in C, with the
same bytes. The C version does not need numpy, whose import takes longer than all other imports of a
load process.
"""

from __future__ import annotations

from typing import Final

from harness.extensions import load_extension

LAYOUT: Final = 1  # as in `_arrays.c`
WHY_PYTHON: Final = load_extension("harness.runfolder._arrays", LAYOUT)

if not WHY_PYTHON:
    from harness.runfolder._arrays import pack, unpack
else:
    from harness.runfolder.python_arrays import pack_in_python as pack
    from harness.runfolder.python_arrays import unpack_in_python as unpack

__all__ = ["WHY_PYTHON", "pack", "unpack"]
