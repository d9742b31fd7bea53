"""The engine of a plan, and the reason for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import DovetailError
from dovetail.plan import Setting, embedded, hardware, resolve
from tests.checkpoints.configs import (
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_235B,
    write,
)
from tests.plan import pair as made
from tests.plan.plans import messages

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        (QWEN3_8B, {"dtype": "bfloat16"}, "has no weights, which the embedded engine needs"),
        (QWEN3_8B, {}, "has 8B parameters, which take 33 GB in the embedded engine, and this machine has 24"),
        (QWEN3_8B, {"gpus": "H100", "dtype": "bfloat16"}, "gpus is H100 (command line) and the embedded engine"),
        (QWEN3_235B, {}, "architecture Qwen3MoeForCausalLM (model_type 'qwen3_moe') is not supported"),
        (KIMI_K25, {}, "architecture KimiK25ForConditionalGeneration"),
        (made.TARGET, {"tensor_parallel_size": 2}, "tensor_parallel_size is 2 (command line) and the embedded engine"),
        (
            made.TARGET,
            {"method": "ngram"},
            "method is ngram (command line) and the lookup method of the embedded engine",
        ),
        (QWEN3_8B | {"num_nextn_predict_layers": 1}, {"method": "mtp"}, "needs the MTP layers of a DeepSeek-V3"),
        (made.TARGET, {"dtype": "float16"}, "dtype is float16 (command line) and the embedded engine has float32 or"),
        (made.TARGET, {"quantization": "fp8"}, "quantization is fp8 (command line) and the embedded engine has int8"),
        (made.TARGET, {"kv_cache_dtype": "fp8_e5m2"}, "and the embedded engine has auto or bfloat16 or fp8 or fp8_ds_"),
        (QWEN3_8B, {"kv_cache_dtype": "fp8"}, "which stores latents, and"),
        (made.TARGET, {"attention_backend": "FLASH_ATTN"}, "and the embedded engine has auto or matmul or sdpa"),
        (made.TARGET | {"quantization_config": {"quant_method": "fp8"}}, {}, "quantization_config is set"),
    ],
)
def test_vllm_is_chosen_with_a_reason_if_the_embedded_engine_cannot_run_the_plan(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    target = write(tmp_path / "target", config)
    plan = resolve(target, options)
    assert plan.settings["engine"] == Setting("vllm", "default")
    assert re.fullmatch(rf"vLLM is (needed|chosen): .*{re.escape(reason)}.*", plan.reason or "")
    assert plan.reason is not None and plan.reason in messages(plan, "note")
    assert plan.value("dtype") == options.get("dtype")  # left to the engine
    with pytest.raises(DovetailError, match=r"--engine vllm|another drafter or engine|incomplete"):
        resolve(target, options | {"engine": "embedded"})


def test_detected_gpus_choose_vllm_except_for_the_demo(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: hardware.parse("2x H100"))
    plan = resolve(str(pair / "drafter"), {})
    assert plan.value("engine") == "vllm"
    assert "this machine has 2x H100 and the embedded engine computes on the CPU" in (plan.reason or "")
    assert resolve(str(pair / "drafter"), {"engine": "embedded"}).value("engine") == "embedded"
    assert resolve(None, {}).value("engine") == "embedded"
    assert resolve(None, {"gpus": "H100"}).value("engine") == "vllm"


def test_gpus_of_a_recipe_choose_vllm(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nsource: here\nsettings: {gpus: 8x B200}")
    plan = resolve(str(pair / "target"), {}, recipe=str(tmp_path / "mine.yaml"))
    assert "gpus is 8x B200 (recipe mine) and the embedded engine" in (plan.reason or "")
    assert resolve(str(pair / "target"), {"gpus": "auto"}).value("engine") == "embedded"


def test_a_model_too_large_for_this_machine_chooses_vllm(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "machine_memory", lambda: 1000)
    plan = resolve(str(pair / "drafter"), {})
    assert plan.value("engine") == "vllm"
    assert "parameters, which take" in (plan.reason or "")
    monkeypatch.setattr(embedded, "machine_memory", lambda: None)
    assert resolve(str(pair / "drafter"), {}).value("engine") == "embedded"
    monkeypatch.undo()
    assert (embedded.machine_memory() or 10**9) > 10**8


def test_the_callers_engine_is_only_a_default(pair: Path) -> None:
    assert resolve(str(pair / "target"), {}, engine="vllm").settings["engine"] == Setting("vllm", "default")
    assert resolve(str(pair / "target"), {"engine": "embedded"}, engine="vllm").value("engine") == "embedded"


def test_a_setting_that_the_engine_lacks_gets_a_warning(pair: Path, qwen: Path) -> None:
    options = {"seed": 1, "local_argmax": True, "revision": "main", "gpus": "H100", "engine": "embedded"}
    plan = resolve(str(pair / "target"), options)
    assert {each.setting for each in plan.advice_of("warning")} == {"local_argmax", "seed"}
    assert "seed is 1 (command line): the embedded engine has no such setting" in messages(plan, "warning")
    plan = resolve(str(qwen / "target-a"), {"threads": 2, "seed": 1})
    assert "threads is 2 (command line): vLLM has no such setting" in messages(plan, "warning")
    assert "seed" not in messages(plan, "warning")


def test_a_server_that_runs_has_its_own_settings(qwen: Path) -> None:
    plan = resolve(str(qwen / "target-a"), {"engine": "http://127.0.0.1:8001"})
    assert "the server at http://127.0.0.1:8001 has settings of its own, which this plan must agree with" in messages(
        plan, "note"
    )


def test_more_drafts_than_the_embedded_engine_takes_are_fine_elsewhere(tmp_path: Path) -> None:
    target, drafter = write(tmp_path / "target", QWEN3_8B), write(tmp_path / "drafter", QWEN3_8B_DFLASH)
    assert resolve(target, {"drafter": drafter}).settings["draft_tokens"] == Setting(15, "drafter")
