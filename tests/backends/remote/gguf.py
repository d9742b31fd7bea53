"""A tiny Llama checkpoint as llama.cpp reads it: GGUF, version 3, all in float32.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

_ALIGNMENT = 32
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, path: Path) -> Path:
    """Write the checkpoint in `folder`, with its tokenizer.json (a byte-level BPE as GPT-2 splits), to `path`."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, tensor in tensors.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            # Halves that are rotated together -> neighbours.
            pairs = tensor.view(-1, 2, config["head_dim"] // 2, tensor.shape[-1])
            tensors[name] = pairs.transpose(1, 2).reshape(tensor.shape).contiguous()
    fields = _fields(config, json.loads((folder / "tokenizer.json").read_text()))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))
    head += b"".join(_string(name) + _value(value) for name, value in fields.items())
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(tensor.to(torch.float32).numpy().tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _fields(config: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, object]:
    added = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    vocab = {token: text for text, token in tokenizer["model"]["vocab"].items()} | added
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [vocab[token] for token in range(config["vocab_size"])],
        # 1: a normal token, 4: one that the user defined, whose text is shown.
        "tokenizer.ggml.token_type": [4 if token in added else 1 for token in range(config["vocab_size"])],
        "tokenizer.ggml.merges": [
            merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]
        ],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[stem]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    match value:
        case str():
            kind, data = 8, _string(value)
        case int():
            kind, data = 4, struct.pack("<I", value)
        case float():
            kind, data = 6, struct.pack("<f", value)
        case list():
            kind, items = 9, [_value(item) for item in value]
            # Numbers are signed in lists.
            of = struct.pack("<I", 5) if isinstance(value[0], int) else items[0][:4]
            data = of + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
        case _:
            raise TypeError(type(value))
    return struct.pack("<I", kind) + data


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
