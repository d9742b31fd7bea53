"""What a drafter is, read from small files: every published config for what it is, and each method made here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import read_target
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K2,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    Config,
    write,
    write_index,
    write_safetensors,
)
from tests.checkpoints.test_target import JSON


def looked(folder: Path, config: Config, **changes: Any) -> Drafter:
    return read_drafter(write(folder, config, **changes))


class Row(NamedTuple):
    """A published config, read by eye."""

    method: str
    attention: str
    layers: int
    hidden: int
    vocab: int
    draft_vocab: int
    aux_layers: tuple[int, ...] | None
    target_layers: int | None
    draft_tokens: int | None
    context: int | None


PUBLISHED = {
    "specforge/deepseek-v2-lite-eagle3": Row("eagle3", "mha", 1, 2048, 102400, 32000, None, None, None, 163840),
    "specforge/deepseek-v3-671b-eagle3": Row("eagle3", "gqa", 1, 7168, 129280, 32000, (2, 30, 58), None, None, 163840),
    "specforge/gemma3-1b-eagle3": Row("eagle3", "mqa", 1, 1152, 262144, 32000, None, None, None, 32768),
    "specforge/glm-5.2-dspark": Row("dspark", "gqa", 5, 6144, 154880, 154880, (2, 20, 39, 58, 77), 78, 7, 1048576),
    "specforge/gpt-oss-120B-eagle3": Row("eagle3", "gqa", 1, 2880, 201088, 32000, (2, 18, 34), None, None, 4096),
    "specforge/gpt-oss-20B-eagle3": Row("eagle3", "gqa", 1, 2880, 201088, 32000, (2, 12, 22), None, None, 4096),
    "specforge/inkling-dspark": Row("dspark", "gqa", 5, 6144, 201024, 201024, (6, 18, 36, 48, 60), 66, 7, 1048576),
    "specforge/kimi-k3-dspark": Row("dspark", "gqa", 5, 7168, 163840, 163840, (8, 24, 52, 68, 84), 93, 7, 65536),
    "specforge/lfm2.5-1.2b-instruct-dflash": Row(
        "dflash", "gqa", 8, 2048, 65536, 65536, (2, 5, 8, 11, 14), 16, 15, 128000
    ),
    "specforge/ling-flash-2.0-eagle3": Row("eagle3", "gqa", 1, 4096, 157184, 32000, None, None, None, 32768),
    "specforge/llama3-70B-ealge3": Row("eagle3", "gqa", 1, 8192, 128256, 32000, None, None, None, 4096),
    "specforge/llama3-8B-eagle3": Row("eagle3", "gqa", 1, 4096, 128256, 32000, None, None, None, 2048),
    "specforge/llama4-scout-17B-16E-eagle3": Row("eagle3", "gqa", 1, 5120, 202048, 32000, None, None, None, 2048),
    "specforge/longcat-flash-dflash": Row("dflash", "gqa", 5, 6144, 131072, 131072, (2, 8, 14, 20, 26), 28, 15, 40960),
    "specforge/longcat-flash-eagle3": Row("eagle3", "gqa", 1, 6144, 131072, 131072, None, None, None, 131072),
    "specforge/phi4-eagle3": Row("eagle3", "gqa", 1, 5120, 100352, 32000, None, None, None, 16384),
    "specforge/qwen2-5-vl-7b-eagle3": Row("eagle3", "gqa", 1, 3584, 152064, 32000, None, None, None, 8192),
    "specforge/qwen2.5-0.5b-dflash": Row("dflash", "gqa", 5, 896, 151936, 151936, (2, 7, 12, 17, 22), 24, 15, 32768),
    "specforge/qwen2.5-0.5b-eagle3": Row("eagle3", "gqa", 1, 896, 151936, 16000, None, None, None, 32768),
    "specforge/qwen2.5-7b-eagle3": Row("eagle3", "gqa", 1, 3584, 152064, 16000, None, None, None, 32768),
    "specforge/qwen2.5-vl-32b-eagle3": Row("eagle3", "gqa", 1, 5120, 152064, 32000, None, None, None, 8192),
    "specforge/qwen3-235B-A22B-eagle3": Row("eagle3", "gqa", 1, 4096, 151936, 32000, (2, 47, 91), None, None, 40960),
    "specforge/qwen3-30B-A3B-eagle3.1": Row("eagle3", "gqa", 1, 2048, 151936, 32000, None, None, None, 2048),
    "specforge/qwen3-30B-A3B-eagle3": Row("eagle3", "gqa", 1, 2048, 151936, 32000, None, None, None, 2048),
    "specforge/qwen3-32b-eagle3": Row("eagle3", "gqa", 1, 5120, 151936, 32000, None, None, None, 40960),
    "specforge/qwen3-4b-dflash": Row("dflash", "gqa", 5, 2560, 151936, 151936, (2, 10, 18, 26, 34), 36, 15, 40960),
    "specforge/qwen3-4b-dspark": Row("dspark", "gqa", 5, 2560, 151936, 151936, (2, 10, 18, 26, 34), 36, 7, 40960),
    "specforge/qwen3-4b-eagle3": Row("eagle3", "gqa", 1, 2560, 151936, 32000, None, None, None, 40960),
    "specforge/qwen3-8b-dflash": Row("dflash", "gqa", 5, 4096, 151936, 151936, (2, 10, 18, 26, 34), 36, 15, 40960),
    "specforge/qwen3-8b-domino": Row("domino", "gqa", 5, 4096, 151936, 151936, (2, 10, 18, 26, 34), 36, 15, 40960),
    "specforge/qwen3-8b-dspark": Row("dspark", "gqa", 5, 4096, 151936, 151936, (2, 10, 18, 26, 34), 36, 7, 40960),
    "specforge/qwen3-8b-eagle3": Row("eagle3", "gqa", 1, 4096, 151936, 32000, None, None, None, 40960),
    "specforge/qwen3-8b-peagle": Row("peagle", "gqa", 4, 4096, 151936, 32000, None, None, None, 40960),
    "specforge/qwen3-coder-30B-A3B-instruct-eagle3": Row(
        "eagle3", "gqa", 1, 2048, 151936, 32000, None, None, None, 2048
    ),
    "specforge/qwen3-coder-480B-A35B-instruct-eagle3": Row(
        "eagle3", "gqa", 1, 6144, 151936, 32000, None, None, None, 262144
    ),
    "specforge/qwen3-coder-next-eagle3": Row("eagle3", "gqa", 1, 2048, 151936, 32000, None, None, None, 4096),
    "specforge/qwen3-next-80b-a3b-eagle3": Row("eagle3", "gqa", 1, 2048, 151936, 32000, None, None, None, 262144),
    "specforge/qwen3.5-35b-a3b-dflash": Row(
        "dflash", "gqa", 8, 2048, 248320, 248320, (2, 11, 20, 29, 38), 40, 15, 262144
    ),
    "specforge/qwen3.5-35b-a3b-eagle3": Row("eagle3", "gqa", 1, 2048, 248320, 32000, None, None, None, 262144),
    "specforge/qwen3.5-4b-dflash": Row("dflash", "gqa", 5, 2560, 248320, 248320, (2, 9, 16, 23, 30), 32, 15, 262144),
    "specforge/qwen3.5-4b-domino": Row("domino", "gqa", 5, 2560, 248320, 248320, (4, 12, 20, 28, 32), 32, 15, 262144),
    "specforge/qwen3.6-27b-dflash": Row("dflash", "gqa", 5, 5120, 248320, 248320, (2, 17, 32, 47, 62), 64, 15, 262144),
    "specforge/qwen3.6-27b-domino-full-attention": Row(
        "domino", "gqa", 5, 5120, 248320, 248320, (2, 17, 32, 47, 62), 64, 15, 262144
    ),
    "specforge/qwen3.6-27b-dspark": Row("dspark", "gqa", 5, 5120, 248320, 248320, (3, 18, 33, 48, 63), 64, 16, 262144),
    "specforge/qwq-32B-eagle3": Row("eagle3", "gqa", 1, 5120, 152064, 32000, None, None, None, 40960),
    "torchspec/kimi_k25_eagle3": Row("eagle3", "mha", 1, 7168, 163840, 163840, None, None, None, 262144),
    "torchspec/kimi_k25_eagle3_mla": Row("eagle3", "mla", 1, 7168, 163840, 163840, (2, 30, 58), None, None, None),
    "torchspec/minimax_m25_eagle3": Row("eagle3", "mha", 1, 3072, 200064, 200064, None, None, None, 196608),
    "torchspec/qwen3_8b_eagle3": Row("eagle3", "gqa", 1, 4096, 151936, 32000, None, None, None, 40960),
    "torchspec/qwen3_8b_eagle3_mla": Row("eagle3", "mla", 1, 4096, 151936, 151936, None, None, None, 262144),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_what_they_are(shared_data: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(shared_data / "configs" / f"{name}.json", tmp_path / "config.json")
    found = read_drafter(str(tmp_path))
    assert found.attention is not None
    assert (
        Row(
            found.method,
            found.attention.kind,
            found.layers or 0,
            found.hidden or 0,
            found.vocab or 0,
            found.draft_vocab or 0,
            found.aux_layers,
            found.target_layers,
            found.draft_tokens,
            found.context,
        )
        == PUBLISHED[name]
    )
    assert (found.written_as, found.target_hidden) == ("plain", found.hidden)
    assert found.weights is not None and found.weights.bytes > 0
    with pytest.raises(CheckpointError, match=rf"is a drafter \({found.method}\), not a target"):
        read_target(str(tmp_path))


def test_no_published_config_is_left_out(shared_data: Path) -> None:
    folder = shared_data / "configs"
    names = {str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.json")}
    others = {
        "kimi_k25_config",
        "deepseek/inference_config_671B_v3.2",
        "deepseek/inference_config_v3.1",
        "speculators/example_eagle3_config",
    }
    assert names == {*PUBLISHED, *others}


def test_published_details(shared_data: Path, tmp_path: Path) -> None:
    def read(name: str) -> Drafter:
        shutil.copy(shared_data / "configs" / f"{name}.json", tmp_path / "config.json")
        return read_drafter(str(tmp_path))

    example = read("speculators/example_eagle3_config")
    assert (example.method, example.written_as, example.draft_tokens) == ("eagle3", "speculators", 3)
    assert (example.verifier, example.verifier_architectures) == ("Qwen/Qwen3-8B", ("Qwen3ForCausalLM",))
    assert (example.aux_layers, example.draft_vocab, example.norm_before_residual) == ((2, 18, 33), 32000, True)
    # Its layer's config is no more than a model_type: the format leaves out what transformers assumes.
    assert (example.hidden, example.vocab) == (4096, 32000)

    normed = read("specforge/qwen3-30B-A3B-eagle3.1")
    assert (normed.fc_norm, normed.norm_output) == (True, True)
    assert read("specforge/gemma3-1b-eagle3").target_type == "gemma3_text"
    visual = read("specforge/qwen2-5-vl-7b-eagle3")
    assert visual.target_type == "qwen2_5_vl"
    assert visual.rope is not None and visual.rope.mrope
    block = read("specforge/qwen3-8b-dspark")
    assert (block.block_size, block.mask_token, block.most_tokens) == (7, 151669, 7)
    assert block.aux_layers == (2, 10, 18, 26, 34)  # target_layer_ids counts the layers that are left
    windowed = read("specforge/qwen3.6-27b-dflash").attention
    assert windowed is not None and (windowed.windowed_layers, windowed.window) == (4, 2048)
    latent = read("torchspec/kimi_k25_eagle3_mla").attention
    assert latent is not None and (latent.kv_lora_rank, latent.rope_dim) == (512, 64)
    # A target stands alone, and so is a draft model; DeepSeek's own layout is named as what it is.
    assert read("kimi_k25_config").method == "draft_model"
    with pytest.raises(CheckpointError, match=r"DeepSeek's own inference demo"):
        read("deepseek/inference_config_v3.1")


def speculators(kind: str, **more: Any) -> Config:
    return QWEN3_8B_EAGLE3 | {"speculators_model_type": kind, "block_size": 8, "mask_token_id": 5, **more}


METHODS: dict[str, tuple[Config, str, int | None]] = {
    "speculators eagle3": (QWEN3_8B_EAGLE3, "eagle3", 3),
    "speculators peagle": (speculators("peagle"), "peagle", 3),
    "speculators dflash": (speculators("dflash"), "dflash", 3),
    "speculators dflash2": (speculators("dflash2"), "dflash", 3),
    "speculators dspark": (speculators("dspark"), "dspark", 3),
    "its block": (speculators("dflash", speculators_config={}), "dflash", 7),
    "its block and the anchor": (
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
    "a model of its own": (QWEN3_8B | {"num_hidden_layers": 2}, "draft_model", None),
    "a vision-language model called Eagle": (
        QWEN3_8B | {"architectures": ["Eagle2_5_VLForConditionalGeneration"]},
        "draft_model",
        None,
    ),
}


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_is_recognised(tmp_path: Path, kind: str) -> None:
    config, method, tokens = METHODS[kind]
    found = looked(tmp_path, config)
    assert (found.method, found.draft_tokens) == (method, tokens)


def test_one_layer_with_a_joining_projection_is_eagle(tmp_path: Path) -> None:
    single = QWEN3_8B | {"num_hidden_layers": 1}
    assert looked(tmp_path, single).method == "draft_model"
    write_safetensors(tmp_path / "model.safetensors", "fc.weight", "layers.0.self_attn.q_proj.weight")
    assert looked(tmp_path, single).method == "eagle"


def test_the_vocabulary_map_is_looked_for_among_the_weights(tmp_path: Path) -> None:
    assert looked(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is None
    write_safetensors(tmp_path / "model.safetensors", "fc.weight")
    assert looked(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is False
    write_safetensors(tmp_path / "model.safetensors", "fc.weight", "d2t")
    assert looked(tmp_path, QWEN3_8B_EAGLE3).has_vocab_map is True


def test_the_default_proposal_decides_how_many_tokens(tmp_path: Path) -> None:
    methods = [
        {"proposal_type": "sample", "speculative_tokens": 5},
        {"proposal_type": "greedy", "speculative_tokens": 4},
    ]

    def tokens(**block: Any) -> int | None:
        return looked(tmp_path, QWEN3_8B_EAGLE3, speculators_config=block).draft_tokens

    assert tokens(default_proposal_method="greedy", proposal_methods=methods) == 4
    assert tokens(proposal_methods=methods) == 5
    assert tokens() is None


def test_weights_of_an_eagle3_head_are_counted_as_it_is_built(tmp_path: Path) -> None:
    weights = looked(tmp_path, QWEN3_8B_EAGLE3).weights
    hidden, heads, kv = 4096, 4096, 1024
    expected = 2 * hidden * (heads + 2 * kv) + heads * hidden  # the layer reads two vectors
    expected += 3 * hidden * 12288 + 3 * hidden * hidden  # feed-forward, and three features joined into one
    expected += (151936 + 32000) * hidden
    assert weights is not None
    assert (weights.parameters, weights.bytes) == (expected, 2 * expected)


def test_mtp_layers_inside_a_target_are_a_drafter(tmp_path: Path) -> None:
    write(tmp_path, DEEPSEEK_V32)
    inside = mtp_drafter(read_target(str(tmp_path)))
    assert (inside.method, inside.written_as, inside.layers, inside.draft_tokens) == ("mtp", "inside the target", 1, 1)
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
def test_what_is_no_drafter_is_refused(tmp_path: Path, kind: str) -> None:
    config, message = NO_DRAFTERS[kind]
    with pytest.raises(CheckpointError, match=message) as refusal:
        looked(tmp_path, config)
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
        found = read_drafter(str(folder))
    except CheckpointError as error:
        assert "\n" not in error.message
    else:
        msgspec.json.encode(found)
