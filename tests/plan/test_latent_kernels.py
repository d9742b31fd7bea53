"""Which kernel decodes over latents inside vLLM: what the plan says for each GPU, cache and number of drafts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.checkpoints.target import read_target
from dovetail.plan import fit, hardware, latent_kernels
from dovetail.plan.candidate import Advice
from dovetail.plan.layers import Setting
from tests.checkpoints.configs import DEEPSEEK_V32, KIMI_K25, QWEN3_8B, write
from tests.conftest import SHARED

EIGHT = {"engine": "vllm", "tensor_parallel_size": 8, "context": 8192}


def advised(
    tmp_path: Path, gpus: str | None, changes: dict[str, Any] | None = None, config: Any = KIMI_K25
) -> list[Advice]:
    settings = {name: Setting(value, "command line") for name, value in (EIGHT | (changes or {})).items()}
    found = fit.check(
        read_target(write(tmp_path / "target", config)), None, settings, hardware.parse(gpus) if gpus else None
    )
    return [each for each in found if each.setting == "attention_backend"]


FP8, DRAFTS, RANKS = {"kv_cache_dtype": "fp8"}, {"draft_tokens": 3}, {"decode_context_parallel_size": 8}
CUSTOM, TRITON = {"attention_backend": "CUSTOM"}, {"attention_backend": "TRITON_MLA"}


@pytest.mark.parametrize(
    ("gpus", "changes", "level", "message"),
    [
        (
            "8x H200",
            {},
            "note",
            r"^vLLM 0.33's choice for latents on H200 \(SM90\) with a cache in bfloat16 is FLASH_ATTN_MLA\. On an H100 "
            r"with 64 heads, without drafts, .*8,192 tokens x 16: FLASHMLA, FLASH_ATTN_MLA, CUSTOM; 32,768 tokens x "
            r"16: FLASH_ATTN_MLA, FLASHMLA\. With 8 heads on a GPU, as here, single layers were timed alone",
        ),
        ("8x H200", DRAFTS, "note", r"three drafts, .*32,768 tokens x 16: FLASHMLA; FLASH_ATTN_MLA makes 0\.90, "),
        ("8x H200", FP8 | DRAFTS, "note", r"fp8 is FLASHMLA\. .* without drafts, .*32,768 tokens x 16: FLASHMLA\. "),
        ("8x H200", FP8 | DRAFTS | RANKS, "note", r"FLASHMLA verifies drafts as prompts, .*; CUSTOM decodes them"),
        (
            "8x H200",
            DRAFTS | RANKS,
            "note",
            r"16: FLASHMLA; FLASH_ATTN_MLA makes \S+ \S+ and \S+ of the \S+ one's tokens \(",
        ),
        ("8x H200", TRITON, "warning", r"^attention_backend is TRITON_MLA \(command line\), and vLLM's choice on H200"),
        ("8x H200", TRITON, "warning", r"TRITON_MLA makes 0\.8\d, 0\.32 and 0\.23 of the fastest one's tokens"),
        ("8x H200", CUSTOM, "note", r"CUSTOM makes 0\.86, 0\.83 and 0\.71 of the fastest one's tokens"),
        ("8x H200", CUSTOM | FP8 | DRAFTS | RANKS, "note", r"CUSTOM makes 0\.81, 0\.86 and 0\.60 of [^.]* tokens \("),
        (
            "8x B200",
            FP8,
            "note",
            r"B200 \(SM100\) with a cache in fp8 is FLASHINFER_MLA, and no kernel was timed there",
        ),
        (
            "8x RTX PRO 6000",
            {},
            "note",
            r"TRITON_MLA, its only one\. On an H100, .*2\.6 and 3\.1 times .* SM120 nothing",
        ),
        (
            "8x RTX PRO 6000",
            DRAFTS,
            "note",
            r"with three drafts, CUSTOM, .* makes 1\.3, 7\.6 and 4\.7 times its tokens",
        ),
        (
            "8x RTX PRO 6000",
            FP8,
            "warning",
            r"kv_cache_dtype is fp8 .*TRITON_MLA.* SM120, then needs 102,400 bytes of shared memory, of 101,376, and "
            r"cannot start .*46721.* --attention-backend CUSTOM takes Dovetail's.* no kernel was timed on SM120",
        ),
        ("8x RTX PRO 6000", FP8 | CUSTOM, "note", r"attention_backend is CUSTOM \(command line\), .*SM120 nothing was"),
        ("8x A100 80GB", FP8 | DRAFTS | RANKS, "note", r"A100.*TRITON_MLA, its only one.*; CUSTOM decodes them"),
        ("8x B300", CUSTOM, "warning", r"compiled for SM80, SM90, SM100, SM120 and refuses SM103$"),
        (
            "8x H200",
            {"kv_cache_dtype": "fp8_ds_mla"},
            "warning",
            r"none of .* reads: .*fp8, or --attention-backend CUSTOM",
        ),
        ("8x B300", {"kv_cache_dtype": "fp8_ds_mla"}, "warning", r"none of .* reads: --kv-cache-dtype fp8$"),
    ],
    ids=str,
)
def test_what_the_plan_says(tmp_path: Path, gpus: str, changes: dict[str, Any], level: str, message: str) -> None:
    (advice,) = advised(tmp_path, gpus, changes)
    assert advice.level == level
    assert re.search(message, advice.message), advice.message


@pytest.mark.parametrize("capability", [(8, 9), (12, 1)], ids=str)
def test_an_architecture_for_which_ours_is_not_compiled(tmp_path: Path, capability: tuple[int, int]) -> None:
    gpus = hardware.Gpus(gpu=hardware.Gpu(name="X", memory=2**38, size=256, capability=capability), count=8)
    target = read_target(write(tmp_path / "target", KIMI_K25))

    def message(**changes: Any) -> str:
        settings = {name: Setting(value, "command line") for name, value in (EIGHT | changes).items()}
        return next(x.message for x in fit.check(target, None, settings, gpus) if x.setting == "attention_backend")

    assert message().endswith("with a cache in bfloat16 is TRITON_MLA, the only one (docs/mla.md)")
    ranks = message(draft_tokens=3, decode_context_parallel_size=8)
    assert ranks.endswith("for which each rank gathers the whole context (docs/mla.md)")
    if capability == (12, 1):
        assert message(kv_cache_dtype="fp8").endswith("46721). a cache in bfloat16 needs 63,488")


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    assert advised(tmp_path, None) == []
    assert advised(tmp_path, "8x 192GB") == advised(tmp_path, "8x MI300X") == []
    assert advised(tmp_path, "8x H200", {"engine": "sglang"}) == []
    assert advised(tmp_path, "8x H200", config=DEEPSEEK_V32) == []  # sparse
    assert advised(tmp_path, "8x H200", config=QWEN3_8B) == []
    text = KIMI_K25["text_config"]
    assert advised(tmp_path, "8x H200", config=KIMI_K25 | {"text_config": text | {"kv_lora_rank": 256}}) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded figures are not here")
def test_figures_are_the_recorded_ones() -> None:
    for machine, files in zip(latent_kernels.FIGURES, (("3", "10"), ("12",)), strict=True):
        lines = "".join((SHARED / f"gpu/{file}/mla.jsonl").read_text() for file in files).splitlines()
        recorded: dict[tuple[str, int], dict[str, list[float]]] = {}
        for row in (row for row in map(json.loads, lines) if row["what"] == "speed"):
            _, kernel, cache, drafts = row["case"].split()
            key = {"auto": "bfloat16"}.get(cache, cache), int(drafts.removeprefix("K="))
            recorded.setdefault(key, {}).setdefault(kernel, []).append(row["median_tokens_s"])
            assert (row["context"], row["batch"]) in latent_kernels.WORKS
        assert {
            key: {kernel: tuple(map(round, speeds)) for kernel, speeds in kernels.items()}
            for key, kernels in recorded.items()
        } == machine
