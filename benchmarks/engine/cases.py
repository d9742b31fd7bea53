"""What is asked of the engines, and how many bytes a step of it has to read."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.engine import shapes
from benchmarks.engine.gguf_model import checkpoint
from training.corpus import sample
from training.data import FORMAT, HELD_OUT

DEMO = Path(dovetail.__file__).parent / "data" / "demo"
_DEMO_PAD = 3060
_AGREEING = 0.8
_ITEM = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Case:
    """A model, with a drafter or without, and its prompts. `method` is what vLLM calls drafting so."""

    title: str
    target: Path
    drafter: Path | None
    draft_tokens: int
    prompt: int | None  # tokens; None: conversations, as long as they are
    method: str = "eagle3"
    gguf: Path | None = None  # the same weights in float32, for llama.cpp

    def prompts(self, count: int, turn: int, tokens: int) -> list[list[int]]:
        """Other prompts in each turn, so that no engine finds the beginning of one in its cache.

        The conversations are held-out ones whose own answers have as many tokens as will be asked for, because what
        the model writes after the end of an answer is nothing that it, or the drafter, has been trained on.
        """
        if self.prompt is not None:
            draw = random.Random(f"{turn} {count}")
            return [[draw.randrange(3, 30_000) for _ in range(self.prompt)] for _ in range(count)]
        tokenizer = dovetail.tokenizer(self.target)
        samples = map(sample, itertools.count(HELD_OUT + 10_000 * turn + 100 * count))
        long = (
            s for s in samples if len(FORMAT.write(s.answer_at(s.turn), thinking=s.thinking).ids(tokenizer)) >= tokens
        )
        return [
            FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(tokenizer)
            for s in itertools.islice(long, count)
        ]


def demo_target(folder: Path) -> Path:
    """The demo's target, which goes on behind the end of an answer, below `folder`."""
    return shapes.endless(DEMO / "target", folder / "demo", _DEMO_PAD)


def cases(names: Sequence[str], folder: Path, draft_tokens: int, prompt: int, gguf: Path | None = None) -> list[Case]:
    """Those named (`NAMES`), with their checkpoints below `folder`; for the file `gguf`, those of its weights alone."""
    if gguf is not None:
        kinds = (("weights as published", True), ("weights as in the file", False))
        made = [(title, checkpoint(gguf, folder, published=published)) for title, published in kinds]
        return [Case(f"{gguf.stem}, {title}", target, None, 0, prompt, gguf=file) for title, (target, file) in made]
    chosen = []
    if "demo" in names or "demo-drafting" in names:
        target = demo_target(folder)
        if "demo" in names:
            chosen.append(Case("demo", target, None, 0, None))
        if "demo-drafting" in names:
            chosen.append(Case(f"demo, K={draft_tokens}", target, DEMO / "drafter", draft_tokens, None))
    if "llama" in names:
        chosen.append(Case("Llama 349 M", shapes.llama(folder / "llama"), None, 0, prompt))
    if "middle" in names or "middle-drafting" in names:
        target = shapes.middle(folder)
        if "middle" in names:
            chosen.append(Case("Llama 154 M", target, None, 0, prompt))
        if "middle-drafting" in names:
            drafter = shapes.assistant(folder, _AGREEING)
            title = f"Llama 154 M, a smaller one drafts, K={draft_tokens}, {_AGREEING:.0%} accepted"
            chosen.append(Case(title, target, drafter, draft_tokens, prompt, "draft_model"))
    return chosen


NAMES = ("demo", "demo-drafting", "llama", "middle", "middle-drafting")


class Reads:
    """Bytes that a step reads: each weight that it uses once, and the keys and values of what came before.

    Matrices have the type `dtype`. The table of embeddings is not counted, because a step reads a row of it for each
    token. Of a layer's experts, those count that so many tokens choose at random. MLA caches its latent vectors,
    whatever an engine makes of them. A drafter is read once for each token that it drafts.
    """

    def __init__(self, case: Case, dtype: str) -> None:
        item = _ITEM[dtype]
        config = json.loads((case.target / "config.json").read_text())
        self._window = case.draft_tokens + 1
        self._dense, self._experts = _weights(case.target, item)
        self._chosen = config.get("num_experts_per_tok", 0) / config.get("n_routed_experts", 1)
        if "kv_lora_rank" in config:
            width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        else:
            head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            width = 2 * config["num_key_value_heads"] * head
        # A cache has the type that is computed in, which weights of 8 bits leave at float32.
        self._cached = width * config["num_hidden_layers"] * (item if item > 1 else 4)
        self._drafter = 0.0
        if case.drafter is not None:
            self._drafter = case.draft_tokens * sum(_weights(case.drafter, item))

    def step(self, sequences: float, context: float) -> float:
        """Bytes of one step for so many sequences with so many tokens each, on average."""
        untouched = (1 - self._chosen) ** (sequences * self._window)
        weights = self._dense + self._experts * (1 - untouched) + self._drafter
        return weights + sequences * context * self._cached


def _weights(folder: Path, item: int) -> tuple[float, float]:
    """Bytes of the matrices outside of experts, and of those in experts."""
    with (folder / "model.safetensors").open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    dense = experts = 0.0
    for name, tensor in header.items():
        if name == "__metadata__" or "embed_tokens" in name or len(tensor["shape"]) < 2:
            continue
        size = math.prod(tensor["shape"]) * item
        if ".experts." in name:
            experts += size
        else:
            dense += size
    return dense, experts
