"""From parsed arguments to a study's frozen options. Raises ConfigError where they contradict."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.cli import engine_flags
from harness.cli.groups import KEY_VARIABLES, TIMEOUTS
from harness.errors import ConfigError
from harness.study.options import LoadOptions, OutputOptions, TargetOptions, Timeouts
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

    from harness.load.workloads import Workload

DEFAULT_HOLD_NS: Final = 30 * SECOND


def target_options(args: argparse.Namespace) -> TargetOptions:
    """Raises ConfigError when engine flags come with a URL."""
    given = engine_flags.given(args)
    if args.url is not None and given:
        raise ConfigError(
            f"{next(iter(given.values()))} sets up the embedded engine, and a URL was given too: "
            f"expected one of the two; leave out {args.url} to measure the embedded engine."
        )
    if args.url is None and args.server_flag:
        name = args.server_flag[0][0].replace("_", "-")
        raise ConfigError(
            f"--server-flag {name} tells how the server at a URL was started, and no URL was "
            f"given: expected one; the embedded engine has flags of its own, try --{name}."
        )
    key, source = api_key()
    timeouts = {
        name: value
        for flag, (name, _, _) in TIMEOUTS.items()
        if (value := getattr(args, flag.strip("-").replace("-", "_"))) is not None
    }
    return TargetOptions(
        url=args.url,
        model=args.model,
        api_key=key,
        key_source=source,
        ca_file=args.ca_file,
        insecure=args.insecure,
        timeouts=Timeouts(**timeouts),
        engine=engine_flags.config(args) if args.url is None else None,
        server_flags=dict(args.server_flag),
        gpu_metrics=args.gpu_metrics,
    )


def load_options(args: argparse.Namespace) -> LoadOptions:
    """The workload at the lengths and on the API asked for."""
    return LoadOptions(_workload(args), seed=args.seed, processes=args.processes)


def _workload(args: argparse.Namespace) -> Workload:
    chosen: Workload = args.workload.sized(args.prompt_tokens, args.output_tokens)
    if args.api in (None, chosen.api):
        return chosen
    # Token ids exist on /v1/completions only, a shared system message on /v1/chat/completions only.
    return replace(chosen, api=args.api, token_ids=args.api == "completions", system_tokens=0)


def output_options(args: argparse.Namespace, command: str) -> OutputOptions:
    """The run folder, by default `reports/COMMAND-YYYYMMDD-HHMMSS`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return OutputOptions(
        out_dir=args.out or Path("reports") / f"{command}-{stamp}",
        json_to=args.json,
        junit_to=args.junit,
        ui_port=args.ui_port if args.ui else None,
        otlp_port=args.otlp_port,
        live=not args.quiet,
        compat=tuple(dict.fromkeys(args.compat)),
        metrics_port=args.metrics_port,
        metrics_host=args.metrics_host,
    )


def duration_of(args: argparse.Namespace) -> int | None:
    """How long a level is held in ns; None when a number of requests was given."""
    if args.requests is not None:
        return None
    return DEFAULT_HOLD_NS if args.duration is None else int(args.duration)


def api_key() -> tuple[str, str]:
    """The key and the variable it came from, or two empty strings. The key is never printed."""
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "")
        if not key:
            continue
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"{name} holds a blank, a line break or a character outside ASCII, which no "
                f"HTTP header can carry: expected the bare key; try `export {name}=$(cat FILE)`."
            )
        return key, name
    return "", ""
