"""DeepSeek-V3's mixture of experts: sigmoid router with group-limited top-k, routed experts, shared experts.

Source: https://arxiv.org/abs/2412.19437, section 2.1.2 (`topk_method: noaux_tc`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.config import DeepseekV3Config
from dovetail.engine.linear import Linear, cast
from dovetail.engine.models.layers import MLP, Options, silu_and_mul

# With few experts and a few tokens all experts run as one wide MLP: two products in place of six small ops for each
# chosen expert. At 8 experts of 128 (top 2, hidden 256, one core of an EPYC 9005
# beside a busy one): 124 us against 307 us for 4 tokens, 671 us against 734 us for 64, 4.6 ms against 3.4 ms for 512.
# One token visits only two experts, and reads only their weights: 83 us against 117 us.
_WIDE_EXPERTS = 16
_WIDE_TOKENS = range(2, 65)


class Expert(NamedTuple):
    """The three weights of a SwiGLU."""

    gate: Tensor
    up: Tensor
    down: Tensor


class Router:
    """Chooses the experts of a token and their weights."""

    def __init__(self, weight: Tensor, bias: Tensor, config: DeepseekV3Config) -> None:
        self._weight = weight.float()
        self._bias = bias.float()
        self._top_k = config.num_experts_per_tok
        self._groups = config.n_group
        self._top_groups = config.topk_group
        self._normalise = config.norm_topk_prob

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 and expert numbers int64, both [tokens, top_k]. The bias affects the choice only."""
        scores = F.linear(cast(x), self._weight).sigmoid_()
        choice = scores + self._bias
        if self._groups > 1:
            choice = self._limit(choice)
        experts = choice.topk(self._top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, experts)
        if self._normalise:
            weights = weights / weights.sum(-1, keepdim=True).add_(1e-20)
        return weights, experts

    def _limit(self, choice: Tensor) -> Tensor:
        """Mask all experts outside the best groups. A group's score is the sum of its two best experts."""
        grouped = choice.view(choice.shape[0], self._groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self._top_groups, dim=-1, sorted=False).indices
        chosen = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
        return grouped.masked_fill(~chosen.unsqueeze(-1), -math.inf).view_as(choice)


class MoE:
    """Routed and shared experts together. `routed_scaling_factor` is folded into the routed down projections."""

    def __init__(
        self,
        router: Router,
        count: int,
        routed: Iterable[Expert],
        shared: Expert,
        options: Options,
    ) -> None:
        self._router = router
        self._count = count
        self._gate_up: list[Linear] = []
        self._down: list[Linear] = []
        self._shared = MLP(*shared, options)
        self._wide: tuple[Linear, Linear] | None = None
        everyone: list[Expert] = []
        # One expert after the other, so that a layer is never whole in memory beside what is made of it.
        for expert in routed:
            self._width = expert.gate.shape[0]
            self._gate_up.append(options.linear(torch.cat((expert.gate, expert.up))))
            self._down.append(options.linear(expert.down))
            # Int8 weights have one scale per output. All experts would share it in the wide product, and the result
            # would differ.
            if count <= _WIDE_EXPERTS and options.quantization is None:
                everyone.append(expert)
        if everyone:
            everyone.append(shared)
            gates, ups = [expert.gate for expert in everyone], [expert.up for expert in everyone]
            down = torch.cat([expert.down for expert in everyone], 1)
            self._wide = options.linear(torch.cat(gates + ups)), options.linear(down)
            self._wide_width = sum(gate.shape[0] for gate in gates)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + MoE(x)`` for `x` [tokens, hidden]."""
        weights, experts = self._router(x)
        if self._wide is not None and x.shape[0] in _WIDE_TOKENS:
            return self._everyone(x, weights, experts, residual, *self._wide)
        return self._chosen(x, weights, experts, self._shared.add(x, residual))

    def _everyone(
        self, x: Tensor, weights: Tensor, experts: Tensor, residual: Tensor, up: Linear, down: Linear
    ) -> Tensor:
        tokens = x.shape[0]
        share = cast(torch.zeros(tokens, self._count).scatter_(1, experts, weights), x.dtype)
        inner = silu_and_mul(up(x), self._wide_width)
        routed = inner[:, : self._count * self._width]
        routed.view(tokens, self._count, self._width).mul_(share.unsqueeze(-1))
        return down(inner).add_(residual)

    def _chosen(self, x: Tensor, weights: Tensor, experts: Tensor, residual: Tensor) -> Tensor:
        order = experts.flatten().argsort(stable=True)
        tokens = order // experts.shape[1]
        share = cast(weights.flatten()[order], x.dtype).unsqueeze(-1)
        counts = experts.flatten().bincount(minlength=self._count).tolist()
        begin = 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            end = begin + count
            chosen = tokens[begin:end]
            inner = silu_and_mul(self._gate_up[expert](x[chosen]), self._width).mul_(share[begin:end])
            residual.index_add_(0, chosen, self._down[expert](inner))
            begin = end
        return residual
