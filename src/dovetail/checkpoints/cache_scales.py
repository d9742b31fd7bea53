"""The scales of an FP8 cache that a checkpoint brings along: one number for each layer of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dovetail.checkpoints.tensor_files import TensorHeader
from dovetail.errors import CheckpointError

#: What such a tensor is called inside a layer's attention: the names that vLLM reads (model_loader/weight_utils.py).
CACHE_SCALES = ("k_scale", "attn.k_scale", "mla_attn.mla_attn.k_scale", "kv_scale")

_ENDS = tuple(f".self_attn.{name}" for name in CACHE_SCALES)


def cache_scales(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """The names of these tensors. Raises `CheckpointError` for one that is not a single float."""
    names = [name for name in tensors if name.endswith(_ENDS)]
    for name in names:
        header = tensors[name]
        if math.prod(header.shape) != 1 or header.dtype not in ("F32", "F16", "BF16"):
            raise CheckpointError(
                f"{header.file}: {name}, a scale of an FP8 cache, has shape {list(header.shape)} and type "
                f"{header.dtype}, expected one number of F32, F16 or BF16"
            )
    return names
