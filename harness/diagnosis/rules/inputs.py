"""The inputs of the rules: the level that is judged, and what is derived from its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final

from harness.metrics.metrics import WHOLE
from harness.metrics.result import Level

if TYPE_CHECKING:
    from harness.metrics.level_figures import GapFigures, GpuFigures, MaxNumSeqs, ServerFigures

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


# What stands for a level where there is none: it holds nobody, and nothing is known of it.
NO_LEVEL: Final = Level(0, 0, in_flight=0)


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """The level that is judged, and what other levels say of it; NaN: not known."""

    level: Level = NO_LEVEL
    lowest: Level = NO_LEVEL  # the lowest one held
    broken: str = ""  # metric of the SLO that is broken most: ttft, itl, ...
    limit_ms: float = nan  # of that SLO
    slots: float = nan  # max_num_seqs of all engines together
    slots_source: str = ""  # given, read or inferred
    engines: int = 1  # data-parallel ranks and replicas, each with a process of its own
    memory_kept: float = nan  # of the busy GPU's time at memory, over that at the lowest level
    clock_share: float = nan  # mean SM clock over the highest at a lower level that is as busy
    missed: float = nan  # share over the SLO's limit, over the share allowed; at most 1: it is met
    unit: str = "users"  # what the level's load is called: also sessions; of a rate, in flight
    # Whether it is of servers that only prefill: `level.server` has their figures, its gaps, GPUs
    # and late requests are not known, and nobody decodes there.
    prefills_only: bool = False

    @classmethod
    def of(
        cls,
        level: Level,
        levels: Sequence[Level],
        broken: str,
        limit_ms: float,
        max_num_seqs: MaxNumSeqs,
    ) -> VerdictInputs:
        """`levels`: all of them, for comparison."""
        lowest = min(levels, key=lambda other: other.load, default=level)
        return cls(
            level,
            lowest,
            broken=broken,
            limit_ms=limit_ms,
            slots=max_num_seqs.slots,
            slots_source=max_num_seqs.source,
            engines=max_num_seqs.engines,
            memory_kept=_over(_memory_share(level.gpu), _memory_share(lowest.gpu)),
            clock_share=_over(level.gpu.sm_clock_mhz_mean, _fastest_clock(level, levels)),
        )

    @property
    def server(self) -> ServerFigures:
        return self.level.server

    @property
    def gpu(self) -> GpuFigures:
        return self.level.gpu

    @property
    def gaps(self) -> GapFigures:
        return self.level.gaps

    @property
    def kv_max(self) -> float:
        """The fullest KV cache: of the engine that has least left, where that is known."""
        fullest = self.server.kv_usage_fullest_max
        return self.server.kv_usage_max if isnan(fullest) else fullest

    @property
    def ttft_ms(self) -> float:
        """The server's own mean, as the three below."""
        return 1e3 * self.server.ttft_mean_s

    @property
    def queue_ms(self) -> float:
        return 1e3 * self.server.queue_mean_s

    @property
    def prefill_ms(self) -> float:
        return 1e3 * self.server.prefill_mean_s

    @property
    def decode_ms(self) -> float:
        """From a request's first token to its last."""
        return 1e3 * self.server.decode_mean_s

    @property
    def api_cores(self) -> float:
        """CPU of an API server, or of one thread of a Rust one: it is full when all threads are."""
        threads = self.server.api_server_threads
        return self.server.api_server_cores / (1 if isnan(threads) else threads)

    @property
    def engine_cores(self) -> float:
        """CPU of an engine's process: the mean of several."""
        return self.server.engine_cores / self.engines

    @property
    def gpu_util(self) -> float:
        """Share of the time in which the GPU is busy."""
        return self.gpu.util_pct_mean / 100

    @property
    def client_cores(self) -> float:
        """CPU of the client's busiest process."""
        return max(self.level.client.cpu.values(), default=nan)

    @property
    def instrument_share(self) -> float:
        """The instrument's width over the limit, of the SLO where it is widest."""
        return max(self.level.client.instrument_share.values(), default=nan)

    @property
    def turnaround_ms(self) -> float:
        """p99 of the client's own delay between two requests."""
        return self.level.client.turnaround_ms.p99

    @property
    def queue_share(self) -> float:
        """Of the time that late requests wait for a first token: in the engine's queue."""
        return self._where_late_wait[0]

    @property
    def outside_share(self) -> float:
        """Of that time: outside the engine."""
        return self._where_late_wait[1]

    @property
    def _where_late_wait(self) -> tuple[float, float]:
        if self.prefills_only:
            return _where_prompts_wait(self.server)
        return _where_users_wait(self.level)

    @property
    def outside_ms(self) -> float:
        """The part of the client's mean TTFT that no server has seen."""
        if self.level.prefill is not None:  # of two servers, one after the other
            return self.level.ttft_split.residual_ms
        return self.level.ttft_ms.mean - self.ttft_ms

    @property
    def first(self) -> bool:
        """Whether the broken SLO's latency includes the queue and the prompt."""
        return self.broken in WHOLE

    @property
    def breaks(self) -> float:
        """1 if the SLO is broken, or nobody knows; else how near its latency is to the limit."""
        if isnan(self.missed):
            return 1.0
        latency_ms = self.level.ttft_ms.mean if self.first else self.gaps.p95_ms
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
        place = WAIT_OF.get(cause, "")
        share = share_of_place.get(place, nan)
        return 1.0 if isnan(share) else share

    @property
    def no_prompt_ms(self) -> float:
        """p95 of the gaps without a prompt; if unknown, the intercept of the line of all gaps."""
        alone_ms = self.gaps.alone_p95_ms
        return self.gaps.base_ms if isnan(alone_ms) else alone_ms

    @property
    def prompt_cost_ms(self) -> float:
        """What prompts add to the p95 gap, or to a gap with a prompt if these are just below 5%."""
        longest_ms = self.gaps.p95_ms
        nearly_longest = self.gaps.prompt_share >= MIN_BESIDE_SHARE
        if nearly_longest and self.gaps.beside_p50_ms > self.limit_ms > self.no_prompt_ms:
            longest_ms = max(longest_ms, self.gaps.beside_p50_ms)
        return max(longest_ms - self.no_prompt_ms, 0.0)

    @property
    def prompt_step_ms(self) -> float:
        """How long a step with a prompt is: the p95 gap, or the median gap with a prompt."""
        beside_ms = self.gaps.beside_p50_ms
        if isnan(beside_ms):
            beside_ms = 0.0
        return max(self.gaps.p95_ms, beside_ms)

    @property
    def long_steps(self) -> bool:
        """Whether a step takes so many prompt tokens that a smaller budget would cut it."""
        return _over(self.gaps.prompt_tokens_mean, self.gaps.prompt_share) > MAX_STEP_TOKENS

    @property
    def prompts_fill_steps(self) -> bool:
        """Whether prompts fill every step to the token budget, so that requests wait for it."""
        gaps = self.gaps
        if not gaps.prompt_share >= NEARLY_ALL_STEPS:
            return False
        # Each step has a prompt, and yet prompts take several: on an H200 with 512 slots `running`
        # stood at 63 for this, as 128 tokens of an answer are two steps for each prompt's two.
        if gaps.prompt_share >= EVERY_STEP and self.prefill_ms >= SPLIT_STEPS * gaps.mean_ms:
            return True
        steps_alike = gaps.p95_ms <= P95_LIKE_MEDIAN * gaps.p50_ms
        times_longer = _over(gaps.p50_ms, self.lowest.gaps.p50_ms)
        fuller = times_longer >= LONGER_STEPS or self.compute_bound
        has_queue = self.server.waiting_mean >= MIN_QUEUE_SHARE * self.server.running_mean
        short_of_slots = self.server.running_flat_share >= MIN_FLAT_SHARE and has_queue
        return (steps_alike and fuller) or (times_longer >= FAR_LONGER_STEPS and not short_of_slots)

    @property
    def memory_bound(self) -> bool:
        """Whether steps are as at the lowest level (reading memory): prompts hardly matter."""
        if self.prefills_only:
            return False
        if not isnan(self.memory_kept):
            return self.memory_kept >= MEMORY_BOUND_SHARE
        return not self.gaps.p50_ms > LONGER_STEPS * self.lowest.gaps.p50_ms

    @property
    def times_longer(self) -> float:
        """First tokens, or the p95 gap, over what they were at the lowest level."""
        if self.first:
            return _over(self.level.ttft_ms.mean, self.lowest.ttft_ms.mean)
        return _over(self.gaps.p95_ms, self.lowest.gaps.p50_ms)

    @property
    def engine_wait_ms(self) -> float:
        """The part of a gap in which the GPU waits for the engine's own process."""
        return max(1 - self.gpu_util, 0.0) * self.gaps.mean_ms

    @property
    def sent_late(self) -> bool:
        """Whether a busy API server sends late what the engine made on time."""
        return self._late(*SENT_LATE)

    @property
    def maybe_late(self) -> bool:
        """Whether it may do so."""
        return self._late(*PERHAPS_LATE)

    def _late(self, cores: float, share: float) -> bool:
        late_at_lowest = self.lowest.gaps.late_share >= share
        late = self.gaps.late_share >= share and not late_at_lowest
        return late and self.api_cores >= cores

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
        if self.prefills_only:
            return 1.0
        if isnan(self.gaps.base_ms) or not self.gaps.mean_ms > 0:
            return nan
        without_prompts = self.gaps.base_ms / self.gaps.mean_ms
        return min(max(1 - without_prompts, 0.0), 1.0)


def _memory_share(gpu: GpuFigures) -> float:
    """Share of the GPU's busy time in which it reads or writes memory."""
    return _over(gpu.memory_util_pct_mean, gpu.util_pct_mean)


def _where_prompts_wait(server: ServerFigures) -> tuple[float, float]:
    """Of the mean TTFT of a server that only prefills, the shares in its queue and its front end.

    Its requests end with their first token, so all three means are of the same requests.
    """
    engine_s = server.queue_mean_s + server.prefill_mean_s
    outside_s = max(server.ttft_mean_s - engine_s, 0.0)
    ttft_s = server.ttft_mean_s
    return _over(server.queue_mean_s, ttft_s), _over(outside_s, ttft_s)


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
