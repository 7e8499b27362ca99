"""Commands that load a server: `knee URL` finds the knee, `run` and `sweep` hold given levels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from harness.cli.by_name import call
from harness.cli.parsing import Subparsers, add_command
from harness.core.load import UNIT_OF_OPTION, Rate, Users
from harness.core.run_kinds import KneeRun
from harness.errors import ConfigError
from harness.run import options_from_args as plain
from harness.run.option import Option, declare
from harness.run.option_table import (
    AT_LEAST,
    BASELINE,
    BATCH,
    DURATION,
    OPEN_LOOP,
    PRECISION,
    PROVE,
    RATE,
    RATE_RANGE,
    REPEATS,
    REQUESTS,
    SEARCH,
    START,
    STRICT,
    SWEPT_RATE,
    SWEPT_USERS,
    TOLERANCE,
    USER_RANGE,
    USERS,
)
from harness.run.study_options import Wanted

if TYPE_CHECKING:
    from harness.core.load import LoadUnit
    from harness.search.next_level import Hold, SearchPlan

SWEEP: Final = "sweep"
# by `--load`
ONLY_WITH: Final[dict[str, tuple[Option, ...]]] = {
    Users.option: USER_RANGE,
    Rate.option: (*RATE_RANGE[1:], *OPEN_LOOP),
}


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "knee", execute)
    plain.target(parser)
    plain.load_and_objectives(parser)
    declare(parser.add_argument_group("search"), SEARCH)
    declare(parser.add_argument_group("proof of the diagnosis"), PROVE)
    plain.output(parser)


def options(args: argparse.Namespace) -> Wanted:
    """The search asked for. Raises ConfigError."""
    unit = UNIT_OF_OPTION[args.load]
    if unit.by_schedule:
        _check_no_users(args)
    _check_given(args, unit)
    low = getattr(args, f"min_{args.load}")
    high = getattr(args, f"max_{args.load}")
    target = plain.target_options(args)
    load = plain.load_options(args, "--max-users", unit.of_count(high))
    output = plain.output_options(args, "knee")
    _check_range(low, high, unit)
    _check_slos_given(args, unit)
    plain.check_slos(args, load)

    def planned() -> tuple[SearchPlan, tuple[Hold, ...]]:
        from harness.search.next_level import SearchPlan  # noqa: PLC0415 - heavy: see app.py

        plan = SearchPlan(
            slos=tuple(args.slo),
            min_users=low,
            max_users=high,
            budget_ns=args.budget,
            precision=args.precision,
            max_errors=args.max_errors,
            seed=args.seed,
            unit=load.unit,
        )
        return plan, ()

    return Wanted(
        kind=KneeRun,
        target=target,
        load=load,
        output=output,
        planned=planned,
        most_users=load.max_in_flight if unit.by_schedule else high,
        plan_users=args.plan_users,
        at_least=args.at_least,
        strict=args.strict,
        **plain.baseline_options(args),
        confirm_ns=args.confirm or 0,
        dry_run=args.dry_run,
    )


def _check_no_users(args: argparse.Namespace) -> None:
    """Refuses what is counted in users, for a search by rate. Raises ConfigError."""
    users = args.plan_users or args.at_least
    if users:
        raise ConfigError(
            f"--load rate is given with what is counted in users ({users}): expected one or the "
            "other; try it without --plan-users and --at-least."
        )


def _check_given(args: argparse.Namespace, unit: LoadUnit) -> None:
    """Refuses options that could not do anything. Raises ConfigError."""
    load = unit.load.option
    for other, options in ONLY_WITH.items():
        for option in options:
            if other != load and plain.is_changed(args, option):
                raise ConfigError(
                    f"{option.flag} is given with --load {load}, which does not use it: expected "
                    f"--min-{load} and --max-{load}; leave out {option.flag}, or try "
                    f"--load {other}."
                )
    if args.at_least and args.at_least > args.max_users:
        raise ConfigError(
            f"--at-least is {args.at_least} and --max-users {args.max_users}: expected a level "
            f"that the search may hold; try --max-users {args.at_least}."
        )
    for option in (AT_LEAST, PRECISION, STRICT):
        if not args.slo and plain.is_changed(args, option):
            raise ConfigError(
                f"{option.flag} is given without an SLO: expected one, as a power knee promises "
                "nothing; try --slo ttft_p95=500ms."
            )


def _check_range(low: int, high: int, unit: LoadUnit) -> None:
    """Raises ConfigError."""
    if low <= high:
        return
    what = unit.load.option
    raise ConfigError(
        f"--min-{what} is {unit.number(low):g} and --max-{what} is {unit.number(high):g}: expected "
        f"the first to be at most the second; try --min-{what} 1."
    )


def _check_slos_given(args: argparse.Namespace, unit: LoadUnit) -> None:
    """Refuses a search without an SLO that needs one. Raises ConfigError."""
    if unit.by_schedule and not args.slo:
        raise ConfigError(
            "--load rate is given without an SLO: expected one, as throughput follows the rate "
            "up to the server's limit; try --slo ttft_p95=500ms."
        )
    if args.confirm and not args.slo:
        raise ConfigError(
            "--confirm is given without an SLO: expected one, as a power knee promises nothing; "
            "try --slo ttft_p95=500ms."
        )


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    starts_server = any(getattr(args, option.dest) for option in START)
    if args.repeat:
        _check_repeat(args, starts_server=starts_server)
        if not args.dry_run:
            return int(call("harness.cli.several_knees:repeat", args))
    if not (args.prove or starts_server):
        return int(call("harness.cli.start:start_study", options(args)))
    if not (args.prove and starts_server) or args.url or args.embedded:
        raise ConfigError(
            "--prove restarts the server with other flags: expected --prove with --model-dir DIR "
            "or --start-command, and neither a URL nor --embedded. Where it runs elsewhere, "
            "restart it there with the flag under Try next, then try `knee URL --baseline DIR`."
        )
    return int(call("harness.cli.several_knees:prove", args))


def _check_repeat(args: argparse.Namespace, *, starts_server: bool) -> None:
    if args.prove or starts_server or args.junit:
        other = "--junit" if args.junit else "a server that is started here"
        raise ConfigError(f"--repeat is given with {other}: expected a URL alone; try --json.")


def add_run(commands: Subparsers) -> None:
    _add_levels(commands, "run", (USERS, RATE), (DURATION, REQUESTS))


def add_sweep(commands: Subparsers) -> None:
    lengths = DURATION, REQUESTS, BATCH
    _add_levels(commands, SWEEP, (SWEPT_USERS, SWEPT_RATE), lengths, REPEATS)


def _add_levels(
    commands: Subparsers,
    name: str,
    levels: tuple[Option, ...],
    lengths: tuple[Option, ...],
    *others: Option,
) -> None:
    """A command that holds levels: one of `levels` says which, one of `lengths` how long."""
    parser = add_command(commands, name, lambda args: _hold_levels(args, name))
    plain.target(parser)
    declare(parser.add_mutually_exclusive_group(), levels)
    declare(parser.add_mutually_exclusive_group(), lengths)
    declare(parser, (*others, *OPEN_LOOP, BASELINE, TOLERANCE))
    plain.load_and_objectives(parser)
    plain.output(parser)


def _hold_levels(args: argparse.Namespace, command: str) -> int:
    return int(call("harness.cli.start:start_study", plain.run_options(args, command)))
