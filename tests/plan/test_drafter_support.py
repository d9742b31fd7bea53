"""The drafters that each engine can run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dovetail.checkpoints.drafter import read_drafter
from dovetail.plan.pairing import cannot_run
from tests.checkpoints.configs import (
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    Config,
    write,
)


def speculators(kind: str, **more: Any) -> Config:
    return QWEN3_8B_EAGLE3 | {"speculators_model_type": kind, "block_size": 8, "mask_token_id": 5, **more}


# Which engine runs what, or why not; None where it does.
RUNS: list[tuple[Config, str, str | None]] = [
    (QWEN3_8B_EAGLE3, "embedded", None),
    (KIMI_EAGLE3, "embedded", None),
    (KIMI_EAGLE3_MLA, "embedded", None),
    (speculators("peagle"), "embedded", None),
    (QWEN3_8B, "embedded", None),
    (QWEN3_8B_DFLASH, "embedded", "EAGLE-3, P-EAGLE, MTP layers inside the target and draft models"),
    (speculators("mtp"), "embedded", "MTP layers inside the target only"),
    (QWEN3_8B_EAGLE3, "vllm", None),
    (KIMI_EAGLE3, "vllm", None),
    (KIMI_EAGLE3_MLA, "vllm", None),
    (QWEN3_8B_DFLASH, "vllm", None),
    (speculators("peagle"), "vllm", None),
    (speculators("peagle", mask_token_id=None), "vllm", "mask_token_id"),
    (speculators("peagle", mask_token_id=None, pard_token=7), "vllm", None),
    (speculators("eagle3", transformer_layer_config=KIMI_EAGLE3_MLA), "vllm", "llama or qwen3 only"),
    (QWEN3_8B_DFLASH | {"architectures": ["DominoDraftModel"]}, "vllm", "no Domino"),
    (QWEN3_8B | {"architectures": ["MedusaModel"]}, "vllm", "dropped"),
    (KIMI_EAGLE3_MLA, "sglang", None),
    (speculators("peagle"), "sglang", "no P-EAGLE"),
    (QWEN3_8B_EAGLE3, "trtllm", None),
    (QWEN3_8B_DFLASH, "trtllm", None),
    (QWEN3_8B_DFLASH | {"architectures": ["Qwen3DSparkModel"]}, "trtllm", "no dspark"),
]


@pytest.mark.parametrize("row", range(len(RUNS)))
def test_engines_that_run_a_drafter(tmp_path: Path, row: int) -> None:
    config, engine, reason = RUNS[row]
    why = cannot_run(read_drafter(write(tmp_path, config)), engine)
    assert why is None if reason is None else reason in (why or "")


def test_published_drafters(shared_data: Path, tmp_path: Path) -> None:
    def reason(name: str, engine: str) -> str | None:
        shutil.copy(shared_data / "configs" / f"{name}.json", tmp_path / "config.json")
        return cannot_run(read_drafter(str(tmp_path)), engine)

    for name in ("specforge/qwen3-8b-domino", "specforge/qwen3.5-4b-domino"):
        assert reason(name, "vllm") == "vLLM 0.33 has no Domino; SGLang runs it as DFLASH"
        assert reason(name, "sglang") is None
    assert "mask_token_id" in (reason("specforge/qwen3-8b-peagle", "vllm") or "")
