"""The inputs of the rules: figures of one level, and what is derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.metrics.metrics import WHOLE

if TYPE_CHECKING:
    from harness.metrics.level_figures import GapFigures, GpuFigures, MaxNumSeqs, ServerFigures
    from harness.metrics.result import Level

# Prompt tokens of a step that has any. H200 with a budget of 16,384: 5,900, and a budget of 2,048
# tripled its knee; simulated engines: 1,650 at most.
MAX_STEP_TOKENS: Final = 2560
AS_BUSY: Final = 0.9  # of the GPU's utilization: a lower level is as busy
# (cores, share of events sent late) at which the API server itself is late. Simulated ones are late
# from a quarter of a core on; four of an H200 at 0.4 each were on time.
SENT_LATE: Final = (0.5, 0.02)
PERHAPS_LATE: Final = (0.25, 0.01)
API_BUSY: Final = 0.5  # cores of an API server; with less, nothing waits for it
API_FULL: Final = 0.85  # no CPU left: it accepts requests late, whatever the network
# Where requests wait for a first token; no place: anywhere.
WAIT_OF: Final = {
    "network": "api",
    "front end": "api",
    "KV cache capacity": "queue",
    "batch slots": "queue",
    "engine process": "engine",
    "prefill compute": "engine",
    "prefill-decode interference": "engine",
}
# Prompts fill every step to the token budget if nearly all steps have one, and either (1) the p95
# gap is hardly above the median and gaps are longer than at the lowest level, or (2) gaps are far
# longer, however they vary, and `running` is not flat because of a slot.
NEARLY_ALL_STEPS: Final = 0.9
EVERY_STEP: Final = 0.99
SPLIT_STEPS: Final = 2.0  # steps of a prompt; at most 1.3 in simulated engines short of slots
P95_LIKE_MEDIAN: Final = 1.25
LONGER_STEPS: Final = 1.5  # times a gap at the lowest level
FAR_LONGER_STEPS: Final = 4.0
MIN_QUEUE_SHARE: Final = 0.05  # mean waiting over mean running
MIN_FLAT_SHARE: Final = 0.9  # of the readings with waiting requests are near the maximum
# Of the gaps have a prompt: the next users bring them to the longest 5 %.
MIN_BESIDE_SHARE: Final = 0.03
# Share of the GPU's busy time spent on memory, relative to the lowest level. Near 1: decoding still
# reads memory all the time. Low: prompts compute instead.
MEMORY_BOUND_SHARE: Final = 0.75
COMPUTE_BOUND_SHARE: Final = 0.65


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """Figures of the level that is judged; NaN: not known. Times in ms, CPU in cores."""

    users: float = 0  # requests in flight
    seconds: float = 0.0
    broken: str = ""  # metric of the SLO that is broken most: ttft, itl, ...
    limit_ms: float = nan  # of that SLO
    slots: float = nan  # max_num_seqs of all engines together
    slots_source: str = ""  # given, read or inferred
    samples: float = 0
    running: float = nan
    running_max: float = nan
    running_flat: float = nan  # share of the readings with waiting requests that are near the most
    waiting: float = nan
    waiting_max: float = nan
    capacity: float = nan  # of those waiting: for a slot or blocks
    kv_max: float = nan
    preemptions: float = nan
    ttft_ms: float = nan  # means, the server's own
    queue_ms: float = nan
    prefill_ms: float = nan
    decode_ms: float = nan  # from a request's first token to its last
    api_cores: float = nan  # of an API server, or of one thread of a Rust one
    api_threads: float = nan  # of a Rust one
    engine_cores: float = nan
    gpu_util: float = nan  # share of the time
    memory_kept: float = nan  # of the busy GPU's time at memory, over that at the lowest level
    throttle: float = nan  # share of the readings in which something held the clocks down
    throttled: str = ""  # what did, in words
    clock_share: float = nan  # mean SM clock over the highest at a lower level that is as busy
    client_ttft_ms: float = nan  # mean
    client_cores: float = nan  # of its busiest process
    instrument_share: float = nan  # the instrument's width over the limit
    turnaround_ms: float = nan  # p99 of the client's own delay between two requests
    gap_p50_ms: float = nan
    gap_p95_ms: float = nan
    gap_mean_ms: float = nan
    alone_p95_ms: float = nan  # gaps without a prompt in the same engine step
    beside_p50_ms: float = nan  # and those with one
    beside_share: float = nan  # share of the gaps that had a prompt in their step,
    longest_beside_share: float = nan  # and of the longest 5 %
    late_share: float = nan  # of the events: made on time, sent late,
    low_late_share: float = nan  # and at the lowest level held
    base_ms: float = nan  # a gap with no prompt token, from the line through all
    slope_ms: float = nan  # cost of 1,000 prompt tokens
    prompt_tokens: float = nan  # a step, on average
    queue_share: float = nan  # of the time that late requests wait for a first token: in the queue,
    outside_share: float = nan  # and outside the engine (`LateSplit`)
    dispersion: float = nan  # of arrivals,
    scheduled: float = nan  # and the share of them that a schedule sent, not an answer's end
    low_users: float = nan  # in flight at the lowest level held, and its median gap
    low_gap_ms: float = nan
    low_ttft_ms: float = nan  # and the client's mean TTFT there
    missed: float = nan  # share over the SLO's limit, over the share allowed; at most 1: it is met
    unit: str = "users"  # what `users` are called: also sessions; of a rate, in flight

    @classmethod
    def of(
        cls,
        level: Level,
        levels: Sequence[Level],
        broken: str,
        limit_ms: float,
        max_num_seqs: MaxNumSeqs,
    ) -> VerdictInputs:
        """Facts of `level`; `levels` has all of them, for comparison."""
        lowest = min(levels, key=lambda other: other.load, default=level)
        queue_share, outside_share = _where_users_wait(level)
        return cls(
            users=level.concurrency,
            seconds=level.seconds,
            broken=broken,
            limit_ms=limit_ms,
            slots=max_num_seqs.slots,
            slots_source=max_num_seqs.source,
            queue_share=queue_share,
            outside_share=outside_share,
            dispersion=level.arrivals.dispersion,
            scheduled=level.arrivals.scheduled,
            low_users=lowest.concurrency,
            low_gap_ms=lowest.gaps.p50_ms,
            low_ttft_ms=lowest.ttft_ms.mean,
            low_late_share=lowest.gaps.late_share,
            memory_kept=_over(_memory_share(level.gpu), _memory_share(lowest.gpu)),
            clock_share=_over(level.gpu.sm_clock_mhz_mean, _fastest_clock(level, levels)),
            **_server_inputs(level.server),
            **_gpu_inputs(level.gpu),
            **_client_inputs(level),
            **_gap_inputs(level.gaps),
        )

    @property
    def first(self) -> bool:
        """Whether the broken SLO's latency includes the queue and the prompt."""
        return self.broken in WHOLE

    @property
    def breaks(self) -> float:
        """1 if the SLO is broken, or nobody knows; else how near its latency is to the limit."""
        if isnan(self.missed):
            return 1.0
        latency_ms = self.client_ttft_ms if self.first else self.gap_p95_ms
        return min(max(self.missed, latency_ms / self.limit_ms), 1.0)

    def part_in_wait(self, cause: str) -> float:
        """Share of the time that late requests wait for a first token where a cause makes them.

        1: not known. A request that arrives during a step is outside of the engine until the step
        ends, so only an API server that is busy counts as another place.
        """
        if not self.first or not self.api_cores >= API_BUSY:
            return 1.0
        share_of_place = {
            "queue": self.queue_share,
            "api": self.outside_share,
            "engine": 1 - self.outside_share,
        }
        share = share_of_place.get(WAIT_OF.get(cause, ""), nan)
        return 1.0 if isnan(share) else share

    @property
    def no_prompt_ms(self) -> float:
        """p95 of the gaps without a prompt; if unknown, the intercept of the line of all gaps."""
        return self.base_ms if isnan(self.alone_p95_ms) else self.alone_p95_ms

    @property
    def prompt_cost_ms(self) -> float:
        """What prompts add to the p95 gap, or to a gap with a prompt if these are just below 5%."""
        longest_ms = self.gap_p95_ms
        nearly_longest = self.beside_share >= MIN_BESIDE_SHARE
        if nearly_longest and self.beside_p50_ms > self.limit_ms > self.no_prompt_ms:
            longest_ms = max(longest_ms, self.beside_p50_ms)
        return max(longest_ms - self.no_prompt_ms, 0.0)

    @property
    def prompt_step_ms(self) -> float:
        """How long a step with a prompt is: the p95 gap, or the median gap with a prompt."""
        return max(self.gap_p95_ms, 0.0 if isnan(self.beside_p50_ms) else self.beside_p50_ms)

    @property
    def long_steps(self) -> bool:
        """Whether a step takes so many prompt tokens that a smaller budget would cut it."""
        return _over(self.prompt_tokens, self.beside_share) > MAX_STEP_TOKENS

    @property
    def prompts_fill_steps(self) -> bool:
        """Whether prompts fill every step to the token budget, so that requests wait for it."""
        if not self.beside_share >= NEARLY_ALL_STEPS:
            return False
        # Each step has a prompt, and yet prompts take several: on an H200 with 512 slots `running`
        # stood at 63 for this, as 128 tokens of an answer are two steps for each prompt's two.
        if self.beside_share >= EVERY_STEP and self.prefill_ms >= SPLIT_STEPS * self.gap_mean_ms:
            return True
        steps_alike = self.gap_p95_ms <= P95_LIKE_MEDIAN * self.gap_p50_ms
        times_longer = _over(self.gap_p50_ms, self.low_gap_ms)
        fuller = times_longer >= LONGER_STEPS or self.compute_bound
        has_queue = self.waiting >= MIN_QUEUE_SHARE * self.running
        short_of_slots = self.running_flat >= MIN_FLAT_SHARE and has_queue
        return (steps_alike and fuller) or (times_longer >= FAR_LONGER_STEPS and not short_of_slots)

    @property
    def memory_bound(self) -> bool:
        """Whether steps are as at the lowest level (reading memory): prompts hardly matter."""
        if not isnan(self.memory_kept):
            return self.memory_kept >= MEMORY_BOUND_SHARE
        return not self.gap_p50_ms > LONGER_STEPS * self.low_gap_ms

    @property
    def times_longer(self) -> float:
        """First tokens, or the p95 gap, over what they were at the lowest level."""
        if self.first:
            return _over(self.client_ttft_ms, self.low_ttft_ms)
        return _over(self.gap_p95_ms, self.low_gap_ms)

    @property
    def engine_wait_ms(self) -> float:
        """The part of a gap in which the GPU waits for the engine's own process."""
        return max(1 - self.gpu_util, 0.0) * self.gap_mean_ms

    @property
    def sent_late(self) -> bool:
        """Whether a busy API server sends late what the engine made on time."""
        return self._late(*SENT_LATE)

    @property
    def maybe_late(self) -> bool:
        """Whether it may do so."""
        return self._late(*PERHAPS_LATE)

    def _late(self, cores: float, share: float) -> bool:
        later_than_at_lowest = self.late_share >= share and not self.low_late_share >= share
        return later_than_at_lowest and self.api_cores >= cores

    @property
    def decode_limits(self) -> float:
        """How long a request decodes, as a multiple of the limit for its first token."""
        return self.decode_ms / self.limit_ms if self.limit_ms > 0 else nan

    @property
    def compute_bound(self) -> bool:
        """Whether the GPU computes instead of reading memory as at the lowest level."""
        return self.memory_kept < COMPUTE_BOUND_SHARE

    @property
    def prompt_part(self) -> float:
        """Mean share of an engine step that its prompts take, estimated from the gaps."""
        if isnan(self.base_ms) or not self.gap_mean_ms > 0:
            return nan
        return min(max(1 - self.base_ms / self.gap_mean_ms, 0.0), 1.0)


