"""What is sent: workloads, lengths, prompts, plans. Pure and seeded, so figures are exact."""

from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from harness.errors import ConfigError
from harness.load.lengths import SHAPES, Lengths
from harness.load.plan import count_clipped, plan, plan_lengths, seeded_random
from harness.load.tokens import TEXT_WORDS, Calibration, calibrate, prompt_ids, prompt_text
from harness.load.workloads import WORKLOADS, mixed, workload

SOME = range(2000)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plan_is_a_function_of_its_key(name: str) -> None:
    """The same (seed, sender, number) gives the same request, any other gives another prompt."""
    row = WORKLOADS[name]
    spec = plan(row, 1, 0, 7)
    assert plan(row, 1, 0, 7) == spec
    again = plan(row, 1, 0, 7, run_id="another run")
    assert again.prompt_tokens == spec.prompt_tokens
    assert again.output_tokens == spec.output_tokens
    assert (again.text, again.token_ids) != (spec.text, spec.token_ids)
    assert (spec.prompt_tokens, spec.output_tokens) == plan_lengths(row, 1, 0, 7)
    for seed, sender, number in ((2, 0, 7), (1, 1, 7), (1, 0, 8)):
        other = plan(row, seed, sender, number)
        assert other.text + str(other.token_ids) != spec.text + str(spec.token_ids)


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_are_unique_from_their_first_block_on(name: str) -> None:
    """No two prompts of a run share their first 8 words or ids: nothing hits the prefix cache."""
    specs = [plan(WORKLOADS[name], 3, worker, number) for worker in (0, 1) for number in SOME]
    heads = {(tuple(s.text.split()[:8]), s.token_ids[:8]) for s in specs}
    assert len(heads) == len(specs)


@pytest.mark.parametrize("name", WORKLOADS)
def test_lengths_lie_around_the_given_means(name: str) -> None:
    """Means over 2,000 draws are within 3 % of what was asked, system message included."""
    row = WORKLOADS[name].sized(300, 100)
    lengths = [plan_lengths(row, 5, 0, number) for number in SOME]
    assert fmean(p for p, _ in lengths) == pytest.approx(300 + row.system_tokens, rel=0.03)
    assert fmean(o for _, o in lengths) == pytest.approx(100, rel=0.03)


@pytest.mark.parametrize(
    ("name", "api", "context"), [("rag", "chat", 4096), ("agent", "chat", 1500),
                                 ("completions", "completions", 512)]
)  # fmt: skip
def test_long_requests_are_clipped_to_the_context(name: str, api: str, context: int) -> None:
    """Those that fit stay as they are; the others keep their proportion and just fit.

    Text keeps 2% below the context, because the server's tokenizer may count a little more.
    """
    whole = workload(name).through(api)
    clips = replace(whole, max_model_len=context)
    room = context if whole.token_ids else int(0.98 * context)
    n_longer = 0
    for number in SOME:
        drawn = plan_lengths(whole, 5, 2, number)
        clipped = plan_lengths(clips, 5, 2, number)
        if sum(drawn) <= room:
            assert clipped == drawn
            continue
        n_longer += 1
        assert room - 2 <= sum(clipped) <= room
        wanted = proportion(drawn, whole.system_tokens)
        assert proportion(clipped, whole.system_tokens) == pytest.approx(wanted, rel=0.1)
    assert n_longer > 0
    spec = plan(clips, 5, 2, 7)
    assert (spec.prompt_tokens, spec.output_tokens) == plan_lengths(clips, 5, 2, 7)
    many = sum(sum(plan_lengths(whole, 5, 0, n)) > room for n in range(1000))
    assert count_clipped(clips, 5) == many
    assert count_clipped(whole, 5) == 0


def proportion(lengths: tuple[int, int], system_tokens: int) -> float:
    """Of the prompt, without its system message, to the answer."""
    prompt, output = lengths
    return (prompt - system_tokens) / output


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_have_their_mean_and_deviation(shape: str) -> None:
    """A shape's sample has mean 1000 and deviation 300 (fixed: 0)."""
    draws = [Lengths(shape, 1000, 0.3).draw(rng) for rng in [seeded_random(shape)] for _ in SOME]
    assert fmean(draws) == pytest.approx(1000, rel=0.03)
    assert pstdev(draws) == pytest.approx(0 if shape == "fixed" else 300, rel=0.08)


@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 255, TEXT_WORDS + 17, 2 * TEXT_WORDS])
def test_prompts_have_the_wanted_length(tokens: int) -> None:
    """As many words, and exactly as many ids, as asked, at every size."""
    assert len(prompt_text(tokens, seeded_random("some")).split(" ")) == tokens
    assert len(prompt_ids(tokens, seeded_random("some"))) == tokens


