"""The scheduler step by step: counts that must hold for any load, and small cases by hand."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from engine_play import Ask, Game, emitted, seen, small
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.scheduler import Scheduler, Sequence
from harness.engine.shapes import MODELS, Roofline, roofline
from harness.memory.cards import GPUS


def family_hashes(family: int) -> tuple[int, ...]:
    """Blocks of one of three families of prompts; family 0 has none. The same number, one block."""
    return tuple(range(10 * family, 10 * family + 5)) if family else ()


def with_full_blocks(asks: list[Ask]) -> list[Ask]:
    """Only as many hashes as the prompt fills blocks of 4."""
    return [ask._replace(hashes=ask.hashes[: ask.prompt // 4]) for ask in asks]


ASK = st.builds(
    Ask,
    step=st.integers(0, 30),
    prompt=st.integers(1, 20),
    output=st.integers(1, 12),
    hashes=st.integers(0, 3).map(family_hashes),
)
ASKS = st.lists(ASK, max_size=14).map(with_full_blocks)
ENGINES = st.fixed_dictionaries(
    {
        "num_gpu_blocks": st.sampled_from([8, 9, 13, 64]),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 9, 32]),
        "enable_prefix_caching": st.booleans(),
        "jitter": st.sampled_from([0.0, 0.1]),
    }
)


@given(ASKS, ENGINES, st.dictionaries(st.integers(0, 30), st.integers(0, 13), max_size=4))
def test_any_load(asks: list[Ask], options: dict[str, Any], aborts: dict[int, int]) -> None:
    """Each request has exactly its tokens, each time as said; at the end nothing is held."""
    game = Game(small(**options)).play(asks, aborts)
    engine = game.engine
    assert engine.kv.used == 0
    assert engine.kv.private == 0
    assert engine.kv_tokens == 0
    assert engine.decode_count == 0
    assert len(game.sequences) == len(asks)
    for sequence in game.sequences:
        assert emitted(sequence) == seen(game.plans, sequence.request_id)
        if sequence.finished_ns < 0:
            assert sequence.request_id in aborts.values()
        else:
            check_finished(sequence, engine.step_ends)
    assert engine.generation_tokens_total == sum(map(emitted, game.sequences))
    begun = [sequence for sequence in game.sequences if sequence.first_token_ns >= 0]
    assert engine.prompt_tokens_total == sum(sequence.prompt_tokens for sequence in begun)
    assert engine.preemptions_total == sum(sequence.preemptions for sequence in game.sequences)


def check_finished(sequence: Sequence, step_ends: list[int]) -> None:
    """It has all its tokens; its times are ends of steps, in order."""
    assert emitted(sequence) == sequence.output_tokens
    first_step, _ = sequence.spans[0]
    _, after_last_step = sequence.spans[-1]
    assert sequence.first_token_ns == step_ends[first_step]
    assert sequence.finished_ns == step_ends[after_last_step - 1]
    assert sequence.arrived_ns <= sequence.scheduled_ns < sequence.first_token_ns
    assert sequence.first_token_ns <= sequence.finished_ns
    assert len(sequence.spans) <= sequence.preemptions + 1


@given(ASKS, st.integers(32, 40))
def test_whole_prompts(asks: list[Ask], budget: int) -> None:
    """Without chunked prefill each prompt goes in whole: its first token is one step later."""
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": budget}
    game = Game(small(**options)).play(asks)
    for plan in game.plans:
        assert plan.first == plan.admitted
    for sequence in game.sequences:
        assert emitted(sequence) == sequence.output_tokens


@pytest.mark.parametrize(
    ("budget", "asks", "want"),
    # `want`: the step in which each request's first token came out, counted from 0
    [
        (32, [(0, 20, 5)], [0]),
        (8, [(0, 20, 5)], [2]),  # 8 + 8 + 4
        (8, [(0, 8, 5)], [0]),
        (8, [(0, 9, 5)], [1]),
        (8, [(0, 12, 5), (0, 4, 5)], [1, 1]),  # 8, then 4 + 4
        (8, [(0, 12, 5), (0, 5, 5)], [1, 2]),  # 8, then 4 + 4, then 1 (and one that decodes)
        (8, [(0, 1, 9), (1, 14, 5)], [0, 2]),  # 7 beside one that decodes, twice
        (32, [(0, 4, 3)] * 5, [0, 0, 0, 0, 3]),  # four seats, for steps 0, 1 and 2
        (32, [(0, 4, 1)] * 5, [0, 0, 0, 0, 1]),
    ],
)
def test_prompts_share_the_budget(
    budget: int, asks: list[tuple[int, int, int]], want: list[int]
) -> None:
    """Decoding sequences come first, then prompts in order of arrival."""
    game = Game(small(max_num_batched_tokens=budget)).play([Ask(*ask) for ask in asks])
    assert [one.spans[0][0] for one in game.sequences] == want


def test_a_preempted_request_is_computed_again() -> None:
    """8 blocks of 4. Both prompts of 12 take 3 and grow at 13 tokens; at 17 one must go.

    The second has emitted 5 tokens by then (steps 0 to 4), and goes on when the first, which has
    20 - 5 = 15 more, is over: at the end of step 19. Its 12 + 5 tokens are then one chunk.
    """
    game = Game(small(num_gpu_blocks=8)).play([Ask(0, 12, 20), Ask(0, 12, 20)])
    first, second = game.sequences
    assert first.preemptions == 0
    assert second.preemptions == 1
    assert first.spans == [[0, 20]]
    assert second.spans == [[0, 5], [20, 35]]
    assert [plan.prompt_tokens for plan in game.plans if plan.prompt_tokens] == [24, 17]
    assert game.engine.prompt_tokens_total == 24  # as vLLM: once for each request


@pytest.mark.parametrize(
    ("prompt", "blocks", "cached"),
    [(12, 3, 8), (13, 3, 12), (16, 4, 12), (3, 0, 0), (4, 1, 0), (5, 1, 4)],
)
def test_a_repeated_prompt_is_found(prompt: int, blocks: int, cached: int) -> None:
    """All full blocks, but at least one token is always computed."""
    hashes = tuple(range(1, blocks + 1))
    game = Game(small()).play([Ask(0, prompt, 2, hashes), Ask(5, prompt, 2, hashes)])
    assert [one.cached_tokens for one in game.sequences] == [0, cached]
    assert [plan.prompt_tokens for plan in game.plans if plan.first] == [prompt, prompt - cached]
    assert game.engine.prefix_queries_total == 2 * prompt
    assert game.engine.prefix_hits_total == cached
    assert game.engine.prompt_tokens_total == 2 * prompt


def test_own_blocks_found_after_a_preemption_are_no_hits() -> None:
    """As in vLLM: they would look as if somebody had repeated a prompt."""
    asks = [Ask(0, 12, 20, (1, 2, 3)), Ask(0, 12, 20, (4, 5, 6))]
    game = Game(small(num_gpu_blocks=8)).play(asks)
    engine = game.engine
    assert engine.preemptions_total > 0
    assert engine.prefix_queries_total == 24
    assert engine.prefix_hits_total == 0


def test_prompts_computed_at_once_are_not_shared() -> None:
    """A block can be found once it is computed, not before."""
    game = Game(small()).play([Ask(0, 9, 2, (1, 2)), Ask(0, 9, 2, (1, 2))])
    assert [one.cached_tokens for one in game.sequences] == [0, 0]


def test_the_cache_can_be_switched_off() -> None:
    """Then nothing is asked and nothing is kept."""
    asks = [Ask(0, 9, 2, (1, 2)), Ask(5, 9, 2, (1, 2))]
    game = Game(small(enable_prefix_caching=False)).play(asks)
    assert game.engine.prefix_queries_total == 0
    assert game.engine.prefix_hits_total == 0


def ends(**options: Any) -> list[int]:
    """Ends of the steps of one load."""
    game = Game(small(**options)).play([Ask(n, 5 + n, 9) for n in range(12)])
    return list(game.engine.step_ends)


def test_the_seed_decides() -> None:
    """The same seed, the same nanoseconds; another one, others."""
    assert ends(seed=1, jitter=0.1) == ends(seed=1, jitter=0.1)
    assert ends(seed=1, jitter=0.1) != ends(seed=2, jitter=0.1)
    assert ends(seed=1) == ends(seed=2)  # no jitter


def test_a_step_lasts_as_the_roofline_says() -> None:
    """Two prompts of 5, then both decode at contexts of 6, 7, ...: kv 12, 14, ..."""
    config = small(time_scale=2.0)
    game = Game(config).play([Ask(0, 5, 4), Ask(0, 5, 4)])
    model = roofline(MODELS[config.model], GPUS[config.gpu])
    kv_and_tokens = ((0, 10), (12, 2), (14, 2), (16, 2))
    want = [int(2 * model.step_ns(2, kv, tokens)) for kv, tokens in kv_and_tokens]
    assert [plan.duration_ns for plan in game.plans] == want


def lines_run(sequences: int) -> list[int]:
    """Lines of Python that each of 50 steps takes in which all only decode."""
    options = {"max_num_seqs": 1024, "max_num_batched_tokens": 65536, "max_model_len": 8192}
    engine = Scheduler(small(**options, block_size=16, num_gpu_blocks=100_000))
    for number in range(sequences):
        engine.add(number, 17, 4000, 0)  # 17, so that no block is full for 15 steps, then 16
    engine.step(0)
    counts: list[int] = []

    def count(_frame: object, event: str, _: object) -> Any:
        counts[-1] += event == "line"
        return count

    before = sys.gettrace()
    gc.disable()  # what it finalises would be counted too
    try:
        for _ in range(14):
            counts.append(0)
            sys.settrace(count)
            engine.step(0)
            sys.settrace(before)
    finally:
        sys.settrace(before)
        gc.enable()
    return counts


@pytest.mark.parametrize(
    ("tokens", "prompt", "want"),
    # 1 base; 2 of weights against 3 a token; 10 with a prompt, 20 beyond 5 tokens
    [(0, 0, 1 + 2), (1, 0, 1 + 3), (2, 1, 1 + 10), (6, 5, 1 + 20), (8, 8, 1 + 24)],
)
def test_steps_with_prompts(tokens: int, prompt: int, want: float) -> None:
    """A step with prompts is launched in pieces, and beyond the CUDA graphs without any."""
    assert Roofline(1, 2, 0, 3, 0, 10, 20, 5).step_ns(0, 0, tokens, prompt) == want


def test_decoding_costs_the_same_for_one_as_for_a_thousand() -> None:
    """Counted in lines that run: a step in which nobody comes or goes touches no sequence."""
    one = lines_run(1)
    thousand = lines_run(1000)
    assert one == thousand
    assert 0 < max(thousand) < 100


def test_leaving_the_queue_is_no_trouble() -> None:
    """Given up before, while and after it ran; twice is once."""
    game = Game(small(max_num_seqs=1))
    running, waiting, last = (game.add(Ask(0, 4, 5)) for _ in range(3))
    game.step()
    for sequence in (running, waiting, waiting, running):
        game.engine.abort(sequence)
    assert game.engine.kv.used == 0
    game.play([])
    game.engine.abort(last)
    assert [emitted(one) for one in game.sequences] == [1, 0, 5]


def test_a_prompt_enters_when_all_of_it_fits() -> None:
    """8 blocks of 4. The first holds 3 for 12 tokens, later 4; a prompt of 20 (5 blocks) waits.

    The first emits 5 tokens, in steps 0 to 4. The second enters after that, in two chunks, though
    its first chunk of 11 (3 blocks) would have fitted before.
    """
    config = small(num_gpu_blocks=8, max_num_batched_tokens=12)
    game = Game(config).play([Ask(0, 12, 5), Ask(0, 20, 2)])
    assert [len(plan.admitted) for plan in game.plans] == [1, 0, 0, 0, 0, 1, 0, 0]
