"""From a target's config to the model that runs it: the one place that knows all architectures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.engine.config import DeepseekV3Config, LlamaConfig, Qwen3Config, TargetConfig
from dovetail.engine.models import deepseek_v3, llama
from dovetail.engine.models.base import Model
from dovetail.engine.models.decoder import Decoder
from dovetail.engine.models.layers import Options

_LAYERS: dict[type[TargetConfig], Any] = {
    DeepseekV3Config: deepseek_v3.layers,
    LlamaConfig: llama.layers,
    Qwen3Config: llama.layers,
}
_PLAIN = Options()


def build_model(
    config: TargetConfig,
    weights: Mapping[str, Tensor],
    *,
    rows: int,
    context: int,
    dtype: torch.dtype,
    aux_layers: Sequence[int] = (),
    options: Options = _PLAIN,
) -> Model:
    """The model that `config` describes, which computes in `dtype`. `rows` is the size of every layer's cache in
    tokens, `context` the highest position plus one."""
    layers = _LAYERS[type(config)](config, weights, rows, dtype, options)
    return Decoder(config, weights, layers, context, dtype, aux_layers, options)
