"""Which code reads the sockets (`backends`) and packs the records: C, or the same in Python.

An extension that does not load, or was compiled with another `LAYOUT`, counts as not built.
HARNESS_READER=c or =python forces one of the readers.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from harness.errors import ConfigError
from harness.extensions import load_extension
from harness.reader.fast_path import LAYOUT
from harness.runfolder import arrays

VARIABLE: Final = "HARNESS_READER"
IN_C, IN_PYTHON = "c", "python"


def which() -> str:
    """IN_C or IN_PYTHON. Raises ConfigError when the environment asks for what is not there."""
    wanted, why = os.environ.get(VARIABLE, ""), why_not_c()
    if wanted not in ("", IN_C, IN_PYTHON):
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}: expected {IN_C} or {IN_PYTHON}; unset it to have the best."
        )
    if wanted == IN_C and why:
        raise ConfigError(
            f"{VARIABLE} is {IN_C}, but the extension cannot be used: {why}: expected a C compiler "
            "and Python's headers at the installation; install them and run `make setup` again."
        )
    return IN_PYTHON if wanted == IN_PYTHON or why else IN_C


@cache
def why_not_c() -> str:
    """Why the extension cannot be used; "" if it can."""
    return load_extension("harness.reader._drain", LAYOUT)


def code_in_use() -> dict[str, str]:
    """For run.json: what reads and packs here, and where that is not C, why."""
    reader = which()
    why = {
        "reader": "" if reader == IN_C else why_not_c() or f"{VARIABLE} is {IN_PYTHON}",
        "codec": arrays.WHY_PYTHON,
    }
    code = {"reader": reader, "codec": IN_PYTHON if arrays.WHY_PYTHON else IN_C}
    return code | {f"{name}_fallback": said for name, said in why.items() if said}
