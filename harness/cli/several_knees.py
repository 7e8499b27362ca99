"""`knee --repeat` and `knee --prove`: several searches, and what they say together."""

from __future__ import annotations

import argparse

from harness.cli.conclude import conclude
from harness.cli.inner_command import check_inner
from harness.cli.json_output import write_json
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


def repeat(args: argparse.Namespace) -> int:
    """Search several times in folders of their own; the highest exit code."""
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    declare(ours, (REPEAT, *OUTPUT[:3]))
    words = ours.parse_known_args(args.words)[1]
    check_inner(args.top, ["knee", *words], [()], started=False)
    output = plain.output_options(args, "knee")
    folder, stream = RunFolder.create(output.out_dir), message_stream(output)
    each = [Setting(f"search {n}", client=("--seed", f"{n}")) for n in range(1, args.repeat + 1)]
    runs = [(one, output.out_dir / f"{n}") for n, one in enumerate(each, start=1)]
    whole = measure(runs, ["knee", *words], None, stream)
    results = [one for _, path in runs if path.is_dir() and (one := read_result(path))]
    found = spread(results, "requests/s" if args.load == "rate" else "users")
    folder.write_json("repeats.json", found)
    stream.write(f"\n{found['headline']}\nAll of it: {output.out_dir}\n")
    if output.json_to:
        write_json(output.json_to, found)
    codes = [code for one in each for code in one.runs.values()]
    return max(codes, default=0) if whole else EXIT_INTERRUPTED


def prove(args: argparse.Namespace) -> int:
    """Find the knee on a server of ours, then again with other flags; the knee's exit code."""
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    declare(ours, (*PROVE, *OUTPUT[:3]))
    words, start = ours.parse_known_args(args.words)[1], plain.start_options(args)
    check_inner(args.top, ["knee", *words], [()], started=True)
    command_line(start, (), 0)
    output = plain.output_options(args, "knee")
    check_new(output.out_dir)
    whole = prove_knee(words, start, output.out_dir, message_stream(output))
    result = conclude(output.out_dir, output.json_to, output.junit_to)
    return result.exit_code if whole else EXIT_INTERRUPTED
