"""What paged attention kinds share: which kernel computes what, and the mask inside a window."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.errors import EngineError

Backend = Literal["auto", "matmul", "sdpa"]

# Windows longer than this are prompts, or parts of one, and take the fused kernel. Drafts never make one so long.
PREFILL = 16

# So many scores are held at once: 16 MiB of float32, where a chunk of 512 tokens with 16 heads at the end of 16,384
# would be 512. Of the fused kernel the mask counts, which all heads share.
_SCORES = 1 << 22

_CACHED = (torch.float32, torch.bfloat16)


def check_cached(dtype: torch.dtype) -> torch.dtype:
    """`dtype` if a cache can hold it. Raises `EngineError`.

    Reading float8_e4m3fn would take torch 5 ns a number on a CPU, 25 times as long as bfloat16.
    """
    if dtype not in _CACHED:
        name = str(dtype).removeprefix("torch.")
        raise EngineError(f"a KV cache of {name} is not supported on this machine, only float32 or bfloat16")
    return dtype


def fused(backend: Backend, length: int, limit: int = PREFILL) -> bool:
    """Whether `length` queries of a sequence take torch's fused kernel instead of plain products (auto: over `limit`).

    16 heads sharing 4 of width 64, float32, one core of an EPYC 9005: 1 query on 16,384 rows takes 9.8 ms fused and 3.3
    ms by products (the fused kernel reads a key once per query head), 4 take 20 and 9.4; 512 queries at the end of
    16,384 take 1.7 s and 2.2 to 2.9 s.
    """
    return backend == "sdpa" or (backend == "auto" and length > limit)


def head_blocks(heads: int, context: int, width: int) -> range:
    """Where to start each group of heads, so that `width` numbers per head and row are not too many at once."""
    return range(0, heads, max(1, 4 * _SCORES // (context * width)))


def query_blocks(length: int, context: int, heads: int) -> Iterator[tuple[int, int, int]]:
    """Cut `length` queries at the end of `context` rows: for each part its start and end, and how many rows it sees."""
    step = max(1, _SCORES // (heads * context))
    for start in range(0, length, step):
        end = min(start + step, length)
        yield start, end, context - length + end


@functools.lru_cache(maxsize=64)
def causal_mask(length: int) -> Tensor:
    """0 where query i may see key j of the same window (j <= i), -inf elsewhere: float32 [length, length]."""
    return torch.full((length, length), -math.inf).triu_(1)


def fused_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last of a sequence's tokens to all of them: `queries` [heads, length, width], already
    scaled, `keys` and `values` [kv_heads, context, …]; returns [length, heads * value_width].

    The fused kernel never holds heads x length x context scores, but wants keys and values of one width.
    """
    length, context, value_width = queries.shape[1], keys.shape[1], values.shape[-1]
    if value_width < keys.shape[-1]:
        values = F.pad(values, (0, keys.shape[-1] - value_width))
    parts = []
    for start, end, seen in query_blocks(length, context, 1):
        # Its own causal mask starts at the first key, so it fits whole prompts only; one query needs none.
        whole, one = end - start == seen, end - start == 1
        mask = None
        if not whole and not one:
            mask = torch.full((end - start, seen), -math.inf, dtype=queries.dtype).triu_(1 + seen - (end - start))
        mixed = F.scaled_dot_product_attention(
            queries[None, :, start:end],
            keys[None, :, :seen],
            values[None, :, :seen],
            attn_mask=mask,
            is_causal=whole and not one,
            scale=1.0,
            enable_gqa=True,
        )
        parts.append(mixed[0, :, :, :value_width].transpose(0, 1).reshape(end - start, -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
