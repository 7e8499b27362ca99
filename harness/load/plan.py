"""Plans requests: each is a pure function of who sends it and of its number there.

A user counts its own requests; in an open loop those of a level's schedule are counted. So the same
requests are planned however many processes send them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.load.tokens import Calibration, HashedDraws, prompt_ids, prompt_text

if TYPE_CHECKING:
    from harness.load.workloads import Workload

NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})
UNCALIBRATED: Final = Calibration()
UNUSED: Final = Random(0)  # noqa: S311 - for lengths that need no draw
CLIP_SAMPLE_SIZE: Final = 1_000  # planned requests, of which the clipped ones are counted
# A clipped text prompt stays this share below the context: the server's tokenizer may count some
# more tokens than the calibration predicts, and refuses a request that is one token too long.
TEXT_MARGIN: Final = 0.02


class RequestSpec(NamedTuple):
    """One planned request. `text` is the prompt (chat: the user's message), unique from its start.

    `prompt_tokens` is the planned number; the record has the number that the server counted.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    token_ids: tuple[int, ...] = ()  # if set, sent instead of text (completions only)
    system: str = ""  # a shared prefix, for workloads that have one (chat only)
    # OpenAI's form; if set, sent instead of `system` and `text` (chat only)
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()  # that the model may call, in OpenAI's form (chat only)
    model: str = ""  # one of several; "": the run's only one
    session: int = -1  # these as the record has them
    turn: int = -1
    think_ns: int = -1
    new_tokens: int = -1
    mix_row: int = -1
    body: Mapping[str, Any] = NO_FIELDS  # further fields of this request alone
    keep_text: bool = False  # the answer is wanted too
    name: str = ""  # in Locust's statistics, the record and the report; "": none


def seeded_random(*key: object) -> Random:
    """Return a generator that depends on `key` alone, in every process and on every machine."""
    # `Random(str)` hashes the text with SHA-512, so similar keys give unrelated generators.
    return Random("/".join(map(str, key)))  # noqa: S311 - not a secret


def choose(weighted: Sequence[tuple[Any, float]], *key: object) -> Any:
    """Return one of the things, drawn by weight; the same one for the same key."""
    things, weights = zip(*weighted, strict=True)
    return seeded_random(*key).choices(things, weights)[0]


def row_of(workload: Workload, *key: object) -> tuple[int, Workload]:
    """Return the row of a mixed workload that a request is of, and its number; -1: no mix."""
    if not workload.rows:
        return -1, workload
    weights = [weight for _, weight in workload.rows]
    number = choose(list(enumerate(weights)), *key, "row")
    row, _ = workload.rows[number]
    return number, replace(row, max_model_len=workload.max_model_len)


def draw_lengths(workload: Workload, rng: Random) -> tuple[int, int]:
    """Draw (prompt tokens, output tokens) of one request; the prompt includes the system message.

    What exceeds the model's context is shortened proportionally, except for the system message.
    """
    own = workload.prompt.draw(rng)
    output = workload.output.draw(rng)
    shared = workload.system_tokens
    room = room_of(workload)
    if room and shared + own + output > room:
        share = max(room - shared, 2) / (own + output)
        own = max(int(own * share), 1)
        output = max(int(output * share), 1)
    return shared + own, output


def room_of(workload: Workload) -> int:
    """Return the most tokens that a request may have, with a margin for text; 0: unknown."""
    context = workload.max_model_len
    if workload.token_ids:
        return context
    return int(context * (1 - TEXT_MARGIN))


def count_clipped(workload: Workload, seed: int) -> int:
    """Return how many of the first CLIP_SAMPLE_SIZE requests are shortened to fit the context."""
    room = room_of(workload)
    rows = [row for row, _ in workload.rows] or [workload]
    if max(map(_longest, rows)) <= room:
        return 0
    unlimited = replace(workload, max_model_len=0)
    n_clipped = 0
    for number in range(CLIP_SAMPLE_SIZE):
        tokens = sum(plan_lengths(unlimited, seed, 0, number))
        if tokens > room > 0:
            n_clipped += 1
    return n_clipped


def _longest(workload: Workload) -> float:
    """The tokens of the longest request that can be drawn."""
    _, prompt = workload.prompt.limits
    _, output = workload.output.limits
    return workload.system_tokens + prompt + output


def plan_lengths(workload: Workload, seed: int, sender: int | str, number: int) -> tuple[int, int]:
    """Return the (prompt, output) tokens of `plan` with these arguments, without making a text."""
    _, workload = row_of(workload, seed, sender, number)
    is_random = workload.prompt.is_random or workload.output.is_random
    rng = seeded_random(seed, sender, number) if is_random else UNUSED
    return draw_lengths(workload, rng)


def plan(
    workload: Workload,
    seed: int,
    sender: int | str,
    number: int,
    calibration: Calibration = UNCALIBRATED,
    *,
    run_id: str = "",
) -> RequestSpec:
    """Plan request `number` of user (or schedule) `sender`: a pure function of its arguments.

    Lengths depend on the seed alone. `run_id` changes the words: if the same prompts were sent to
    the same server again, its prefix cache would make the second run look faster.
    """
    models = workload.models
    model = choose(models, seed, sender, number, "model") if models else ""
    row, workload = row_of(workload, seed, sender, number)
    prompt_tokens, output_tokens = plan_lengths(workload, seed, sender, number)
    draws = HashedDraws(f"{run_id}/{seed}/{sender}/{number}")
    if workload.token_ids:
        ids = prompt_ids(prompt_tokens, draws)
        return RequestSpec("", prompt_tokens, output_tokens, ids, model=model, mix_row=row)
    words = calibration.words(prompt_tokens - workload.system_tokens)
    system = system_message(workload.system_tokens, calibration)
    text = prompt_text(words, draws)
    return RequestSpec(text, prompt_tokens, output_tokens, system=system, model=model, mix_row=row)


@cache
def system_message(tokens: int, calibration: Calibration) -> str:
    """Return the prefix that all requests of a workload share, in all runs; "" of no tokens."""
    if not tokens:
        return ""
    per_message = Calibration(calibration.per_word)  # the template counts once, in the user's part
    return prompt_text(per_message.words(tokens), seeded_random("system", tokens))
