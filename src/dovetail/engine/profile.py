"""Measures step times when the engine starts: a few dozen real steps over random tokens, for the gate's cost model.

The steps include drafting, for a few batch sizes and draft counts and at one longer context. Steps with different
counts alternate, since only the ratios of their times matter, and another process slows neighbouring steps alike.
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
from dovetail.gate import CostModel, Gate, Limits, Rounds, cost_file

_log = logging.getLogger(__name__)

# After this many seconds only the measurements that a model needs are begun.
_BUDGET = 0.4
_PROMPT, _LONG = 2, 1024
_WIDE = 256
_REPEATS = 5
#: How a model was measured, for the name of its file.
HOW = (_PROMPT, _LONG, _WIDE, _REPEATS, torch.__version__)


class RandomDrafts(DrafterWrapper):
    """A drafter that takes as long as `drafter` and proposes random tokens, as many as it is asked for."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        super().__init__(drafter)
        self._vocab_size = vocab_size
        self._random = random.Random(0)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        super().propose(requests, counts)
        return [Draft([self._random.randrange(self._vocab_size) for _ in range(count)]) for count in counts]

    def matched(self, request: Request) -> None:
        """None: a lookup that finds nothing in random tokens is timed with as many drafts too."""


def costs(path: Path | None, loop: StepLoop, batch: int, drafts: int, context: int) -> CostModel | None:
    """The model from the file `path` if a few steps agree with it, otherwise measured with `loop` up to these sizes.

    Returns None, with a warning, if it cannot be measured: a failure here does not stop the engine.
    """
    known = None if path is None else cost_file.read(path)
    try:
        with torch.inference_mode():
            return guarded(measure, loop, batch, drafts, context, known)
    except Exception:
        _log.warning("step times could not be measured, so the gate is off", exc_info=True)
        return None


def measure(loop: StepLoop, batch: int, drafts: int, context: int, known: CostModel | None = None) -> CostModel:
    """Measure the model up to these sizes. `loop` must have no end tokens and draft as many tokens as it is asked for.

    `known`: the model of an earlier start. It is scaled if a few steps agree with it; otherwise only its acceptance is
    used. Raises `EngineError` if not even a few steps fit into context and cache, or if a step did other work.
    """
    profiler = _Profiler(loop, context)
    first = profiler.one(drafts)
    if not first:
        raise EngineError(f"a context of {context} tokens is too short for the steps that are timed")
    if known is not None and known.try_on(first[0]):
        return known
    model = CostModel.fit(first + profiler.more(batch, drafts, first[0]))
    model.acceptance = [] if known is None else known.acceptance
    return model


class _Profiler:
    """Times steps of `loop`, and removes its requests from it afterwards."""

    def __init__(self, loop: StepLoop, context: int) -> None:
        self._loop = loop
        self._scheduler = loop.scheduler
        self._vocab_size = loop.vocab_size
        self._context = context
        self._random = random.Random(0)
        self._number = 0
        self._started = time.perf_counter()

    def one(self, drafts: int) -> list[Rounds]:
        """Time steps of one sequence, without drafts and with several draft counts; nothing if these steps do not
        fit."""
        few = (0, drafts)
        return self._rounds(1, _PROMPT, (*few, *(k for k in (3, 1) if k < drafts))) or self._rounds(1, _PROMPT, few)

    def more(self, batch: int, drafts: int, first: Rounds) -> list[Rounds]:
        """Time steps of `batch` sequences, or of as many as fit into the cache: without drafts, and with the most
        drafts that keep a step within `_WIDE` tokens. While there is time, also time a long sequence and smaller
        batches."""
        measured: list[Rounds] = []
        while batch > 1 and not self._fits(batch, _PROMPT, (0, drafts, 1)):
            batch //= 2
        sizes = [(batch, _PROMPT)] if batch > 1 else []
        long = min(_LONG, self._context // 2)
        # A token of a prompt takes an eighth of a step or less.
        if long > 16 * _PROMPT and first.seconds[0][0] * long / 8 < _BUDGET:
            sizes.append((1, long))
        sizes += [(4**i, _PROMPT) for i in range(1, 5) if 4**i < batch]
        for size, prompt in sizes:
            if (size == batch and not measured) or time.perf_counter() - self._started < _BUDGET:
                most = min(drafts, max(1, _WIDE // size - 1))
                measured += self._rounds(size, prompt, (0, most, 1) if most > 1 else (0, most))
        return measured

    def _rounds(self, batch: int, prompt: int, kinds: tuple[int, ...]) -> list[Rounds]:
        """Timed steps of `batch` sequences with each draft count of `kinds` in turn; nothing if these steps do not
        fit."""
        if not self._fits(batch, prompt, kinds):
            return []
        requests = [self._add(prompt) for _ in range(batch)]
        rounds: list[tuple[float, ...]] = []
        try:
            while self._scheduler.waiting or any(request.pending > 1 for request in requests):
                _added(self._loop.step())
            self._round(requests, kinds)  # slower than the next: it touches memory for the first time
            started = time.perf_counter()
            while len(rounds) < 2 or (len(rounds) < _REPEATS and time.perf_counter() - started < _BUDGET / 4):
                rounds.append(self._round(requests, kinds))
        finally:
            for request in requests:
                self._scheduler.remove(request.id)
        return [Rounds(batch, prompt, kinds, tuple(rounds))]

    def _round(self, requests: Sequence[Request], kinds: tuple[int, ...]) -> tuple[float, ...]:
        """Seconds of a step with each draft count of `kinds`."""
        seconds = []
        for drafts in kinds:
            self._scheduler.gate = Gate(None, Limits(), drafts)
            for request in requests:
                request.forget_tracks()
            seconds.append(self._step(requests))
        return tuple(seconds)

    def _fits(self, batch: int, prompt: int, kinds: Sequence[int]) -> bool:
        """Whether all steps of this many sequences fit into the context, and into the cache without preempting a
        sequence. Blocks that are reserved ahead count."""
        tokens = prompt + 1 + (_REPEATS + 1) * sum(k + 1 for k in kinds)
        pool = self._scheduler.tables.pool
        blocks = pool.blocks_for(min(self._context, tokens + self._loop.draft_tokens))
        return tokens <= self._context and batch * blocks <= pool.free

    def _step(self, requests: Sequence[Request]) -> float:
        """Seconds of one step of all `requests`. Raises `EngineError` if the step left some out.

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
