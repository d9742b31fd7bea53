"""Whom to run next: continuous batching, first come first served.

Every step has a budget of tokens. Sequences that decode come first, with a token each; drafts behind these share what
is left, half of it where prompts are to be computed, and prompts get the rest, in parts, oldest first. Blocks are taken
as sequences grow. When none is left, drafts are given up first; then whoever came last is preempted: its blocks go, its
tokens stay, and it is computed again when there is room, which mostly means found again, since its blocks are forgotten
last-used first. The oldest is never preempted for another, and alone it always fits, so there is always progress.

A request is admitted when fewer than `max_batch` run and its tokens so far find room beside those running. The first in
line is never overtaken. It waits a step or more while another is computing what it begins with: then it finds it.

`prepare` does ahead of `schedule`, while a step is computed, what takes long: keys of prompts, tables of those who are
next in line, blocks for those who run. It decides nothing that `schedule` would decide otherwise, preempts nobody, and
where blocks are short it leaves everything to `schedule`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.drafting.forced import forced
from dovetail.engine.request import Request
from dovetail.errors import EngineBusy, InvalidRequest, guarded
from dovetail.gate import Gate

# A client behind this many others would time out before its first token.
MAX_WAITING = 1024
# Of a token that is prepared: its share of a key, a table and a block. For `Scheduler.seconds` alone.
_TOKEN_SECONDS = 1e-7

_log = logging.getLogger(__name__)


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
    """Holds every live request: `waiting`; `running`; or `ready`, admitted ahead, to run from the next step on.

    `gate` says how much is drafted. `plain`: whether the last step was all that it chose for, and nothing else.
    """

    def __init__(
        self, tables: Tables, drafter: Drafter | None, gate: Gate, *, max_batch: int, max_batched_tokens: int
    ) -> None:
        self.tables = tables
        self.gate = gate
        self.plain = False
        self.waiting: deque[Request] = deque()
        self.ready: list[Request] = []
        self.running: list[Request] = []
        self.totals = Totals()
        self._drafter = drafter
        self._max_batch = max_batch
        self._max_batched_tokens = max_batched_tokens

    def add(self, request: Request) -> None:
        """Queue `request`. Raises `EngineBusy` when too many wait, `InvalidRequest` for an id that is here already."""
        if any(request.id == other.id for other in (*self.running, *self.ready, *self.waiting)):
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
        ready, self.ready = self.ready, []
        self.running += ready
        budget = self._max_batched_tokens - len(decoding)
        drafts = budget // 2 if prompts or ready or self.waiting else budget
        allowed = self._allowed(decoding)
        for i, request in enumerate(decoding[: self._max_batched_tokens]):
            room = min(allowed[i], max(0, drafts) // (len(decoding) - i))
            drafts -= room
            budget -= room
            self._take(Turn(request, 1, room), turns)
        for request in prompts + ready:
            length = min(request.pending, budget)
            if length > 0:
                self._take(Turn(request, length, 0), turns)
                budget -= length
        if self.totals.preemptions == preempted:
            while budget > 0 and self._admit(self.running):
                request = self.running[-1]
                turns[request.id] = Turn(request, min(request.pending, budget), 0)
                budget -= turns[request.id].length
        self.plain = not prompts and len(turns) == len(decoding) == len(self.running)
        return list(turns.values())

    def _allowed(self, decoding: Sequence[Request]) -> list[int]:
        """Draft tokens for each request: as many as the gate allows, or as many as a constraint forces if more.

        Forced tokens take no drafter and are nearly always accepted, so only the gate's limit of batch forbids them.
        """
        if self._drafter is None:
            return [0] * len(decoding)
        caps = [request.draft_room() for request in decoding]
        decision = self.gate.decide([r.track for r in decoding], [len(r.tokens) for r in decoding], caps)
        for i in decision.too_long:
            if decoding[i].draft_tokens:
                self.undraft(decoding[i])
        return [
            max(allowed, len(forced(request, cap)))
            if allowed < cap and request.draft_tokens and reason != "batch"
            else allowed
            for request, allowed, cap, reason in zip(decoding, decision.allowed, caps, decision.reasons, strict=True)
        ]

    @property
    def seconds(self) -> float:
        """About how long `prepare` will take: what it does for the first in line."""
        if not self.waiting:
            return 0.0
        first = self.waiting[0]
        if not self._places and self.tables.knows(first.id, first.tokens):
            return 0.0
        return len(first.tokens) * _TOKEN_SECONDS

    def prepare(self, turns: Sequence[Turn]) -> None:
        """Get ready for the step after that of `turns`, which is being computed: nothing of theirs changes but that
        tables grow.

        Whatever fails here is left as it was, and met again in `schedule`, where it is somebody's.
        """
        try:
            guarded(self._prepare, turns)
        except Exception:
            _log.warning("the next step could not be prepared ahead of its time", exc_info=True)

    def _prepare(self, turns: Sequence[Turn]) -> None:
        if self.waiting:
            self.tables.hash(self.waiting[0].id, self.waiting[0].tokens)
        if self._grow(turns):
            # What the next step has for those who begin: no drafts are counted, they get what is left by others.
            coming = {turn.request.id: turn.length for turn in turns}
            left = [max(1, request.pending - coming.get(request.id, 0)) for request in self.running]
            budget = self._max_batched_tokens - sum(left)
            while budget > 0 and self._admit(self.ready):
                budget -= self.ready[-1].pending

    def _grow(self, turns: Sequence[Turn]) -> bool:
        """Blocks for the most that those who decode may come to by the end of the next step, and the index of their
        rows; False, and perhaps not for all, where that would leave less than a block for each of `turns`."""
        for turn in turns:
            request = turn.request
            if request.pending > turn.length:
                continue  # a prompt, whose blocks are all there
            # This step adds at most its drafts and one more, the next computes these, of them the last, and drafts.
            most = min(request.limit, len(request.tokens) + turn.room + 1 + request.draft_tokens)
            table = self.tables[request.id]
            missing = self.tables.pool.blocks_for(most) - len(table.blocks)
            if missing > 0:
                if missing + len(turns) > self.tables.pool.free:
                    return False
                self.tables.reserve(request.id, most)
                table.up_to(table.capacity)
        return True

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when it is not here."""
        for queue in (self.running, self.ready, self.waiting):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._release(request)
                    return True
        return False

    def undraft(self, request: Request) -> None:
        """Nothing is drafted for `request` any more, and its drafter forgets it."""
        request.draft_tokens = 0
        if self._drafter is not None:
            self._drafter.release(request)

    def check_integrity(self) -> None:
        """Raise `EngineError` unless exactly the requests that run, or are ready to, hold blocks."""
        running = {request.id for request in (*self.running, *self.ready)}
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
        self._stop(request)
        self.waiting.appendleft(request)
        self.totals.preemptions += 1

    @property
    def _places(self) -> int:
        return self._max_batch - len(self.running) - len(self.ready)

    def _admit(self, queue: list[Request]) -> bool:
        """Put the first in line into `queue`, if it can run: its tokens find room, and nobody is computing what it
        begins with."""
        if not self.waiting or not self._places:
            return False
        request, pool = self.waiting[0], self.tables.pool
        found, idle, coming = self.tables.would_find(request.id, request.tokens)
        needed = pool.blocks_for(len(request.tokens)) - found // pool.block_size + idle
        if coming or needed > pool.free:
            return False
        with ExitStack() as undo:
            undo.callback(self._stop, request)
            request.computed = self._begin(request)
            if not self.tables.reserve(request.id, len(request.tokens)):
                # The drafter knew less of it than the target's cache holds, so it takes more blocks than it seemed.
                return False
            undo.pop_all()
        queue.append(self.waiting.popleft())
        if request.found is None:  # after a preemption it is not the prompt alone, nor for the first time
            request.found = request.computed
            self.totals.prompt_tokens += request.prompt_length
            self.totals.prompt_tokens_found += request.computed
        return True

    def _begin(self, request: Request) -> int:
        found = self.tables.begin(request.id, request.tokens)
        if self.gate.limits.too_long(len(request.tokens)):
            request.draft_tokens = 0
        if self._drafter is not None and request.draft_tokens:
            known = self._drafter.start(request, found)
            if known < found:
                self.tables.release(request.id)
                found = self.tables.begin(request.id, request.tokens, known)
        return found

    def _stop(self, request: Request) -> None:
        self._release(request)
        request.computed = 0

    def _release(self, request: Request) -> None:
        self.tables.release(request.id)
        if self._drafter is not None:
            self._drafter.release(request)
