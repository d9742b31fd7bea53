"""Which requests run in the next step: continuous batching, first come first served.

Budget. A step computes at most `max_batched_tokens`. Sequences that decode come first, with one token each. Their
drafts share the rest of the budget, or half of the rest while prompts are to be computed. Prompts get what is left, in
parts, the oldest first.

Blocks. Sequences take blocks as they grow. When no block is free, drafts are dropped first; then the request that came
last is preempted: it keeps its tokens, loses its blocks, and is computed again later, mostly from the prefix cache. The
oldest request is never preempted for another and always fits alone, so there is always progress.

Admission. A request is admitted when fewer than `max_batch` run and its tokens fit beside theirs. No request overtakes
another. A request waits while a running one computes the prefix that both share, and then takes it from the cache.

`prepare` does slow work for the next `schedule` while the model computes: keys of prompts, tables of the next requests,
blocks for those running. It never preempts, never changes what `schedule` decides, and does nothing when blocks are
short.
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
from dovetail.gate import Gate, Reason

# A client after this many others would time out before its first token.
MAX_WAITING = 1024
# Seconds that `prepare` takes per token of a prompt, for its key, table and block. Only for `Scheduler.seconds`.
_TOKEN_SECONDS = 1e-7

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request in one step: its next `length` tokens to compute, and how many draft tokens are `asked` for."""

    request: Request
    length: int
    asked: int


@dataclass(slots=True)
class Totals:
    """Totals since start: preempted requests, prompt tokens, and prompt tokens that were in the cache."""

    preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0


