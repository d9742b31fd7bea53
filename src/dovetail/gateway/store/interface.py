"""What a store is to the gateway: bounded entries that belong to owners, and one small value for each key.

`SQLite` keeps entries in files of one machine; `Redis` and `PostgreSQL` keep all of it for several gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import msgspec

#: What a column of an entry has.
Value: TypeAlias = str | bytes | int | None


class StoreLimits(msgspec.Struct, frozen=True):
    """What a store keeps at most of one kind: `entries`, together of `size` bytes, each for `age` seconds."""

    entries: int = 100_000
    size: int = 1024**3
    age: int = 30 * 24 * 3600


DEFAULT_LIMITS = StoreLimits()


class Table(NamedTuple):
    """What a store has of each entry, beside its owner, its size and when it was `created`, in seconds since the epoch.

    `name`: what the entries are. `columns`: their types, str or bytes. `keys`: the columns by which entries are found.
    `alike`: two columns: of one owner's entries with the same first one, the last two stay, with different second ones.
    """

    name: str
    columns: Mapping[str, type]
    keys: tuple[str, ...]
    alike: tuple[str, str] | None = None


class StoreError(Exception):
    """The store failed, or did not answer in time. The message is for the operator."""


class Entries(Protocol):
    """The entries of one owner. Every call blocks, so it belongs into a thread. All raise `StoreError`.

    A full store drops the oldest entry of the owner who has most of it. Nobody finds another owner's entries.
    """

    def of(self, owner: str) -> Self:
        """The entries of another owner in the same store."""

    def put(self, entry: Mapping[str, Value], size: int) -> None:
        """Store `entry` of `size` bytes, in the place of the oldest ones of those who have most."""

    def find(self, columns: Sequence[str], key: str, values: Collection[Value]) -> list[tuple[Any, ...]]:
        """The `columns` of the entries whose column `key` has one of `values`, in any order."""

    def known(self, key: str, values: Collection[Value]) -> set[Any]:
        """Those of `values` that the column `key` of an entry has."""

    def delete(self, key: str, value: Value) -> int:
        """Delete the entries whose column `key` has `value`. How many there were."""

    def close(self) -> None:
        """Close the store. A file is opened again by the next call."""


class Store(Protocol):
    """A server that several gateways share. `address`: where, without secrets. `timeout`: the seconds of a call."""

    address: str
    timeout: float

    def check(self) -> None:
        """Wait for the store, and make its tables. Raises `StoreError` if it cannot be used."""

    def entries(self, table: Table, limits: StoreLimits) -> Entries:
        """The entries of `table`, within `limits`, of the owner ""."""

    async def swap(self, key: str, old: bytes | None, new: bytes) -> bytes | None:
        """Put `new` in the place of the value `old` of `key` (None: no value), if it still has that.

        Returns the value that `key` had: `old`, or the one to try again with. Raises `StoreError`.
        """

    def close(self) -> None:
        """End all connections, for good."""
