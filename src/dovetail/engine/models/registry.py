"""From a target's config to the class that runs it: the one place that knows all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.engine.config import DeepseekV3Config, LlamaConfig, Qwen3Config, TargetConfig
from dovetail.engine.models.base import Model
from dovetail.engine.models.deepseek_v3 import DeepseekV3
from dovetail.engine.models.layers import Options
from dovetail.engine.models.llama import Llama

_MODELS: dict[type[TargetConfig], Any] = {DeepseekV3Config: DeepseekV3, LlamaConfig: Llama, Qwen3Config: Llama}


def build_model(
    config: TargetConfig,
    weights: Mapping[str, Tensor],
    *,
    rows: int,
    context: int,
    dtype: torch.dtype,
    aux_layers: Sequence[int] = (),
    options: Options | None = None,
) -> Model:
    """The model that `config` describes, which computes in `dtype`. `rows` is the size of every layer's cache in
    tokens, `context` the highest position plus one."""
    model: Model = _MODELS[type(config)](
        config,
        weights,
        rows=rows,
        context=context,
        dtype=dtype,
        aux_layers=aux_layers,
        options=Options() if options is None else options,
    )
    return model
