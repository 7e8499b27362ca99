"""What needs no server: `report DIR`, `compare A B`, `rules DIR`, `data FILE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.cli.parsing import Subparsers, add_command
from harness.core.load import Rate
from harness.core.value_parsers import duration, share
from harness.core.value_parsers import positive_number as positive
from harness.run.option import Option, declare, number_option, writable
from harness.run.option_table import DATA, JSON, OTHER_TOOLS, SLO, UPLOAD

FORMS = ("prometheus", "keda", "hpa", "llm-d", "admission", "query")


def add_report(commands: Subparsers) -> None:
    parser = add_command(commands, "report", "harness.cli.offline_work:report")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    merge = "what a worker on another host kept of this run, its reports/workers; may be repeated"
    Option("--merge", merge, Path, "DIR", action="append").declare(parser)
    slo = "answer another SLO from the same records, as far as its levels reach; nothing is written"
    declare(parser, [JSON, OTHER_TOOLS, SLO._replace(help=slo), UPLOAD])


def add_compare(commands: Subparsers) -> None:
    parser = add_command(commands, "compare", "harness.cli.offline_work:compare")
    for name, what in (("A", "the baseline: a run folder"), ("B", "the run folder to judge")):
        parser.add_argument(name, type=Path, help=what)
    tolerance = share("--tolerance")
    Option("--tolerance", "how much worse it may be", tolerance, "SHARE", "5%").declare(parser)
    for name, what in (("json", "the result"), ("html", "a page"), ("markdown", "a comment")):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {what} there; - for stdout")


def add_rules(commands: Subparsers) -> None:
    parser = add_command(commands, "rules", "harness.cli.offline_work:rules")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder of `knee`")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="default: %(default)s")
    parser.add_argument("--out", default="-", metavar="FILE", help="default: standard output")
    growth = positive("--growth")
    start_up = duration("--start-up", "3m")
    options = (
        Option("--deployment", "", str, "NAME", "vllm"),
        Option("--prometheus", "", str, "URL", "http://prometheus:9090"),
        number_option("--min-replicas", "", 1),
        number_option("--max-replicas", "", 8),
        Option("--growth", "more requests in flight each minute", growth, "N"),
        Option("--start-up", "until a new replica answers", start_up, "T", "3m"),
    )
    declare(parser.add_argument_group("keda and hpa"), options)


def add_fleet(commands: Subparsers) -> None:
    parser = add_command(commands, "fleet", "harness.cli.offline_work:fleet")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder of `knee`")
    load = parser.add_mutually_exclusive_group(required=True)
    number_option("--users", "who ask, read the answer, and ask again", example=2000).declare(load)
    Option("--rate", "requests per second", Rate.parser("--rate"), "R/s").declare(load)
    pause = duration("--think-time", "10s")
    peak = positive("--peak-over-mean")
    price = positive("--gpu-hour")
    options = (
        Option("--think-time", "mean pause of a user", pause, "T"),
        number_option("--survive", "replicas that may fail", 0, min_value=0),
        Option("--peak-over-mean", "of the load", peak, "X", "1"),
        Option("--gpu-hour", "price of a GPU, in any currency", price, "P"),
    )
    declare(parser, options)


def add_data(commands: Subparsers) -> None:
    parser = add_command(commands, "data", "harness.cli.offline_work:data")
    parser.add_argument(
        "file", metavar="FILE", help="one JSON object per line, or a data set to convert"
    )
    out = "the file to make of a log, ShareGPT, an Azure or BurstGPT trace, or an OpenAI batch"
    declare(parser, [Option("--convert", out, partial(writable, "--convert"), "OUT"), DATA[2]])
