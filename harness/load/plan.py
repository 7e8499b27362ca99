"""What one request asks for, before any byte of it exists."""

from typing import NamedTuple


class RequestSpec(NamedTuple):
    """One planned request. `text` is the prompt (chat: the user's message), unique from its start.

    `prompt_tokens` is what we meant to send; the record holds what the server counted.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    token_ids: tuple[int, ...] = ()  # when set, /v1/completions sends these instead of text
    system: str = ""  # a shared prefix, for workloads that want one (chat only)
