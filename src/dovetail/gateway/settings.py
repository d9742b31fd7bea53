"""The operator's settings of a gateway."""

from __future__ import annotations

import msgspec

from dovetail.formats.tool_choice import Strict


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's settings. A request may override `strict`, `no_repair` and `default_max_tokens`.

    `served_model_name` is the model's name in the API. `strict` is the level of tools when neither the request nor the
    tool has one. `no_repair` names the kinds of history repair to leave off. With `api_key`, every path under /v1
    requires that key; /health and /metrics never do. `max_body_bytes` limits the size of a request.
    `default_max_tokens` limits the answers to requests without a limit (None: the rest of the context).

    `retry_invalid` is how often a choice is generated again when one of its calls is not valid or names an unknown
    tool; requests with temperature 0 are never retried. With retries, the gateway buffers a choice from its first call
    on, or from its beginning for an engine behind HTTP.
    """

    served_model_name: str
    strict: Strict = "schema"
    no_repair: frozenset[str] = frozenset()
    api_key: str | None = None
    max_body_bytes: int = 8 * 1024 * 1024
    default_max_tokens: int | None = None
    retry_invalid: int = 0

    def __repr__(self) -> str:
        # Without the key, which the generated one would show in logs.
        return f"Settings(served_model_name={self.served_model_name!r}, strict={self.strict!r})"
