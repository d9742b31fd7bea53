"""A target's hidden states over answered requests, by the engine that serves it, kept in files for many epochs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dovetail.engine.loading import target_options
from dovetail.engine.models.base import ForwardBatch, Model, Span
from dovetail.engine.models.registry import build_model
from dovetail.engine.settings import EngineSettings
from dovetail.engine.weights import TargetCheckpoint, load_tensors
from training.answers import Answered
from training.train_drafter import Features


class TargetStates:
    """A target that computes whole sequences of at most `longest` tokens, in float32."""

    def __init__(self, checkpoint: TargetCheckpoint, aux_layers: tuple[int, ...], longest: int) -> None:
        self._model: Model = build_model(
            checkpoint.config,
            load_tensors(checkpoint.tensors, [*checkpoint.config.expected_tensors()]),
            rows=longest,
            context=longest,
            dtype=torch.float32,
            aux_layers=aux_layers,
            options=target_options(EngineSettings(draft_tokens=0)),
        )
        self.embeddings = self._model.embed_tokens

    def of(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """`aux` and `hidden` of each token, in bfloat16, as `Features` has them."""
        slots = torch.arange(len(ids))
        span = Span(0, len(ids), slice(0, len(ids)))
        with torch.inference_mode():
            hidden, aux = self._model.forward(ForwardBatch(torch.tensor(ids), slots, slots, (span,)))
        assert aux is not None
        return {"aux": aux.bfloat16(), "hidden": hidden.bfloat16()}


def compute(target: TargetStates, answered: Sequence[Answered], folder: Path, progress: Callable[[int], None]) -> None:
    """Write the states of each sequence that `folder` has none of. `progress` gets how many there are."""
    folder.mkdir(exist_ok=True)
    for number, (prompt, answer) in enumerate(answered):
        file = folder / f"{number}.safetensors"
        if not file.exists():
            unfinished = file.with_suffix(".new")
            save_file(target.of(prompt + answer), unfinished)
            unfinished.rename(file)
        progress(number + 1)


def batches(
    embeddings: Tensor, answered: Sequence[Answered], folder: Path, tokens: int, seed: int
) -> Iterator[Features]:
    """Endless batches of about `tokens` tokens, padded on the right. Sequences of like length share a batch."""
    order = sorted(range(len(answered)), key=lambda i: len(answered[i].prompt) + len(answered[i].answer))
    groups: list[list[int]] = [[]]
    for number in order:
        if groups[-1] and (len(groups[-1]) + 1) * sum(map(len, answered[number])) > tokens:
            groups.append([])
        groups[-1].append(number)
    rng = random.Random(seed)
    while True:
        rng.shuffle(groups)
        for group in groups:
            states = [load_file(folder / f"{number}.safetensors") for number in group]
            ids = [torch.tensor(answered[number].prompt + answered[number].answer) for number in group]
            spoken = [torch.arange(len(i)) >= len(answered[n].prompt) for i, n in zip(ids, group, strict=True)]
            yield Features(
                F.embedding(pad_sequence(ids, batch_first=True), embeddings),
                pad_sequence([s["aux"] for s in states], batch_first=True),
                pad_sequence([s["hidden"] for s in states], batch_first=True),
                pad_sequence(spoken, batch_first=True),
            )
