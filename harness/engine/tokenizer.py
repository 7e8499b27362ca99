"""A toy tokenizer: a word of up to eight characters is a token, longer ones are cut in eights.

It counts and hashes; nothing is ever decoded, the engine's answers are noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE: Final = 8
TEMPLATE: Final = ("<|im_start|>", "role", "<|im_end|>")  # around each chat message
OPENING: Final = ("<|im_start|>", "assistant")  # before the answer
Tokens = list[str] | list[int]


def tokenize(text: str) -> list[str]:
    """Tokens of plain text."""
    tokens: list[str] = []
    for word in text.split():
        if len(word) <= PIECE:
            tokens.append(word)
        else:
            tokens.extend(word[i : i + PIECE] for i in range(0, len(word), PIECE))
    return tokens


def tokenize_messages(messages: list[dict[str, Any]]) -> list[str]:
    """Tokens of a chat, template included."""
    tokens: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        tokens += [TEMPLATE[0], str(message.get("role")), *tokenize(str(content)), TEMPLATE[2]]
    return [*tokens, *OPENING]


def block_hashes(tokens: Sequence[str | int], block_size: int) -> list[int]:
    """One hash per full block, each chained to the one before."""
    hashes: list[int] = []
    previous = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        previous = hash((previous, *tokens[start : start + block_size]))
        hashes.append(previous)
    return hashes
