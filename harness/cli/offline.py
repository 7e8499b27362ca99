"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `data FILE`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.errors import EXIT_OK, RunFolderError
from harness.load.workloads import WORKLOADS
from harness.study.option import Option, declare, number_option, share, writable
from harness.study.option_table import DATA, JSON, OTHER_TOOLS

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers
    from harness.export.threshold import Threshold

FORMS = ("prometheus", "keda", "query")


def add_report(commands: Subparsers) -> None:
    """Declare `report`."""
    parser = commands.add_parser(
        "report",
        help="recompute a run folder's results and reports, without a server",
        description="Replays the run's search on its records and writes result.json, "
        "requests.parquet, levels.csv, report.html and report.md again. A folder that an interrupt "
        "left behind is fine: what was measured is reported.",
        epilog=examples(
            "vllm-harness report reports/knee-20261121-093000",
            "vllm-harness report reports/knee-20261121-093000 --json -",
            "vllm-harness report reports/run-20261121-101500 --compat vllm-bench,guidellm",
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    declare(parser, [JSON, OTHER_TOOLS])
    parser.set_defaults(execute=_report)


def _report(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had. Raises RunFolderError."""
    from harness.cli.start import conclude  # noqa: PLC0415 - heavy: see app.py

    return conclude(args.folder, args.json, compat=tuple(args.compat)).exit_code


def add_compare(commands: Subparsers) -> None:
    """Declare `compare`."""
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
    parser.set_defaults(execute=_compare)


def _compare(args: argparse.Namespace) -> int:
    """Compare, say it, write what was asked for. Raises RunFolderError, ConfigError."""
    from harness.measure.typed_json import to_json  # noqa: PLC0415 - heavy: see app.py
    from harness.report import comparison_report as report  # noqa: PLC0415 - heavy: see app.py
    from harness.runfolder.json_files import dumps  # noqa: PLC0415 - as above
    from harness.study.compare_folders import compare_folders  # noqa: PLC0415 - as above

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
    """Declare `rules`."""
    parser = commands.add_parser(
        "rules",
        help="write alerting rules and the autoscaling threshold that a measured knee gives",
        description="From a run folder's knee: the alert on running + waiting requests per replica "
        "and, from its SLOs, the alerts that tell where to look (a Prometheus rule file); or the "
        "same threshold as KEDA's ScaledObject for Kubernetes; or the bare query and threshold. "
        "Ends with 6 when the folder holds no knee.",
        epilog=examples(
            "vllm-harness rules reports/knee-20261121-093000 --out knee.rules.yml",
            "vllm-harness rules reports/knee-20261121-093000 --form keda --deployment vllm",
            "vllm-harness rules reports/knee-20261121-093000 --form query",
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder of `knee`")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="default: %(default)s")
    parser.add_argument("--out", default="-", metavar="FILE", help="default: standard output")
    keda = parser.add_argument_group("keda")
    keda.add_argument("--deployment", default="vllm", metavar="NAME", help="default: %(default)s")
    keda.add_argument(
        "--prometheus", default="http://prometheus:9090", metavar="URL", help="default: %(default)s"
    )
    number_option("--max-replicas", "", 8).declare(keda)
    parser.set_defaults(execute=_rules)


def _rules(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee."""
    from harness.export.threshold import threshold  # noqa: PLC0415 - heavy: see app.py

    _write(args.out, _rules_text(args, threshold(args.folder)))
    return EXIT_OK


def _rules_text(args: argparse.Namespace, found: Threshold) -> str:
    from harness.export import alert_rules  # noqa: PLC0415 - as above

    if args.form == "keda":
        return alert_rules.scaled_object(found, args.deployment, args.prometheus, args.max_replicas)
    if args.form == "query":
        return f"{alert_rules.in_flight(found.model)}\n{found.requests}\n"
    return alert_rules.knee_file(found)


def _write(where: str, text: str) -> None:
    try:
        sys.stdout.write(text) if where == "-" else Path(where).write_text(text)
    except OSError as error:
        raise RunFolderError(
            f"{where} cannot be written ({error.strerror}): expected a file in a folder that "
            "exists; - writes to standard output."
        ) from None


def add_data(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "data",
        help="show what a file for --data holds, or make one from a log of conversations",
        description="Checks each line and shows the lengths, the arrival rate, the shared prefixes "
        "and the prefix-cache hits to expect. With --convert, first makes such a file from a log "
        "with conversation_id, role, content and tools (CSV or JSON lines): a request, with its "
        "history, for each turn of the assistant.",
        epilog=examples(
            "vllm-harness data chats.jsonl",
            "vllm-harness data trace.jsonl --speed 2",
            "vllm-harness data log.csv --convert chats.jsonl",
        ),
    )
    parser.add_argument("file", metavar="FILE", help="one JSON object per line, or a log")
    out = "the file to make of a log"
    declare(parser, [Option("--convert", out, partial(writable, "--convert"), "OUT"), DATA[2]])
    parser.set_defaults(execute=_data)


def _data(args: argparse.Namespace) -> int:
    """Print the summary. Raises ConfigError."""
    from harness.load.conversation_log import convert  # noqa: PLC0415 - heavy: see app.py
    from harness.load.own_data import DataSource  # noqa: PLC0415 - as above
    from harness.report.data_summary import data_summary  # noqa: PLC0415 - as above

    if args.convert:
        made = convert(Path(args.file), Path(args.convert))
        sys.stdout.write("{:,} messages of {:,} conversations: {:,} requests\n".format(*made))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK
