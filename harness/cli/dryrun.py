"""`--dry-run`: what would be measured, in words. Nothing is started, and nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import EXIT_OK
from harness.report.say import count
from harness.server.address import Address
from harness.study.options import KneeOptions, RunOptions
from harness.study.preflight import check_lengths, check_machine, clipping, said_to
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.load.workloads import Workload
    from harness.study.options import SweepOptions, TargetOptions

    Options = KneeOptions | RunOptions | SweepOptions


def show(options: Options) -> int:
    """Print the plan, once everything was checked that needs no server. Raises HarnessError."""
    target, load, output = options.target, options.load, options.output
    users = _users(options)
    check_machine(output, max(users))
    context = target.engine.max_model_len if target.engine else None
    check_lengths(load.workload, context)
    slos = " and ".join(map(str, options.slos))
    rows = {
        "target": _target(target),
        "workload": _workload(load.workload),
        "clipped": clipping(load, context) or "to the model's context, where the server names it",
        "SLOs": f"{slos}; at most {100 * options.max_errors:g}% of requests may fail",
    }
    if context and not clipping(load, context):
        del rows["clipped"]
    if isinstance(options, KneeOptions):
        rows["SLOs"] = rows["SLOs"] if slos else "none: the power knee is searched"
        rows["levels"] = (
            f"{_list(users)} on the way up, until one fails; then between the last that passed and "
            "the first that failed"
        )
        rows["budget"] = f"{say_ns(options.budget_ns)} of load at most, and a minute to drain"
    else:
        rows["SLOs"] = rows["SLOs"] if slos else "none: nothing is judged"
        length = options.duration_ns
        each = say_ns(length) if length else count(options.requests or 0, "request")
        rows["levels"] = f"{_list(users)} for {each}{' each' * (len(users) > 1)}"
    rows["results"] = str(output.out_dir)
    lines = ["The plan; nothing was sent.", *(f"  {k:<10}{v}" for k, v in rows.items())]
    said_to(output).write("\n".join(lines) + "\n")
    return EXIT_OK


def _users(options: Options) -> tuple[int, ...]:
    """The levels; of a search those of the way up, if none of them fails."""
    if isinstance(options, RunOptions):
        return (options.users,)
    if not isinstance(options, KneeOptions):
        return options.users
    levels = [options.min_users]
    while levels[-1] < options.max_users:
        levels.append(min(levels[-1] * 2, options.max_users))
    return tuple(levels)


def _list(users: tuple[int, ...]) -> str:
    """`1 user`, `1, 2, 4 users`."""
    return f"{', '.join(f'{n:,}' for n in users)} {'user' if users == (1,) else 'users'}"


def _target(target: TargetOptions) -> str:
    if target.url is not None:
        return f"{target.model or 'the only model'} at {Address.parse(target.url)}"
    assert target.engine is not None  # noqa: S101 - options promise it
    return f"simulated: {target.engine.model} on {target.engine.gpu}, in place of a server"


def _workload(work: Workload) -> str:
    shared = f" ({work.system_tokens:,} of them shared by all)" if work.system_tokens else ""
    return (
        f"{work.name}: about {count(work.prompt_tokens, 'prompt token')}{shared} and "
        f"{count(work.output.mean, 'output token')} a request, by {work.path}"
    )
