"""`vllm-harness knee URL`: find the knee."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.cli import options_from_args as plain
from harness.cli.parsing import examples
from harness.errors import EXIT_INTERRUPTED, ConfigError
from harness.study.option import declare
from harness.study.option_table import OUTPUT, PROVE, SEARCH, START
from harness.study.study_options import RATE_STEP_PER_S, Wanted

if TYPE_CHECKING:
    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "knee",
        usage="%(prog)s (URL | --embedded) [OPTION ...]",
        help="find how many concurrent requests, or per second, meet every SLO; what limits them",
        description="Steps the load up until an SLO is missed, closes in on the knee, and explains "
        "it. Without an SLO it looks for the power knee, where throughput over latency peaks. "
        "--embedded measures a simulated vLLM in place of a server.",
        epilog=examples(
            "vllm-harness knee --embedded --slo ttft_p95=500ms --budget 90s",
            "vllm-harness knee http://127.0.0.1:8000 --load rate --slo ttft_p95=500ms",
            "vllm-harness knee http://127.0.0.1:8000 --slo e2e_p95=10s --plan-users 2000 --dry-run",
        ),
    )
    plain.target(parser)
    plain.load_and_objectives(parser)
    declare(parser.add_argument_group("search"), SEARCH)
    declare(parser.add_argument_group("proof of the diagnosis"), PROVE)
    plain.output(parser)
    parser.set_defaults(execute=execute)


def options(args: argparse.Namespace) -> Wanted:
    """The search asked for. Raises ConfigError."""
    from harness.measure.search.next_level import SearchPlan  # noqa: PLC0415 - heavy: see app.py

    if args.tolerance is not None and args.baseline is None:
        raise ConfigError(
            "--tolerance is given without --baseline: expected a run folder to compare with; "
            "try --baseline reports/main."
        )
    rates, users = args.load == "rate", (args.min_users, args.max_users)
    low, high = (args.min_rate, args.max_rate) if rates else users
    if rates and (given := args.plan_users or args.at_least or args.baseline):
        raise ConfigError(
            f"--load rate is given with what is counted in users ({given}): expected one or the "
            "other; try it without --plan-users, --at-least and --baseline."
        )
    target = plain.target_options(args)
    load = plain.load_options(args, "--max-users", 0 if rates else high)
    output = plain.output_options(args, "knee")
    if low > high:
        what, step = ("rate", RATE_STEP_PER_S) if rates else ("users", 1)
        raise ConfigError(
            f"--min-{what} is {low * step:g} and --max-{what} is {high * step:g}: expected the "
            f"first to be at most the second; try --min-{what} 1."
        )
    if rates and not args.slo:
        raise ConfigError(
            "--load rate is given without an SLO: expected one, as throughput follows the rate "
            "up to the server's limit; try --slo ttft_p95=500ms."
        )
    plan = SearchPlan(
        slos=tuple(args.slo),
        min_users=low,
        max_users=high,
        budget_ns=args.budget,
        max_errors=args.max_errors,
        seed=args.seed,
        rate_step_per_s=RATE_STEP_PER_S if rates else 0.0,
    )
    return Wanted(
        "knee",
        target,
        load,
        output,
        plan,
        args.max_in_flight if rates else high,
        plan_users=args.plan_users,
        at_least=args.at_least,
        baseline=str(args.baseline or ""),
        tolerance=0.05 if args.tolerance is None else args.tolerance,
        dry_run=args.dry_run,
    )


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start_study  # noqa: PLC0415 - heavy: see app.py

    starts = any(getattr(args, one.dest) for one in START)
    if not (args.prove or starts):
        return start_study(options(args))
    if not (args.prove and starts) or args.url or args.embedded:
        raise ConfigError(
            "--prove restarts the server with other flags: expected --prove with --model-dir DIR "
            "or --start-command, and neither a URL nor --embedded. Where it runs elsewhere, "
            "restart it there with the flag under Try next, then try `knee URL --baseline DIR`."
        )
    return _prove(args)


def _prove(args: argparse.Namespace) -> int:
    """Find the knee on a server of ours, then again with other flags; the knee's exit code."""
    from harness.cli.start import conclude  # noqa: PLC0415 - heavy: see app.py
    from harness.cli.vary import check_inner  # noqa: PLC0415 - as above
    from harness.server.vllm_start import command_line  # noqa: PLC0415 - as above
    from harness.study.preflight import check_folder, message_stream  # noqa: PLC0415 - as above
    from harness.study.vary_settings import prove_knee  # noqa: PLC0415 - as above

    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    declare(ours, (*PROVE, *OUTPUT[:3]))
    words, start = ours.parse_known_args(args.words)[1], plain.start_options(args)
    check_inner(["knee", *words], [()], started=True)
    command_line(start, (), 0)
    output = plain.output_options(args, "knee")
    check_folder(output.out_dir)
    whole = prove_knee(words, start, output.out_dir, message_stream(output))
    result = conclude(output.out_dir, output.json_to, output.junit_to)
    return result.exit_code if whole else EXIT_INTERRUPTED
