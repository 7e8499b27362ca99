"""A record's three arrays in the fewest bytes: `codec` has the format. In C where that was built.

`pack` and `unpack` take half of an encoding's time in Python, and a twentieth of it in C; the bytes
are the same. In C they need no numpy, whose import takes a load process longer than its own code.
"""

from __future__ import annotations

try:
    from harness.runfolder._arrays import pack, unpack
except ImportError:  # there was no compiler
    from harness.runfolder.plainarrays import pack_in_python as pack
    from harness.runfolder.plainarrays import unpack_in_python as unpack

__all__ = ["pack", "unpack"]
