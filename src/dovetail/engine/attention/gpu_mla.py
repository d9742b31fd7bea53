"""Latent attention on a GPU: windows by the kernel in one launch, prompts as mla.py does it.

The kernel reads a batch's block tables (`ForwardBatch.paged`), so nothing is gathered: a window's K + 1 queries read
each row of their sequence once. A part of a prompt expands its latents, which is cheaper for many queries.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from dovetail.engine.attention.latent_rows import LatentRows, PackedRows, ScaledRows
from dovetail.engine.attention.mla import LatentCache
from dovetail.engine.casting import cast
from dovetail.engine.models.base import ForwardBatch, Paged
from dovetail.engine.parallel.sizes import BLOCK_SIZE
from dovetail.engine.settings import AttentionBackend
from dovetail.engine.tuning.model import Choice, Work, choose
from dovetail.engine.tuning.table import Candidate, Kind, table
from dovetail.errors import EngineError

#: For rows of float32, which no table has: small enough for every architecture.
_FLOAT32 = Candidate(16, 16, 1, 4)


def latent_cache(
    key_up: Tensor, value_up: Tensor, rows: LatentRows, rope: int, backend: AttentionBackend
) -> LatentCache:
    """The attention of one layer: by the kernel where `rows` are on a GPU, unless `backend` asks for torch's products.

    Latents whose widths the kernel does not have are read by torch's products too. Raises `EngineError` where the
    kernel is not installed, or has no tiles for this GPU.
    """
    if not rows.data.is_cuda or backend != "auto":
        return LatentCache(key_up, value_up, rows, backend)
    try:
        from dovetail.engine.attention import triton_mla
    except ModuleNotFoundError as error:
        raise EngineError(
            "latent attention on a GPU needs Triton: `pip install dovetail[engine,gpu]`, or attention_backend matmul"
        ) from error
    try:
        triton_mla.check_widths(key_up.shape[2], rope)
    except EngineError:
        return LatentCache(key_up, value_up, rows, backend)
    return KernelLatentCache(key_up, value_up, rows, triton_mla)


class KernelLatentCache(LatentCache):
    """A `LatentCache` on a GPU."""

    def __init__(self, key_up: Tensor, value_up: Tensor, rows: LatentRows, kernel: Any) -> None:
        """`kernel`: the module triton_mla. Raises `EngineError` if it has no tiles for this GPU."""
        super().__init__(key_up, value_up, rows)
        self._kernel = kernel
        self._kind = _kind(rows)
        self._arch = architecture(rows.data.device)
        if self._kind is not None:
            table().of(self._arch, self._kind)

    def attend(self, batch: ForwardBatch, queries: Tensor, latents: Tensor) -> Tensor:
        """As `LatentCache.attend`, for a batch on this device."""
        self.rows.write(batch.rows, latents)
        parts = []
        windows = 0
        if batch.paged is not None:
            windows = batch.paged.windows
            parts.append(self._windows(batch.paged, queries[: batch.paged.tokens]))
        parts += [self._span(s, queries[s.start : s.start + s.length]) for s in batch.spans[windows:]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _windows(self, paged: Paged, queries: Tensor) -> Tensor:
        """What the queries of the windows mix: [tokens, heads * v]."""
        nope = self._key_up.shape[1]
        plain, rotary = queries.split_with_sizes([nope, queries.shape[2] - nope], 2)
        absorbed = torch.bmm(cast(plain.transpose(0, 1), self._key_up.dtype), self._key_up).transpose(0, 1)
        launch, together = launch_for(
            self._arch, self._kind, _round(paged.windows), _round(paged.longest), queries.shape[1], paged.most_queries
        )
        mixed, _ = self._kernel.attend_latents(
            torch.cat((absorbed, cast(rotary, absorbed.dtype)), -1),
            self.rows,
            paged.table,
            paged.starts,
            paged.ends,
            rank=self._rank,
            block_size=BLOCK_SIZE,
            most_queries=paged.most_queries,
            launch=self._kernel.Launch(*launch, *together),
        )
        values = torch.bmm(mixed.transpose(0, 1), self._value_up).transpose(0, 1)
        return cast(values.reshape(len(queries), -1), queries.dtype)


def architecture(device: torch.device) -> str:
    """The name of a GPU's architecture, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.lru_cache(maxsize=1024)
def launch_for(
    arch: str, kind: Kind | None, batch: int, context: int, heads: int, queries: int
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """How the kernel is compiled, then how many queries share a tile, and into how many parts the cache is cut.

    `kind` is None for rows of float32.
    """
    work = Work(batch, context, heads, queries)
    if kind is None:
        candidate, together = _FLOAT32, min(queries, _FLOAT32.tile)
        splits = max(1, min(64, context // 256))
    else:
        choice: Choice = choose(table(), arch, kind, work)
        candidate, together, splits = choice.row.candidate, choice.queries, choice.splits
    return (candidate.block_n, candidate.tile, candidate.stages, candidate.warps), (together, splits)


def _kind(rows: LatentRows) -> Kind | None:
    if isinstance(rows, ScaledRows):
        return "fp8"
    if isinstance(rows, PackedRows):
        return "fp8_ds_mla"
    return "bfloat16" if rows.data.dtype == torch.bfloat16 else None


def _round(number: int) -> int:
    """The power of two above `number`, so that few launches are chosen and each is compiled once."""
    return 1 << max(0, math.ceil(math.log2(max(1, number))))
