"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `fleet DIR`, `data FILE`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.capacity import alert_rules, autoscaling
from harness.capacity.threshold import threshold, usable_knee
from harness.cli.conclude import code_after_upload, conclude
from harness.compare.compare_folders import compare_folders
from harness.core.load import Rate
from harness.core.typed_json import to_json
from harness.errors import EXIT_OK, ConfigError, RunFolderError
from harness.export.formats import FORMATS, write_formats
from harness.load.conversation_log import convert
from harness.load.own_data import DataSource
from harness.load.workloads import WORKLOADS
from harness.metrics.numbers import count_of
from harness.records import names
from harness.records.folder_reader import check_folder
from harness.records.folder_writer import merge_kept
from harness.records.json_files import dumps, read_json
from harness.report import comparison_report
from harness.report.data_summary import data_summary
from harness.report.fleet import fleet_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from harness.capacity.threshold import Threshold
    from harness.load.known_data import Made


def report(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had.

    Raises RunFolderError, ConfigError.
    """
    if args.format and args.slo:
        raise ConfigError(
            "--format writes files and --slo only reads the folder: expected one of them; try "
            "--format alone, as its figures are the same whatever the SLO."
        )
    check_folder(args.folder)
    merge_kept(args.folder, args.merge)
    tools = [*args.compat, *(FORMATS[name].tool for name in args.format)]
    result = conclude(
        args.folder,
        args.json,
        compat=tuple(tools),
        slos=tuple(args.slo),
        otlp=args.otlp or "",
    )
    run_info = read_json(args.folder / names.RUN) or {}
    stream = sys.stderr if args.json == "-" else sys.stdout
    for path in write_formats(args.folder, args.format, result, run_info):
        stream.write(f"{path}\n")
    return code_after_upload(args.folder, args.upload, result.exit_code)


def compare(args: argparse.Namespace) -> int:
    """Compare, say it, write what was asked for. Raises RunFolderError, ConfigError."""
    comparison = compare_folders(args.A, args.B, args.tolerance)
    texts = {}  # by where they go; the last one counts
    if args.html:
        texts[args.html] = comparison_report.html(comparison)
    if args.markdown:
        texts[args.markdown] = comparison_report.markdown(comparison)
    if args.json:
        result = {
            "exit_code": comparison.exit_code,
            "headline": comparison_report.headline(comparison),
            **to_json(comparison),
        }
        texts[args.json] = dumps(result, indent=True).decode() + "\n"
    stream = sys.stderr if "-" in texts else sys.stdout
    stream.write(comparison_report.comparison_text(comparison))
    for where, text in texts.items():
        _write(where, text)
    return comparison.exit_code


def rules(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee, ConfigError."""
    autoscaler = partial(autoscaling.autoscaler, args=args)
    forms: dict[str, Callable[[Threshold], str]] = {
        "prometheus": alert_rules.knee_file,
        "keda": autoscaler,
        "hpa": autoscaler,
        "llm-d": autoscaling.endpoint_picker,
        "admission": autoscaling.admission_flags,
        "query": autoscaling.bare,
    }
    limit = threshold(args.folder)
    if limit.simulated:
        sys.stderr.write(
            f"vllm-harness: {args.folder} is of a server that was {limit.simulated}: expected a "
            "real one before this goes to production; try `vllm-harness knee http://HOST:8000`.\n"
        )
    _write(args.out, forms[args.form](limit))
    return EXIT_OK


def fleet(args: argparse.Namespace) -> int:
    """Print the sums. Raises RunFolderError, NoKnee, ConfigError."""
    args.rate = Rate.of_count(args.rate or 0).per_s
    _write("-", fleet_text(*usable_knee(args.folder), args))
    return EXIT_OK


def data(args: argparse.Namespace) -> int:
    """Print the summary. Raises ConfigError."""
    if args.convert:
        converted = convert(Path(args.file), Path(args.convert))
        lines = [_converted_text(converted), *converted.notes, ""]
        sys.stdout.write("\n".join(lines))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK


def _converted_text(converted: Made) -> str:
    """`40 lines of 12 conversations: 30 requests`."""
    source = count_of(converted.n, converted.of)
    if converted.talks:
        source += f" of {count_of(converted.talks, 'conversation')}"
    return f"{source}: {count_of(len(converted.rows), 'request')}"


def _write(where: str, text: str) -> None:
    try:
        if where == "-":
            sys.stdout.write(text)
        else:
            Path(where).write_text(text)
    except OSError as error:
        raise RunFolderError(
            f"{where} cannot be written ({error.strerror}): expected a file in a folder that "
            "exists; - writes to standard output."
        ) from None
