"""Ranks for tests: threads of this process, which start at once, or processes that are joined by gloo."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dovetail.engine.loading import load_part
from dovetail.engine.parallel import worker
from dovetail.engine.parallel.channel import _ORDERS, Order, Task, packed
from dovetail.engine.parallel.group import Context, Exchanges, Group, Layout, RankLost
from dovetail.engine.parallel.sizes import Sizes
from dovetail.engine.parallel.split import Split

T = TypeVar("T")
_DEADLINE = 60.0


class Board:
    """Where threads lay down tensors for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=_DEADLINE)
        self.places: list[Tensor] = [torch.empty(0)] * size


class Threads(Exchanges):
    """A rank that is a thread."""

    def __init__(self, board: Board, rank: int) -> None:
        super().__init__(rank, board.size)
        self._board = board

    def _gather(self, x: Tensor) -> Tensor:
        try:
            self._board.places[self.rank] = x.clone()
            self._board.barrier.wait()
            gathered = torch.stack(self._board.places)
            self._board.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankLost("another thread ended") from error
        return gathered

    def _sum(self, x: Tensor) -> None:
        x.copy_(self._gather(x).sum(0))

    def _exchange(self, x: Tensor) -> Tensor:
        return self._gather(x)[:, self.rank]

    def _from_first(self, x: Tensor) -> None:
        x.copy_(self._gather(x)[0])


def threads(size: int, work: Callable[[Group], T]) -> list[T]:
    """What `work` returns on each of `size` ranks, which are threads. Raises what the first rank that failed raised."""
    board = Board(size)

    def rank(number: int) -> T:
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                return work(Threads(board, number))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank, number) for number in range(size)]
    failures = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, RankLost)):
        raise error
    return [future.result() for future in futures]


def processes(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(group, *arguments)`` returns on each of `size` processes, none of which is left."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ends, started = [], []
    try:
        for rank in range(size):
            own, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(theirs, store.port, rank, size, work, arguments), daemon=True)
            process.start()
            theirs.close()
            ends.append(own)
            started.append(process)
        results = []
        for own in ends:
            assert own.poll(2 * _DEADLINE), "a rank does not answer"
            worked, result = own.recv()
            assert worked, result
            results.append(result)
        return results
    finally:
        for process in started:
            process.kill()
            process.join()


def _rank(
    end: Connection, port: int, rank: int, size: int, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch.distributed as dist

    from dovetail.engine.parallel.gloo import Ranks

    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=_DEADLINE))
        with torch.inference_mode():
            end.send((True, work(Ranks(store, rank, size, _DEADLINE, _DEADLINE), *arguments)))
    except BaseException:
        end.send((False, traceback.format_exc()))
    end.recv()  # the others may still read from this rank


def layout(group: Group, sizes: Sizes) -> Layout:
    """The layout of a rank of `group` where all ranks share one cache, or each has its own."""
    if sizes.context == 1:
        return Layout(group)
    assert sizes.context == group.size
    return Layout(group, Context(group, Split(group.rank, sizes.context, sizes.interleave)))


class _Queue:
    """What a `Channel` is to a rank that is a thread: it gets the same bytes."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def order(self) -> Order:
        content = self.orders.get()
        if content is None:
            raise EOFError
        order: Order = _ORDERS.decode(content)
        return order


class ThreadWorkers:
    """`Workers` that are threads, for many short engines."""

    meeting = Path("nowhere")

    def __init__(self, sizes: Sizes, deadline: float) -> None:
        self._sizes = sizes
        self._board = Board(sizes.tensor)
        self._contexts = [Board(sizes.context) for _ in range(sizes.tensor // sizes.context)]
        self._queues = [_Queue() for _ in range(1, sizes.tensor)]
        self._pool = ThreadPoolExecutor(sizes.tensor)
        self._running: list[Future[None]] = []

    def start(self, tasks: Sequence[Task]) -> Layout:
        for orders, task in zip(self._queues, tasks, strict=True):
            self._running.append(self._pool.submit(self._work, orders, task))
        return self._layout(0)

    def wait_loaded(self) -> None: ...

    def tell(self, order: Order) -> None:
        for each in self._queues:
            each.orders.put(packed(order))

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """End the threads. Raises what one of them raised."""
        for each in self._queues:
            each.orders.put(None)
        self._pool.shutdown()
        for running in self._running:
            running.result()

    def _layout(self, rank: int) -> Layout:
        tensor, sizes = Threads(self._board, rank), self._sizes
        if sizes.context == 1:
            return Layout(tensor)
        number, own = divmod(rank, sizes.context)
        split = Split(own, sizes.context, sizes.interleave)
        return Layout(tensor, Context(Threads(self._contexts[number], own), split))

    def _work(self, orders: _Queue, task: Task) -> None:
        torch.set_num_threads(1)
        ranks = self._layout(task.rank)
        try:
            with torch.inference_mode(), suppress(EOFError):
                model = load_part(task.target, task.settings, ranks, task.rows, task.context, task.aux_layers, None)
                worker._obey(orders, model, ranks.tensor)  # type: ignore[arg-type]
        except BaseException:
            for board in (self._board, *self._contexts):
                board.barrier.abort()
            raise