def _server_inputs(server: ServerFigures) -> dict[str, Any]:
    kv_max = server.kv_usage_fullest_max  # of the engine that has least left, where that is known
    if isnan(kv_max):
        kv_max = server.kv_usage_max
    # of one thread: a Rust front end has no CPU left when all of its threads are busy
    threads = server.api_server_threads
    api_cores = server.api_server_cores / (1 if isnan(threads) else threads)
    return {
        "samples": server.samples,
        "running": server.running_mean,
        "running_max": server.running_max,
        "running_flat": server.running_flat_share,
        "waiting": server.waiting_mean,
        "waiting_max": server.waiting_max,
        "capacity": server.waiting_capacity_mean,
        "kv_max": kv_max,
        "preemptions": server.preemptions,
        "ttft_ms": 1e3 * server.ttft_mean_s,
        "queue_ms": 1e3 * server.queue_mean_s,
        "prefill_ms": 1e3 * server.prefill_mean_s,
        "decode_ms": 1e3 * server.decode_mean_s,
        "api_cores": api_cores,
        "api_threads": threads,
        "engine_cores": server.engine_cores,
    }


def _gpu_inputs(gpu: GpuFigures) -> dict[str, Any]:
    return {
        "gpu_util": gpu.util_pct_mean / 100,
        "throttle": gpu.throttled_share,
        "throttled": gpu.throttled,
    }


