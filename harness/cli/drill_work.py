"""`drill`: plan it within the limits, start what it needs, run it, judge it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.cli.by_name import call
from harness.drill.balancer import BalancerProcess
from harness.drill.drill_file import parse_drill
from harness.drill.servers import check_servers, running_servers
from harness.errors import EXIT_OK, ConfigError
from harness.records.new_folder import check_new
from harness.run import options_from_args as plain
from harness.run.preflight import checked_target, message_stream
from harness.run.scenario import option_words
from harness.run.study_options import RATE_STEP_PER_S
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.units import SECOND, exact_ns

if TYPE_CHECKING:
    import argparse

    from harness.drill.plan import Drill
    from harness.run.study_options import Wanted


def planned(args: argparse.Namespace) -> tuple[Drill, str]:
    """The drill and its text, within the limits. Raises ConfigError."""
    try:
        text = Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{args.file} cannot be read ({getattr(error, 'strerror', None) or error}): expected a "
            "drill in TOML; try one of drills/ as a start."
        ) from None
    drill = parse_drill(text, args.file, args.knee)
    if drill.servers.get("engines") and (args.model_dir or args.start_command):
        # what is simulated in the file is real here, with the same flags
        flags = [f"--{key} {value}" for key, value in drill.servers.get("engine", {}).items()]
        vllm = {"vllm": drill.servers["engines"], "args": " ".join(flags)}
        drill = replace(drill, servers=vllm)
    most = args.max_rate * RATE_STEP_PER_S if drill.is_rate else args.max_users
    if drill.most > most:
        unit = "/s" if drill.is_rate else " users"
        raise ConfigError(
            f"{args.file} goes up to {drill.most:g}{unit}: expected at most {most:g}{unit}; try "
            f"--max-{'rate' if drill.is_rate else 'users'} {drill.most:g}."
        )
    return drill, text


def wanted_drill(args: argparse.Namespace, drill: Drill, text: str) -> Wanted:
    """The experiment; its URL comes with the balancer. Raises ConfigError."""
    run = args.top._subparsers._group_actions[0].choices["run"]  # noqa: SLF001 - their only place
    load = f"--rate={drill.most:g}" if drill.is_rate else f"--users={round(drill.most)}"
    words = ["http://127.0.0.1:1", load, *option_words(drill.options, run, f"{args.file}, [load]")]
    if wrong := {"users", "rate", "duration", "requests", "embedded", "slo", "out"} & {
        name.replace("_", "-") for name in drill.options
    }:
        raise ConfigError(
            f"{args.file}, [load] has {', '.join(sorted(wrong))}: expected what requests are like; "
            "try workload, prompt-tokens or first-token-timeout, and phases for the rest."
        )
    wanted = plain.run_options(run.parse_args(words), "run")
    plan, _ = wanted.planned()
    plan = replace(plan, slos=drill.slos, budget_ns=drill.length_ns + 60 * SECOND)
    return replace(
        wanted,
        kind="drill",
        load=replace(wanted.load, retries=drill.retries),
        output=plain.output_options(args, "drill"),
        planned=lambda: (plan, ()),
        dry_run=args.dry_run,
        drill={"file": Path(args.file).name, "knee": args.knee, "text": text},
    )


def plan_text(drill: Drill) -> str:
    """What will happen, for a person."""
    unit = "requests/s" if drill.is_rate else "users"
    rows = [
        (p.begin_ns, f"{p.name}: {p.load:g} {unit} for {exact_ns(p.end_ns - p.begin_ns)}")
        for p in drill.phases
    ]
    rows += [(e.at_ns, f"  {e.name}: {e.sentence}") for e in drill.events]
    lines = [f"  {at_ns / SECOND:6.1f} s  {what}" for at_ns, what in sorted(rows)]
    expected = [f"  expected  {e.name}" for e in drill.expectations]
    return "\n".join([f"{drill.title}: {exact_ns(drill.length_ns)} of load", *lines, *expected, ""])


def execute(args: argparse.Namespace) -> int:
    """Run it; 99 if an expectation is false, 6 if one is inconclusive."""
    drill, text = planned(args)
    wanted = wanted_drill(args, drill, text)

    start, stream = plain.start_options(args), message_stream(wanted.output)
    check_servers(drill, args.allow_host, start)
    stream.write(plan_text(drill))
    if wanted.dry_run:
        return EXIT_OK
    check_new(wanted.output.out_dir)

    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="vllm-harness-")))
        tell = lambda line: print(line, file=stream, flush=True)  # noqa: E731 - a word's worth
        servers = stack.enter_context(running_servers(drill, start, logs, tell))
        balancer = stack.enter_context(BalancerProcess([server.url for server in servers]))
        target = replace(
            wanted.target, url=balancer.url, metrics_urls=tuple(server.url for server in servers)
        )
        wanted = replace(wanted, target=target)
        option = "--max-in-flight" if drill.is_rate else "--max-users"
        url, known = stack.enter_context(
            checked_target(target, wanted.load, wanted.output, wanted.most_users, option=option)
        )
        access = TargetAccess(
            Address.parse(url), target.api_key, target.key_source, headers=target.headers
        )
        stage = stack.enter_context(
            call("harness.drill.stage:Stage", drill, servers, balancer, access, known.model)
        )
        return int(call("harness.cli.conduct:conduct", wanted, url, known, stage))
