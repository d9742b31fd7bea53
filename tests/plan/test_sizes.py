"""The number of GPUs of a plan, and the context that fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.engine.drafting.load import inspect_drafter
from dovetail.engine.loading import _token_bytes
from dovetail.engine.settings import CacheDType, EngineSettings
from dovetail.engine.weights import inspect_target
from dovetail.errors import PlanError
from dovetail.plan import Setting, hardware, resolve
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    write,
)
from tests.engine import checkpoints as made
from tests.plan.plans import messages

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


@pytest.mark.parametrize(
    ("config", "gpus", "tensor", "context"),
    [
        (QWEN3_8B, "8x B200", 1, 40960),
        (QWEN3_8B, "4x24GB", 2, 40960),
        (QWEN3_8B, "24GB", 1, None),
        (DEEPSEEK_V32, "8x B200", 8, 163840),
        (KIMI_K25, "8x96GB", 8, None),
        (KIMI_K25, "16x H100", 16, 262144),
        (QWEN3_8B, None, None, 40960),
    ],
)
def test_a_model_takes_the_fewest_gpus_that_hold_the_whole_context(
    tmp_path: Path, config: dict[str, Any], gpus: str | None, tensor: int | None, context: int | None
) -> None:
    target = write(tmp_path / "target", config)
    plan = resolve(target, {} if gpus is None else {"gpus": gpus}, recipe="none")
    assert plan.settings["tensor_parallel_size"] == Setting(tensor, "default")
    whole = plan.target.context if plan.target else 0
    if context is None:
        assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.fits
        assert 4096 <= plan.value("context") < whole
        assert f"context is {plan.value('context'):,}, which fits on {plan.gpus}: {whole:,}" in messages(
            plan, "warning"
        )
    else:
        assert plan.settings["context"] == Setting(context, "default")


@pytest.mark.parametrize(
    ("config", "gpus", "degrees", "tensor"),
    [
        (QWEN3_235B, "8x H200", {"data_parallel_size": 2}, 2),  # experts are spread over replicas too
        (QWEN3_235B, "8x H200", {"pipeline_parallel_size": 4}, 1),
        (QWEN3_235B, "8x H200", {"pipeline_parallel_size": 2}, 2),
        (DEEPSEEK_V32, "16x H100", {"decode_context_parallel_size": 2}, 16),
        (QWEN3_8B, "8x H100", {"data_parallel_size": 8}, 1),
        (QWEN3_8B, "6x24GB", {"data_parallel_size": 2}, 2),
    ],
)
def test_degrees_that_are_set_leave_tensor_parallelism_to_be_chosen(
    tmp_path: Path, config: dict[str, Any], gpus: str, degrees: dict[str, int], tensor: int
) -> None:
    plan = resolve(write(tmp_path / "target", config), {"gpus": gpus, "engine": "vllm"} | degrees, recipe="none")
    assert plan.settings["tensor_parallel_size"] == Setting(tensor, "default")
    assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.fits


def test_the_cache_has_the_memory_that_is_set(tmp_path: Path) -> None:
    target = write(tmp_path / "target", QWEN3_8B)
    plan = resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**10})
    assert plan.fit is not None and plan.fit.each is not None and plan.fit.each.room == 10**10
    with pytest.raises(PlanError, match=r"does not fit on 1x H100"):
        resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**9, "context": 40960})
    all_of_it = resolve(target, {"gpus": "H100", "kv_cache_memory_bytes": 10**12}).fit
    assert all_of_it is not None and all_of_it.each is not None and all_of_it.each.room < 80 * 10**9


def test_the_cache_of_the_embedded_engine_is_counted_as_it_is_stored(pair: Path) -> None:
    def bytes_a_token(**options: Any) -> float:
        fit = resolve(str(pair / "drafter"), options).fit
        assert fit is not None and fit.cache_per_token is not None
        return fit.cache_per_token

    whole, half = bytes_a_token(), bytes_a_token(kv_cache_dtype="bfloat16")
    assert whole == 2 * half == 2 * bytes_a_token(dtype="bfloat16")
    its = bytes_a_token(kv_cache_dtype="auto", draft_kv_cache_dtype="bfloat16")
    assert half < its < whole
    assert bytes_a_token(kv_cache_dtype="bfloat16", draft_kv_cache_dtype="auto") == whole + half - its


@pytest.mark.parametrize(("own", "draft"), [("fp8", None), ("fp8_ds_mla", "fp8"), ("fp8", "auto")])
def test_an_fp8_cache_is_counted_as_the_engine_stores_it(tmp_path: Path, own: CacheDType, draft: Any) -> None:
    model = made.write_target(tmp_path / "target", **made.LATENT)
    (model / "tokenizer.json").write_text("{}")
    folder = made.write_drafter(
        tmp_path / "drafter", base=made.MLA_DRAFTER, own=("embed_tokens.weight", "lm_head.weight")
    )
    set_here = {"kv_cache_dtype": own} | ({"draft_kv_cache_dtype": draft} if draft else {})
    fit = resolve(str(model), {"drafter": str(folder), "engine": "embedded", "format": "kimi_k2"} | set_here).fit
    target = inspect_target(model)
    settings = EngineSettings(draft_tokens=2, **set_here)
    assert fit is not None and fit.cache_per_token == _token_bytes(target, inspect_drafter(folder, target), settings)


def test_a_context_that_is_set_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"does not fit on 1x 16GB GPU .*What would help"):
        resolve(write(tmp_path / "target", QWEN3_8B), {"gpus": "16GB", "context": 40960})


def test_the_drafters_limit_is_the_default_context(tmp_path: Path) -> None:
    layer = QWEN3_8B_EAGLE3["transformer_layer_config"] | {
        "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    }
    target = write(tmp_path / "target", QWEN3_8B)
    drafter = write(tmp_path / "drafter", QWEN3_8B_EAGLE3, transformer_layer_config=layer)
    plan = resolve(target, {"drafter": drafter, "gpus": "H100"})
    assert plan.settings["context"] == Setting(8192, "default")
    assert "the target alone supports 40960 tokens" in messages(plan, "advice")


def test_gpus_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    assert "nvidia-smi finds no GPU here" in messages(resolve(target, {"gpus": "auto"}), "warning")
    monkeypatch.setattr(hardware, "detect", lambda: hardware.parse("8x H200"))
    for options in ({}, {"gpus": "auto"}):
        plan = resolve(target, options)
        assert plan.recipes == ("deepseek-v3.2-h200",)
        assert plan.fit is not None and plan.fit.gpus == "8x H200"
    assert resolve(target, {}).settings["gpus"] == Setting("8x H200", "default")
