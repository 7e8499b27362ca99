"""Makes prompts of a given length, cheaply, and unique from their first KV block on."""

# vLLM caches prefixes in blocks (16 tokens by default), and the hash of a block includes all blocks
# before it. So only the first few words must be drawn for each request: no later block can hit the
# cache. The rest is a slice of one fixed text, which costs a copy instead of a draw per word.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Final, TypeVar

_T = TypeVar("_T")

# 8 words of 242 are 63 bits: among a million prompts the chance that two begin alike is below 1e-7.
# All of them must be in the first block, even if a tokenizer makes two tokens of a word.
UNIQUE_WORDS: Final = 8
TEXT_WORDS: Final = 1 << 15
TOKEN_IDS: Final = range(1000, 8000)  # ordinary tokens in every common vocabulary, none special

# Frequent English words: one token each, with the space before, in the common vocabularies.
WORDS: Final = tuple(
    """
    about above across after again against age air all almost alone along already also always among
    and animal another answer any appear are area arm art ask away back bank base be bear beat
    because bed been before began behind being below best better between big bird black blood blue
    board boat body book both box boy bring brother brown build built business but buy by call came
    can car care carry case catch cause center certain chair chance change check child city class
    clean clear close cold color come common company complete control cook cool copy corner cost
    could country course cover cross cry current cut dance dark daughter day dead deal death deep
    design direct do doctor does dog done door down draw dream dress drink drive drop dry during
    each ear early earth east easy eat edge effect egg eight either electric else end energy engine
    enough enter equal even event ever every example expect experience eye face fact fall family
    famous far farm fast father favor fear feel feet few field fight figure fill final find fine
    finger finish fire first fish fit five flat floor flow flower fly follow food foot for force
    form forward found four free fresh friend from front full game garden gas gave general get girl
    give glass go gold gone good got government grand grass gray great green ground group grow guess
    hair half hand happen happy hard has hat have head
    """.split()  # noqa: SIM905 - a page of words reads as text
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """tokens = overhead + per_word * words, for a server's tokenizer and chat template."""

    per_word: float = 1.0
    overhead: int = 0  # the template's own tokens, added to every prompt
    shared: int = 0  # counted tokens of the system message and tools; 0: none, or not counted

    def words(self, tokens: int) -> int:
        """Return the words for a prompt of about `tokens` tokens, template included; at least 1."""
        own_tokens = tokens - self.overhead
        return max(1, round(own_tokens / self.per_word))


def calibrate(count: Callable[[str], int], words: int = 256) -> Calibration:
    """Fit a line through two prompts; `count` returns their tokens (`/tokenize` or `usage`)."""
    rng = Random("calibrate")  # noqa: S311 - not a secret
    short = words // 8
    short_tokens = count(prompt_text(short, rng))
    long_tokens = count(prompt_text(words, rng))
    per_word = max((long_tokens - short_tokens) / (words - short), 0.1)
    overhead = round(short_tokens - per_word * short)
    return Calibration(per_word, max(0, overhead))


@cache
def _filler() -> tuple[str, tuple[int, ...]]:
    """Return a fixed text and the offset of each word; its end can be joined to its start."""
    drawn = Random("filler").choices(WORDS, k=TEXT_WORDS)  # noqa: S311 - not a secret
    starts = []
    at = 0
    for word in drawn:
        starts.append(at)
        at += len(word) + 1
    return " ".join(drawn) + " ", tuple(starts)


@cache
def _filler_ids() -> tuple[int, ...]:
    return tuple(Random("filler").choices(TOKEN_IDS, k=TEXT_WORDS))  # noqa: S311 - not a secret


class HashedDraws:
    """A few draws that depend on a key alone, in a tenth of the time that seeding a Random takes.

    Same in every process and on every machine. 192 bits in total: the first eight words of a prompt
    and the place of its slice take 80 of them, eight token ids and a place 120.
    """

    def __init__(self, key: str) -> None:
        digest = blake2b(key.encode(), digest_size=24).digest()
        self._left = int.from_bytes(digest, "big")

    def randrange(self, stop: int) -> int:
        self._left, drawn = divmod(self._left, stop)
        return drawn

    def choices(self, population: Sequence[_T], *, k: int) -> list[_T]:
        left = self._left
        n = len(population)
        drawn = []
        for _ in range(k):
            left, place = divmod(left, n)
            drawn.append(population[place])
        self._left = left
        return drawn


def prompt_text(words: int, rng: Random | HashedDraws) -> str:
    """Return `words` English words: the first ones from `rng`, the rest a slice of a fixed text."""
    head = rng.choices(WORDS, k=min(words, UNIQUE_WORDS))
    need = words - len(head)
    if need <= 0:
        return " ".join(head)
    text, starts = _filler()
    whole, part = divmod(need, TEXT_WORDS)
    first = rng.randrange(TEXT_WORDS - part)
    rest = text[starts[first] : starts[first + part]]
    body = text * whole + rest
    return f"{' '.join(head)} {body.rstrip()}"


def prompt_ids(tokens: int, rng: Random | HashedDraws) -> tuple[int, ...]:
    """Return exactly `tokens` token ids: the first ones from `rng`, the rest a fixed slice."""
    head = tuple(rng.choices(TOKEN_IDS, k=min(tokens, UNIQUE_WORDS)))
    whole, part = divmod(tokens - len(head), TEXT_WORDS)
    ids = _filler_ids()
    first = rng.randrange(TEXT_WORDS - part)
    return head + ids * whole + ids[first : first + part]
