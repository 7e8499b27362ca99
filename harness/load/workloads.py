"""WORKLOADS: the kinds of traffic that the harness can send, one row each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from harness.entry_points import WORKLOADS as ENTRY_POINTS
from harness.entry_points import entry_points_of, load, origin
from harness.errors import ConfigError, closest
from harness.load.lengths import MIXED, Lengths

Rows = tuple[tuple["Workload", float], ...]
Spread = tuple[float | None, int | None, int | None] | tuple[()]  # cv, shortest, longest

WEIGHTED: Final = re.compile(r"(.*?)(?:=(\d{1,9}(?:\.\d{1,9})?))?")  # a name, a weight
AS_USERS: Final = "default"  # `locust`: the workload whose name is that of the users' API
API_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/inference/v1/generate",
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """How the sessions of a workload go; its `prompt` and `output` are those of one turn."""

    turns: Lengths  # of a session
    history: str = "full"  # full, last:K turns, budget:TOKENS of a prompt
    replies: str = "planned"  # what the history holds of the assistant; real: what was answered
    tools: int = 0  # functions that every session offers
    session_budget: int = 0  # tokens of its prompts and answers, at most; 0: no limit
    session_timeout: int = 0  # ns; no turn begins later than this in a session; 0: no limit


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a workload. Lengths are in tokens."""

    name: str
    title: str  # one line of description
    api: str  # a key of API_PATHS
    prompt: Lengths
    output: Lengths
    system_tokens: int = 0  # a system message that all requests share (prefix caching); chat only
    token_ids: bool = False  # prompts as token ids: exact lengths; completions only
    max_model_len: int = 0  # the model's context, to which requests are clipped; 0: not known
    rows: Rows = ()  # of a mix, with their weights; the lengths above are then the mix's means
    models: tuple[tuple[str, float], ...] = ()  # several, with weights; (): the run's only one
    think_ms: Lengths | None = None  # from a user's answer to its next request; None: none
    conversation: Conversation | None = None  # its users have sessions (chat only)

    @property
    def path(self) -> str:
        """`/v1/chat/completions`, for example: also the request's name in Locust."""
        return API_PATHS[self.api]

    @property
    def prompt_tokens(self) -> int:
        """The mean per request, chat template and system message included."""
        return self.prompt.mean + self.system_tokens

    def through(self, api: str, *, exact: bool = False) -> Workload:
        """Return the same traffic for another API. `exact`: token ids where the API takes them.

        Such prompts share no system message.
        """
        rows = [(row.through(api, exact=exact), weight) for row, weight in self.rows]
        if rows:
            return replace(mixed(self.name, tuple(rows)), models=self.models)
        ids = api == "generate" or (api == "completions" and (exact or self.token_ids))
        return replace(
            self,
            api=api,
            token_ids=ids,
            system_tokens=0 if ids else self.system_tokens,
            conversation=self.conversation if api == "chat" else None,
        )

    def sized(
        self,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        prompt_spread: Spread = (),
        output_spread: Spread = (),
    ) -> Workload:
        """Return the same traffic with other lengths. Raises ConfigError."""
        prompt = self.prompt.sized("--prompt", prompt_tokens, *prompt_spread)
        output = self.output.sized("--output", output_tokens, *output_spread)
        return replace(self, prompt=prompt, output=output)


def mixed(name: str, rows: Rows) -> Workload:
    """Return requests that are each of one of `rows`, by weight. The rows share an API.

    Raises ConfigError for sessions, whose turns are no single requests.
    """
    for row, _ in rows:
        if row.conversation:
            raise ConfigError(
                f"--workload is {name!r}: expected a mix of single requests, and {row.name} has "
                f"sessions; try --workload {row.name} alone."
            )
    first, _ = rows[0]
    total = sum(weight for _, weight in rows)
    prompt = sum(row.prompt_tokens * weight for row, weight in rows) / total
    output = sum(row.output.mean * weight for row, weight in rows) / total
    return Workload(
        name=name,
        title="a mix",
        api=first.api,
        prompt=Lengths(MIXED, round(prompt)),
        output=Lengths(MIXED, round(output)),
        token_ids=all(row.token_ids for row, _ in rows),
        rows=rows,
    )


