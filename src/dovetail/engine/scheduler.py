"""Whom to run next: continuous batching, first come first served.

A request is admitted when fewer than `max_batch` run and the pool has blocks for its whole life (prompt and max_tokens,
capped by the context), so a running sequence never lacks a block and nothing is ever preempted. Drafts need no blocks
of their own: a window never reaches past max_tokens. The first in line is never overtaken by a smaller one behind it.

Every step runs all running sequences: new ones with their whole prompt, the others with a decode window, in one batch.
"""

from __future__ import annotations

from collections import deque

from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.models.base import SequenceRows
from dovetail.engine.request import Request
from dovetail.errors import EngineBusy, InvalidRequest

# A client behind this many others would time out before its first token.
MAX_WAITING = 1024


class Scheduler:
    """Holds every live request, waiting or running."""

    def __init__(self, pool: BlockPool, max_batch: int) -> None:
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._max_batch = max_batch

    def add(self, request: Request) -> None:
        """Queue `request`. Raises `EngineBusy` when too many wait, `InvalidRequest` for an id that is here already."""
        if any(request.id == other.id for other in (*self.running, *self.waiting)):
            raise InvalidRequest(f"a request {request.id!r} is running or waiting already", param="request_id")
        if len(self.waiting) >= MAX_WAITING:
            raise EngineBusy(f"{len(self.waiting)} requests are waiting already")
        self.waiting.append(request)

    def schedule(self) -> list[Request]:
        """Admit whoever fits, and return the batch to run, oldest first."""
        while self.waiting and len(self.running) < self._max_batch:
            first = self.waiting[0]
            table = self.pool.allocate(first.id, first.limit)
            if table is None:
                break
            first.rows = SequenceRows(table, self.pool.block_size)
            self.running.append(self.waiting.popleft())
        return list(self.running)

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when it is not here."""
        for request in self.running:
            if request.id == request_id:
                self.running.remove(request)
                self.pool.release(request_id)
                return True
        for request in self.waiting:
            if request.id == request_id:
                self.waiting.remove(request)
                return True
        return False

    def check_integrity(self) -> None:
        """Raise `EngineError` unless exactly the running requests hold blocks."""
        self.pool.check_integrity({request.id for request in self.running})
