"""Responses on disk, so that a client can go on from one by its id.

A response that cannot be written is not stored, and the answer says so.
"""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec

from dovetail.gateway.bounded_file import BoundedFile, FileLimits, Table

_TABLE = Table(
    "responses", "id TEXT PRIMARY KEY, previous TEXT, input BLOB NOT NULL, body BLOB NOT NULL, record TEXT NOT NULL"
)


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
    """The responses of one owner in a file that others may share: see `BoundedFile`."""

    def __init__(self, path: Path, owner: str = "", limits: FileLimits | None = None) -> None:
        self._file = BoundedFile(path, _TABLE, owner, limits)

    def of(self, owner: str) -> ResponseStore:
        """The responses of another owner in the same file, through the same connection."""
        other = copy.copy(self)
        other._file = self._file.of(owner)
        return other

    def put(self, response: StoredResponse) -> None:
        """Store `response`, in the place of the oldest ones of those who have most. Raises `StoreError`."""
        self._file.put(msgspec.structs.asdict(response), response.size)

    def get(self, name: str) -> StoredResponse | None:
        """The response with the id `name`; None if there is none, or not any more. Raises `StoreError`."""
        columns = ", ".join(StoredResponse.__struct_fields__)
        query = f"SELECT {columns} FROM responses WHERE id = ? AND owner = ? AND created > ?"
        parameters = (name, self._file.owner, self._file.oldest)
        row = self._file.read(lambda connection: connection.execute(query, parameters).fetchone())
        return None if row is None else StoredResponse(*row)

    def delete(self, name: str) -> bool:
        """Delete the response with the id `name`. False if there is none. Raises `StoreError`."""
        if self.get(name) is None:
            return False
        query, parameters = "DELETE FROM responses WHERE id = ? AND owner = ?", (name, self._file.owner)
        return bool(self._file.write(lambda connection: connection.execute(query, parameters).rowcount))

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        self._file.close()
