"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `fleet DIR`, `data FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.capacity import alert_rules, autoscaling
from harness.capacity.threshold import threshold, usable_knee
from harness.cli.conclude import conclude
from harness.compare.compare_folders import compare_folders
from harness.core.typed_json import to_json
from harness.errors import EXIT_OK, RunFolderError
from harness.load.conversation_log import convert
from harness.load.own_data import DataSource
from harness.load.workloads import WORKLOADS
from harness.metrics.numbers import count_of
from harness.records.folder_reader import check_folder
from harness.records.folder_writer import merge_kept
from harness.records.json_files import dumps
from harness.report import comparison_report
from harness.report.data_summary import data_summary
from harness.report.fleet import fleet_text
from harness.run.study_options import RATE_STEP_PER_S

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had. Raises RunFolderError."""
    check_folder(args.folder)
    merge_kept(args.folder, args.merge)
    compat, slos = tuple(args.compat), tuple(args.slo)
    return conclude(args.folder, args.json, compat=compat, slos=slos).exit_code


def compare(args: argparse.Namespace) -> int:
    """Compare, say it, write what was asked for. Raises RunFolderError, ConfigError."""
    found = compare_folders(args.A, args.B, args.tolerance)
    result = {
        "exit_code": found.exit_code,
        "headline": comparison_report.headline(found),
        **to_json(found),
    }
    made = {args.html: comparison_report.html, args.markdown: comparison_report.markdown}
    wanted = {where: make(found) for where, make in made.items() if where}
    wanted |= {args.json: dumps(result, indent=True).decode() + "\n"} if args.json else {}
    (sys.stderr if "-" in wanted else sys.stdout).write(comparison_report.comparison_text(found))
    for where, text in wanted.items():
        _write(where, text)
    return found.exit_code


def rules(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee, ConfigError."""
    forms = {
        "llm-d": autoscaling.endpoint_picker,
        "admission": autoscaling.admission_flags,
        "prometheus": alert_rules.knee_file,
        "query": autoscaling.bare,
    }
    make, found = forms.get(args.form), threshold(args.folder)
    if found.simulated:
        sys.stderr.write(
            f"vllm-harness: {args.folder} is of a server that was {found.simulated}: expected a "
            "real one before this goes to production; try `vllm-harness knee http://HOST:8000`.\n"
        )
    _write(args.out, make(found) if make else autoscaling.autoscaler(found, args))
    return EXIT_OK


def fleet(args: argparse.Namespace) -> int:
    """Print the sums. Raises RunFolderError, NoKnee, ConfigError."""
    args.rate = (args.rate or 0) * RATE_STEP_PER_S
    _write("-", fleet_text(*usable_knee(args.folder), args))
    return EXIT_OK


def data(args: argparse.Namespace) -> int:
    """Print the summary. Raises ConfigError."""
    if args.convert:
        made = convert(Path(args.file), Path(args.convert))
        of = f" of {count_of(made.talks, 'conversation')}" if made.talks else ""
        lines = [f"{count_of(made.n, made.of)}{of}: {count_of(len(made.rows), 'request')}"]
        sys.stdout.write("\n".join([*lines, *made.notes, ""]))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK


def _write(where: str, text: str) -> None:
    try:
        sys.stdout.write(text) if where == "-" else Path(where).write_text(text)
    except OSError as error:
        raise RunFolderError(
            f"{where} cannot be written ({error.strerror}): expected a file in a folder that "
            "exists; - writes to standard output."
        ) from None
