"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `data FILE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.cli.parsing import Subparsers, add_command
from harness.core.load import Rate
from harness.core.value_parsers import duration, share
from harness.core.value_parsers import positive_number as positive
from harness.export import FORMAT_NAMES
from harness.run.option import Option, declare, number_option, writable
from harness.run.option_table import DATA, GPU_HOUR, JSON, OTHER_TOOLS, OTLP, SLO, UPLOAD

FORMS = ("prometheus", "keda", "hpa", "llm-d", "admission", "query")


def add_report(commands: Subparsers) -> None:
    parser = add_command(commands, "report", "harness.cli.offline_work:report")
    parser.add_argument("folder", metavar="DIR", type=Path, help="Read this run folder.")
    merge = "Add the records that a worker on another host kept (its reports/workers). Repeatable."
    Option("--merge", merge, Path, "DIR", action="append").declare(parser)
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=FORMAT_NAMES,
        help=f"Also write each level as others read it: {' or '.join(FORMAT_NAMES)}. Repeatable.",
    )
    slo = "Judge this SLO by the same records, as far as the levels reach. Nothing is written."
    declare(parser, [JSON, OTHER_TOOLS, SLO._replace(help=slo), UPLOAD, OTLP])


def add_compare(commands: Subparsers) -> None:
    parser = add_command(commands, "compare", "harness.cli.offline_work:compare")
    for name, what in (
        ("A", "Take this run folder as the baseline."),
        ("B", "Judge this run folder."),
    ):
        parser.add_argument(name, type=Path, help=what)
    tolerance = share("--tolerance")
    Option("--tolerance", "Let B be this much worse.", tolerance, "SHARE", "5%").declare(parser)
    for name, what in (("json", "the result"), ("html", "a page"), ("markdown", "a comment")):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"Write {what} to this file; - is stdout."
        )


def add_rules(commands: Subparsers) -> None:
    parser = add_command(commands, "rules", "harness.cli.offline_work:rules")
    parser.add_argument("folder", metavar="DIR", type=Path, help="Read this run folder of `knee`.")
    parser.add_argument(
        "--form", choices=FORMS, default=FORMS[0], help="Write this form. Default: %(default)s."
    )
    parser.add_argument(
        "--out", default="-", metavar="FILE", help="Write to this file. Default: standard output."
    )
    growth = positive("--growth")
    start_up = duration("--start-up", "3m")
    options = (
        Option("--deployment", "Scale this deployment.", str, "NAME", "vllm"),
        Option("--prometheus", "Query this Prometheus.", str, "URL", "http://prometheus:9090"),
        number_option("--min-replicas", "Keep at least N replicas.", 1),
        number_option("--max-replicas", "Keep at most N replicas.", 8),
        Option("--growth", "Expect N more requests in flight each minute.", growth, "N"),
        Option(
            "--start-up", "Expect a new replica to answer after this time.", start_up, "T", "3m"
        ),
    )
    declare(parser.add_argument_group("keda and hpa"), options)


def add_fleet(commands: Subparsers) -> None:
    parser = add_command(commands, "fleet", "harness.cli.offline_work:fleet")
    parser.add_argument("folder", metavar="DIR", type=Path, help="Read this run folder of `knee`.")
    load = parser.add_mutually_exclusive_group(required=True)
    number_option(
        "--users", "Plan for N users; each waits --think-time between requests.", example=2000
    ).declare(load)
    Option(
        "--rate", "Plan for this rate, in requests per second.", Rate.parser("--rate"), "R/s"
    ).declare(load)
    pause = duration("--think-time", "10s")
    peak = positive("--peak-over-mean")
    options = (
        Option("--think-time", "Let users pause for this time on average.", pause, "T"),
        number_option("--survive", "Let N replicas fail.", 0, min_value=0),
        Option("--peak-over-mean", "Plan for a peak of X times the mean load.", peak, "X", "1"),
        GPU_HOUR,
    )
    declare(parser, options)


def add_data(commands: Subparsers) -> None:
    parser = add_command(commands, "data", "harness.cli.offline_work:data")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="Read this file, one JSON object per line, or a data set to convert.",
    )
    out = "Convert a log, ShareGPT, an Azure or BurstGPT trace or an OpenAI batch to this file."
    declare(parser, [Option("--convert", out, partial(writable, "--convert"), "OUT"), DATA[2]])
