"""KV blocks: counting, sharing, eviction."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.kv import KvBlocks


def test_private_blocks_are_counted() -> None:
    """All or nothing is taken."""
    kv = KvBlocks(10)
    assert [kv.take(4), kv.take(7), kv.take(6), kv.take(1)] == [True, False, True, False]
    kv.give(4)
    assert kv.used == 6
    assert kv.available == 4


def cached(kv: KvBlocks, hashes: list[int]) -> None:
    """A request computed these blocks and ended."""
    assert kv.take(len(hashes))
    kv.release(kv.publish(hashes))


@pytest.mark.parametrize(
    ("hashes", "want"),
    [([1, 2, 3], 3), ([1, 2], 2), ([1, 9, 3], 1), ([9, 1], 0), ([], 0), ([1, 2, 3, 4], 3)],
)
def test_only_an_unbroken_beginning_is_found(hashes: list[int], want: int) -> None:
    """1, 2, 3 are cached."""
    kv = KvBlocks(10)
    cached(kv, [1, 2, 3])
    assert kv.find(hashes) == want


def test_a_shared_block_counts_once() -> None:
    """Three requests use 1 and 2; the last to leave makes them idle, which is not free of use."""
    kv = KvBlocks(10)
    cached(kv, [1, 2])
    used = []
    for _ in range(3):
        kv.share([1, 2])
        used.append(kv.used)
    for _ in range(3):
        kv.release([1, 2])
        used.append(kv.used)
    assert used == [2, 2, 2, 2, 2, 0]
    assert kv.find([1, 2]) == 2


def test_published_twice_is_kept_once() -> None:
    """Two requests compute the same prompt at once: the second's block 1 stays its own."""
    kv = KvBlocks(10)
    assert kv.take(4)
    assert [kv.publish([1, 2]), kv.publish([1, 3])] == [[1, 2], [3]]
    assert kv.private == 1
    assert kv.used == 4


@pytest.mark.parametrize(
    ("take", "left"),
    # 6 blocks: 1 2 3 are cached first, 4 5 after them, one is free
    [(1, [3, 2]), (2, [2, 2]), (3, [1, 2]), (4, [0, 2]), (5, [0, 1]), (6, [0, 0])],
)
def test_the_least_recently_used_goes_first_from_its_end(take: int, left: list[int]) -> None:
    """A prefix loses its last block first, so what remains can still be found."""
    kv = KvBlocks(6)
    cached(kv, [1, 2, 3])
    cached(kv, [4, 5])
    assert kv.take(take)
    assert [kv.find([1, 2, 3]), kv.find([4, 5])] == left


def test_what_is_in_use_is_never_evicted() -> None:
    """Used cached blocks are not available; a reset forgets only idle ones."""
    kv = KvBlocks(4)
    cached(kv, [1, 2])
    kv.share([1])
    assert kv.available == 3
    assert kv.take(4) is False
    assert kv.take(3) is True
    kv.give(3)
    kv.reset()
    assert kv.find([1, 2]) == 1


class Held(NamedTuple):
    """The blocks of a request."""

    private: int
    shared: list[int]


def come(kv: KvBlocks, data: Any) -> list[Held]:
    """A request of one of three families of prompts; none where there is no room for it."""
    family = 100 * data.draw(st.integers(0, 2))
    hashes = [family + i for i in range(data.draw(st.integers(0, 5)))]
    found = hashes[: kv.find(hashes)]
    kv.share(found)
    fresh = len(hashes) - len(found) + data.draw(st.integers(0, 2))
    if not kv.take(fresh):
        kv.release(found)
        return []
    new = kv.publish(hashes[len(found) :])
    return [Held(fresh - len(new), found + new)]


def leave(kv: KvBlocks, request: Held) -> None:
    """It has ended."""
    kv.give(request.private)
    kv.release(request.shared)


@given(st.data())
def test_blocks_never_leak(data: Any) -> None:
    """Requests come, share, publish and leave at random; what they hold is what is used."""
    kv = KvBlocks(12)
    held: list[Held] = []
    for _ in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            leave(kv, held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            held += come(kv, data)
        shared_now = {value for request in held for value in request.shared}
        assert kv.used == sum(request.private for request in held) + len(shared_now)
        assert kv.used <= kv.total
        assert kv.used + kv.available == kv.total
        for request in held:
            assert kv.find(request.shared) == len(request.shared)
    for request in held:
        leave(kv, request)
    assert kv.used == 0
    assert kv.private == 0
    assert kv.available == 12
    assert kv.take(12)
