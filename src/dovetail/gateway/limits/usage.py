"""What the holder of one key uses of its limits, kept by one process. `shared_usage` has the same for several."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from dovetail.gateway.limits.rate_limits import Meter


class Usage:
    """`requests`, `tokens`: what is used of each limit a minute. `running`: the requests that run."""

    def __init__(self) -> None:
        self.requests = Meter()
        self.tokens = Meter()
        self.running = 0

    def __enter__(self) -> Usage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing: what one process keeps is never out of date."""


class UsageBook(Protocol):
    """Where the usage of every key is kept."""

    def usage(self, name: str) -> AbstractContextManager[Usage]:
        """What the key `name` uses. Read and changed within the context only, which must not wait for anything."""


class OwnUsage:
    """The usage of one process."""

    def usage(self, name: str) -> AbstractContextManager[Usage]:
        """Usage that begins with nothing, whatever the name."""
        return Usage()
