"""What idle sessions cost a server, and what dropping them gives.

A session that waits for its user holds no slot. Its history stays in the prefix cache, in blocks
that vLLM gives away as soon as a running request needs them. So three things are measured, one
request at a time on one connection:

- the first token of a user who comes back: with the history still cached (*kept*), after
  `/reset_prefix_cache` (*cleared*), and as a new session without its history (*timed out*);
- the first token of a newcomer while the idle sessions are cached, and after they were dropped;
- how much of the KV cache their histories fill.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import product
from math import isnan, nan, sqrt
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.lifecycle.cold_start import stream_body, timed_stream
from harness.load.tokens import TOKEN_IDS
from harness.metrics.result import Target
from harness.server.api_versions import is_simulator
from harness.server.http_exchange import HttpConnection
from harness.server.probe import probe
from harness.server.scraping import read_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.server.access import TargetAccess
    from harness.server.probe import Capabilities

RESET: Final = "/reset_prefix_cache"
NO_RESET: Final = (
    f"the server has no {RESET}: expected vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; "
    "what clearing gives is not known"
)
NEWCOMERS: Final = 5  # requests that tell the TTFT of a user without history
Z95: Final = 1.96
WARM_UP: Final = 2  # requests that are not counted: a server's first ones are slower


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """What is asked."""

    sessions: int
    history_tokens: int  # of each session when it goes idle
    message_tokens: int  # of the next message, and of a newcomer's first one
    output_tokens: int
    idle_s: float  # between the last answer and the first return


@dataclass(frozen=True, slots=True)
class Returns:
    """First tokens of one kind of request."""

    ttft_s: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: float | None = None  # of all prompts; None: the server does not say

    @property
    def median_s(self) -> float:
        return median(self.ttft_s)

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens, those found in the prefix cache."""
        if self.cached_tokens is None:
            return None
        return self.cached_tokens / (self.prompt_tokens * len(self.ttft_s))

    def is_faster_than(self, other: Returns) -> bool:
        """Whether it is shown at 5%, by the ranks of all first tokens (Mann and Whitney)."""
        n = len(self.ttft_s)
        m = len(other.ttft_s)
        faster_pairs = sum(mine < theirs for mine, theirs in product(self.ttft_s, other.ttft_s))
        # Of two samples of one distribution half of the pairs are, with this standard deviation.
        expected_pairs = n * m / 2
        deviation = sqrt(n * m * (n + m + 1) / 12)
        return faster_pairs - expected_pairs > Z95 * deviation


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What was measured."""

    plan: IdlePlan
    model: str
    simulated: str  # what was simulated; "": a real server was measured
    kv_tokens: int | None  # of the whole KV cache; None: the server does not say
    kv_usage_idle: float | None  # share of blocks in use by running requests while all are idle
    first: Returns  # the sessions' first turns: a prefill of the whole history
    kept: Returns
    newcomer_beside: Returns  # while the idle sessions are cached
    cleared: Returns | None  # None: the server cannot clear
    newcomer_after: Returns | None
    notes: tuple[str, ...] = field(default=())

    @property
    def history_share(self) -> float | None:
        """Of the KV cache, what all histories need; above 1 they do not fit."""
        if not self.kv_tokens:
            return None
        return self.plan.sessions * self.plan.history_tokens / self.kv_tokens

    @property
    def is_saving_shown(self) -> bool:
        """Whether users who come back are faster where nobody cleared."""
        return self.cleared is not None and self.kept.is_faster_than(self.cleared)

    @property
    def is_newcomer_faster(self) -> bool:
        """Whether newcomers are faster once idle sessions were cleared."""
        after = self.newcomer_after
        return after is not None and after.is_faster_than(self.newcomer_beside)

    @property
    def saved_s(self) -> float | None:
        """What a kept history saves a user who comes back."""
        if self.cleared is None:
            return None
        return self.cleared.median_s - self.kept.median_s


class Asker:
    """Sends one request after another, each with a prompt of its own."""

    def __init__(self, access: TargetAccess, model: str, output_tokens: int) -> None:
        self.access = access
        self.line = HttpConnection(access)
        self.random = Random(time.time_ns())  # noqa: S311 - text that no earlier run has cached
        self.body = stream_body(model, output_tokens)

    def tokens(self, n: int) -> list[int]:
        """A text that nobody has sent yet."""
        return self.random.choices(TOKEN_IDS, k=n)

    def ask(self, prompts: Sequence[list[int]]) -> Returns:
        """Each in turn. Raises ServerUnreachable."""
        # Nothing else is sent meanwhile: what the counter grows by is of these prompts.
        hits_before = self.figure("prefix_hits_total")
        ttfts_s = []
        for prompt in prompts:
            answer = timed_stream(self.line, self.body | {"prompt": prompt})
            ttfts_s.append(answer["ttft_s"])
        cached_tokens = self.figure("prefix_hits_total") - hits_before
        return Returns(
            ttft_s=tuple(ttfts_s),
            prompt_tokens=len(prompts[0]),
            cached_tokens=None if isnan(cached_tokens) else cached_tokens,
        )

    def figure(self, name: str) -> float:
        """One of the model's metrics; NaN where the page lacks it. Raises ServerUnreachable."""
        answer = self.line.fetch("/metrics")
        if answer.status != HTTPStatus.OK:
            return nan
        sample = read_metrics(self.access, answer, 0, model=self.body["model"])
        return nan if sample is None else float(getattr(sample, name))

    def clear(self) -> bool:
        """Drop what the prefix cache holds; False: this server cannot."""
        return self.line.fetch(RESET, {}).status == HTTPStatus.OK


