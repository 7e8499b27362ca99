"""`vllm-harness compare A B`: whether B is worse than A, the baseline, and by how much."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.errors import RunFolderError
from harness.study.option_table import Option, share

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "compare",
        help="compare two run folders, level by level, and their knees",
        description="Compares run folder B with the baseline A from their records: each metric at "
        "each level that both held, and the knees. Ends with 99 when something is shown to be "
        "worse by more than the tolerance.",
        epilog=examples(
            "vllm-harness compare reports/main reports/branch",
            "vllm-harness compare reports/main reports/branch --tolerance 10% --markdown pr.md",
            "vllm-harness compare reports/main reports/branch --json - --html compare.html",
        ),
    )
    for name, what in (("A", "the baseline: a run folder"), ("B", "the run folder to judge")):
        parser.add_argument(name, type=Path, help=what)
    tolerance = share("--tolerance")
    Option("--tolerance", "how much worse it may be", tolerance, "SHARE", "5%").declare(parser)
    for name, what in (("json", "the result"), ("html", "a page"), ("markdown", "a comment")):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {what} there; - for stdout")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Compare, say it, write what was asked for. Raises RunFolderError, ConfigError."""
    from harness.report import comparison_report as report  # noqa: PLC0415 - heavy: see app.py
    from harness.runfolder.json_files import plain, to_json  # noqa: PLC0415 - as above
    from harness.study.compare_folders import compare_folders  # noqa: PLC0415 - as above

    found = compare_folders(args.A, args.B, args.tolerance)
    result = {"exit_code": found.exit_code, "headline": report.headline(found), **plain(found)}
    made = {args.html: report.html, args.markdown: report.markdown}
    wanted = {where: make(found) for where, make in made.items() if where}
    wanted |= {args.json: to_json(result, indent=True).decode() + "\n"} if args.json else {}
    (sys.stderr if "-" in wanted else sys.stdout).write(report.comparison_text(found))
    for where, text in wanted.items():
        try:
            sys.stdout.write(text) if where == "-" else Path(where).write_text(text)
        except OSError as error:
            raise RunFolderError(
                f"{where} cannot be written ({error.strerror}): expected a file in a folder that "
                "exists; - writes to standard output."
            ) from None
    return found.exit_code
