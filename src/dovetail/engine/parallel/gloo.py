"""A group of processes on one machine, joined by gloo over its loopback device."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dovetail.engine.parallel.group import Exchanges, RankLost


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
        # Flat, because gloo compares the first axes. The same holds below.
        gathered = x.new_empty(self.size * x.numel())
        self._wait(self._processes._allgather_base(gathered, x.view(-1)))
        return gathered.view(self.size, *x.shape)

    def _scatter_sum(self, x: Tensor) -> Tensor:
        part = torch.empty_like(x[0])
        self._wait(self._processes._reduce_scatter_base(part.view(-1), x.view(-1)))
        return part

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
