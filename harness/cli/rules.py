"""`vllm-harness rules DIR`: from a measured knee to an alert and an autoscaling threshold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.errors import EXIT_OK, RunFolderError
from harness.study.option_table import number_option

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers
    from harness.export.threshold import Threshold

FORMS = ("prometheus", "keda", "query")


def add(commands: Subparsers) -> None:
    """Declare the options."""
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
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    keda = parser.add_argument_group("keda")
    keda.add_argument("--deployment", default="vllm", metavar="NAME", help="default: %(default)s")
    keda.add_argument(
        "--prometheus", default="http://prometheus:9090", metavar="URL", help="default: %(default)s"
    )
    number_option("--max-replicas", "", 8).declare(keda)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Write the form asked for. Raises RunFolderError, NoKnee."""
    from harness.export.threshold import threshold  # noqa: PLC0415 - heavy: see app.py

    text = _text(args, threshold(args.folder))
    if args.out is None:
        sys.stdout.write(text)
        return EXIT_OK
    try:
        args.out.write_text(text)
    except OSError as error:
        raise RunFolderError(
            f"--out is {args.out}, which cannot be written ({error.strerror}): expected a file in "
            "a folder that exists; leave it out to see the rules."
        ) from None
    return EXIT_OK


def _text(args: argparse.Namespace, found: Threshold) -> str:
    from harness.export.alert_rules import in_flight, knee_file  # noqa: PLC0415 - as above
    from harness.export.kubernetes import scaled_object  # noqa: PLC0415 - as above

    if args.form == "keda":
        return scaled_object(found, args.deployment, args.prometheus, args.max_replicas)
    if args.form == "query":
        return f"{in_flight(found.model)}\n{found.requests}\n"
    return knee_file(found)
