"""How latents are stored: byte for byte as a plain loop stores them, read back exactly, the same by every path."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dovetail.completion import Completion, Sampling
from dovetail.engine.attention.latent_rows import (
    PackedRows,
    ScaledRows,
    decode,
    encode,
    latent_rows,
    row_bytes,
    rows_in,
)
from dovetail.engine.attention.partial import query_ends
from dovetail.engine.drafting.load import inspect_drafter
from dovetail.engine.loading import _token_bytes
from dovetail.engine.models.layers import Options
from dovetail.engine.settings import AttentionBackend, CacheDType, EngineSettings
from dovetail.engine.weights import inspect_target
from dovetail.errors import CheckpointError, EngineError
from tests.engine.checkpoints import (
    LATENT,
    MLA_DRAFTER,
    load_core,
    run,
    write_drafter,
    write_llama,
    write_mtp_target,
    write_target,
)
from tests.engine.drafters import Oracle, use
from tests.engine.schedules import Checkpoints, schedule
from tests.engine.test_drafts import tensors
from tests.engine.test_logits import CHUNKS, load, logits, off
from tests.examples import examples


def value(byte: int) -> float:
    """The number of a byte of e4m3, by its definition: sign, 4 bits of exponent with bias 7, 3 of mantissa."""
    sign, exponent, mantissa = -1 if byte >> 7 else 1, byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


FINITE = [byte for byte in range(256) if byte & 127 != 127]


def nearest(number: float) -> int:
    """The byte of the nearest number; of two equally near, the one with an even mantissa."""
    return min(FINITE, key=lambda byte: (abs(value(byte) - number), byte & 1, (byte >> 7) != (number < 0)))


def test_bytes_are_read_exactly() -> None:
    read = decode(torch.tensor(FINITE, dtype=torch.uint8)).tolist()
    assert read == [value(byte) for byte in FINITE]


@given(st.lists(st.floats(-600, 600, width=32), min_size=1, max_size=40))
@examples(40)
def test_numbers_become_the_nearest_byte(numbers: list[float]) -> None:
    stored = encode(torch.tensor(numbers)).tolist()
    assert [value(byte) for byte in stored] == [value(nearest(number)) for number in numbers]


def test_the_packed_row_by_hand() -> None:
    """656 bytes: 512 of e4m3, 4 scales, 64 numbers of bfloat16."""
    latents = torch.randn(3, 576, generator=torch.Generator().manual_seed(0))
    latents[1, 128:256] = 0  # a group without a largest number
    rows = PackedRows(8, 512, 64)
    rows.write(torch.tensor([6, 0, 3]), latents)
    assert rows.data.shape == (8, 656) and row_bytes("fp8_ds_mla", 512, 64) == 656 and row_bytes("fp8", 512, 64) == 576
    for row, latent in zip((6, 0, 3), latents, strict=True):
        stored = bytes(rows.data[row].tolist())
        scales = struct.unpack("<4f", stored[512:528])
        for group in range(4):
            numbers = latent[group * 128 : group * 128 + 128]
            largest = numbers.abs().max().item()
            assert scales[group] == pytest.approx(max(largest / 448, 2.0**-126), rel=1e-6)
            read = torch.tensor([value(byte) * scales[group] for byte in stored[group * 128 : group * 128 + 128]])
            # Half a step of 3 bits of mantissa, and of the smallest exponent.
            assert ((read - numbers).abs() <= numbers.abs() / 16 + largest / 448 * 2**-10 * 1.01).all()
            assert torch.equal(rows.read(torch.tensor([row]))[0, group * 128 : group * 128 + 128], read)
        rotated = torch.frombuffer(bytearray(stored[528:]), dtype=torch.bfloat16)
        assert torch.equal(rotated, latent[512:].to(torch.bfloat16))
        assert torch.equal(rows.read(slice(row, row + 1))[0, 512:], rotated.float())


@pytest.mark.parametrize("scale", [1.0, 0.03125, 0.7])
def test_one_scale(scale: float) -> None:
    latents = torch.randn(4, 24, generator=torch.Generator().manual_seed(1)) * 3
    latents[2, 5], latents[3, 23] = 1e6, -1e6
    rows = ScaledRows(9, 24, scale)
    rows.write(torch.arange(2, 6), latents)
    expected = [[value(nearest(number / scale)) for number in row] for row in latents.tolist()]
    assert torch.allclose(rows.read(slice(2, 6)), torch.tensor(expected) * scale, rtol=1e-6)
    assert rows.read(slice(4, 5))[0, 5] == 448 * torch.tensor(scale)


@pytest.mark.parametrize(("rank", "rope"), [(192, 64), (130, 8), (66, 8), (16, 7)])
def test_widths_that_a_packed_row_cannot_have(rank: int, rope: int) -> None:
    with pytest.raises(EngineError, match=rf"kv_lora_rank {rank} and qk_rope_head_dim {rope} cannot have: use fp8"):
        row_bytes("fp8_ds_mla", rank, rope)
    assert row_bytes("fp8", rank, rope) == rank + rope


FP8: tuple[CacheDType, ...] = ("fp8", "fp8_ds_mla")


@pytest.fixture(scope="module", params=[{}, LATENT], ids=["heads are smaller", "the latent is smaller"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"), **request.param)


@pytest.mark.parametrize("kind", FP8)
def test_logits_are_those_of_rounded_latents(folder: Path, kind: CacheDType, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts or whole, by both kernels: what float32 attention makes of latents that were written and read once."""
    plain = logits(load(folder), [(0, 41)])

    class Rounded:
        """Rows of floats, rounded by rows that are made for it alone."""

        def __init__(self, rows: int, rank: int, rope: int) -> None:
            self.data = torch.empty(rows, rank + rope)
            self._rank, self._rope = rank, rope

        def write(self, rows: torch.Tensor, latents: torch.Tensor) -> None:
            alone = latent_rows(kind, len(latents), self._rank, self._rope, torch.float32)
            alone.write(torch.arange(len(latents)), latents)
            self.data[rows] = alone.read(slice(0, len(latents)))

        def read(self, rows: slice | torch.Tensor) -> torch.Tensor:
            return self.data[rows]

    ways: list[tuple[AttentionBackend, list[tuple[int, int]]]] = [
        ("matmul", CHUNKS),
        ("sdpa", CHUNKS),
        ("auto", [(0, 41)]),
    ]
    found = [logits(load(folder, options=Options(kind, backend)), chunks) for backend, chunks in ways]
    with monkeypatch.context() as patch:
        patch.setattr(
            "dovetail.engine.models.deepseek_v3.latent_rows",
            lambda kind, rows, rank, rope, dtype, scale: Rounded(rows, rank, rope),
        )
        expected = logits(load(folder, options=Options(kind)), [(0, 41)])
    for each in found:
        assert (each - expected).abs().max() < 1e-3
    assert 1e-4 < off(expected, plain) < 0.15


