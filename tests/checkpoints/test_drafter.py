"""Reading drafters: published configs, each drafting method, and configs that are no drafter's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import read_target
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    GEMMA4_ASSISTANT,
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K2,
    MUSE_ASSISTANT,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    Config,
    write,
    write_index,
    write_safetensors,
)
from tests.checkpoints.test_target import JSON


def read(folder: Path, config: Config, **changes: Any) -> Drafter:
    return read_drafter(write(folder, config, **changes))


#: Published drafters that declare aux layers or a block size -> aux layers (counted by entering), draft tokens.
AUX_LAYERS_AND_TOKENS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "specforge/deepseek-v3-671b-eagle3": ((2, 30, 58), None),
    "specforge/glm-5.2-dspark": ((2, 20, 39, 58, 77), 7),
    "specforge/gpt-oss-120B-eagle3": ((2, 18, 34), None),
    "specforge/gpt-oss-20B-eagle3": ((2, 12, 22), None),
    "specforge/inkling-dspark": ((6, 18, 36, 48, 60), 7),
    "specforge/kimi-k3-dspark": ((8, 24, 52, 68, 84), 7),
    "specforge/lfm2.5-1.2b-instruct-dflash": ((2, 5, 8, 11, 14), 15),
    "specforge/longcat-flash-dflash": ((2, 8, 14, 20, 26), 15),
    "specforge/qwen2.5-0.5b-dflash": ((2, 7, 12, 17, 22), 15),
    "specforge/qwen3-235B-A22B-eagle3": ((2, 47, 91), None),
    "specforge/qwen3-4b-dflash": ((2, 10, 18, 26, 34), 15),
    "specforge/qwen3-4b-dspark": ((2, 10, 18, 26, 34), 7),
    "specforge/qwen3-8b-dflash": ((2, 10, 18, 26, 34), 15),
    "specforge/qwen3-8b-domino": ((2, 10, 18, 26, 34), 15),
    "specforge/qwen3-8b-dspark": ((2, 10, 18, 26, 34), 7),
    "specforge/qwen3.5-35b-a3b-dflash": ((2, 11, 20, 29, 38), 15),
    "specforge/qwen3.5-4b-dflash": ((2, 9, 16, 23, 30), 15),
    "specforge/qwen3.5-4b-domino": ((4, 12, 20, 28, 32), 15),
    "specforge/qwen3.6-27b-dflash": ((2, 17, 32, 47, 62), 15),
    "specforge/qwen3.6-27b-domino-full-attention": ((2, 17, 32, 47, 62), 15),
    "specforge/qwen3.6-27b-dspark": ((3, 18, 33, 48, 63), 16),
    "torchspec/kimi_k25_eagle3_mla": ((2, 30, 58), None),
}
FILES = sorted((Path("../shared/data/configs")).glob("*/*.json"))
PUBLISHED = [f"{file.parent.name}/{file.stem}" for file in FILES if file.parent.name in ("specforge", "torchspec")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(shared_data: Path, tmp_path: Path, name: str) -> None:
    file = shared_data / "configs" / f"{name}.json"
    shutil.copy(file, tmp_path / "config.json")
    raw, drafter = json.loads(file.read_text()), read_drafter(str(tmp_path))
    assert drafter.attention is not None
    # "ealge3" is how one of the files is spelled.
    assert drafter.method in name.replace("ealge3", "eagle3")
    assert (drafter.attention.kind == "mla") == ("kv_lora_rank" in raw)
    assert (drafter.layers, drafter.hidden, drafter.vocab) == tuple(
        raw[field] for field in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    assert drafter.draft_vocab == raw.get("draft_vocab_size", raw["vocab_size"])
    assert (drafter.target_layers, drafter.context) == (
        raw.get("num_target_layers"),
        raw.get("max_position_embeddings"),
    )
    assert (drafter.aux_layers, drafter.draft_tokens) == AUX_LAYERS_AND_TOKENS.get(name, (None, None))
    assert (drafter.config_format, drafter.target_hidden) == ("plain", drafter.hidden)
    assert drafter.weights is not None and drafter.weights.bytes > 0
    with pytest.raises(CheckpointError, match=rf"is a drafter \({drafter.method}\), not a target"):
        read_target(str(tmp_path))


def test_published_details(shared_data: Path, tmp_path: Path) -> None:
    def published(name: str) -> Drafter:
        shutil.copy(shared_data / "configs" / f"{name}.json", tmp_path / "config.json")
        return read_drafter(str(tmp_path))

    example = published("speculators/example_eagle3_config")
    assert (example.method, example.config_format, example.draft_tokens) == ("eagle3", "speculators", 3)
    assert (example.verifier, example.verifier_architectures) == ("Qwen/Qwen3-8B", ("Qwen3ForCausalLM",))
    assert (example.aux_layers, example.draft_vocab, example.norm_before_residual) == ((2, 18, 33), 32000, True)
    # Its layer declares only a model_type; the other values are the defaults of transformers.
    assert (example.hidden, example.vocab) == (4096, 32000)

    normed = published("specforge/qwen3-30B-A3B-eagle3.1")
    assert (normed.fc_norm, normed.norm_output) == (True, True)
    assert published("specforge/gemma3-1b-eagle3").target_type == "gemma3_text"
    visual = published("specforge/qwen2-5-vl-7b-eagle3")
    assert visual.target_type == "qwen2_5_vl"
    assert visual.rope is not None and visual.rope.mrope
    block = published("specforge/qwen3-8b-dspark")
    assert (block.block_size, block.mask_token, block.most_tokens) == (7, 151669, 7)
    assert block.aux_layers == (2, 10, 18, 26, 34)  # target_layer_ids counts the layers that are left
    windowed = published("specforge/qwen3.6-27b-dflash").attention
    assert windowed is not None and (windowed.windowed_layers, windowed.window) == (4, 2048)
    latent = published("torchspec/kimi_k25_eagle3_mla").attention
    assert latent is not None and (latent.kv_lora_rank, latent.rope_dim) == (512, 64)
    # A complete model can be a draft model.
    assert published("kimi_k25_config").method == "draft_model"
    with pytest.raises(CheckpointError, match=r"DeepSeek's own inference demo"):
        published("deepseek/inference_config_v3.1")


def speculators(kind: str, **more: Any) -> Config:
    return QWEN3_8B_EAGLE3 | {"speculators_model_type": kind, "block_size": 8, "mask_token_id": 5, **more}


METHODS: dict[str, tuple[Config, str, int | None]] = {
    "speculators eagle3": (QWEN3_8B_EAGLE3, "eagle3", 3),
    "speculators peagle": (speculators("peagle"), "peagle", 3),
    "speculators dflash": (speculators("dflash"), "dflash", 3),
    "speculators dflash2": (speculators("dflash2"), "dflash", 3),
    "speculators dspark": (speculators("dspark"), "dspark", 3),
    "the block size": (speculators("dflash", speculators_config={}), "dflash", 7),
    "the block size with the anchor": (
        speculators("dspark", speculators_config={}, sample_from_anchor=True),
        "dspark",
        8,
    ),
    "plain llama": (KIMI_EAGLE3, "eagle3", None),
    "plain mla": (KIMI_EAGLE3_MLA, "eagle3", None),
    "a draft vocabulary alone": (
        QWEN3_8B | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "draft_vocab_size": 32000},
        "eagle3",
        None,
    ),
    "eagle": (QWEN3_8B | {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1}, "eagle", None),
    "dflash": (QWEN3_8B_DFLASH, "dflash", 15),
    "dspark": (QWEN3_8B_DFLASH | {"architectures": ["Qwen3DSparkModel"], "block_size": 7}, "dspark", 7),
    "domino": (QWEN3_8B_DFLASH | {"architectures": ["DominoDraftModel"]}, "domino", 15),
    "mtp": (KIMI_K2 | {"architectures": ["DeepSeekMTPModel"], "num_hidden_layers": 1}, "mtp", None),
    "nextn": (KIMI_K2 | {"architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": 1}, "mtp", None),
    "medusa": (QWEN3_8B | {"architectures": ["MedusaModel"]}, "medusa", None),
    "a complete model": (QWEN3_8B | {"num_hidden_layers": 2}, "draft_model", None),
    "a vision-language model called Eagle": (
        QWEN3_8B | {"architectures": ["Eagle2_5_VLForConditionalGeneration"]},
        "draft_model",
        None,
    ),
}


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_is_recognised(tmp_path: Path, kind: str) -> None:
    config, method, tokens = METHODS[kind]
    drafter = read(tmp_path, config)
    assert (drafter.method, drafter.draft_tokens) == (method, tokens)


def test_one_layer_with_a_joining_projection_is_eagle(tmp_path: Path) -> None:
    single = QWEN3_8B | {"num_hidden_layers": 1}
    assert read(tmp_path, single).method == "draft_model"
    write_safetensors(tmp_path / "model.safetensors", "fc.weight", "layers.0.self_attn.q_proj.weight")
    assert read(tmp_path, single).method == "eagle"


def test_the_vocabulary_map_is_looked_up_among_the_tensors(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is None
    write_safetensors(tmp_path / "model.safetensors", "fc.weight")
    assert read(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is False
    write_safetensors(tmp_path / "model.safetensors", "fc.weight", "d2t")
    assert read(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is True


def test_the_default_proposal_determines_the_draft_tokens(tmp_path: Path) -> None:
    methods = [
        {"proposal_type": "sample", "speculative_tokens": 5},
        {"proposal_type": "greedy", "speculative_tokens": 4},
    ]

    def tokens(**block: Any) -> int | None:
        return read(tmp_path, QWEN3_8B_EAGLE3, speculators_config=block).draft_tokens

    assert tokens(default_proposal_method="greedy", proposal_methods=methods) == 4
    assert tokens(proposal_methods=methods) == 5
    assert tokens() is None


def test_the_size_of_an_eagle3_head(tmp_path: Path) -> None:
    weights = read(tmp_path, QWEN3_8B_EAGLE3).weights
    hidden, heads, kv = 4096, 4096, 1024
    expected = 2 * hidden * (heads + 2 * kv) + heads * hidden  # the layer reads two vectors
    expected += 3 * hidden * 12288 + 3 * hidden * hidden  # feed-forward, and three features joined into one
    expected += (151936 + 32000) * hidden
    assert weights is not None
    assert (weights.parameters, weights.bytes) == (expected, 2 * expected)


def test_an_assistant_of_gemma_drafts_by_mtp_from_hidden_states_of_its_target(tmp_path: Path) -> None:
    drafter = read(tmp_path, GEMMA4_ASSISTANT)
    assert (drafter.method, drafter.config_format, drafter.layers) == ("mtp", "plain", 4)
    assert (drafter.hidden, drafter.target_hidden, drafter.vocab, drafter.context) == (1024, 5376, 262144, 131072)


def test_the_assistant_of_muse_drafts_a_block_in_its_targets_vocabulary(tmp_path: Path) -> None:
    drafter = read(tmp_path, MUSE_ASSISTANT)
    assert (drafter.method, drafter.most_tokens, drafter.vocab) == ("dflash", 15, 202048)
    assert drafter.aux_layers == (2, 14, 26, 38, 50)
    assert drafter.weights is not None
    assert drafter.weights.bytes == pytest.approx(5.11e9, rel=1e-3)  # as vLLM's recipe of the model has it


def test_mtp_layers_inside_a_target_are_a_drafter(tmp_path: Path) -> None:
    write(tmp_path, DEEPSEEK_V32)
    inside = mtp_drafter(read_target(str(tmp_path)))
    assert (inside.method, inside.config_format, inside.layers, inside.draft_tokens) == (
        "mtp",
        "inside the target",
        1,
        1,
    )
    # A layer with its experts at eight bits, and copies of embedding and head: 11.5 and 2 × 0.93 billion parameters.
    assert inside.weights is not None and inside.weights.bytes == pytest.approx(15.4e9, rel=0.01)
    write_index(tmp_path, {"model.safetensors": ["model.layers.60.mlp.gate.weight"]}, total_size=1)
    with pytest.raises(CheckpointError, match=r"declares 1 MTP layers, but its weights hold none"):
        mtp_drafter(read_target(str(tmp_path)))
    write(tmp_path / "kimi", KIMI_K2)
    with pytest.raises(CheckpointError, match=r"has no MTP layers inside .* a checkpoint of its own"):
        mtp_drafter(read_target(str(tmp_path / "kimi")))


NO_DRAFTERS: dict[str, tuple[Config, str]] = {
    "an unknown method": (speculators("telepathy"), r"speculators_model_type is 'telepathy', not one of eagle"),
    "no layer": (QWEN3_8B_EAGLE3 | {"transformer_layer_config": None}, r"transformer_layer_config is missing"),
    "layers as text": (
        QWEN3_8B_EAGLE3 | {"eagle_aux_hidden_state_layer_ids": ["a"]},
        r"must be a list of whole numbers",
    ),
    "negative layers": (QWEN3_8B_EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [-1]}, r"layer numbers from 0, found"),
    "a verifier as text": (QWEN3_8B_EAGLE3 | {"speculators_config": {"verifier": "x"}}, r"verifier must be an object"),
    "nothing": ({"model_type": "llama"}, r"architectures is missing"),
}


@pytest.mark.parametrize("kind", NO_DRAFTERS)
def test_a_config_that_is_no_drafter_is_refused(tmp_path: Path, kind: str) -> None:
    config, message = NO_DRAFTERS[kind]
    with pytest.raises(CheckpointError, match=message) as refusal:
        read(tmp_path, config)
    assert "\n" not in refusal.value.message


CONFIGS = {"speculators": QWEN3_8B_EAGLE3, "mla": KIMI_EAGLE3_MLA, "block": QWEN3_8B_DFLASH}


@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_config_is_a_drafter_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    config = CONFIGS[name]
    field = data.draw(st.sampled_from([*config, "eagle_config", "num_target_layers", "sample_from_anchor"]))
    folder = tmp_path_factory.getbasetemp() / "fuzzed-drafter"
    write(folder, config, **{field: data.draw(JSON)})
    try:
        drafter = read_drafter(str(folder))
    except CheckpointError as error:
        assert "\n" not in error.message
    else:
        msgspec.json.encode(drafter)
