"""`python -m benchmarks`: the demo pair without drafts, with a fixed number, and gated, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.engine.cases import DEMO
from benchmarks.speculation import pair


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--checkpoints", type=Path, default=DEMO, help="a folder with target/ and drafter/")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--answers", type=int, default=32, help="prompts to answer in each run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print figures, not a table")
    options = parser.parse_args()
    rows, machine = pair.measure(
        options.checkpoints,
        batches=options.batches,
        draft_tokens=options.draft_tokens,
        answers=options.answers,
        repeats=options.repeats,
    )
    if options.json:
        print(json.dumps(pair.as_json(rows, machine), indent=2))
        return
    title = f"tokens/s, greedy, medians of {options.repeats}; ratio: gated to off; whole: with prompts"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    ways = list(rows[0].decode)
    fixed = ways[1]
    groups = {"": ["batch"], "decode": [*ways, "ratio"], "whole": [*ways, "ratio"], "length": [fixed]}
    for group, headings in groups.items():
        for heading in headings:
            table.add_column(f"{group}\n{heading}", justify="right")
    for r in rows:
        decode = (*(f"{r.decode[way]:,.0f}" for way in ways), f"{r.decode_ratio['gated']:.2f}x")
        whole = (*(f"{r.whole[way]:,.0f}" for way in ways), f"{r.whole_ratio['gated']:.2f}x")
        table.add_row(str(r.batch), *decode, *whole, f"{r.acceptance_length:.2f}")
    console = Console()
    console.print(table)
    for r in rows:
        if r.limit_off is not None and r.limit_on is not None:
            console.print(
                f"At batch {r.batch} memory allows {r.limit_off:.0f} tokens/s off and {r.limit_on:.0f} with {fixed}."
            )
    console.print(
        f"{os.cpu_count()} cores ({platform.machine()}), {machine['threads']} threads reading "
        f"{machine['bandwidth_gb_s']:.1f} GB/s; a step reads {machine['one_mb']:.1f} MB of target for one token, "
        f"{machine['window_mb']:.1f} MB for a window, and {machine['drafter_mb']:.1f} MB of drafter a draft"
    )


if __name__ == "__main__":
    main()
