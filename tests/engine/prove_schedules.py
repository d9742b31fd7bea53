"""Thousands of random schedules on every path of this processor.

A path is one of `processors.EXACT` under one limit of the instruction set. Each runs in a process of its own, because
torch and oneDNN read their limits when they load. Every hundred schedules a line shows how many were equal to the naive
loop; an interrupted path goes on with `--start`.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest
import torch

from dovetail.engine.compute import kernels_here
from tests.engine import processors
from tests.engine.schedules import Checkpoints, schedule

#: oneDNN's limit, and what else holds torch down to the same instructions.
LIMITS = {
    "": {},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


def main() -> int:
    """Run the paths one after the other. The exit status is 1 if any schedule differed on any of them."""
    parser = argparse.ArgumentParser(prog="prove_schedules", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="schedules on each path (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first schedule's seed (default: %(default)s)")
    parser.add_argument("--path", action="append", choices=processors.EXACT, help="this path only; may be repeated")
    parser.add_argument("--limit", action="append", choices=LIMITS, help="this instruction set only; may be repeated")
    parser.add_argument("--here", action="store_true", help="in this process, under the limits of its environment")
    options = parser.parse_args()
    paths = options.path or processors.EXACT
    if options.here:
        return max(_prove(path, range(options.start, options.start + options.count)) for path in paths)
    arguments = ["--here", f"--start={options.start}", f"--count={options.count}"]
    command = [sys.executable, "-m", "tests.engine.prove_schedules", *arguments]
    limits = options.limit or [limit for limit in LIMITS if limit != "AVX2" or "avx512" in kernels_here().processor]
    runs = [(path, limit) for limit in limits for path in paths]
    environments = {limit: os.environ | LIMITS[limit] for limit in LIMITS}
    return max(subprocess.run([*command, f"--path={path}"], env=environments[limit]).returncode for path, limit in runs)


def _prove(path: str, seeds: range) -> int:
    """The exit status for one path: 0 if all schedules are equal, or this processor does not have the path."""
    name = f"{path}, {kernels_here().processor}"
    try:
        settings = processors.path(path)
    except pytest.skip.Exception as skipped:
        print(f"{name}: skipped: {skipped}", flush=True)
        return 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tiny = Checkpoints(Path(folder), settings)
        gc.freeze()
        return _run(name, tiny, seeds)


def _run(name: str, tiny: Checkpoints, seeds: range) -> int:
    differences, start = 0, time.process_time()
    for done, seed in enumerate(seeds, 1):
        try:
            schedule(tiny, seed, None)
        except Exception:
            differences += 1
            print(f"{name}: schedule {seed} differs\n{traceback.format_exc()}", flush=True)
        if done % 100 == 0 or done == len(seeds):
            each = (time.process_time() - start) / done
            print(
                f"{name}: {done} of {len(seeds)}, {differences} differ, {each:.3f} s each; next {seed + 1}", flush=True
            )
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
