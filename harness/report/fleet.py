"""Replicas for users or requests per second, their money and energy, from one measured knee.

The lower end of the knee counts; figures at both ends of its interval stand in brackets.
"""

from __future__ import annotations

from math import nan, prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.measure import sizing
from harness.measure.diagnosis.gpu_window import GpuFigures
from harness.measure.result import CONCURRENT, Knee
from harness.report.numbers import count_of
from harness.report.numbers import format_number as say

if TYPE_CHECKING:
    from harness.measure.result import Number, Result

PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class Ask(NamedTuple):
    """Users or a rate, and under which circumstances."""

    users: int = 0
    rate_per_s: float = 0.0
    think_s: float = 0.0
    survive: int = 0
    peak_over_mean: float = 1.0
    gpu_hour: float = 0.0  # price of a GPU; 0: not known


def fleet_text(result: Result, knee: Knee, low: Number, ask: Ask) -> str:
    """The answer. Raises ConfigError where pauses would count twice."""
    if ask.think_s and result.unit != CONCURRENT:
        raise ConfigError(
            f"--think-time is given, and the knee is of {result.unit}s, whose pauses are in it: "
            "expected one of the two; try without --think-time."
        )
    ends = [x or nan for x in (low, *knee.ci95)]
    # All by Little's law: what is in flight = requests per second x seconds of a request.
    by_rate = knee.unit != Knee().unit
    response_s = (knee.in_flight if by_rate else low) / knee.requests_per_s
    cycle_s = response_s + ask.think_s
    users = (ask.users or ask.rate_per_s * cycle_s) * ask.peak_over_mean
    mean = sizing.requests_in_flight(users, response_s, ask.think_s)
    busy = sizing.busy_requests(mean, ask.think_s / cycle_s if ask.users else 1.0)
    load = mean / response_s if by_rate else busy
    need, *between = (sizing.replicas_for(load, end, ask.survive) for end in ends)
    # output tokens/s between the nearest levels that were held
    held = sorted((level.load, level.output_tokens_per_s) for level in result.used)
    tokens = [float(np.interp(end, [x for x, _ in held], [y for _, y in held])) for end in ends]
    gpu = result.at_knee.gpu if result.at_knee else GpuFigures()
    gpus = max(prod(int(result.target.flags.get(x) or 1) for x in PARALLEL), gpu.gpus)
    each = low * cycle_s / (1 if by_rate else response_s)  # users of a replica
    text = f"""\
One replica ({count_of(gpus, "GPU")}{f", {result.target.label}" * bool(result.target.label)}): \
{low:,} {knee.unit} (95% interval {ends[1]:,} to {ends[2]:,}) with {knee.criterion}, \
{say(knee.requests_per_s)} requests/s of {say(response_s)} s, {say(tokens[0])} output tokens/s.
{f"{ask.users:,} users" if ask.users else f"{ask.rate_per_s:g} requests/s"}, think time \
{ask.think_s:g} s, peak {ask.peak_over_mean:g} x mean: {say(mean)} requests in flight, {say(busy)} \
in the busiest 5% of the time.
Replicas: {need} ({min(between)} to {max(between)}), of which {ask.survive} may fail, behind a \
balancer that chooses the one with the fewest requests.
"""
    if price := ask.gpu_hour * gpus:
        cost, *costs = (sizing.cost_per_million_tokens(price, x) for x in tokens)
        hour, *hours = (price / each * low / end for end in ends)
        text += f"""\
Cost at the knee: {say(cost)} per million output tokens ({say(min(costs))} to {say(max(costs))}), \
{say(hour)} per user-hour ({say(min(hours))} to {say(max(hours))}); in all {say(price * need)} \
per hour.
"""
    if gpu.power_w > 0:
        text += f"""\
Energy of the GPUs at the knee: {say(tokens[0] / gpu.power_w)} output tokens per joule, \
{say(each / gpu.power_w * 1000)} users per kilowatt.
"""
    return text
