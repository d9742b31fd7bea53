"""Dovetail's kernel as vLLM's backend for MLA, in vLLM 0.33 and 0.32 without a GPU (CONTRIBUTING.md).

And what vLLM's own Triton backend does in the same place: each of its four defects is reproduced, and gone in ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dovetail.engine.attention.partial import attend_part, merge
from dovetail.engine.tuning.table import ARCHITECTURES, table
from tests.plugins.vllm.conftest import Inside

TRITON = os.environ.get("DOVETAIL_TRITON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof,
    pytest.mark.skipif(not TRITON, reason="DOVETAIL_TRITON does not name a folder with Triton: see CONTRIBUTING.md"),
]
OWN, THEIRS = "CUSTOM", "TRITON_MLA"
#: A window of three drafts; 8 heads are what each of 8 GPUs has of Kimi-K2.5's 64.
WINDOW = {"heads": 8, "drafts": 3, "counts": [4], "contexts": [8192]}


def worker(python: str, **variables: str) -> Iterator[Inside]:
    made = Inside(python, "attention_inside.py", DOVETAIL_TRITON=TRITON, TRITON_DEFAULT_FP_FUSION="1", **variables)
    yield made
    made.close()


@pytest.fixture(scope="module")
def interpreting(python: str) -> Iterator[Inside]:
    yield from worker(python, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiling(python: str) -> Iterator[Inside]:
    yield from worker(python)


# -- the interface -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        {"counts": [4, 4], "contexts": [70, 33], "drafts": 3},
        {"counts": [1, 4, 2], "contexts": [40, 70, 2], "drafts": 3, "joined": True},
        {"counts": [4, 1], "contexts": [70, 33], "drafts": 3, "padded": 8},
        {"counts": [4, 2], "contexts": [70, 15], "drafts": 3, "ranks": 2},
        {"counts": [4, 2], "contexts": [70, 15], "drafts": 3, "ranks": 4, "interleave": 16},
        {"counts": [1, 1], "contexts": [90, 1]},
    ],
    ids=["uniform", "ragged", "padded", "ranks", "ranks in runs, of which some have no rows", "no drafts"],
)
@pytest.mark.parametrize("cache", ["auto", "fp8", "fp8_ds_mla"])
def test_forward_is_the_oracle(interpreting: Inside, job: dict[str, Any], cache: str) -> None:
    """`forward_mqa` in Triton's interpreter, with metadata of vLLM's builder; ranks are merged by their sums."""
    found = interpreting.ask("forward", backend=OWN, heads=4, cache=cache, **job)
    assert found["decode_tokens"] == [job.get("padded", sum(job["counts"]))] * job.get("ranks", 1)
    assert found["error"] < 8e-3 and found["sum_error"] < 4e-3 and found["padding_is_zero"]
    assert (found["lse"], found["out"]) == ("torch.float32", "torch.float16")


def test_the_name(interpreting: Inside) -> None:
    path = "dovetail.plugins.vllm.mla_backend.LatentBackend"
    assert interpreting.ask("registered") == {"class": "LatentBackend", "read": "CUSTOM", "path": path}
    assert interpreting.ask("taken") == {"path": "another.plugin.Backend"}


@pytest.mark.parametrize(
    ("capability", "changes", "reason"),
    [
        ((12, 0), {}, None),
        ((9, 0), {"kv_cache_dtype": "fp8_ds_mla"}, None),
        ((8, 6), {}, "dovetail's MLA kernel is compiled for sm_80, sm_90, sm_100, sm_120, and this is sm_86"),
        ((12, 0), {"head_size": 320}, "head_size not supported"),
        ((12, 0), {"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype not supported"),
        ((12, 0), {"dtype": None}, "dtype not supported"),
        ((12, 0), {"block_size": 8}, "block_size not supported"),
        ((12, 0), {"use_mla": False}, "non-MLA not supported"),
        ((12, 0), {"use_sparse": True}, "sparse not supported"),
        ((12, 0), {"use_non_causal": True, "use_dcp": False}, "non-causal attention not supported"),
        ((12, 0), {"use_batch_invariant": True}, "batch invariance not supported"),
        ((12, 0), {"use_pcp": True}, "PCP not supported"),
    ],
    ids=str,
)
def test_what_the_selector_is_told(
    interpreting: Inside, capability: tuple[int, int], changes: dict[str, Any], reason: str | None
) -> None:
    found = interpreting.ask("reasons", capability=capability, changes=changes)["reasons"]
    assert found == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"alibi": [1.0]}, "alibi_slopes"),
        ({"window": 128}, "sliding_window"),
        ({"type": "encoder"}, "attention of type encoder"),
        ({"cache": "nvfp4"}, "a KV cache of nvfp4"),
        ({"latent": 256}, r"latents other than 512 + 64"),
    ],
    ids=str,
)
def test_what_a_layer_is_refused_for(interpreting: Inside, changes: dict[str, Any], what: str | None) -> None:
    error = interpreting.ask("refused", backend=OWN, heads=8, **changes)["error"]
    assert error == (what and f"dovetail's MLA backend has no {what}: use another --attention-backend")


def test_what_a_batch_is_refused_for(interpreting: Inside) -> None:
    assert "strides (18432, 576, 1)" in interpreting.ask("strided", backend=OWN, **WINDOW | {"contexts": [64]})["error"]
    error = interpreting.ask("not_causal", backend=OWN, causal=False, **WINDOW | {"contexts": [64]})["error"]
    assert error.startswith("Non-causal multi-token MLA requires")


# -- four defects of vLLM's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cache", "shared"), [("auto", 63_488), ("fp8", 102_400)])
def test_shared_memory_on_sm_120(compiling: Inside, cache: str, shared: int) -> None:
    """1: with FP8 vLLM's kernel, as its own code launches it, needs 1,024 bytes more than a block may have."""
    job = {"backend": THEIRS, "arch": "sm_120", "cache": cache, **WINDOW, "contexts": [64]}
    found, limit = compiling.ask("compiled", **job), ARCHITECTURES["sm_120"].shared_block
    assert (found["shared"], found["options"]) == (shared, {"num_warps": 4, "num_stages": 2})
    assert (shared > limit) == (cache == "fp8") and limit == 101_376
    # Ours: every row of the table, which `tests/engine/test_tuning.py` compiles.
    assert max(row.shared for row in table().of("sm_120", "fp8")) < limit


