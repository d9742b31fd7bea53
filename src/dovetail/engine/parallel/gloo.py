"""The ranks of one model as processes on one machine, joined by gloo over its loopback device."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore

from dovetail.engine.parallel.group import Context, Exchanges, Layout, RankLost
from dovetail.engine.parallel.sizes import Sizes
from dovetail.engine.parallel.split import Split

#: Seconds that a process may take to start and import torch.
START = 120.0


class Ranks(Exchanges):
    """Processes that are joined by gloo. Every collective raises `RankLost` if it takes more than `deadline` seconds,
    or if another rank has ended."""

    def __init__(self, store: Any, rank: int, size: int, deadline: float, start: float) -> None:
        """Meet the others in `store`, a torch Store of this group alone. Raises `RankLost` after `start` seconds."""
        super().__init__(rank, size)
        self._deadline = timedelta(seconds=deadline)
        try:
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            # Nobody but this machine's processes can connect.
            options._devices = [gloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=start)
            self._processes = gloo(store, rank, size, options)
        except RuntimeError as error:
            raise RankLost(f"rank {rank} of {size} could not reach the others within {start:g} s: {error}") from error

    def _sum(self, x: Tensor) -> None:
        self._wait(self._processes.allreduce([x]))

    def _gather(self, x: Tensor) -> Tensor:
        # Flat, because gloo compares the first axes.
        gathered = x.new_empty(self.size * x.numel())
        self._wait(self._processes._allgather_base(gathered, x.view(-1)))
        return gathered.view(self.size, *x.shape)

    def _exchange(self, x: Tensor) -> Tensor:
        received = torch.empty_like(x)
        self._wait(self._processes.alltoall_base(received, x, [], []))
        return received

    def _from_first(self, x: Tensor) -> None:
        self._wait(self._processes.broadcast([x]))

    def _wait(self, work: dist.Work) -> None:
        try:
            work.wait(self._deadline)
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.size} lost another one: {error}") from error


def join(meeting: Path, rank: int, sizes: Sizes, deadline: float) -> Layout:
    """The layout of `rank`. All ranks call this with a file `meeting` that is in a folder of this engine's own.

    Raises `RankLost`.
    """
    store = FileStore(str(meeting), sizes.tensor)
    tensor = Ranks(PrefixStore("tensor", store), rank, sizes.tensor, deadline, START)
    if sizes.context == 1:
        return Layout(tensor)
    # Ranks of a context follow each other, so that they are near each other on a machine whose devices are in order.
    number, own = divmod(rank, sizes.context)
    context = Ranks(PrefixStore(f"context {number}", store), own, sizes.context, deadline, START)
    return Layout(tensor, Context(context, Split(own, sizes.context, sizes.interleave)))
