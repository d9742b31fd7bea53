"""Drafters written from their definitions, slow and simple: no cache, whole sequences, one product per weight.

`w` are a checkpoint's tensors by name, `c` what its config.json says of the layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from dovetail.completion import Completion
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Draft
from dovetail.engine.models.base import Model, collate
from dovetail.engine.models.registry import build_model
from dovetail.engine.request import Request
from dovetail.engine.weights import inspect_target, load_tensors

Weights = dict[str, Tensor]
Config = dict[str, Any]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def turn(x: Tensor, theta: float, neighbours: bool) -> Tensor:
    """Rotary positions of `x` [heads, n, width]; pairs are neighbours (DeepSeek) or half the width apart (Llama)."""
    n, width = x.shape[1:]
    angles = torch.outer(torch.arange(n).float(), theta ** (-torch.arange(0, width, 2) / width))
    first, second = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., : width // 2], x[..., width // 2 :])
    a, b = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
    return torch.stack((a, b), -1).flatten(-2) if neighbours else torch.cat((a, b), -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[1]
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + torch.full((n, n), -math.inf).triu(1)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)


def gqa(w: Weights, at: str, x: Tensor, c: Config) -> Tensor:
    def part(name: str, heads: int) -> Tensor:
        y = x @ w[f"{at}{name}_proj.weight"].T + w.get(f"{at}{name}_proj.bias", torch.tensor(0.0))
        y = y.view(len(x), heads, -1)
        own = w.get(f"{at}{name}_norm.weight")
        return (y if own is None else norm(y, own, c["rms_norm_eps"])).transpose(0, 1)

    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    q, k = (turn(part(name, n), c["rope_theta"], False) for name, n in (("q", heads), ("k", kv)))
    k, v = (y.repeat_interleave(heads // kv, 0) for y in (k, part("v", kv)))
    return attend(q, k, v) @ w[at + "o_proj.weight"].T + w.get(at + "o_proj.bias", torch.tensor(0.0))


def mla(w: Weights, at: str, x: Tensor, c: Config) -> Tensor:
    heads, nope, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
    q = norm(x @ w[at + "q_a_proj.weight"].T, w[at + "q_a_layernorm.weight"], 1e-6) @ w[at + "q_b_proj.weight"].T
    q = q.view(len(x), heads, -1).transpose(0, 1)
    kv = x @ w[at + "kv_a_proj_with_mqa.weight"].T
    expanded = norm(kv[:, :rank], w[at + "kv_a_layernorm.weight"], 1e-6) @ w[at + "kv_b_proj.weight"].T
    expanded = expanded.view(len(x), heads, -1).transpose(0, 1)
    shared = turn(kv[:, rank:].unsqueeze(0), c["rope_theta"], True).expand(heads, -1, -1)
    q = torch.cat((q[..., :nope], turn(q[..., nope:], c["rope_theta"], True)), -1)
    mixed = attend(q, torch.cat((expanded[..., :nope], shared), -1), expanded[..., nope:])
    return mixed @ w[at + "o_proj.weight"].T


def mlp(w: Weights, at: str, x: Tensor) -> Tensor:
    gate, up, down = (w[f"{at}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def moe(w: Weights, at: str, x: Tensor, c: Config) -> Tensor:
    """Without groups."""
    scores = (x @ w[at + "gate.weight"].T).sigmoid()
    chosen = (scores + w[at + "gate.e_score_correction_bias"]).topk(c["num_experts_per_tok"], -1).indices
    out = mlp(w, at + "shared_experts.", x)
    for i, experts in enumerate(chosen.tolist()):
        total = scores[i, experts].sum()
        for e in experts:
            share = scores[i, e] / total * c["routed_scaling_factor"]
            out[i] += share * mlp(w, f"{at}experts.{e}.", x[i : i + 1])[0]
    return out


def read(folder: Path) -> tuple[Weights, Config]:
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


class Eagle3Reference:
    """Of any of its kinds: the hidden states of all slots, and what each predicts."""

    def __init__(self, folder: Path, target: Model) -> None:
        w, self.raw = read(folder)
        self.w = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in w.items()}
        self.c = self.raw.get("transformer_layer_config", self.raw)
        self.target = target
        self.embed = self.w.get("embed_tokens.weight", target.embed_tokens)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.w[name], self.c["rms_norm_eps"])

    def enter(self, aux: Tensor) -> Tensor:
        if self.raw.get("norm_before_fc"):
            aux = self.norm("input_norm.weight", aux)
        if self.raw.get("fc_norm"):
            streams = aux.split(self.target.embed_tokens.shape[1], -1)
            aux = torch.cat([self.norm(f"fc_norm.{i}.weight", stream) for i, stream in enumerate(streams)], -1)
        return aux @ self.w["fc.weight"].T

    def run(self, tokens: list[int], hidden: Tensor) -> Tensor:
        """Hidden states that go on, of slots with `hidden` [n, hidden] and the `tokens` after each."""
        attention = mla if "kv_lora_rank" in self.c else gqa
        normed = self.norm("layers.0.hidden_norm.weight", hidden)
        stream = normed if self.raw.get("norm_before_residual") else hidden
        for i in range(self.c.get("num_hidden_layers", 1)):
            at = f"layers.{i}."
            x = self.norm(at + "input_layernorm.weight", stream if i else self.embed[tokens])
            x = x if i else torch.cat((x, normed), -1)
            stream = stream + attention(self.w, at + "self_attn.", x, self.c)
            stream = stream + mlp(self.w, at + "mlp.", self.norm(at + "post_attention_layernorm.weight", stream))
        return self.norm("norm.weight", stream) if self.raw.get("norm_output") else stream

    def logits(self, hidden: Tensor) -> Tensor:
        """Over the target's vocabulary, [n, hidden] to [n, vocab]."""
        hidden = hidden if self.raw.get("norm_output") else self.norm("norm.weight", hidden)
        head = self.w.get("lm_head.weight")
        own = self.target.logits(hidden) if head is None else hidden @ head.T
        if "d2t" not in self.w:
            return own
        full = torch.full((len(hidden), len(self.w["t2d"])), -math.inf)
        full[:, self.w["t2d"].nonzero().flatten()] = own
        return full


