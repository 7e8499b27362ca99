"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `data FILE`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.errors import EXIT_OK, RunFolderError
from harness.load.workloads import WORKLOADS
from harness.study.option import Option, declare, duration, number_option, rate, share, writable
from harness.study.option import positive_number as positive
from harness.study.option_table import DATA, JSON, OTHER_TOOLS, SLO
from harness.study.study_options import RATE_STEP_PER_S

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers

FORMS = ("prometheus", "keda", "hpa", "llm-d", "admission", "query")


def add_report(commands: Subparsers) -> None:
    """Declare `report`."""
    parser = commands.add_parser(
        "report",
        help="recompute a run folder's results and reports, without a server",
        description="Replays the run's search on its records and writes result.json, "
        "requests.parquet, levels.csv, report.html and report.md again. A folder that an interrupt "
        "left behind is fine: what was measured is reported. With --slo the folder is only read.",
        epilog=examples(
            "vllm-harness report reports/knee-20261121-093000",
            "vllm-harness report reports/knee-20261121-093000 --slo ttft_p95=300ms",
            "vllm-harness report reports/run-20261121-101500 --compat vllm-bench,guidellm",
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    merge = "what a worker on another host kept of this run, its reports/workers; may be repeated"
    Option("--merge", merge, Path, "DIR", action="append").declare(parser)
    slo = "answer another SLO from the same records, as far as its levels reach; nothing is written"
    declare(parser, [JSON, OTHER_TOOLS, SLO._replace(help=slo)])
    parser.set_defaults(execute=_report)


def _report(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had. Raises RunFolderError."""
    from harness.cli.start import conclude  # noqa: PLC0415 - heavy: see app.py
    from harness.runfolder.folder_reader import check_folder  # noqa: PLC0415 - as above
    from harness.runfolder.folder_writer import merge_kept  # noqa: PLC0415 - as above

    check_folder(args.folder)
    merge_kept(args.folder, args.merge)
    compat, slos = tuple(args.compat), tuple(args.slo)
    return conclude(args.folder, args.json, compat=compat, slos=slos).exit_code


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
        help="write alerts, autoscaler settings and admission limits from a measured knee",
        description="From a run folder's knee: alerts on running + waiting requests per replica, "
        "on its SLOs and on requests of other lengths (a Prometheus rule file); or the threshold "
        "as KEDA's ScaledObject, a HorizontalPodAutoscaler, llm-d's EndpointPickerConfig, vLLM's "
        "flags of admission, or bare. Ends with 6 when the folder holds no knee.",
        epilog=examples(
            "vllm-harness rules reports/knee-20261121-093000 --out knee.rules.yml",
            "vllm-harness rules reports/knee-1 --form keda --growth 6 --start-up 3m",
            "vllm-harness rules reports/knee-20261121-093000 --form admission",
        ),
    )
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
    parser.set_defaults(execute=_rules)


def _rules(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee, ConfigError."""
    from harness.export import alert_rules, autoscaling  # noqa: PLC0415 - heavy: see app.py
    from harness.export.threshold import threshold  # noqa: PLC0415 - as above

    forms = {"llm-d": autoscaling.endpoint_picker, "admission": autoscaling.admission_flags,
             "prometheus": alert_rules.knee_file, "query": autoscaling.bare}  # fmt: skip
    make, found = forms.get(args.form), threshold(args.folder)
    _write(args.out, make(found) if make else autoscaling.autoscaler(found, args))
    return EXIT_OK


def add_fleet(commands: Subparsers) -> None:
    """Declare `fleet`."""
    parser = commands.add_parser(
        "fleet",
        help="how many replicas a measured knee asks for, and what they cost",
        description="Replicas for users or for requests per second, by Little's law, and their "
        "cost and energy, from a run folder's knee. Ends with 6 when the folder holds no knee.",
        epilog=examples(
            "vllm-harness fleet reports/knee-1 --users 2000 --survive 1",
            "vllm-harness fleet reports/knee-1 --users 2000 --think-time 10s",
            "vllm-harness fleet reports/knee-1 --rate 50/s --peak-over-mean 2 --gpu-hour 2.5",
        ),
    )
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
    parser.set_defaults(execute=_fleet)


def _fleet(args: argparse.Namespace) -> int:
    """Print the sums. Raises RunFolderError, NoKnee, ConfigError."""
    from harness.export.threshold import usable_knee  # noqa: PLC0415 - heavy: see app.py
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
    from harness.report.numbers import count_of  # noqa: PLC0415 - as above

    if args.convert:
        made = convert(Path(args.file), Path(args.convert))
        words = "message", "conversation", "request"
        sys.stdout.write("{} of {}: {}\n".format(*map(count_of, made, words)))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK
