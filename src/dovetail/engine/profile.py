"""What steps take on this machine, measured when the engine starts: a few dozen real steps over random tokens.

The steps are those of the engine itself, drafting included, for a few batch sizes and numbers of drafts, and at one
longer context; `CostTable.of` makes a table of them. A table is kept in a file under a name that says what it depends
on: the checkpoints, how they are held, the sizes, and the machine. What was learned while serving is kept with it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from dovetail.completion import Completion, Sampling
from dovetail.costs import CostTable, Point
from dovetail.engine.drafting.base import Draft, Drafter, Observed
from dovetail.engine.request import Request
from dovetail.engine.step import StepLoop
from dovetail.gate import Gate, Limits, Track

_log = logging.getLogger(__name__)

# Seconds after which nothing is begun but the least that a table needs, one sequence with and without drafts.
_BUDGET = 0.4
_PROMPT, _LONG = 8, 1024
_REPEATS = 3
# Of the steps a kept table was told of, so many count: today may be another day.
_REMEMBERED = 8.0


class Filled:
    """A drafter that drafts as much as it is asked: where `drafter` says less, any token follows."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.aux_layers = drafter.aux_layers

    def start(self, request: Request, cached: int) -> int:
        return self._drafter.start(request, cached)

    def observe(self, observed: Sequence[Observed]) -> None:
        self._drafter.observe(observed)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        proposed = self._drafter.propose(requests, counts)
        return [
            Draft(draft.tokens + [0] * (count - len(draft.tokens)))
            for draft, count in zip(proposed, counts, strict=True)
        ]

    def release(self, request: Request) -> None:
        self._drafter.release(request)

    def check_integrity(self, requests: set[str]) -> None:
        self._drafter.check_integrity(requests)


def measure(loop: StepLoop, batch: int, drafts: int, context: int) -> CostTable | None:
    """A table up to these sizes, measured with a `loop` that ends no sequence at an end token and drafts what it is
    asked. None where so few steps do not fit into the context."""
    points = _Profiler(loop, context).points(batch, drafts)
    return CostTable.of(points, batch=batch, drafts=drafts, context=context) if points else None


class _Profiler:
    def __init__(self, loop: StepLoop, context: int) -> None:
        self._loop = loop
        self._scheduler = loop.scheduler
        self._vocab_size = loop.vocab_size
        self._context = context
        self._random = random.Random(0)
        self._number = 0

    def points(self, batch: int, drafts: int) -> list[Point]:
        """One sequence with no and with all drafts; then, while there is time, a long one, and other sizes."""
        started = time.perf_counter()
        kinds = sorted({0, drafts, *(k for k in (1, 3) if k < drafts)}, key=lambda k: (0 < k < drafts, k))
        points = self._steps(1, _PROMPT, kinds, started)
        long = min(_LONG, self._context // 2)
        # A prompt's tokens take an eighth of a step each, or less.
        if points and long > 16 * _PROMPT and points[0].seconds * long / 8 < _BUDGET:
            points += self._steps(1, long, (0, drafts), started)
        for size in sorted({batch, *(4**i for i in range(1, 5) if 4**i < batch)} - {1}, key=lambda n: (n < batch, n)):
            if points and time.perf_counter() - started < _BUDGET:
                points += self._steps(size, _PROMPT, kinds, started)
        return points

    def _steps(self, batch: int, prompt: int, kinds: Sequence[int], started: float) -> list[Point]:
        """Time steps of `batch` sequences with each number of drafts; after the second, while there is time."""
        if prompt + sum((_REPEATS + 1) * (k + 1) for k in kinds) >= self._context:
            return []
        requests = [self._add(prompt) for _ in range(batch)]
        points = []
        try:
            while self._scheduler.waiting or any(request.pending > 1 for request in requests):
                self._loop.step()
            for done, drafts in enumerate(kinds):
                if done >= 2 and time.perf_counter() - started > _BUDGET:
                    break
                self._scheduler.gate = Gate(None, Limits(), drafts)
                for request in requests:
                    request.track = Track()
                self._loop.step()  # not as those that follow: memory is touched for the first time, drafters catch up
                seconds = []
                for _ in range(_REPEATS):
                    before = time.perf_counter()
                    self._loop.step()
                    seconds.append(time.perf_counter() - before)
                points.append(Point(batch, drafts, prompt, statistics.median(seconds)))
        finally:
            for request in requests:
                self._scheduler.remove(request.id)
        return points

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


def name(*of: object) -> str:
    """The file's name for a table that depends on `of`, and on the machine."""
    whole = (of, platform.machine(), _processor(), os.cpu_count(), torch.__version__)
    return hashlib.blake2b(repr(whole).encode(), digest_size=16).hexdigest() + ".json"


def read(path: Path, batch: int, drafts: int) -> CostTable | None:
    """The table up to these sizes that is kept at `path`; None where there is none, or something else."""
    try:
        table = msgspec.json.decode(path.read_bytes(), type=CostTable)
        if (table.batches[-1], table.drafts) != (batch, drafts):
            raise ValueError(f"it goes up to batch {table.batches[-1]} and {table.drafts} drafts")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("what steps take is measured again: %s cannot be used (%s)", path, error)
        return None
    table.forget(_REMEMBERED)
    return table


def write(path: Path, table: CostTable) -> None:
    """Keep `table`; where that cannot be, it will be measured again."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(table))
        new.replace(path)
    except OSError as error:
        _log.warning("what steps take is not kept in %s: %s", path, error)
        with suppress(OSError):
            new.unlink()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()
