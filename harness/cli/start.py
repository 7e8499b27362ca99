"""How knee, run and sweep begin: the plan alone, or the checks, then what takes long to import."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from harness.errors import EXIT_OK
from harness.measure.slo import check_slos
from harness.report.say import count
from harness.server.address import Address
from harness.study.options import KneeOptions
from harness.study.preflight import (
    check_lengths,
    check_machine,
    clipping,
    ready,
    said_to,
    simulated,
)
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.study.options import RunOptions

    Options = KneeOptions | RunOptions


def start(options: Options) -> int:
    """Conduct the study, or print its plan; the exit code. Raises HarnessError."""
    users = levels(options)
    option = "--max-users" if isinstance(options, KneeOptions) else "--users"
    check_slos(options.slos, options.load.workload.output.mean)
    if isinstance(options, KneeOptions) and options.baseline is not None:
        from harness.runfolder.reader import check_folder  # noqa: PLC0415 - heavy: see app.py

        check_folder(options.baseline)
    if options.dry_run:
        check_machine(options.output, max(users), option)
        rows = [f"  {name:<10}{what}\n" for name, what in plan(options, users).items()]
        said_to(options.output).write("".join(["The plan; nothing was sent.\n", *rows]))
        return EXIT_OK
    most = max(users)
    with ready(options.target, options.load, options.output, most, option=option) as (url, known):
        gc.set_threshold(100_000)  # else imports and drawings are looked through again and again
        from harness.cli.front import Front  # noqa: PLC0415 - heavy: see app.py
        from harness.study.knee import run_knee  # noqa: PLC0415 - as above
        from harness.study.run import run_levels  # noqa: PLC0415 - as above

        if isinstance(options, KneeOptions):
            return run_knee(options, url, known, Front())
        return run_levels(options, url, known, Front())


def levels(options: Options) -> tuple[int, ...]:
    """The levels; of a search those of the way up, if none of them fails."""
    if not isinstance(options, KneeOptions):
        return options.users
    up = [options.min_users]
    while up[-1] < options.max_users:
        up.append(min(up[-1] * 2, options.max_users))
    return tuple(up)


def plan(options: Options, users: tuple[int, ...]) -> dict[str, str]:
    """What would be measured, in words. Raises ConfigError where that is known not to fit."""
    target, work, slos = options.target, options.load.workload, " and ".join(map(str, options.slos))
    context = target.engine.max_model_len if target.engine else None
    check_lengths(work, context)
    clips = clipping(options.load, context) if context else "to the context that the server names"
    shared = f" ({work.system_tokens:,} of them shared by all)" if work.system_tokens else ""
    told = f"{', '.join(f'{n:,}' for n in users)} {'user' if users == (1,) else 'users'}"
    rows = {
        "target": simulated(target.engine) if target.engine
        else f"{target.model or 'the only model'} at {Address.parse(target.url or '')}",
        "workload": f"{work.name}: about {count(work.prompt_tokens, 'prompt token')}{shared} and "
        f"{count(work.output.mean, 'output token')} a request, by {work.path}",
        "clipped": clips,
        "SLOs": f"{slos}; at most {100 * options.max_errors:g}% of requests may fail",
    }  # fmt: skip
    if isinstance(options, KneeOptions):
        rows["SLOs"] = rows["SLOs"] if slos else "none: the power knee is searched"
        rows["levels"] = f"{told} on the way up, until one fails; then between pass and fail"
        rows["budget"] = f"{say_ns(options.budget_ns)} of load at most, and a minute to drain"
    else:
        rows["SLOs"] = rows["SLOs"] if slos else "none: nothing is judged"
        length = options.duration_ns
        each = say_ns(length) if length else count(options.requests or 0, "request")
        rows["levels"] = f"{told} for {each}{' each' * (len(users) > 1)}"
    return {name: what for name, what in rows.items() if what} | {
        "results": str(options.output.out_dir)
    }