@pytest.mark.parametrize("kind", FP8)
def test_drafts_change_no_text(kind: CacheDType, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", **LATENT)
    drafter = write_drafter(tmp_path / "drafter", base=MLA_DRAFTER)
    prompts = {"a": (2, 3, 4), "b": tuple(range(5, 40))}
    wanted = {name: Completion(prompt, 16, sampling=Sampling(temperature=0)) for name, prompt in prompts.items()}
    plain = run(load_core(folder, max_batch=1, kv_cache_dtype=kind), wanted)
    core = load_core(folder, drafter, draft_tokens=3, max_batch=2, kv_cache_dtype=kind)
    assert run(use(core, Oracle(plain, 0.3)), wanted) == plain
    assert 0 < core.counters().accepted < core.counters().drafted


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoints]:
    return {kind: Checkpoints(tmp_path_factory.mktemp(kind), {"kv_cache_dtype": kind}) for kind in FP8}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FP8)
@examples(8, fuzz=10_000)
@given(seed=st.integers(0, 2**64))
def test_schedules(checkpoints: dict[str, Checkpoints], kind: str, seed: int) -> None:
    """Law 12, over everything at once."""
    schedule(checkpoints[kind], seed, None)


def test_the_drafter_has_a_type_of_its_own(tmp_path: Path) -> None:
    target = write_mtp_target(tmp_path / "target", **LATENT)
    latent, heads = write_drafter(tmp_path / "latent", base=MLA_DRAFTER), write_drafter(tmp_path / "heads")

    def types(drafter: Path | str, **settings: Any) -> list[set[torch.dtype]]:
        models = load_core(target, drafter, draft_tokens=2, **settings).models
        return [{t.dtype for t in tensors(part)} for part in (models.target, models.drafter)]

    byte, float32 = {torch.uint8}, {torch.float32}
    assert types(latent, kv_cache_dtype="fp8_ds_mla", draft_kv_cache_dtype="auto") == [byte, float32]
    assert types(latent, draft_kv_cache_dtype="fp8_ds_mla") == [float32, byte]
    assert types("mtp", kv_cache_dtype="fp8") == [byte, byte]
    assert types(heads, kv_cache_dtype="fp8") == [byte, float32]
    with pytest.raises(EngineError, match=r"KV cache of fp8 stores latents, and .*heads has none"):
        load_core(target, heads, draft_tokens=2, draft_kv_cache_dtype="fp8")
    with pytest.raises(EngineError, match=r"KV cache of fp8_ds_mla stores latents, and .*llama has none"):
        load_core(write_llama(tmp_path / "llama"), kv_cache_dtype="fp8_ds_mla")


