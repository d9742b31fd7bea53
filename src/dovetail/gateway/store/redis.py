"""The store of several gateways in Redis or Valkey: `redis://HOST[:PORT][/NUMBER]`, with TLS `rediss://…`.

Below `dovetail:1:TABLE:`, an entry is a hash `entry:NUMBER`, found by the sets `key:COLUMN:OWNER NUL VALUE`. The
sorted sets `ages` and `of:OWNER` have the entries by age and by number, the hashes `number` and `size` what each owner
has. All expire with what they are about. A script changes all of them or, where it fails, none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, RedisError, TimeoutError

from dovetail.gateway.store.interface import StoreError, StoreLimits, Table, Value
from dovetail.gateway.store.remote import NewEntry, Remote

#: Of the layout. Gateways with another one do not see these keys, which then expire.
_PREFIX = "dovetail:1:"
_CONNECTIONS = 16
#: Seconds after which the use of a key that nobody uses is forgotten.
_USE_AGE = 24 * 3600
#: What is too old goes with the next entries, this number at a time.
_SWEPT = 100

_DROP = """
local prefix, keys = ARGV[1], cjson.decode(ARGV[2])
local function drop(number, size, owner)
    local row = prefix .. 'entry:' .. number
    for _, column in ipairs(keys) do
        local value = redis.call('HGET', row, column)
        if value then redis.call('SREM', prefix .. 'key:' .. column .. ':' .. owner .. '\\0' .. value, number) end
    end
    redis.call('DEL', row)
    redis.call('ZREM', prefix .. 'of:' .. owner, number .. ':' .. size)
    if redis.call('ZREM', prefix .. 'ages', number .. ':' .. size .. ':' .. owner) == 1 then
        if redis.call('HINCRBY', prefix .. 'number', owner, -1) <= 0 then
            redis.call('HDEL', prefix .. 'number', owner)
            redis.call('HDEL', prefix .. 'size', owner)
        else redis.call('HINCRBY', prefix .. 'size', owner, -size) end
    end
end
local function with(column, owner, value)
    local found = redis.call('SMEMBERS', prefix .. 'key:' .. column .. ':' .. owner .. '\\0' .. value)
    table.sort(found, function(a, b) return tonumber(a) < tonumber(b) end)
    return found
end
"""
_DELETE = f"""{_DROP}
local owner, dropped = ARGV[3], 0
for _, number in ipairs(with(ARGV[4], owner, ARGV[5])) do
    local size = redis.call('HGET', prefix .. 'entry:' .. number, 'size')
    if size then drop(number, size, owner) dropped = dropped + 1 end
