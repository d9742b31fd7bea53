"""The operator's settings of a gateway."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from dovetail.checkpoints.fixed_sampling import FixedSampling
from dovetail.formats.tool_choice import Strict
from dovetail.gateway.keys.accounts import Keyring
from dovetail.gateway.recordings.folder import RecordingOptions
from dovetail.gateway.response_store import StoreLimits
from dovetail.gateway.turn.admission import QueueLimits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's settings. A request may override `strict`, `no_repair` and `default_max_tokens`.

    `served_model_name` is the model's name in the API. `strict` is the level of tools when neither the request nor the
    tool has one. `no_repair` names the kinds of history repair to leave off. With `api_key` or `keys`, every path that
    computes or shows something of the model requires that key, which has no limits, or one of the named keys. Web
    pages of `allow_origins` ("*": all) may call the server. `max_body_bytes` limits the size of a request,
    `body_memory_bytes` that of all requests that are received or prepared at a time. `default_max_tokens` limits the
    answers to requests without a limit (None: the rest of the context).

    `reasoning_budget` is the most tokens of reasoning in answers to requests without a budget (None: any number). Only
    an engine that enforces constraints keeps to it.

    `fixed_sampling` has the values that requests may have in each sampling field (None: any). With `gate_override`, a
    request may switch the gate off for itself.

    `hosts` are the names and addresses by which clients may call the server (None: any). On loopback without a key it
    keeps web pages out, which can make a browser call any address by a name of their own (DNS rebinding).

    With `metrics_tools`, /metrics shows the names of clients' tools. With `metrics_apart`, only `app.state.metrics_app`
    has that page, for a port of its own. `queue` limits the requests that wait for the
    engine.

    `record_key` signs the records of answers, which clients return in their next request. Servers that share their
    clients share the key. `response_store` is the file in which responses are stored (None: they are not), within
    `response_limits`. `recordings` says where each request is recorded (None: it is not).
    """

    served_model_name: str
    strict: Strict = "schema"
    no_repair: frozenset[str] = frozenset()
    api_key: str | None = None
    keys: Keyring | None = None
    allow_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 1024 * 1024
    body_memory_bytes: int = 512 * 1024 * 1024
    default_max_tokens: int | None = None
    reasoning_budget: int | None = None
    fixed_sampling: FixedSampling | None = None
    gate_override: bool = True
    metrics_tools: bool = False
    metrics_apart: bool = False
    queue: QueueLimits = QueueLimits()
    hosts: frozenset[str] | None = None
    record_key: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(32))
    response_store: Path | None = None
    response_limits: StoreLimits = StoreLimits()
    recordings: RecordingOptions | None = None

    def __repr__(self) -> str:
        # Without the keys, which the generated one would show in logs.
        return f"Settings(served_model_name={self.served_model_name!r}, strict={self.strict!r})"
