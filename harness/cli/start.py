"""The start of knee, run and sweep: print the plan, or check everything and run the study."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from harness.errors import EXIT_OK
from harness.report.numbers import count_of
from harness.server.address import Address
from harness.study.preflight import (
    check_lengths,
    check_machine,
    checked_target,
    clipping_note,
    message_stream,
    simulation_note,
)
from harness.study.study_options import RATE_STEP_PER_S, KneeOptions
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.study.study_options import RunOptions

    Options = KneeOptions | RunOptions


def start_study(options: Options) -> int:
    """Conduct the study, or print its plan; the exit code. Raises HarnessError."""
    users = planned_levels(options)
    option = "--max-users" if isinstance(options, KneeOptions) else "--users"
    most = max(users)
    if options.load.arrivals:
        option, most = "--max-in-flight", options.load.max_in_flight
    if options.slos:
        from harness.measure.slo import check_slos  # noqa: PLC0415 - heavy: see app.py

        check_slos(options.slos, options.load.workload.output.mean)
    if isinstance(options, KneeOptions) and options.baseline is not None:
        from harness.runfolder.folder_reader import check_folder  # noqa: PLC0415 - heavy: see app.py

        check_folder(options.baseline)
    if options.dry_run:
        check_machine(options.output, most, option)
        rows = [f"  {name:<10}{what}\n" for name, what in plan_rows(options, users).items()]
        message_stream(options.output).write("".join(["Plan (nothing was sent):\n", *rows]))
        return EXIT_OK
    checked = checked_target(options.target, options.load, options.output, most, option=option)
    with checked as (url, known):
        # Imports and charts create many objects that live long; the default would scan them
        # repeatedly.
        gc.set_threshold(100_000)
        from harness.cli.terminal import TerminalUi  # noqa: PLC0415 - heavy: see app.py
        from harness.study import given_levels as levels  # noqa: PLC0415 - as above
        from harness.study.conduct import conduct  # noqa: PLC0415 - as above
        from harness.study.knee_study import run_knee  # noqa: PLC0415 - as above

        if isinstance(options, KneeOptions):
            return run_knee(options, url, known, TerminalUi())
        wanted, choose = levels.wanted_levels(options), levels.in_turn(levels.given(options))
        return conduct(wanted, url, known, TerminalUi(), choose=choose)


def planned_levels(options: Options) -> tuple[int, ...]:
    """The given levels, or those on the way up of a search if none of them fails."""
    if not isinstance(options, KneeOptions):
        return options.users
    up = [options.min_users]
    while up[-1] < options.max_users:
        up.append(min(up[-1] * 2, options.max_users))
    return tuple(up)


def plan_rows(options: Options, users: tuple[int, ...]) -> dict[str, str]:
    """The plan in words. Raises ConfigError if requests cannot fit the model's context."""
    talk = options.load.workload.conversation
    target, work, slos = options.target, options.load.workload, " and ".join(map(str, options.slos))
    context = target.engine.max_model_len if target.engine else None
    check_lengths(work, context)
    clips = (
        clipping_note(options.load, context) if context else "to the context that the server names"
    )
    shared = f" ({work.system_tokens:,} of them shared by all)" if work.system_tokens else ""
    levels_text = f"{', '.join(f'{n:,}' for n in users)} {'user' if users == (1,) else 'users'}"
    if options.load.arrivals:
        rates = ", ".join(f"{n * RATE_STEP_PER_S:,.6g}" for n in users)
        levels_text = f"{rates} requests/s ({options.load.arrivals} arrivals)"
    rows = {
        "target": simulation_note(target.engine) if target.engine
        else f"{target.model or 'the only model'} at {Address.parse(target.url or '')}",
        "workload": f"{work.name}: about {count_of(work.prompt_tokens, 'prompt token')}{shared} "
        f"and {count_of(work.output.mean, 'output token')} a request, by {work.path}",
        "sessions": f"{count_of(talk.turns.mean, 'turn')} on average, history {talk.history}, "
        f"{talk.replies} replies; a level is a number of sessions" if talk else "",
        "pauses": f"{work.think_ms.mean:,} ms on average" if work.think_ms else "",
        "data" if options.load.data else "clipped": clips,
        "SLOs": f"{slos}; at most {100 * options.max_errors:g}% of requests may fail",
    }  # fmt: skip
    if isinstance(options, KneeOptions):
        rows["SLOs"] = rows["SLOs"] if slos else "none: the power knee is searched"
        rows["levels"] = f"{levels_text} on the way up, until one fails; then between pass and fail"
        rows["budget"] = f"{say_ns(options.budget_ns)} of load at most, and a minute to drain"
    else:
        rows["SLOs"] = rows["SLOs"] if slos else "none: nothing is judged"
        length, turns = options.duration_ns, options.repeats
        each = say_ns(length) if length else count_of(options.requests or 0, "request")
        rows["levels"] = f"{levels_text} for {each}{' each' * (len(users) > 1)}"
        if n := options.load.batch:
            rows["levels"] = f"a batch of {n:,} one at a time, and one at each of {levels_text}"
        rows["levels"] += f", {turns} times in turn" * (turns > 1)
    return {name: what for name, what in rows.items() if what} | {
        "results": str(options.output.out_dir)
    }
