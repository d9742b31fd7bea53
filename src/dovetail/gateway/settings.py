"""The operator's settings of a gateway."""

from __future__ import annotations

from pathlib import Path

from dovetail.gateway.limits.keys import Keyring
from dovetail.gateway.limits.queue import QueueLimits
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.gateway.store.interface import DEFAULT_LIMITS, Store, StoreLimits
from dovetail.gateway.turn.turn_request import TurnDefaults

#: What memory keeps by default.
MEMORY_LIMITS = StoreLimits(entries=500_000, age=7 * 24 * 3600)


class Settings(TurnDefaults, frozen=True, kw_only=True):
    """The gateway's settings: for turns, and for the server.

    `served_model_name` is the model's name in the API, and `aliases` are further names, in which * stands for any text.
    With `api_key` or `keys`, every path that computes or shows something of the model requires that key, which has no
    limits, or one of the named keys. Web pages of `allow_origins` ("*": all) may call the server. `max_body_bytes`
    limits the size of a request without its pictures, `picture_body_bytes` the size with them, `body_memory_bytes` the
    size of all requests that are received or prepared at a time, and `max_messages` the messages of a request with
    their parts, and its tools. Pictures that a request names by an https URL are fetched from the `image_hosts` ("*":
    from all).

    `hosts` are the names and addresses by which clients may call the server (None: any). On loopback without a key it
    keeps web pages out, which can make a browser call any address by a name of their own (DNS rebinding).

    With `metrics_tools`, /metrics shows the names of clients' tools. With `metrics_apart`, only `app.state.metrics_app`
    has that page, for a port of its own. `queue` limits the requests that wait for the engine.

    With `salt_cache`, the prompts of different `keys` share nothing in the engine's cache, so that `cached_tokens` and
    the time of an answer tell nobody what others have asked.

    `response_store` is where responses are stored (None: they are not), within `response_limits`: a file, or a store
    that several gateways share. `memory` is where answers are kept for clients that return no record of them (None:
    they are not), within `memory_limits`.
    `recordings` says where each request is recorded (None: it is not).
    """

    served_model_name: str
    aliases: tuple[str, ...] = ()
    api_key: str | None = None
    keys: Keyring | None = None
    allow_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 1024 * 1024
    picture_body_bytes: int = 64 * 1024 * 1024
    image_hosts: tuple[str, ...] = ()
    body_memory_bytes: int = 512 * 1024 * 1024
    max_messages: int = 10_000
    metrics_tools: bool = False
    metrics_apart: bool = False
    salt_cache: bool = True
    queue: QueueLimits = QueueLimits()
    hosts: frozenset[str] | None = None
    response_store: Path | Store | None = None
    response_limits: StoreLimits = DEFAULT_LIMITS
    memory: Path | Store | None = None
    memory_limits: StoreLimits = MEMORY_LIMITS
    recordings: RecordingOptions | None = None

    def __repr__(self) -> str:
        # Without the keys, which the generated one would show in logs.
        return f"Settings(served_model_name={self.served_model_name!r}, strict={self.strict!r})"
