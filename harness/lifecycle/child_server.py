"""A server of ours in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Self


class ChildServer:
    """`python -m module words...`: it says its URL first, and ends when its standard input does."""

    def __init__(self, module: str, words: Iterable[str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in a terminal reaches its whole session: this one ends when its input does.
            start_new_session=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input
