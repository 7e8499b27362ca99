"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `data FILE`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration, share
from harness.core.value_parsers import positive_number as positive
from harness.errors import EXIT_OK, RunFolderError
from harness.load.workloads import WORKLOADS
from harness.run.option import Option, declare, number_option, rate, writable
from harness.run.option_table import DATA, JSON, OTHER_TOOLS, SLO
from harness.run.study_options import RATE_STEP_PER_S

FORMS = ("prometheus", "keda", "hpa", "llm-d", "admission", "query")


def add_report(commands: Subparsers) -> None:
    parser = add_command(commands, "report", _report)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    merge = "what a worker on another host kept of this run, its reports/workers; may be repeated"
    Option("--merge", merge, Path, "DIR", action="append").declare(parser)
    slo = "answer another SLO from the same records, as far as its levels reach; nothing is written"
    declare(parser, [JSON, OTHER_TOOLS, SLO._replace(help=slo)])


def _report(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had. Raises RunFolderError."""
    from harness.cli.start import conclude  # noqa: PLC0415 - heavy: see app.py
    from harness.records.folder_reader import check_folder  # noqa: PLC0415 - as above
    from harness.records.folder_writer import merge_kept  # noqa: PLC0415 - as above

    check_folder(args.folder)
    merge_kept(args.folder, args.merge)
    compat, slos = tuple(args.compat), tuple(args.slo)
    return conclude(args.folder, args.json, compat=compat, slos=slos).exit_code


def add_compare(commands: Subparsers) -> None:
    parser = add_command(commands, "compare", _compare)
    for name, what in (("A", "the baseline: a run folder"), ("B", "the run folder to judge")):
        parser.add_argument(name, type=Path, help=what)
    tolerance = share("--tolerance")
    Option("--tolerance", "how much worse it may be", tolerance, "SHARE", "5%").declare(parser)
    for name, what in (("json", "the result"), ("html", "a page"), ("markdown", "a comment")):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {what} there; - for stdout")


def _compare(args: argparse.Namespace) -> int:
    """Compare, say it, write what was asked for. Raises RunFolderError, ConfigError."""
    from harness.compare.compare_folders import compare_folders  # noqa: PLC0415 - as above
    from harness.core.typed_json import to_json  # noqa: PLC0415 - heavy: see app.py
    from harness.records.json_files import dumps  # noqa: PLC0415 - as above
    from harness.report import comparison_report as report  # noqa: PLC0415 - heavy: see app.py

    found = compare_folders(args.A, args.B, args.tolerance)
    result = {"exit_code": found.exit_code, "headline": report.headline(found), **to_json(found)}
    made = {args.html: report.html, args.markdown: report.markdown}
    wanted = {where: make(found) for where, make in made.items() if where}
    wanted |= {args.json: dumps(result, indent=True).decode() + "\n"} if args.json else {}
    (sys.stderr if "-" in wanted else sys.stdout).write(report.comparison_text(found))
    for where, text in wanted.items():
        _write(where, text)
    return found.exit_code


def add_rules(commands: Subparsers) -> None:
    parser = add_command(commands, "rules", _rules)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder of `knee`")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="default: %(default)s")
    parser.add_argument("--out", default="-", metavar="FILE", help="default: standard output")
    growth, start_up = positive("--growth"), duration("--start-up", "3m")
    declare(parser.add_argument_group("keda and hpa"), (
        Option("--deployment", "", str, "NAME", "vllm"),
        Option("--prometheus", "", str, "URL", "http://prometheus:9090"),
        number_option("--min-replicas", "", 1), number_option("--max-replicas", "", 8),
        Option("--growth", "more requests in flight each minute", growth, "N"),
        Option("--start-up", "until a new replica answers", start_up, "T", "3m"),
    ))  # fmt: skip


def _rules(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee, ConfigError."""
    from harness.capacity import alert_rules, autoscaling  # noqa: PLC0415 - heavy: see app.py
    from harness.capacity.threshold import threshold  # noqa: PLC0415 - as above

    forms = {"llm-d": autoscaling.endpoint_picker, "admission": autoscaling.admission_flags,
             "prometheus": alert_rules.knee_file, "query": autoscaling.bare}  # fmt: skip
    make, found = forms.get(args.form), threshold(args.folder)
    if found.simulated:
        sys.stderr.write(
            f"vllm-harness: {args.folder} is of a server that was {found.simulated}: expected a "
            "real one before this goes to production; try `vllm-harness knee http://HOST:8000`.\n"
        )
    _write(args.out, make(found) if make else autoscaling.autoscaler(found, args))
    return EXIT_OK


def add_fleet(commands: Subparsers) -> None:
    parser = add_command(commands, "fleet", _fleet)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder of `knee`")
    load = parser.add_mutually_exclusive_group(required=True)
    number_option("--users", "who ask, read the answer, and ask again", example=2000).declare(load)
    Option("--rate", "requests per second", rate("--rate"), "R/s").declare(load)
    pause, peak, price = "--think-time", "--peak-over-mean", "--gpu-hour"
    declare(parser, (
        Option(pause, "mean pause of a user", duration(pause, "10s"), "T"),
        number_option("--survive", "replicas that may fail", 0, min_value=0),
        Option(peak, "of the load", positive(peak), "X", "1"),
        Option(price, "price of a GPU, in any currency", positive(price), "P"),
    ))  # fmt: skip


def _fleet(args: argparse.Namespace) -> int:
    """Print the sums. Raises RunFolderError, NoKnee, ConfigError."""
    from harness.capacity.threshold import usable_knee  # noqa: PLC0415 - heavy: see app.py
    from harness.report.fleet import fleet_text  # noqa: PLC0415 - as above

    args.rate = (args.rate or 0) * RATE_STEP_PER_S
    _write("-", fleet_text(*usable_knee(args.folder), args))
    return EXIT_OK


def _write(where: str, text: str) -> None:
    try:
        sys.stdout.write(text) if where == "-" else Path(where).write_text(text)
    except OSError as error:
        raise RunFolderError(
            f"{where} cannot be written ({error.strerror}): expected a file in a folder that "
            "exists; - writes to standard output."
        ) from None


def add_data(commands: Subparsers) -> None:
    parser = add_command(commands, "data", _data)
    parser.add_argument(
        "file", metavar="FILE", help="one JSON object per line, or a data set to convert"
    )
    out = "the file to make of a log, ShareGPT, an Azure or BurstGPT trace, or an OpenAI batch"
    declare(parser, [Option("--convert", out, partial(writable, "--convert"), "OUT"), DATA[2]])


def _data(args: argparse.Namespace) -> int:
    """Print the summary. Raises ConfigError."""
    from harness.load.conversation_log import convert  # noqa: PLC0415 - heavy: see app.py
    from harness.load.own_data import DataSource  # noqa: PLC0415 - as above
    from harness.metrics.numbers import count_of  # noqa: PLC0415 - as above
    from harness.report.data_summary import data_summary  # noqa: PLC0415 - as above

    if args.convert:
        made = convert(Path(args.file), Path(args.convert))
        of = f" of {count_of(made.talks, 'conversation')}" if made.talks else ""
        lines = [f"{count_of(made.n, made.of)}{of}: {count_of(len(made.rows), 'request')}"]
        sys.stdout.write("\n".join([*lines, *made.notes, ""]))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK
