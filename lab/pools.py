"""Servers that prefill and servers that decode, in simulated time, and the best ratio of the two.

Users send a request, wait for its last token, and send again. Where prefill is apart, a request
goes to the prefilling engine with the fewest requests; its KV cache then takes its time to the
decoding engine with the fewest, which computes what is left of the prompt's last block.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.scheduler import Scheduler
from harness.engine.shapes import MODELS
from harness.units import SECOND
from lab.closed_loop import CLIENT_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Sequence as Request
    from harness.engine.scheduler import StepPlan
    from lab.closed_loop import Traffic

FIRST_WITHIN_NS: Final = 2 * SECOND  # users begin
QUANTILE: Final = 0.95


@dataclass(slots=True, eq=False)
class PoolEngine:
    """An engine of one pool."""

    engine: Scheduler
    requests: dict[int, Request] = field(default_factory=dict)
    is_stepping: bool = False
    link_free_ns: int = 0  # when it may send the next KV cache


@dataclass(frozen=True, slots=True)
class Latencies:
    """The p95s of a window, in ns."""

    ttft_ns: float
    itl_ns: float
    requests_per_s: float


class Pools:
    """`prefill` engines apart from `decode`, or with `prefill` 0 all of them together."""

    def __init__(
        self,
        config: EngineConfig,
        traffic: Traffic,
        prefill: int,
        decode: int,
        *,
        link_bytes_per_s: float,
        seed: int,
    ) -> None:
        self.now_ns = 0
        self._config = config
        self._prefill = [PoolEngine(Scheduler(config)) for _ in range(prefill)]
        self._decode = [PoolEngine(Scheduler(config)) for _ in range(decode)]
        kv_bytes = MODELS[config.model].kv_bytes_per_token
        self._transfer_ns_per_token = kv_bytes / link_bytes_per_s * SECOND
        self._lengths = traffic.lengths(seed)
        self._rng = np.random.default_rng([seed, 3])
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count()
        self._hashes = count()
        self._sent_ns: dict[int, int] = {}
        self._asked: dict[int, tuple[int, int]] = {}  # tokens of prompt and answer
        self._ttfts: list[tuple[int, int]] = []  # when, how long
        self._gaps: list[tuple[int, int, int]] = []  # when, how long, how many

    def start(self, users: int) -> None:
        for at in self._rng.random(users):
            self._at(int(at * FIRST_WITHIN_NS), self._send)

    def advance(self, until_ns: int) -> None:
        while self._events and self._events[0][0] < until_ns:
            self.now_ns, _, happen = heapq.heappop(self._events)
            happen()
        self.now_ns = until_ns

    def latencies(self, from_ns: int) -> Latencies:
        """Of what ended after an instant; infinite where nothing did."""
        ttfts = [ttft for at, ttft in self._ttfts if at >= from_ns]
        gaps = [(gap, n) for at, gap, n in self._gaps if at >= from_ns]
        if not ttfts or not gaps:
            return Latencies(np.inf, np.inf, 0.0)
        lengths, counts = np.array(sorted(gaps)).T
        rank = np.searchsorted(np.cumsum(counts), QUANTILE * counts.sum())
        ttft_ns = float(np.quantile(ttfts, QUANTILE))
        per_s = len(ttfts) / (self.now_ns - from_ns) * SECOND
        return Latencies(ttft_ns, float(lengths[rank]), per_s)

    def _at(self, at_ns: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), happen))

    def _send(self) -> None:
        number = next(self._numbers)
        prompt, output = next(self._lengths)
        self._sent_ns[number] = self.now_ns
        self._asked[number] = (prompt, output)
        if self._prefill:
            chosen = _least_busy(self._prefill)
            # Its only token is the first one, which nobody reads.
            chosen.requests[number] = chosen.engine.add(number, prompt, 1, self.now_ns)
        else:
            chosen = _least_busy(self._decode)
            chosen.requests[number] = chosen.engine.add(number, prompt, output, self.now_ns)
        self._step_if_idle(chosen)

    def _step_if_idle(self, chosen: PoolEngine) -> None:
        if not chosen.is_stepping:
            self._step(chosen)

    def _step(self, chosen: PoolEngine) -> None:
        plan = chosen.engine.step(self.now_ns)
        chosen.is_stepping = plan is not None
        if plan is not None:
            self._at(self.now_ns + plan.duration_ns, lambda: self._end_step(chosen, plan))

    def _end_step(self, chosen: PoolEngine, plan: StepPlan) -> None:
        if chosen in self._prefill:
            for request in plan.finished:
                self._hand_over(chosen, request.request_id)
        else:
            self._take_tokens(chosen, plan)
        self._step(chosen)

    def _hand_over(self, chosen: PoolEngine, number: int) -> None:
        del chosen.requests[number]
        prompt, _ = self._asked[number]
        begin_ns = max(self.now_ns, chosen.link_free_ns)
        chosen.link_free_ns = begin_ns + round(prompt * self._transfer_ns_per_token)
        self._at(chosen.link_free_ns, lambda: self._decode_it(number))

    def _decode_it(self, number: int) -> None:
        prompt, output = self._asked[number]
        chosen = _least_busy(self._decode)
        blocks = prompt // self._config.block_size
        hashes = [next(self._hashes) for _ in range(blocks)]
        kv = chosen.engine.kv
        if kv.take(blocks):  # else there is no room for it, and it is computed again
            kv.release(kv.publish(hashes))
        request = chosen.engine.add(number, prompt, output, self.now_ns, hashes)
        chosen.requests[number] = request
        self._step_if_idle(chosen)

    def _take_tokens(self, chosen: PoolEngine, plan: StepPlan) -> None:
        if plan.decoded:
            self._gaps.append((self.now_ns, plan.duration_ns, plan.decoded))
        for request in plan.first:
            if len(request.spans) == 1:  # not one that comes back after a preemption
                waited_ns = self.now_ns - self._sent_ns[request.request_id]
                self._ttfts.append((self.now_ns, waited_ns))
        for request in plan.finished:
            del chosen.requests[request.request_id]
            del self._sent_ns[request.request_id]
            del self._asked[request.request_id]
            self._at(self.now_ns + CLIENT_NS, self._send)


def _least_busy(pool: Sequence[PoolEngine]) -> PoolEngine:
    return min(pool, key=lambda one: len(one.requests))
