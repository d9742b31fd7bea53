"""Reading targets: every kind of shape, and one clear error for a checkpoint that is no target."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoints.target import Target, read_target
from dovetail.errors import CheckpointError
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_K2,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    Config,
    write,
    write_index,
    write_safetensors,
)


def read(folder: Path, config: Config, **changes: Any) -> Target:
    return read_target(write(folder, config, **changes))


def test_a_multimodal_model_contains_a_language_model(tmp_path: Path) -> None:
    kimi = read(tmp_path, KIMI_K25)
    assert (kimi.architecture, kimi.family) == ("KimiK25ForConditionalGeneration", "kimi_k25")
    assert (kimi.text_architecture, kimi.text_family) == ("DeepseekV3ForCausalLM", "kimi_k2")
    assert kimi.multimodal
    assert (kimi.layers, kimi.hidden, kimi.vocab, kimi.context) == (61, 7168, 163840, 262144)
    attention, experts = kimi.attention, kimi.experts
    assert (attention.word, attention.heads, attention.q_lora_rank) == ("mla", 64, 1536)
    assert (attention.kv_lora_rank, attention.rope_dim, attention.value_dim) == (512, 64, 128)
    assert experts is not None
    assert (experts.routed, experts.shared, experts.active, experts.layers) == (384, 1, 8, 60)
    assert kimi.quantization is not None
    assert (kimi.quantization.method, kimi.quantization.kind) == ("compressed-tensors", "int4")
    assert kimi.context_note == "max_position_embeddings 262144, yarn ×64 of 4096 already in it"


def test_the_text_model_alone_is_not_multimodal(tmp_path: Path) -> None:
    text = read(tmp_path, KIMI_K2)
    assert (text.architecture, text.family, text.multimodal) == ("DeepseekV3ForCausalLM", "kimi_k2", False)


# Published figures: parameters, active parameters, and bytes of the repository on the hub.
PUBLISHED = {
    "Kimi-K2.5": (KIMI_K25, 1030e9, 32e9, 595e9),
    "DeepSeek-V3.2": (DEEPSEEK_V32, 671e9, 37e9, 689e9),
    "Qwen3-8B": (QWEN3_8B, 8.2e9, 7.6e9, 16.4e9),
    "Qwen3-235B-A22B": (QWEN3_235B, 235e9, 22e9, 470e9),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_and_bytes_are_as_published(tmp_path: Path, name: str) -> None:
    config, parameters, active, size = PUBLISHED[name]
    weights = read(tmp_path, config).weights
    assert weights.source == "shape"
    assert weights.parameters == pytest.approx(parameters, rel=0.01)
    assert weights.active == pytest.approx(active, rel=0.02)
    assert weights.bytes == pytest.approx(size, rel=0.01)
    assert weights.parts.total == pytest.approx(weights.bytes, rel=1e-6)


HYBRID = QWEN3_8B | {"model_type": "qwen3_next", "num_hidden_layers": 48}
ATTENTION: dict[str, tuple[Config, str]] = {
    "gqa": (QWEN3_8B, "gqa"),
    "mha": (QWEN3_8B | {"num_key_value_heads": 32}, "mha"),
    "mha by default": (QWEN3_8B | {"num_key_value_heads": None}, "mha"),
    "mqa": (QWEN3_8B | {"num_key_value_heads": 1}, "mqa"),
    "mla": (KIMI_K2, "mla"),
    "sparse": (DEEPSEEK_V32, "mla, sparse"),
    "compressed": (QWEN3_8B | {"compress_ratios": [1, 4, 128]}, "compressed"),
    "interval": (HYBRID | {"full_attention_interval": 4}, "hybrid (36 linear layers, gqa)"),
    "layer types": (
        HYBRID | {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12},
        "hybrid (36 linear layers, gqa)",
    ),
    "convolutions": (
        HYBRID | {"layer_types": ["conv"] * 20 + ["full_attention"] * 28},
        "hybrid (20 linear layers, gqa)",
    ),
    "mamba": (HYBRID | {"hybrid_override_pattern": "M-M*" * 12}, "hybrid (36 linear layers, gqa)"),
    "kda": (
        KIMI_K2 | {"linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}},
        "hybrid (3 linear layers, mla)",
    ),
    "windows": (
        QWEN3_8B | {"sliding_window": 512, "layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 6},
        "gqa, 30 layers with a window of 512",
    ),
    "pattern": (
        QWEN3_8B | {"sliding_window": 1024, "sliding_window_pattern": 6},
        "gqa, 30 layers with a window of 1024",
    ),
    "a window that is not used": (QWEN3_8B | {"sliding_window": 4096, "use_sliding_window": False}, "gqa"),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_every_kind_of_attention_is_recognised(tmp_path: Path, kind: str) -> None:
    config, word = ATTENTION[kind]
    attention = read(tmp_path, config, head_dim=128).attention
    assert attention.word == word


EXPERTS: dict[str, tuple[Config, tuple[int, int, int, int]]] = {
    "deepseek": (KIMI_K2, (384, 1, 8, 60)),
    "qwen": (QWEN3_235B, (128, 0, 8, 94)),
    "qwen, every other layer": (QWEN3_235B | {"decoder_sparse_step": 2}, (128, 0, 8, 47)),
    "qwen, some dense": (QWEN3_235B | {"mlp_only_layers": [0, 1]}, (128, 0, 8, 92)),
    "a shared expert by its width": (QWEN3_235B | {"shared_expert_intermediate_size": 512}, (128, 1, 8, 94)),
    "mixtral": (
        QWEN3_8B | {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 128},
        (8, 0, 2, 36),
    ),
    "layers in a list": (QWEN3_235B | {"moe_layer_freq": [0] + [1] * 93}, (128, 0, 8, 93)),
    "llama4": (QWEN3_235B | {"decoder_sparse_step": None, "interleave_moe_layer_step": 2}, (128, 0, 8, 47)),
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_every_kind_of_experts_is_recognised(tmp_path: Path, kind: str) -> None:
    config, expected = EXPERTS[kind]
    experts = read(tmp_path, config).experts
    assert experts is not None
    assert (experts.routed, experts.shared, experts.active, experts.layers) == expected


MODELOPT = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
QUANTIZED: dict[str, tuple[dict[str, Any], tuple[str, str, int, str | None]]] = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "fp8", 8, None)),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, ("mxfp4", "mxfp4", 4, None)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("awq", "int4", 4, None)),
    "gptq": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("gptq", "int8", 8, None)),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bitsandbytes", "int4", 4, None)),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}, "ignore": ["lm_head"]},
        ("modelopt", "nvfp4", 4, "fp8"),
    ),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("modelopt", "fp8", 8, None)),
    "compressed nvfp4": (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
        },
        ("compressed-tensors", "nvfp4", 4, None),
    ),
    "compressed fp8": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
        },
        ("compressed-tensors", "fp8", 8, None),
    ),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_every_kind_of_quantization_is_recognised(tmp_path: Path, kind: str) -> None:
    block, expected = QUANTIZED[kind]
    quantized = read(tmp_path, QWEN3_8B, quantization_config=block).quantization
    assert quantized is not None
    assert (quantized.method, quantized.kind, quantized.bits, quantized.kv_cache) == expected


def test_modelopt_declares_quantization_in_its_own_file(tmp_path: Path) -> None:
    plain = read(tmp_path, KIMI_K2, quantization_config=None)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": MODELOPT}))
    quantized = read_target(str(tmp_path))
    assert quantized.quantization is not None
    assert (quantized.quantization.kind, quantized.quantization.kv_cache) == ("nvfp4", "fp8")
    # Four bits and an eight-bit scale for every sixteen weights.
    assert quantized.weights.parts.experts == pytest.approx(plain.weights.parts.experts * 4.5 / 16)
    assert quantized.weights.parts.head == plain.weights.parts.head


def test_modules_that_are_not_quantized_keep_their_bits(tmp_path: Path) -> None:
    attention = read(tmp_path / "a", KIMI_K2).weights.parts.divided
    everything = dict(KIMI_K2["quantization_config"], ignore=[])
    assert read(tmp_path / "b", KIMI_K2, quantization_config=everything).weights.parts.divided < attention / 3
    wildcards = dict(KIMI_K2["quantization_config"], ignore=["model.layers.*.self_attn*", "*shared*", "*layers.0.mlp*"])
    assert read(tmp_path / "c", KIMI_K2, quantization_config=wildcards).weights.parts.divided == attention


CONTEXTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no scaling": ({"rope_scaling": None}, 4096, "default"),
    "yarn counts after scaling": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
        4096,
        "yarn",
    ),
    "linear counts before": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384, "linear"),
    "dynamic counts before": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 8192, "dynamic"),
    "llama3 counts after": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096, "llama3"),
    "transformers 5": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, 4096, "yarn"),
    "by kind of layer": (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0},
                "sliding_attention": {"rope_type": "default"},
            }
        },
        8192,
        "linear",
    ),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_the_longest_context(tmp_path: Path, case: str) -> None:
    changes, context, kind = CONTEXTS[case]
    target = read(tmp_path, QWEN3_8B, max_position_embeddings=4096, **changes)
    assert (target.context, target.rope.type) == (context, kind)
    assert str(context) in target.context_note


def test_the_size_of_weights_from_the_index(tmp_path: Path) -> None:
    write(tmp_path, QWEN3_8B)
    write_index(tmp_path, {"model-1.safetensors": ["model.embed_tokens.weight"]}, total_size=12345678)
    weights = read_target(str(tmp_path)).weights
    assert (weights.bytes, weights.source) == (12345678, "index")
    assert weights.parts.total == pytest.approx(weights.bytes, abs=10)


def test_the_size_of_weights_from_the_files(tmp_path: Path) -> None:
    write(tmp_path, QWEN3_8B)
    write_safetensors(tmp_path / "model.safetensors", "lm_head.weight")
    target = read_target(str(tmp_path)).weights
    assert (target.bytes, target.source) == ((tmp_path / "model.safetensors").stat().st_size, "files")
    write_index(tmp_path, {"model.safetensors": ["lm_head.weight"]})
    assert read_target(str(tmp_path)).weights.source == "files"
    (tmp_path / "model.safetensors").unlink()
    assert read_target(str(tmp_path)).weights.source == "shape"


def test_mtp_weights_are_looked_up_among_the_tensors(tmp_path: Path) -> None:
    write(tmp_path, DEEPSEEK_V32)
    assert (read_target(str(tmp_path)).mtp_layers, read_target(str(tmp_path)).mtp_weights) == (1, None)
    write_index(tmp_path, {"model-1.safetensors": ["model.layers.60.mlp.gate.weight"]}, total_size=1)
    assert read_target(str(tmp_path)).mtp_weights is False
    write_index(tmp_path, {"model-1.safetensors": ["model.layers.61.eh_proj.weight"]}, total_size=1)
    assert read_target(str(tmp_path)).mtp_weights is True
    qwen = read(tmp_path / "qwen", HYBRID, mtp_num_hidden_layers=1)
    assert qwen.mtp_layers == 1
    assert read(tmp_path / "inkling", QWEN3_8B, mtp_config={"num_nextn_predict_layers": 8}).mtp_layers == 8
    assert read(tmp_path / "mimo", QWEN3_8B, architectures=["MiMoV2ForCausalLM"]).mtp_layers == 1


def test_the_tokenizer_is_recognised_by_its_file(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN3_8B).tokenizer is None
    (tmp_path / "tiktoken.model").touch()
    assert read_target(str(tmp_path)).tokenizer == "tiktoken"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_target(str(tmp_path)).tokenizer == "tokenizers"


NO_TARGETS: dict[str, tuple[Config, str]] = {
    "a drafter": (QWEN3_8B_EAGLE3, r"is a drafter \(eagle3\), not a target: give it as --drafter"),
    "no architectures": (
        QWEN3_8B | {"architectures": []},
        r"architectures is missing, so this is an incomplete",
    ),
    "an embedding model": (QWEN3_8B | {"architectures": ["BertModel"]}, r"is a BertModel .* does not generate text"),
    "a classifier": (QWEN3_8B | {"architectures": ["Qwen3ForSequenceClassification"]}, r"does not generate text"),
    "an encoder and a decoder": (QWEN3_8B | {"is_encoder_decoder": True}, r"only decoder models are supported"),
    "no layers": (QWEN3_8B | {"num_hidden_layers": None}, r"num_hidden_layers is missing"),
    "no heads": (QWEN3_8B | {"num_attention_heads": 0}, r"num_attention_heads is 0"),
    "no vocabulary": (QWEN3_8B | {"vocab_size": None}, r"vocab_size is missing"),
    "no context": (QWEN3_8B | {"max_position_embeddings": None}, r"max_position_embeddings is missing"),
    "too many layers": (QWEN3_8B | {"num_hidden_layers": 10**6}, r"num_hidden_layers is 1000000, at most 1024"),
    "a text": (QWEN3_8B | {"hidden_size": "4096"}, r"hidden_size must be a whole number, found '4096'"),
    "a negative": (QWEN3_8B | {"hidden_size": -1}, r"hidden_size must be a whole number, found -1"),
    "rope as a list": (QWEN3_8B | {"rope_scaling": [1]}, r"rope_scaling must be an object, found \[1\]"),
    "empty quantization": (
        QWEN3_8B | {"quantization_config": {"quant_method": "compressed-tensors"}},
        r"without config_groups",
    ),
}


@pytest.mark.parametrize("kind", NO_TARGETS)
def test_a_checkpoint_that_is_no_target_is_refused(tmp_path: Path, kind: str) -> None:
    config, message = NO_TARGETS[kind]
    with pytest.raises(CheckpointError, match=message) as refusal:
        read(tmp_path, config)
    assert "\n" not in refusal.value.message


RE = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}
#: Changes to Qwen3-235B that contradict each other or exceed a limit -> the error.
CONTRADICTIONS: dict[str, tuple[Config, str]] = {
    "kinds of too many layers": ({"layer_types": ["linear_attention"] * 1000}, "layer_types has 1000 entries, num_hid"),
    "kinds of too few layers": ({"layer_types": ["full_attention"] * 40}, "has 40 entries, num_hidden_layers is 94"),
    "a pattern": ({"hybrid_override_pattern": "M*" * 50}, "hybrid_override_pattern has 100 entries"),
    "linear layers": ({"linear_attn_config": {"kda_layers": list(range(95))}}, "kda_layers has 95 layers"),
    "experts of layers": ({"moe_layer_freq": [1] * 5000}, "moe_layer_freq has 5000 entries, num_hidden_layers is 94"),
    "a rope that shrinks below zero": ({"rope_scaling": {"type": "linear", "factor": -4}}, "rope_scaling: factor must"),
    "a rope to nothing": ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "rope's factor 1e-300 makes 4.096e"),
    "a rope without end": ({"rope_scaling": {"type": "linear", "factor": 2**39}}, "which cannot be a context length"),
    "heads of no width": (
        {"num_attention_heads": 8192, "head_dim": None},
        "8192 but hidden_size is 4096, so a head has no width",
    ),
    "more key-value heads": ({"num_key_value_heads": 100}, "num_key_value_heads is 100, which does not divide the 64"),
    "a pattern that is counted": ({"quantization_config": RE | {"ignore": ["re:a{9999999999999999}"]}}, "too large"),
    "a pattern that is nested": ({"quantization_config": RE | {"ignore": ["re:" + "(" * 300]}}, "missing \\)"),
    "a pattern that is long": (
        {"quantization_config": RE | {"ignore": ["re:" + "(" * 5000 + ")" * 5000]}},
        "characters in one of them, at most",
    ),
    "a pattern that repeats a group": (
        {"quantization_config": RE | {"ignore": ["re:(([a-z0-9._]+)+)+!"]}},
        "a repeated group is not supported",
    ),
    "a pattern of many repetitions": (
        {"quantization_config": RE | {"ignore": ["re:" + "a*" * 6]}},
        "more than 5 rep",
    ),
    "many patterns": (
        {"quantization_config": RE | {"ignore": [f"re:abcdefgh{i}" for i in range(500)]}},
        "of regular exp",
    ),
    "many wildcards": ({"quantization_config": RE | {"ignore": [f"*{i}" for i in range(10001)]}}, "10001 modules with"),
    "half a character": ({"model_type": "\ud800"}, "cannot be read as JSON: .*surrogates not allowed"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_contradictory_configs_are_refused(tmp_path: Path, kind: str) -> None:
    changes, message = CONTRADICTIONS[kind]
    with pytest.raises(CheckpointError, match=message) as refusal:
        read(tmp_path, QWEN3_235B, **changes)
    assert "\n" not in refusal.value.message and len(refusal.value.message) < 500


def test_regular_expressions_name_unquantized_modules(tmp_path: Path) -> None:
    ignored = ["re:.*o_proj", r"re:model\.layers\.\d+\.mlp\.(gate|up)_proj$"]
    quantization = read(tmp_path, QWEN3_8B, quantization_config=RE | {"ignore": ignored}).quantization
    assert quantization is not None
    assert quantization.covers("model.layers.1.mlp.down_proj")
    assert not quantization.covers("model.layers.1.self_attn.o_proj")
    assert not quantization.covers("model.layers.12.mlp.up_proj")


def test_listed_dense_layers_beyond_the_last_one_are_ignored(tmp_path: Path) -> None:
    listed = read(tmp_path, QWEN3_235B, mlp_only_layers=list(range(90, 1_000_000)))
    assert listed.experts is not None and listed.experts.layers == 90


def test_deep_and_long_configs_are_refused_in_one_line(tmp_path: Path) -> None:
    nested = json.dumps(QWEN3_8B)
    for _ in range(800):
        nested = f'{{"architectures": ["AForCausalLM"], "text_config": {nested}}}'
    for text, message in ((nested, "nested more than"), ("[" * 8_000_001, "is longer than 8 MB")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=message) as refusal:
            read_target(str(tmp_path))
        assert len(refusal.value.message) < 500


def test_the_size_of_files_wins_over_the_index(tmp_path: Path) -> None:
    write(tmp_path, QWEN3_8B)
    write_index(tmp_path, {"a.safetensors": ["t"]}, total_size=1)
    assert (read_target(str(tmp_path)).weights.bytes, read_target(str(tmp_path)).weights.source) == (1, "index")
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.truncate(16_400_000_000)
    weights = read_target(str(tmp_path)).weights
    assert (weights.bytes, weights.source) == (16_400_000_000, "files")


@pytest.mark.parametrize("shard", ["../other/a.safetensors", "/dev/zero", "a/../../b", "", ".", ".."])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path: Path, shard: str) -> None:
    write(tmp_path, QWEN3_8B)
    write_index(tmp_path, {shard: ["t"]})
    with pytest.raises(CheckpointError, match=r"index\.json places weights in '.*', which is outside its folder"):
        read_target(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "a.safetensors", "pytorch_model.bin", "b.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "loop", "dangling", "folder"])
def test_weights_that_are_no_regular_files_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path, QWEN3_8B)
    if name == "b.safetensors":
        write_index(tmp_path, {name: ["t"]}, total_size=5)
    file = tmp_path / name
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "loop":
            file.symlink_to(name)
        case "dangling":
            file.symlink_to("nowhere")
        case "folder":
            file.mkdir()
    with pytest.raises(CheckpointError, match=rf"{name} is a folder, a pipe or a broken link, not a file"):
        read_target(str(tmp_path))


@pytest.mark.parametrize("end", [10**400, -1, None, "1"])
def test_bad_offsets_are_refused_in_one_line(tmp_path: Path, end: object) -> None:
    write(tmp_path, QWEN3_8B)
    header = json.dumps({"t": {"data_offsets": [0, end]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match=r"has an unreadable safetensors header") as refusal:
        read_target(str(tmp_path))
    assert len(refusal.value.message) < 500


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            read_target(str(tmp_path))

    refused(r"has no config\.json")
    write(tmp_path, QWEN3_8B)
    write_index(tmp_path, {f"model-{i}.safetensors": [f"t{i}"] for i in range(3)}, total_size=3)
    assert read_target(str(tmp_path)).weights.bytes == 3  # no file is there, which a plan does not need
    write_safetensors(tmp_path / "model-0.safetensors", "t0")
    refused(r"incomplete: it has 1 of the 3 files .*, model-1\.safetensors is missing")
    for i in (1, 2):
        (tmp_path / f"model-{i}.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(r"model-1\.safetensors is a git-lfs pointer, not weights: run `git lfs pull`")
    for text in ("[]", "{", '{"weight_map": {"a": 1}}'):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        refused(r"is not an index of weights")
    (tmp_path / "model.safetensors.index.json").unlink()
    for i in (1, 2):
        (tmp_path / f"model-{i}.safetensors").unlink()
    with (tmp_path / "model-0.safetensors").open("ab") as file:
        file.truncate(file.tell() - 1)
    refused(r"model-0\.safetensors is cut short")
    (tmp_path / "model-0.safetensors").write_bytes(b"\xff" * 100)
    refused(r"is not a safetensors file, or it is cut short within its header")
    for header in (b"[]", b'{"\xff": 1}', b"\xff" * 40):
        (tmp_path / "model-0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        refused(r"has an unreadable safetensors header")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
CONFIGS = {"kimi": KIMI_K2, "deepseek": DEEPSEEK_V32, "qwen": QWEN3_235B, "multimodal": KIMI_K25}


@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_config_is_a_target_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    config = CONFIGS[name]
    extra = (
        "layer_types",
        "sliding_window",
        "rope_parameters",
        "compress_ratios",
        "linear_attn_config",
        "moe_layer_freq",
    )
    field = data.draw(st.sampled_from([*config, *extra]))
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    write(folder, config, **{field: data.draw(JSON)})
    try:
        target = read_target(str(folder))
    except CheckpointError as error:
        assert "\n" not in error.message
    else:
        msgspec.json.encode(target)


def test_published_targets(shared_data: Path, tmp_path: Path) -> None:
    configs = shared_data / "configs"
    shutil.copy(configs / "kimi_k25_config.json", tmp_path / "config.json")
    kimi = read_target(str(tmp_path))
    assert (kimi.architecture, kimi.text_architecture) == ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM")
    assert (kimi.attention.word, kimi.mtp_layers, kimi.multimodal) == ("mla", 0, True)
    assert kimi.weights.bytes == pytest.approx(595e9, rel=0.001)
    for name, known in (("671B_v3.2", "DeepSeek-V3.2"), ("v3.1", "DeepSeek-V3 or V3.1")):
        shutil.copy(configs / "deepseek" / f"inference_config_{name}.json", tmp_path / "config.json")
        with pytest.raises(CheckpointError, match=rf"DeepSeek's own inference demo \({known}: dim 7168, n_layers 61"):
            read_target(str(tmp_path))
