"""`python -m bench`: the demo pair's speed with speculation off and on, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import speculation

DEMO = Path(__file__).parents[1] / "src" / "dovetail" / "data" / "demo"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--checkpoints", type=Path, default=DEMO, help="a folder with target/ and drafter/")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--answers", type=int, default=32, help="prompts to answer in each run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print figures, not a table")
    options = parser.parse_args()
    rows, machine = speculation.measure(
        options.checkpoints,
        batches=options.batches,
        draft_tokens=options.draft_tokens,
        answers=options.answers,
        repeats=options.repeats,
    )
    if options.json:
        print(json.dumps(speculation.as_json(rows, machine), indent=2))
        return
    table = Table(title=f"greedy, K={options.draft_tokens}, tokens/s (medians of {options.repeats})")
    for heading in (
        "batch",
        "decode off",
        "on",
        "ratio",
        "with prompts off",
        "on",
        "ratio",
        "accepted length",
        "limit off",
        "on",
    ):
        table.add_column(heading, justify="right")
    for r in rows:
        limits = [f"{x:.0f}" if x else "" for x in (r.limit_off, r.limit_on)]
        decode = (f"{r.decode_off:.0f}", f"{r.decode_on:.0f}", f"{r.decode_ratio:.2f}x")
        whole = (f"{r.whole_off:.0f}", f"{r.whole_on:.0f}", f"{r.whole_ratio:.2f}x")
        table.add_row(str(r.batch), *decode, *whole, f"{r.acceptance_length:.2f}", *limits)
    console = Console()
    console.print(table)
    console.print(
        f"one thread reads {machine['bandwidth_gb_s']:.1f} GB/s; "
        f"a step reads {machine['target_mb']:.1f} MB of target and "
        f"{machine['drafter_mb']:.1f} MB of drafter weights a draft (float32); "
        f"{os.cpu_count()} cores, {platform.machine()}"
    )


if __name__ == "__main__":
    main()
