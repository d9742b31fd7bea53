"""EAGLE-3 drafts equal a slow, obvious reference that recomputes everything from the drafter's definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.models.base import SequenceRows, collate
from dovetail.engine.request import Request
from tests.engine.checkpoints import DRAFTER, ByteTokenizer, write_drafter, write_target
from tests.engine.test_logits import load

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "residual not normed": {"norm_before_residual": False},
    "own vocabulary": {"draft_vocab_size": 41},
    "two aux layers": {"eagle_aux_hidden_state_layer_ids": [2, 1]},
}


class Reference:
    """The drafter's layer over whole sequences: no cache, Llama's rotate-half positions, one product per weight."""

    def __init__(self, folder: Path, embed: Tensor, normed_residual: bool) -> None:
        self.w = load_file(folder / "model.safetensors")
        self.embed = embed
        self.normed_residual = normed_residual
        self.layer = DRAFTER["transformer_layer_config"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.layer["rms_norm_eps"]) * self.w[name]

    def hidden(self, tokens: list[int], hidden: Tensor) -> Tensor:
        """Hidden states before the final norm for every slot: `hidden` [n, width] with the `tokens` after each."""
        n, heads, kv, width = len(tokens), 6, 2, 8
        normed = self.norm("layers.0.hidden_norm.weight", hidden)
        x = torch.cat((self.norm("layers.0.input_layernorm.weight", self.embed[tokens]), normed), -1)
        q, k, v = (
            (x @ self.w[f"layers.0.self_attn.{p}_proj.weight"].T).view(n, h, width).transpose(0, 1)
            for p, h in (("q", heads), ("k", kv), ("v", kv))
        )
        angles = torch.outer(torch.arange(n).float(), 10000.0 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()

        def turn(y: Tensor) -> Tensor:
            return y * cos + torch.cat((-y[..., width // 2 :], y[..., : width // 2]), -1) * sin

        k, v = turn(k).repeat_interleave(heads // kv, 0), v.repeat_interleave(heads // kv, 0)
        scores = turn(q) @ k.transpose(1, 2) / math.sqrt(width) + torch.full((n, n), -math.inf).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1) @ self.w["layers.0.self_attn.o_proj.weight"].T
        stream = mixed + (normed if self.normed_residual else hidden)
        y = self.norm("layers.0.post_attention_layernorm.weight", stream)
        gate, up, down = (self.w[f"layers.0.mlp.{p}_proj.weight"] for p in ("gate", "up", "down"))
        return stream + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T

    def draft(self, tokens: list[int], aux: Tensor, k: int) -> list[int]:
        """`k` greedy drafts after `tokens`, whose last has no feature yet; `aux` [len(tokens) - 1, streams]."""
        hidden, follow, drafts = aux @ self.w["fc.weight"].T, tokens[1:], []
        for _ in range(k):
            out = self.hidden(follow, hidden)
            token = int((self.norm("norm.weight", out[-1:]) @ self.w["lm_head.weight"].T).argmax())
            drafts.append(token + int(self.w["d2t"][token]) if "d2t" in self.w else token)
            hidden, follow = torch.cat((hidden, out[-1:])), [*follow, drafts[-1]]
        return drafts


@pytest.mark.parametrize("case", CASES)
def test_drafts_equal_the_reference(case: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    folder = write_drafter(tmp_path / "drafter", **CASES[case])
    core = LLMCore(target, folder, ByteTokenizer(), draft_tokens=4, threads=1)
    drafter = core._drafter
    assert drafter is not None
    aux_model = load(target, aux_layers=drafter.aux_layers)
    reference = Reference(folder, aux_model.embed_tokens, CASES[case].get("norm_before_residual", True))
    seen = 0
    propose = drafter.propose

    def checked(requests: list[Request], counts: list[int]) -> list[Any]:
        nonlocal seen
        drafts = propose(requests, counts)
        for request, count, draft in zip(requests, counts, drafts, strict=True):
            rows = SequenceRows(tuple(range(16)), 16)
            _, aux = aux_model.forward(collate([(request.tokens[:-1], 0, rows)]))
            assert aux is not None
            assert draft.tokens == reference.draft(request.tokens, aux, count)
            seen += 1
        return drafts

    drafter.propose = checked  # type: ignore[method-assign]
    for i in range(3):
        sampling = Sampling(temperature=0)
        core.add(f"r{i}", Completion(tuple(range(2, 4 + 11 * i)), 12 + i, sampling=sampling))
    while core.live:
        core.step()
    assert seen > 20
