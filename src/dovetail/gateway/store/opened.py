"""The store behind a URL. Its client is imported here, where a server needs one."""

from __future__ import annotations

from dovetail.gateway.store.interface import StoreError
from dovetail.gateway.store.remote import Remote, without_secrets

#: The scheme of a URL -> the extra with its client.
SCHEMES = {
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}


def opened_store(url: str, timeout: float, password: str | None = None) -> Remote:
    """A client of the store at `url`, which has not connected yet. Raises `StoreError`."""
    scheme, _, rest = url.partition("://")
    extra = SCHEMES.get(scheme)
    try:
        if extra == "redis":
            from dovetail.gateway.store.redis import Redis

            return Redis(f"{scheme.replace('valkey', 'redis')}://{rest}", timeout, password)
        if extra == "postgresql":
            from dovetail.gateway.store.postgresql import PostgreSQL

            return PostgreSQL(url, timeout, password)
    except ImportError as error:
        raise StoreError(f"{without_secrets(url)} needs a client: pip install 'dovetail[{extra}]'") from error
    raise StoreError(f"{without_secrets(url)} is not a store: it begins with {', '.join(SCHEMES)}")
