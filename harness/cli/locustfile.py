"""`locustfile NAME`: a locustfile that comes with the package, as a text or as a path."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.cli.parsing import add_command
from harness.core.shipped import shipped_files
from harness.errors import EXIT_OK, ConfigError, closest
from harness.run.option import Option

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "locustfile", execute)
    names = ", ".join(shipped_files("locustfiles"))
    parser.add_argument("name", metavar="NAME", help=f"Print this one: {names}.")
    Option("--path", "Print where it lies, for `locust -f`.", None).declare(parser)


def execute(args: argparse.Namespace) -> int:
    """Print it, or its path. Raises ConfigError."""
    files = shipped_files("locustfiles")
    file = files.get(args.name)
    if file is None:
        raise ConfigError(
            f"locustfile is {args.name!r}: expected one of {', '.join(files)}; try "
            f"vllm-harness locustfile {closest(args.name, files, 'chat')}."
        )
    sys.stdout.write(f"{file}\n" if args.path else file.read_text())
    return EXIT_OK
