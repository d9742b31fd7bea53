"""What both kinds of paged attention share: the choice of kernel, and the causal mask inside a window."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.settings import MAX_DRAFT_TOKENS, AttentionBackend
from dovetail.errors import EngineError

# A longer window is a prompt or a part of one, and takes the fused kernel. A token and its drafts are never more.
PREFILL = MAX_DRAFT_TOKENS + 1

# The most scores in memory at once: 16 MiB of float32. A chunk of 512 tokens with 16 heads at the end of 16,384 would
# take 512 MiB. For the fused kernel only its mask counts, which all heads share.
_SCORES = 1 << 22

_CACHED = (torch.float32, torch.bfloat16)


def check_cached(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, if a cache can be of that type. Raises `EngineError`.

    Reading float8_e4m3fn would take torch 5 ns a number on a CPU, 25 times as long as bfloat16.
    """
    if dtype not in _CACHED:
        name = str(dtype).removeprefix("torch.")
        raise EngineError(f"a KV cache of {name} is not supported on this machine, only float32 or bfloat16")
    return dtype


def fused(backend: AttentionBackend, length: int, limit: int = PREFILL) -> bool:
    """Whether `length` queries of a sequence take torch's fused kernel instead of plain products (auto: over `limit`).

    16 heads sharing 4 of width 64, float32, one core of an EPYC 9005: 1 query on 16,384 rows takes 9.8 ms fused and 3.3
    ms by products (the fused kernel reads a key once per query head), 4 take 20 and 9.4; 512 queries at the end of
    16,384 take 1.7 s and 2.2 to 2.9 s.
    """
    return backend == "sdpa" or (backend == "auto" and length > limit)


def head_blocks(heads: int, context: int, width: int) -> range:
    """The first head of each group, in groups small enough for `width` numbers per head and row."""
    return range(0, heads, max(1, 4 * _SCORES // (context * width)))


def query_blocks(length: int, context: int, heads: int) -> Iterator[tuple[int, int, int]]:
    """Cut `length` queries at the end of `context` rows: the start and end of each part, and how many rows it reads."""
    step = max(1, _SCORES // (heads * context))
    for start in range(0, length, step):
        end = min(start + step, length)
        yield start, end, context - length + end


@functools.lru_cache(maxsize=64)
def causal_mask(length: int) -> Tensor:
    """0 where query i may see key j of the same window (j <= i), -inf elsewhere: float32 [length, length]."""
    return torch.full((length, length), -math.inf).triu_(1)


def fused_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of a sequence's last tokens to all its tokens, by torch's fused kernel.

    `queries` [heads, length, width] are scaled already; `keys` and `values` are [kv_heads, context, …]. Returns
    [length, heads * value_width]. The kernel stores no scores, but needs keys and values of one width.
    """
    length, context, value_width = queries.shape[1], keys.shape[1], values.shape[-1]
    if value_width < keys.shape[-1]:
        values = F.pad(values, (0, keys.shape[-1] - value_width))
    parts = []
    for start, end, seen in query_blocks(length, context, 1):
        # The kernel's own causal mask starts at the first key, so it is right for whole prompts only.
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
