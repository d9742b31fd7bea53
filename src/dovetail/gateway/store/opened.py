"""The store behind a URL. Its client is imported here, where a server needs one."""

from __future__ import annotations

import re

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
    if "@" in rest and "@" not in re.split("[/?]", rest)[0]:
        # The clients would take the beginning of the password for a host, and show it.
        raise StoreError(
            f"{without_secrets(url)}: write / as %2F, ? as %3F and @ as %40 in its user, password and options"
        )
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
