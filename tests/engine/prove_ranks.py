"""Random schedules on several ranks, which give the ids of the naive loop on one rank.

Ranks are threads that get the same messages as processes and exchange through memory: a schedule then takes a second
and not a minute. `tests/engine/test_rank_engine.py` has processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dovetail.engine import loading
from tests.engine.ranks import ThreadWorkers
from tests.engine.schedules import Checkpoints, schedule

#: Ranks, how many of them share a cache, the interleave.
LAYOUTS: dict[str, tuple[int, int, int]] = {
    "2": (2, 1, 1),
    "4": (4, 1, 1),
    "2, context 2 by 1": (2, 2, 1),
    "2, context 2 by 16": (2, 2, 16),
    "4, context 2 by 16": (4, 2, 16),
    "4, context 4 by 1": (4, 4, 1),
}


def checkpoints(root: Path, layout: str, settings: dict[str, Any]) -> Checkpoints:
    """Checkpoints whose schedules run on the ranks of `layout`."""
    tensor, context, interleave = LAYOUTS[layout]
    ranks = {"tensor_parallel_size": tensor}
    if context > 1:
        ranks |= {"decode_context_parallel_size": context, "context_interleave": interleave}
    return Checkpoints(root, settings, ranks)


def schedule_on(tiny: Checkpoints, seed: int, patch: Callable[[object, str, object], None]) -> None:
    """One random schedule on the ranks of `tiny`. `patch` sets an attribute."""
    patch(loading, "Workers", ThreadWorkers)
    schedule(tiny, seed, None)


def main() -> int:
    """The exit status: 1 if any schedule differed."""
    parser = argparse.ArgumentParser(prog="prove_ranks", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="schedules on each layout (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first schedule's seed (default: %(default)s)")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="this one only; may be repeated")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of the targets' caches (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    layouts = options.layout or list(LAYOUTS)
    return max(
        _prove(layout, options.kv_cache_dtype, range(options.start, options.start + options.count))
        for layout in layouts
    )


def _prove(layout: str, kind: str, seeds: range) -> int:
    differences, begun = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tiny = checkpoints(Path(folder), layout, {"kv_cache_dtype": kind})
        for done, seed in enumerate(seeds, 1):
            try:
                schedule_on(tiny, seed, setattr)
            except Exception:
                differences += 1
                print(f"{layout}, {kind}: schedule {seed} differs\n{traceback.format_exc()}", flush=True)
            if done % 50 == 0 or done == len(seeds):
                each = (time.monotonic() - begun) / done
                print(
                    f"{layout}, {kind}: {done} of {len(seeds)}, {differences} differ, {each:.2f} s each",
                    flush=True,
                )
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
