"""The pool of KV cache blocks: who holds which, what each free one still knows, and whose turn it is to be forgotten.

A block is `block_size` consecutive rows of every layer's cache. A full block can be published under a key that says
what it holds; it stays findable after its last holder has gone, until the block is needed for something else: least
recently used first. Invariants, held between calls and checked by `check_integrity`:

1. every block is either free or held, by one or more holders, and its count of holders is true;
2. a key leads to one block, and that block carries the key;
3. blocks that are not free, and not published, have exactly one holder.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable

from dovetail.errors import EngineError

# Every sequence that ends leaves one block that was not full, hence not published: a hole of one is for neighbours, or
# tables would be scattered over such holes before anything old is forgotten.
_ROOMY = 2
_RUN = re.compile(rb"\x00+")


class BlockPool:
    """Blocks 0 to `total - 1`."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._holders = [0] * total
        self._keys: list[bytes | None] = [None] * total
        self._by_key: dict[bytes, int] = {}
        # Free blocks whose content can still be found, oldest use first; and a map of all blocks in which those that
        # are free and hold nothing are zero bytes, so that a run of them is found by a search in bytes.
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._releases = 0
        self._map = bytearray(total)

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return self._map.count(0) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` rows take."""
        return -(-tokens // self.block_size)

    def find(self, key: bytes) -> int | None:
        """The block published under `key`, if it is still there."""
        return self._by_key.get(key)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds `block`."""
        return not self._holders[block]

    def share(self, block: int) -> None:
        """One more holder of a block that `find` has returned."""
        self._cached.pop(block, None)
        self._holders[block] += 1

    def take(self, after: int | None) -> int | None:
        """A block for somebody whose last one is `after`; None when all are held.

        Sequences whose blocks lie side by side are read in place, so: the next in memory, if it is free and not among
        what was used lately; else the longest free run; else where the block lies that was used longest ago.
        """
        if after is not None and self._is_stale(after + 1):
            block = after + 1
        else:
            run = max(_RUN.finditer(self._map), key=lambda found: found.end() - found.start(), default=None)
            if run is not None and (run.end() - run.start() >= _ROOMY or not self._cached):
                # Whoever holds the block before the run can grow into its first half.
                held = run.start() > 0 and self._holders[run.start() - 1]
                block = (run.start() + run.end()) // 2 if held else run.start()
            elif self._cached:
                block = next(iter(self._cached))
                while self._is_stale(block - 1):
                    block -= 1
            else:
                return None
        self._forget(block)
        self._map[block] = 1
        self._holders[block] = 1
        return block

    def publish(self, block: int, key: bytes) -> None:
        """Say what a full block holds. A key that is known already stays with the block that has it."""
        if key not in self._by_key and self._keys[block] is None:
            self._by_key[key] = block
            self._keys[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less of each. Content near the start of a sequence is of use to more others, so it is forgotten
        after what follows it: `blocks` are in order of position."""
        for block in reversed(list(blocks)):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self._keys[block] is None:
                    self._map[block] = 0
                else:
                    self._cached[block] = self._releases
                    self._releases += 1

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise `EngineError` unless the invariants hold and exactly `tables` hold blocks."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.total):
            key = self._keys[block]
            if self._holders[block] != held[block]:
                raise EngineError(f"block {block} has {self._holders[block]} holders, but {held[block]} tables name it")
            if held[block] > 1 and key is None:
                raise EngineError(f"block {block} is shared, and nobody published what it holds")
            if key is not None and self._by_key.get(key) != block:
                raise EngineError(f"block {block} carries a key that leads elsewhere")
            taken = bool(held[block]) or key is not None
            if self._map[block] != taken or (block in self._cached) != (key is not None and not held[block]):
                raise EngineError(f"block {block} is listed as free and is not, or the other way round")
        if len(self._by_key) != sum(key is not None for key in self._keys):
            raise EngineError("a key leads to a block that does not carry it")

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
        self._cached.pop(block, None)

    def _is_stale(self, block: int) -> bool:
        """Whether `block` exists and is free, and what it holds, if anything, is of the older half."""
        if not 0 <= block < self.total or self._holders[block]:
            return False
        if block not in self._cached:
            return True
        oldest = self._cached[next(iter(self._cached))]
        return self._cached[block] <= (oldest + self._releases) // 2
