"""Sessions: conversations and agents, whose prompts grow turn by turn.

A user has one session after another. Turn t of session s of user u asks for the same in every run
of the same seed, whichever process sends it, in words that are the run's own; with real replies the
history also holds what the server answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.errors import ConfigError
from harness.load.lengths import MAX_MEAN_RATIO, Lengths
from harness.load.plan import (
    UNCALIBRATED,
    UNUSED,
    RequestSpec,
    draw_lengths,
    plan,
    room_of,
    seeded_random,
    system_message,
)
from harness.load.tokens import Calibration, HashedDraws, prompt_text
from harness.load.workloads import Conversation
from harness.units import MS

if TYPE_CHECKING:
    from harness.load.workloads import Workload

REPLIES: Final = ("planned", "real")


ONE_TURN: Final = Conversation(Lengths("fixed", 1))


def parse_history(text: str) -> str:
    """`full`, `last:4` or `budget:2048`. Raises ConfigError."""
    kind, _, number = text.partition(":")
    counted = kind in ("last", "budget") and number.isascii() and number.isdecimal()
    if text == "full" or (counted and int(number) > 0):
        return text
    raise ConfigError(
        f"--history is {text!r}: expected full, last:K (the last K turns) or budget:TOKENS (the "
        "latest turns that fit a prompt); try --history last:4."
    )


def think_ns(workload: Workload, seed: int, *key: object) -> int:
    """How long a user pauses after the request of this key; -1 without think time."""
    think = workload.think_ms
    if think is None:
        return -1
    return think.draw(seeded_random(seed, "think", *key) if think.is_random else UNUSED) * MS


class Turn(NamedTuple):
    """One planned turn, in tokens."""

    own: int  # the user's message
    output: int  # the answer
    first: int  # the earliest turn that the prompt still holds
    prompt: int  # in all: system message, history, message


def session_turns(workload: Workload, seed: int, user: int, session: int) -> list[Turn]:
    """The turns of a session. It ends early where one would not fit the context or its budget."""
    talk, room = workload.conversation or ONE_TURN, room_of(workload)
    limits = [n for n in (workload.max_model_len, talk.session_budget) if n]
    alone = replace(workload, max_model_len=min(limits, default=0))  # a first turn must fit
    rng = seeded_random(seed, "session", user, session)
    turns: list[Turn] = []
    spent = 0
    for _ in range(talk.turns.draw(rng)):
        prompt, output = draw_lengths(alone, rng)
        turn = _with_history(talk.history, turns, prompt, output, workload.system_tokens)
        spent += turn.prompt + output
        if turns and (0 < room < turn.prompt + output or 0 < talk.session_budget < spent):
            break
        turns.append(turn)
    return turns


def _with_history(policy: str, before: list[Turn], prompt: int, output: int, shared: int) -> Turn:
    """The turn after these; `prompt`: its tokens without history, `shared`: the system message."""
    kind, _, number = policy.partition(":")
    own, first = prompt - shared, 0
    if before:  # what was dropped stays dropped
        first, prompt = before[-1].first, prompt + before[-1].prompt - shared + before[-1].output
    while first < len(before) and (
        (kind == "last" and len(before) - first > int(number))
        or (kind == "budget" and prompt > int(number))
    ):
        prompt -= before[first].own + before[first].output
        first += 1
    return Turn(own, output, first, prompt)


def joined_at(workload: Workload, seed: int, user: int) -> tuple[int, int]:
    """(session, turn) at which a user begins: where one who has been there for long would be.

    A level that began with everybody's first turn would have short prompts for minutes.
    """
    # A session of n turns is met n times as often as one of a single turn: sessions are skipped
    # until one is accepted with a probability in proportion to its turns.
    turns = (workload.conversation or ONE_TURN).turns
    most = ceil(turns.mean * MAX_MEAN_RATIO) if turns.is_random else turns.mean
    rng, session = seeded_random(seed, "joined", user), 0
    while (count := len(session_turns(workload, seed, user, session))) <= rng.random() * most:
        session += 1
    return session, rng.randrange(count)


@dataclass(slots=True)
class Talk:
    """One user's sessions, or requests: ask for `next_spec`, send it, tell how it `ended`."""

    workload: Workload
    seed: int
    user: int  # its global number
    calibration: Calibration = UNCALIBRATED
    run_id: str = ""
    session: int = 0
    turn: int = 0  # without sessions: the request
    _turns: list[Turn] = field(default_factory=list)  # of this session
    _said: list[dict[str, Any]] = field(default_factory=list)  # the user's and the answer by turn
    _began_ns: int = 0
    _joined: int = 0  # the first turn of this session that was sent

    def next_spec(self, now_ns: int) -> RequestSpec:
        """The next turn, of the next session where this one is over; or the next request."""
        workload, key = self.workload, (self.workload, self.seed, self.user)
        if workload.conversation is None:
            spec = plan(*key, self.turn, self.calibration, run_id=self.run_id)
            return spec._replace(think_ns=think_ns(*key, self.turn))
        timeout_ns = workload.conversation.session_timeout
        if not self._turns:
            self._begin(*joined_at(*key), now_ns)
        elif self.turn >= len(self._turns) or 0 < timeout_ns < now_ns - self._began_ns:
            self._begin(self.session + 1, 0, now_ns)
        t, turn, before = self.turn, self._turns[self.turn], self._turns[self.turn - 1]
        system = system_message(workload.system_tokens, self.calibration)
        # Only a prompt that begins with the whole one before finds that in the prefix cache.
        grows = t > self._joined and before.first == turn.first
        return RequestSpec(
            str(self._said[2 * t]["content"]),
            turn.prompt,
            turn.output,
            messages=(*_message("system", system), *self._said[2 * turn.first : 2 * t + 1]),
            tools=planned_tools(workload.conversation.tools),
            session=self.session,
            turn=t,
            think_ns=think_ns(*key, self.session, t),
            new_tokens=turn.own + before.output if grows else -1,
        )

    def ended(self, text: str, *, ok: bool) -> None:
        """How the last spec ended: with this text, or not well, which ends the session."""
        if text:
            self._said[2 * self.turn + 1]["content"] = text
        self.turn = self.turn + 1 if ok or not self._turns else len(self._turns)

    def _begin(self, session: int, turn: int, now_ns: int) -> None:
        self.session, self.turn, self._began_ns, self._joined = session, turn, now_ns, turn
        self._turns = session_turns(self.workload, self.seed, self.user, session)
        key = f"{self.run_id}/{self.seed}/{self.user}/{session}"
        answer = Calibration(self.calibration.per_word)  # the template counts in the user's part
        self._said = []
        for n, one in enumerate(self._turns):
            asked = prompt_text(self.calibration.words(one.own), HashedDraws(f"{key}/{n}/user"))
            said = prompt_text(answer.words(one.output), HashedDraws(f"{key}/{n}/answer"))
            self._said += [*_message("user", asked), *_message("assistant", said)]


def _message(role: str, content: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": content}] if content else []


def planned_tools(count: int) -> tuple[dict[str, Any], ...]:
    """Functions in OpenAI's form that every session of every run offers."""
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    named = ((f"tool_{n}", prompt_text(24, HashedDraws(f"tool/{n}"))) for n in range(count))
    return tuple(
        {"type": "function", "function": {"name": n, "description": text, "parameters": schema}}
        for n, text in named
    )
