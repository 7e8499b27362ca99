"""The command that `vary` and `knee --repeat` run several times: refused before any of them."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

from harness.core.load import Rate, Users
from harness.core.run_kinds import RUN_KINDS, kind_of
from harness.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from harness.cli.parsing import Parser

INNER: Final = tuple(name for name, kind in RUN_KINDS.items() if kind.may_repeat)
NOT_YET: Final = "http://started-here"  # in place of a server that is not started yet
OURS: Final = ("out", "json", "junit", "upload", "dry_run", "prove")  # not of a run of `vary`


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
    command = words[0]
    url = [NOT_YET] if started else []
    slos: list[str] | None = None  # of all runs so far
    loads = set()
    for last in more:
        args = top.parse_args([command, *url, *words[1:], *last])
        _check_not_ours(args, command)
        loads.add(_load_of(args, command))
        if len(loads) > 1:
            raise ConfigError(
                "some settings have levels of users and others rates: expected one kind, or they "
                "cannot be compared; try --load rate after --."
            )
        args.dry_run = True
        with redirect_stdout(io.StringIO()):
            args.execute(args)
        own_slos = [str(slo) for slo in args.slo]
        if slos is not None:
            own_slos = [slo for slo in own_slos if slo in slos]
        slos = own_slos
    return slos or []


def _check_not_ours(args: argparse.Namespace, command: str) -> None:
    """Raises ConfigError for an option that each run gets from us."""
    for name in OURS:
        if getattr(args, name, None):
            raise ConfigError(
                f"--{name.replace('_', '-')} is given to each run of {command}: expected it "
                "before the --, or not at all; try --out DIR there."
            )


def _load_of(args: argparse.Namespace, command: str) -> str:
    """What levels are of, as `knee --load` says it."""
    if kind_of(command).searches:
        return str(args.load)
    return Users.option if args.users else Rate.option
