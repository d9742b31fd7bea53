"""The file of named API keys (`--api-keys`): read at the start, and again on SIGHUP.

    alice:
      hash: sha256:…
      requests_per_minute: 60
    prometheus:
      hash: sha256:…
      scope: metrics

`dovetail key new NAME` makes a key and its entry.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError
from dovetail.gateway.limits.keys import PREFIX, ApiKey, KeyLimits, Keyring, Scope, digest_of
from dovetail.plan.yaml_config import read_yaml

_LOG = logging.getLogger("dovetail.serve")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_Count = Annotated[int, Meta(ge=1, le=10**12)]
_ModelName = Annotated[str, Meta(min_length=1)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hash: str
    scope: Scope = "api"
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    concurrent_requests: _Count | None = None
    models: Annotated[frozenset[_ModelName], Meta(min_length=1)] | None = None
    n: _Count | None = None
    max_tokens: _Count | None = None

    @property
    def limits(self) -> KeyLimits:
        return KeyLimits(**{field: getattr(self, field) for field in KeyLimits.__struct_fields__})


def entry_of(name: str, key: str) -> str:
    """The entry for `key` in the file. Raises `PlanError` for a name that the file cannot have."""
    _check_name(name)
    return f"{name}:\n  hash: sha256:{digest_of(key).hex()}\n"


def read_keys(file: Path) -> list[ApiKey]:
    """The keys of `file`. Raises `PlanError`, which names the entry and the field, and never shows a key."""
    try:
        return _keys(read_yaml(file, "api_keys"), file)
    except PlanError as error:
        # A key that stands where its hash belongs, or a name, could be part of the message.
        raise PlanError(re.sub(rf"{PREFIX}[\w-]*", f"{PREFIX}…", error.message)) from None


def _keys(content: Any, file: Path) -> list[ApiKey]:
    if not isinstance(content, dict) or not content:
        raise PlanError(f"api_keys {file} must have an entry for each key: `dovetail key new NAME` makes one")
    keys: dict[bytes, ApiKey] = {}
    for name, value in content.items():
        try:
            _check_name(name)
            key = _key(name, value)
            if (other := keys.get(key.digest)) is not None:
                raise PlanError(f"it has the hash of {other.name}: every name needs a key of its own")
        except PlanError as error:
            raise PlanError(f"api_keys {file}: {name:.80}: {error.message}") from None
        keys[key.digest] = key
    return [*keys.values()]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r:.80} cannot be the name of a key: it is 1 to 64 letters, digits, `.`, `_`, `@` and `-`"
        )


def _key(name: str, value: Any) -> ApiKey:
    try:
        entry = msgspec.convert(value, _Entry)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        hint = f" (the fields are {', '.join(_Entry.__struct_fields__)})" if " field " in reason else ""
        raise PlanError(f"{reason[:1].lower()}{reason[1:]}{hint}") from None
    match = _HASH.fullmatch(entry.hash)
    if match is None:
        raise PlanError(
            "hash must be `sha256:` and 64 hexadecimal digits, and never the key itself: `dovetail key new NAME` "
            "makes a key with its entry"
        )
    return ApiKey(name=name, digest=bytes.fromhex(match[1]), limits=entry.limits, scope=entry.scope)


async def reload_keys(keyring: Keyring, file: Path) -> None:
    """Read `file` into `keyring` again. A file with errors changes nothing and is one line in the log."""
    try:
        keys = await asyncio.to_thread(read_keys, file)
    except PlanError as error:
        _LOG.error("the API keys stay as they were: %s", error.message)
    else:
        keyring.replace(keys)
        _LOG.warning("%d API keys were read again from %s", len(keys), file)
