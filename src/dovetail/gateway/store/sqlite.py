"""Entries in a SQLite file, which several processes of one machine may share.

It can be read while something keeps it from being written. A file that SQLite finds damaged is moved aside, and a new
one is begun.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from dovetail.gateway.store.interface import Entries, Store, StoreError, StoreLimits, Table, Value

T = TypeVar("T")

_LOG = logging.getLogger("dovetail.gateway")

#: Seconds to wait for another process that writes, and to wait again as long as one has taken longer than that.
_LOCK_TIMEOUT, _NEXT_TIMEOUT = 2.0, 0.005

#: Parameters of a query; SQLite before 3.32 takes 999.
_MOST_PARAMETERS = 900
#: A file with another version is moved aside.
_VERSION = 1
#: With the plus, SQLite does not look for all entries of the owner first.
_OWNED = "+owner = ?"
_TYPES: dict[type, str] = {str: "TEXT", bytes: "BLOB"}


def _layout(table: Table) -> str:
    """The SQL that writes the layout of `table` to a file that lacks it, or a part of it."""
    columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in table.columns.items())
    indexes = "".join(f"CREATE INDEX IF NOT EXISTS by_{key} ON {table.name} ({key});" for key in table.keys)
    return f"""
        BEGIN IMMEDIATE;
        CREATE TABLE IF NOT EXISTS {table.name} (
            {columns}, owner TEXT NOT NULL, created INTEGER NOT NULL, size INTEGER NOT NULL);
        CREATE INDEX IF NOT EXISTS by_age ON {table.name} (created, size);
        CREATE INDEX IF NOT EXISTS by_owner ON {table.name} (owner);
        {indexes}
        CREATE TABLE IF NOT EXISTS shares (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, size INTEGER NOT NULL);
        CREATE TRIGGER IF NOT EXISTS stored AFTER INSERT ON {table.name} BEGIN
            INSERT INTO shares VALUES (new.owner, 1, new.size)
                ON CONFLICT (owner) DO UPDATE SET number = number + 1, size = size + new.size;
        END;
        CREATE TRIGGER IF NOT EXISTS dropped AFTER DELETE ON {table.name} BEGIN
            UPDATE shares SET number = number - 1, size = size - old.size WHERE owner = old.owner;
            DELETE FROM shares WHERE owner = old.owner AND number = 0;
        END;
        DELETE FROM shares;
        INSERT INTO shares SELECT owner, count(*), total(size) FROM {table.name} GROUP BY owner;
        PRAGMA user_version = {_VERSION};
        COMMIT;
    """


class SQLiteEntries:
    """The entries of one owner in a file that others may share: see `Entries`."""

    def __init__(self, path: Path, table: Table, limits: StoreLimits) -> None:
        self._reader, self._writer = _Connection(path, table, needs=table.name), _Connection(path, table, "shares")
        self._table = table
        self._limits = limits
        self.owner = ""

    def of(self, owner: str) -> Self:
        other = copy.copy(self)
        other.owner = owner
        return other

    def put(self, entry: Mapping[str, Value], size: int) -> None:
        if size > self._limits.size:
            raise StoreError(f"it has {size} bytes, and the store holds {self._limits.size}")
        row = {"created": int(time.time()), **entry, "owner": self.owner, "size": size}
        names, places = ", ".join(row), ", ".join("?" * len(row))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            self._drop_alike(connection, entry)
            self._make_room(connection, size)
            connection.execute(f"INSERT INTO {self._table.name} ({names}) VALUES ({places})", (*row.values(),))
            connection.execute("COMMIT")

        self._writer.run(write)

    def find(self, columns: Sequence[str], key: str, values: Collection[Value]) -> list[tuple[Any, ...]]:
        return self._select(", ".join(columns), key, values)

    def known(self, key: str, values: Collection[Value]) -> set[Any]:
        return {row[0] for row in self._select(f"DISTINCT {key}", key, values)}

    def delete(self, key: str, value: Value) -> int:
        query, parameters = f"DELETE FROM {self._table.name} WHERE {key} = ? AND {_OWNED}", (value, self.owner)
        return self._writer.run(lambda connection: connection.execute(query, parameters).rowcount)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _select(self, columns: str, key: str, values: Collection[Value]) -> list[tuple[Any, ...]]:
        wanted = [*values]

        def select(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = []
            for at in range(0, len(wanted), _MOST_PARAMETERS):
                part = wanted[at : at + _MOST_PARAMETERS]
                places = ", ".join("?" * len(part))
                where = f"{key} IN ({places}) AND {_OWNED} AND +created > ?"
                query = f"SELECT {columns} FROM {self._table.name} WHERE {where}"
                rows += connection.execute(query, (*part, self.owner, self._oldest)).fetchall()
            return rows

        return self._reader.run(select) if wanted else []

    @property
    def _oldest(self) -> int:
        """Entries that were created up to then do not count any more."""
        return int(time.time()) - self._limits.age

    def _drop_alike(self, connection: sqlite3.Connection, entry: Mapping[str, Value]) -> None:
        if self._table.alike is None:
            return
        first, second = self._table.alike
        query = f"SELECT rowid, {second} FROM {self._table.name} WHERE {first} = ? AND {_OWNED} ORDER BY rowid"
        rows = connection.execute(query, (entry[first], self.owner)).fetchall()
        same = [number for number, value in rows if value == entry[second]]
        old = same or [number for number, _ in rows[:-1]]
        connection.executemany(f"DELETE FROM {self._table.name} WHERE rowid = ?", [(row,) for row in old])

    def _make_room(self, connection: sqlite3.Connection, size: int) -> None:
        """Delete what is too old, and then the oldest of those who have most, until there is room for `size` bytes.

        The oldest is the one that was stored first, whatever the clock was.
        """
        table = self._table.name
        connection.execute(f"DELETE FROM {table} WHERE created <= ?", (self._oldest,))
        shares = Counter[str](), Counter[str]()
        for owner, number, stored in connection.execute("SELECT owner, number, size FROM shares"):
            shares[0][owner], shares[1][owner] = number, stored
        shares[0][self.owner] += 1
        shares[1][self.owner] += size
        for share, limit in zip(shares, (self._limits.entries, self._limits.size), strict=True):
            while share.total() > limit:
                most = max(share, key=lambda owner: (share[owner], owner != self.owner))
                oldest = f"SELECT rowid, size FROM {table} WHERE owner = ? ORDER BY rowid LIMIT 1"
                row = connection.execute(oldest, (most,)).fetchone()
                if row is None:
                    raise sqlite3.OperationalError("the entry is larger than its owner's share")
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", row[:1])
                shares[0][most] -= 1
                shares[1][most] -= row[1]


class _Connection:
    """A connection to the SQLite file at `path`, opened when it is needed, for one thread at a time.

    It writes the layout only to a file without the table `needs`, so what is there can be read when nothing can be
    written.
    """

    def __init__(self, path: Path, table: Table, needs: str) -> None:
        self._path = path
        self._table = table
        self._needs = needs
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0  # of the file that is open
        self._failing = False

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        self._close()

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work`. A damaged file is moved aside, and `work` done once more with a new one."""
        with self._lock:
            try:
                result = self._repaired(work)
            except (sqlite3.Error, OSError) as error:
                self._undo()
                level = logging.DEBUG if self._failing else logging.WARNING  # a full disk would fill the log as well
                _LOG.log(level, "the store of %s failed: %s: %s", self._table.name, self._path, error)
                self._wait_for(_NEXT_TIMEOUT)
                raise StoreError(f"{self._path}: {error}") from error
            if self._failing:
                self._wait_for(_LOCK_TIMEOUT)
            return result

    def _wait_for(self, seconds: float) -> None:
        """Wait so long for other processes from now on. Each request would wait if the first one's wait was in vain."""
        self._failing = seconds < _LOCK_TIMEOUT
        if self._connection is not None:
            self._connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def _undo(self) -> None:
        """End what has failed. The connection stays: to open it again may take space on the disk."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._close()

    def _repaired(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._opened())
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._move_aside(error)
            return work(self._opened())

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode_at_path() != self._inode:
            self._close()  # another process has moved the file aside, or somebody deleted it
        if self._connection is None:
            self._connection = self._open()
            self._inode = self._inode_at_path()
        return self._connection

    def _inode_at_path(self) -> int:
        try:
            return self._path.stat().st_ino
        except FileNotFoundError:
            return 0

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would make the file readable for others. Its journals get the mode of the file.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.chmod(self._path, 0o600)
        timeout = _NEXT_TIMEOUT if self._failing else _LOCK_TIMEOUT
        connection = sqlite3.connect(self._path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            # A crash of the process loses nothing, and one of the machine the last entries at most.
            _use_wal(connection, timeout)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 4194304")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"{_NOT_OURS}: version {version}")
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self._needs,)).fetchone():
                connection.executescript(_layout(self._table))
        except BaseException:
            connection.close()
            raise
        return connection

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        inode = self._inode
        self._close()
        if self._inode_at_path() != inode != 0:
            return  # another process was faster
        aside = self._path.with_name(f"{self._path.name}.damaged")
        _LOG.warning("%s is damaged (%s): it is moved to %s, and a new one begun", self._path, error, aside)
        os.replace(self._path, aside)
        for journal in ("-wal", "-shm"):  # they belong to the file that is gone
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{journal}")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_NOT_OURS = "not a file of this version"
_DAMAGE = ("malformed", "not a database", _NOT_OURS, "no such table", "no such column", "has no column")


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Let the file be read while it is written. SQLite does not wait where two processes do this to a new file."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.001)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is at fault, and not a lock or the disk."""
    return any(sign in str(error) for sign in _DAMAGE)


def entries_in(place: Path | Store, table: Table, limits: StoreLimits) -> Entries:
    """The entries of `table` in the file of that path, or in a store that several gateways share."""
    return SQLiteEntries(place, table, limits) if isinstance(place, Path) else place.entries(table, limits)
