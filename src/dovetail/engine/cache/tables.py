"""Block tables: which blocks each sequence uses, in order of position. Prompts share the blocks of a common prefix.

A full block is published under a key: a digest of every token that its rows depend on. These are the tokens up to the
end of the block, and `lookahead` more where a row depends on later tokens (an EAGLE slot holds the token after its
own). So blocks with equal keys hold equal rows. The digest is cryptographic, because a request whose prompt had the key
of another prompt would read that prompt's cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.engine.cache.blocks import BlockPool
from dovetail.errors import EngineError


class BlockTable:
    """The cache rows of one sequence, by position."""

    __slots__ = ("_first", "_index", "_size", "_within", "blocks", "keys", "salt")

    def __init__(self, block_size: int, salt: bytes = b"") -> None:
        self.blocks: list[int] = []
        # What the first key depends on beside its tokens.
        self.salt = salt
        # Keys of the blocks that were published or found so far: a prefix of `blocks`.
        self.keys: list[bytes] = []
        self._size = block_size
        self._within = torch.arange(block_size)
        self._first: int | None = None
        self._index = torch.empty(0, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """How many positions have a row."""
        return len(self.blocks) * self._size

    def append(self, block: int) -> None:
        """Use `block` for the next `block_size` positions."""
        if not self.blocks:
            self._first = block * self._size
        elif self._first is not None and block != self.blocks[-1] + 1:
            self._first = None
        self.blocks.append(block)

    def of(self, start: int, end: int) -> list[int]:
        """Rows of positions ``start:end``."""
        assert end <= self.capacity, "these rows belong to another sequence"
        if self._first is not None:
            return list(range(self._first + start, self._first + end))
        size, blocks = self._size, self.blocks
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    def up_to(self, end: int) -> slice | Tensor:
        """Rows of positions ``0:end``, as an index into the cache: a slice where the blocks are contiguous."""
        if self._first is not None:
            return slice(self._first, self._first + end)
        if len(self._index) < end:
            starts = torch.tensor(self.blocks).unsqueeze(1) * self._size
            self._index = (starts + self._within).flatten()
        return self._index[:end]


class Tables:
    """The tables of every sequence in one cache, by owner.

    `lookahead`: how many later tokens a row depends on. `share`: whether prompts share blocks.
    """

    def __init__(self, pool: BlockPool, *, lookahead: int = 0, share: bool = True) -> None:
        self.pool = pool
        self._lookahead = lookahead
        self._share = share
        self._tables: dict[str, BlockTable] = {}
        # By owner: how many tokens its prompt has, and the keys of the prompt's full blocks.
        self._keys: dict[str, tuple[int, list[bytes]]] = {}
        # By owner: keys of the prompt blocks that it will publish. A request with the same prefix should wait for them.
        self._in_progress: dict[str, set[bytes]] = {}

    def __getitem__(self, owner: str) -> BlockTable:
        return self._tables[owner]

    def __contains__(self, owner: str) -> bool:
        return owner in self._tables

    def hash(self, owner: str, tokens: Sequence[int], salt: bytes = b"") -> None:
        """Compute the keys that `find_cached` and `begin` need, ahead of time.

        Prompts with different salts share no blocks.
        """
        self._prompt_keys(owner, tokens, salt)

    def has_keys(self, owner: str, tokens: Sequence[int]) -> bool:
        """Whether the keys of this prompt are computed, or none are needed."""
        computed = self._keys.get(owner)
        return not self._share or (computed is not None and computed[0] == len(tokens))

    def begin(self, owner: str, tokens: Sequence[int], limit: int | None = None, salt: bytes = b"") -> int:
        """Open a table with the cached blocks of the prompt `tokens`, and return how many positions these cover.

        At most `limit` positions, and never all: the last token is computed again, to get its logits.
        """
        table = self._tables[owner] = BlockTable(self.pool.block_size, salt)
        keys = self._prompt_keys(owner, tokens, salt)
        cached = self._cached_blocks(keys, limit)
        for key, block in zip(keys, cached, strict=False):
            self.pool.share(block)
            table.append(block)
            table.keys.append(key)
        self._in_progress[owner] = set(keys[len(cached) :])
        return table.capacity

    def find_cached(
        self, owner: str, tokens: Sequence[int], limit: int | None = None, salt: bytes = b""
    ) -> tuple[int, int, bool]:
        """How many positions `begin` would find in the cache, how many of their blocks no sequence uses now, and
        whether a running sequence is computing the block after them. At most `limit` positions count."""
        keys = self._prompt_keys(owner, tokens, salt)
        keys = keys if limit is None else keys[: limit // self.pool.block_size]
        cached = self._cached_blocks(keys, None)
        idle = sum(self.pool.is_idle(block) for block in cached)
        following = keys[len(cached)] if len(cached) < len(keys) else None
        in_progress = following is not None and any(following in keys for keys in self._in_progress.values())
        return len(cached) * self.pool.block_size, idle, in_progress

    def reserve(self, owner: str, positions: int) -> bool:
        """Grow the table to this many `positions`. False, and no change, when the pool has too few free blocks."""
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
        """Publish the full blocks among the first `computed` of `tokens`, which are in the cache now."""
        if not self._share:
            return
        table = self._tables[owner]
        size = self.pool.block_size
        full = min(computed, len(tokens) - self._lookahead) // size
        prompt_keys = self._keys[owner][1]
        for i in range(len(table.keys), full):
            key = (
                prompt_keys[i]
                if i < len(prompt_keys)
                else self._key(table.keys[-1] if table.keys else table.salt, tokens, i)
            )
            table.keys.append(key)
            self.pool.publish(table.blocks[i], key)
            self._in_progress[owner].discard(key)

    def release(self, owner: str) -> None:
        """Close the table of `owner`, if it has one, and forget its keys."""
        self._keys.pop(owner, None)
        table = self._tables.pop(owner, None)
        if table is not None:
            self._in_progress.pop(owner, None)
            self.pool.release(table.blocks)

    def check_integrity(self, owners: set[str]) -> None:
        """Raise `EngineError` unless the pool's invariants hold and exactly `owners` have tables."""
        if set(self._tables) != owners:
            raise EngineError(f"{sorted(self._tables)} have blocks, but {sorted(owners)} are running")
        self.pool.check_integrity(table.blocks for table in self._tables.values())

    def _cached_blocks(self, keys: Sequence[bytes], limit: int | None) -> list[int]:
        blocks: list[int] = []
        for key in keys if limit is None else keys[: limit // self.pool.block_size]:
            block = self.pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _prompt_keys(self, owner: str, tokens: Sequence[int], salt: bytes) -> list[bytes]:
        """Keys of the full blocks of `tokens`, without the block that holds the last token."""
        if not self._share:
            return []
        if self.has_keys(owner, tokens):
            return self._keys[owner][1]
        keys: list[bytes] = []
        for i in range((len(tokens) - max(1, self._lookahead)) // self.pool.block_size):
            keys.append(self._key(keys[-1] if keys else salt, tokens, i))
        self._keys[owner] = len(tokens), keys
        return keys

    def _key(self, before: bytes, tokens: Sequence[int], i: int) -> bytes:
        size = self.pool.block_size
        own = array("q", tokens[i * size : (i + 1) * size + self._lookahead])
        return hashlib.blake2b(before + own.tobytes(), digest_size=16).digest()
