"""The small parts that models share: storage options, RMS norm, rotary positions, the gated MLP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.checkpoints.positions import LinearScaling, Llama3Scaling, Rope, Yarn
from dovetail.engine.compute import Kernels, kernels_here
from dovetail.engine.linear import Linear
from dovetail.engine.parallel.group import Layout
from dovetail.engine.settings import AttentionBackend, CacheDType, Quantization


class Options(NamedTuple):
    """How a model's weights and caches are stored, which kernels multiply them, and which ranks compute them.

    `kv_cache_dtype` is the type of its caches, "auto" for the type it computes in. `quantization` is how its large
    weights are stored, None for the type it computes in. `kernels` are this processor's, unless a test chooses others.
    `ranks` compute the model together, and weights and config that come with these options are one rank's; None: this
    process computes it alone.
    """

    kv_cache_dtype: CacheDType = "auto"
    attention_backend: AttentionBackend = "auto"
    quantization: Quantization | None = None
    kernels: Kernels = kernels_here()
    ranks: Layout | None = None

    def cache_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The type of a cache's floats, in a model that computes in `dtype`."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(self.kv_cache_dtype, dtype)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return Linear(weight, bias, self.quantization, self.kernels)


class Prefixed(Mapping[str, Tensor]):
    """The weights whose names start with `prefix`, with the rest of their names, as float32, read on access."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        self._weights = weights
        self._prefix = prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._prefix + name].float()

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._weights if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps
        self._scaled = weight * math.sqrt(weight.numel())
        self._floor = torch.tensor(math.sqrt(weight.numel() * eps))

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        # The same value by four cheap ops: sqrt(sum(x^2) + n eps) is a hypotenuse. F.rms_norm takes 6.9 us on CPU.
        norm = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        return torch.div(x, norm).mul_(self._scaled)


class MLP:
    """SwiGLU: ``down(silu(gate(x)) * up(x))``, gate and up in one product."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor, options: Options) -> None:
        self._gate_up = options.linear(torch.cat((gate, up)))
        self._down = options.linear(down)
        self._width = gate.shape[0]

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + MLP(x)``."""
        return self._down(silu_and_mul(self._gate_up(x), self._width)).add_(residual)


def silu_and_mul(gate_up: Tensor, width: int) -> Tensor:
    gate, up = gate_up.split_with_sizes([width, width], 1)
    return F.silu(gate).mul_(up)


def rotary_table(rope: Rope, width: int, length: int) -> Tensor:
    """``mscale * exp(i * position * frequency)``, complex64 [length, width / 2]."""
    frequency = 1.0 / (rope.theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    scale = 1.0
    match rope.scaling:
        case LinearScaling(factor):
            frequency = frequency / factor
        case Llama3Scaling():
            frequency = _llama3_frequency(frequency, rope.scaling)
        case Yarn():
            frequency = _yarn_frequency(frequency, rope, rope.scaling, width)
            scale = _attention_factor(rope.scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    return torch.polar(torch.full_like(angles, scale), angles)


def rotate_(x: Tensor, table: Tensor) -> Tensor:
    """Rotate neighbouring pairs of the last axis in place, by `table` (broadcast over the pairs of `x`)."""
    if x.dtype == torch.float32:
        x.view(torch.complex64).mul_(table)
    else:
        pairs = x.view(*x.shape[:-1], -1, 2)
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float().contiguous()) * table))
    return x


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Reorder a projection whose heads pair dimension i with i + width / 2 (Llama) so that pairs are neighbours.

    Scores are sums over dimensions, so queries and keys that are both reordered give the same attention.
    """
    width = weight.shape[0] // heads
    return weight.view(heads, 2, width // 2, -1).transpose(1, 2).reshape(weight.shape)


def yarn_mscale(factor: float, mscale: float) -> float:
    """The factor on attention scores after positions were stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _attention_factor(yarn: Yarn) -> float:
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim)
    return yarn_mscale(yarn.factor, 1.0)


def _llama3_frequency(frequency: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Frequencies above high_freq_factor turns within the original length are unchanged; below low_freq_factor they are
    divided by `factor`; between them is a ramp."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    unchanged = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return frequency / scaling.factor * (1 - unchanged) + frequency * unchanged


def _yarn_frequency(frequency: Tensor, rope: Rope, yarn: Yarn, width: int) -> Tensor:
    """Short wavelengths are unchanged, long ones are stretched by `factor`; between beta_fast and beta_slow turns is a
    ramp."""

    def dimension(turns: float) -> float:
        reach = yarn.original_max_position_embeddings / (turns * 2 * math.pi)
        return width * math.log(reach) / (2 * math.log(rope.theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = max(high - low, 0.001)
    stretched = ((torch.arange(width // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return frequency / yarn.factor * stretched + frequency * (1 - stretched)
