"""The pool of KV cache blocks: which are free, and who holds which.

A block is `block_size` consecutive rows of every layer's cache, the drafter's too. Invariants, held between calls and
checked by `check_integrity`:

1. every block is either free or held by exactly one owner;
2. free blocks are known in ascending order, so that an owner gets blocks that lie side by side whenever there are
   enough;
3. an owner's table holds blocks in order of position and is never empty.
"""

from __future__ import annotations

from dovetail.errors import EngineError


class BlockPool:
    """Blocks 0 to `total - 1`."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._free = list(range(total))
        self._tables: dict[str, tuple[int, ...]] = {}

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` rows take."""
        return -(-tokens // self.block_size)

    def allocate(self, owner: str, tokens: int) -> tuple[int, ...] | None:
        """A block table for `tokens` rows, side by side where a long enough run is free; None when there is no room."""
        count = self.blocks_for(tokens)
        if count > len(self._free):
            return None
        start = self._run(count)
        table = tuple(self._free[start : start + count])
        del self._free[start : start + count]
        self._tables[owner] = table
        return table

    def release(self, owner: str) -> None:
        """Give `owner`'s blocks back."""
        self._free = sorted(self._free + list(self._tables.pop(owner)))

    def check_integrity(self, owners: set[str]) -> None:
        """Raise `EngineError` unless the invariants hold and exactly `owners` hold blocks."""
        if set(self._tables) != owners:
            raise EngineError(f"blocks are held by {sorted(self._tables)}, but {sorted(owners)} are running")
        held = [block for table in self._tables.values() for block in table]
        if sorted(held + self._free) != list(range(self.total)):
            raise EngineError(f"{len(held)} blocks held and {len(self._free)} free are not the pool's {self.total}")
        if self._free != sorted(self._free) or not all(self._tables.values()):
            raise EngineError("free blocks are out of order, or a block table is empty")

    def _run(self, count: int) -> int:
        """Where in the free list the first run of `count` neighbouring blocks starts; 0 when there is none."""
        for start in range(len(self._free) - count + 1):
            if self._free[start + count - 1] - self._free[start] == count - 1:
                return start
        return 0
