"""Replicas for users or requests per second, their money and energy, from one measured knee."""

from __future__ import annotations

from argparse import Namespace
from math import nan
from typing import NamedTuple

import numpy as np

from harness.capacity import sizing
from harness.core.load import CONCURRENT, Number, unit_named
from harness.errors import ConfigError, NoKnee
from harness.metrics.numbers import count_of
from harness.metrics.numbers import format_number as say
from harness.metrics.result import Knee, Level, Result, gpus_by_flags
from harness.units import SECOND


def fleet_text(result: Result, knee: Knee, low: Number, args: Namespace) -> str:
    """The answer to the options of `fleet`. Raises ConfigError where pauses would count twice."""
    demand = _demand(result, knee, low, args)
    load = demand.load
    need = sizing.replicas_for(load, low, args.survive)
    interval = result.knee_interval
    # The knee at the ends of its interval; None: an end that is not known.
    ends = (interval.low or None, interval.high) if interval else (None, None)
    need_at_ends = [end and sizing.replicas_for(load, end, args.survive) for end in ends]

    gpu = (result.at_knee or Level(0, 0)).gpu
    target = result.target
    gpus = target.gpus or max(gpus_by_flags(target.flags), gpu.gpus, 1)
    tokens_per_s = _output_tokens_per_s(result, low)
    label = f", {target.label}" if target.label else ""
    planned = f"{args.users:,} users" if args.users else f"{args.rate:g} requests/s"
    in_brackets = f" ({interval.words})" if interval else ""
    text = f"""\
One replica ({count_of(gpus, "GPU")}{label}): {low:,} {knee.unit}{in_brackets} \
with {knee.criterion}, {say(knee.requests_per_s)} requests/s of \
{say(demand.response_s)} s, {say(tokens_per_s)} output tokens/s.
{planned}, think time {demand.think_s:g} s, peak {args.peak_over_mean:g} x mean: \
{say(demand.mean)} requests in flight, {say(demand.busy)} in the busiest 5% of the time.
Replicas: {need}{_range_of(*need_at_ends)}, of which {args.survive} may fail, behind a \
balancer that chooses the one with the fewest requests.
"""
    users_per_replica = demand.users_per_replica
    price_per_hour = (args.gpu_hour or 0) * gpus  # of a replica
    if price_per_hour:
        per_tokens = sizing.cost_per_million_tokens(price_per_hour, tokens_per_s)
        per_tokens_at_ends = [end and _cost(result, end, price_per_hour) for end in ends]
        per_user = price_per_hour / users_per_replica
        per_user_at_ends = [end and per_user * low / end for end in ends]
        text += f"Cost at the knee: {say(per_tokens)} per million output tokens"
        text += f"{_range_of(*per_tokens_at_ends)}, {say(per_user)} per user-hour"
        text += f"{_range_of(*per_user_at_ends)}; {say(price_per_hour * need)} an hour.\n"
    if gpu.power_w > 0:
        tokens_per_joule = tokens_per_s / gpu.power_w
        users_per_kilowatt = users_per_replica / gpu.power_w * 1000
        text += f"Energy of the GPUs at the knee: {say(tokens_per_joule)} output tokens per joule, "
        text += f"{say(users_per_kilowatt)} users per kilowatt.\n"
    return text


class _Demand(NamedTuple):
    """What comes to the fleet, and what a replica at the lower end of the knee has of it."""

    response_s: float
    think_s: float
    mean: float  # requests in flight at the peak
    busy: float  # the same in the busiest 5% of the time
    load: float  # in what the knee counts
    users_per_replica: float


def _demand(result: Result, knee: Knee, low: Number, args: Namespace) -> _Demand:
    """By Little's law; `low`: the lower end of the knee. Raises ConfigError, NoKnee."""
    think_s = (args.think_time or 0) / SECOND
    has_pauses = result.unit != CONCURRENT.one  # sessions, users who think: in what was held
    if think_s and has_pauses:
        raise ConfigError(
            f"the knee is of {result.unit}s, whose pauses are in it: try without --think-time."
        )
    by_rate = unit_named(knee.unit).by_schedule
    response_s = _response_s(knee, knee.in_flight if by_rate or has_pauses else low)
    if has_pauses:
        think_s = max(low / knee.requests_per_s - response_s, 0.0)
    mean, busy = _in_flight_at_peak(args, response_s, think_s)
    cycle_s = response_s + think_s
    # A replica that serves `low` requests/s has as many users as come back in a cycle; one that
    # serves `low` users at a time has more, as some of them think.
    if by_rate:
        return _Demand(response_s, think_s, mean, busy, mean / response_s, low * cycle_s)
    per_request = cycle_s / response_s  # users for each request in flight
    if has_pauses:  # how they are spread over time was in the run
        return _Demand(response_s, think_s, mean, busy, mean * per_request, low)
    return _Demand(response_s, think_s, mean, busy, busy, low * per_request)


def _response_s(knee: Knee, in_flight: float) -> float:
    """By Little's law, of what is in flight at the knee. Raises NoKnee without a rate."""
    response_s = in_flight / (knee.requests_per_s or nan)
    if not response_s > 0:
        raise NoKnee(
            "the knee has no requests per second: try `vllm-harness report` on its folder."
        )
    return response_s


def _in_flight_at_peak(args: Namespace, response_s: float, think_s: float) -> tuple[float, float]:
    """Requests in flight: on average, and in the busiest 5% of the time."""
    cycle_s = response_s + think_s
    users = args.users or args.rate * cycle_s
    mean = sizing.requests_in_flight(users * args.peak_over_mean, response_s, think_s)
    # Requests that come at a rate are Poisson, those of users are fewer while they think.
    idle_share = think_s / cycle_s if args.users else 1.0
    return mean, sizing.busy_requests(mean, idle_share)


def _output_tokens_per_s(result: Result, load: float) -> float:
    """At a load, between the nearest levels that were held."""
    levels = sorted((level.load, level.output_tokens_per_s) for level in result.used)
    loads = [level_load for level_load, _ in levels]
    tokens_per_s = [tokens for _, tokens in levels]
    return float(np.interp(load, loads, tokens_per_s))


def _cost(result: Result, load: float, price_per_hour: float) -> float:
    """Of a million output tokens at a load."""
    tokens_per_s = _output_tokens_per_s(result, load)
    return sizing.cost_per_million_tokens(price_per_hour, tokens_per_s)


def _range_of(at_low: float | None, at_high: float | None) -> str:
    """` (0.38 to 0.45)`: what falls as the knee rises, at the ends of the knee's interval.

    ` (at most 0.45)` where its upper end is not known.
    """
    known = sorted(end for end in (at_low, at_high) if end is not None)
    # a whole number of replicas as it is
    figures = [str(end) if isinstance(end, int) else say(end) for end in known]
    if not figures:
        return ""
    if at_high is None:
        return f" (at most {figures[0]})"
    if at_low is None:
        return f" (at least {figures[0]})"
    return f" ({figures[0]} to {figures[1]})"