def test_calibration_recovers_the_tokenizer() -> None:
    """A tokenizer of 1.5 tokens per word and a template of 12 gives 100 tokens for 59 words."""
    found = calibrate(lambda text: 12 + round(1.5 * len(text.split())))
    assert found == Calibration(pytest.approx(1.5), 12)
    assert found.words(100) == 59  # (100 - 12) / 1.5 = 58.7


@pytest.mark.parametrize(("wrong", "word"), [("chats", "chat, completions"), ("", "try 'chat'")])
def test_an_unknown_workload_is_named_with_the_choices(wrong: str, word: str) -> None:
    """The error says what was found and lists what exists."""
    with pytest.raises(ConfigError, match=word):
        workload(wrong)


def test_a_mean_below_one_token_is_refused() -> None:
    """`--output-tokens 0` is an error that names the option."""
    with pytest.raises(ConfigError, match="--output-tokens is 0"):
        WORKLOADS["chat"].sized(output_tokens=0)


SHARED = replace(WORKLOADS["agent"], conversation=None)
MIX = mixed("a mix", ((WORKLOADS["chat"], 3.0), (SHARED, 1.0)))


def test_a_mix_sends_each_row_as_often_as_its_weight_says() -> None:
    """Of 2,000 requests about a quarter has the agent's system message, and lengths of its row."""
    specs = [plan(MIX, 1, 0, number) for number in SOME]
    assert specs == [plan(MIX, 1, 0, number) for number in SOME]
    agent = [spec for spec in specs if spec.system]
    assert [spec.mix_row for spec in specs] == [int(bool(spec.system)) for spec in specs]
    assert len(agent) / len(specs) == pytest.approx(1 / 4, abs=0.03)
    chat_mean = WORKLOADS["chat"].prompt_tokens
    agent_mean = WORKLOADS["agent"].prompt_tokens
    assert fmean(spec.prompt_tokens for spec in agent) == pytest.approx(agent_mean, rel=0.05)
    assert MIX.prompt_tokens == round((3 * chat_mean + agent_mean) / 4)
    mean = fmean(spec.prompt_tokens for spec in specs)
    assert mean == pytest.approx(MIX.prompt_tokens, rel=0.05)
    lengths = [(spec.prompt_tokens, spec.output_tokens) for spec in specs]
    assert lengths == [plan_lengths(MIX, 1, 0, number) for number in SOME]


def test_a_mix_as_token_ids_and_what_is_clipped_of_it() -> None:
    """No text is left through an API of ids; each request is clipped by its own length."""
    ids = MIX.through("generate")
    for number in SOME:
        spec = plan(ids, 1, 0, number)
        assert spec.token_ids
        assert spec.text == ""
    longer = sum(sum(plan_lengths(MIX, 1, 0, n)) > 588 for n in range(1000))
    assert count_clipped(replace(MIX, max_model_len=600), 1) == longer


def test_models_are_drawn_by_weight() -> None:
    """Each request has one, the same in every process; lengths do not depend on it."""
    several = replace(WORKLOADS["chat"], models=(("a", 3.0), ("b", 1.0)))
    specs = [plan(several, 1, 0, number) for number in SOME]
    assert {spec.model for spec in specs} == {"a", "b"}
    assert fmean(spec.model == "a" for spec in specs) == pytest.approx(3 / 4, abs=0.03)
    without_model = [plan(WORKLOADS["chat"], 1, 0, number) for number in SOME]
    assert [spec._replace(model="") for spec in specs] == without_model
    assert specs == [plan(several, 1, 0, number) for number in SOME]


@pytest.mark.parametrize(
    ("spread", "shape", "least", "most"),
    [
        ((None, None, None), "lognormal", 37, 1200),
        ((1.0, None, None), "lognormal", 37, 1200),
        ((1.0, 250, 400), "lognormal", 250, 400),
        ((None, 290, None), "lognormal", 290, 1200),
        ((0.0, None, None), "fixed", 300, 300),
    ],
)
def test_lengths_stay_within_their_limits(
    spread: tuple[float | None, int | None, int | None], shape: str, least: int, most: int
) -> None:
    """A deviation of one reaches the upper limit in 2,000 draws; 0 makes all alike."""
    row = WORKLOADS["chat"].sized(300, None, spread)
    drawn = [plan_lengths(row, 5, 0, number)[0] for number in SOME]
    assert row.prompt.shape == shape
    assert min(drawn) >= least
    assert max(drawn) <= most
    if spread[0] == 1.0:
        assert max(drawn) == most
    assert row.output == WORKLOADS["chat"].output
