"""Recipes that match, recipes that are named, and models on the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import CheckpointError, PlanError
from dovetail.plan import Setting, resolve
from dovetail.plan.options import BY_NAME
from tests.checkpoints.configs import (
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_EAGLE3,
    write,
)
from tests.formats.chat_templates import PLAIN, QWEN3, SMALL_CONTROLS
from tests.formats.test_registry import checkpoint
from tests.plan import pair as made
from tests.plan.conftest import Put
from tests.plan.plans import messages

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


def test_the_recipe_that_matches_model_gpus_and_settings_is_used(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"})
    assert plan.recipes == ("kimi-k2.5-sm120-dcp4",)
    assert plan.settings["target"] == Setting("moonshotai/Kimi-K2.5", "command line")
    assert plan.settings["decode_context_parallel_size"] == Setting(4, "recipe kimi-k2.5-sm120-dcp4")
    assert plan.settings["speculate_below_context"] == Setting(7000, "recipe kimi-k2.5-sm120-dcp4")
    both = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000", "decode_context_parallel_size": 8, "port": 9})
    assert both.recipes == ("kimi-k2.5-sm120-dcp8", "kimi-k2.5-sm120-dcp4")
    assert both.settings["decode_context_parallel_size"] == Setting(8, "command line")
    assert both.settings["attention_backend"] == Setting("TRITON_MLA", "recipe kimi-k2.5-sm120-dcp8")
    assert resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"}, recipe="none").recipes == ()


def test_a_named_recipe_is_used_whatever_its_conditions_are(put: Put) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    put("lightseekorg/kimi-k2.5-eagle3-mla", KIMI_EAGLE3_MLA)
    plan = resolve(None, {"gpus": "8x B200"}, recipe="kimi-k2.5-sm120-dcp8")
    assert plan.settings["target"] == Setting("moonshotai/Kimi-K2.5", "recipe kimi-k2.5-sm120-dcp8")
    assert plan.settings["decode_context_parallel_size"] == Setting(8, "recipe kimi-k2.5-sm120-dcp8")
    assert "recipe kimi-k2.5-sm120-dcp8 is for something else" in messages(plan, "warning")
    for unknown in ({}, {"gpus": "8x96GB"}):
        assert "was named" not in messages(resolve(None, unknown, recipe="kimi-k2.5-sm120-dcp8"), "warning")


def test_a_named_recipe_sets_its_drafter(put: Put) -> None:
    checkpoint(put("Qwen/Qwen3-8B", QWEN3_8B), *SMALL_CONTROLS, template=QWEN3)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    plan = resolve(None, {}, recipe="qwen3-8b-eagle3")
    assert plan.settings["drafter"] == Setting("RedHatAI/Qwen3-8B-speculator.eagle3", "recipe qwen3-8b-eagle3")
    assert plan.settings["draft_tokens"] == Setting(3, "drafter")
    assert resolve(None, {"drafter": "none"}, recipe="qwen3-8b-eagle3").value("method") is None


def test_a_recipes_format_has_to_fit_the_chat_template(put: Put) -> None:
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    checkpoint(put("Qwen/Qwen3-8B", QWEN3_8B), *SMALL_CONTROLS, template=PLAIN)
    with pytest.raises(
        PlanError, match=r"format is 'qwen3' \(recipe qwen3-8b-eagle3\): qwen3 has no prompts of its own"
    ):
        resolve(None, {}, recipe="qwen3-8b-eagle3")


def test_with_another_drafter_a_recipe_sets_no_drafting(put: Put, tmp_path: Path) -> None:
    put("moonshotai/Kimi-K2.5", KIMI_K25)
    other = write(tmp_path / "other", KIMI_EAGLE3)
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000", "drafter": other})
    assert plan.value("drafter") == other
    assert plan.settings["attention_backend"].source == "recipe kimi-k2.5-sm120-dcp4"
    drafting_sources = {plan.settings[name].source for name, option in BY_NAME.items() if option.group == "drafting"}
    assert drafting_sources == {"command line", "drafter", "default"}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("kimi-k2.5-sm120-dcp5", r"there is no recipe .*did you mean kimi-k2.5-sm120-dcp"),
        ("zzz", r"there is no recipe 'zzz', and no file of that name; `dovetail recipes` lists them"),
        ("gemma-4", r"several recipes have 'gemma-4' in their names: gemma-4-12b-it, "),
        ("zzz.yaml", r"recipe zzz.yaml cannot be read"),
        ("{folder}/bad.yaml", r"recipe .*bad.yaml cannot be read: .*missing required field `source`"),
        ("{folder}/nobody.yaml", r"recipe nobody names no model: give MODEL"),
    ],
)
def test_a_bad_recipe_is_refused(tmp_path: Path, named: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text("name: a\nsettings: {}")
    (tmp_path / "nobody.yaml").write_text("name: nobody\nsource: here\nsettings: {port: 1}")
    with pytest.raises(PlanError, match=message):
        resolve(None, {}, recipe=named.format(folder=tmp_path))


# --- Models on the hub ------------------------------------------------------------------------------------------------


def test_a_drafter_on_the_hub_alone_is_enough_and_ids_stay_ids(put: Put) -> None:
    folder = put("Qwen/Qwen3-8B", QWEN3_8B)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    engine = {"tensor_parallel_size": 2, "seed": 42, "max_model_len": 4096}
    plan = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", engine)
    assert plan.settings["target"] == Setting("Qwen/Qwen3-8B", "drafter")
    assert plan.settings["drafter"] == Setting("RedHatAI/Qwen3-8B-speculator.eagle3", "command line")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    expected = {"tensor_parallel_size": 2, "seed": 42, "context": 4096, "draft_tensor_parallel_size": None}
    assert {name: plan.value(name) for name in expected} == expected
    assert plan.value("served_model_name") == "Qwen/Qwen3-8B"
    assert plan.folders["target"] == str(folder)
    assert plan.target is not None and plan.target.path == "Qwen/Qwen3-8B"


def test_tokenizer_and_revision_are_the_users(put: Put, tmp_path: Path) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    put("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN3_8B_EAGLE3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").touch()
    options = {"tokenizer": str(tmp_path / "mine"), "revision": "main"}
    plan = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", options)
    assert plan.settings["tokenizer"] == Setting(str(tmp_path / "mine"), "command line")
    assert plan.settings["revision"] == Setting("main", "command line")
    assert plan.folders["tokenizer"] == str(tmp_path / "mine")
    absent = resolve("RedHatAI/Qwen3-8B-speculator.eagle3", {"revision": "of-the-target"})
    assert "Qwen/Qwen3-8B could not be read" in messages(absent, "warning")
    with pytest.raises(CheckpointError, match=r"tokenizer is .* but it has neither tokenizer.json nor"):
        resolve("Qwen/Qwen3-8B", {"tokenizer": str(tmp_path)})


def test_a_model_that_only_a_recipe_describes_gets_a_warning(put: Put) -> None:
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x RTX PRO 6000"})
    assert (plan.target, plan.drafter, plan.fit) == (None, None, None)
    assert (plan.value("engine"), plan.value("context")) == ("vllm", None)
    warned = messages(plan, "warning")
    assert (
        "target: moonshotai/Kimi-K2.5 could not be read, so sizes and fit are unchecked and the plan follows the recipe"
        in warned
    )
    assert "drafter: lightseekorg/kimi-k2.5-eagle3-mla could not be read" in warned
    assert "because no other fits" not in warned
    plan = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x96GB"})
    assert plan.recipes == ("kimi-k2.5-sm120-dcp4",)
    assert "recipe kimi-k2.5-sm120-dcp4 is used because no other fits, but may not suit these GPUs" in messages(
        plan, "warning"
    )
    assert resolve("moonshotai/Kimi-K2.5", {}, recipe="kimi-k2.5-sm120-dcp8").value("draft_tokens") == 3
    json.dumps(plan.data())
    with_tokenizer = resolve("moonshotai/Kimi-K2.5", {"gpus": "8x96GB", "tokenizer": "org/tokenizer"})
    assert "tokenizer: org/tokenizer could not be read" in messages(with_tokenizer, "warning")


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("Qwen/Qwen3-8B", {}, None),
        ("moonshotai/Kimi-K2.5", {"gpus": "8x B200"}, None),
        ("moonshotai/Kimi-K2.5", {"gpus": "8x96GB"}, "none"),
        ("moonshotai/Kimi-K2.5", {"gpus": "4x96GB"}, None),
    ],
)
def test_an_unknown_model_is_refused(put: Put, model: str, options: dict[str, Any], named: str | None) -> None:
    with pytest.raises(CheckpointError, match=rf"^there is no folder {model}, and no hub here$"):
        resolve(model, options, recipe=named)


def test_the_embedded_engine_needs_a_readable_target(put: Put) -> None:
    with pytest.raises(PlanError, match=r"engine is embedded \(command line\) but the target could not be read"):
        resolve("moonshotai/Kimi-K2.5", {"engine": "embedded"})


def test_an_unreadable_drafter_is_used_if_its_method_is_set(put: Put, tmp_path: Path) -> None:
    put("Qwen/Qwen3-8B", QWEN3_8B)
    with pytest.raises(CheckpointError, match=r"no folder org/drafter"):
        resolve("Qwen/Qwen3-8B", {"drafter": "org/drafter"})
    plan = resolve("Qwen/Qwen3-8B", {"drafter": "org/drafter", "method": "eagle3", "draft_tokens": 2})
    assert "org/drafter could not be read, so whether it fits is unchecked" in messages(plan, "warning")
    with pytest.raises(CheckpointError, match=r"no folder .*nowhere"):
        resolve("Qwen/Qwen3-8B", {"drafter": str(tmp_path / "nowhere"), "method": "eagle3"})
    put("org/small", made.TARGET)
    for method, engine in (("eagle3", "embedded"), ("dflash", "vllm")):
        options = {"drafter": "org/drafter", "method": method, "format": "kimi_k25"}
        assert resolve("org/small", options).value("engine") == engine
    with pytest.raises(PlanError, match=r"method is dflash \(command line\) and the embedded engine drafts by eagle3,"):
        resolve("org/small", {"drafter": "org/drafter", "method": "dflash", "engine": "embedded"})


def test_weights_of_a_model_on_the_hub_may_be_elsewhere(put: Put, small_tokenizer_file: Path) -> None:
    folder = put("org/small", made.TARGET)
    (folder / "tokenizer.json").write_bytes(small_tokenizer_file.read_bytes())
    plan = resolve("org/small", {})
    assert plan.value("engine") == "embedded"
    assert "the weights of org/small are not here: `hf download org/small` fetches them" in messages(plan, "warning")
    (folder / "model.safetensors").touch()
    assert not resolve("org/small", {}).advice_of("warning")
