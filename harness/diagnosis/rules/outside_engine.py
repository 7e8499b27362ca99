"""Bottlenecks outside the engine: GPU clocks, arrivals, the network, and the client itself."""

from __future__ import annotations

from math import isnan, log, nan
from typing import Final

from harness.diagnosis.rules.inputs import API_FULL, VerdictInputs
from harness.diagnosis.rules.rule_result import (
    RuleResult,
    fmt,
    fmt_ms,
    running_evidence,
    waiting_evidence,
)

MIN_THROTTLED_SHARE: Final = 0.3  # of the readings had slowed clocks
# Of the clock at a lower level with the GPU as busy; above it, hardly any speed is lost. An H200
# that was 86 to 96% busy and at its power cap was called throttled, 0.9, by its power cap alone.
SLOW_CLOCK_SHARE: Final = 0.92
MIN_CLOCK_PART: Final = 0.25  # of the slow-down, on a log scale, that clocks explain
MAJOR_CLOCK_PART: Final = 0.5
# Variance over mean of arrivals in a bin; a Poisson process has 1.
MIN_BURST_DISPERSION: Final = 4.0
MIN_QUEUE_PEAK_RATIO: Final = 3.0  # the longest queue over the mean one
MIN_SCHEDULED_SHARE: Final = 0.5  # of the requests were sent by a schedule
MAX_RUNNING_SHARE: Final = 0.7  # mean over maximum of running: there is room between bursts
CLIENT_CORE_FULL: Final = 0.9  # of a core: the client's process has no CPU left
MAX_INSTRUMENT_SHARE: Final = 0.05  # of the limit: allowed uncertainty of the measurement
MIN_OUTSIDE_SHARE: Final = 0.5  # of the client's mean TTFT is outside the server
MIN_OUTSIDE_LIMITS: Final = 0.25  # and this share of the limit, so that it matters


def throttled(f: VerdictInputs) -> RuleResult:
    """Heat or a power cap slows the GPU's clocks, and that explains why tokens are late."""
    share = f.gpu.throttled_share
    if isnan(share):
        return RuleResult.no("the GPU does not report why its clocks are slowed")
    if not share >= MIN_THROTTLED_SHARE:
        return RuleResult.no(f"clocks were slowed in {fmt(share, '.0%')} of the readings")
    # A GPU under full load sits at its power cap: that costs speed only if the clocks fell.
    if isnan(f.clock_share):
        return RuleResult.no("no lower level is as busy")
    if f.clock_share > SLOW_CLOCK_SHARE:
        clock = fmt(f.clock_share, ".0%")
        return RuleResult.no(f"the clocks ran at {clock} of those at a lower level as busy")
    # Slower clocks make everything 1 / clock times as long: how much of what it is?
    part = 0.0
    if f.times_longer > 1:
        part = min(-log(f.clock_share) / log(f.times_longer), 1.0)
    what = "first tokens" if f.first else "gaps"
    if part < MIN_CLOCK_PART:
        return RuleResult.no(f"slower clocks do not explain why {what} take longer")
    confidence = 0.5
    if part >= MAJOR_CLOCK_PART:
        too_hot = "heat" in f.gpu.throttled or "hardware" in f.gpu.throttled
        confidence = 0.98 if too_hot else 0.96
    return RuleResult(
        confidence,
        f"the GPU is throttled: {f.gpu.throttled}",
        [
            f"what slowed the clocks, share of the readings: {f.gpu.throttled}",
            f"the SM clock is {f.clock_share:.0%} of that at a lower level with the GPU as busy",
            f"that explains {part:.0%} of why {what} take longer",
        ],
        [
            "check the cooling and the rack's power (heat and slowdowns)",
            "raise the power limit (nvidia-smi -pl; more heat)",
        ],
    )


