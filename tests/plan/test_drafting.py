"""Which drafter, method and draft length a plan takes, and its gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.errors import PlanError
from dovetail.plan import Plan, Setting, resolve
from dovetail.plan.options import GATE
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    GEMMA4_ASSISTANT,
    QWEN3_8B,
    Config,
    write,
    write_index,
)
from tests.checkpoints.conftest import Put
from tests.plan.plans import messages
from tests.plan.samples import SAMPLES

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


def drafting(plan: Plan) -> dict[str, Setting[Any]]:
    return {name: plan.settings[name] for name in ("drafter", "method", "draft_tokens")}


NONE = {"drafter": None, "method": None, "draft_tokens": 0}


@pytest.mark.parametrize(
    ("command_line", "config_file", "expected"),
    [
        ({"drafter": "none"}, {"drafter": "drafter-a", "draft_tokens": 4}, NONE),
        ({"drafter": "none"}, {"drafter": "drafter-a", "method": "eagle3"}, NONE),
        ({"drafter": "none"}, {"method": "ngram", "draft_tokens": 4}, NONE),
        ({"method": "none"}, {"drafter": "drafter-a", "draft_tokens": 4}, NONE),
        ({"method": "ngram"}, {"drafter": "drafter-a"}, {"drafter": None, "method": "ngram", "draft_tokens": 3}),
        ({"method": "suffix"}, {}, {"drafter": None, "method": "suffix", "draft_tokens": 24}),
        ({"drafter": "none", "method": "ngram"}, {}, {"drafter": None, "method": "ngram", "draft_tokens": 3}),
        ({"draft_tokens": 0}, {"drafter": "drafter-a"}, {"method": "eagle3", "draft_tokens": 0}),
        ({"draft_tokens": 5}, {"drafter": "drafter-a"}, {"method": "eagle3", "draft_tokens": 5}),
    ],
)
def test_a_stronger_none_overrules_a_weaker_drafter(
    qwen: Path, command_line: dict[str, Any], config_file: dict[str, Any], expected: dict[str, Any]
) -> None:
    (qwen / "drafts.yaml").write_bytes(msgspec.yaml.encode(config_file))
    plan = resolve(str(qwen / "target-a"), command_line, config=qwen / "drafts.yaml")
    settings = drafting(plan)
    assert {name: settings[name].value for name in expected} == expected
    for name in command_line:
        assert settings[name].source == "command line"
    if plan.value("method") is None:
        assert {settings[name].source for name in config_file} == {"command line"}


def test_ngram_lookup_has_a_safe_default(qwen: Path) -> None:
    plan = resolve(str(qwen / "target-a"), {"method": "ngram"})
    assert plan.settings["prompt_lookup_min"] == Setting(8, "default")
    assert not any("tool calls" in each.message for each in plan.advice_of("warning"))
    assert "tool calls" in messages(
        resolve(str(qwen / "target-a"), {"method": "ngram", "prompt_lookup_min": 4}), "warning"
    )


def test_mtp_layers_inside_the_target_draft_if_requested(tmp_path: Path) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    plan = resolve(target, {"method": "mtp", "gpus": "8x H200"}, recipe="none")
    assert plan.settings["draft_tokens"] == Setting(1, "drafter")
    assert plan.drafter is not None and plan.drafter.config_format == "inside the target"
    assert (plan.value("drafter"), "drafter" in plan.folders) == (None, False)


def test_a_recipe_may_choose_mtp_and_may_be_overruled(tmp_path: Path) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    plan = resolve(target, {"gpus": "8x H200"})
    assert plan.recipes == ("deepseek-v3.2-h200",)
    assert plan.settings["method"] == Setting("mtp", "recipe deepseek-v3.2-h200")
    assert plan.settings["draft_tokens"] == Setting(3, "recipe deepseek-v3.2-h200")
    assert plan.settings["drafter"] == Setting(None, "default")
    assert resolve(target, {"gpus": "8x H200", "method": "mtp"}).value("draft_tokens") == 3
    for off in ("drafter", "method"):
        without = resolve(target, {"gpus": "8x H200", off: "none"})
        assert {name: setting.value for name, setting in drafting(without).items()} == NONE
        assert without.settings["tensor_parallel_size"].source == "recipe deepseek-v3.2-h200"
    write_index(tmp_path / "target", {"a.safetensors": ["model.layers.0.x"]}, total_size=1)
    for given in ({"method": "mtp"}, {"recipe": "deepseek-v3.2-h200"}):
        with pytest.raises(PlanError, match=r"method is mtp .*weights hold none.*--method none"):
            resolve(
                target,
                {"gpus": "8x H200"} | {k: v for k, v in given.items() if k != "recipe"},
                recipe=given.get("recipe"),
            )


def test_a_recipe_of_mtp_drafts_nothing_for_a_copy_without_mtp_layers(tmp_path: Path) -> None:
    target = write(tmp_path / "target", DEEPSEEK_V32)
    write_index(tmp_path / "target", {"a.safetensors": ["model.layers.0.x"]}, total_size=1)
    plan = resolve(target, {"gpus": "8x H200"})
    assert {name: setting.value for name, setting in drafting(plan).items()} == NONE
    assert plan.settings["tensor_parallel_size"].source == "recipe deepseek-v3.2-h200"
    warning = f"recipe deepseek-v3.2-h200 drafts with the target's MTP layers, but {target} holds none"
    assert [each.message.partition(":")[0] for each in plan.advice_of("warning") if each.setting == "method"] == [
        warning
    ]
    for off in ("drafter", "method"):
        without = resolve(target, {"gpus": "8x H200", off: "none"})
        assert [each for each in without.advice_of("warning") if each.setting == "method"] == []


GEMMA4: Config = QWEN3_8B | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_size": 5376,
    "vocab_size": 262144,
}


def test_gemma_drafts_with_its_assistant_by_itself(put: Put) -> None:
    put("google/gemma-4-31B-it", GEMMA4)
    put("google/gemma-4-31B-it-assistant", GEMMA4_ASSISTANT)
    plan = resolve("google/gemma-4-31B-it", {"gpus": "H200"})
    source = "recipe gemma-4-31b-it"
    assert drafting(plan) == {
        "drafter": Setting("google/gemma-4-31B-it-assistant", source),
        "method": Setting("mtp", source),
        "draft_tokens": Setting(4, source),
    }
    # All of its layers draft one token, so that no number of them is a whole round.
    assert resolve("google/gemma-4-31B-it", {"gpus": "H200", "draft_tokens": 7}).value("draft_tokens") == 7


# --- The gate ---------------------------------------------------------------------------------------------------------


def gate(plan: Plan) -> dict[str, Setting[Any]]:
    return {name: plan.settings[name] for name in GATE}


UNSAID = {name: Setting(None, "default") for name in GATE}
MEASURED = UNSAID | {"gate": Setting("measured", "default"), "max_draft_tokens": Setting(8, "default")}


def test_the_embedded_engines_gate_is_measured_by_default(pair: Path) -> None:
    for model in ("target", "drafter"):
        assert gate(resolve(str(pair / model), {})) == MEASURED
    off = Setting("off", "command line")
    assert gate(resolve(str(pair / "drafter"), {"gate": "off"})) == UNSAID | {"gate": off}


def test_a_users_draft_length_is_the_limit(pair: Path) -> None:
    unlimited = MEASURED | {"max_draft_tokens": Setting(None, "default")}
    assert gate(resolve(str(pair / "drafter"), {"draft_tokens": 2})) == unlimited
    (pair / "two.yaml").write_text("draft_tokens: 2\n")
    assert gate(resolve(str(pair / "drafter"), {}, config=pair / "two.yaml")) == unlimited
    assert resolve(str(pair / "drafter"), {}).settings["draft_tokens"] == Setting(2, "drafter")


@pytest.mark.parametrize("nothing", [{"drafter": None}, {"method": None}, {"draft_tokens": 0}], ids=str)
def test_without_drafting_there_is_no_gate(pair: Path, nothing: dict[str, Any]) -> None:
    plan = resolve(str(pair / "target"), nothing)
    assert gate(plan) == UNSAID and not plan.advice_of("warning")


def test_a_drafter_that_is_turned_off_also_unsets_a_weaker_gate(pair: Path) -> None:
    (pair / "gated.yaml").write_text("max_draft_tokens: 4\nspeculate_up_to_batch: 2\ngate: off\n")
    plan = resolve(str(pair / "target"), {"drafter": None}, config=pair / "gated.yaml")
    assert {setting.value for setting in gate(plan).values()} == {None} and not plan.advice_of("warning")


def test_the_embedded_engine_has_all_limits(pair: Path) -> None:
    limits = {"max_draft_tokens": 4, "speculate_below_context": 500, "speculate_up_to_batch": 2}
    plan = resolve(str(pair / "drafter"), limits)
    assert gate(plan) == MEASURED | {name: Setting(value, "command line") for name, value in limits.items()}
    assert not plan.advice_of("warning")


def test_the_gate_of_vllm_is_a_scheduler_that_must_be_installed(qwen: Path) -> None:
    options = {"drafter": str(qwen / "drafter-a")} | {name: SAMPLES[name][0] for name in GATE}
    plan = resolve(str(qwen / "target-a"), options)
    assert "gate is measured (command line), speculate_below_context is 7000 (command line)" in messages(plan, "note")
    assert "`pip install dovetail[vllm]` where vLLM runs" in messages(plan, "note")
    assert not any(name in messages(plan, "warning") for name in GATE)
    assert gate(resolve(str(qwen / "target-a"), {"drafter": str(qwen / "drafter-a")})) == UNSAID
    assert "gate" not in messages(resolve(str(qwen / "target-a"), {"gate": "off"}), "warning")  # it is what vLLM does


@pytest.mark.parametrize(
    ("command_line", "config_file", "expected"),
    [
        ({"max_draft_tokens": 1}, {}, {"draft_tokens": (1, "command line")}),
        ({"max_draft_tokens": 1}, {"draft_tokens": 3}, {"draft_tokens": (1, "command line")}),
        ({"max_draft_tokens": 5}, {}, {"draft_tokens": (2, "drafter")}),
        ({"draft_tokens": 3}, {"max_draft_tokens": 1}, {"max_draft_tokens": (3, "command line")}),
        ({"draft_tokens": 3}, {"max_draft_tokens": 5}, {"max_draft_tokens": (5, "config file")}),
        ({"draft_tokens": 3, "max_draft_tokens": 3}, {}, {"draft_tokens": (3, "command line")}),
        ({"max_draft_tokens": None}, {"draft_tokens": 3}, {"draft_tokens": (3, "config file")}),
    ],
    ids=str,
)
def test_the_stronger_of_a_length_and_a_smaller_limit_sets_both(
    pair: Path, command_line: dict[str, Any], config_file: dict[str, Any], expected: dict[str, tuple[int, str]]
) -> None:
    (pair / "limits.yaml").write_bytes(msgspec.yaml.encode(config_file))
    plan = resolve(str(pair / "drafter"), command_line, config=pair / "limits.yaml")
    for name, (value, source) in expected.items():
        assert plan.settings[name] == Setting(value, source)


def test_one_source_with_a_limit_below_its_length_is_refused(pair: Path) -> None:
    message = (
        r"^max_draft_tokens is 2 \(command line\) but draft_tokens is 3 \(command line\): .* leave one of them out$"
    )
    with pytest.raises(PlanError, match=message):
        resolve(str(pair / "drafter"), {"draft_tokens": 3, "max_draft_tokens": 2})
