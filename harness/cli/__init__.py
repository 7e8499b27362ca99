"""Layer 13: the subcommands. Each parses, calls one function, and maps errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from harness.core.fast_exit import leave
from harness.core.held_signals import signals_held
from harness.errors import EXIT_INTERRUPTED

__all__ = ["command", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code (docs/exit-codes.md)."""
    try:
        # Here and not at the top: Ctrl-C in the middle of an import is a traceback.
        with signals_held():
            from harness.cli import app  # noqa: PLC0415
        return app.main(argv)
    except KeyboardInterrupt:
        sys.stderr.write("vllm-harness: interrupted\n")
        return EXIT_INTERRUPTED


def command() -> NoReturn:
    """The entry point: exits without the slow teardown of imported modules."""
    leave(main())
