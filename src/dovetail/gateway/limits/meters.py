"""What a key has used of its limits: counted in this process, or in a store that several gateways share."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from dovetail.gateway.store.interface import Store, StoreError

Clock = Callable[[], float]
#: The limits that a request can meet with status 429.
Limit = Literal["requests", "tokens", "concurrent"]

_MINUTE = 60.0
#: Seconds after which what a gateway holds in the store is free, if the gateway is gone; and after which it says again
#: that it is there.
_LEASE_S, _RENEWED_S = 60.0, 15.0
#: Seconds after which the store learns of tokens that were used.
_FLUSHED_S = 1.0
#: Seconds in which another gateway gives back the place of a request that has just ended.
_PLACE_S = 0.02
#: How often the time of a call a request waits for the store, where others of its key wait too.
_WAITS = 2
#: Other gateways that may change a key's use between a look and a write, before the store is given up.
_MOST_TRIES = 50

#: Begins all leases of this process.
_PROCESS = f"{secrets.token_hex(6)}."
_NUMBERS = itertools.count()


def new_lease() -> str:
    """A name for what one request holds."""
    return f"{_PROCESS}{next(_NUMBERS)}"


class Charge(NamedTuple):
    """What one request does to one limit.

    Nothing is done if less than `needs` is free, or more was spent than the limit (None: it is done in any case).
    `most`: the limit. `spends`: what is used, even beyond the limit. `holds`: what the request holds from then on;
    None: what it did before.
    """

    limit: Limit
    most: int
    needs: int | None = None
    spends: int = 0
    holds: int | None = None


#: What several requests do, each by its lease.
Charges: TypeAlias = Sequence[tuple[str, Sequence[Charge]]]


class Lease(msgspec.Struct, array_like=True):
    """What a request holds, and until when."""

    amount: int
    until: float


class Meter(msgspec.Struct):
    """A limit a minute, as a token bucket: what was spent flows back evenly, and what is held does not.

    In any span of t seconds at most `limit * (1 + t / 60)` is spent, and whatever is spent beyond what was held delays
    what comes after. (docs/decisions/0029)

    Every call has the `limit`, which may change from call to call, and the time `now` in seconds. `spent` is what was
    spent at the time `at`, `leases` what each request holds and until when, and `held` all of that.
    """

    spent: float = 0.0
    at: float = 0.0
    leases: dict[str, Lease] = {}
    held: int = 0

    def remaining(self, limit: int, now: float) -> int:
        """What may be spent at once, rounded down; 0 if more than the limit was spent."""
        return max(0, int(self._room(limit, now)))

    def full_in(self, limit: int, now: float) -> float:
        """Seconds until nothing counts as spent any more, if nothing else is spent."""
        return (self._spent_at(limit, now) + self.held) * _MINUTE / limit

    def wait(self, amount: int, limit: int, now: float) -> float:
        """Seconds until `amount` can be spent; 0.0: now. An estimate if it depends on what is held."""
        return max(0.0, (amount - self._room(limit, now)) * _MINUTE / limit)

    def spend(self, amount: int, limit: int, now: float) -> None:
        """Count `amount` as spent, even beyond the limit. It runs for every step of an answer."""
        elapsed = now - self.at
        if elapsed > 0:
            left = self.spent - elapsed * limit / _MINUTE
            self.spent = left + amount if left > 0 else amount
            self.at = now
        else:
            self.spent += amount
            if elapsed < -_MINUTE:  # else another gateway's clock is a little ahead
                self.at = now

    def hold(self, lease: str, amount: int, until: float = math.inf) -> None:
        """Let the request `lease` hold `amount` for later spending, in the place of what it holds."""
        earlier = self.leases.get(lease)
        if earlier is not None:
            self.held += amount - earlier.amount
            earlier.amount, earlier.until = amount, until
            if not amount:
                del self.leases[lease]
        elif amount:
            self.held += amount
            self.leases[lease] = Lease(amount, until)

    def _room(self, limit: int, now: float) -> float:
        return limit - self._spent_at(limit, now) - self.held

    def _spent_at(self, limit: int, now: float) -> float:
        return max(0.0, self.spent - max(0.0, now - self.at) * limit / _MINUTE)


class Use(msgspec.Struct):
    """What a key has used of each of its limits."""

    requests: Meter = msgspec.field(default_factory=Meter)
    tokens: Meter = msgspec.field(default_factory=Meter)
    concurrent: Meter = msgspec.field(default_factory=Meter)

    def meter(self, limit: Limit) -> Meter:
        meter: Meter = getattr(self, limit)
        return meter

    def drop(self, gone: Callable[[str, float], bool]) -> None:
        """Free what is held by the leases, with their ends, that are `gone`."""
        for meter in (self.requests, self.tokens, self.concurrent):
            meter.leases = {lease: held for lease, held in meter.leases.items() if not gone(lease, held.until)}
            meter.held = sum(held.amount for held in meter.leases.values())

    def catch_up(self, other: Use) -> None:
        """Take what was spent from `other`, where it is later and more."""
        for mine, theirs in ((self.requests, other.requests), (self.tokens, other.tokens)):
            if theirs.at > mine.at and theirs.spent > mine.spent:
                mine.spent, mine.at = theirs.spent, theirs.at

    def charge(self, lease: str, charges: Sequence[Charge], now: float, until: float) -> Limit | None:
        """Do `charges`, or nothing: the limit that has no room."""
        for each in charges:
            if each.needs is not None and self.meter(each.limit).wait(each.needs, each.most, now) > 0:
                return each.limit
        for each in charges:
            meter = self.meter(each.limit)
            if each.spends:
                meter.spend(each.spends, each.most, now)
            if each.holds is not None:
                meter.hold(lease, each.holds, until)
        return None


class KeyUse:
    """The use of one key, counted in this process. `use`: what is known of it here. `clock` never goes back."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.use = Use()

    async def charge(self, lease: str, charges: Sequence[Charge]) -> Limit | None:
        """Do `charges`, or nothing: the limit that has no room."""
        return self._charge(lease, charges)

    def count(self, lease: str, most: int, tokens: int, left: int) -> None:
        """Count tokens that the request `lease` has used, and what is left for it. A store learns of it later."""
        meter = self.use.tokens
        meter.spend(tokens, most, self.clock())
        meter.hold(lease, left)

    def release(self, lease: str, charges: Sequence[Charge]) -> None:
        """Do the last charges of a request, which need nothing. Nobody waits for a store."""
        self._charge(lease, charges)

    def _charge(self, lease: str, charges: Sequence[Charge]) -> Limit | None:
        now = self.clock()
        return self.use.charge(lease, charges, now, now + _LEASE_S)


