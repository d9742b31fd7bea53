"""How the latents of a layer are stored, and the one place that writes and reads their bytes.

A latent is `kv_lora_rank` numbers after a norm, and `rope` rotated ones. Three layouts of its row:

- `FloatRows`: as floats.
- `ScaledRows` ("fp8"): a byte (e4m3) for every number, with one scale for the layer: 576 bytes for 512 and 64.
- `PackedRows` ("fp8_ds_mla"): a byte for each of the first `kv_lora_rank` numbers, a float32 scale for every 128 of
  them, then the rotated ones as bfloat16: 512 + 16 + 128 = 656 bytes. vLLM and FlashMLA have the same row
  (vllm/v1/attention/backends/mla/flashmla_sparse.py).

Attention in torch, the GPU kernel and the tests' oracle all read what is written here. A number is rounded once, when
it is written, so a token's row is the same for every query that reads it, in a prompt's part or in a later step.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dovetail.engine.settings import GROUP, CacheDType, packed_bytes, packs
from dovetail.errors import EngineError

#: The largest number of e4m3.
LARGEST = 448.0

_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


class LatentRows(Protocol):
    """The rows of one layer, `data`, of which the first axis counts rows."""

    data: Tensor

    def write(self, rows: Tensor, latents: Tensor) -> None:
        """Store `latents` [tokens, kv_lora_rank + rope] at `rows`, int64 [tokens]."""

    def read(self, rows: slice | Tensor) -> Tensor:
        """The latents at `rows`, [rows, kv_lora_rank + rope], as floats of some type."""


class FloatRows:
    """Rows of float32 or bfloat16. A slice of them is read in place."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.data = torch.empty(rows, width, dtype=dtype, device=device)

    def write(self, rows: Tensor, latents: Tensor) -> None:
        self.data.index_copy_(0, rows, latents.to(self.data.dtype))

    def read(self, rows: slice | Tensor) -> Tensor:
        return self.data[rows]


class ScaledRows:
    """Rows of e4m3: a number is its byte times `scale`. Numbers above 448 times the scale are clipped to that value."""

    def __init__(self, rows: int, width: int, scale: float = 1.0, device: torch.device | None = None) -> None:
        self.data = torch.empty(rows, width, dtype=torch.uint8, device=device)
        self.scale = scale

    def write(self, rows: Tensor, latents: Tensor) -> None:
        self.data.index_copy_(0, rows, encode(latents.float() / self.scale))

    def read(self, rows: slice | Tensor) -> Tensor:
        return decode(self.data[rows]).mul_(self.scale)


class PackedRows:
    """Rows of e4m3 with a scale for every 128 numbers, and the rotated numbers as bfloat16."""

    def __init__(self, rows: int, rank: int, rope: int, device: torch.device | None = None) -> None:
        self._rank, self._groups = rank, rank // min(GROUP, rank)
        self._scales_end = rank + self._groups * 4
        self.data = torch.empty(rows, packed_bytes(rank, rope), dtype=torch.uint8, device=device)

    def write(self, rows: Tensor, latents: Tensor) -> None:
        if not len(latents):
            return  # torch cannot view no numbers as bytes
        grouped = latents[:, : self._rank].float().view(len(latents), self._groups, self._rank // self._groups)
        scales = (grouped.abs().amax(-1, keepdim=True) / LARGEST).clamp_min_(_SMALLEST_SCALE)
        rotated = latents[:, self._rank :].to(torch.bfloat16)
        parts = (encode(grouped / scales), scales.squeeze(-1).view(torch.uint8), rotated.view(torch.uint8))
        self.data.index_copy_(0, rows, torch.cat([part.flatten(1) for part in parts], -1))

    def read(self, rows: slice | Tensor) -> Tensor:
        data = self.data[rows]
        scales = data[:, self._rank : self._scales_end].view(torch.float32)
        grouped = decode(data[:, : self._rank]).view(len(data), self._groups, self._rank // self._groups)
        rotated = data[:, self._scales_end :].view(torch.bfloat16)
        return torch.cat((grouped.mul_(scales.unsqueeze(-1)).flatten(1), rotated.float()), -1)


def latent_rows(
    kind: CacheDType,
    rows: int,
    rank: int,
    rope: int,
    dtype: torch.dtype,
    scale: float = 1.0,
    device: torch.device | None = None,
) -> LatentRows:
    """The rows of a cache of `kind`; `dtype` is the type of floats, `scale` the one of "fp8".

    They are on `device`, torch's own choice if it is None.
    """
    if kind == "fp8":
        return ScaledRows(rows, rank + rope, scale, device)
    if kind == "fp8_ds_mla":
        return PackedRows(rows, rank, rope, device)
    return FloatRows(rows, rank + rope, dtype, device)


def rows_in(kind: CacheDType, data: Tensor, rank: int, rope: int, scale: float = 1.0) -> LatentRows:
    """The rows of `kind` that `data` [rows, ...] holds already: another engine's cache."""
    stored = latent_rows(kind, 0, rank, rope, data.dtype, scale)
    stored.data = data.view(torch.uint8) if kind in ("fp8", "fp8_ds_mla") else data
    return stored


def row_bytes(kind: CacheDType, rank: int, rope: int) -> int:
    """Bytes of an FP8 row. Raises `EngineError` for widths that a packed row cannot have."""
    if kind == "fp8":
        return rank + rope
    if not packs(rank, rope):
        raise EngineError(
            f"a KV cache of fp8_ds_mla has a scale for every {GROUP} numbers of a latent, which kv_lora_rank {rank} "
            f"and qk_rope_head_dim {rope} cannot have: use fp8"
        )
    return packed_bytes(rank, rope)


def encode(numbers: Tensor) -> Tensor:
    """The bytes of e4m3 nearest to `numbers`, clipped at 448."""
    # torch makes NaN of what is too large.
    return numbers.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def decode(stored: Tensor) -> Tensor:
    """The float32 numbers of e4m3 bytes, exactly.

    A byte whose sign is moved to bit 15 and the rest to bits 7 to 13 is the float16 of a 256th of its value, denormals
    too. 0.5 to 1.2 ns a number on one core of an EPYC, where torch's own conversion takes 5.1.
    """
    halves = stored.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return halves.view(torch.float16).float().mul_(256.0)