def _client_inputs(level: Level) -> dict[str, Any]:
    client = level.client
    return {
        "client_ttft_ms": level.ttft_ms.mean,
        "client_cores": max(client.cpu.values(), default=nan),
        "instrument_share": max(client.instrument_share.values(), default=nan),
        "turnaround_ms": client.turnaround_ms.p99,
    }


def _gap_inputs(gaps: GapFigures) -> dict[str, Any]:
    return {
        "gap_p50_ms": gaps.p50_ms,
        "gap_p95_ms": gaps.p95_ms,
        "gap_mean_ms": gaps.mean_ms,
        "alone_p95_ms": gaps.alone_p95_ms,
        "beside_p50_ms": gaps.beside_p50_ms,
        "beside_share": gaps.prompt_share,
        "longest_beside_share": gaps.longest_prompt_share,
        "late_share": gaps.late_share,
        "base_ms": gaps.base_ms,
        "slope_ms": gaps.slope_ms,
        "prompt_tokens": gaps.prompt_tokens_mean,
    }


def _memory_share(gpu: GpuFigures) -> float:
    """Share of the GPU's busy time in which it reads or writes memory."""
    return _over(gpu.memory_util_pct_mean, gpu.util_pct_mean)


def _where_users_wait(level: Level) -> tuple[float, float]:
    """Of those without a token, the shares in the engine's queue and outside the engine."""
    if not isnan(level.late.outside):
        return level.late.queue, level.late.outside
    # Without the requests themselves: users are running, waiting, or outside the engine.
    not_running = max(level.concurrency - level.server.running_mean, 0.0)
    queue_share = min(_over(level.server.waiting_mean, not_running), 1.0)
    return queue_share, 1 - queue_share


def _fastest_clock(level: Level, levels: Sequence[Level]) -> float:
    """The fastest mean clock of the lower levels at which the GPUs were as busy, MHz."""
    min_util_pct = AS_BUSY * level.gpu.util_pct_mean
    lower = [other.gpu for other in levels if other.load < level.load]
    clocks_mhz = [gpu.sm_clock_mhz_mean for gpu in lower if gpu.util_pct_mean >= min_util_pct]
    return max((clock for clock in clocks_mhz if not isnan(clock)), default=nan)


def _over(value: float, reference: float) -> float:
    return value / reference if reference > 0 else nan
