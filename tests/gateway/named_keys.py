"""A server with named keys, whose clock stands still until the test moves it."""

from __future__ import annotations

from typing import Any

from dovetail.gateway import Settings
from dovetail.gateway.limits.keys import ApiKey, KeyLimits, Keyring, Scope, digest_of
from dovetail.gateway.limits.queue import QueueLimits
from tests.gateway.scripted import MODEL


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def secret(name: str) -> str:
    """The key of that name."""
    return f"sk-dovetail-{name}-0123456789"


def named(name: str, *, scope: Scope = "api", **limits: Any) -> ApiKey:
    return ApiKey(name=name, digest=digest_of(secret(name)), limits=KeyLimits(**limits), scope=scope)


def keyed(*keys: ApiKey, clock: Clock | None = None, queue: QueueLimits | None = None, **settings: Any) -> Settings:
    """Settings with `keys`, whose accounts are in `.keys`."""
    return Settings(
        served_model_name=MODEL, keys=Keyring(keys, clock or Clock()), queue=queue or QueueLimits(), **settings
    )


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}