class Scheduler:
    """Owns every live request: `waiting`, `ready` (admitted by `prepare`, runs from the next step on) and `running`.

    `gate` decides how much `drafter` drafts. `only_decoding`: whether the last step ran exactly the sequences that the
    gate decided for, and no prompt.
    """

    def __init__(
        self, tables: Tables, drafter: Drafter | None, gate: Gate, *, max_batch: int, max_batched_tokens: int
    ) -> None:
        self.tables = tables
        self.drafter = drafter
        self.gate = gate
        self.only_decoding = False
        self.waiting: deque[Request] = deque()
        self.ready: list[Request] = []
        self.running: list[Request] = []
        self.totals = Totals()
        self._max_batch = max_batch
        self._max_batched_tokens = max_batched_tokens

    def add(self, request: Request) -> None:
        """Queue `request`. Raises `EngineBusy` when too many wait, and `InvalidRequest` for an id that is in use."""
        if any(request.id == other.id for other in (*self.running, *self.ready, *self.waiting)):
            raise InvalidRequest(f"a request {request.id!r} is running or waiting already", param="request_id")
        if len(self.waiting) >= MAX_WAITING:
            raise EngineBusy(f"{len(self.waiting)} requests are waiting already")
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledRequest]:
        """The turns of the next step, at most one for each request, with blocks for each turn in its table."""
        preempted = self.totals.preemptions
        turns: dict[str, ScheduledRequest] = {}
        decoding = [request for request in self.running if request.pending == 1]
        prompts = [request for request in self.running if request.pending > 1]
        ready, self.ready = self.ready, []
        self.running += ready
        budget = self._max_batched_tokens - len(decoding)
        drafts = budget // 2 if prompts or ready or self.waiting else budget
        allowed = self._allowed(decoding)
        for i, request in enumerate(decoding[: self._max_batched_tokens]):
            asked = min(allowed[i], max(0, drafts) // (len(decoding) - i))
            drafts -= asked
            budget -= asked
            self._take(ScheduledRequest(request, 1, asked), turns)
        for request in prompts + ready:
            length = min(request.pending, budget)
            if length > 0:
                self._take(ScheduledRequest(request, length, 0), turns)
                budget -= length
        if self.totals.preemptions == preempted:
            while budget > 0 and self._admit(self.running):
                request = self.running[-1]
                turns[request.id] = ScheduledRequest(request, min(request.pending, budget), 0)
                budget -= turns[request.id].length
        self.only_decoding = not prompts and len(turns) == len(decoding) == len(self.running)
        return list(turns.values())

    def _allowed(self, decoding: Sequence[Request]) -> list[int]:
        """Draft tokens for each request: as many as the gate allows, or as many as a constraint forces if more.

        Forced tokens take no drafter and are nearly always accepted, so only the gate's limit of batch forbids them.
        For a request that is not gated, only the gate's limits of batch and context apply.
        """
        if self.drafter is None:
            return [0] * len(decoding)
        caps = [request.draft_cap() for request in decoding]
        most = list[int]()
        for request, cap in zip(decoding, caps, strict=True):
            matched = self.drafter.matched(request) if cap else None
            if cap:
                request.track = request.track_for(matched)
            most.append(cap if matched is None else min(cap, matched))
        decision = self.gate.decide([r.track for r in decoding], [len(r.tokens) for r in decoding], most)
        for i in decision.too_long:
            if decoding[i].draft_tokens:
                self.stop_drafting(decoding[i])
        return [
            _most(request, allowed, cap, reason)
            for request, allowed, cap, reason in zip(decoding, decision.allowed, caps, decision.reasons, strict=True)
        ]

    @property
    def seconds(self) -> float:
        """About how many seconds `prepare` will take, estimated from its work for the first waiting request."""
        if not self.waiting:
            return 0.0
        first = self.waiting[0]
        if not self._free_places and self.tables.has_keys(first.id, first.tokens):
            return 0.0
        return len(first.tokens) * _TOKEN_SECONDS

    def prepare(self, turns: Sequence[ScheduledRequest]) -> None:
        """Prepare the next step while the step of `turns` is computed. Only the tables of their requests change.

        If something fails here, nothing is changed: `schedule` meets the same failure and ends the right request.
        """
        try:
            guarded(self._prepare, turns)
        except Exception:
            _log.warning("the next step could not be prepared ahead of its time", exc_info=True)

    def _prepare(self, turns: Sequence[ScheduledRequest]) -> None:
        if self.waiting:
            first = self.waiting[0]
            self.tables.hash(first.id, first.tokens, first.cache_salt)
        if self._grow(turns):
            # The next step's budget for new prompts. Drafts do not count, because they get what is left.
            lengths = {turn.request.id: turn.length for turn in turns}
            pending = [max(1, request.pending - lengths.get(request.id, 0)) for request in self.running]
            budget = self._max_batched_tokens - sum(pending)
            while budget > 0 and self._admit(self.ready):
                budget -= self.ready[-1].pending

    def _grow(self, turns: Sequence[ScheduledRequest]) -> bool:
        """Reserve blocks for the greatest length that decoding sequences can have after the next step, and index their
        rows.

        Returns False, perhaps after growing some, if fewer free blocks than `turns` would remain.
        """
        for turn in turns:
            request = turn.request
            if request.pending > turn.length:
                continue  # a prompt, which has all its blocks
            # This step adds at most its drafts and one token; the next one computes these and its own drafts.
            most = min(request.limit, len(request.tokens) + turn.asked + 1 + request.draft_tokens)
            table = self.tables[request.id]
            missing = self.tables.pool.blocks_for(most) - len(table.blocks)
            if missing > 0:
                if missing + len(turns) > self.tables.pool.free:
                    return False
                self.tables.reserve(request.id, most)
                table.up_to(table.capacity)
        return True

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks. Returns False if there is no such request."""
        for queue in (self.running, self.ready, self.waiting):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._release(request)
                    return True
        return False

    def stop_drafting(self, request: Request) -> None:
        """Draft nothing for `request` any more, and let the drafter forget it."""
        request.draft_tokens = 0
        if self.drafter is not None:
            self.drafter.release(request)

    def check_integrity(self) -> None:
        """Raise `EngineError` unless exactly the running and ready requests have blocks."""
        running = {request.id for request in (*self.running, *self.ready)}
        self.tables.check_integrity(running)
        if self.drafter is not None:
            self.drafter.check_integrity(running)

    def _take(self, turn: ScheduledRequest, turns: dict[str, ScheduledRequest]) -> None:
        """Add `turn` to `turns` with blocks for it, if need be without its drafts or by preempting others."""
        request = turn.request
        if request.id not in self.tables:
            return  # preempted for an earlier turn
        while not self.tables.reserve(request.id, request.computed + turn.length + turn.asked):
            if turn.asked:
                turn = ScheduledRequest(request, turn.length, 0)
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
    def _free_places(self) -> int:
        return self._max_batch - len(self.running) - len(self.ready)

    def _admit(self, queue: list[Request]) -> bool:
        """Move the first waiting request to `queue`, if its tokens fit and nobody is computing its prefix."""
        if not self.waiting or not self._free_places:
            return False
        request, pool = self.waiting[0], self.tables.pool
        prompt = request.id, request.tokens, request.cacheable, request.cache_salt
        cached, idle, in_progress = self.tables.find_cached(*prompt)
        needed = pool.blocks_for(len(request.tokens)) - cached // pool.block_size + idle
        if in_progress or needed > pool.free:
            return False
        with ExitStack() as undo:
            undo.callback(self._stop, request)
            request.computed = self._begin(request)
            if not self.tables.reserve(request.id, len(request.tokens)):
                # The drafter's cache has less of it than the target's, so the request needs more blocks than expected.
                return False
            undo.pop_all()
        queue.append(self.waiting.popleft())
        if request.cached_prompt is None:  # not after a preemption: the prompt is counted already
            request.cached_prompt = request.computed
            self.totals.prompt_tokens += request.prompt_length
            self.totals.prompt_tokens_cached += request.computed
        return True

    def _begin(self, request: Request) -> int:
        """Open the tables of `request`, and return how many of its tokens both caches have."""
        cached = self.tables.begin(request.id, request.tokens, request.cacheable, request.cache_salt)
        if self.gate.limits.too_long(len(request.tokens)):
            request.draft_tokens = 0
        if self.drafter is not None and request.draft_tokens:
            known = self.drafter.start(request, cached)
            if known < cached:
                self.tables.release(request.id)
                cached = self.tables.begin(request.id, request.tokens, known, request.cache_salt)
        return cached

    def _stop(self, request: Request) -> None:
        self._release(request)
        request.computed = 0

    def _release(self, request: Request) -> None:
        self.tables.release(request.id)
        if self.drafter is not None:
            self.drafter.release(request)


def _most(request: Request, allowed: int, cap: int, reason: Reason) -> int:
    """The most tokens that one request drafts in a step. `allowed`: what the gate allows, for the reason it gives."""
    if not request.gated and reason not in ("batch", "context"):
        return cap
    if allowed < cap and request.draft_tokens and reason != "batch":
        return max(allowed, len(forced(request, cap)))
    return allowed
