"""Continuous batching step by step, as vLLM's V1 scheduler does it, in pure integer time.

A step first serves running sequences (one token for each decoding sequence, a further chunk of each
unfinished prompt). Then it admits waiting ones in order of arrival, as long as there are slots,
token budget and KV blocks; a prompt is admitted only if all of it fits, though it is computed in
chunks. If a decoding sequence needs a block and none is free, the sequence admitted last is
preempted: its blocks are freed, and its tokens are computed again later.
"""

# Decoding sequences advance by one token per step without being visited. Their next events are
# stored by step number: `_finish` has the sequences that end with a step, `_need` those that need
# another block in it. So a step in which no sequence enters, leaves or fills a block takes the same
# time for a thousand sequences as for one. Entries are never removed: `epoch` tells whether one
# still holds. A sequence's token times are the ends of the steps in which it decoded: `spans`
# of step numbers, which index `step_ends`.

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.engine.kv import KvBlocks
from harness.engine.shapes import MODELS, Roofline, roofline
from harness.memory.cards import GPUS

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig

JITTERS: Final = 1 << 14  # precomputed random factors of step times, used in a cycle


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. Instants in ns, -1: not yet."""

    request_id: int
    prompt_tokens: int
    output_tokens: int
    arrived_ns: int
    block_hashes: Seq[int] = ()  # chained, one per full block of the prompt; () : never shared
    scheduled_ns: int = -1
    first_token_ns: int = -1
    finished_ns: int = -1
    cached_tokens: int = 0  # of the prompt, found in the prefix cache at first scheduling
    preemptions: int = 0
    spans: list[list[int]] = field(default_factory=list)  # [first step, end step) of tokens emitted
    emitted: int = 0  # in finished spans
    to_compute: int = 0  # tokens to prefill before the next one comes out
    computed: int = 0
    blocks: int = 0  # private ones
    shared: list[int] = field(default_factory=list)
    epoch: int = 0  # grows when earlier plans for the sequence become invalid
    decoding: bool = False


class StepPlan(NamedTuple):
    """One engine step of `duration_ns`, and the sequences that it concerns."""

    number: int
    duration_ns: int
    first: list[Sequence]  # prompts completed: a token comes out (again, after a preemption)
    finished: list[Sequence]
    admitted: list[Sequence]
    preempted: list[Sequence]
    prompt_tokens: int  # prefilled in this step
    decoded: int  # sequences that decode one token each: `Scheduler.decoding` before this step
    emitting: list[Sequence] | None  # all with a token, in running order (if `list_emitting`)


class Scheduler:
    """Queue, slots, KV blocks and step times of one engine."""

    def __init__(self, config: EngineConfig, *, list_emitting: bool = False) -> None:
        """`list_emitting` fills `StepPlan.emitting`, which costs time for every sequence."""
        self.config = config
        self.kv = KvBlocks(config.blocks)
        self.waiting: deque[Sequence] = deque()
        self.prefilling: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}  # admission order, prefilling ones included
        self.decode_count = 0
        self.kv_tokens = 0  # context of all decoding sequences
        self.step_number = 0
        self.step_ends = array("q")
        self.preemptions_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self._list_emitting = list_emitting
        self._finish: dict[int, list[tuple[Sequence, int]]] = defaultdict(list)
        self._need: dict[int, list[tuple[Sequence, int]]] = defaultdict(list)
        self.gpu_ns = 0  # time in which the GPU was busy
        self.memory_ns = 0  # time in which it read memory
        self.cpu_ns = 0  # CPU time of the engine process
        self._roofline = (
            Roofline(*config.measured_step)
            if config.measured_step
            else roofline(
                MODELS[config.model],
                GPUS[config.gpu],
                bandwidth_scale=config.bandwidth_scale,
                compute_scale=config.compute_scale,
            )
        )
        rng = np.random.default_rng(config.seed)
        noise = config.jitter * rng.standard_normal(JITTERS)
        factors = np.exp(noise) * config.time_scale
        self._factor: list[float] = factors.tolist()

    @property
    def kv_usage(self) -> float:
        return self.kv.used / max(self.kv.total, 1)

    def add(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens: int,
        now_ns: int,
        block_hashes: Seq[int] = (),
    ) -> Sequence:
        sequence = Sequence(request_id, prompt_tokens, output_tokens, now_ns, block_hashes)
        sequence.to_compute = prompt_tokens
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        if sequence.request_id in self.running:
            self._leave(sequence)
            sequence.spans = [span for span in sequence.spans if span[1] > span[0]]
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.epoch += 1

    def step(self, now_ns: int) -> StepPlan | None:
        """Schedule one step that starts now; return None if there is nothing to do."""
        number = self.step_number
        preempted = self._grow(number)
        budget = self.config.max_num_batched_tokens - self.decode_count
        budget, first = self._continue_prompts(budget, preempted)
        admitted: list[Sequence] = []
        # As in vLLM, a step that had to take a slot away gives none to anybody.
        if not preempted:
            budget = self._admit(budget, now_ns, admitted, first)
        tokens = self.config.max_num_batched_tokens - budget
        if tokens == 0:
            return None
        decoded = self.decode_count
        self.generation_tokens_total += decoded + len(first)
        duration = self._account(number, tokens)
        end = now_ns + duration
        self.step_ends.append(end)
        self.step_number += 1
        emitting = self._emitting(first) if self._list_emitting else None
        self.kv_tokens += decoded
        finished = self._close(number, end, first)
        return StepPlan(
            number,
            duration,
            first,
            finished,
            admitted,
            preempted,
            tokens - decoded,
            decoded,
            emitting,
        )

    def _account(self, number: int, tokens: int) -> int:
        """How long a step with so many tokens takes; whose time it is."""
        config = self.config
        line = self._roofline
        n_running = len(self.running)
        factor = self._factor[number % JITTERS]
        prompt_tokens = tokens - self.decode_count
        step_ns = line.step_ns(n_running, self.kv_tokens, tokens, prompt_tokens)
        memory_ns = line.memory_ns(self.kv_tokens)
        engine_ns = config.engine_step_ns + n_running * config.engine_sequence_ns
        gpu_ns = int(step_ns * factor)
        cpu_ns = int(engine_ns * factor)
        self.gpu_ns += gpu_ns
        self.memory_ns += int(memory_ns * factor)
        self.cpu_ns += cpu_ns
        if config.engine_spins:  # its process waits for the GPU with a busy CPU
            self.cpu_ns += gpu_ns
        return gpu_ns + cpu_ns

    def _emitting(self, first: list[Sequence]) -> list[Sequence]:
        fresh = {sequence.request_id for sequence in first}
        return [s for s in self.running.values() if s.decoding or s.request_id in fresh]

    # blocks for decoding sequences

    def _grow(self, number: int) -> list[Sequence]:
        """Allocate a block for each sequence that fills its last one; preempt if none is free."""
        preempted: list[Sequence] = []
        due = self._need.pop(number, None)
        if not due:
            return preempted
        due = [(sequence, epoch) for sequence, epoch in due if sequence.epoch == epoch]
        full_again = number + self.config.block_size
        if self.kv.take(len(due)):  # the usual case: there is room for all at once
            for sequence, _ in due:
                sequence.blocks += 1
            self._need[full_again] += due
            return preempted
        for sequence, epoch in due:
            # The victim may be the sequence itself, or one that is due later: its epoch tells.
            while sequence.epoch == epoch and not self.kv.take(1):
                victim = next(reversed(self.running.values()))
                self._preempt(victim)
                preempted.append(victim)
            if sequence.epoch == epoch:
                sequence.blocks += 1
                self._need[full_again].append((sequence, epoch))
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.epoch += 1
        sequence.preemptions += 1
        self.preemptions_total += 1
        sequence.to_compute = sequence.prompt_tokens + sequence.emitted
        sequence.computed = 0
        # At the head of the queue, as in vLLM.
        self.waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch: its slot, its blocks, its share of the context."""
        del self.running[sequence.request_id]
        self.prefilling.pop(sequence.request_id, None)
        if sequence.decoding:
            span = sequence.spans[-1]
            # It emits nothing in the step that is being scheduled.
            span[1] = min(span[1], self.step_number)
            sequence.emitted += span[1] - span[0]
            self.decode_count -= 1
            self.kv_tokens -= sequence.prompt_tokens + sequence.emitted
            sequence.decoding = False
        self.kv.give(sequence.blocks)
        self.kv.release(sequence.shared)
        sequence.blocks = 0
        sequence.shared = []

    # prompts

    def _continue_prompts(
        self, budget: int, preempted: list[Sequence]
    ) -> tuple[int, list[Sequence]]:
        first: list[Sequence] = []
        if not self.prefilling:
            return budget, first
        for sequence in list(self.prefilling.values()):
            if budget <= 0:
                break
            if sequence.request_id not in self.prefilling:
                continue  # preempted for an earlier one just now
            chunk = min(budget, sequence.to_compute - sequence.computed)
            while not self._reserve(sequence, chunk):
                victim = next(reversed(self.running.values()))
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    chunk = 0
                    break
            budget -= chunk
            if chunk:
                self._compute(sequence, chunk, first)
        # A prompt that was completed may have been preempted for a later one, in the same step.
        return budget, [s for s in first if s.request_id in self.running]

    def _admit(
        self, budget: int, now_ns: int, admitted: list[Sequence], first: list[Sequence]
    ) -> int:
        config = self.config
        while self.waiting and budget > 0 and len(self.running) < config.max_num_seqs:
            sequence = self.waiting[0]
            hits = self._lookup(sequence)
            known = self._known_tokens(sequence, hits)
            chunk = sequence.to_compute - known
            if chunk > budget:
                # Those behind it wait as well, though they may fit: vLLM keeps the order.
                if not config.enable_chunked_prefill:
                    break
                chunk = budget
            prefix = list(sequence.block_hashes[:hits])
            # Before room is looked for: else making room could evict the prefix itself.
            self.kv.share(prefix)
            sequence.shared = prefix
            sequence.computed = known
            # All of the prompt must fit, and only the chunk's blocks are taken now.
            if not (self._fits(sequence) and self._reserve(sequence, chunk)):
                self.kv.release(prefix)
                sequence.shared = []
                sequence.computed = 0
                break
            self.waiting.popleft()
            if sequence.scheduled_ns < 0:
                sequence.scheduled_ns = now_ns
                sequence.cached_tokens = sequence.computed
                if config.enable_prefix_caching:  # vLLM keeps preempted requests out of these
                    self.prefix_queries_total += sequence.prompt_tokens
                    self.prefix_hits_total += sequence.computed
            self.running[sequence.request_id] = sequence
            self.prefilling[sequence.request_id] = sequence
            admitted.append(sequence)
            budget -= chunk
            self._compute(sequence, chunk, first)
        return budget

    def _known_tokens(self, sequence: Sequence, hits: int) -> int:
        """How many of its tokens need not be computed here; `hits`: blocks in the prefix cache."""
        # What it has emitted itself was computed here and nowhere else.
        is_elsewhere = self.config.prompts_elsewhere and sequence.request_id % 2 == 1
        if is_elsewhere and not sequence.emitted:
            return sequence.to_compute - 1  # the last one always is: the first token comes of it
        return hits * self.config.block_size

    def _lookup(self, sequence: Sequence) -> int:
        """Return the number of cached leading blocks; at least one token is always computed."""
        if not (self.config.enable_prefix_caching and sequence.block_hashes):
            return 0
        max_hits = (sequence.to_compute - 1) // self.config.block_size
        return min(self.kv.find(sequence.block_hashes), max_hits)

    def _fits(self, sequence: Sequence) -> bool:
        # vLLM's `scheduler_reserve_full_isl`, on by default: the whole prompt must fit
        return self._missing(sequence, sequence.to_compute) <= self.kv.available

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        """Return the number of blocks that a sequence still needs for `tokens` tokens."""
        need = -(-tokens // self.config.block_size)
        return need - sequence.blocks - len(sequence.shared)

    def _reserve(self, sequence: Sequence, chunk: int) -> bool:
        more = self._missing(sequence, sequence.computed + chunk)
        if more > 0:
            if not self.kv.take(more):
                return False
            sequence.blocks += more
        return True

    def _compute(self, sequence: Sequence, chunk: int, first: list[Sequence]) -> None:
        sequence.computed += chunk
        if sequence.computed == sequence.to_compute:
            del self.prefilling[sequence.request_id]
            first.append(sequence)

    # the step's end

    def _close(self, number: int, end: int, first: list[Sequence]) -> list[Sequence]:
        """Return the sequences that end with this step; plan those that begin to decode."""
        finished = []
        for sequence, epoch in self._finish.pop(number, ()):
            if sequence.epoch == epoch:
                finished.append(sequence)
        for sequence in first:
            if sequence.first_token_ns < 0:
                sequence.first_token_ns = end
                self.prompt_tokens_total += sequence.prompt_tokens  # cached ones too, as vLLM
            self._share_prompt(sequence)
            left = sequence.output_tokens - sequence.emitted
            sequence.spans.append([number, number + left])
            context = sequence.prompt_tokens + sequence.emitted + 1
            sequence.decoding = True
            self.decode_count += 1
            self.kv_tokens += context
            if left == 1:
                finished.append(sequence)
                continue
            entry = (sequence, sequence.epoch)
            last_step = number + left - 1
            self._finish[last_step].append(entry)
            # the next step stores token `context`; a block opens when (context - 1) fills the last
            offset = (-(context - 1)) % self.config.block_size
            full_step = number + 1 + offset
            self._need[full_step].append(entry)
        for sequence in finished:
            sequence.epoch += 1
            sequence.finished_ns = end
            self._leave(sequence)
        return finished

    def _share_prompt(self, sequence: Sequence) -> None:
        """Cache the full blocks of the prompt, for other requests to find."""
        if self.config.enable_prefix_caching and sequence.block_hashes:
            n_shared = len(sequence.shared)
            new = self.kv.publish(sequence.block_hashes[n_shared:])
            sequence.blocks -= len(new)
            sequence.shared.extend(new)
