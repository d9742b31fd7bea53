"""The store of several gateways in PostgreSQL: `postgresql://[USER@]HOST[:PORT]/DATABASE[?sslmode=verify-full]`.

The tables are in the first schema of the user's search path, and the triggers count what each owner has. Entries that
are too old go when others are stored.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, sql

from dovetail.gateway.store.interface import StoreError, StoreLimits, Table, Value
from dovetail.gateway.store.remote import NewEntry, Remote

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]

#: What makes each version of the tables of the one before it. A version that was released does not change.
MIGRATIONS = (
    """
    CREATE TABLE dovetail_responses (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT, previous TEXT, input BYTEA, body BYTEA,
        record TEXT, owner TEXT NOT NULL, created BIGINT NOT NULL, size BIGINT NOT NULL);
    CREATE INDEX ON dovetail_responses (id);
    CREATE INDEX ON dovetail_responses (created);
    CREATE INDEX ON dovetail_responses (owner, number);
    CREATE TABLE dovetail_answers (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, place BYTEA, name BYTEA, turn BYTEA, record TEXT,
        calls BYTEA, answer TEXT, owner TEXT NOT NULL, created BIGINT NOT NULL, size BIGINT NOT NULL);
    CREATE INDEX ON dovetail_answers (place);
    CREATE INDEX ON dovetail_answers (name);
    CREATE INDEX ON dovetail_answers (turn);
    CREATE INDEX ON dovetail_answers (answer);
    CREATE INDEX ON dovetail_answers (created);
    CREATE INDEX ON dovetail_answers (owner, number);
    CREATE TABLE dovetail_shares (
        kind TEXT, owner TEXT, number BIGINT NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (kind, owner));
    CREATE TABLE dovetail_use (key TEXT PRIMARY KEY, value BYTEA NOT NULL);
    CREATE FUNCTION dovetail_count() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO dovetail_shares AS s VALUES (TG_TABLE_NAME, new.owner, 1, new.size)
                ON CONFLICT (kind, owner) DO UPDATE SET number = s.number + 1, size = s.size + new.size;
        ELSE
            UPDATE dovetail_shares SET number = number - 1, size = size - old.size
                WHERE kind = TG_TABLE_NAME AND owner = old.owner;
            DELETE FROM dovetail_shares WHERE kind = TG_TABLE_NAME AND owner = old.owner AND number <= 0;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER counted AFTER INSERT OR DELETE ON dovetail_responses FOR EACH ROW EXECUTE FUNCTION dovetail_count();
    CREATE TRIGGER counted AFTER INSERT OR DELETE ON dovetail_answers FOR EACH ROW EXECUTE FUNCTION dovetail_count();
    """,
)
#: Named locks of the database: for migrations, and for what is stored in a table.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('dovetail'), hashtext({}))"
_CONNECTIONS = 16
#: What is too old goes with the next entries, this number at a time.
_SWEPT = 100
_MIGRATION_S = 10.0


class PostgreSQL(Remote):
    """A store in PostgreSQL: see `Store`. `url` is as libpq takes it."""

    def __init__(self, url: str, timeout: float, password: str | None = None) -> None:
        super().__init__(url, timeout, (psycopg.Error,))
        try:
            self._parameters = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            why, secret = " ".join(f"{error}".split()), url.rpartition("@")[0]
            if secret and any(part in secret or secret in part for part in re.findall('"([^"]+)"', why)):
                why = "libpq cannot read the user or the password of this URL"  # which it repeats
            raise StoreError(f"{self.address}: {why}") from None
        self._parameters |= {} if password is None else {"password": password}
        self._idle: list[AsyncConnection[Row]] = []
        self._used: dict[asyncio.Task[Any] | None, AsyncConnection[Row]] = {}
        self._places: asyncio.Semaphore | None = None

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, _Lost) or super().is_lost(error)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        # psycopg would first ask the server, which does not answer, to end the query.
        if (connection := self._used.get(task)) is not None:
            connection.pgconn.finish()
        super().abandon(task)

    def check(self) -> None:
        timeout, self.timeout = self.timeout, _MIGRATION_S
        try:
            super().check()
        finally:
            self.timeout = timeout

    async def prepare(self) -> None:
        connection = await self._connected(timeout=_MIGRATION_S)
        try:
            async with connection.transaction():
                await connection.execute(_LOCK.format("'schema'"))
                await connection.execute("CREATE TABLE IF NOT EXISTS dovetail_schema (version INTEGER NOT NULL)")
                version = await _version(connection)
                for migration in MIGRATIONS[version:]:
                    await connection.execute(migration)
                if version < len(MIGRATIONS):
                    await connection.execute("DELETE FROM dovetail_schema")
                    await connection.execute("INSERT INTO dovetail_schema VALUES (%s)", (len(MIGRATIONS),))
        finally:
            await connection.close()

    async def disconnect(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def swapped(self, key: str, old: bytes | None, new: bytes) -> bytes | None:
        async def swap(connection: AsyncConnection[Row]) -> bytes | None:
            if old is None:
                query = "INSERT INTO dovetail_use VALUES (%s, %s) ON CONFLICT DO NOTHING"
                done = await connection.execute(query, (key, new))
            else:
                # Without a wait for the disk: what a crash of the server may forget is a second of use.
                fast = "set_config('synchronous_commit', 'off', true) IS NOT NULL"
                query = f"UPDATE dovetail_use SET value = %s WHERE key = %s AND value = %s AND {fast}"
                done = await connection.execute(query, (new, key, old))
            if done.rowcount:
                return old
            rows = await connection.execute("SELECT value FROM dovetail_use WHERE key = %s", (key,))
            row = await rows.fetchone()
            return None if row is None else bytes(row[0])

        return await self._with(swap)

    async def put(self, table: Table, limits: StoreLimits, entry: NewEntry) -> None:
        row = {**entry.fields, "owner": entry.owner, "created": entry.created, "size": entry.size}
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        places = sql.SQL(", ").join([sql.Placeholder()] * len(row))
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(_name(table), names, places)
        sweep = "DELETE FROM {0} WHERE number IN (SELECT number FROM {0} WHERE created <= %s LIMIT %s)"
        oldest = int(time.time()) - limits.age

        async def put(connection: AsyncConnection[Row]) -> None:
            async with connection.pipeline(), connection.transaction():
                await connection.execute(_LOCK.format(f"'{table.name}'"))
                await connection.execute(_query(sweep, table), (oldest, _SWEPT))
                await _drop_alike(connection, table, entry)
                await _make_room(connection, table, limits, entry)
                await connection.execute(insert, (*row.values(),))

        await self._with(put)

    async def delete(self, table: Table, owner: str, key: str, value: Value) -> int:
        async def delete(connection: AsyncConnection[Row]) -> int:
            query = _query("DELETE FROM {0} WHERE {1} = %s AND owner = %s", table, key)
            async with connection.transaction():
                await connection.execute(_LOCK.format(f"'{table.name}'"))
                return (await connection.execute(query, (value, owner))).rowcount

        return await self._with(delete)

    async def known(self, table: Table, where: tuple[str, str, int], values: Sequence[Value]) -> set[Any]:
        owner, key, oldest = where
        rows = await self._select("SELECT DISTINCT {1} FROM {0}", table, key, (values, owner, oldest))
        return {row[0] for row in rows}

    async def find(
        self, table: Table, columns: Sequence[str], where: tuple[str, str, int], values: Sequence[Value]
    ) -> list[Row]:
        owner, key, oldest = where
        return await self._select("SELECT {2} FROM {0}", table, key, (values, owner, oldest), *columns)

    async def _select(self, query: str, table: Table, key: str, parameters: Row, *columns: str) -> list[Row]:
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        whole = sql.SQL(query + " WHERE {1} = ANY(%s) AND owner = %s AND created > %s")
        values, *rest = parameters

        async def select(connection: AsyncConnection[Row]) -> list[Row]:
            formatted = whole.format(_name(table), sql.Identifier(key), listed)
            rows = await connection.execute(formatted, ([*values], *rest))
            return await rows.fetchall()

        return await self._with(select)

    async def _with(self, work: Callable[[AsyncConnection[Row]], Awaitable[T]]) -> T:
        """The result of `work` with a connection. One that the server has closed meanwhile is replaced once."""
        if self._places is None:
            self._places = asyncio.Semaphore(_CONNECTIONS)
        async with self._places:
            if self._idle:
                try:
                    return await self._within(self._idle.pop(), work)
                except _Lost:
                    await self.disconnect()
            return await self._within(await self._connected(), work)

    async def _within(
        self, connection: AsyncConnection[Row], work: Callable[[AsyncConnection[Row]], Awaitable[T]]
    ) -> T:
        task = asyncio.current_task()
        self._used[task] = connection
        try:
            result = await work(connection)
        except psycopg.Error as error:
            if connection.closed:
                raise _Lost(*error.args) from error
            self._idle.append(connection)
            raise
        except BaseException:
            connection.pgconn.finish()
            raise
        finally:
            del self._used[task]
        self._idle.append(connection)
        return result

    async def _connected(self, timeout: float = 0) -> AsyncConnection[Row]:
        try:
            connection = await AsyncConnection.connect(
                **self._parameters,  # type: ignore[arg-type]
                autocommit=True,
                prepare_threshold=None,  # poolers in front of the server lose prepared statements
                application_name="dovetail",
            )
        except psycopg.OperationalError as error:
            raise _Lost(*error.args) from error
        try:
            seconds = timeout or self.timeout
            await connection.execute(
                "SELECT set_config('statement_timeout', %s, false), "
                "set_config('idle_in_transaction_session_timeout', %s, false)",
                (f"{seconds * 1000:.0f}", f"{seconds * 2000:.0f}"),
            )
            if not timeout:
                await _version(connection)
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection


class _Lost(psycopg.OperationalError):
    """The connection is gone, or there was none."""


async def _version(connection: AsyncConnection[Row]) -> int:
    """The version of the tables. Raises `StoreError` for one that is newer than this program."""
    row = await (await connection.execute("SELECT version FROM dovetail_schema")).fetchone()
    version = 0 if row is None else int(row[0])
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the tables have version {version}, and this Dovetail knows those up to {len(MIGRATIONS)}: update it, or "
            "give it a database, or a schema in the search path, of its own"
        )
    return version


async def _drop_alike(connection: AsyncConnection[Row], table: Table, entry: NewEntry) -> None:
    """Delete those entries alike that have the second column of `entry`, or else all but the last one."""
    if table.alike is None:
        return
    query = """
        WITH alike AS (SELECT number, {2} = %s AS same FROM {0} WHERE {1} = %s AND owner = %s),
            same AS (SELECT number FROM alike WHERE same),
            old AS (SELECT number FROM alike ORDER BY number DESC OFFSET 1)
        DELETE FROM {0} WHERE number IN (TABLE same) OR number IN (TABLE old) AND NOT EXISTS (TABLE same)
    """
    first, second = table.alike
    await connection.execute(
        _query(query, table, first, second), (entry.fields[second], entry.fields[first], entry.owner)
    )


async def _make_room(connection: AsyncConnection[Row], table: Table, limits: StoreLimits, entry: NewEntry) -> None:
    """Delete the oldest entries of those who have most, until there is room for `entry`."""
    rows = await connection.execute(
        "SELECT owner, number::float8, size::float8 FROM dovetail_shares WHERE kind = %s", (f"dovetail_{table.name}",)
    )
    found = {owner: [number, bytes_] for owner, number, bytes_ in await rows.fetchall()}
    mine = found.setdefault(entry.owner, [0, 0])
    mine[0] += 1
    mine[1] += entry.size
    for bound, limit in enumerate((limits.entries, limits.size)):
        while sum(each[bound] for each in found.values()) > limit:
            most = max(found, key=lambda owner: (found[owner][bound], owner != entry.owner))
            query = "DELETE FROM {0} WHERE number = (SELECT min(number) FROM {0} WHERE owner = %s) RETURNING size"
            dropped = await (await connection.execute(_query(query, table), (most,))).fetchone()
            if dropped is None:
                raise psycopg.DataError("the entry is larger than its owner's share")
            found[most][0] -= 1
            found[most][1] -= dropped[0]


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(f"dovetail_{table.name}")


def _query(query: str, table: Table, *columns: str) -> sql.Composed:
    return sql.SQL(query).format(_name(table), *map(sql.Identifier, columns))
