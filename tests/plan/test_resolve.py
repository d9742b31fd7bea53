"""The plan for what was asked: every value with its source, and a refusal of whatever cannot work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import Plan, Setting, recipe, resolve
from dovetail.plan.layers import Layer
from tests.plan import pair as made
from tests.plan.pair import DRAFTER, VOCABULARY, write_drafter

WriteTarget = Callable[..., Path]


@pytest.fixture(scope="module")
def write_target(small_tokenizer_file: Path) -> WriteTarget:
    """Writes a target with a Kimi tokenizer."""
    return lambda folder, **changes: made.write_target(folder, small_tokenizer_file, **changes)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, write_target: WriteTarget) -> Path:
    """A folder with `target` and `drafter`."""
    folder = tmp_path_factory.mktemp("pair")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    return folder


def sources(plan: Plan) -> dict[str, str]:
    return {name: getattr(plan, name).source for name in plan.__struct_fields__}


def test_a_target_alone_runs_on_defaults(pair: Path) -> None:
    plan = resolve(str(pair / "target"), {})
    assert plan.target == Setting(str(pair / "target"), "command line")
    assert set(sources(plan).values()) == {"command line", "default"}
    assert (plan.drafter.value, plan.method.value, plan.draft_tokens.value, plan.gate.value) == (None, None, 0, None)
    assert plan.format.value == "kimi_k25"
    assert plan.context.value == 1024
    assert plan.served_model_name.value == "target"


def test_a_drafter_alone_is_enough(pair: Path) -> None:
    plan = resolve(str(pair / "drafter"), {})
    assert plan.drafter == Setting(str(pair / "drafter"), "command line")
    assert plan.target == Setting(str(pair / "target"), "drafter")
    assert plan.method == Setting("eagle3", "drafter")
    assert plan.draft_tokens == Setting(2, "drafter")
    assert plan == resolve(None, {"drafter": str(pair / "drafter")})


def test_a_drafter_that_proposes_nothing_gets_the_default_length(tmp_path: Path, write_target: WriteTarget) -> None:
    verifier = {"verifier": {"name_or_path": "../target"}}
    write_target(tmp_path / "target")
    plan = resolve(str(write_drafter(tmp_path / "drafter", speculators_config=verifier)), {})
    assert plan.draft_tokens == Setting(3, "default")


def test_without_a_model_the_demo_recipe_says_what_runs(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair / "demo.yaml").write_text("name: demo\nsource: here\nsettings: {target: target, drafter: ./drafter}")
    monkeypatch.setattr(recipe, "FOLDER", pair)
    plan = resolve(None, {})
    assert plan.target == Setting(str(pair / "target"), "recipe demo")
    assert plan.drafter == Setting(str(pair / "drafter"), "recipe demo")
    assert plan.draft_tokens == Setting(2, "drafter")
    without = resolve(None, {"drafter": "none"})
    assert without.drafter == Setting(None, "command line")
    assert (without.target.source, without.draft_tokens) == ("recipe demo", Setting(0, "default"))
    (pair / "drafting.yaml").write_text("drafter: drafter")
    assert resolve(None, {"drafter": "none"}, config=pair / "drafting.yaml") == without


@pytest.mark.parametrize("file", sorted(recipe.FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_recipe_is_well_formed(file: Path) -> None:
    assert recipe.load(file).source == f"recipe {file.stem}"


# For every setting that the three upper layers can hold: two values that pass on any machine.
CHOICES: dict[str, tuple[Any, Any]] = {
    "draft_tokens": (1, 4),
    "strict": ("off", "names"),
    "engine": ("embedded", "embedded"),
    "format": ("kimi_k25", "kimi_k25"),
    "host": ("0.0.0.0", "::1"),
    "port": (8001, 8002),
    "served_model_name": ("a", "b"),
    "context": (512, 256),
    "max_batch": (1, 2),
    "dtype": ("bfloat16", "float32"),
    "threads": (1, 2),
}
SAID = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHOICES.items()})


@given(command_line=SAID, config_file=SAID, recipe_file=SAID)
def test_command_line_over_config_file_over_recipe_over_drafter_over_default(
    pair: Path, command_line: dict[str, Any], config_file: dict[str, Any], recipe_file: dict[str, Any]
) -> None:
    config = pair / "config.yaml"
    config.write_bytes(msgspec.yaml.encode(config_file))
    located = {"target": str(pair / "target"), "drafter": str(pair / "drafter")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "demo", lambda: Layer("recipe demo", recipe_file | located))
        plan = resolve(None, command_line, config=config)
    stack = {
        "command line": command_line,
        "config file": config_file,
        "recipe demo": recipe_file | located,
        "drafter": {"method": "eagle3", "draft_tokens": 2},
    }
    for name in plan.__struct_fields__:
        setting = getattr(plan, name)
        winner = next((source for source, values in stack.items() if name in values), "default")
        assert setting.source == winner
        if winner != "default":
            assert setting.value == stack[winner][name]


def test_relative_paths_start_where_they_are_written(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair / "paths.yaml").write_text("target: target\ndrafter: drafter\n")
    monkeypatch.chdir(tmp_path)
    assert resolve(None, {}, config=pair / "paths.yaml").target == Setting(str(pair / "target"), "config file")
    monkeypatch.chdir(pair)
    assert resolve("target", {}).target == Setting(str(pair / "target"), "command line")


def test_ruling_the_drafter_out_overrules_a_weaker_draft_length(pair: Path) -> None:
    (pair / "drafting.yaml").write_text("drafter: drafter\ndraft_tokens: 4\n")
    plan = resolve(str(pair / "target"), {"drafter": "none"}, config=pair / "drafting.yaml")
    assert plan.draft_tokens == Setting(0, "command line")


def test_a_plan_in_json_has_value_and_from(pair: Path) -> None:
    shown = json.loads(msgspec.json.encode(resolve(str(pair / "target"), {"port": 9000})))
    assert shown["port"] == {"value": 9000, "from": "command line"}
    assert shown["gate"] == {"value": None, "from": "default"}


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"port": 0}, r"command line: port is 0: expected int >= 1"),
    ({"port": 70000}, r"port is 70000: expected int <= 65535"),
    ({"draft_tokens": 9}, r"draft_tokens is 9: expected int <= 8"),
    ({"draft_tokens": -1}, r"draft_tokens is -1: expected int >= 0"),
    ({"draft_tokens": 3}, r"draft_tokens is 3 \(command line\) but drafter is none \(default\): name a drafter"),
    ({"drafter": "none", "draft_tokens": 1}, r"drafter is none \(command line\)"),
    ({"strict": "very"}, r"strict is 'very'"),
    ({"engine": "vllm"}, r"engine 'vllm' \(command line\): not yet"),
    ({"engine": "http://127.0.0.1:1"}, r"not yet"),
    ({"format": "nonesuch"}, r"nonesuch"),
    ({"context": 2048}, r"context is 2048 \(command line\) but the target was made for 1024"),
    ({"draft_token": 3}, r"there is no setting 'draft_token'; did you mean draft_tokens"),
    ({"zzz": 3}, r"there is no setting 'zzz'; it may hold target, drafter"),
    ({"api_key_file": "/nonexistent/key"}, r"there is no file /nonexistent/key"),
]


@pytest.mark.parametrize(
    ("options", "message"), REFUSALS, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_settings_that_cannot_work_are_refused(pair: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        resolve(str(pair / "target"), options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 8000", r"config file: there is no setting 'prot'; did you mean port\?"),
        ("port: eight", r"config file: port is 'eight': expected int"),
        ("- port", r"must map settings to values"),
        ("8000: port", r"must map settings to values"),
        ("port: [", r"is not YAML"),
        (None, r"cannot be read: No such file"),
    ],
)
def test_a_bad_config_file_is_refused(pair: Path, tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PlanError, match=message):
        resolve(str(pair / "target"), {}, config=file)


@pytest.mark.parametrize(
    "text", ["name: a", "name: a\nsource: b\nsettings: {port: x}", "name: a\nsource: b\nsettings: {}\nmore: 1", "["]
)
def test_a_bad_recipe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(PlanError, match=r"recipe"):
        recipe.load(tmp_path / "bad.yaml")


LAYER = DRAFTER["transformer_layer_config"]
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"target_hidden_size": 64}, r"target_hidden_size is 64, the target's hidden_size is 32"),
    "vocabulary": (
        {"transformer_layer_config": LAYER | {"vocab_size": 9}},
        rf"vocab_size is 9, the target's is {VOCABULARY}",
    ),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}, r"\[1, 29, 57\]"),
    "method": ({"speculators_model_type": "dflash"}, r"dflash"),
    "format": ({"speculators_model_type": None}, r"not in the speculators format"),
    "no target": ({"speculators_config": {}}, r"does not say which target"),
    "target elsewhere": (
        {"speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-8B"}}},
        r"drafts for Qwen/Qwen3-8B",
    ),
    "too long": (
        {
            "speculators_config": DRAFTER["speculators_config"]
            | {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 12}]}
        },
        r"draft_tokens is 12 \(drafter\), at most 8",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_drafter_that_does_not_fit_is_refused(tmp_path: Path, write_target: WriteTarget, misfit: str) -> None:
    changes, message = MISFITS[misfit]
    write_target(tmp_path / "target")
    with pytest.raises(PlanError, match=message):
        resolve(str(write_drafter(tmp_path / "drafter", **changes)), {})


def test_two_drafters_are_refused(pair: Path, tmp_path: Path) -> None:
    other = write_drafter(tmp_path / "other")
    with pytest.raises(PlanError, match=r"is a drafter, and so is"):
        resolve(str(pair / "drafter"), {"drafter": str(other)})


def test_a_plain_folder_is_no_drafter(pair: Path) -> None:
    with pytest.raises(PlanError, match=r"not in the speculators format"):
        resolve(str(pair / "target"), {"drafter": str(pair / "target")})


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, write_target: WriteTarget) -> None:
    def refused(model: Path, message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            resolve(str(model), {})

    refused(tmp_path / "nowhere", r"there is no folder .*nowhere")
    refused(tmp_path, r"has no config\.json")
    target = write_target(tmp_path / "target")
    (target / "tokenizer.json").unlink()
    refused(target, r"half a checkpoint: it has neither tokenizer\.json nor tiktoken\.model")
    (target / "model.safetensors").unlink()
    refused(target, r"half a checkpoint: it has neither model\.safetensors nor")
    (target / "config.json").write_text("{")
    refused(target, r"config\.json cannot be read as JSON")
    (target / "config.json").write_text("[]")
    refused(target, r"must hold a JSON object")
    refused(write_target(tmp_path / "llama", architectures=["LlamaForCausalLM"]), r"LlamaForCausalLM")


def test_a_refusal_is_one_line(pair: Path) -> None:
    for options, _ in REFUSALS:
        with pytest.raises(DovetailError) as refusal:
            resolve(str(pair / "target"), options)
        assert re.fullmatch(r"[^\n]+", refusal.value.message)
