"""What the operator decides about a gateway: `Settings`, made once by whoever starts it."""

from __future__ import annotations

import msgspec

from dovetail.formats.tool_choice import Strict


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are answered where they do not say themselves.

    `strict` is the constraint level where neither a request nor its tools say; `no_repair` names the kinds of repair
    that histories do not get. `default_max_tokens` bounds the answers of requests that give no bound (None: whatever
    the context still holds). With `api_key`, every path under /v1 asks for it; /health and /metrics never do.
    `max_body_bytes` bounds a request's body.

    `retry_invalid` is how often a turn is asked for again whose calls are not valid, or not of the request's tools,
    unless its temperature is 0. From its first call on a turn is held back until it is over; on engines behind HTTP all
    of it is.
    """

    served_model_name: str
    strict: Strict = "schema"
    no_repair: frozenset[str] = frozenset()
    api_key: str | None = None
    max_body_bytes: int = 8 * 1024 * 1024
    default_max_tokens: int | None = None
    retry_invalid: int = 0

    def __repr__(self) -> str:
        # The generated one would show the key to whatever logs it.
        return f"Settings(served_model_name={self.served_model_name!r}, strict={self.strict!r})"
