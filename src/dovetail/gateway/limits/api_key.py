"""Named API keys: what each is, and what its holder may do.

A key is made here and has 256 random bits, so its plain SHA-256 is safe to write down: nobody can guess keys until one
has that hash. The slow, salted hashes that passwords need would cost time in every request and protect nothing more.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal

import msgspec

#: How new keys begin, so that people, and scanners of files, see what they are.
PREFIX = "sk-dovetail-"
_BYTES = 32

#: What a key opens: the API; the API and the recordings of all clients; or /metrics and nothing else.
Scope = Literal["api", "inspect", "metrics"]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of one key may do; None: as much as the server does.

    `requests_per_minute`, `tokens_per_minute`: tokens are those of prompts and of answers.
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
