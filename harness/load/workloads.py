"""WORKLOADS: the kinds of traffic that the harness can send, one row each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from harness.errors import ConfigError, closest
from harness.load.conversations import Conversation
from harness.load.lengths import Lengths

AS_USERS: Final = "default"  # `locust`: the workload whose name is that of the users' API
API_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a workload. Lengths are in tokens; `sized` replaces the means only."""

    name: str
    title: str  # one line of description
    api: str  # a key of API_PATHS
    prompt: Lengths
    output: Lengths
    system_tokens: int = 0  # a system message that all requests share (prefix caching); chat only
    token_ids: bool = False  # prompts as token ids: exact lengths; completions only
    max_model_len: int = 0  # the model's context, to which requests are clipped; 0: not known
    think_ms: Lengths | None = None  # from a user's answer to its next request; None: none
    conversation: Conversation | None = None  # its users have sessions (chat only)

    @property
    def path(self) -> str:
        """`/v1/chat/completions` or `/v1/completions`: also the request's name in Locust."""
        return API_PATHS[self.api]

    @property
    def prompt_tokens(self) -> int:
        """The mean per request, chat template and system message included."""
        return self.prompt.mean + self.system_tokens

    def through(self, api: str) -> Workload:
        """Return the same traffic for another API; only completions takes token ids, chat turns."""
        talk = self.conversation if api == "chat" else None
        ids = self.token_ids and api == "completions"
        return replace(self, api=api, token_ids=ids, conversation=talk)

    def sized(self, prompt_tokens: int | None = None, output_tokens: int | None = None) -> Workload:
        """Return the same traffic with other means. Raises ConfigError for a mean below 1 token."""
        for option, tokens in (
            ("--prompt-tokens", prompt_tokens),
            ("--output-tokens", output_tokens),
        ):
            if tokens is not None and tokens < 1:
                raise ConfigError(f"{option} is {tokens}: expected at least 1 token; try 128.")
        prompt = self.prompt if prompt_tokens is None else replace(self.prompt, mean=prompt_tokens)
        output = self.output if output_tokens is None else replace(self.output, mean=output_tokens)
        return replace(self, prompt=prompt, output=output)


WORKLOADS: Final[dict[str, Workload]] = {
    w.name: w
    for w in (
        Workload(
            "chat", "short questions, medium answers, of varied length", "chat",
            Lengths("lognormal", 256, 0.4), Lengths("lognormal", 128, 0.4),
        ),
        Workload(
            "completions", "as chat, by /v1/completions with exact token ids", "completions",
            Lengths("lognormal", 256, 0.4), Lengths("lognormal", 128, 0.4), token_ids=True,
        ),
        Workload(
            "fixed", "every request alike: for controlled comparisons", "completions",
            Lengths("fixed", 256), Lengths("fixed", 128), token_ids=True,
        ),
        Workload(
            "rag", "long retrieved contexts, short answers: prefill binds", "chat",
            Lengths("lognormal", 2048, 0.3), Lengths("lognormal", 64, 0.4),
        ),
        Workload(
            "summarize", "long documents, medium summaries", "chat",
            Lengths("lognormal", 1536, 0.5), Lengths("lognormal", 192, 0.3),
        ),
        Workload(
            "write", "short prompts, long answers: decoding and KV cache bind", "chat",
            Lengths("lognormal", 96, 0.4), Lengths("uniform", 512, 0.35),
        ),
        Workload(
            "agent", "a long system message shared by all, short turns: prefix caching helps",
            "chat", Lengths("lognormal", 192, 0.4), Lengths("lognormal", 96, 0.4),
            system_tokens=1024, conversation=Conversation(Lengths("lognormal", 8, 0.5)),
            think_ms=Lengths("lognormal", 1_000, 0.8),
        ),
        Workload(
            "conversation", "sessions of a few turns, with pauses: prompts grow with the history",
            "chat", Lengths("lognormal", 96, 0.6), Lengths("lognormal", 192, 0.5),
            conversation=Conversation(Lengths("lognormal", 5, 0.5)),
            think_ms=Lengths("lognormal", 5_000, 0.5),
        ),
    )
}  # fmt: skip


def workload(name: str) -> Workload:
    """Return the row of WORKLOADS called `name`. Raises ConfigError that lists them."""
    if name not in WORKLOADS:
        raise ConfigError(
            f"--workload is {name!r}: expected one of {', '.join(WORKLOADS)}; "
            f"try {closest(name, WORKLOADS, 'chat')!r}."
        )
    return WORKLOADS[name]
