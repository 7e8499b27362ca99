"""Replicas for users or requests per second, their money and energy, from one measured knee."""

from __future__ import annotations

from argparse import Namespace
from math import nan, prod

import numpy as np

from harness.capacity import sizing
from harness.errors import ConfigError, NoKnee
from harness.metrics.numbers import count_of
from harness.metrics.numbers import format_number as say
from harness.metrics.result import CONCURRENT, Knee, Level, Number, Result
from harness.units import SECOND


def fleet_text(result: Result, knee: Knee, low: Number, args: Namespace) -> str:
    """The answer to the options of `fleet`. Raises ConfigError where pauses would count twice."""
    think_s = (args.think_time or 0) / SECOND
    if think_s and result.unit != CONCURRENT:
        raise ConfigError(
            f"the knee is of {result.unit}s, whose pauses are in it: try without --think-time."
        )
    ends = [x or nan for x in (low, *knee.ci95)]
    # All by Little's law: what is in flight = requests per second x seconds of a request.
    by_rate = knee.unit != Knee().unit
    response_s = (knee.in_flight if by_rate else low) / (knee.requests_per_s or nan)
    if not response_s > 0:
        raise NoKnee(
            "the knee has no requests per second: try `vllm-harness report` on its folder."
        )
    cycle_s = response_s + think_s
    peak = (args.users or args.rate * cycle_s) * args.peak_over_mean  # users
    mean = sizing.requests_in_flight(peak, response_s, think_s)
    busy = sizing.busy_requests(mean, think_s / cycle_s if args.users else 1.0)
    load = mean / response_s if by_rate else busy
    need, *between = (sizing.replicas_for(load, end, args.survive) for end in ends)
    # output tokens/s between the nearest levels that were held
    held = sorted((level.load, level.output_tokens_per_s) for level in result.used)
    tokens = [float(np.interp(end, [x for x, _ in held], [y for _, y in held])) for end in ends]
    gpu = (result.at_knee or Level(0, 0)).gpu
    parallel = (f"{x}_parallel_size" for x in ("tensor", "pipeline", "data"))
    gpus = max(prod(int(result.target.flags.get(x) or 1) for x in parallel), gpu.gpus)
    each = low * cycle_s / (1 if by_rate else response_s)  # users of a replica
    label = f", {result.target.label}" if result.target.label else ""
    asked = f"{args.users:,} users" if args.users else f"{args.rate:g} requests/s"
    text = f"""\
One replica ({count_of(gpus, "GPU")}{label}): {low:,} {knee.unit} (95% interval {ends[1]:,} to \
{ends[2]:,}) with {knee.criterion}, {say(knee.requests_per_s)} requests/s of {say(response_s)} s, \
{say(tokens[0])} output tokens/s.
{asked}, think time {think_s:g} s, peak {args.peak_over_mean:g} x mean: {say(mean)} requests in \
flight, {say(busy)} in the busiest 5% of the time.
Replicas: {need} ({min(between)} to {max(between)}), of which {args.survive} may fail, behind a \
balancer that chooses the one with the fewest requests.
"""
    if price := (args.gpu_hour or 0) * gpus:
        cost, *costs = (sizing.cost_per_million_tokens(price, x) for x in tokens)
        hour, *hours = (price / each * low / end for end in ends)
        text += f"""\
Cost at the knee: {say(cost)} per million output tokens ({say(min(costs))} to {say(max(costs))}), \
{say(hour)} per user-hour ({say(min(hours))} to {say(max(hours))}); {say(price * need)} an hour.
"""
    if gpu.power_w > 0:
        text += f"""\
Energy of the GPUs at the knee: {say(tokens[0] / gpu.power_w)} output tokens per joule, \
{say(each / gpu.power_w * 1000)} users per kilowatt.
"""
    return text