end
return dropped
"""
# Nothing is changed before it is known that there will be room.
_PUT = f"""{_DROP}
local owner, size, created, oldest, age = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local most, room, alike, second = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], ARGV[11]
local gone, drops = {{}}, {{}}
local function plan(number, size, owner)
    if not gone[number] then gone[number] = true drops[#drops + 1] = {{number, size, owner}} end
end
local row = {{}}
for i = 12, #ARGV, 2 do row[ARGV[i]] = ARGV[i + 1] end
if alike ~= '' then
    local same, others = {{}}, {{}}
    for _, number in ipairs(with(alike, owner, row[alike])) do
        local found = redis.call('HMGET', prefix .. 'entry:' .. number, second, 'size')
        if found[2] then
            if found[1] == row[second] then same[#same + 1] = {{number, found[2]}}
            else others[#others + 1] = {{number, found[2]}} end
        end
    end
    if #same == 0 then others[#others] = nil same = others end
    for _, each in ipairs(same) do plan(each[1], each[2], owner) end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'ages', '-inf', oldest, 'LIMIT', 0, {_SWEPT})) do
    plan(string.match(member, '^(%d+):(%d+):(.*)$'))
end
local function shares(name, own)
    local each, total, found = {{}}, own, redis.call('HGETALL', prefix .. name)
    for i = 1, #found, 2 do each[found[i]] = tonumber(found[i + 1]) total = total + each[found[i]] end
    each[owner] = (each[owner] or 0) + own
    return {{each = each, total = total}}
end
local numbers, sizes = shares('number', 1), shares('size', size)
local function leave(drop)
    numbers.each[drop[3]] = (numbers.each[drop[3]] or 1) - 1
    numbers.total = numbers.total - 1
    sizes.each[drop[3]] = (sizes.each[drop[3]] or drop[2]) - drop[2]
    sizes.total = sizes.total - drop[2]
end
for _, each in ipairs(drops) do leave(each) end
local next_of = {{}}
for _, bound in ipairs({{{{numbers, most}}, {{sizes, room}}}}) do
    while bound[1].total > bound[2] do
        local first, has = owner, bound[1].each[owner]
        for other, number in pairs(bound[1].each) do
            if number > has or (number == has and first == owner) then first, has = other, number end
        end
        local number, bytes
        repeat
            local at = next_of[first] or 0
            next_of[first] = at + 1
            local member = redis.call('ZRANGE', prefix .. 'of:' .. first, at, at)[1]
            if not member then return redis.error_reply("the entry is larger than its owner's share") end
            number, bytes = string.match(member, '^(%d+):(%d+)$')
        until not gone[number]
        plan(number, bytes, first)
        leave(drops[#drops])
    end
end
local number = redis.call('INCR', prefix .. 'last')
for _, each in ipairs(drops) do drop(each[1], each[2], each[3]) end
local entry = prefix .. 'entry:' .. number
redis.call('HSET', entry, 'created', created, 'size', size, unpack(ARGV, 12))
for _, column in ipairs(keys) do
    if row[column] then
        local set = prefix .. 'key:' .. column .. ':' .. owner .. '\\0' .. row[column]
        redis.call('SADD', set, number)
        redis.call('EXPIRE', set, age)
    end
end
redis.call('ZADD', prefix .. 'of:' .. owner, number, number .. ':' .. size)
redis.call('ZADD', prefix .. 'ages', created, number .. ':' .. size .. ':' .. owner)
redis.call('HINCRBY', prefix .. 'number', owner, 1)
redis.call('HINCRBY', prefix .. 'size', owner, size)
for _, name in ipairs({{'of:' .. owner, 'ages', 'number', 'size'}}) do redis.call('EXPIRE', prefix .. name, age) end
redis.call('EXPIREAT', entry, created + age)
return number
"""
_KNOWN = """
local counts = {}
for i = 2, #ARGV do counts[i - 1] = redis.call('EXISTS', ARGV[1] .. ARGV[i]) end
return counts
"""
_FIND = """
local rows, columns = {}, tonumber(ARGV[3])
for i = 4 + columns, #ARGV do
    for _, number in ipairs(redis.call('SMEMBERS', ARGV[1] .. ARGV[i])) do
        rows[#rows + 1] = redis.call('HMGET', ARGV[2] .. number, 'created', unpack(ARGV, 4, 3 + columns))
    end
end
return rows
"""
_SWAP = """
local value = redis.call('GET', KEYS[1])
if (value or '') == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
return value
"""


class Redis(Remote):
    """A store in Redis or Valkey: see `Store`. What is behind a question mark in `url` is redis-py's."""

    def __init__(self, url: str, timeout: float, password: str | None = None) -> None:
        super().__init__(url, timeout, (RedisError,))
        try:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=timeout,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                protocol=2,
                retry=Retry(NoBackoff(), 1),  # at once: a server that was restarted has closed our connections
                **({} if password is None else {"password": password}),
            )
            pool.connection_class(**pool.connection_kwargs)  # refuses what it does not know
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self.address}: {error}") from None
        self._client = redis.asyncio.Redis(connection_pool=pool)
        script = self._client.register_script
        self._put, self._delete, self._swap = script(_PUT), script(_DELETE), script(_SWAP)
        self._find, self._known = script(_FIND), script(_KNOWN)

    def is_lost(self, error: Exception) -> bool:
        lost = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, AuthenticationError)
        return lost or super().is_lost(error) or isinstance(error, BusyLoadingError)

    async def prepare(self) -> None:
        await self._client.ping()

    async def disconnect(self) -> None:
        await self._client.aclose(close_connection_pool=True)

    async def swapped(self, key: str, old: bytes | None, new: bytes) -> bytes | None:
        value: bytes | None = await self._swap([f"{_PREFIX}use:{key}"], [old or b"", new, _USE_AGE])
        return value

    async def put(self, table: Table, limits: StoreLimits, entry: NewEntry) -> None:
        oldest = int(time.time()) - limits.age
        bounds = (entry.owner, entry.size, entry.created, oldest, limits.age, limits.entries, limits.size)
        pairs = (part for name, value in entry.fields.items() if value is not None for part in (name, value))
        await self._put((), [*_of(table), *bounds, *(table.alike or ("", "")), *pairs])

    async def delete(self, table: Table, owner: str, key: str, value: Value) -> int:
        dropped: int = await self._delete((), [*_of(table), owner, key, value or ""])
        return dropped

    async def known(self, table: Table, where: tuple[str, str, int], values: Sequence[Value]) -> set[Any]:
        counts: list[int] = await self._known((), [_sets(table, where), *map(_sent, values)])
        return {value for value, count in zip(values, counts, strict=True) if count}

    async def find(
        self, table: Table, columns: Sequence[str], where: tuple[str, str, int], values: Sequence[Value]
    ) -> list[tuple[Any, ...]]:
        asked: list[str | int | bytes] = [
            _sets(table, where),
            f"{_PREFIX}{table.name}:entry:",
            len(columns),
            *columns,
            *map(_sent, values),
        ]
        rows: list[list[bytes | None]] = await self._find((), asked)
        types = [table.columns.get(column, int) for column in columns]
        present = [row for row in rows if row[0] is not None and int(row[0]) > where[2]]
        return [tuple(_read(*each) for each in zip(types, row[1:], strict=True)) for row in present]


def _of(table: Table) -> tuple[str, str]:
    return f"{_PREFIX}{table.name}:", "[" + ",".join(f'"{key}"' for key in table.keys) + "]"


def _sets(table: Table, where: tuple[str, str, int]) -> str:
    """How the names of the sets of a column begin, which end with its value."""
    return f"{_PREFIX}{table.name}:key:{where[1]}:{where[0]}\0"


def _sent(value: Value) -> bytes:
    return value if isinstance(value, bytes) else f"{value}".encode()


def _read(kind: type, data: bytes | None) -> Any:
    if data is None or kind is bytes:
        return data
    return data.decode() if kind is str else int(data)
