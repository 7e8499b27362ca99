"""The command that `vary` and `knee --repeat` run several times: refused before any of them."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cli.parsing import Parser

INNER: Final = ("knee", "run", "sweep")
NOT_YET: Final = "http://started-here"  # in place of a server that is not started yet
OURS: Final = ("out", "json", "junit", "dry_run", "prove")  # not of a run of `vary`


def check_inner(
    top: Parser, words: Sequence[str], more: Sequence[Sequence[str]], *, started: bool
) -> list[str]:
    """Refuse what a run would; returns the SLOs of all. Raises ConfigError, RunFolderError.

    `top`: the whole command line, which parses `words` with each of `more`.
    """
    if not words or words[0] not in INNER:
        raise ConfigError(
            f"the command to measure is {' '.join(words[:1])!r}: expected one of "
            f"{', '.join(INNER)} after --; try -- knee --slo ttft_p95=500ms."
        )
    slos, loads = None, set[str]()
    for last in more:
        line = [words[0], *[NOT_YET] * started, *words[1:], *last]
        args = top.parse_args(line)
        if taken := next((name for name in OURS if getattr(args, name, None)), ""):
            raise ConfigError(
                f"--{taken.replace('_', '-')} is given to each run of {words[0]}: expected it "
                "before the --, or not at all; try --out DIR there."
            )
        loads |= {args.load if words[0] == "knee" else "users" if args.users else "rate"}
        if len(loads) > 1:
            raise ConfigError(
                "some settings have levels of users and others rates: expected one kind, or they "
                "cannot be compared; try --load rate after --."
            )
        args.dry_run = True
        with redirect_stdout(io.StringIO()):
            args.execute(args)
        slos = [slo for slo in map(str, args.slo) if slos is None or slo in slos]
    return slos or []
