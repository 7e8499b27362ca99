"""Options that several subcommands share; what they become is in plain.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import engine_flags
from harness.cli.parsing import duration, folder, number, share, writable
from harness.load.workloads import API_PATHS, WORKLOADS, workload
from harness.measure.compat import COMPAT, tools
from harness.measure.slo import Slo
from harness.server.address import exporter_at
from harness.server.seats import flag_given

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")  # the first that is set counts
TIMEOUTS = {
    "--connect-timeout": ("connect_ns", "10s", "TCP and TLS"),
    "--first-token-timeout": ("first_token_ns", "120s", "from sending to the first token"),
    "--idle-timeout": ("idle_ns", "60s", "between two reads of a stream"),
    "--request-timeout": ("total_ns", "600s", "from sending to the end"),
}


def target(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    parser.add_argument("url", nargs="?", metavar="URL", help="the server: http://HOST:PORT")
    group = parser.add_argument_group(
        "target", f"The API key is read from the environment only: {' or '.join(KEY_VARIABLES)}."
    )
    group.add_argument(
        "--embedded",
        action="store_true",
        help="no URL: start the embedded server, which simulates vLLM on a GPU, and measure it",
    )
    group.add_argument("--model", metavar="NAME", help="default: the only one that it serves")
    certificate(group)
    for flag, (_, default, what) in TIMEOUTS.items():
        group.add_argument(
            flag, type=duration(flag, default), metavar="TIME", help=f"{what}; default: {default}"
        )
    around(group)


def certificate(group: argparse._ArgumentGroup) -> None:
    """Whom to trust behind https://."""
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="certificates to trust (PEM)")
    group.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate"
    )


def around(group: argparse._ArgumentGroup) -> None:
    """What the server may not report itself: its flags, its GPUs."""
    group.add_argument(
        "--server-flag",
        type=flag_given,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a flag that the server was started with, for example max-num-seqs=256; may be "
        "repeated",
    )
    group.add_argument(
        "--gpu-metrics",
        type=gpu_source,
        metavar="WHERE",
        help="local, none, or http://HOST:9400 of `vllm-harness exporter` or a dcgm-exporter "
        "next to the server; default: local for a server on this machine",
    )


def gpu_source(where: str) -> str:
    """A reader of --gpu-metrics. Raises ConfigError."""
    return where if where in ("local", "none") else str(exporter_at(where))


def listen(group: argparse.ArgumentParser | argparse._ArgumentGroup, port: int) -> None:
    """Where a server of ours listens."""
    group.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="default: %(default)s"
    )
    number(group, "--port", "0: any free port", least=0, example=port, default=port)


def load(parser: argparse.ArgumentParser) -> None:
    """What is sent, and by how many processes."""
    group = lengths(parser, "load")
    group.add_argument("--api", choices=API_PATHS, help="default: the workload's own")
    number(group, "--seed", least=0, default=1)
    number(group, "--processes", "worker processes that send the load", default=1)


def lengths(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """How long requests and answers are."""
    rows = "\n".join(
        f"  {w.name:<12}{w.prompt.mean + w.system_tokens:>6} {w.output.mean:>6}  {w.title}"
        for w in WORKLOADS.values()
    )
    means = "mean tokens of a prompt, of an answer"
    group = parser.add_argument_group(title, f"Workloads ({means}):\n{rows}")
    group.add_argument(
        "--workload", type=workload, default="chat", metavar="NAME", help="default: %(default)s"
    )
    for flag in ("--prompt-tokens", "--output-tokens"):
        number(group, flag, "mean length; default: the workload's own", example=128)
    return group


def user_range(group: argparse._ArgumentGroup) -> None:
    """Between which levels the knee is looked for."""
    for flag, default in (("--min-users", 1), ("--max-users", 512)):
        number(group, flag, default=default)


def objectives(parser: argparse.ArgumentParser) -> None:
    """What users were promised."""
    group = parser.add_argument_group("objectives")
    slo(group)
    group.add_argument(
        "--max-errors",
        type=share("--max-errors"),
        default=0.01,
        metavar="SHARE",
        help="allowed share of failed requests at a level; default: 1%%",
    )


def slo(group: argparse._ArgumentGroup) -> None:
    """One promise; several add up."""
    group.add_argument(
        "--slo",
        type=Slo.parse,
        action="append",
        default=[],
        metavar="METRIC_pQQ=TIME",
        help="for example ttft_p95=500ms, itl_p99.9=80ms, tpot_p99=40ms or e2e_p90=10s; may be "
        "repeated",
    )


def held(parser: argparse.ArgumentParser, users: Callable[[str], Any], metavar: str) -> None:
    """Everything of `run` and `sweep`; `users` reads --users."""
    target(parser)
    load(parser)
    parser.add_argument(
        "--users", type=users, required=True, metavar=metavar, help="concurrent requests of a level"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--duration", type=duration("--duration"), metavar="TIME", help="default: 30s"
    )
    number(either, "--requests", "instead of a duration", example=500)
    objectives(parser)
    output(parser)


def output(parser: argparse.ArgumentParser) -> None:
    """Where results go; the embedded server's flags come last."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", type=folder, metavar="DIR", help="a new run folder; default: one under reports/"
    )
    group.add_argument(
        "--junit",
        type=partial(writable, "--junit"),
        metavar="FILE",
        help="write a JUnit report there: a test case for each SLO",
    )
    json_file(group)
    group.add_argument("--ui", action="store_true", help="serve Locust's web UI during the run")
    number(group, "--ui-port", "default: 8089", example=8089, metavar="PORT")
    live = "serve live metrics for Prometheus during the run; 0: any free port"
    number(group, "--metrics-port", live, least=0, example=9401, metavar="PORT")
    group.add_argument("--metrics-host", metavar="ADDRESS", help="default: 127.0.0.1")
    traces = "receive the server's traces (OTLP over HTTP) there: TTFT split request by request"
    number(group, "--otlp-port", traces, example=4318, metavar="PORT")
    compat(group)
    group.add_argument("--quiet", action="store_true", help="no live view")
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan; no server is needed or contacted"
    )
    engine_flags.declare(parser, "embedded server (with --embedded), with vLLM's option names")


def json_file(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Where the result goes besides its folder."""
    group.add_argument(
        "--json",
        type=partial(writable, "--json"),
        metavar="FILE",
        help="write the result there too; -: to stdout (words then go to stderr)",
    )


def compat(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Other tools' definitions next to ours."""
    group.add_argument(
        "--compat",
        type=tools,
        action="extend",
        default=[],
        metavar="TOOL,...",
        help=f"also show what these tools would print: {', '.join(COMPAT)}",
    )
