"""Paged KV blocks: free ones are counted, cached prefixes are shared by the hash of their blocks.

Blocks have no numbers here: nothing is stored in them, so counting is enough. Only blocks that
prefix caching can find again have an identity, their chained hash.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class KvBlocks:
    """`total` blocks: each is free, private to a request, or cached under a hash.

    A cached block with no user is kept until its place is needed, the least recently used first.
    """

    def __init__(self, total: int) -> None:
        """All free."""
        self.total = total
        self.private = 0
        self._users: dict[int, int] = {}  # hash -> requests that use the block now
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, unused, oldest first

    @property
    def used(self) -> int:
        """Blocks that requests hold now."""
        return self.private + len(self._users)

    @property
    def available(self) -> int:
        """Blocks that can be had, cached idle ones included."""
        return self.total - self.private - len(self._users)

    def take(self, count: int) -> bool:
        """Make `count` blocks private; False, and nothing taken, when there are not so many."""
        left = self.total - self.private - len(self._users) - count
        if left < 0:
            return False
        self.private += count
        while len(self._idle) > left:
            self._idle.popitem(last=False)
        return True

    def give(self, count: int) -> None:
        """Private blocks become free."""
        self.private -= count

    def find(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are cached."""
        for index, value in enumerate(hashes):
            if value not in self._users and value not in self._idle:
                return index
        return len(hashes)

    def share(self, hashes: Sequence[int]) -> None:
        """One more request uses these cached blocks."""
        for value in hashes:
            self._idle.pop(value, None)
            self._users[value] = self._users.get(value, 0) + 1

    def publish(self, hashes: Sequence[int]) -> list[int]:
        """Private blocks become cached, still in use; those cached already stay private.

        Returns the hashes that are now shared by this request.
        """
        new = [value for value in hashes if value not in self._users and value not in self._idle]
        self.private -= len(new)
        for value in new:
            self._users[value] = 1
        return new

    def release(self, hashes: Sequence[int]) -> None:
        """A request stops using these; what nobody uses stays cached until evicted.

        The last block of a prefix goes first: a prefix without its beginning finds nothing.
        """
        for value in reversed(hashes):
            left = self._users[value] - 1
            if left:
                self._users[value] = left
            else:
                del self._users[value]
                self._idle[value] = None

    def reset(self) -> None:
        """Forget cached blocks that nobody uses (POST /reset_prefix_cache)."""
        self._idle.clear()
