"""PLAN: the request that worker `worker` sends as its number `number`, the same in every run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final

from harness.load.lengths import MOST
from harness.load.plan import RequestSpec
from harness.load.tokens import Calibration, Draws, prompt_ids, prompt_text

if TYPE_CHECKING:
    from harness.load.workloads import Workload

UNCALIBRATED: Final = Calibration()
UNUSED: Final = Random(0)  # noqa: S311 - where nothing is drawn
SAMPLE: Final = 1_000  # planned requests that a plan is described by
# A clipped prompt of text stays this share below the context: the server's tokenizer may count a
# little more than the calibration says, and refuses what is one token too long.
TEXT_MARGIN: Final = 0.02


def randomness(*key: object) -> Random:
    """A generator that depends on `key` alone: same in every process and on every machine.

    `Random(str)` hashes the text with SHA-512, so neighbouring keys share nothing.
    """
    return Random("/".join(map(str, key)))  # noqa: S311 - not a secret


def draw_lengths(workload: Workload, rng: Random) -> tuple[int, int]:
    """(prompt tokens, output tokens) of one request; the prompt includes the system message.

    What does not fit the model's context is made shorter in proportion, the system message apart.
    """
    own, output = workload.prompt.draw(rng), workload.output.draw(rng)
    shared, room = workload.system_tokens, room_of(workload)
    if room and shared + own + output > room:
        share = max(room - shared, 2) / (own + output)
        own, output = max(int(own * share), 1), max(int(output * share), 1)
    return shared + own, output


def room_of(workload: Workload) -> int:
    """Tokens that a request may have; 0: not known. Text only nearly has the tokens planned."""
    context = workload.max_model_len
    return context if workload.token_ids else int(context * (1 - TEXT_MARGIN))


def clipped(workload: Workload, seed: int) -> int:
    """How many of the first SAMPLE requests are made shorter to fit the model's context."""
    most = workload.system_tokens + MOST * (workload.prompt.mean + workload.output.mean)
    room = room_of(workload)
    if most <= room:
        return 0  # no draw is longer
    whole = replace(workload, max_model_len=0)
    planned = (sum(plan_lengths(whole, seed, 0, number)) for number in range(SAMPLE))
    return sum(tokens > room > 0 for tokens in planned)


def plan_lengths(workload: Workload, seed: int, worker: int, number: int) -> tuple[int, int]:
    """(prompt tokens, output tokens) of `plan` with the same arguments, without making the text."""
    varies = workload.prompt.varies or workload.output.varies
    return draw_lengths(workload, randomness(seed, worker, number) if varies else UNUSED)


def plan(
    workload: Workload,
    seed: int,
    worker: int,
    number: int,
    calibration: Calibration = UNCALIBRATED,
    *,
    run_id: str = "",
) -> RequestSpec:
    """What request `number` of worker `worker` asks for: a pure function of its arguments.

    Lengths depend on the seed alone. `run_id` changes the words: the same prompts sent to the same
    server again would be found in its prefix cache, and the second run would look faster.
    """
    prompt_tokens, output_tokens = plan_lengths(workload, seed, worker, number)
    draws = Draws(f"{run_id}/{seed}/{worker}/{number}")
    if workload.token_ids:
        ids = prompt_ids(prompt_tokens, draws)
        return RequestSpec("", prompt_tokens, output_tokens, token_ids=ids)
    words = calibration.words(prompt_tokens - workload.system_tokens)
    system = _system_message(workload.system_tokens, calibration) if workload.system_tokens else ""
    return RequestSpec(prompt_text(words, draws), prompt_tokens, output_tokens, system=system)


@cache
def _system_message(tokens: int, calibration: Calibration) -> str:
    """The prefix that every request of a workload shares, in all runs."""
    per_message = Calibration(calibration.per_word)  # the template counts once, in the user's part
    return prompt_text(per_message.words(tokens), randomness("system", tokens))
