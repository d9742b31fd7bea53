"""A checkpoint is read once: the plan and the embedded engine have the same value for every fact."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import Target, read_target
from dovetail.engine.config import (
    DeepseekV3Config,
    Eagle3Config,
    LlamaConfig,
    TargetConfig,
    drafter_config,
    mtp_config,
    target_config,
)
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import KIMI_EAGLE3, KIMI_EAGLE3_MLA, KIMI_K2, QWEN3_8B, QWEN3_8B_EAGLE3, Config, write
from tests.checkpoints.test_target import JSON

CONFIGS = Path("../shared/data/configs")
PUBLISHED = sorted(str(file.relative_to(CONFIGS)) for file in CONFIGS.rglob("*.json")) if CONFIGS.is_dir() else []
#: Why the embedded engine does not run some of the published drafters.
REFUSALS = (
    "the embedded engine drafts with",
    "sliding_window is",
    "rope type 'mrope' is not supported",
    "a P-EAGLE drafter needs a mask_token_id",
    "does not fit the target: it is for targets of model_type",
)

LAYER: Config = QWEN3_8B_EAGLE3["transformer_layer_config"]
PEAGLE: Config = QWEN3_8B_EAGLE3 | {"speculators_model_type": "peagle"}
PLAIN_PEAGLE: Config = LAYER | {"architectures": ["PEagleDraftModel"], "draft_vocab_size": 32000}
PROPOSALS = {"proposal_methods": [{"proposal_type": "sample", "speculative_tokens": 5}]}
MADE: dict[str, tuple[Config, dict[str, Any]]] = {
    "speculators": (QWEN3_8B_EAGLE3, {"draft_tokens": 3, "aux_layers": (2, 18, 33), "norm_before_residual": True}),
    "plain": (KIMI_EAGLE3, {"draft_tokens": None, "aux_layers": None}),
    "plain with MLA": (KIMI_EAGLE3_MLA, {"aux_layers": (2, 30, 58)}),
    "a mask token": (PEAGLE | {"mask_token_id": 0}, {"mask_token": 0}),
    "pard_token": (PEAGLE | {"pard_token": 7}, {"mask_token": 7}),
    "ptd_token_id": (PLAIN_PEAGLE | {"ptd_token_id": 9}, {"mask_token": 9}),
    "a mask token in a block": (PLAIN_PEAGLE | {"eagle_config": {"mask_token_id": 4}}, {"mask_token": 4}),
    "flags in a block": (
        KIMI_EAGLE3 | {"eagle_config": {"norm_before_fc": True, "fc_norm": True, "norm_output": True}},
        {"norm_before_fc": True, "fc_norm": True, "norm_output": True},
    ),
    "a draft vocabulary in a block": (KIMI_EAGLE3 | {"eagle_config": {"draft_vocab_size": 9}}, {"draft_vocab": 9}),
    "proposals without a default": (QWEN3_8B_EAGLE3 | {"speculators_config": PROPOSALS}, {"draft_tokens": 5}),
    "a layer that leaves out defaults": (
        QWEN3_8B_EAGLE3 | {"transformer_layer_config": {"model_type": "qwen3", "num_key_value_heads": 8}},
        {"hidden": 4096, "vocab": 151936},
    ),
}


def made_for(drafter: Drafter, folder: Path) -> Target:
    """A target that `drafter` fits, if any does."""
    changes = {
        "hidden_size": drafter.target_hidden,
        "vocab_size": drafter.vocab,
        "num_hidden_layers": 96,
        "architectures": list(drafter.verifier_architectures) or ["Qwen3ForCausalLM"],
    }
    return read_target(write(folder, QWEN3_8B, **changes))


def check_drafter(drafter: Drafter, target: Target) -> None:
    config = drafter_config(drafter, target)
    assert isinstance(config, Eagle3Config)
    assert config.draft_vocab_size == drafter.draft_vocab
    assert config.target_hidden_size == drafter.target_hidden
    assert config.aux_layers == (drafter.aux_layers or (2, 48, 93))
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert [getattr(config, name) for name in flags] == [getattr(drafter, name) for name in flags]
    assert config.mask_token_id == (drafter.mask_token if drafter.method == "peagle" else None)
    layer = config.layer
    assert (layer.num_hidden_layers, layer.hidden_size) == (drafter.layers, drafter.hidden)
    assert layer.vocab_size == drafter.vocab
    assert layer.max_position_embeddings == (drafter.context or target.context)
    check_attention(layer, drafter)


def check_attention(config: TargetConfig, described: Target | Drafter) -> None:
    attention = described.attention
    assert attention is not None and config.rope == described.rope
    assert config.num_attention_heads == attention.heads
    if isinstance(config, DeepseekV3Config):
        assert (config.kv_lora_rank, config.q_lora_rank) == (attention.kv_lora_rank, attention.q_lora_rank)
        assert (config.qk_head_dim, config.qk_rope_head_dim) == (attention.head_dim, attention.rope_dim)
        assert config.v_head_dim == attention.value_dim
    elif isinstance(config, LlamaConfig):
        assert (config.num_key_value_heads, config.head_dim) == (attention.kv_heads, attention.head_dim)


@pytest.mark.parametrize("name", MADE)
def test_drafters(tmp_path: Path, name: str) -> None:
    raw, expected = MADE[name]
    drafter = read_drafter(write(tmp_path / "drafter", raw))
    assert {field: getattr(drafter, field) for field in expected} == expected
    check_drafter(drafter, made_for(drafter, tmp_path / "target"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(tmp_path: Path, name: str) -> None:
    (tmp_path / "drafter").mkdir()
    shutil.copy(CONFIGS / name, tmp_path / "drafter" / "config.json")
    try:
        drafter = read_drafter(str(tmp_path / "drafter"))
        if drafter.method == "draft_model":
            return
        target = made_for(drafter, tmp_path / "target")
    except CheckpointError as error:
        assert "DeepSeek's own inference demo" in error.message
        return
    try:
        check_drafter(drafter, target)
    except CheckpointError as refusal:
        assert any(reason in refusal.message for reason in REFUSALS), refusal.message
        assert str(tmp_path / "drafter") in refusal.message


@pytest.mark.parametrize(
    "raw",
    [
        KIMI_K2 | {"quantization_config": None, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1},
        QWEN3_8B,
        QWEN3_8B | {"head_dim": None},
        QWEN3_8B | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    ],
    ids=["kimi", "qwen", "qwen without head_dim", "linear rope"],
)
def test_targets(tmp_path: Path, raw: Config) -> None:
    target = read_target(write(tmp_path, raw))
    config = target_config(target)
    assert (config.num_hidden_layers, config.hidden_size) == (target.layers, target.hidden)
    assert (config.vocab_size, config.max_position_embeddings) == (target.vocab, target.context)
    check_attention(config, target)
    if isinstance(config, DeepseekV3Config):
        experts = target.experts
        assert experts is not None
        assert (config.n_routed_experts, config.num_experts_per_tok) == (experts.routed, experts.active)
        assert (config.moe_intermediate_size, config.n_shared_experts) == (experts.width, experts.shared)
        assert mtp_config(target, config).target == config
        assert mtp_drafter(target).layers == 1


FUZZED: dict[str, Config] = {
    "kimi": KIMI_K2 | {"quantization_config": None, "routed_scaling_factor": 2.5},
    "qwen": QWEN3_8B,
    "speculators": PEAGLE | {"mask_token_id": 1},
    "mla": KIMI_EAGLE3_MLA,
}


@given(name=st.sampled_from(sorted(FUZZED)), data=st.data())
def test_any_config_is_a_config_of_the_engine_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    extra = ["n_group", "topk_group", "rope_scaling", "layer_types", "attention_bias", "eagle_config", "eos_token_id"]
    field = data.draw(st.sampled_from([*FUZZED[name], *extra]))
    folder = tmp_path_factory.getbasetemp() / "fuzzed-engine"
    write(folder, FUZZED[name], **{field: data.draw(JSON)})
    try:
        if name in ("kimi", "qwen"):
            target_config(read_target(str(folder)))
        else:
            drafter = read_drafter(str(folder))
            drafter_config(drafter, made_for(drafter, folder.with_name("fuzzed-engine-target")))
    except CheckpointError as error:
        assert "\n" not in error.message
