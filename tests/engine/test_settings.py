"""The settings object: bad values are refused by name, and its words have their meaning for the models."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dovetail.engine.loading import draft_options, target_options
from dovetail.engine.models.layers import Options
from dovetail.engine.settings import EngineSettings
from dovetail.errors import EngineError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"draft_tokens": -1}, "draft_tokens must be from 0 to 15, not -1"),
    ({"max_draft_tokens": 16}, "max_draft_tokens must be from 0 to 15, not 16"),
    ({"speculate_below_context": 0}, "speculate_below_context must be 1 or more, not 0"),
    ({"speculate_up_to_batch": 0}, "speculate_up_to_batch must be 1 or more, not 0"),
    ({"max_batch": 0}, "max_batch must be 1 or more, not 0"),
    ({"max_batched_tokens": 0}, "max_batched_tokens must be 1 or more, not 0"),
    ({"context": 0}, "context must be 1 or more, not 0"),
    ({"threads": 0}, "threads must be 1 or more, not 0"),
    ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes must be 1 or more, not 0"),
    ({"acceptance": 1.5}, "acceptance must be from 0 to 1, not 1.5"),
    ({"acceptance": float("nan")}, "acceptance must be from 0 to 1, not nan"),
    ({"gate": "on"}, "gate 'on' is not one of measured, off"),
    ({"dtype": "int3"}, "dtype 'int3' is not one of float32, bfloat16"),
    ({"quantization": "awq"}, "quantization 'awq' is not one of int8"),
    ({"attention_backend": "FLASH_ATTN"}, "attention_backend 'FLASH_ATTN' is not one of auto, matmul, sdpa"),
    (
        {"draft_kv_cache_dtype": "fp8_e5m2"},
        "draft_kv_cache_dtype 'fp8_e5m2' is not one of auto, float32, bfloat16, fp8, fp8_ds_mla",
    ),
    ({"draft_sampling": None}, "draft_sampling None is not one of greedy, probabilistic"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=str)
def test_a_bad_value_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError) as error:
        EngineSettings(**{"draft_tokens": 3} | options)
    assert error.value.message == message


@pytest.mark.parametrize(
    ("draft_tokens", "max_draft_tokens", "most"), [(3, None, 3), (3, 8, 8), (3, 2, 2), (0, 8, 0), (3, 0, 0)]
)
def test_the_most_draft_tokens(draft_tokens: int, max_draft_tokens: int | None, most: int) -> None:
    settings = EngineSettings(draft_tokens=draft_tokens, max_draft_tokens=max_draft_tokens)
    assert settings.most_draft_tokens == most


@pytest.mark.parametrize(
    ("options", "target", "drafter"),
    [
        ({}, Options(), Options()),
        (
            {"kv_cache_dtype": "bfloat16", "attention_backend": "sdpa", "quantization": "int8"},
            Options("bfloat16", "sdpa", "int8"),
            Options("bfloat16", "sdpa", "int8"),
        ),
        (
            {"kv_cache_dtype": "bfloat16", "draft_kv_cache_dtype": "auto", "draft_attention_backend": "matmul"},
            Options("bfloat16"),
            Options("auto", "matmul"),
        ),
        ({"kv_cache_dtype": "fp8_ds_mla"}, Options("fp8_ds_mla"), Options("fp8_ds_mla")),
        ({"kv_cache_dtype": "fp8", "draft_kv_cache_dtype": "auto"}, Options("fp8"), Options()),
    ],
    ids=["default", "bfloat16", "draft-auto", "fp8_ds_mla", "fp8-and-auto"],
)
def test_the_drafter_is_stored_as_the_target_unless_set(
    options: dict[str, Any], target: Options, drafter: Options
) -> None:
    settings = EngineSettings(draft_tokens=3, **options)
    assert (target_options(settings), draft_options(settings, latents=True)) == (target, drafter)


def test_a_drafter_without_latents_inherits_no_fp8() -> None:
    settings = EngineSettings(draft_tokens=3, kv_cache_dtype="fp8")
    assert draft_options(settings, latents=False) == Options()
    wide = EngineSettings(draft_tokens=3, kv_cache_dtype="bfloat16")
    assert draft_options(wide, latents=False) == Options("bfloat16")


def test_settings_import_no_torch() -> None:
    command = "import sys, dovetail.engine.settings; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "False\n"
