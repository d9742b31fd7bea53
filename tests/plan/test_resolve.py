"""What a plan contains: the pair that the embedded engine runs, and refusals of settings that cannot work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import Setting, recipe, resolve
from dovetail.plan.options import BY_NAME
from tests.checkpoints.configs import (
    KIMI_EAGLE3_MLA,
    QWEN3_8B,
    write,
    write_index,
)
from tests.plan.conftest import Put
from tests.plan.pair import DRAFTER, VOCABULARY, write_drafter
from tests.plan.plans import messages, sources

pytestmark = pytest.mark.usefixtures("no_gpus")
WriteTarget = Callable[..., Path]


def test_a_target_alone_runs_on_defaults(pair: Path) -> None:
    plan = resolve(str(pair / "target"), {})
    assert plan.settings["target"] == Setting(str(pair / "target"), "command line")
    assert set(sources(plan).values()) == {"command line", "default"}
    assert plan.settings.keys() == BY_NAME.keys()
    expected = {"drafter": None, "method": "suffix", "draft_tokens": 5, "engine": "embedded", "dtype": "float32"}
    expected |= {"format": "kimi_k25", "context": 1024, "max_batch": 16, "served_model_name": "target"}
    assert {name: plan.value(name) for name in expected} == expected
    assert plan.settings["gate"] == Setting("measured", "default") and plan.reason is None
    assert not plan.advice_of("warning") and not plan.advice_of("note")


def test_a_drafter_alone_is_enough(pair: Path) -> None:
    plan = resolve(str(pair / "drafter"), {})
    assert plan.settings["drafter"] == Setting(str(pair / "drafter"), "command line")
    assert plan.settings["target"] == Setting(str(pair / "target"), "drafter")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan == resolve(None, {"drafter": str(pair / "drafter")})
    assert plan.folders == {which: str(pair / which) for which in ("target", "drafter")} | {
        "tokenizer": str(pair / "target")
    }


def test_the_target_may_be_given_by_an_absolute_path(tmp_path: Path, write_target: WriteTarget) -> None:
    target = write_target(tmp_path / "somewhere" / "else")
    verifier = {"verifier": {"name_or_path": str(target)}}
    drafter = write_drafter(tmp_path / "drafter", speculators_config=DRAFTER["speculators_config"] | verifier)
    assert resolve(str(drafter), {}).settings["target"] == Setting(str(target), "drafter")


def test_the_folder_beside_the_drafter_is_preferred_to_one_beside_the_user(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    write(tmp_path / "target", QWEN3_8B)
    monkeypatch.chdir(tmp_path / "here")
    assert resolve(str(pair / "drafter"), {}).value("target") == str(pair / "target")


def test_a_drafter_that_proposes_nothing_gets_the_default_length(tmp_path: Path, write_target: WriteTarget) -> None:
    verifier = {"verifier": {"name_or_path": "../target"}}
    write_target(tmp_path / "target")
    plan = resolve(str(write_drafter(tmp_path / "drafter", speculators_config=verifier)), {})
    assert plan.settings["draft_tokens"] == Setting(3, "default")


def test_without_a_model_the_demo_recipe_runs(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair / "demo.yaml").write_text("name: demo\nsource: here\nsettings: {target: target, drafter: ./drafter}")
    monkeypatch.setattr(recipe, "FOLDER", pair)
    plan = resolve(None, {})
    assert plan.settings["target"] == Setting(str(pair / "target"), "recipe demo")
    assert plan.settings["drafter"] == Setting(str(pair / "drafter"), "recipe demo")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan.recipes == ("demo",)
    without = resolve(None, {"drafter": "none"})
    assert without.settings["drafter"] == Setting(None, "command line")
    assert without.settings["target"].source == "recipe demo"
    assert without.settings["draft_tokens"] == Setting(0, "default")
    (pair / "drafting.yaml").write_text("drafter: drafter")
    assert resolve(None, {"drafter": "none"}, config=pair / "drafting.yaml") == without
    assert resolve(None, {}, recipe="none") == plan


def test_the_bundled_pair_runs_on_the_embedded_engine() -> None:
    plan = resolve(None, {})
    assert (plan.value("engine"), plan.value("method"), plan.value("draft_tokens")) == ("embedded", "eagle3", 3)
    assert not plan.advice
    assert plan.fit is not None
    assert plan.fit.each is None and plan.fit.cache_per_token == 4 * (11520 / 4 + 256)


# --- What cannot work -------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"draft_tokens": 3, "engine": "vllm"},
        r"draft_tokens is 3 \(command line\) but drafter is none \(default\): name a drafter",
    ),
    ({"drafter": "none", "draft_tokens": 1}, r"drafter is none \(command line\)"),
    ({"method": "none", "draft_tokens": 1}, r"draft_tokens is 1 \(command line\) but drafter is none"),
    ({"allow_origin": "https://a.example/"}, r"allow_origin is 'https://a.example/': .* is not an origin"),
    ({"allow_origin": "https://a.example,app"}, r"'app' is not an origin: it is a scheme, a host"),
    ({"alias": "haiku"}, r"alias is 'haiku': 'haiku' is not an alias: give a further name and the served one"),
    ({"alias": "haiku=a,=b"}, r"'=b' is not an alias"),
    ({"alias": "haiku="}, r"'haiku=' is not an alias"),
    ({"no_repair": "call_id, ids"}, r"no_repair is 'call_id, ids': there is no repair ' ids'; there are .*all, none$"),
    (
        {"engine": "vlm"},
        r"command line: engine is 'vlm': it can be embedded, vllm, llama.cpp, or the URL of a",
    ),
    ({"engine": "sglang"}, r"engine is 'sglang': start it with the command that `dovetail plan --emit sglang` prints"),
    ({"engine": "ftp://here"}, r"engine is 'ftp://here'"),
    ({"format": "nonesuch"}, r"format is 'nonesuch' \(command line\): no format or checkpoint folder"),
    ({"context": 2048}, r"context is 2048 \(command line\) but .* was made for 1024"),
    ({"api_key_file": "/nonexistent/key"}, r"there is no file /nonexistent/key"),
    ({"api_keys": "/nonexistent/keys"}, r"api_keys \(command line\): there is no file /nonexistent/keys"),
    ({"record_key_file": "/nonexistent/key"}, r"record_key_file \(command line\): there is no file /nonexistent/key"),
    (
        {"dtype": "float16", "engine": "embedded"},
        r"dtype is float16 \(command line\) and the embedded engine has float32 or bfloat16: --engine vllm",
    ),
    ({"quantization": "fp8", "engine": "embedded"}, r"quantization is fp8 .*the embedded engine has int8: --engine"),
    ({"kv_cache_dtype": "nvfp4", "engine": "embedded"}, r"kv_cache_dtype is nvfp4 .*embedded engine has auto or bf"),
    ({"draft_kv_cache_dtype": "nvfp4", "engine": "embedded"}, r"draft_kv_cache_dtype is nvfp4 .*has auto or bfloat16"),
    ({"attention_backend": "SDPA", "engine": "embedded"}, r"attention_backend is SDPA .*has auto or matmul or sdpa"),
    ({"draft_attention_backend": "x", "engine": "embedded"}, r"draft_attention_backend is x .*auto or matmul or sdpa"),
    (
        {"chunked_prefill": False, "max_batched_tokens": 1024},
        r"chunked_prefill is False .*max_batched_tokens is 1024 .*a step has up to 16384 tokens \(max_batch is 16",
    ),
    (
        {"draft_tokens": 9},
        r"draft_tokens is 9 \(command line\), but the embedded engine drafts at most 8 tokens a step",
    ),
    ({"gpus": "8x B2000"}, r"^command line: gpus is '8x B2000': no kind is called 'B2000'; did you mean B200"),
    ({"engine": "embedded", "tensor_parallel_size": 8}, r"size is 8 .*8 ranks cannot divide 2 .*: --engine vllm"),
    (
        {"engine": "embedded", "tensor_parallel_size": 2, "draft_tensor_parallel_size": 2},
        r"draft_tensor_parallel_size is 2 .*but the embedded engine has the drafter whole on one rank: --engine vllm",
    ),
    (
        {"engine": "embedded", "method": "ngram"},
        r"engine is embedded .*the lookup method of the embedded engine is suffix: --engine vllm",
    ),
    ({"method": "mtp"}, r"method is mtp \(command line\) but .* has no MTP layers inside"),
]


@pytest.mark.parametrize(
    ("options", "message"), REFUSALS, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_settings_that_cannot_work_are_refused(pair: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        resolve(str(pair / "target"), options)
    assert re.fullmatch(r"[^\n]+", refusal.value.message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"draft_tokens": 9},
            r"draft_tokens is 9 \(command line\), but the embedded engine drafts at most 8 tokens a step",
        ),
        ({"method": "ngram"}, r"method is ngram \(command line\) but drafter is .*: leave one of them out"),
        ({"method": "none"}, r"method is none \(command line\) but drafter is"),
        ({"method": "dflash"}, r"method is dflash \(command line\) but .* drafts by eagle3"),
    ],
)
def test_settings_that_do_not_go_with_the_drafter_are_refused(
    pair: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        resolve(str(pair / "target"), {"drafter": str(pair / "drafter")} | options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 8000", r"config file: there is no setting 'prot'; did you mean port\?"),
        ("port: eight", r"config file: port is 'eight': expected int"),
        ("- port", r"must map settings to values"),
        ("port: 1\nport: 2", r"is not valid YAML: the key 'port' is repeated \(line 2\)"),
        (f"port: {[1] * 99}", r"^config file: port is .{80}: expected int, got array$"),
        ("port: [", r"is not valid YAML"),
        (None, r"cannot be read: No such file"),
    ],
)
def test_a_bad_config_file_is_refused(pair: Path, tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=message) as refusal:
        resolve(str(pair / "target"), {}, config=file)
    assert "\n" not in refusal.value.message


def test_an_empty_config_file_sets_nothing(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert resolve(str(pair / "target"), {}, config=tmp_path / "empty.yaml") == resolve(str(pair / "target"), {})


LAYER = DRAFTER["transformer_layer_config"]
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"target_hidden_size": 64}, r"hidden states 64 wide .*the target's hidden_size is 32"),
    "vocabulary": (
        {"transformer_layer_config": LAYER | {"vocab_size": 9}},
        rf"vocab_size is 9, the target's vocab_size is {VOCABULARY}",
    ),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}, r"\[1, 29, 57\]"),
    "kind": ({"speculators_model_type": "nonesuch"}, r"speculators_model_type is 'nonesuch', not one of"),
    "no target": ({"speculators_config": {}}, r"whose config names no target: give the target as MODEL"),
    "too long": (
        {
            "speculators_config": DRAFTER["speculators_config"]
            | {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 12}]}
        },
        r"draft_tokens is 12 \(drafter\), but the embedded engine drafts at most 8",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_drafter_that_does_not_fit_is_refused(
    tmp_path: Path, write_target: WriteTarget, put: Put, misfit: str
) -> None:
    changes, message = MISFITS[misfit]
    write_target(tmp_path / "target")
    with pytest.raises(DovetailError, match=message) as refusal:
        resolve(str(write_drafter(tmp_path / "drafter", **changes)), {})
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "/home/trainer/models/Qwen3-8B"])
def test_a_drafter_whose_target_cannot_be_reached_is_planned_for_alone(tmp_path: Path, put: Put, target: str) -> None:
    drafter = DRAFTER["speculators_config"] | {"verifier": {"name_or_path": target}}
    plan = resolve(str(write_drafter(tmp_path / "drafter", speculators_config=drafter)), {})
    assert plan.settings["target"] == Setting(target, "drafter")
    assert plan.settings["method"] == Setting("eagle3", "drafter")
    assert plan.settings["draft_tokens"] == Setting(2, "drafter")
    assert plan.target is None and plan.fit is None and plan.drafter is not None
    assert (
        f"{target} could not be read, so sizes and fit are unchecked and the plan follows the drafter alone: there is "
        "no folder"
    ) in messages(plan, "warning")
    assert "drafts by eagle3, 1 layer of mqa, hidden states of width 32, a vocabulary of 384" in messages(plan, "note")
    with pytest.raises(PlanError, match="engine is embedded"):
        resolve(plan.drafter.path, {"engine": "embedded"})


def test_a_drafter_of_another_method_chooses_vllm(tmp_path: Path, write_target: WriteTarget) -> None:
    target = write_target(tmp_path / "target")
    block = {"mask_token_id": 1, "target_layer_ids": [1]}
    drafter = write(
        tmp_path / "drafter", LAYER | {"architectures": ["DFlashDraftModel"], "block_size": 4, "dflash_config": block}
    )
    plan = resolve(str(target), {"drafter": drafter})
    assert (plan.value("method"), plan.value("engine"), plan.value("draft_tokens")) == ("dflash", "vllm", 3)
    assert "drafts by dflash, and the embedded engine drafts with" in (plan.reason or "")


def test_a_drafter_without_a_named_target_is_refused(tmp_path: Path) -> None:
    drafter = write(tmp_path / "drafter", KIMI_EAGLE3_MLA)
    with pytest.raises(PlanError, match=r"whose config names no target"):
        resolve(drafter, {})


def test_two_drafters_are_refused(pair: Path, tmp_path: Path) -> None:
    other = write_drafter(tmp_path / "other")
    with pytest.raises(PlanError, match=r"is a drafter, and so is"):
        resolve(str(pair / "drafter"), {"drafter": str(other)})
    with pytest.raises(PlanError, match=r"is a drafter, but drafter is none: give the target as the model, or"):
        resolve(str(pair / "drafter"), {"drafter": "none"})


def test_an_incomplete_folder_is_refused(tmp_path: Path, write_target: WriteTarget) -> None:
    def refused(model: Path, message: str, **options: Any) -> None:
        with pytest.raises(CheckpointError, match=message) as refusal:
            resolve(str(model), {"engine": "embedded"} | options)
        assert "\n" not in refusal.value.message

    refused(tmp_path / "nowhere", r"there is no folder .*nowhere")
    refused(tmp_path, r"has no config\.json")
    target = write_target(tmp_path / "target")
    (target / "tokenizer.json").unlink()
    refused(target, r"incomplete: it has neither tokenizer\.json nor tiktoken\.model")
    refused(target, r"incomplete: it has no tokenizer", engine="vllm")
    (target / "model.safetensors").unlink()
    refused(target, r"incomplete: it has neither model\.safetensors nor")
    (target / "tokenizer.json").touch()
    write_index(target, {"model-1-of-2.safetensors": ["a"], "model-2-of-2.safetensors": ["b"]})
    refused(target, r"incomplete: it has none of the 2 files")
    (target / "model-1-of-2.safetensors").touch()
    refused(target, r"incomplete: it has 1 of the 2 files")
    (target / "config.json").write_text("{")
    refused(target, r"config\.json cannot be read as JSON")
    (target / "config.json").write_text("[]")
    refused(target, r"must hold a JSON object")


def test_a_config_alone_can_be_planned_for_on_another_engine(tmp_path: Path) -> None:
    plan = resolve(write(tmp_path / "target", QWEN3_8B), {})
    assert "has no weights: their size is estimated" in messages(plan, "warning")


def test_every_config_of_the_shared_ones_is_planned_for_or_refused_by_name(
    shared_data: Path, tmp_path: Path, put: Put
) -> None:
    """Whatever lies in a folder, a plan is made or one line says why not."""
    for number, file in enumerate(sorted((shared_data / "configs").rglob("*.json"))):
        folder = write(tmp_path / str(number), json.loads(file.read_text()))
        try:
            plan: Mapping[str, Any] = resolve(folder, {"gpus": "8x B200"}).data()
        except DovetailError as error:
            assert folder in error.message and "\n" not in error.message
        else:
            assert plan["looked"]["target"] or plan["looked"]["drafter"]