def measure_idle_cost(access: TargetAccess, plan: IdlePlan, model: str | None) -> IdleCost:
    """All of it, some 3 requests a session. Raises ConfigError, ServerUnreachable."""
    server = probe(access, "completions", model)
    check_length(plan, server.max_model_len)
    asker = Asker(access, server.model, plan.output_tokens)
    with closing(asker.line):
        asker.ask([asker.tokens(plan.history_tokens) for _ in range(WARM_UP)])
        histories = [asker.tokens(plan.history_tokens) for _ in range(plan.sessions)]
        first = asker.ask(histories)
        time.sleep(plan.idle_s)
        kv_usage = asker.figure("kv_usage")
        newcomer_beside, kept = _newcomers_then_returns(asker, histories, plan)
        newcomer_after = cleared = None
        can_clear = asker.clear()
        if can_clear:
            newcomer_after, cleared = _newcomers_then_returns(asker, histories, plan)
    return IdleCost(
        plan=plan,
        model=server.model,
        simulated=_what_is_simulated(server),
        kv_tokens=server.cache.get("kv_tokens"),
        kv_usage_idle=None if isnan(kv_usage) else kv_usage,
        first=first,
        kept=kept,
        newcomer_beside=newcomer_beside,
        cleared=cleared,
        newcomer_after=newcomer_after,
        notes=() if can_clear else (NO_RESET,),
    )


def check_length(plan: IdlePlan, limit: int | None) -> None:
    """Raises ConfigError if the model has no room for a return."""
    longest = plan.history_tokens + plan.message_tokens + plan.output_tokens
    if limit is not None and longest > limit:
        room = limit - plan.message_tokens - plan.output_tokens
        less = f"--history-tokens {room}" if room > 0 else "fewer --message-tokens"
        raise ConfigError(
            f"the model's context is {limit:,} tokens, and a return needs {longest:,}: expected at "
            f"most that; try {less}."
        )


def _what_is_simulated(server: Capabilities) -> str:
    """For `IdleCost.simulated`."""
    simulated = is_simulator(server.version)
    gpu = str(server.flags.get("gpu") or "") if simulated else ""
    target = Target(model=server.model, simulated=simulated, gpu=gpu)
    return target.label.removeprefix("simulated ")


def _newcomers_then_returns(
    asker: Asker, histories: Sequence[list[int]], plan: IdlePlan
) -> tuple[Returns, Returns]:
    """First messages of newcomers; then the next message of each session behind its history."""
    # Newcomers first: sessions that return after a clear fill the cache with their histories again.
    messages = [asker.tokens(plan.message_tokens) for _ in range(NEWCOMERS)]
    newcomers = asker.ask(messages)
    next_turns = [history + asker.tokens(plan.message_tokens) for history in histories]
    return newcomers, asker.ask(next_turns)
