"""Named API keys: what the holder of each may do and has used, in its requests, in headers and on /metrics.

A key is made here and has 256 random bits, so its plain SHA-256 is safe to write down: nobody can guess keys until one
has that hash. The slow, salted hashes that passwords need would cost time in every request and protect nothing more.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dovetail.errors import InvalidRequest, RateLimited
from dovetail.gateway.limits.meters import Charge, Clock, KeyUse, Limit, SharedKeyUse, new_lease
from dovetail.gateway.store.interface import Store
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Observer, PreparedTurn
from dovetail.gateway.turn.turn_request import TurnRequest

#: How new keys begin, so that people, and scanners of files, see what they are.
PREFIX = "sk-dovetail-"
_BYTES = 32

#: What a key opens: the API; the API and the recordings of all clients; or /metrics and nothing else.
Scope = Literal["api", "inspect", "metrics"]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of one key may do; None: as much as the server does.

    `requests_per_minute`, `tokens_per_minute`: the tokens of prompts and of answers count.
    `concurrent_requests`: requests at a time. `models`: the names of models. `n`: answers to one request.
    `max_tokens`: new tokens of one answer.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    models: frozenset[str] | None = None
    n: int | None = None
    max_tokens: int | None = None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One named key. `digest`: its SHA-256."""

    name: str
    digest: bytes
    limits: KeyLimits = KeyLimits()
    scope: Scope = "api"


def new_key() -> str:
    """A fresh key."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key. Headers are Latin-1, and so are keys."""
    return hashlib.sha256(key.encode("latin-1")).digest()


_RUNNING_RETRY_S = 1.0  # nobody knows when one of the running requests ends


