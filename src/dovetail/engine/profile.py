"""Measures step times when the engine starts: a few dozen real steps over random tokens, for the gate's cost table.

The steps include drafting, for a few batch sizes and draft counts and at one longer context. `CostTable.of` makes a
table of them, and `gate.cost_file` stores it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.drafting.base import Draft, Drafter, DrafterWrapper
from dovetail.engine.request import Request
from dovetail.engine.step import Outcome, StepLoop
from dovetail.errors import EngineError, guarded
from dovetail.gate import CostTable, Gate, Limits, Point, Track, cost_file

_log = logging.getLogger(__name__)

# After this many seconds only the measurements that a table needs are begun.
_BUDGET = 0.4
_PROMPT, _LONG = 2, 1024
_WIDE = 256
_REPEATS = 5
#: How a table was measured, for the name of its file.
HOW = (_PROMPT, _LONG, _WIDE, _REPEATS, torch.__version__)


class RandomDrafts(DrafterWrapper):
    """A drafter that takes as long as `drafter` and proposes as many tokens, but random ones."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        super().__init__(drafter)
        self._vocab_size = vocab_size
        self._random = random.Random(0)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        drafts = super().propose(requests, counts)
        return [Draft([self._random.randrange(self._vocab_size) for _ in draft.tokens]) for draft in drafts]


def costs(path: Path | None, loop: StepLoop, batch: int, drafts: int, context: int) -> CostTable | None:
    """The table from the file `path`, or else measured with `loop`, up to these sizes.

    None, and a warning, where it cannot be measured: a failure here does not stop the engine.
    """
    table = None if path is None else cost_file.read(path, batch, drafts)
    if table is not None:
        return table
    try:
        with torch.inference_mode():
            return guarded(measure, loop, batch, drafts, context)
    except Exception:
        _log.warning("step times could not be measured, so the gate is off", exc_info=True)
        return None


def measure(loop: StepLoop, batch: int, drafts: int, context: int) -> CostTable:
    """A table up to these sizes. `loop` must have no end tokens and draft as many tokens as it is asked for.

    Raises `EngineError` where not even a few steps fit into context and cache, or a step did something else.
    """
    points = _Profiler(loop, context).points(batch, drafts)
    if not points:
        raise EngineError(f"a context of {context} tokens is too short for the steps that are timed")
    return CostTable.of(points, batch=batch, drafts=drafts, context=context)


class _Profiler:
    """Times steps of `loop`, and removes its requests from it afterwards."""

    def __init__(self, loop: StepLoop, context: int) -> None:
        self._loop = loop
        self._scheduler = loop.scheduler
        self._vocab_size = loop.vocab_size
        self._context = context
        self._random = random.Random(0)
        self._number = 0

    def points(self, batch: int, drafts: int) -> list[Point]:
        """The measured points: one sequence, and `batch` or as many as the cache has room for, with no and with all
        drafts (or as many as make a step of `_WIDE` tokens). While there is time, also other draft counts, a long
        sequence, and batch sizes between."""
        started = time.perf_counter()
        points = self._steps(1, _PROMPT, (0, drafts))
        while batch > 1 and not self._fits(batch, _PROMPT, (0, drafts)):
            batch //= 2
        if points and batch > 1:
            points += self._steps(batch, _PROMPT, (0, min(drafts, max(1, _WIDE // batch - 1))))
        middle = [k for k in (3, 1) if k < drafts]
        long = min(_LONG, self._context // 2)
        more = [(1, _PROMPT, middle)]
        # A token of a prompt takes an eighth of a step or less.
        if points and long > 16 * _PROMPT and points[0].seconds * long / 8 < _BUDGET:
            more.append((1, long, [0, drafts]))
        between = [4**i for i in range(1, 5) if 4**i < batch]
        more += [(batch, _PROMPT, middle), *((size, _PROMPT, [0, drafts, *middle]) for size in between)]
        for sizes in more:
            if points and time.perf_counter() - started < _BUDGET:
                points += self._steps(*sizes)
        return points

    def _steps(self, batch: int, prompt: int, kinds: Sequence[int]) -> list[Point]:
        """Time steps of `batch` sequences with each draft count of `kinds`; no points where these do not fit."""
        if not self._fits(batch, prompt, kinds):
            return []
        requests = [self._add(prompt) for _ in range(batch)]
        points = []
        try:
            while self._scheduler.waiting or any(request.pending > 1 for request in requests):
                _added(self._loop.step())
            for drafts in kinds:
                self._scheduler.gate = Gate(None, Limits(), drafts)
                for request in requests:
                    request.track = Track()
                self._step(requests)  # slower than the next: it touches memory for the first time, drafters catch up
                seconds: list[float] = []
                while len(seconds) < 2 or (len(seconds) < _REPEATS and sum(seconds) < _BUDGET / 8):
                    seconds.append(self._step(requests))
                points.append(Point(batch, drafts, prompt, min(seconds)))
        finally:
            for request in requests:
                self._scheduler.remove(request.id)
        return points

    def _fits(self, batch: int, prompt: int, kinds: Sequence[int]) -> bool:
        """Whether all steps of this many sequences fit, with the blocks that are reserved ahead: into the context, and
        into the cache without preempting a sequence."""
        tokens = prompt + 1 + sum((_REPEATS + 1) * (k + 1) for k in kinds)
        pool = self._scheduler.tables.pool
        blocks = pool.blocks_for(min(self._context, tokens + self._loop.draft_tokens))
        return tokens <= self._context and batch * blocks <= pool.free

    def _step(self, requests: Sequence[Request]) -> float:
        """Seconds of a step of all of `requests`. Raises `EngineError` if some were left out.

        Then replaces each last token by a random one: a model repeats itself on random prompts, and its experts too.
        """
        before = time.perf_counter()
        outcomes = self._loop.step()
        seconds = time.perf_counter() - before
        if len(_added(outcomes)) != len(requests) or self._loop.counters.failed:
            raise EngineError(f"a timed step did not run all {len(requests)} sequences with drafts")
        for request in requests:
            request.tokens[-1] = self._random.randrange(self._vocab_size)
        return seconds

    def _add(self, prompt: int) -> Request:
        self._number += 1
        completion = Completion(
            prompt=tuple(self._random.randrange(self._vocab_size) for _ in range(prompt)),
            max_tokens=self._context,
            sampling=Sampling(temperature=0.0),
        )
        request = Request(
            f"profile-{self._number}",
            completion,
            context=self._context,
            vocab_size=self._vocab_size,
            draft_tokens=self._loop.draft_tokens,
        )
        self._scheduler.add(request)
        return request


def _added(outcomes: Sequence[Outcome]) -> list[TokenBatch]:
    """The tokens that a step added. Raises the error of a sequence that failed."""
    added: list[TokenBatch] = []
    for _, outcome in outcomes:
        if isinstance(outcome, EngineError):
            raise outcome
        added.append(outcome)
    return added
