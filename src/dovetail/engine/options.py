"""What the words of `EngineSettings` mean to torch and to the models."""

from __future__ import annotations

import torch

from dovetail.engine.models.layers import Options
from dovetail.engine.settings import EngineSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def target_options(settings: EngineSettings) -> Options:
    """How the target is stored and computed."""
    kv_dtype = DTYPES.get(settings.kv_cache_dtype)
    return Options(kv_dtype, settings.attention_backend, settings.quantization, settings.kernels)


def draft_options(settings: EngineSettings) -> Options:
    """How the drafter is stored and computed: as the target where the settings name nothing else."""
    return Options(
        DTYPES.get(settings.draft_kv_cache_dtype or settings.kv_cache_dtype),
        settings.draft_attention_backend or settings.attention_backend,
        settings.quantization,
        settings.kernels,
    )
