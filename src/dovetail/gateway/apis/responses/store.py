"""Stored responses, so that a client can go on from one by its id.

A response that cannot be written is not stored, and the answer says so.
"""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec

from dovetail.gateway.store.interface import DEFAULT_LIMITS, Store, StoreLimits, Table
from dovetail.gateway.store.sqlite import entries_in

TABLE = Table("responses", {"id": str, "previous": str, "input": bytes, "body": bytes, "record": str}, keys=("id",))


class StoredResponse(msgspec.Struct, frozen=True):
    """A finished response.

    `previous`: the id of the response that it goes on from. `created`: seconds since the epoch. `input`: the input
    items as a JSON list. `body`: the response object as JSON. `record`: see `PreparedTurn.record`; "" for none.
    """

    id: str
    previous: str | None
    created: int
    input: bytes
    body: bytes
    record: str

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.input) + len(self.body) + len(self.record)


class ResponseStore:
    """The responses of one owner in the file at a path, or in a store that gateways share. Calls block."""

    def __init__(self, place: Path | Store, owner: str = "", limits: StoreLimits = DEFAULT_LIMITS) -> None:
        self._entries = entries_in(place, TABLE, limits).of(owner)

    def of(self, owner: str) -> ResponseStore:
        """The responses of another owner in the same store."""
        other = copy.copy(self)
        other._entries = self._entries.of(owner)
        return other

    def put(self, response: StoredResponse) -> None:
        """Store `response`, in the place of the oldest ones of those who have most. Raises `StoreError`."""
        self._entries.put(msgspec.structs.asdict(response), response.size)

    def get(self, name: str) -> StoredResponse | None:
        """The response with the id `name`; None if there is none, or not any more. Raises `StoreError`."""
        rows = self._entries.find(StoredResponse.__struct_fields__, "id", (name,))
        return StoredResponse(*rows[0]) if rows else None

    def delete(self, name: str) -> bool:
        """Delete the response with the id `name`. False if there is none. Raises `StoreError`."""
        return self.get(name) is not None and self._entries.delete("id", name) > 0

    def close(self) -> None:
        """Close the store. The next call opens it again."""
        self._entries.close()
