"""Whom to run next: continuous batching, first come first served.

Every step has a budget of tokens. Sequences that decode come first, with a token each; drafts behind these share what
is left, half of it where prompts are to be computed, and prompts get the rest, in parts, oldest first. Blocks are taken
as sequences grow. When none is left, drafts are given up first; then whoever came last is preempted: its blocks go, its
tokens stay, and it is computed again when there is room, which mostly means found again, since its blocks are forgotten
last-used first. The oldest is never preempted for another, and alone it always fits, so there is always progress.

A request is admitted when fewer than `max_batch` run and its tokens so far find room beside those running. The first in
line is never overtaken. It waits a step or more while another is computing what it begins with: then it finds it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.request import Request
from dovetail.errors import EngineBusy, InvalidRequest

# A client behind this many others would time out before its first token.
MAX_WAITING = 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's part of a step: its next `length` tokens to compute, and room for that many drafts behind them."""

    request: Request
    length: int
    room: int


@dataclass(slots=True)
class Totals:
    """Since start, in requests and tokens."""

    preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_found: int = 0


class Scheduler:
    """Holds every live request, waiting or running."""

    def __init__(self, tables: Tables, drafter: Drafter | None, *, max_batch: int, max_batched_tokens: int) -> None:
        self.tables = tables
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.totals = Totals()
        self._drafter = drafter
        self._max_batch = max_batch
        self._max_batched_tokens = max_batched_tokens

    def add(self, request: Request) -> None:
        """Queue `request`. Raises `EngineBusy` when too many wait, `InvalidRequest` for an id that is here already."""
        if any(request.id == other.id for other in (*self.running, *self.waiting)):
            raise InvalidRequest(f"a request {request.id!r} is running or waiting already", param="request_id")
        if len(self.waiting) >= MAX_WAITING:
            raise EngineBusy(f"{len(self.waiting)} requests are waiting already")
        self.waiting.append(request)

    def schedule(self) -> list[Turn]:
        """The next step's batch, every request at most once. Each turn's blocks are in the request's table."""
        preempted = self.totals.preemptions
        turns: dict[str, Turn] = {}
        decoding = [request for request in self.running if request.pending == 1]
        prompts = [request for request in self.running if request.pending > 1]
        budget = self._max_batched_tokens - len(decoding)
        drafts = budget // 2 if prompts or self.waiting else budget
        for i, request in enumerate(decoding[: self._max_batched_tokens]):
            # Drafts follow a token whose predecessors are all computed; before that there is nothing to draft from.
            share = max(0, drafts) // (len(decoding) - i)
            room = min(request.draft_room(), share) if request.computed else 0
            drafts -= room
            budget -= room
            self._take(Turn(request, 1, room), turns)
        for request in prompts:
            length = min(request.pending, budget)
            if length > 0:
                self._take(Turn(request, length, 0), turns)
                budget -= length
        if self.totals.preemptions == preempted:
            while budget > 0 and self._admit():
                request = self.running[-1]
                turns[request.id] = Turn(request, min(request.pending, budget), 0)
                budget -= turns[request.id].length
        return list(turns.values())

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when it is not here."""
        for queue in (self.running, self.waiting):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._release(request)
                    return True
        return False

    def check_integrity(self) -> None:
        """Raise `EngineError` unless exactly the running requests hold blocks."""
        running = {request.id for request in self.running}
        self.tables.check_integrity(running)
        if self._drafter is not None:
            self._drafter.check_integrity(running)

    def _take(self, turn: Turn, turns: dict[str, Turn]) -> None:
        """Put `turn` into `turns` with blocks for it, without its drafts or at others' expense if need be."""
        request = turn.request
        if request.id not in self.tables:
            return  # preempted for one before it
        while not self.tables.reserve(request.id, request.computed + turn.length + turn.room):
            if turn.room:
                turn = Turn(request, turn.length, 0)
                continue
            last = self.running[-1]
            self._preempt(last)
            turns.pop(last.id, None)
            if last is request:
                return
        turns[request.id] = turn

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.computed = 0
        self.waiting.appendleft(request)
        self.totals.preemptions += 1

    def _admit(self) -> bool:
        """Let the first in line run, if it can: its tokens find room, and nobody is computing what it begins with."""
        if not self.waiting or len(self.running) >= self._max_batch:
            return False
        request, pool = self.waiting[0], self.tables.pool
        found, idle, coming = self.tables.would_find(request.id, request.tokens)
        needed = pool.blocks_for(len(request.tokens)) - found // pool.block_size + idle
        if coming or needed > pool.free:
            return False
        request.computed = self._begin(request)
        if not self.tables.reserve(request.id, len(request.tokens)):
            # The drafter knew less of it than the target's cache holds, so it takes more blocks than it seemed.
            self._release(request)
            request.computed = 0
            return False
        self.running.append(self.waiting.popleft())
        if request.found is None:  # after a preemption it is not the prompt alone, nor for the first time
            request.found = request.computed
            self.totals.prompt_tokens += request.prompt_length
            self.totals.prompt_tokens_found += request.computed
        return True

    def _begin(self, request: Request) -> int:
        found = self.tables.begin(request.id, request.tokens)
        if self._drafter is not None and request.draft_tokens:
            known = self._drafter.start(request, found)
            if known < found:
                self.tables.release(request.id)
                found = self.tables.begin(request.id, request.tokens, known)
        return found

    def _release(self, request: Request) -> None:
        self.tables.release(request.id)
        if self._drafter is not None:
            self._drafter.release(request)