def bursts(f: VerdictInputs) -> RuleResult:
    """Requests arrive in bursts: they wait although the server is not full on average."""
    arrivals = f.level.arrivals
    server = f.server
    if isnan(arrivals.dispersion):
        return RuleResult.no("too few arrivals to tell how evenly they come")
    if arrivals.dispersion < MIN_BURST_DISPERSION:
        return RuleResult.no(f"arrivals are even: variance over mean {fmt(arrivals.dispersion)}")
    queue_peaks = server.waiting_max >= MIN_QUEUE_PEAK_RATIO * max(server.waiting_mean, 1.0)
    room_between = server.running_mean <= MAX_RUNNING_SHARE * server.running_max
    if not (queue_peaks and room_between):
        return RuleResult.no("arrivals come in bursts, but the server is full between them too")
    at_most = f"at most {fmt(server.waiting_max, '.0f')} requests wait"
    # In a closed loop a request is sent when an answer ends: such bursts are the server's own.
    confidence = 0.4
    if arrivals.scheduled > MIN_SCHEDULED_SHARE:
        confidence = 0.85
    return RuleResult(
        confidence,
        "requests come in bursts: they queue although the server is not full on average",
        [
            f"arrivals vary {fmt(arrivals.dispersion)} times as much as at random",
            f"{at_most}; {waiting_evidence(server.waiting_mean)}",
            running_evidence(server),
        ],
        [
            "smooth the arrivals (a queue or a rate limit in front of the server)",
            "raise --max-num-seqs (a burst runs at once, with longer gaps)",
        ],
    )


def client(f: VerdictInputs) -> RuleResult:
    """The load generator itself is late or has no CPU left."""
    blurred = f.instrument_share > MAX_INSTRUMENT_SHARE
    at_limit = f.client_cores >= CLIENT_CORE_FULL
    slow = f.limit_ms > 0 and f.turnaround_ms >= f.limit_ms
    # A client that other processes keep from the CPU uses little of it. On a CPU vLLM beside other
    # work the network was named, 0.85: users paused for 253 ms, and tokens came 202 ms late.
    starved = f.first and f.turnaround_ms >= f.outside_ms
    if not (blurred or (slow and (at_limit or starved))):
        if isnan(f.client_cores):
            return RuleResult.no("the client did not report its CPU")
        cores = fmt(f.client_cores, ".2f")
        return RuleResult.no(f"the client's busiest process uses {cores} cores")
    confidence = 0.99 if blurred or at_limit else 0.9
    return RuleResult(
        confidence,
        "the load generator is the bottleneck: it reads or sends too late",
        [
            f"its busiest process uses {fmt(f.client_cores, '.2f')} cores",
            f"the measurement uncertainty is {fmt(f.instrument_share, '.1%')} of the limit",
            f"p99 of its own delay between two requests is {fmt_ms(f.turnaround_ms)}",
        ],
        ["raise --processes", "give the load generator a machine of its own, or idle CPUs"],
    )


def network(f: VerdictInputs) -> RuleResult:
    """First tokens leave a server on another machine in time and arrive late."""
    if not f.first:
        return RuleResult.no("network delay does not lengthen gaps")
    if against := _why_not_on_the_way(f):
        return RuleResult.no(against)
    return RuleResult(
        0.85,
        "first tokens are late on the way, not in the server: the network, or a proxy",
        [f"the mean TTFT is {fmt_ms(f.level.ttft_ms.mean)}, the server's own {fmt_ms(f.ttft_ms)}"],
        [
            "shorten the path: the load generator or the users nearer to the server",
            "switch off buffering in the proxy (it holds back streamed events)",
        ],
    )


def _why_not_on_the_way(f: VerdictInputs) -> str:
    """Why it is not the network or a proxy that makes first tokens late; "" if it may be."""
    client_ttft_ms = f.level.ttft_ms.mean
    outside_ms = f.outside_ms
    share = outside_ms / client_ttft_ms if client_ttft_ms > 0 else nan
    if isnan(share):
        return "the server's own mean TTFT is unknown"
    if not (share >= MIN_OUTSIDE_SHARE and outside_ms >= MIN_OUTSIDE_LIMITS * f.limit_ms):
        return f"{max(share, 0):.0%} of the client's mean TTFT is outside the server"
    if f.instrument_share > MAX_INSTRUMENT_SHARE or f.turnaround_ms >= outside_ms:
        return "the client itself is late: the time outside the server is its own"
    if f.api_cores >= API_FULL:
        return "the API server is busy: it accepts requests late itself"
    # A CPU vLLM whose API server got little of two shared cores was called a slow network, 0.62.
    if not isnan(f.server.engine_cores):
        return "the server runs on this machine: there is no network in between"
    return ""