def test_bytes_of_a_token(tmp_path: Path) -> None:
    target = inspect_target(write_mtp_target(tmp_path / "target"))
    latent = inspect_drafter(write_drafter(tmp_path / "drafter", base=MLA_DRAFTER), target)
    rank, rope, layers = 64, 8, 3

    def token_bytes(drafter: Any, **settings: Any) -> int:
        return _token_bytes(target, drafter, EngineSettings(draft_tokens=2, **settings))

    assert token_bytes(None, kv_cache_dtype="fp8") == layers * (rank + rope)
    assert token_bytes(None, kv_cache_dtype="fp8_ds_mla") == layers * (rank + 4 + 2 * rope)
    mtp = inspect_drafter("mtp", target)
    assert token_bytes(mtp, kv_cache_dtype="fp8") == (layers + 1) * (rank + rope)
    own = latent.decoder.latent_widths
    assert own is not None
    both = token_bytes(latent, kv_cache_dtype="fp8_ds_mla", draft_kv_cache_dtype="fp8")
    assert both == layers * (rank + 4 + 2 * rope) + latent.layers * sum(own)


def with_scales(folder: Path, path: Path, scale: torch.Tensor, name: str = "k_scale") -> Path:
    path.mkdir()
    (path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {f"model.layers.{i}.self_attn.{name}": scale.clone() for i in range(3)}, path / "model.safetensors"
    )
    return path


@pytest.mark.parametrize("name", ["k_scale", "attn.k_scale", "kv_scale"])
def test_the_checkpoints_own_scales(tmp_path: Path, name: str) -> None:
    folder = write_target(tmp_path / "plain", **LATENT)
    scaled = with_scales(folder, tmp_path / "scaled", torch.tensor(0.25, dtype=torch.bfloat16), name)
    model = load_core(scaled, kv_cache_dtype="fp8").models.target
    assert [layer[1]._latent.rows.scale for layer in model._layers] == [0.25] * 3  # type: ignore[attr-defined]
    assert [layer[1]._latent.rows.scale for layer in load_core(folder, kv_cache_dtype="fp8").models.target._layers] == [
        1.0
    ] * 3  # type: ignore[attr-defined]
    assert load_core(scaled, kv_cache_dtype="fp8_ds_mla").live is False  # which has its own


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(0.0), "is 0.0: it must be more than 0"),
        (torch.tensor(math.nan), "is nan: it must be more than 0"),
        (torch.ones(2), "has shape .2. and type F32, expected one number"),
        (torch.tensor(1), "and type I64, expected one number of F32, F16 or BF16"),
    ],
    ids=str,
)
def test_scales_that_are_none(tmp_path: Path, scale: torch.Tensor, message: str) -> None:
    scaled = with_scales(write_target(tmp_path / "plain", **LATENT), tmp_path / "scaled", scale)
    with pytest.raises(CheckpointError, match=message):
        load_core(scaled, kv_cache_dtype="fp8")


@pytest.mark.parametrize("kind", ["auto", "fp8", "fp8_ds_mla"])
def test_no_rows_are_written(kind: CacheDType) -> None:
    rows = latent_rows(kind, 2, 64, 16, torch.float32)
    rows.data.zero_()
    rows.write(torch.empty(0, dtype=torch.int64), torch.empty(0, 80))
    assert not rows.data.any()


@pytest.mark.parametrize("kind", ["auto", "fp8", "fp8_ds_mla"])
def test_rows_in_memory_that_exists(kind: CacheDType) -> None:
    """Another engine's memory, whose bytes of e4m3 may have torch's type for them, is read as ours is."""
    rows = latent_rows(kind, 3, 64, 16, torch.float32, 0.37)
    rows.write(torch.arange(3), torch.randn(3, 80, generator=torch.Generator().manual_seed(0)))
    there = rows.data.view(torch.float8_e4m3fn) if kind == "fp8" else rows.data
    assert torch.equal(rows_in(kind, there, 64, 16, 0.37).read(slice(None)), rows.read(slice(None)))


def test_where_queries_end() -> None:
    """Windows of 2, 1 and 0 tokens, a sequence shorter than its window, and tokens that pad the batch."""
    starts = torch.tensor([0, 2, 3, 3, 6], dtype=torch.int32)
    lengths = torch.tensor([9, 4, 7, 2], dtype=torch.int32)
    ends = query_ends(starts, lengths, 8)
    assert ends.tolist() == [8, 9, 4, 0, 1, 2, 0, 0] and ends.dtype == torch.int32
