"""What the words of `EngineSettings` mean to torch and to the models."""

from __future__ import annotations

import torch

from dovetail.engine.models.layers import Options
from dovetail.engine.settings import FP8, EngineSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def target_options(settings: EngineSettings) -> Options:
    """How the target is stored and computed."""
    return Options(settings.kv_cache_dtype, settings.attention_backend, settings.quantization, settings.kernels)


def draft_options(settings: EngineSettings, latents: bool) -> Options:
    """How the drafter is stored and computed: as the target where the settings name nothing else.

    `latents`: whether it caches latents. One that does not cannot have its target's FP8 cache, and gets "auto".
    """
    inherited = settings.kv_cache_dtype if latents or settings.kv_cache_dtype not in FP8 else "auto"
    return target_options(settings)._replace(
        kv_cache_dtype=settings.draft_kv_cache_dtype or inherited,
        attention_backend=settings.draft_attention_backend or settings.attention_backend,
    )