@pytest.mark.parametrize(("backend", "kept"), [(THEIRS, "bfloat16"), (OWN, "float32")])
def test_log_sum_exps(interpreting: Inside, backend: str, kept: str) -> None:
    """2: ranks are merged by log-sum-exps; in bfloat16 they make errors 5 times as large or more."""
    job = {"backend": backend, **WINDOW, "contexts": [64]}
    assert interpreting.ask("sums_type", **job) == {"type": kept}
    generator = torch.Generator().manual_seed(7)
    latents = torch.randn(4096, 576, generator=generator)
    queries = torch.randn(1, 64, 576, generator=generator) * (2 / 24)
    everywhere = torch.full((1,), 512)
    parts = [attend_part(queries, latents[i::8], everywhere, 512) for i in range(8)]
    mixed, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    whole, _ = attend_part(queries, latents, torch.tensor([4096]), 512)
    # What a rank sends is of the queries' type in both.
    sent = mixed.to(torch.bfloat16).float()
    errors = {
        name: float((merge(sent, sums.to(getattr(torch, name)).float())[0] - whole).norm())
        for name in ("bfloat16", "float32")
    }
    assert errors["bfloat16"] > 5 * errors["float32"]
    assert (errors[kept] == errors["float32"]) == (backend == OWN)


@pytest.mark.parametrize(("heads", "theirs", "ours"), [(8, 4, 1), (16, 4, 2), (64, 16, 16)])
def test_reads_of_the_cache(interpreting: Inside, heads: int, theirs: int, ours: int) -> None:
    """3: how often a window of four queries reads the cache, by bytes that the launched programs read.

    vLLM's kernel has 16 heads of one query in a tile, ours up to 32 rows: heads times queries.
    """
    job = {"heads": heads, "cache": "fp8", "drafts": 3, "counts": [4] * 16, "contexts": [8192] * 16}
    cache = 16 * 8192 * 576
    found = {each: interpreting.ask("bytes_read", backend=each, **job)["bytes"] for each in (THEIRS, OWN)}
    # In vLLM's, the first three queries of a window see 3, 2 and 1 rows less.
    assert found == {THEIRS: theirs * cache - 16 * 6 * 576 * theirs // 4, OWN: ours * cache}


@pytest.mark.parametrize(("backend", "decoded"), [(THEIRS, 0), (OWN, 2)])
def test_verification_with_context_parallelism(interpreting: Inside, backend: str, decoded: int) -> None:
    """4: with DCP vLLM's builder sorts windows of drafts as prefills, which gather the whole context from all ranks."""
    job = {"backend": backend, "heads": 8, "drafts": 3}
    alone = interpreting.ask("threshold", **job)
    assert (alone["threshold"], alone["decodes"], alone["prefills"]) == (4, 2, 0)
    ranks = interpreting.ask("threshold", **job, ranks=2)
    assert (ranks["threshold"], ranks["decodes"], ranks["prefills"]) == (4 if decoded else 1, decoded, 2 - decoded)
