"""The ranks of one model as its layers see them."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.engine.parallel.group import ALONE, Group
from dovetail.engine.parallel.merging import Exchange
from dovetail.engine.parallel.split import Split


class Layout(NamedTuple):
    """`tensor`: the ranks that share the weights. `context`: those that share a cache, if any, with the rank's `split`
    of it and the `exchange` by which partial attention is merged."""

    tensor: Group = ALONE
    context: Group = ALONE
    split: Split | None = None
    exchange: Exchange = "all_to_all"


ONE_RANK = Layout()
