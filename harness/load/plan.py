"""What one request asks for, before any byte of it exists."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One planned request. `text` is the prompt (chat: the user's message), unique from its start.

    `prompt_tokens` is what we meant to send; the record holds what the server counted.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    token_ids: tuple[int, ...] = ()  # when set, /v1/completions sends these instead of text
    system: str = ""  # a shared prefix, for workloads that want one (chat only)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request with its place in time: `offset_ns` after the start (open loop), or -1."""

    offset_ns: int
    spec: RequestSpec
