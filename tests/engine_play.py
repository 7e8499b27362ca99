"""Play requests through the scheduler, looking after every step at what must always hold."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from harness.engine.config import EngineConfig
from harness.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from harness.engine import scheduler
    from harness.engine.scheduler import StepPlan


class Ask(NamedTuple):
    """A request: it arrives before this step (or later, when the engine is idle)."""

    step: int
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


def small(**options: Any) -> EngineConfig:
    """A small engine: 4 seats, 32 tokens a step, 64 blocks of 4 tokens, no jitter."""
    least = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 32,
        "block_size": 4,
        "num_gpu_blocks": 64,
        "jitter": 0.0,
    }
    return EngineConfig(**(least | options))


class Game:
    """A scheduler, what was asked of it, and every step that it made."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Scheduler(config, list_emitting=True)
        self.sequences: list[scheduler.Sequence] = []
        self.plans: list[StepPlan] = []
        self.now_ns = 0

    def add(self, ask: Ask) -> scheduler.Sequence:
        """Queue it."""
        number = len(self.sequences)
        one = self.engine.add(number, ask.prompt, ask.output, self.now_ns, ask.hashes)
        self.sequences.append(one)
        return one

    def step(self) -> StepPlan | None:
        """One step, and the rules after it."""
        plan = self.engine.step(self.now_ns)
        if plan is not None:
            self.now_ns += plan.duration_ns
            self.plans.append(plan)
        self.check(plan)
        return plan

    def check(self, plan: StepPlan | None) -> None:
        """What holds after every step."""
        engine = self.engine
        config = self.engine.config
        running = list(engine.running.values())
        assert plan is not None or not (running or engine.waiting)
        private = sum(s.blocks for s in running)
        shared = len(set(chain.from_iterable(s.shared for s in running)))
        assert engine.kv.used == private + shared <= engine.kv.total
        assert len(running) <= config.max_num_seqs
        order = [s.request_id for s in chain(running, engine.waiting)]
        assert order == sorted(order)  # first come, first served, preempted ones included
        decoding = [s for s in running if s.decoding]
        contexts = [context(engine, s) for s in decoding]
        assert engine.decode_count == len(decoding)
        assert engine.kv_tokens == sum(contexts)
        for s, tokens in zip(decoding, contexts, strict=True):
            # the newest token is computed, and stored, in the next step
            assert s.blocks + len(s.shared) == -(-(tokens - 1) // config.block_size)
        if plan is not None:
            assert plan.decoded + plan.prompt_tokens <= config.max_num_batched_tokens

    def play(self, asks: Iterable[Ask], aborts: Mapping[int, int] | None = None) -> Game:
        """To the end; `aborts`: step -> number of a request that is given up before it."""
        coming = sorted(asks, key=lambda ask: ask.step)
        for turn in range(100_000):
            while coming and (coming[0].step <= turn or not self.busy):
                self.add(coming.pop(0))
            gone = (aborts or {}).get(turn, -1)
            if 0 <= gone < len(self.sequences):
                self.engine.abort(self.sequences[gone])
            if self.step() is None and not coming:
                break
        return self

    @property
    def busy(self) -> bool:
        """Something to do."""
        return bool(self.engine.running or self.engine.waiting)


def context(engine: Scheduler, sequence: scheduler.Sequence) -> int:
    """Prompt and all tokens that came out of a decoding sequence."""
    since = engine.step_number - sequence.spans[-1][0]
    return sequence.prompt_tokens + sequence.emitted + since


def emitted(sequence: scheduler.Sequence) -> int:
    """Tokens that came out, by the steps they came out in."""
    return sum(end - first for first, end in sequence.spans)


def seen(plans: Sequence[StepPlan], request_id: int) -> int:
    """Tokens that came out, by what every step said."""
    return sum(s.request_id == request_id for plan in plans for s in plan.emitting or ())
