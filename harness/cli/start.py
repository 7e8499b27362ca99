"""A study before its load: all is checked, or the plan is printed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.bought import BOUGHT
from harness.cli.by_name import call
from harness.core.load import CONCURRENT, UNIT_OF_OPTION
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
from harness.server.address import Address
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.core.load import Load
    from harness.load.workloads import Workload
    from harness.run.study_options import TargetOptions, Wanted


def start_study(wanted: Wanted) -> int:
    """Conduct the study, or print its plan; the exit code. Raises HarnessError."""
    most = wanted.most_users
    option = _load_option(wanted)
    if wanted.baseline:
        baseline = Path(wanted.baseline)
        call("harness.records.folder_reader:check_folder", baseline)
        loads = [hold.load for hold in wanted.holds]
        if loads:
            call("harness.compare.compare_folders:check_levels", baseline, loads)
    if wanted.dry_run:
        check_machine(wanted.output, most, option)
        stream = message_stream(wanted.output)
        rows = plan_rows(wanted)
        stream.write("Plan (nothing was sent):\n")
        for name, what in rows.items():
            stream.write(f"  {name:<10}{what}\n")
        return EXIT_OK
    checked = checked_target(wanted.target, wanted.load, wanted.output, most, option=option)
    with checked as (url, known):
        # Imports and charts create many objects that live long; the default would scan them
        # repeatedly.
        gc.set_threshold(100_000)
        return int(call("harness.cli.conduct:conduct", wanted, url, known))


def _load_option(wanted: Wanted) -> str:
    """The option that says how much load there is at most."""
    if wanted.load.unit.by_schedule:
        return "--max-in-flight"
    return wanted.kind.load_option


def plan_rows(wanted: Wanted) -> dict[str, str]:
    """The plan in words. Raises ConfigError if requests cannot fit the model's context."""
    load = wanted.load
    workload = load.workload
    engine = wanted.target.engine
    context = engine.max_model_len if engine else None
    check_lengths(workload, context)
    clips = clipping_note(load, context) if context else "to the context that the server names"
    rows = {
        "target": _target_text(wanted.target),
        "workload": _workload_text(workload),
        "sessions": _sessions_text(workload),
        "pauses": f"{workload.think_ms.mean:,} ms on average" if workload.think_ms else "",
        "data" if load.data else "clipped": clips,
        "SLOs": _slos_text(wanted),
    }
    if wanted.holds:
        rows["levels"] = _held_levels_text(wanted)
    else:
        rows["levels"] = f"{_way_up_text(wanted)} until one fails; then between pass and fail"
        rows["budget"] = _budget_text(wanted)
    rows["processes"] = load.processes_note
    rows["results"] = str(wanted.output.out_dir)
    return {name: what for name, what in rows.items() if what}


def _way_up_text(wanted: Wanted) -> str:
    plan = wanted.plan
    if plan.slos and wanted.never_pauses:
        return (
            f"{plan.min_users:,} to {plan.max_users:,} users: the fewest, as many as the server "
            "can easily run at once, then two to four times as many,"
        )
    return f"{_loads_text(wanted)} on the way up, or fewer,"


def _target_text(target: TargetOptions) -> str:
    if target.engine:
        return simulation_note(target.engine)
    return f"{target.model or 'the only model'} at {Address.parse(target.url or '')}"


def _workload_text(workload: Workload) -> str:
    prompt = f"about {count_of(workload.prompt_tokens, 'prompt token')}"
    if workload.system_tokens:
        prompt += f" ({workload.system_tokens:,} of them shared by all)"
    output = count_of(workload.output.mean, "output token")
    return f"{workload.name}: {prompt} and {output} a request, by {workload.path}"


def _sessions_text(workload: Workload) -> str:
    talk = workload.conversation
    if not talk:
        return ""
    return (
        f"{count_of(talk.turns.mean, 'turn')} on average, history {talk.history}, "
        f"{talk.replies} replies; a level is a number of sessions"
    )


def _slos_text(wanted: Wanted) -> str:
    plan = wanted.plan
    if plan.slos:
        slos = " and ".join(map(str, plan.slos))
        return f"{slos}; at most {100 * plan.max_errors:g}% of requests may fail"
    if wanted.holds:
        return "none: nothing is judged"
    return "none: the power knee is searched"


def _budget_text(wanted: Wanted) -> str:
    plan = wanted.plan
    parts = [f"{say_ns(plan.budget_ns)} of load at most"]
    if plan.slos:
        parts.append(f"less once the knee's interval is {100 * plan.precision:g}% wide")
    parts.append("and a minute to drain")
    if wanted.confirm_ns:
        parts.append(f"then about {say_ns(1.3 * wanted.confirm_ns)} to confirm the promise")
    text = ", ".join(parts)
    if plan.slos and plan.unit == CONCURRENT:
        text += f"; {_bought_text(plan.budget_ns)}"
    return text


def _bought_text(budget_ns: int) -> str:
    """What a budget, or the next smaller one of BOUGHT, has bought in simulation."""
    affordable = [bought for bought in BOUGHT if bought.budget_ns <= budget_ns]
    bought = affordable[-1] if affordable else BOUGHT[0]
    text = (
        f"in simulation {bought.promised:.0%} of searches of {say_ns(bought.budget_ns)} end with "
    )
    text += "a level shown to hold"
    if bought.width:
        text += f" and half of them with one that fails within {bought.width:.0%} of it"
    return text


def _held_levels_text(wanted: Wanted) -> str:
    loads = _loads_text(wanted)
    if wanted.load.batch:
        text = f"a batch of {wanted.load.batch:,} one at a time, and one at each of {loads}"
    else:
        hold = wanted.holds[-1]
        length = count_of(hold.max_requests, "request")
        if hold.max_ns:
            length = say_ns(hold.max_ns)
        text = f"{loads} for {length}"
        if len(planned_levels(wanted)) > 1:
            text += " each"
    if wanted.repeats > 1:
        text += f", {wanted.repeats} times in turn"
    return text


def _loads_text(wanted: Wanted) -> str:
    """`1, 2, 4 users` or `5, 10 requests/s (poisson arrivals)`."""
    unit = UNIT_OF_OPTION[wanted.load.unit.load.option]  # as it is asked for: sessions by --users
    numbers = [load.number for load in planned_levels(wanted)]
    loads = f"{', '.join(map(unit.load.digits, numbers))} {unit.short_noun(sum(numbers))}"
    arrivals = wanted.load.arrivals
    return f"{loads} ({arrivals} arrivals)" if arrivals else loads


def planned_levels(wanted: Wanted) -> list[Load]:
    """The given levels, or those on the way up of a search if none of them fails."""
    if wanted.holds:
        holds = wanted.holds[: len(wanted.holds) // wanted.repeats]
        if wanted.load.batch:  # the first one is the batch one at a time
            holds = holds[1:]
        return [hold.load for hold in holds]
    up = [wanted.plan.min_users]
    while up[-1] < wanted.plan.max_users:
        up.append(min(up[-1] * 2, wanted.plan.max_users))
    return [wanted.plan.unit.of_count(count) for count in up]
