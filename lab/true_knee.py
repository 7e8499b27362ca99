"""The most users of an engine that meet its SLOs, from long simulated runs: nothing is served.

    python -m lab.true_knee --max-num-seqs 16 --slo ttft_p95=500ms

Prints the true knee and how far each level that was run is from its limit. Exits with 99 when even
`--min-users` misses an SLO.
"""

from __future__ import annotations

import sys
from math import exp
from typing import TYPE_CHECKING, Final

from harness.cli.parsing import Parser, examples
from harness.errors import EXIT_OK, EXIT_SLO_MISSED, ConfigError, HarnessError
from harness.run import engine_flags
from harness.run import options_from_args as plain
from harness.run.option import declare
from harness.run.option_table import LENGTHS, SLO, USER_RANGE
from lab.closed_loop import Traffic
from lab.reference_knee import true_knee

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from lab.reference_knee import Truth

NAME: Final = "python -m lab.true_knee"


def parser() -> Parser:
    """Flags of the engine as the command `engine` has them, and the load."""
    made = Parser(
        prog=NAME,
        usage="%(prog)s --slo SLO [OPTION ...]",
        description="Computes the most users that meet the SLOs, from long simulated runs.",
        epilog=examples(
            f"{NAME} --max-num-seqs 16 --slo ttft_p95=500ms",
            f"{NAME} --workload fixed --prompt-tokens 4096 --slo ttft_p95=1s --slo itl_p95=30ms",
        ),
    )
    engine_flags.declare(made, "engine, with vLLM's option names")
    declare(plain.with_workloads(made, "load"), (*LENGTHS, SLO, *USER_RANGE))
    return made


def truth(args: Namespace) -> Truth:
    """What long runs say of the engine and the load asked for. Raises ConfigError."""
    if not args.slo:
        raise ConfigError("no --slo was given: expected one; try --slo ttft_p95=500ms.")
    engine = engine_flags.engine_config(args)
    sent = args.workload.sized(args.prompt_tokens, args.output_tokens)
    traffic = Traffic(sent.prompt.mean, sent.output.mean, sent.output.cv, engine.max_model_len)
    return true_knee(engine, traffic, args.slo, min_users=args.min_users, max_users=args.max_users)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the true knee; the exit code."""
    try:
        args = parser().parse_args(argv)
        found = truth(args)
    except HarnessError as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return error.exit_code
    promises = " and ".join(str(slo) for slo in args.slo)
    lines = [
        f"True knee: {found.users} users within {promises}.",
        "users  worst quantile / limit",
        *(f"{users:5}  {exp(z):.3f}" for users, z in sorted(found.levels.items())),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return EXIT_OK if found.users else EXIT_SLO_MISSED


if __name__ == "__main__":
    sys.exit(main())
