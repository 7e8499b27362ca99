"""A study before its load: all is checked, or the plan is printed."""

from __future__ import annotations

import gc
from pathlib import Path

from harness.cli.by_name import call
from harness.errors import EXIT_OK
from harness.metrics.numbers import count_of
from harness.run.preflight import (
    check_lengths,
    check_machine,
    checked_target,
    clipping_note,
    message_stream,
    simulation_note,
)
from harness.run.study_options import RATE_STEP_PER_S, Wanted
from harness.server.address import Address
from harness.units import say_ns


def start_study(wanted: Wanted) -> int:
    """Conduct the study, or print its plan; the exit code. Raises HarnessError."""
    most, option = wanted.most_users, "--max-users" if wanted.kind == "knee" else "--users"
    option = "--max-in-flight" if wanted.load.arrivals else option
    if wanted.baseline:
        call("harness.records.folder_reader:check_folder", Path(wanted.baseline))
    if wanted.dry_run:
        check_machine(wanted.output, most, option)
        rows = [f"  {name:<10}{what}\n" for name, what in plan_rows(wanted).items()]
        message_stream(wanted.output).write("".join(["Plan (nothing was sent):\n", *rows]))
        return EXIT_OK
    checked = checked_target(wanted.target, wanted.load, wanted.output, most, option=option)
    with checked as (url, known):
        # Imports and charts create many objects that live long; the default would scan them
        # repeatedly.
        gc.set_threshold(100_000)
        return int(call("harness.cli.conduct:conduct", wanted, url, known))


def plan_rows(wanted: Wanted) -> dict[str, str]:
    """The plan in words. Raises ConfigError if requests cannot fit the model's context."""
    target, work, load, plan = wanted.target, wanted.load.workload, wanted.load, wanted.plan
    talk, slos = work.conversation, " and ".join(map(str, plan.slos))
    context = target.engine.max_model_len if target.engine else None
    check_lengths(work, context)
    clips = clipping_note(load, context) if context else "to the context that the server names"
    shared = f" ({work.system_tokens:,} of them shared by all)" if work.system_tokens else ""
    levels = planned_levels(wanted)
    levels_text = f"{', '.join(f'{n:,}' for n in levels)} {'user' if levels == [1] else 'users'}"
    if load.arrivals:
        rates = ", ".join(f"{n * RATE_STEP_PER_S:,.6g}" for n in levels)
        levels_text = f"{rates} requests/s ({load.arrivals} arrivals)"
    rows = {
        "target": simulation_note(target.engine)
        if target.engine
        else f"{target.model or 'the only model'} at {Address.parse(target.url or '')}",
        "workload": f"{work.name}: about {count_of(work.prompt_tokens, 'prompt token')}{shared} "
        f"and {count_of(work.output.mean, 'output token')} a request, by {work.path}",
        "sessions": f"{count_of(talk.turns.mean, 'turn')} on average, history {talk.history}, "
        f"{talk.replies} replies; a level is a number of sessions"
        if talk
        else "",
        "pauses": f"{work.think_ms.mean:,} ms on average" if work.think_ms else "",
        "data" if load.data else "clipped": clips,
        "SLOs": f"{slos}; at most {100 * plan.max_errors:g}% of requests may fail",
    }
    if not wanted.holds:
        rows["SLOs"] = rows["SLOs"] if slos else "none: the power knee is searched"
        rows["levels"] = (
            f"{levels_text} on the way up, or fewer, until one fails; then between pass and fail"
        )
        rows["budget"] = f"{say_ns(plan.budget_ns)} of load at most"
        ends = f", less once the knee's interval is {100 * plan.precision:g}% wide"
        rows["budget"] += f"{ends * bool(slos)}, and a minute to drain"
        confirm = f", then about {say_ns(1.3 * wanted.confirm_ns)} to confirm the promise"
        rows["budget"] += confirm * bool(wanted.confirm_ns)
    else:
        rows["SLOs"] = rows["SLOs"] if slos else "none: nothing is judged"
        hold, turns = wanted.holds[-1], wanted.repeats
        each = say_ns(hold.max_ns) if hold.max_ns else count_of(hold.max_requests, "request")
        rows["levels"] = f"{levels_text} for {each}{' each' * (len(levels) > 1)}"
        if n := load.batch:
            rows["levels"] = f"a batch of {n:,} one at a time, and one at each of {levels_text}"
        rows["levels"] += f", {turns} times in turn" * (turns > 1)
    return {name: what for name, what in rows.items() if what} | {
        "results": str(wanted.output.out_dir)
    }


def planned_levels(wanted: Wanted) -> list[int]:
    """The given levels, or those on the way up of a search if none of them fails."""
    if wanted.holds:
        once = wanted.holds[: len(wanted.holds) // wanted.repeats]
        return [hold.users for hold in once[bool(wanted.load.batch) :]]
    up = [wanted.plan.min_users]
    while up[-1] < wanted.plan.max_users:
        up.append(min(up[-1] * 2, wanted.plan.max_users))
    return up
