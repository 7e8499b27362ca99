"""Runs the scheduler in real time: tokens are sent when the clock reaches the end of their step."""

# The engine does not wait for the front end: while the tokens of a step are being sent, the next
# step is already running. If the front end falls behind by whole steps, their tokens are sent
# merged, as vLLM does. Only if it is late by more than BEHIND_NS is the plan postponed, and the
# time lost is reported.

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from harness.engine.scheduler import Scheduler, Sequence, StepPlan
from harness.engine.shapes import MODELS
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.engine.completion import TokenSender
    from harness.engine.config import EngineConfig
    from harness.engine.engine_metrics import EngineMetrics

BEHIND_NS: Final = 1_000_000_000
LINK_BYTES_PER_S: Final = 50e9  # between two servers: 400 Gbit/s


class Player:
    """`due_ns` says when to call `play` next."""

    def __init__(self, config: EngineConfig, figures: EngineMetrics) -> None:
        self.engine = Scheduler(config, list_emitting=True)
        self.figures = figures
        self._front_ns = config.front_end_ns
        kv_bytes = MODELS[config.model].kv_bytes_per_token
        self._transfer_ns_per_token = kv_bytes / LINK_BYTES_PER_S * SECOND
        self._fetched: set[int] = set()  # requests whose KV cache comes from elsewhere
        # a heap: (due, number, listener, prompt tokens, output tokens, hashes)
        self._coming: list[tuple[int, int, TokenSender, int, int, list[int]]] = []
        self._listeners: dict[int, TokenSender] = {}
        self._sequences: dict[int, Sequence] = {}
        self._plan: StepPlan | None = None
        self._end_ns = 0
        self._previous_end_ns = 0
        self._count = 0

    def submit(
        self,
        listener: TokenSender,
        prompt_tokens: int,
        output_tokens: int,
        hashes: list[int],
        *,
        fetches_kv: bool = False,
    ) -> int:
        """`fetches_kv`: the prompt was prefilled elsewhere, and its KV cache comes first."""
        self._count += 1
        due_ns = listener.received_ns + self._front_ns
        if fetches_kv:
            due_ns += round(prompt_tokens * self._transfer_ns_per_token)
            self._fetched.add(self._count)
        # The number decides between two that are due at once: listeners cannot be compared.
        coming = (due_ns, self._count, listener, prompt_tokens, output_tokens, hashes)
        heapq.heappush(self._coming, coming)
        self._listeners[self._count] = listener
        return self._count

    def abort(self, number: int) -> None:
        if self._listeners.pop(number, None) is None:
            return
        self.figures.finished["abort"] += 1
        self._fetched.discard(number)
        sequence = self._sequences.pop(number, None)
        if sequence is None:
            self._coming = [entry for entry in self._coming if entry[1] != number]
            heapq.heapify(self._coming)
        else:
            self.engine.abort(sequence)

    def due_ns(self) -> int:
        """Return when something happens next; -1: nothing is planned."""
        coming = self._coming[0][0] if self._coming else -1
        # Who comes while a step runs waits for its end, as in vLLM.
        return coming if self._plan is None else self._end_ns

    def play(self, now_ns: int) -> None:
        """Catch up with the clock; pass tokens to their listeners."""
        if self._plan is not None and now_ns - self._end_ns > BEHIND_NS:
            self._give_up(self._plan, now_ns)
        while True:
            if self._plan is not None:
                if self._end_ns > now_ns:
                    return
                self.figures.observe_lateness(now_ns - self._end_ns)
                self._finish_step(self._plan)
                # Where the last step ended, not where that was noticed: lateness does not add up.
                start = self._end_ns
                self._admit(start)
            else:
                start = now_ns
                self._admit(now_ns)
            self._plan = self.engine.step(start)
            if self._plan is None:
                if not self._coming or self._coming[0][0] > now_ns:
                    return
                continue
            self._end_ns = start + self._plan.duration_ns

    def _give_up(self, plan: StepPlan, now_ns: int) -> None:
        """End the step now instead of as planned, for all its sequences, to stay consistent."""
        self.figures.lost_ns += now_ns - self._end_ns
        self._end_ns = now_ns
        self.engine.step_ends[plan.number] = now_ns
        for sequence in plan.first:
            if len(sequence.spans) == 1:  # it had no token before
                sequence.first_token_ns = now_ns
        for sequence in plan.finished:
            sequence.finished_ns = now_ns

    def _admit(self, until_ns: int) -> None:
        while self._coming and self._coming[0][0] <= until_ns:
            due_ns, number, _, prompt, output, hashes = heapq.heappop(self._coming)
            if number in self._fetched:
                self._fetched.remove(number)
                self._take_in(hashes)
            sequence = self.engine.add(number, prompt, output, due_ns, hashes)
            self._sequences[number] = sequence

    def _take_in(self, hashes: list[int]) -> None:
        """Find a prompt's KV cache as if it had been computed here, if there is room for it."""
        kv = self.engine.kv
        missing = len(hashes) - kv.find(hashes)
        if kv.take(missing):
            fetched = kv.publish(hashes)
            kv.give(missing - len(fetched))
            kv.release(fetched)

    def _finish_step(self, plan: StepPlan) -> None:
        self._plan = None
        end_ns = self._end_ns
        if plan.decoded and self._previous_end_ns:
            self.figures.gap.observe_ns(end_ns - self._previous_end_ns, plan.decoded)
        self._previous_end_ns = end_ns
        for sequence in plan.first:
            self._take_first_token(sequence, end_ns)
        if tokens := step_token_count(plan):
            self.figures.step_tokens.observe(tokens)
        finished = {sequence.request_id for sequence in plan.finished}
        listeners = self._listeners
        for sequence in plan.emitting or ():
            number = sequence.request_id
            listener = listeners.get(number)
            if listener is None:
                continue
            is_last = number in finished
            if is_last:
                self.figures.finish(sequence, listener.received_ns)
                del listeners[number]
                del self._sequences[number]
            listener.emitted(1, finished=is_last)

    def _take_first_token(self, sequence: Sequence, end_ns: int) -> None:
        """Its prompt is computed, perhaps once more after a preemption."""
        if len(sequence.spans) > 1:  # it had been preempted: one more gap
            last_step = sequence.spans[-2][1] - 1
            self.figures.gap.observe_ns(end_ns - self.engine.step_ends[last_step])
            return
        listener = self._listeners.get(sequence.request_id)
        if listener is not None:
            self.figures.ttft.observe_ns(end_ns - listener.received_ns)
            listener.on_prefilled(sequence.cached_tokens)


