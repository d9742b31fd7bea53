"""`python -m training`: make the demo pair from nothing, or repeat one stage of it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from training import card, evaluate, export, tokenizer, train_drafter, train_target

OUT = Path(__file__).parent / "out"
PACKAGE_DATA = Path(__file__).parents[1] / "src" / "dovetail" / "data" / "demo"
STAGES = ("tokenizer", "target", "drafter", "export", "evaluate", "publish")


def main() -> None:
    """Run the stages that were asked for, in their order."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], help="which stages (default: all but publish)")
    parser.add_argument("--out", type=Path, default=OUT, help="where everything is written (default: training/out)")
    parser.add_argument(
        "--minutes", type=float, default=60, help="time for the target; the drafter gets a third (default 60)"
    )
    parser.add_argument("--conversations", type=int, default=300, help="held-out conversations to evaluate on")
    options = parser.parse_args()
    stages = options.stages or STAGES[:-1]
    out: Path = options.out
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # One thread: on a small machine that does other things too, threads that wait for each other lose all they gain.
    torch.set_num_threads(1)
    if "tokenizer" in stages:
        tokenizer.train(out / "tokenizer", conversations=8000)
    if "target" in stages:
        train_target.train(out / "tokenizer", out, options.minutes, device=device)
    if "drafter" in stages:
        train_drafter.train(out / "tokenizer", out, options.minutes / 3, device=device)
    if "export" in stages:
        export.export(out / "tokenizer", out, out / "demo")
    if "evaluate" in stages:
        figures = {
            level: evaluate.evaluate(out / "demo", conversations=options.conversations, strict=level).summary()
            for level in ("schema", "off")
        }
        (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
        print(json.dumps(figures, indent=2))
    if "publish" in stages:
        for part in ("target", "drafter"):
            shutil.copytree(out / "demo" / part, PACKAGE_DATA / part, dirs_exist_ok=True)
        card.write(out, out / "demo", PACKAGE_DATA)


if __name__ == "__main__":
    main()
