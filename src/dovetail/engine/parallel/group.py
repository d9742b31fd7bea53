"""What ranks exchange: the few collectives that a model needs, with their bytes counted.

`Ranks` (gloo.py) is a group of processes. A model on one rank has no group, and calls nothing here.

All ranks of a group call the same functions in the same order, with tensors of the same shapes.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from dovetail.engine.parallel.split import Split
from dovetail.errors import EngineError

Kind = Literal["sum", "gather", "exchange", "send"]


class RankLost(EngineError):
    """A rank ended or did not answer in time. The engine cannot go on."""


class Group(Protocol):
    """Ranks 0 to ``size - 1``, of which this process is `rank`."""

    rank: int
    size: int

    def once(self, x: Tensor) -> Tensor:
        """`x` on rank 0, zeros elsewhere: for what a later sum must count once."""

    def own(self, x: Tensor) -> Tensor:
        """This rank's part of the first axis of `x`, which `size` divides."""

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over ranks, in place. All ranks get the same bits."""

    def joined(self, x: Tensor) -> Tensor:
        """`x` [rows, width] of all ranks beside each other: [rows, size * width]."""

    def gather(self, x: Tensor) -> Tensor:
        """`x` of all ranks: [size, …]."""

    def exchange(self, x: Tensor) -> Tensor:
        """Sends part r of `x` [size, …] to rank r. Returns the parts that arrive here, in the order of ranks."""

    def best(self, x: Tensor) -> Tensor:
        """The column of the largest number in each row of ``joined(x)``, int64 [rows]. The first of equals wins."""

    def from_first(self, x: Tensor) -> Tensor:
        """`x` of rank 0, in place."""


class Context(NamedTuple):
    """The ranks that share one cache, and which part of it this rank stores."""

    group: Group
    split: Split


class Layout(NamedTuple):
    """The ranks of one model: `tensor` shares the weights; `context` shares a cache, None if each rank has its own."""

    tensor: Group
    context: Context | None = None


class Exchanges:
    """What groups of several ranks have in common. A subclass has the collectives themselves, without counting."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        #: Bytes that this rank has sent, by kind of collective, if each is done by the best algorithm (a ring).
        self.sent: Counter[Kind] = Counter()
        #: How many collectives of each kind there were.
        self.calls: Counter[Kind] = Counter()

    def once(self, x: Tensor) -> Tensor:
        return x if self.rank == 0 else torch.zeros_like(x)

    def own(self, x: Tensor) -> Tensor:
        return x.chunk(self.size)[self.rank]

    def sum_(self, x: Tensor) -> Tensor:
        self._count("sum", 2 * x.nbytes * (self.size - 1) // self.size)
        self._sum(x)
        return x

    def joined(self, x: Tensor) -> Tensor:
        return self.gather(x).transpose(0, 1).reshape(x.shape[0], -1)

    def gather(self, x: Tensor) -> Tensor:
        self._count("gather", x.nbytes * (self.size - 1))
        return self._gather(x.contiguous())

    def exchange(self, x: Tensor) -> Tensor:
        self._count("exchange", x.nbytes * (self.size - 1) // self.size)
        return self._exchange(x.contiguous())

    def best(self, x: Tensor) -> Tensor:
        """8 bytes a row and rank: a float32 and the bits of an int32, so that every id is exact."""
        value, column = x.float().max(-1)
        column = (column + self.rank * x.shape[-1]).to(torch.int32)
        pairs = self.gather(torch.stack((value, column.view(torch.float32)), -1))
        # Ranks have ascending columns, so the first rank of equals has the first column.
        winner = pairs[..., 0].argmax(0, keepdim=True)
        return pairs[..., 1].contiguous().view(torch.int32).gather(0, winner)[0].long()

    def from_first(self, x: Tensor) -> Tensor:
        self._count("send", x.nbytes * (self.size - 1) if self.rank == 0 else 0)
        self._from_first(x)
        return x

    def _count(self, kind: Kind, sent: int) -> None:
        self.calls[kind] += 1
        self.sent[kind] += sent

    def _sum(self, x: Tensor) -> None:
        raise NotImplementedError

    def _gather(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _exchange(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _from_first(self, x: Tensor) -> None:
        raise NotImplementedError
