"""Paged KV blocks: free blocks are counted, cached prefixes are shared by the hash of a block."""

# Nothing is stored in the blocks, so they need no numbers: counting them is enough. Only blocks
# that prefix caching can find again have an identity, their chained hash.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvBlocks:
    """`total` blocks: each is free, private to a request, or cached under a hash.

    A cached block without a user is kept until its space is needed; the least recently used goes
    first.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.private = 0
        self._users: dict[int, int] = {}  # hash -> requests that use the block now
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, unused, oldest first

    @property
    def used(self) -> int:
        return self.private + len(self._users)

    @property
    def available(self) -> int:
        return self.total - self.private - len(self._users)

    def take(self, count: int) -> bool:
        """Allocate `count` private blocks; return False and allocate none if there are fewer."""
        left = self.total - self.private - len(self._users) - count
        if left < 0:
            return False
        self.private += count
        # What is cached and unused counts as free: it goes as far as its room is needed.
        while len(self._idle) > left:
            self._idle.popitem(last=False)
        return True

    def give(self, count: int) -> None:
        self.private -= count

    def find(self, hashes: Sequence[int]) -> int:
        for index, value in enumerate(hashes):
            if value not in self._users and value not in self._idle:
                return index
        return len(hashes)

    def share(self, hashes: Sequence[int]) -> None:
        for value in hashes:
            self._idle.pop(value, None)
            self._users[value] = self._users.get(value, 0) + 1

    def publish(self, hashes: Sequence[int]) -> list[int]:
        """Turn private blocks into cached ones, except those that are cached already.

        Returns the hashes of the new cached blocks, which this request uses.
        """
        new = [value for value in hashes if value not in self._users and value not in self._idle]
        self.private -= len(new)
        for value in new:
            self._users[value] = 1
        return new

    def release(self, hashes: Sequence[int]) -> None:
        """Remove a user from these blocks; blocks without users stay cached until evicted."""
        # In reverse order: the last block of a prefix is evicted first, because nothing can find a
        # prefix whose beginning is gone.
        for value in reversed(hashes):
            left = self._users[value] - 1
            if left:
                self._users[value] = left
            else:
                del self._users[value]
                self._idle[value] = None

    def reset(self) -> None:
        """Drop cached blocks without users (POST /reset_prefix_cache)."""
        self._idle.clear()
