"""Weights of GGUF files as torch's: what is quantized becomes float32, by the package `gguf`, and Llama's queries and
keys get the order that they have elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.checkpoints.tensor_files import TensorHeader
from dovetail.errors import EngineError


def dequantized(content: bytearray, header: TensorHeader) -> Tensor:
    """The tensor whose bytes are `content`, as float32."""
    # Only quantized weights need these.
    import numpy as np

    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ModuleNotFoundError as error:
        raise EngineError("the weights of GGUF files need the package gguf: pip install 'dovetail[engine]'") from error

    rows = np.frombuffer(content, dtype=np.uint8).reshape(*header.shape[:-1], -1)
    return torch.from_numpy(dequantize(rows, GGMLQuantizationType[header.dtype]))


def in_halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of `heads` heads, with those that rotate together half a head apart instead of side by side; 0 heads: as it
    is."""
    if not heads:
        return tensor
    paired = tensor.view(heads, -1, 2, *tensor.shape[1:])
    return paired.transpose(1, 2).reshape(tensor.shape)