def step_token_count(plan: StepPlan) -> int:
    """Return the tokens of a step as vLLM counts them: a prompt's in the step that completes it."""
    prompt_tokens = 0
    for sequence in plan.first:
        is_new = len(sequence.spans) == 1  # else it comes back after a preemption
        if is_new:
            prompt_tokens += sequence.prompt_tokens - sequence.cached_tokens
    return prompt_tokens + len(plan.first) + plan.decoded


class PacedPlayer(Player):
    """No engine: each stream gets its first token after `first_ns`, then one every `pace_ns`.

    For checks of the measurement itself: the expected result is known without a model.
    """

    def __init__(
        self, config: EngineConfig, figures: EngineMetrics, first_ns: int, pace_ns: int
    ) -> None:
        super().__init__(config, figures)
        self._first_ns = first_ns
        self._pace_ns = pace_ns
        self._due: list[tuple[int, int, int]] = []  # (due, number, tokens left)

    def submit(
        self,
        listener: TokenSender,
        prompt_tokens: int,
        output_tokens: int,
        hashes: list[int],  # noqa: ARG002 - Player's signature
        *,
        fetches_kv: bool = False,  # noqa: ARG002 - as above
    ) -> int:
        self._count += 1
        self._listeners[self._count] = listener
        self.engine.prompt_tokens_total += prompt_tokens
        self.figures.running += 1
        due = listener.received_ns + self._first_ns
        heapq.heappush(self._due, (due, self._count, output_tokens))
        return self._count

    def abort(self, number: int) -> None:
        """Its tokens are dropped as they come due."""
        if self._listeners.pop(number, None) is not None:
            self._over("abort")

    def _over(self, reason: str) -> None:
        self.figures.running -= 1
        self.figures.finished[reason] += 1

    def due_ns(self) -> int:
        return self._due[0][0] if self._due else -1

    def play(self, now_ns: int) -> None:
        """Pass on due tokens; a late token does not delay the next ones: the phase is kept."""
        if self._due and self._due[0][0] <= now_ns:
            self.figures.observe_lateness(now_ns - self._due[0][0])
        while self._due and self._due[0][0] <= now_ns:
            due, number, left = self._due[0]
            listener = self._listeners.get(number)
            if listener is None:
                heapq.heappop(self._due)
                continue
            self.engine.generation_tokens_total += 1
            if left > 1:
                next_due_ns = due + self._pace_ns
                heapq.heapreplace(self._due, (next_due_ns, number, left - 1))
            else:
                heapq.heappop(self._due)
                del self._listeners[number]
                self._over("length")
            listener.emitted(1, finished=left <= 1)
