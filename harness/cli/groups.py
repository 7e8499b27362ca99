"""Options that several subcommands share; what they become is in plain.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import engine_flags
from harness.cli.parsing import count, duration, share, writable
from harness.load.workloads import API_PATHS, WORKLOADS, workload
from harness.measure.compat import COMPAT, tools
from harness.measure.slo import Slo
from harness.server.seats import flag_given

if TYPE_CHECKING:
    import argparse


KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")  # the first that is set counts
TIMEOUTS = {
    "--connect-timeout": ("connect_ns", "10s", "TCP and TLS"),
    "--first-token-timeout": ("first_token_ns", "2m", "from sent to the first token"),
    "--idle-timeout": ("idle_ns", "1m", "between two reads of a stream"),
    "--request-timeout": ("total_ns", "10m", "from sent to done"),
}


def target(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="http://HOST:PORT; absent: the embedded engine"
    )
    group = parser.add_argument_group(
        "target", f"The API key is read from the environment only: {' or '.join(KEY_VARIABLES)}."
    )
    group.add_argument("--model", metavar="NAME", help="default: the only one that it serves")
    certificate(group)
    for flag, (_, default, what) in TIMEOUTS.items():
        group.add_argument(
            flag, type=duration(flag), metavar="TIME", help=f"{what}; default: {default}"
        )
    around(group)


def certificate(group: argparse._ArgumentGroup) -> None:
    """Whom to trust behind https://."""
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="certificates to trust (PEM)")
    group.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate"
    )


def around(group: argparse._ArgumentGroup) -> None:
    """What the server does not say itself: its flags, its GPUs."""
    group.add_argument(
        "--server-flag",
        type=flag_given,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a flag that the server was started with, as max-num-seqs=256; may be repeated",
    )
    group.add_argument(
        "--gpu-metrics",
        metavar="WHERE",
        help="local, none, or http://HOST:9400 of `vllm-harness exporter` or a dcgm-exporter "
        "beside the server; default: local for a server on this machine",
    )


def load(parser: argparse.ArgumentParser) -> None:
    """What is sent, and by how many processes."""
    group = lengths(parser, "load")
    group.add_argument("--api", choices=API_PATHS, help="default: the workload's own")
    group.add_argument(
        "--seed", type=count("--seed", 0), default=1, metavar="N", help="default: %(default)s"
    )
    group.add_argument(
        "--processes",
        type=count("--processes"),
        default=1,
        metavar="N",
        help="worker processes that send the load; default: %(default)s",
    )


def lengths(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """How long requests and answers are."""
    rows = "\n".join(f"  {w.name:<12} {w.title}" for w in WORKLOADS.values())
    group = parser.add_argument_group(title, f"Workloads:\n{rows}")
    group.add_argument(
        "--workload", type=workload, default="chat", metavar="NAME", help="default: %(default)s"
    )
    for flag in ("--prompt-tokens", "--output-tokens"):
        group.add_argument(
            flag, type=count(flag), metavar="N", help="mean length; default: the workload's own"
        )
    return group


def user_range(group: argparse._ArgumentGroup) -> None:
    """Between which levels the knee is looked for."""
    for flag, default in (("--min-users", 1), ("--max-users", 512)):
        group.add_argument(
            flag, type=count(flag), default=default, metavar="N", help="default: %(default)s"
        )


def objectives(parser: argparse.ArgumentParser) -> None:
    """What users were promised."""
    group = parser.add_argument_group("objectives")
    slo(group)
    group.add_argument(
        "--max-errors",
        type=share("--max-errors"),
        default=0.01,
        metavar="SHARE",
        help="a level with more failed requests is bad; default: 1%%",
    )


def slo(group: argparse._ArgumentGroup) -> None:
    """One promise; several add up."""
    group.add_argument(
        "--slo",
        type=Slo.parse,
        action="append",
        default=[],
        metavar="METRIC_pQQ=TIME",
        help="as ttft_p95=500ms, itl_p95=50ms, tpot_p99=40ms, e2e_p90=10s; may be repeated",
    )


def level(parser: argparse.ArgumentParser) -> None:
    """How long a level is held."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--duration", type=duration("--duration"), metavar="TIME", help="default: 30s"
    )
    either.add_argument(
        "--requests", type=count("--requests"), metavar="N", help="instead of a duration"
    )


def output(parser: argparse.ArgumentParser) -> None:
    """Where results go."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="a new run folder; default: one under reports/"
    )
    group.add_argument(
        "--json",
        metavar="FILE",
        help="write the result there too; - for stdout, and the live view goes to stderr",
    )
    group.add_argument(
        "--junit",
        type=partial(writable, "--junit"),
        metavar="FILE",
        help="write a JUnit report there: a test case for each SLO",
    )
    group.add_argument("--ui", action="store_true", help="serve Locust's web UI meanwhile")
    group.add_argument(
        "--ui-port",
        type=count("--ui-port"),
        default=8089,
        metavar="PORT",
        help="default: %(default)s",
    )
    group.add_argument(
        "--metrics-port",
        type=count("--metrics-port", 0),
        metavar="PORT",
        help="serve live metrics for Prometheus meanwhile; 0: any",
    )
    group.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="ADDRESS", help="default: %(default)s"
    )
    group.add_argument(
        "--otlp-port",
        type=count("--otlp-port"),
        metavar="PORT",
        help="take the server's traces (OTLP over HTTP) there: TTFT split request by request",
    )
    compat(group)
    group.add_argument("--quiet", action="store_true", help="no live view")
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan: levels, tokens, minutes at most"
    )


def compat(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Other tools' definitions beside ours."""
    group.add_argument(
        "--compat",
        type=tools,
        action="extend",
        default=[],
        metavar="TOOL,...",
        help=f"show beside ours what these tools would print: {', '.join(COMPAT)}",
    )


def embedded_engine(parser: argparse.ArgumentParser) -> None:
    """The embedded engine's flags, for when there is no URL."""
    engine_flags.declare(parser, "embedded engine (no URL given), in vLLM's names")
