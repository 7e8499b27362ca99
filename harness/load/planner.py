"""PLAN: the request that worker `worker` sends as its number `number`, the same in every run."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final

from harness.load.plan import RequestSpec
from harness.load.tokens import Calibration, Draws, prompt_ids, prompt_text

if TYPE_CHECKING:
    from harness.load.workloads import Workload

UNCALIBRATED: Final = Calibration()
UNUSED: Final = Random(0)  # noqa: S311 - where nothing is drawn


def randomness(*key: object) -> Random:
    """A generator that depends on `key` alone: same in every process and on every machine.

    `Random(str)` hashes the text with SHA-512, so neighbouring keys share nothing.
    """
    return Random("/".join(map(str, key)))  # noqa: S311 - not a secret


def draw_lengths(workload: Workload, rng: Random) -> tuple[int, int]:
    """(prompt tokens, output tokens) of one request; the prompt includes the system message."""
    prompt = workload.prompt.draw(rng)
    return prompt + workload.system_tokens, workload.output.draw(rng)


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
