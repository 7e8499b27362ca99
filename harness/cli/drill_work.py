"""`drill`: plan it within the limits, start what it needs, run it, judge it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from harness.cli.by_name import call
from harness.core.run_kinds import DrillRun
from harness.core.shipped import shipped_files
from harness.drill.cluster import check_context, cluster_of, commands_of
from harness.drill.drill_file import parse_drill
from harness.drill.servers import check_servers, running_servers
from harness.errors import EXIT_OK, ConfigError, closest
from harness.lifecycle.balancer import BalancerProcess
from harness.records.new_folder import check_new
from harness.run import options_from_args as plain
from harness.run.preflight import checked_target, message_stream
from harness.run.scenario import option_words
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.units import SECOND, exact_ns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from harness.drill.plan import Drill
    from harness.run.study_options import Wanted
    from harness.server.probe import Capabilities


# Options that say how much load there is, or are the drill's own.
NOT_FOR_LOAD: Final = frozenset({"users", "rate", "duration", "requests", "embedded", "slo", "out"})


def text_of(file: str) -> str:
    """The text of a drill, which may be the name of one that ships. Raises ConfigError."""
    ships = shipped_files("drills")
    path = Path(file)
    if not path.exists():
        path = ships.get(file, path)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read ({getattr(error, 'strerror', None) or error}): expected a "
            f"drill in TOML, or one of {', '.join(ships)}; "
            f"try vllm-harness drill {closest(path.stem, ships, 'replica-death')}."
        ) from None


def planned(args: argparse.Namespace, text: str) -> Drill:
    """The drill, within the limits. Raises ConfigError."""
    drill = parse_drill(text, args.file, args.knee)
    if drill.servers.get("engines") and (args.model_dir or args.start_command):
        drill = replace(drill, servers=_vllm_like(drill.servers))
    _check_most(args, drill)
    return drill


def _vllm_like(servers: Mapping[str, Any]) -> dict[str, Any]:
    """What is simulated in the file is real here, with the same flags."""
    engine = servers.get("engine", {})
    flags = [f"--{key} {value}" for key, value in engine.items()]
    return {"vllm": servers["engines"], "args": " ".join(flags)}


def _check_most(args: argparse.Namespace, drill: Drill) -> None:
    """Raises ConfigError for a load beyond the limit."""
    load = drill.unit.load
    most = drill.unit.number(getattr(args, f"max_{load.option}"))
    if drill.most > most:
        raise ConfigError(
            f"{args.file} goes up to {drill.most:g}{load.mark}: expected at most "
            f"{most:g}{load.mark}; try --max-{load.option} {drill.most:g}."
        )


def wanted_drill(args: argparse.Namespace, drill: Drill, text: str) -> Wanted:
    """The experiment; its URL comes with the balancer. Raises ConfigError."""
    run = args.top._subparsers._group_actions[0].choices["run"]  # noqa: SLF001 - their only place
    # A drill holds any rate, `run` takes steps: the next one up is what the limits are for.
    kind = drill.unit.load
    most = kind.of_number(drill.most)
    if most.number < drill.most:
        most = kind.of_count(most.count + 1)
    load = f"--{most.option}={most.number}"
    where = f"{args.file}, [load]"
    words = ["http://127.0.0.1:1", load, *option_words(drill.options, run, where)]
    not_for_load = NOT_FOR_LOAD & {name.replace("_", "-") for name in drill.options}
    if not_for_load:
        raise ConfigError(
            f"{where} has {', '.join(sorted(not_for_load))}: expected what requests are like; "
            "try workload, prompt-tokens or first-token-timeout, and phases for the rest."
        )
    wanted = plain.run_options(run.parse_args(words), "run")
    plan, _ = wanted.planned()
    plan = replace(plan, slos=drill.slos, budget_ns=drill.length_ns + 60 * SECOND)
    return replace(
        wanted,
        kind=DrillRun,
        load=replace(wanted.load, retries=drill.retries),
        output=plain.output_options(args, "drill"),
        planned=lambda: (plan, ()),
        dry_run=args.dry_run,
        drill={"file": Path(args.file).name, "knee": args.knee, "text": text},
    )


def plan_text(drill: Drill) -> str:
    """What will happen, for a person."""
    unit = drill.unit.short_many
    rows = []
    for phase in drill.phases:
        length = exact_ns(phase.end_ns - phase.begin_ns)
        rows.append((phase.begin_ns, f"{phase.name}: {phase.load:g} {unit} for {length}"))
    rows += [(event.at_ns, f"  {event.name}: {event.sentence}") for event in drill.events]
    head = f"{drill.title}: {exact_ns(drill.length_ns)} of load"
    lines = [f"  {at_ns / SECOND:6.1f} s  {what}" for at_ns, what in sorted(rows)]
    expected = [f"  expected  {expectation.name}" for expectation in drill.expectations]
    commands = [f"  in the cluster  {command}" for command in commands_of(drill)]
    return "\n".join([head, *lines, *commands, *expected, ""])


def execute(args: argparse.Namespace) -> int:
    """Run it, or only print the file."""
    text = text_of(args.file)
    if args.print:
        sys.stdout.write(text)
        return EXIT_OK
    return rehearse(args, text)


def rehearse(args: argparse.Namespace, text: str) -> int:
    """99 if an expectation is false, 6 if one is inconclusive."""
    drill = planned(args, text)
    wanted = wanted_drill(args, drill, text)
    start = plain.start_options(args)
    stream = message_stream(wanted.output)
    check_servers(drill, args.allow_host, start)
    stream.write(plan_text(drill))
    if wanted.dry_run:
        return EXIT_OK
    check_context(drill, args.allow_context)
    cluster = cluster_of(drill.servers)
    if cluster is not None:
        cluster.check([event.cluster_object for event in drill.events if event.commands])
    check_new(wanted.output.out_dir)
    with ExitStack() as stack:
        logs = stack.enter_context(TemporaryDirectory(prefix="vllm-harness-"))
        tell = partial(print, file=stream, flush=True)
        servers = stack.enter_context(running_servers(drill, start, Path(logs), tell))
        server_urls = [server.url for server in servers]
        balancer = stack.enter_context(BalancerProcess(server_urls))
        target = replace(wanted.target, url=balancer.url, metrics_urls=tuple(server_urls))
        wanted = replace(wanted, target=target)
        url, known = stack.enter_context(_checked(wanted, drill))
        where = Address.parse(url)
        access = TargetAccess(where, target.api_key, target.key_source, headers=target.headers)
        stage = call("harness.drill.stage:Stage", drill, servers, balancer, access, known.model)
        stage.cluster = cluster
        stack.enter_context(stage)
        return int(call("harness.cli.conduct:conduct", wanted, url, known, stage))


def _checked(wanted: Wanted, drill: Drill) -> AbstractContextManager[tuple[str, Capabilities]]:
    option = "--max-in-flight" if drill.unit.by_schedule else "--max-users"
    return checked_target(
        wanted.target, wanted.load, wanted.output, wanted.most_users, option=option
    )
