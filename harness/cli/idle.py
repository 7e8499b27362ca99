"""`vllm-harness idle-cost`: what idle sessions cost a running server."""

from __future__ import annotations

import argparse
import sys

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.errors import EXIT_OK
from harness.run.option import Option, declare, number_option
from harness.run.option_table import CERTIFICATE, OUTPUT
from harness.run.options_from_args import api_key, folder_of
from harness.units import SECOND


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "idle-cost", execute)
    parser.add_argument("url", metavar="URL", help="the server: http://HOST:PORT")
    options = (
        number_option("--sessions", "that go idle", 8),
        number_option("--history-tokens", "of each when it goes idle", 2048),
        number_option("--message-tokens", "of the next message", 32),
        number_option("--output-tokens", "of each answer", 8),
        Option("--idle", "before the first comes back", duration("--idle", "10s"), "TIME", "10s"),
        Option("--model", "default: the only one that is served", str, "NAME"),
        *CERTIFICATE,
        OUTPUT[0],
    )
    declare(parser, options)


def execute(args: argparse.Namespace) -> int:
    """Measure, say it, write it. Raises ConfigError, ServerUnreachable."""
    from harness.core.typed_json import to_json  # noqa: PLC0415 - heavy: see app.py
    from harness.lifecycle.idle_cost import IdlePlan, measure_idle_cost  # noqa: PLC0415 - as above
    from harness.records.json_files import dumps  # noqa: PLC0415 - as above
    from harness.records.redact import redact  # noqa: PLC0415 - as above
    from harness.report.templates import render  # noqa: PLC0415 - as above
    from harness.server.access import TargetAccess  # noqa: PLC0415 - as above
    from harness.server.address import Address  # noqa: PLC0415 - as above

    plan = IdlePlan(
        args.sessions,
        args.history_tokens,
        args.message_tokens,
        args.output_tokens,
        args.idle / SECOND,
    )
    access = TargetAccess(Address.parse(args.url), *api_key(), args.ca_file, args.insecure)
    folder = folder_of(args.out, "idle-cost")
    found = measure_idle_cost(access, plan, args.model)
    page = render("idle_cost.md.j2", found=found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "idle_cost.json").write_bytes(dumps(redact(to_json(found)), indent=True))
    (folder / "idle_cost.md").write_text(page)
    sys.stdout.write(f"{page}\n{folder}/idle_cost.md\n")
    return EXIT_OK
