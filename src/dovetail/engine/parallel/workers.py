"""Rank 0's side: it starts the other ranks, tells them what to run, and ends them all when one is lost."""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from torch import Tensor

from dovetail.engine.models.base import ForwardBatch, Model
from dovetail.engine.parallel.channel import (
    Best,
    Channel,
    Failed,
    Loading,
    Logits,
    Lost,
    Order,
    Task,
    forward_order,
    packed,
)
from dovetail.engine.parallel.gloo import START, join
from dovetail.engine.parallel.group import Group, Layout, RankLost
from dovetail.engine.parallel.sizes import Sizes

_log = logging.getLogger(__name__)
# How many seconds rank 0 waits for reports after a loss. Ranks that lost another one report it within that time, so a
# rank that stays silent is the one at fault.
_SETTLE = 10.0


class Worker:
    """The process of one rank. `failure`: why it has ended, if it has reported that; `lost`: whether it has reported
    that another rank did not answer."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.failure: str | None = None
        self.lost = False
        own, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "dovetail.engine.parallel.worker", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.channel = Channel(own)

    def loads(self, seconds: float) -> bool:
        """Wait for a report: whether the rank is still loading. Raises `EOFError` if it ends."""
        report = self.channel.report(seconds)
        if isinstance(report, Failed | Lost):
            self.failure = report.reason if isinstance(report, Failed) else None
            self.lost = isinstance(report, Lost)
            raise EOFError("it ends")
        return isinstance(report, Loading)

    def silent(self) -> bool:
        """Whether it still runs, and has not reported that it ends."""
        with contextlib.suppress(OSError, EOFError):
            while not self.lost and self.failure is None:
                self.loads(0.01)
        return not self.lost and self.failure is None and self.process.poll() is None

    def fault(self) -> str | None:
        """Why the process ended, if the rank itself is at fault; None otherwise."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        code = self.process.poll()
        return f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else None

    def end(self) -> None:
        """End the process, whatever it does."""
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class Workers:
    """Ranks 1 to ``sizes.tensor - 1``. As a context it ends them and, where one is lost, raises one `RankLost` that
    says which one and how; after that every use raises it again."""

    def __init__(self, sizes: Sizes, deadline: float) -> None:
        self._sizes = sizes
        self._deadline = deadline
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-ranks-")
        self._lost: RankLost | None = None
        self._workers: list[Worker] = []
        # If this object is forgotten without `close`.
        self._ending = weakref.finalize(self, _end, self._workers, self._folder)
        for rank in range(1, sizes.tensor):
            self._workers.append(Worker(rank))

    @property
    def meeting(self) -> Path:
        """The file by which the ranks find each other, in a folder that only this user can read."""
        return Path(self._folder.name) / "meeting"

    def start(self, tasks: Sequence[Task]) -> Layout:
        """Give each rank its task, and join them. Raises `RankLost`."""
        with self.watched():
            for worker, task in zip(self._workers, tasks, strict=True):
                worker.channel.send(pickle.dumps(task), self._deadline)
            return join(self.meeting, 0, self._sizes, self._deadline)

    def wait_loaded(self) -> None:
        """Wait until all ranks have loaded their parts. One that reads nothing for a deadline is lost."""
        with self.watched():
            for worker in self._workers:
                while worker.loads(max(START, self._deadline)):
                    pass

    def tell(self, order: Order) -> None:
        """Send `order` to every rank."""
        content = packed(order)
        for worker in self._workers:
            worker.channel.send(content, self._deadline)

    def watched(self) -> _Watched:
        """A context in which a lost rank ends all of them."""
        if self._lost is not None:
            raise self._lost
        return _Watched(self)

    def lose(self, error: BaseException) -> RankLost:
        """End all ranks, of which one is lost. Returns what is to be raised then and later."""
        self._lost = RankLost(f"{self._reason(error)}; the engine has ended its {self._sizes.tensor} ranks")
        _log.error("%s", self._lost.message)
        self.close()
        return self._lost

    def close(self) -> None:
        """End all ranks."""
        self._lost = self._lost or RankLost("the engine's ranks have ended")
        self._ending()

    def _reason(self, error: BaseException) -> str:
        """Which rank is at fault: one that reports an error or was killed, else one that is still running."""
        until, size = time.monotonic() + _SETTLE, self._sizes.tensor
        while (silent := [worker for worker in self._workers if worker.silent()]) and time.monotonic() < until:
            if any(worker.fault() for worker in self._workers):
                break
            time.sleep(0.01)
        for worker in self._workers:
            if fault := worker.fault():
                return f"rank {worker.rank} of {size} {fault}"
        if silent:
            ranks = ", ".join(str(worker.rank) for worker in silent)
            return f"rank {ranks} of {size} did not answer within {self._deadline:g} s"
        return f"a rank of {size} was lost: {error}"


class _Watched:
    """See `Workers.watched`."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (RankLost, EOFError, OSError)):
            raise self._workers.lose(error) from error
        if error is not None:
            # Whatever failed here, the other ranks are in the middle of something.
            self._workers.lose(error)


def _end(workers: list[Worker], folder: tempfile.TemporaryDirectory[str]) -> None:
    for worker in workers:
        worker.end()
    folder.cleanup()


class LedModel:
    """A `Model` of several ranks, as rank 0 uses it: the other ranks compute the same."""

    def __init__(self, model: Model, workers: Workers, group: Group) -> None:
        self.vocab_size = model.vocab_size
        self.embed_tokens = model.embed_tokens
        self._model = model
        self._workers = workers
        self._group = group

    def forward(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        with self._workers.watched():
            self._workers.tell(forward_order(batch))
            return self._model.forward(batch)

    def logits(self, hidden: Tensor) -> Tensor:
        with self._workers.watched():
            self._workers.tell(Logits(len(hidden)))
            return self._model.logits(self._group.from_first(hidden.contiguous()))

    def best(self, hidden: Tensor) -> Tensor:
        with self._workers.watched():
            self._workers.tell(Best(len(hidden)))
            return self._model.best(self._group.from_first(hidden.contiguous()))