_WORKLOADS: Final = (
    Workload(
        name="chat",
        title="short questions, medium answers, of varied length",
        api="chat",
        prompt=Lengths("lognormal", 256, 0.4),
        output=Lengths("lognormal", 128, 0.4),
    ),
    Workload(
        name="completions",
        title="as chat, by /v1/completions with exact token ids",
        api="completions",
        prompt=Lengths("lognormal", 256, 0.4),
        output=Lengths("lognormal", 128, 0.4),
        token_ids=True,
    ),
    Workload(
        name="fixed",
        title="every request the same: for controlled comparisons",
        api="completions",
        prompt=Lengths("fixed", 256),
        output=Lengths("fixed", 128),
        token_ids=True,
    ),
    Workload(
        name="rag",
        title="long retrieved contexts, short answers: prefill binds",
        api="chat",
        prompt=Lengths("lognormal", 2048, 0.3),
        output=Lengths("lognormal", 64, 0.4),
    ),
    Workload(
        name="summarize",
        title="long documents, medium summaries",
        api="chat",
        prompt=Lengths("lognormal", 1536, 0.5),
        output=Lengths("lognormal", 192, 0.3),
    ),
    Workload(
        name="write",
        title="short prompts, long answers: decoding and KV cache bind",
        api="chat",
        prompt=Lengths("lognormal", 96, 0.4),
        output=Lengths("uniform", 512, 0.35),
    ),
    Workload(
        name="agent",
        title="a long system message shared by all, short turns: prefix caching helps",
        api="chat",
        prompt=Lengths("lognormal", 192, 0.4),
        output=Lengths("lognormal", 96, 0.4),
        system_tokens=1024,
        conversation=Conversation(Lengths("lognormal", 8, 0.5)),
        think_ms=Lengths("lognormal", 1_000, 0.8),
    ),
    Workload(
        name="conversation",
        title="sessions of a few turns, with pauses: prompts grow with the history",
        api="chat",
        prompt=Lengths("lognormal", 96, 0.6),
        output=Lengths("lognormal", 192, 0.5),
        conversation=Conversation(Lengths("lognormal", 5, 0.5)),
        think_ms=Lengths("lognormal", 5_000, 0.5),
    ),
)
WORKLOADS: Final = {workload.name: workload for workload in _WORKLOADS}


def workload_names() -> tuple[str, ...]:
    """WORKLOADS, and those that installed packages add; none of these is imported."""
    return (*WORKLOADS, *entry_points_of(ENTRY_POINTS))


def workload(text: str) -> Workload:
    """Return the workload called `text`, or a mix as `chat=9,summarize=1` says.

    Raises ConfigError that lists them.
    """
    weighted = dict(parse_weights("--workload", text))
    named = {name: _named(name) for name in weighted}
    first = named[next(iter(weighted))]
    if len(weighted) == 1:
        return first
    rows = []
    for name, weight in weighted.items():
        row = named[name].through(first.api, exact=True)
        rows.append((row, weight))
    return mixed(text, tuple(rows))


def _named(name: str) -> Workload:
    """The row of WORKLOADS, else that of an installed package. Raises ConfigError."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name in entry_points_of(ENTRY_POINTS):
        return _installed(name)
    known = workload_names()
    raise ConfigError(
        f"--workload is {name!r}: expected one of {', '.join(known)}; "
        f"try {closest(name, known, 'chat')!r}."
    )


def _installed(name: str) -> Workload:
    """What the package's entry point names, under the entry point's name. Raises ConfigError."""
    found = load(ENTRY_POINTS, name)
    if not isinstance(found, Workload):
        raise ConfigError(
            f"{origin(ENTRY_POINTS, name)} is {type(found).__name__}: expected a "
            "harness.extend.Workload; try Workload(name, title, 'chat', prompt, output)."
        )
    if found.api not in API_PATHS:
        raise ConfigError(
            f"{origin(ENTRY_POINTS, name)} has the API {found.api!r}: expected one of "
            f"{', '.join(API_PATHS)}; try 'chat'."
        )
    return replace(found, name=name)


def parse_weights(option: str, text: str) -> tuple[tuple[str, float], ...]:
    """Return (("a", 3.0), ("b", 1.0)) of `a=3,b`. Raises ConfigError."""
    pieces = [piece.strip() for piece in text.split(",")]
    found = [WEIGHTED.fullmatch(piece) for piece in pieces]
    pairs = {one[1]: float(one[2] or 1) for one in found if one}
    if len(pairs) < len(pieces) or not all(pairs.values()):
        raise ConfigError(
            f"{option} is {text!r}: expected a name, or several with weights above zero, each name "
            f"once; try {option} a=3,b=1."
        )
    return tuple(pairs.items())