class Account:
    """What the holder of one key has used. Used on one event loop.

    `key`: the key as the file has it now; a reload replaces it, also for requests that run.
    `running`: the requests that run. `responses`: how many there were, by status. `refusals`: how many
    requests met which limit. `prompt_tokens`, `completion_tokens`: the tokens that were used. `prepare_seconds`: the
    CPU time before the engine.
    """

    def __init__(self, key: ApiKey, use: KeyUse) -> None:
        self.key = key
        self.running = 0
        self.responses: Counter[int] = Counter()
        self.refusals: Counter[Limit] = Counter()
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.prepare_seconds = 0.0
        self._use = use

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name

    @property
    def limits(self) -> KeyLimits:
        """The key's limits."""
        return self.key.limits

    def allows(self, model: str) -> bool:
        """Whether the key may use `model`."""
        return self.limits.models is None or model in self.limits.models

    def meters(self) -> list[tuple[str, int, int, float]]:
        """Each limit a minute that the key has: its unit, the limit, what remains, and seconds until all remains."""
        limits, use, now = self.limits, self._use.use, self._use.clock()
        return [
            (unit, limit, meter.remaining(limit, now), meter.full_in(limit, now))
            for unit, limit, meter in (
                ("requests", limits.requests_per_minute, use.requests),
                ("tokens", limits.tokens_per_minute, use.tokens),
            )
            if limit is not None
        ]

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Count a request while it runs. Raises `RateLimited`."""
        requests, concurrent = self.limits.requests_per_minute, self.limits.concurrent_requests
        charges: list[Charge] = []
        if concurrent is not None:
            charges.append(Charge("concurrent", concurrent, needs=1, holds=1))
        if requests is not None:
            charges.append(Charge("requests", requests, needs=1, spends=1))
        lease = new_lease()
        refused = await self._use.charge(lease, charges) if charges else None
        if refused == "concurrent":
            raise self._refusal("concurrent", f"{concurrent} requests run at a time", _RUNNING_RETRY_S)
        if refused is not None:
            raise self._refusal("requests", f"{requests} requests a minute", self._wait("requests", 1))
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if concurrent is not None:
                self._use.release(lease, (Charge("concurrent", concurrent, holds=0),))

    def prepared(self, seconds: float) -> None:
        """Count CPU time before the engine."""
        self.prepare_seconds += seconds

    def use(self, prompt: int) -> None:
        """Count the tokens of a prompt that was written and refused."""
        self.prompt_tokens += prompt
        if (most := self.limits.tokens_per_minute) is not None:
            self._use.release(new_lease(), (Charge("tokens", most, spends=prompt),))

    @asynccontextmanager
    async def reserved(self, tokens: int) -> AsyncIterator[Reservation]:
        """Reserve `tokens` for a request while it runs. Raises `RateLimited`.

        A request for more than the limit runs when nothing else is reserved and spent.
        """
        lease, reserved = new_lease(), 0
        if (most := self.limits.tokens_per_minute) is not None:
            reserved = min(tokens, most)
            if await self._use.charge(lease, (Charge("tokens", most, needs=reserved, holds=reserved),)) is not None:
                reason = f"{most} tokens a minute, and this request asks for up to {tokens}"
                raise self._refusal("tokens", reason, self._wait("tokens", reserved))
        reservation = Reservation(self, lease, reserved)
        try:
            yield reservation
        finally:
            if most is not None:
                self._use.release(lease, (Charge("tokens", most, holds=0),))

    def count(self, lease: str, prompt: int, completion: int, left: int) -> None:
        """Count tokens of a prompt and of answers that the request `lease` has used. `left`: what it still holds."""
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        if (most := self.limits.tokens_per_minute) is not None:
            self._use.count(lease, most, prompt + completion, left)

    def _wait(self, limit: Limit, amount: int) -> float:
        """Seconds until `amount` is free, of a limit that was reached."""
        most = self.limits.requests_per_minute if limit == "requests" else self.limits.tokens_per_minute
        return self._use.use.meter(limit).wait(amount, most or 1, self._use.clock())

    def _refusal(self, limit: Limit, reason: str, wait: float) -> RateLimited:
        self.refusals[limit] += 1
        seconds = max(1, math.ceil(wait))
        error = RateLimited(f"the limit of the key {self.name!r} is reached: {reason}; try again in {seconds} s")
        error.retry_after = seconds
        return error


class Reservation:
    """The tokens that one request may still use. `left`: how many of them."""

    def __init__(self, account: Account, lease: str, left: int) -> None:
        self.left = left
        self._account = account
        self._lease = lease

    def use(self, prompt: int, completion: int) -> None:
        """Count tokens of the prompt and of answers as used. They may be more than were reserved."""
        self.left -= min(prompt + completion, self.left)
        self._account.count(self._lease, prompt, completion, self.left)


class Keyring:
    """The accounts of the keys that a file names. `clock` is in seconds and never goes back.

    `guards_metrics`: whether /metrics needs a key, because there is or was one for it.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Clock = time.monotonic) -> None:
        self.guards_metrics = False
        self._new_use: Callable[[str], KeyUse] = lambda _: KeyUse(clock)
        self._secret = secrets.token_bytes(32)
        self._accounts: dict[bytes, Account] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Take `keys`, of different names and digests, instead of all earlier ones.

        A name that stays keeps what it has used. Requests whose key is gone run to their end.
        """
        earlier = {account.name: account for account in self.accounts}
        accounts: dict[bytes, Account] = {}
        for key in keys:
            account = earlier.get(key.name) or Account(key, self._new_use(key.name))
            account.key = key
            accounts[self._blinded(key.digest)] = account
            self.guards_metrics |= key.scope == "metrics"
        self._accounts = accounts

    def share(self, store: Store) -> None:
        """Count the use of all keys in `store` from now on, with other gateways."""
        self._new_use = partial(SharedKeyUse, store)
        keys = [account.key for account in self.accounts]
        self._accounts = {}
        self.replace(keys)

    @property
    def accounts(self) -> list[Account]:
        """All accounts, in the order of the file."""
        return [*self._accounts.values()]

    def find(self, keys: Iterable[str]) -> Account | None:
        """The account of the first of `keys` that there is."""
        for key in filter(None, keys):
            digest = digest_of(key)
            account = self._accounts.get(self._blinded(digest))
            if account is not None and hmac.compare_digest(digest, account.key.digest):
                return account
        return None

    def _blinded(self, digest: bytes) -> bytes:
        """`digest` as nobody outside can compute it, so that the time of a look-up says nothing about any key."""
        return hashlib.blake2b(digest, key=self._secret).digest()


def salted(name: str | None, salt: str | None) -> str:
    """The salt of cached prompts for the key `name` (None: keys share them) and the `salt` of the request (None: none).

    An engine gets a digest: vLLM takes no text of more than 128 characters, and some characters nowhere.
    """
    return hashlib.sha256(msgspec.json.encode(("dovetail cache", name, salt))).hexdigest()


def limited(request: TurnRequest, limits: KeyLimits) -> TurnRequest:
    """`request` with the limits on its answers. Raises `InvalidRequest`, which names the field, for more answers."""
    answers = request.choices * max(1, len(request.prompts))
    if limits.n is not None and answers > limits.n:
        raise InvalidRequest(
            f"this key may ask for {limits.n} answers in one request, and not for {answers}", param="n"
        )
    return msgspec.structs.replace(request, most_tokens=limits.max_tokens)


@asynccontextmanager
async def metered(turn: PreparedTurn, account: Account) -> AsyncIterator[Observer]:
    """Reserves the tokens that `turn` may take. What it yields counts those that the turn takes.

    Raises `RateLimited`.
    """
    async with account.reserved(turn.prompt_tokens + _asked(turn, account.limits)) as reservation:
        meter = _Meter(reservation, turn.prompt_tokens)
        try:
            yield meter
        except asyncio.CancelledError:
            meter.use(0)  # the engine may have computed the prompt
            raise


class _Meter(Observer):
    """Counts the tokens of a turn. `prompt`: the tokens of its prompts, which count once."""

    def __init__(self, reservation: Reservation, prompt: int) -> None:
        self._reservation = reservation
        self._prompt = prompt

    def step(self, step: Step) -> None:
        if step.prompt_tokens is not None and self._prompt:
            self._prompt = step.prompt_tokens  # with the tokens that its pictures take
        self.use(len(step.ids))

    def use(self, completion: int) -> None:
        """Count new tokens, and the prompt if it was not counted before."""
        self._reservation.use(self._prompt, completion)
        self._prompt = 0


def _asked(turn: PreparedTurn, limits: KeyLimits) -> int:
    """The new tokens that the request asks for. One without any limit asks for none in particular."""
    if turn.request.max_tokens is None and limits.max_tokens is None:
        return 0
    return turn.max_tokens * len(turn.choices)


def limit_headers(account: Account, *, anthropic: bool) -> dict[str, str]:
    """The limit, what remains of it and when all of it does, for requests and for tokens, as far as there are limits.

    https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
    https://docs.claude.com/en/api/rate-limits#response-headers
    """
    headers: dict[str, str] = {}
    for unit, limit, remaining, full_in in account.meters():
        if anthropic:
            full_at = datetime.now(UTC) + timedelta(seconds=math.ceil(full_in))
            values = {"limit": f"{limit}", "remaining": f"{remaining}", "reset": f"{full_at:%Y-%m-%dT%H:%M:%SZ}"}
            headers |= {f"anthropic-ratelimit-{unit}-{field}": value for field, value in values.items()}
        else:
            values = {"limit": f"{limit}", "remaining": f"{remaining}", "reset": duration(full_in)}
            headers |= {f"x-ratelimit-{field}-{unit}": value for field, value in values.items()}
    return headers


def duration(seconds: float) -> str:
    """A duration as Go writes it, rounded up to milliseconds: `6m0s`, `1.5s`, `20ms`.

    https://pkg.go.dev/time#Duration.String
    """
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    rest = f"{milliseconds / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{rest}"
    return f"{minutes}m{rest}" if minutes else rest


class KeyMetrics:
    """The accounts of a keyring, read when /metrics is requested. A key that is gone is not shown."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def collect(self) -> Iterable[Metric]:
        responses = CounterMetricFamily("dovetail_key_responses", "HTTP responses by key", labels=["key", "status"])
        tokens = CounterMetricFamily("dovetail_key_tokens", "Tokens used by key", labels=["key", "kind"])
        refused = "Requests refused with 429, by key and by the limit that was reached"
        refusals = CounterMetricFamily("dovetail_key_refusals", refused, labels=["key", "limit"])
        preparing = "CPU time before the engine, by key"
        prepared = CounterMetricFamily("dovetail_key_prepare_seconds", preparing, labels=["key"])
        running = GaugeMetricFamily("dovetail_key_running_requests", "Running requests by key", labels=["key"])
        for account in self._keyring.accounts:
            name = account.name
            for status, number in account.responses.items():
                responses.add_metric([name, f"{status}"], number)
            tokens.add_metric([name, "prompt"], account.prompt_tokens)
            tokens.add_metric([name, "completion"], account.completion_tokens)
            for limit, number in account.refusals.items():
                refusals.add_metric([name, limit], number)
            prepared.add_metric([name], account.prepare_seconds)
            running.add_metric([name], account.running)
        return [responses, tokens, refusals, prepared, running]
