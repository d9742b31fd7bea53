"""How processes become the ranks of one model."""

from __future__ import annotations

from pathlib import Path

from torch._C._distributed_c10d import FileStore, PrefixStore

from dovetail.engine.parallel.gloo import Ranks
from dovetail.engine.parallel.layout import Layout
from dovetail.engine.parallel.sizes import Sizes
from dovetail.engine.parallel.split import Split

#: Seconds that a process may take to start and import torch.
START = 120.0


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
    name = f"context {number}"
    context = Ranks(PrefixStore(name, store), own, sizes.context, deadline, START)
    return Layout(tensor, context, Split(own, sizes.context, sizes.interleave))
