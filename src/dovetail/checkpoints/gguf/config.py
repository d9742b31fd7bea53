"""What a GGUF file declares of its model, as the config.json and the tensors' names of the same model on the hub."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.gguf.header import GGUFTensor, Header
from dovetail.errors import CheckpointError

#: Architecture in GGUF -> architecture and model_type in config.json, of those whose tensors are read.
READ = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"
#: What Llama 3.1 to 3.3 declare besides their factor. GGUF keeps only what follows from it, number by number.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def architecture(header: Header) -> str:
    """The architecture as GGUF names it. Raises `CheckpointError` for a file that holds no language model."""
    name, kind = header.metadata.get("general.architecture"), header.metadata.get("general.type", "model")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{header.file} declares no general.architecture, so it is no model")
    if kind != "model" or name == "clip":
        raise CheckpointError(f"{header.file} holds no language model ({name}, {kind}): give the model's own file")
    return name


def tensor_name(name: str) -> str | None:
    """What the tensor is called in a checkpoint of the hub; None for one that the engine does not read."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _TOP.get(name)
    inner = _IN_LAYER.get(layer[2])
    return None if inner is None else f"model.layers.{layer[1]}.{inner}.{layer[3]}"


def paired_heads(header: Header, name: str) -> int:
    """How many heads the rows of the tensor belong to, if the rows that rotate together are neighbours; else 0.

    The files of Llama have queries and keys so. The files of other models have them as the hub does.
    """
    layer = _LAYER.fullmatch(name)
    if header.metadata.get("general.architecture") != "llama" or layer is None:
        return 0
    if layer[2] not in ("attn_q", "attn_k"):
        return 0
    count = _Model(header).number("attention.head_count_kv" if layer[2] == "attn_k" else "attention.head_count")
    return count or _Model(header).size("attention.head_count")


