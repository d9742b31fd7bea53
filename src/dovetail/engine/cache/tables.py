"""Which blocks hold which sequence, in order of position; prompts that begin alike share the blocks of their beginning.

A full block is published under a digest of every token it depends on: the block before it and its own tokens, and
`lookahead` more where a row depends on tokens behind it (an EAGLE slot holds the token after its own). So blocks with
equal keys hold what the same computation would write. The digest is cryptographic, because a prompt that collides with
somebody else's would read their cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.engine.cache.blocks import BlockPool
from dovetail.errors import EngineError

_ROOT = b""


class BlockTable:
    """The cache rows of one sequence by position."""

    __slots__ = ("_first", "_index", "_size", "_within", "blocks", "keys")

    def __init__(self, block_size: int) -> None:
        self.blocks: list[int] = []
        # Of the blocks published or found so far, a prefix of `blocks`.
        self.keys: list[bytes] = []
        self._size = block_size
        self._within = torch.arange(block_size)
        self._first: int | None = None
        self._index = torch.empty(0, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """How many positions have rows."""
        return len(self.blocks) * self._size

    def append(self, block: int) -> None:
        """The next `block_size` positions lie in `block`."""
        if not self.blocks:
            self._first = block * self._size
        elif self._first is not None and block != self.blocks[-1] + 1:
            self._first = None
        self.blocks.append(block)

    def of(self, start: int, end: int) -> list[int]:
        """Rows of positions ``start:end``."""
        assert end <= self.capacity, "these rows would be somebody else's"
        if self._first is not None:
            return list(range(self._first + start, self._first + end))
        size, blocks = self._size, self.blocks
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    def up_to(self, end: int) -> slice | Tensor:
        """Rows of positions ``0:end``, as an index into the cache: a slice where the blocks lie side by side."""
        if self._first is not None:
            return slice(self._first, self._first + end)
        if len(self._index) < end:
            starts = torch.tensor(self.blocks).unsqueeze(1) * self._size
            self._index = (starts + self._within).flatten()
        return self._index[:end]


class Tables:
    """The tables of every sequence in one cache, by owner. `lookahead`: see above; `share` False finds nothing."""

    def __init__(self, pool: BlockPool, *, lookahead: int = 0, share: bool = True) -> None:
        self.pool = pool
        self._lookahead = lookahead
        self._share = share
        self._tables: dict[str, BlockTable] = {}
        # Keys of the full blocks of what an owner brought along, and how many tokens that was.
        self._keys: dict[str, tuple[int, list[bytes]]] = {}
        # Keys of prompt blocks that their owner is going to publish: whoever begins alike does better to wait.
        self._coming: dict[str, set[bytes]] = {}

    def __getitem__(self, owner: str) -> BlockTable:
        return self._tables[owner]

    def __contains__(self, owner: str) -> bool:
        return owner in self._tables

    def hash(self, owner: str, tokens: Sequence[int]) -> None:
        """Make ahead of time the keys that `would_find` and `begin` need."""
        self._prompt_keys(owner, tokens)

    def knows(self, owner: str, tokens: Sequence[int]) -> bool:
        """Whether there is nothing to make."""
        known = self._keys.get(owner)
        return not self._share or (known is not None and known[0] == len(tokens))

    def begin(self, owner: str, tokens: Sequence[int], limit: int | None = None) -> int:
        """Open a table; returns how many positions at its start hold what `tokens` begin with. Never all of them:
        whoever computes the last token learns what follows. `limit` caps it, in tokens."""
        table = self._tables[owner] = BlockTable(self.pool.block_size)
        keys = self._prompt_keys(owner, tokens)
        found = self._found(keys, limit)
        for key, block in zip(keys, found, strict=False):
            self.pool.share(block)
            table.append(block)
            table.keys.append(key)
        self._coming[owner] = set(keys[len(found) :])
        return table.capacity

    def would_find(self, owner: str, tokens: Sequence[int]) -> tuple[int, int, bool]:
        """What `begin` would meet: how many positions it would find, how many of their blocks nobody holds now, and
        whether somebody is computing the block after them at this moment."""
        keys = self._prompt_keys(owner, tokens)
        found = self._found(keys, None)
        idle = sum(self.pool.is_idle(block) for block in found)
        following = keys[len(found)] if len(found) < len(keys) else None
        coming = following is not None and any(following in keys for keys in self._coming.values())
        return len(found) * self.pool.block_size, idle, coming

    def reserve(self, owner: str, positions: int) -> bool:
        """Grow the table to hold `positions`; False, and the table as it was, when the pool has not that many."""
        table = self._tables[owner]
        missing = self.pool.blocks_for(positions) - len(table.blocks)
        if missing > 0 and missing > self.pool.free:
            return False
        for _ in range(missing):
            block = self.pool.take(table.blocks[-1] if table.blocks else None)
            assert block is not None
            table.append(block)
        return True

    def publish(self, owner: str, tokens: Sequence[int], computed: int) -> None:
        """The first `computed` of `tokens` are in the cache: full blocks among them can be found from now on."""
        if not self._share:
            return
        table = self._tables[owner]
        size = self.pool.block_size
        full = min(computed, len(tokens) - self._lookahead) // size
        brought = self._keys[owner][1]
        for i in range(len(table.keys), full):
            key = brought[i] if i < len(brought) else self._key(table.keys[-1] if table.keys else _ROOT, tokens, i)
            table.keys.append(key)
            self.pool.publish(table.blocks[i], key)
            self._coming[owner].discard(key)

    def release(self, owner: str) -> None:
        """Close `owner`'s table, if it has one, and forget what it brought."""
        self._keys.pop(owner, None)
        table = self._tables.pop(owner, None)
        if table is not None:
            self._coming.pop(owner, None)
            self.pool.release(table.blocks)

    def check_integrity(self, owners: set[str]) -> None:
        """Raise `EngineError` unless the pool is whole and exactly `owners` have tables."""
        if set(self._tables) != owners:
            raise EngineError(f"blocks are held by {sorted(self._tables)}, but {sorted(owners)} are running")
        self.pool.check_integrity(table.blocks for table in self._tables.values())

    def _found(self, keys: Sequence[bytes], limit: int | None) -> list[int]:
        found: list[int] = []
        for key in keys if limit is None else keys[: limit // self.pool.block_size]:
            block = self.pool.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def _prompt_keys(self, owner: str, tokens: Sequence[int]) -> list[bytes]:
        """Keys of the full blocks of `tokens`, without the block that holds the last token."""
        if not self._share:
            return []
        if self.knows(owner, tokens):
            return self._keys[owner][1]
        keys: list[bytes] = []
        for i in range((len(tokens) - max(1, self._lookahead)) // self.pool.block_size):
            keys.append(self._key(keys[-1] if keys else _ROOT, tokens, i))
        self._keys[owner] = len(tokens), keys
        return keys

    def _key(self, before: bytes, tokens: Sequence[int], i: int) -> bytes:
        size = self.pool.block_size
        own = array("q", tokens[i * size : (i + 1) * size + self._lookahead])
        return hashlib.blake2b(before + own.tobytes(), digest_size=16).digest()
