"""What the holders of named keys use, and how a request's key is found among them."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from dovetail.errors import RateLimited
from dovetail.gateway.limits.api_key import ApiKey, KeyLimits, digest_of
from dovetail.gateway.limits.rate_limits import Meter

Clock = Callable[[], float]
#: The limits that a request can meet with status 429.
Limit = Literal["requests", "tokens", "concurrent"]

_RUNNING_RETRY_S = 1.0  # nobody knows when one of the running requests ends


class Account:
    """What the holder of one key has used. Used on one event loop.

    `key`: the key as the file has it now; a reload replaces it, also for requests that run.
    `running`: the requests that run. `responses`: how many there were, by status. `refusals`: how many
    requests met which limit. `prompt_tokens`, `completion_tokens`: the tokens that were used.
    """

    def __init__(self, key: ApiKey, clock: Clock) -> None:
        self.key = key
        self.running = 0
        self.responses: Counter[int] = Counter()
        self.refusals: Counter[Limit] = Counter()
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._clock = clock
        self._requests = Meter()
        self._tokens = Meter()

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name

    @property
    def limits(self) -> KeyLimits:
        """The key's limits."""
        return self.key.limits

    def meters(self) -> list[tuple[str, int, int, float]]:
        """Of each limit a minute that the key has: its unit, the limit, what remains, and in how many seconds all."""
        limits, now = self.limits, self._clock()
        return [
            (unit, limit, meter.remaining(limit, now), meter.full_in(limit, now))
            for unit, limit, meter in (
                ("requests", limits.requests_per_minute, self._requests),
                ("tokens", limits.tokens_per_minute, self._tokens),
            )
            if limit is not None
        ]

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it runs. Raises `RateLimited`."""
        limits, now = self.limits, self._clock()
        if limits.concurrent_requests is not None and self.running >= limits.concurrent_requests:
            raise self._refusal("concurrent", f"{self.running} requests run at a time", _RUNNING_RETRY_S)
        if (most := limits.requests_per_minute) is not None:
            if (wait := self._requests.wait(1, most, now)) > 0:
                raise self._refusal("requests", f"{most} requests a minute", wait)
            self._requests.spend(1, most, now)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    @contextmanager
    def reserved(self, tokens: int) -> Iterator[Reservation]:
        """Reserve `tokens` for a request while it runs. Raises `RateLimited`.

        A request for more than the limit runs when nothing else is reserved and spent.
        """
        reservation = self._reserve(tokens)
        try:
            yield reservation
        finally:
            self._tokens.reserve(-reservation.left)

    def _reserve(self, tokens: int) -> Reservation:
        reserved = 0
        if (most := self.limits.tokens_per_minute) is not None:
            reserved = min(tokens, most)
            if (wait := self._tokens.wait(reserved, most, self._clock())) > 0:
                reason = f"{most} tokens a minute, and this request asks for up to {tokens}"
                raise self._refusal("tokens", reason, wait)
        self._tokens.reserve(reserved)
        return Reservation(self, reserved)

    def _refusal(self, limit: Limit, reason: str, wait: float) -> RateLimited:
        self.refusals[limit] += 1
        seconds = max(1, math.ceil(wait))
        error = RateLimited(f"the limit of the key {self.name!r} is reached: {reason}; try again in {seconds} s")
        error.retry_after = seconds
        return error

    def _use(self, prompt: int, completion: int, reserved: int) -> None:
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self._tokens.reserve(-reserved)
        if (most := self.limits.tokens_per_minute) is not None:
            self._tokens.spend(prompt + completion, most, self._clock())


class Reservation:
    """The tokens that one request may still use. `left`: how many of them."""

    def __init__(self, account: Account, left: int) -> None:
        self.left = left
        self._account = account

    def use(self, prompt: int, completion: int) -> None:
        """Count tokens of the prompt and of answers as used. They may be more than were reserved."""
        reserved = min(prompt + completion, self.left)
        self.left -= reserved
        self._account._use(prompt, completion, reserved)


class Keyring:
    """The accounts of the keys that a file names. `clock` is in seconds and never goes back.

    `guards_metrics`: whether /metrics needs a key, because there is or was one for it.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Clock = time.monotonic) -> None:
        self.guards_metrics = False
        self._clock = clock
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
            account = earlier.get(key.name) or Account(key, self._clock)
            account.key = key
            accounts[self._blinded(key.digest)] = account
            self.guards_metrics |= key.scope == "metrics"
        self._accounts = accounts

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