class SharedKeyUse(KeyUse):
    """The use of one key in a store, which all gateways count. While the store is down, each counts by itself.

    The value in the store is read, changed and swapped, again if another gateway was faster. So no request is counted
    by the store that had no room, whichever gateway it came through.
    """

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(time.time)
        self._store = store
        self._name = name
        self._value: bytes | None = None
        self._alone = False  # the store was down, and does not know what was counted here
        self._mine = asyncio.Lock()
        #: What the store has not learnt yet, by lease; and the leases of running requests.
        self._pending: dict[str, Charge] = {}
        self._running: set[str] = set()
        self._renewed = 0.0
        self._tasks: set[asyncio.Task[object]] = set()
        self._flushing = False

    async def charge(self, lease: str, charges: Sequence[Charge]) -> Limit | None:
        try:
            refused = await self._shared([(lease, charges)])
            if refused == "concurrent":
                await asyncio.sleep(_PLACE_S)
                refused = await self._shared([(lease, charges)])
        except asyncio.CancelledError:
            self.release(lease, [Charge(each.limit, each.most, holds=0) for each in charges if each.holds])
            raise
        if refused is None and any(each.holds for each in charges):
            self._running.add(lease)
            self._begin_flushing()
        return refused

    def count(self, lease: str, most: int, tokens: int, left: int) -> None:
        super().count(lease, most, tokens, left)
        earlier = self._pending.get(lease)
        spends = tokens if earlier is None else tokens + earlier.spends
        self._pending[lease] = Charge("tokens", most, spends=spends, holds=left)
        self._running.add(lease)
        self._begin_flushing()

    def release(self, lease: str, charges: Sequence[Charge]) -> None:
        self._running.discard(lease)
        pending = self._pending.pop(lease, None)
        self._spawn(self._shared([(lease, charges if pending is None else (pending, *charges))]))

    async def _shared(self, work: Charges) -> Limit | None:
        """Do the charges of each lease of `work`: in the store, or here if that is down."""
        try:
            async with asyncio.timeout(_WAITS * self._store.timeout), self._mine:
                return await self._swapped(work)
        except (StoreError, TimeoutError):
            self.use.drop(lambda lease, _: not lease.startswith(_PROCESS))
            self._alone = True
            return self._done(self.use, work)

    async def _swapped(self, work: Charges) -> Limit | None:
        for _ in range(_MOST_TRIES):
            use = Use() if self._value is None else msgspec.json.decode(self._value, type=Use)
            use.drop(lambda _, until: until < self.clock())
            if self._alone:
                use.catch_up(self.use)
            refused = self._done(use, work)
            value = msgspec.json.encode(use)
            found = await self._store.swap(self._name, self._value, value)
            if found == self._value:
                self._value, self.use, self._alone = value, use, False
                return refused
            self._value = found
        raise StoreError("too many gateways change the use of a key at once")

    def _done(self, use: Use, work: Charges) -> Limit | None:
        now = self.clock()
        refused: Limit | None = None
        for lease, charges in work:
            refused = use.charge(lease, charges, now, now + _LEASE_S)
        return refused

    def _begin_flushing(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush())

    async def _flush(self) -> None:
        """While requests run, tell the store now and then what they have used, and that they are there."""
        while self._running:
            await asyncio.sleep(_FLUSHED_S)
            pending, self._pending = self._pending, {}
            work = [(lease, (charge,)) for lease, charge in pending.items()]
            if self.clock() - self._renewed > _RENEWED_S:
                self._renewed = self.clock()
                work = [*self._renewals(), *work]
            if work:
                await self._shared(work)
        self._flushing = False

    def _renewals(self) -> Iterator[tuple[str, tuple[Charge]]]:
        """Charges that hold what the running requests hold."""
        limits: tuple[Limit, Limit] = ("concurrent", "tokens")
        for limit in limits:
            leases = self.use.meter(limit).leases
            for lease in self._running & leases.keys():
                yield lease, (Charge(limit, 1, holds=leases[lease].amount),)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
