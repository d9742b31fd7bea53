"""The pool of KV cache blocks: which are in use, what the free ones still cache, and which is reused first.

A block is `block_size` consecutive rows of every layer's cache. A full block can be published under a key for its
content. It can be found by that key after its last user has released it, until the block is needed for something else:
least recently used first. Invariants between calls, which `check_integrity` checks:

1. every block is free or has one or more users, and its count of users is right;
2. a key belongs to one block, and that block has the key;
3. a block with several users is published.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable

from dovetail.errors import EngineError

# A sequence begins only in a free run of at least this many blocks. Every sequence that ends leaves one block that was
# not full and hence not published; sequences that began in such holes would be scattered.
_MIN_RUN = 2
_RUN = re.compile(rb"\x00+")


class BlockPool:
    """The pool of blocks 0 to `total - 1`."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._users = [0] * total
        self._keys: list[bytes | None] = [None] * total
        self._by_key: dict[bytes, int] = {}
        # Free blocks that are still published, the least recently used first. And a byte for every block, zero where
        # it is free and not published, so that a search in bytes finds a run of them.
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._releases = 0
        self._map = bytearray(total)

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return self._map.count(0) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks this many tokens take."""
        return -(-tokens // self.block_size)

    def find(self, key: bytes) -> int | None:
        """The block that is published under `key`, if there is one."""
        return self._by_key.get(key)

    def is_idle(self, block: int) -> bool:
        """Whether `block` is free."""
        return not self._users[block]

    def share(self, block: int) -> None:
        """Add a user to a block that `find` has returned."""
        self._cached.pop(block, None)
        self._users[block] += 1

    def take(self, after: int | None) -> int | None:
        """A block for a sequence whose last block is `after`; None when no block is free.

        Contiguous blocks are read in place. So this takes the next block in memory if it is free and was not used
        lately, else a block in the longest free run, else the least recently used block.
        """
        if after is not None and self._is_stale(after + 1):
            block = after + 1
        else:
            run = max(_RUN.finditer(self._map), key=lambda match: match.end() - match.start(), default=None)
            if run is not None and (run.end() - run.start() >= _MIN_RUN or not self._cached):
                # Leave the first half of the run to the sequence in front of it, which may grow.
                in_use = run.start() > 0 and self._users[run.start() - 1]
                block = (run.start() + run.end()) // 2 if in_use else run.start()
            elif self._cached:
                block = next(iter(self._cached))
                while self._is_stale(block - 1):
                    block -= 1
            else:
                return None
        self._forget(block)
        self._map[block] = 1
        self._users[block] = 1
        return block

    def publish(self, block: int, key: bytes) -> None:
        """Publish a full block under `key`. A key that belongs to another block stays there."""
        if key not in self._by_key and self._keys[block] is None:
            self._by_key[key] = block
            self._keys[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a user from each of `blocks`, which are in order of position.

        The last positions are reused first, because more prompts share the first ones.
        """
        for block in reversed(list(blocks)):
            self._users[block] -= 1
            if self._users[block] == 0:
                if self._keys[block] is None:
                    self._map[block] = 0
                else:
                    self._cached[block] = self._releases
                    self._releases += 1

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise `EngineError` unless the invariants hold and exactly `tables` use blocks."""
        used = Counter(block for table in tables for block in table)
        for block in range(self.total):
            key = self._keys[block]
            if self._users[block] != used[block]:
                raise EngineError(f"block {block} has {self._users[block]} users, but is in {used[block]} tables")
            if used[block] > 1 and key is None:
                raise EngineError(f"block {block} is shared and not published")
            if key is not None and self._by_key.get(key) != block:
                raise EngineError(f"block {block} has the key of another block")
            taken = bool(used[block]) or key is not None
            if self._map[block] != taken or (block in self._cached) != (key is not None and not used[block]):
                raise EngineError(f"block {block} is listed as free and is not, or is free and not listed")
        if len(self._by_key) != sum(key is not None for key in self._keys):
            raise EngineError("a key belongs to a block that does not have it")

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
        self._cached.pop(block, None)

    def _is_stale(self, block: int) -> bool:
        """Whether `block` exists, is free, and is not cached or in the older half of the cached blocks."""
        if not 0 <= block < self.total or self._users[block]:
            return False
        if block not in self._cached:
            return True
        oldest = self._cached[next(iter(self._cached))]
        return self._cached[block] <= (oldest + self._releases) // 2