def config_json(header: Header) -> dict[str, Any]:
    """The config.json of the model. Raises `CheckpointError` for a header that lacks what a model's shape needs."""
    model, name = _Model(header), architecture(header)
    written, family = READ.get(name, (f"{re.sub('[^A-Za-z0-9]', '', name.title())}ForCausalLM", name))
    vocabulary = _vocabulary(header)
    layers = model.size("block_count") - (model.number("nextn_predict_layers") or 0)
    config: dict[str, Any] = {
        "architectures": [written],
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": model.size("embedding_length"),
        "intermediate_size": model.number("feed_forward_length") or model.number("expert_feed_forward_length"),
        "num_attention_heads": model.size("attention.head_count"),
        "num_key_value_heads": model.number("attention.head_count_kv"),
        "max_position_embeddings": model.size("context_length"),
        "rms_norm_eps": model.value("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(model, header),
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "dtype": _stored_type(header),
        "eos_token_id": _ends(header.metadata),
    }
    config |= _heads(model) | _experts(model, layers)
    return {field: value for field, value in config.items() if value is not None}


class _Model:
    """The metadata that belongs to the model's architecture. A number for each layer counts as its largest."""

    def __init__(self, header: Header) -> None:
        self._file, self._metadata = header.file, header.metadata
        self._prefix = header.metadata.get("general.architecture", "")

    def value(self, name: str) -> Any:
        value = self._metadata.get(f"{self._prefix}.{name}")
        return max(value, default=None) if isinstance(value, list) else value

    def layered(self, name: str) -> list[Any] | None:
        """The values of all layers, None if they share one."""
        value = self._metadata.get(f"{self._prefix}.{name}")
        return value if isinstance(value, list) else None

    def number(self, name: str) -> int | None:
        value = self.value(name)
        if value is not None and (type(value) is not int or value < 0):
            raise CheckpointError(f"{self._file}: {self._prefix}.{name} must be a whole number, found {value!r:.80}")
        return value

    def size(self, name: str) -> int:
        value = self.number(name)
        if not value:
            raise CheckpointError(
                f"{self._file}: {self._prefix}.{name} is {'missing' if value is None else value}, and the shape of the "
                "model depends on it"
            )
        return value


def _vocabulary(header: Header) -> int:
    """How many tokens the model has. Raises `CheckpointError` if its tokenizer has another number of them."""
    embedding = header.tensors.get("token_embd.weight")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if embedding is None or not embedding.shape:
        raise CheckpointError(f"{header.file} has no tensor token_embd.weight, so it holds no language model")
    if isinstance(tokens, list) and len(tokens) != embedding.shape[0]:
        raise CheckpointError(
            f"{header.file}: its tokenizer has {len(tokens):,} tokens, its model {embedding.shape[0]:,}: the file was "
            "made of two that do not belong together"
        )
    return embedding.shape[0]


def _heads(model: _Model) -> dict[str, Any]:
    """Widths of heads, and which layers have no cache of keys and values."""
    rank, rotated = model.number("attention.kv_lora_rank"), model.number("rope.dimension_count") or 0
    key = model.number("attention.key_length_mla") or model.number("attention.key_length")
    if rank and key and key > rotated:
        return {
            "kv_lora_rank": rank,
            "q_lora_rank": model.number("attention.q_lora_rank"),
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": key - rotated,
            "v_head_dim": model.number("attention.value_length_mla") or model.number("attention.value_length"),
        }
    keys = model.layered("attention.head_count_kv")
    kinds = None if keys is None else ["full_attention" if count else "conv" for count in keys]
    width = key or model.size("embedding_length") // model.size("attention.head_count")
    return {"head_dim": width, "layer_types": kinds}


def _experts(model: _Model, layers: int) -> dict[str, Any]:
    count = model.number("expert_count")
    if not count:
        return {}
    shared = model.number("expert_shared_feed_forward_length")
    return {
        "num_experts": count,
        "num_experts_per_tok": model.number("expert_used_count"),
        "moe_intermediate_size": model.number("expert_feed_forward_length") or model.number("feed_forward_length"),
        "n_shared_experts": model.number("expert_shared_count"),
        "shared_expert_intermediate_size": shared,
        "first_k_dense_replace": min(model.number("leading_dense_block_count") or 0, layers),
    }


def _rope(model: _Model, header: Header) -> dict[str, Any]:
    theta = model.value("rope.freq_base") or 10000.0
    kind, factor = model.value("rope.scaling.type"), model.value("rope.scaling.factor")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    factors = header.tensors.get(_ROPE_FACTORS)
    if factors is not None:
        return rope | _llama3(header, factors, theta)
    if kind in ("linear", "yarn") and factor:
        rope |= {"rope_type": kind, "factor": factor}
        original = model.number("rope.scaling.original_context_length")
        return rope | ({} if original is None else {"original_max_position_embeddings": original})
    return rope


def _llama3(header: Header, tensor: GGUFTensor, theta: float) -> dict[str, Any]:
    """Llama 3's scaling, if its fields give the divisors of all frequencies that are in the file."""
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.start)
        content = opened.read(tensor.size)
    if tensor.type.name != "F32" or len(content) != tensor.size or not content:
        raise CheckpointError(f"{header.file}: {_ROPE_FACTORS} is stored as {tensor.type.name}, expected F32")
    stored = struct.unpack(f"<{len(content) // 4}f", content)
    factor = max(stored)
    if all(
        math.isclose(own, _divisor(theta ** (-2 * i / (2 * len(stored))), factor), rel_tol=1e-3)
        for i, own in enumerate(stored)
    ):
        return {"rope_type": "llama3", "factor": round(factor, 3), **_LLAMA3}
    return {"rope_type": "stored"}  # which engines other than llama.cpp refuse


def _divisor(frequency: float, factor: float) -> float:
    """What Llama 3 divides a frequency by (transformers' modeling_rope_utils)."""
    low, high, original = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"], 8192
    turns = original * frequency / (2 * math.pi)
    if turns < low:
        return factor
    if turns > high:
        return 1.0
    smooth = (turns - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


def _stored_type(header: Header) -> str:
    """How most of the weights are stored."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.size
    most = max(sizes, key=lambda name: sizes[name])
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(most, most)


#: Tokens that end a turn in every model that has them as control tokens; files often name only one of a model's.
_END_LITERALS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_text|>")
CONTROL = 3  # a token's type


def _ends(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a turn."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens") or [], metadata.get("tokenizer.ggml.token_type") or []
    controls = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == CONTROL}
    known = [controls[literal] for literal in _END_LITERALS if literal in controls]
    return list(dict.fromkeys(i for i in (*named, *known) if type(i) is int and 0 <= i < len(tokens)))
