"""The demo pair's networks, written the slow and obvious way, for training and as the engine's reference.

`Target` is the DeepSeek-V3/Kimi-K2 architecture (multi-head latent attention, mixture of experts) without any cache;
`Drafter` is EAGLE-3: one Llama layer over three of the target's hidden states. Parameter names are Hugging Face's, so a
state dict is a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TargetShape:
    vocab_size: int = 3072
    hidden_size: int = 192
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    routed_scaling_factor: float = 1.5
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 64
    v_head_dim: int = 32
    rope_theta: float = 10000.0
    rope_factor: float = 4.0
    original_context: int = 1024
    rms_norm_eps: float = 1e-6

    @property
    def context(self) -> int:
        return int(self.original_context * self.rope_factor)


@dataclass(frozen=True)
class DrafterShape:
    target_hidden_size: int = 192
    hidden_size: int = 192
    intermediate_size: int = 512
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    draft_vocab_size: int = 2048
    aux_layers: tuple[int, ...] = (1, 3, 4)
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def yarn_frequencies(shape: TargetShape) -> Tensor:
    """Rotary frequencies stretched by YaRN (arXiv:2309.00071), as DeepSeek-V3 uses it: beta_fast 32, beta_slow 1."""
    dim, base = shape.qk_rope_head_dim, shape.rope_theta
    plain = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def turns(rotations: float) -> float:
        return dim * math.log(shape.original_context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(turns(32)), 0), min(math.ceil(turns(1)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - ramp) + plain / shape.rope_factor * ramp


def rotate_pairs(x: Tensor, frequencies: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding on neighbouring pairs (DeepSeek's interleaved layout). `x`: [..., tokens, dim]."""
    angles = positions.double()[:, None] * frequencies[None].to(positions.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rotate_halves(x: Tensor, frequencies: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding on the two halves (Llama's layout)."""
    angles = positions.double()[:, None] * frequencies[None].to(positions.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class MLA(nn.Module):
    def __init__(self, s: TargetShape) -> None:
        super().__init__()
        self.s = s
        heads, qk = s.num_attention_heads, s.qk_nope_head_dim + s.qk_rope_head_dim
        self.q_a_proj = linear(s.hidden_size, s.q_lora_rank)
        self.q_a_layernorm = RMSNorm(s.q_lora_rank, s.rms_norm_eps)
        self.q_b_proj = linear(s.q_lora_rank, heads * qk)
        self.kv_a_proj_with_mqa = linear(s.hidden_size, s.kv_lora_rank + s.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, s.rms_norm_eps)
        self.kv_b_proj = linear(s.kv_lora_rank, heads * (s.qk_nope_head_dim + s.v_head_dim))
        self.o_proj = linear(heads * s.v_head_dim, s.hidden_size)
        # YaRN's attention factor, with mscale == mscale_all_dim == 1: it enters the softmax scale squared.
        self.scale = qk**-0.5 * (0.1 * math.log(s.rope_factor) + 1.0) ** 2

    def forward(self, x: Tensor, frequencies: Tensor, positions: Tensor) -> Tensor:
        s, (batch, tokens, _) = self.s, x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(batch, tokens, s.num_attention_heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split((s.qk_nope_head_dim, s.qk_rope_head_dim), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((s.kv_lora_rank, s.qk_rope_head_dim), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, tokens, s.num_attention_heads, -1).transpose(1, 2)
        k_nope, v = kv.split((s.qk_nope_head_dim, s.v_head_dim), -1)
        q_rope = rotate_pairs(q_rope, frequencies, positions)
        k_rope = rotate_pairs(k_rope[:, None], frequencies, positions).expand_as(q_rope)
        q, k = torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, intermediate)
        self.up_proj = linear(hidden, intermediate)
        self.down_proj = linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores; a bias that only chooses (never weighs) keeps the experts evenly loaded (DeepSeek-V3, 2.1.2)."""

    def __init__(self, s: TargetShape) -> None:
        super().__init__()
        self.s = s
        self.weight = nn.Parameter(torch.empty(s.n_routed_experts, s.hidden_size).normal_(std=0.02))
        self.register_buffer("e_score_correction_bias", torch.zeros(s.n_routed_experts))
        self.load = torch.zeros(s.n_routed_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.s.num_experts_per_tok, -1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.s.routed_scaling_factor
        if self.training:
            self.load = torch.bincount(chosen.flatten(), minlength=self.s.n_routed_experts).float()
        return chosen, weights

    def balance(self, rate: float) -> None:
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)


class MoE(nn.Module):
    def __init__(self, s: TargetShape) -> None:
        super().__init__()
        self.gate = Router(s)
        self.experts = nn.ModuleList(MLP(s.hidden_size, s.moe_intermediate_size) for _ in range(s.n_routed_experts))
        self.shared_experts = MLP(s.hidden_size, s.moe_intermediate_size * s.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        chosen, weights = self.gate(flat)
        out = self.shared_experts(flat)
        for index, expert in enumerate(self.experts):
            rows, slots = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, rows, (expert(flat[rows]) * weights[rows, slots, None]).to(out.dtype))
        return out.view_as(x)


class TargetLayer(nn.Module):
    def __init__(self, s: TargetShape, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = MLA(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        dense = index < s.first_k_dense_replace
        self.mlp = MLP(s.hidden_size, s.intermediate_size) if dense else MoE(s)

    def forward(self, x: Tensor, frequencies: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), frequencies, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class TargetBody(nn.Module):
    def __init__(self, s: TargetShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(s, i) for i in range(s.num_hidden_layers))
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)


class Target(nn.Module):
    """Hidden states and logits of whole sequences. Input ids: [batch, tokens], padded on the right."""

    def __init__(self, s: TargetShape) -> None:
        super().__init__()
        self.s = s
        self.model = TargetBody(s)
        self.lm_head = linear(s.hidden_size, s.vocab_size)
        self.frequencies = yarn_frequencies(s)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                small = (
                    0.02 / math.sqrt(2 * s.num_hidden_layers)
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else 0.02
                )
                nn.init.normal_(
                    parameter, std=small if "embed" in name or small < 0.02 else parameter.shape[1] ** -0.5 * 0.5
                )

    def forward(self, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> tuple[Tensor, list[Tensor]]:
        """Final normed hidden states [batch, tokens, hidden], and the residual stream entering each of `aux_layers`."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.model.embed_tokens(ids)
        aux: list[Tensor] = []
        for index, layer in enumerate(self.model.layers):
            if index in aux_layers:
                aux.append(x)
            x = layer(x, self.frequencies, positions)
        return self.model.norm(x), aux

    def routers(self) -> list[Router]:
        return [layer.mlp.gate for layer in self.model.layers if isinstance(layer.mlp, MoE)]


class DrafterAttention(nn.Module):
    def __init__(self, s: DrafterShape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = linear(2 * s.hidden_size, s.num_attention_heads * s.head_dim)
        self.k_proj = linear(2 * s.hidden_size, s.num_key_value_heads * s.head_dim)
        self.v_proj = linear(2 * s.hidden_size, s.num_key_value_heads * s.head_dim)
        self.o_proj = linear(s.num_attention_heads * s.head_dim, s.hidden_size)

    def forward(self, x: Tensor, positions: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
        """`chain` holds the keys and values of the steps before; this step's are appended to it.

        A slot sees the first step's keys up to itself (those of tokens that the target has confirmed), and the later
        steps' keys at its own slot (its own draft).
        """
        s, (batch, tokens, _) = self.s, x.shape
        frequencies = s.rope_theta ** (-torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim)

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, tokens, -1, s.head_dim).transpose(1, 2)

        q = rotate_halves(heads(self.q_proj(x)), frequencies, positions)
        k = rotate_halves(heads(self.k_proj(x)), frequencies, positions)
        v = heads(self.v_proj(x))
        groups = s.num_attention_heads // s.num_key_value_heads
        chain.append((k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
        (first_k, first_v), later = chain[0], chain[1:]
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        scores = [(q @ first_k.transpose(-1, -2)).masked_fill(~past, float("-inf"))]
        scores += [(q * k).sum(-1, keepdim=True) for k, _ in later]
        weights = (torch.cat(scores, -1) * s.head_dim**-0.5).float().softmax(-1).to(v.dtype)
        out = weights[..., :tokens] @ first_v
        for i, (_, v) in enumerate(later):
            out = out + weights[..., tokens + i, None] * v
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class DrafterLayer(nn.Module):
    def __init__(self, s: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.hidden_norm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = DrafterAttention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = MLP(s.hidden_size, s.intermediate_size)


class Drafter(nn.Module):
    """EAGLE-3 (arXiv:2503.01840): drafts token t+2 from the target's features of token t and the embedding of t+1."""

    def __init__(self, s: DrafterShape) -> None:
        super().__init__()
        self.s = s
        self.fc = linear(len(s.aux_layers) * s.target_hidden_size, s.hidden_size)
        self.layers = nn.ModuleList([DrafterLayer(s)])
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.lm_head = linear(s.hidden_size, s.draft_vocab_size)

    def forward(self, embeddings: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Draft logits of `steps` chained steps, each [batch, tokens, draft_vocab].

        `aux`: the hidden states of `aux_layers`, joined: [batch, tokens, number of them * target_hidden_size].
        Slot t of step j takes the embedding of token t+1+j and scores token t+2+j. Slots whose tokens would lie past
        the end take zeros and mean nothing.
        """
        layer = self.layers[0]
        hidden = self.fc(aux)
        slots = torch.arange(hidden.shape[1], device=hidden.device)
        chain: list[tuple[Tensor, Tensor]] = []
        logits = []
        for j in range(steps):
            shifted = F.pad(embeddings[:, 1 + j :], (0, 0, 0, 1 + j))
            x = torch.cat((layer.input_layernorm(shifted), layer.hidden_norm(hidden)), -1)
            hidden = hidden + layer.self_attn(x, slots + j, chain)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
