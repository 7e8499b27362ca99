"""`knee --repeat` and `knee --prove`: several searches, and what they say together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.cli.conclude import conclude
from harness.cli.inner_command import check_inner
from harness.cli.json_output import write_json
from harness.core.load import UNIT_OF_OPTION
from harness.errors import EXIT_INTERRUPTED
from harness.lifecycle.vary_settings import measure, prove_knee
from harness.lifecycle.vllm_start import command_line
from harness.metrics.result import read_result
from harness.records.folder_writer import RunFolder
from harness.records.new_folder import check_new
from harness.run import options_from_args as plain
from harness.run.option import declare
from harness.run.option_table import OUTPUT, PROVE, REPEAT
from harness.run.preflight import message_stream
from harness.search.comparison import Setting
from harness.search.confirm import spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.metrics.result import Result
    from harness.run.option import Option


def repeat(args: argparse.Namespace) -> int:
    """Search several times in folders of their own; the highest exit code."""
    words = _words_without(args, (REPEAT, *OUTPUT[:3]))
    check_inner(args.top, ["knee", *words], [()], started=False)
    output = plain.output_options(args, "knee")
    folder = RunFolder.create(output.out_dir)
    stream = message_stream(output)
    runs = []
    for number in range(1, args.repeat + 1):
        search = Setting(f"search {number}", client=("--seed", f"{number}"))
        runs.append((search, output.out_dir / f"{number}"))
    completed = measure(runs, ["knee", *words], None, stream)
    unit = UNIT_OF_OPTION[args.load]
    summary = spread(_results_of([path for _, path in runs]), unit.short_many)
    folder.write_json("repeats.json", summary)
    stream.write(f"\n{summary['headline']}\nEverything is in {output.out_dir}\n")
    if output.json_to:
        write_json(output.json_to, summary)
    if not completed:
        return EXIT_INTERRUPTED
    codes: list[int] = []
    for search, _ in runs:
        codes += search.runs.values()
    return max(codes, default=0)


def _words_without(args: argparse.Namespace, ours: Sequence[Option]) -> list[str]:
    """The command's words, less the options that are not for each search."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    declare(parser, ours)
    _, words = parser.parse_known_args(args.words)
    return words


def _results_of(folders: Sequence[Path]) -> list[Result]:
    """Those of the searches that came to an end."""
    results = (read_result(folder) for folder in folders if folder.is_dir())
    return [result for result in results if result]


def prove(args: argparse.Namespace) -> int:
    """Find the knee on a server of ours, then again with other flags; the knee's exit code."""
    words = _words_without(args, (*PROVE, *OUTPUT[:3]))
    start = plain.start_options(args)
    check_inner(args.top, ["knee", *words], [()], started=True)
    command_line(start, (), 0)
    output = plain.output_options(args, "knee")
    check_new(output.out_dir)
    completed = prove_knee(words, start, output.out_dir, message_stream(output))
    result = conclude(output.out_dir, output.json_to, output.junit_to)
    return result.exit_code if completed else EXIT_INTERRUPTED
