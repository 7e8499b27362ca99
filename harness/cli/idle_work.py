"""`idle-cost`: measure what idle sessions cost, say it, write it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.core.typed_json import to_json
from harness.errors import EXIT_OK
from harness.lifecycle.idle_cost import IdlePlan, measure_idle_cost
from harness.records.json_files import dumps
from harness.records.redact import redact
from harness.report.templates import render
from harness.run.options_from_args import api_key, folder_of
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse


def idle_cost(args: argparse.Namespace) -> int:
    """Measure, say it, write it. Raises ConfigError, ServerUnreachable."""
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
    public = redact(to_json(found))
    (folder / "idle_cost.json").write_bytes(dumps(public, indent=True))
    (folder / "idle_cost.md").write_text(page)
    sys.stdout.write(f"{page}\n{folder}/idle_cost.md\n")
    return EXIT_OK
