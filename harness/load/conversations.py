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
    is_number = number.isascii() and number.isdecimal()
    is_limit = kind in ("last", "budget") and is_number and int(number) > 0
    if text == "full" or is_limit:
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
    # Seeding hashes the key: spared where nothing is drawn.
    rng = seeded_random(seed, "think", *key) if think.is_random else UNUSED
    return think.draw(rng) * MS


class Turn(NamedTuple):
    """One planned turn, in tokens."""

    own: int  # the user's message
    output: int  # the answer
    first: int  # the earliest turn that the prompt still holds
    prompt: int  # in all: system message, history, message


def session_turns(workload: Workload, seed: int, user: int, session: int) -> list[Turn]:
    """The turns of a session. It ends early where one would not fit the context or its budget."""
    talk = workload.conversation or ONE_TURN
    room = room_of(workload)
    budget = talk.session_budget
    limits = [limit for limit in (workload.max_model_len, budget) if limit]
    alone = replace(workload, max_model_len=min(limits, default=0))  # a first turn must fit
    rng = seeded_random(seed, "session", user, session)
    turns: list[Turn] = []
    spent = 0
    for _ in range(talk.turns.draw(rng)):
        prompt, output = draw_lengths(alone, rng)
        turn = _with_history(talk.history, turns, prompt, output, workload.system_tokens)
        tokens = turn.prompt + turn.output
        spent += tokens
        no_room = 0 < room < tokens
        no_budget = 0 < budget < spent
        if turns and (no_room or no_budget):
            break
        turns.append(turn)
    return turns


def _with_history(policy: str, before: list[Turn], prompt: int, output: int, shared: int) -> Turn:
    """The turn after these; `prompt`: its tokens without history, `shared`: the system message."""
    own = prompt - shared
    if not before:
        return Turn(own, output, 0, prompt)
    latest = before[-1]
    prompt = latest.prompt + latest.output + own
    # What was dropped stays dropped: else a prompt would begin with another turn than the one
    # before it, and find less in the prefix cache.
    first = latest.first
    while first < len(before) and _is_too_long(policy, len(before) - first, prompt):
        prompt -= before[first].own + before[first].output
        first += 1
    return Turn(own, output, first, prompt)


def _is_too_long(policy: str, turns: int, prompt: int) -> bool:
    """Whether a history policy drops another turn of so many that the prompt holds."""
    kind, _, number = policy.partition(":")
    if kind == "last":
        return turns > int(number)
    return kind == "budget" and prompt > int(number)


def joined_at(workload: Workload, seed: int, user: int) -> tuple[int, int]:
    """(session, turn) at which a user begins: where one who has been there for long would be.

    A level that began with everybody's first turn would have short prompts for minutes.
    """
    # A session of n turns is met n times as often as one of a single turn: sessions are skipped
    # until one is accepted with a probability in proportion to its turns.
    turns = (workload.conversation or ONE_TURN).turns
    most = ceil(turns.mean * MAX_MEAN_RATIO) if turns.is_random else turns.mean
    rng = seeded_random(seed, "joined", user)
    session = 0
    while True:
        count = len(session_turns(workload, seed, user, session))
        if count > rng.random() * most:
            return session, rng.randrange(count)
        session += 1


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
        talk = self.workload.conversation
        if talk is None:
            return self._next_request()
        if not self._turns:  # its first request: as one who has been there for long
            session, turn = joined_at(self.workload, self.seed, self.user)
            self._begin(session, turn, now_ns)
        elif self._is_over(talk, now_ns):
            self._begin(self.session + 1, 0, now_ns)
        turn = self.turn
        planned = self._turns[turn]
        # What was said has a user's message and an answer for each turn: planned ones too.
        asked = 2 * turn
        earliest = 2 * planned.first
        system = system_message(self.workload.system_tokens, self.calibration)
        history = self._said[earliest : asked + 1]
        return RequestSpec(
            str(self._said[asked]["content"]),
            planned.prompt,
            planned.output,
            messages=(*_message("system", system), *history),
            tools=planned_tools(talk.tools),
            session=self.session,
            turn=turn,
            think_ns=think_ns(self.workload, self.seed, self.user, self.session, turn),
            new_tokens=self._new_tokens(),
        )

    def _next_request(self) -> RequestSpec:
        """Without sessions."""
        number = self.turn
        spec = plan(
            self.workload, self.seed, self.user, number, self.calibration, run_id=self.run_id
        )
        pause_ns = think_ns(self.workload, self.seed, self.user, number)
        return spec._replace(think_ns=pause_ns)

    def _is_over(self, talk: Conversation, now_ns: int) -> bool:
        """Whether this session has no other turn, or took too long to begin one."""
        has_ended = self.turn >= len(self._turns)
        return has_ended or 0 < talk.session_timeout < now_ns - self._began_ns

    def _new_tokens(self) -> int:
        """Of this turn's prompt, what no prompt before it had; -1: it does not go on from one.

        Only a prompt that begins with the whole one before finds that in the prefix cache.
        """
        if self.turn <= self._joined:
            return -1
        planned = self._turns[self.turn]
        before = self._turns[self.turn - 1]
        if before.first != planned.first:
            return -1
        return planned.own + before.output

    def ended(self, text: str, *, ok: bool) -> None:
        """How the last spec ended: with this text, or not well, which ends the session."""
        if text:
            self._said[2 * self.turn + 1]["content"] = text
        if ok or not self._turns:
            self.turn += 1
        else:
            self.turn = len(self._turns)

    def _begin(self, session: int, turn: int, now_ns: int) -> None:
        self.session = session
        self.turn = turn
        self._joined = turn
        self._began_ns = now_ns
        self._turns = session_turns(self.workload, self.seed, self.user, session)
        key = f"{self.run_id}/{self.seed}/{self.user}/{session}"
        answer = Calibration(self.calibration.per_word)  # the template counts in the user's part
        self._said = []
        for number, planned in enumerate(self._turns):
            own_words = self.calibration.words(planned.own)
            answer_words = answer.words(planned.output)
            asked = prompt_text(own_words, HashedDraws(f"{key}/{number}/user"))
            said = prompt_text(answer_words, HashedDraws(f"{key}/{number}/answer"))
            self._said += _message("user", asked)
            self._said += _message("assistant", said)


def _message(role: str, content: str) -> list[dict[str, Any]]:
    """[] where nothing is said."""
    if not content:
        return []
    return [{"role": role, "content": content}]


def planned_tools(count: int) -> tuple[dict[str, Any], ...]:
    """Functions in OpenAI's form that every session of every run offers."""
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }
    tools: list[dict[str, Any]] = []
    for number in range(count):
        function = {
            "name": f"tool_{number}",
            "description": prompt_text(24, HashedDraws(f"tool/{number}")),
            "parameters": parameters,
        }
        tools.append({"type": "function", "function": function})
    return tuple(tools)
