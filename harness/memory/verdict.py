"""Whether requests fit: yes, no, or not to be said. What is not known is never a yes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from harness.memory.kv_layout import usable


class Why(Enum):
    """What decides."""

    BLOCKS = "blocks"  # the KV cache holds them, or does not
    SLOTS = "slots"  # more requests than --max-num-seqs
    START = "start"  # one request of --max-model-len: vLLM does not start without room for it
    SHAPE = "shape"  # vLLM does not divide the weights like that
    OVERFLOW = "overflow"  # weights and the rest leave no KV cache
    NO_WEIGHTS = "weights"  # not known
    NO_MEMORY = "memory"  # not known
    RESERVE = "reserve"  # what vLLM keeps for itself would decide


DO_NOT_START: Final = (Why.START, Why.SHAPE, Why.OVERFLOW)  # vLLM ends with an error


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks of one engine's KV cache."""

    least: int  # with the most that vLLM may keep for itself
    likely: int
    most: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fits` None: it cannot be said."""

    fits: bool | None
    why: Why


def judge(need_blocks: int, start_blocks: int, room: Room) -> Verdict:
    """Compare what requests, and the longest one that the server must hold, need with the room."""
    why = Why.START if start_blocks > need_blocks else Why.BLOCKS
    need = max(need_blocks, start_blocks)
    if need <= usable(room.least):
        return Verdict(True, Why.BLOCKS)
    if need > usable(room.most):
        return Verdict(False, why)
    return Verdict(None, Why.RESERVE)
