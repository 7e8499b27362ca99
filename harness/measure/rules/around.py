"""Not the server's resources: its clocks, how requests come, the network, the client itself."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.finding import Finding, ms, n, waiting

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

HELD: Final = 0.3  # of the readings with held clocks
SLOWER: Final = 0.92  # of the highest clock: then it costs speed
BURSTY: Final = 4.0  # variance over mean of arrivals in a bin; a Poisson process has 1
PEAK: Final = 3.0  # the longest queue over the mean one
SCHEDULED: Final = 0.5  # of the requests came by a schedule
SLACK: Final = 0.7  # of the most that runs, on average: there is room between bursts
CORE: Final = 0.9  # of a core: the client's process has none left
TOLD_APART: Final = 0.05  # of the limit: what the instrument may blur
MOST: Final = 0.5  # of the client's mean TTFT passes outside of the server,
FELT: Final = 0.25  # and so much of the limit
API_CORE: Final = 0.85  # an API server this busy takes up requests late: no fault of the way


def throttled(f: Facts) -> Finding:
    """Heat or a power cap holds the GPU's clocks down."""
    if isnan(f.throttle):
        return Finding.no("the GPU does not say why its clocks are what they are")
    if not f.throttle >= HELD:
        return Finding.no(f"clocks were held down in {n(f.throttle, '.0%')} of the readings")
    if f.clock_share > SLOWER:
        return Finding.no(f"the clocks held at {n(f.clock_share, '.0%')} of their highest")
    heat = "heat" in f.throttled or "hardware" in f.throttled
    return Finding(
        0.95 if f.clock_share <= SLOWER and heat else 0.9 if f.clock_share <= SLOWER else 0.5,
        f"the GPU is held back: {f.throttled}",
        [
            f"why clocks were held down, share of the readings: {f.throttled}",
            "SM clocks are not known"
            if isnan(f.clock_share)
            else f"the SM clock is {n(f.clock_share, '.0%')} of the highest seen in this run",
        ],
        [
            "cooling, or the rack's power (heat and slowdowns)",
            "a higher power limit (nvidia-smi -pl; more heat)",
        ],
        "the clocks are free",
    )


def bursts(f: Facts) -> Finding:
    """Requests come in clumps: they wait although the server is not full on average."""
    if not f.dispersion >= BURSTY:
        return Finding.no(
            "too few arrivals to say how evenly they come"
            if isnan(f.dispersion)
            else f"arrivals are even: variance over mean {n(f.dispersion)}"
        )
    queue = f.waiting_max >= PEAK * max(f.waiting, 1.0)
    room = f.running <= SLACK * f.running_max
    if not (queue and room):
        return Finding.no("arrivals come in clumps, but the server is full between them too")
    # in a closed loop a request comes when an answer ends: such clumps are the server's own rhythm
    return Finding(
        0.85 if f.scheduled > SCHEDULED else 0.4,
        "requests come in bursts: they queue although the server is not full on average",
        [
            f"arrivals vary {n(f.dispersion)} times as much as at random",
            f"{n(f.waiting_max, '.0f')} wait at most; {waiting(f.waiting)}",
            f"{n(f.running)} requests run on average, {n(f.running_max, '.0f')} at most",
        ],
        [
            "smooth the arrivals (a queue or a rate limit in front of the server)",
            "--max-num-seqs higher (a burst runs at once, with longer gaps)",
            "another replica",
        ],
    )


def client(f: Facts) -> Finding:
    """The load generator itself is late or has no CPU left."""
    blurred = f.instrument_share > TOLD_APART
    at_limit = f.client_cores >= CORE
    slow = f.limit_ms > 0 and f.turnaround_ms >= f.limit_ms
    if not (blurred or (at_limit and slow)):
        return Finding.no(
            "the client does not say how busy it is"
            if isnan(f.client_cores)
            else f"the client's busiest process uses {n(f.client_cores, '.2f')} cores"
        )
    return Finding(
        0.95,
        "the load generator is the limit: it reads or sends too late",
        [
            f"its busiest process uses {n(f.client_cores, '.2f')} cores",
            f"the instrument's width is {n(f.instrument_share, '.1%')} of the limit",
            f"p99 of its own delay between two requests is {ms(f.turnaround_ms)}",
        ],
        ["--processes higher", "the load generator on a machine of its own"],
    )


def network(f: Facts) -> Finding:
    """First tokens leave the server in time and arrive late."""
    outside = f.client_ttft_ms - f.ttft_ms
    share = outside / f.client_ttft_ms if f.client_ttft_ms > 0 else float("nan")
    if not f.first:
        return Finding.no("a delay on the way does not lengthen gaps")
    if not (share >= MOST and outside >= FELT * f.limit_ms):
        return Finding.no(
            "the server's own mean TTFT is not known"
            if isnan(share)
            else f"{max(share, 0):.0%} of the client's mean TTFT passes outside of the server"
        )
    if f.instrument_share > TOLD_APART:
        return Finding.no("the client itself is late: what passes outside of the server is its own")
    if f.api_cores >= API_CORE:
        return Finding.no("the API server is busy: it takes requests up late itself")
    return Finding(
        0.85,
        "first tokens are late on the way, not in the server: the network, or a proxy between",
        [
            f"the client's mean TTFT is {ms(f.client_ttft_ms)}, the server's own {ms(f.ttft_ms)}",
        ],
        [
            "a shorter path: the load generator or the users nearer to the server",
            "a proxy that does not hold back streamed events (buffering off)",
        ],
    )