class MTPReference:
    def __init__(self, folder: Path, target: Model) -> None:
        self.w, self.c = read(folder)
        self.at = f"model.layers.{self.c['num_hidden_layers']}."

    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.w[self.at + name], self.c["rms_norm_eps"])

    def enter(self, aux: Tensor) -> Tensor:
        return aux

    def run(self, tokens: list[int], hidden: Tensor) -> Tensor:
        embedded = self.norm("enorm.weight", self.w[self.at + "embed_tokens.weight"][tokens])
        pair = torch.cat((embedded, self.norm("hnorm.weight", hidden)), -1)
        stream = pair @ self.w[self.at + "eh_proj.weight"].T
        stream = stream + mla(self.w, self.at + "self_attn.", self.norm("input_layernorm.weight", stream), self.c)
        stream = stream + moe(self.w, self.at + "mlp.", self.norm("post_attention_layernorm.weight", stream), self.c)
        return self.norm("shared_head.norm.weight", stream)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.w[self.at + "shared_head.head.weight"].T


# Logits of the drafts [len(drafted), vocab] of a sequence, given those before each.
Reference = Callable[[list[int], list[int]], Tensor]


def load(path: Path, aux_layers: tuple[int, ...] = ()) -> Model:
    checkpoint = inspect_target(path)
    weights = load_tensors(checkpoint.tensors, checkpoint.config.expected_tensors())
    return build_model(checkpoint.config, weights, rows=512, context=256, dtype=torch.float32, aux_layers=aux_layers)


def whole(model: Model, tokens: list[int]) -> tuple[Tensor, Tensor | None]:
    """A model over a whole sequence, without a cache."""
    table = BlockTable(16)
    for block in range(-(-len(tokens) // 16)):
        table.append(block)
    return model.forward(collate([(tokens, 0, table)]))


def chained(network: Eagle3Reference | MTPReference, target: Model) -> Reference:
    """`target` hands out the features. The alignment is chain.py's."""

    def logits(tokens: list[int], drafted: list[int]) -> Tensor:
        aux = whole(target, tokens[:-1])[1]
        assert aux is not None
        hidden, follow, out = network.enter(aux), tokens[1:], []
        for token in drafted:
            last = network.run(follow, hidden)[-1:]
            out.append(network.logits(last))
            hidden, follow = torch.cat((hidden, last)), [*follow, token]
        return torch.cat(out)

    return logits


def parallel(network: Eagle3Reference, target: Model) -> Reference:
    """The alignment is `ParallelDrafter`'s."""

    def logits(tokens: list[int], drafted: list[int]) -> Tensor:
        aux = whole(target, tokens[:-1])[1]
        assert aux is not None
        masks = len(drafted) - 1
        hidden = network.enter(torch.cat((aux, network.w["mask_hidden"].view(1, -1).expand(masks, -1))))
        out = network.run(tokens[1:] + [network.raw["mask_token_id"]] * masks, hidden)
        return network.logits(out[len(tokens) - 2 :])

    return logits


def alone(model: Model) -> Reference:
    def logits(tokens: list[int], drafted: list[int]) -> Tensor:
        hidden = whole(model, tokens + drafted[:-1])[0]
        return model.logits(hidden[len(tokens) - 1 :])

    return logits


def check_drafts(core: LLMCore, reference: Reference, sampling: str = "probabilistic") -> list[int]:
    """From now on every draft of `core` is compared; returns a list that grows with their lengths."""
    drafter = core.models.drafter
    assert drafter is not None
    propose, seen = drafter.propose, []

    def checked(requests: list[Request], counts: list[int]) -> list[Draft]:
        drafts = propose(requests, counts)
        for request, count, draft in zip(requests, counts, drafts, strict=True):
            seen.append(len(draft.tokens))
            if not draft.tokens:
                continue
            assert len(draft.tokens) == count
            logits = reference(request.tokens, draft.tokens)
            if request.greedy or sampling == "greedy":
                assert draft.probs is None and draft.tokens == logits.argmax(-1).tolist()
            else:
                assert draft.probs is not None
                expected = (logits / request.sampling.temperature).softmax(-1)
                torch.testing.assert_close(draft.probs, expected, rtol=1e-3, atol=1e-5)
                assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.tokens))
        return drafts

    drafter.propose = checked  # type: ignore[method-assign]
    return seen


def through_everything(core: LLMCore, completions: dict[str, Completion]) -> None:
    """Run `completions` all at once, then the same prompts with one more token each: found in the cache."""
    again = {
        name + "again": Completion((*completion.prompt, 7), 9, sampling=completion.sampling)
        for name, completion in completions.items()
    }
    for wanted in (completions, again):
        for name, completion in wanted.items():
            core.add(name, completion)
        while core.live:
            for _, outcome in core.step():
                assert not isinstance(outcome, Exception), outcome
            core.check_integrity()
