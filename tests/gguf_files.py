"""Small GGUF files for tests, written by the package `gguf`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

#: The tokens of a tokenizer with the 256 bytes as GPT-2 writes them, and a few others.
_BYTES = [chr(byte) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255 else None for byte in range(256)]
BYTES = [letter or chr(256 + n) for n, letter in enumerate(_BYTES) if letter] + [
    chr(256 + n) for n in range(sum(letter is None for letter in _BYTES))
]
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHAPE: Mapping[str, int] = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 128,
}
_LAYER = {
    "attn_q": (64, 64),
    "attn_k": (32, 64),
    "attn_v": (32, 64),
    "attn_output": (64, 64),
    "ffn_gate": (96, 64),
    "ffn_up": (96, 64),
    "ffn_down": (64, 96),
}


def vocabulary() -> list[str]:
    return [*CONTROLS, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]


def write(
    file: Path,
    architecture: str = "llama",
    kind: str = "F32",
    *,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    vocab: int | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model whose matrices are stored as `kind`, and return its tensors as float32, as stored.

    `metadata` replaces values, and leaves out those that it has as None. `vocab`: rows of the embedding, if not one for
    each of `tokens`. `tensors`: further ones.
    """
    tokens = vocabulary() if tokens is None else tokens
    values: dict[str, Any] = {f"{architecture}.{name}": value for name, value in SHAPE.items()}
    values |= {f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5, f"{architecture}.rope.freq_base": 10000.0}
    values |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token in CONTROLS else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    values |= metadata or {}
    writer = GGUFWriter(file, architecture)
    for name, value in values.items():
        if value is not None:
            _add(writer, name, value)
    random, written = np.random.default_rng(seed), {}
    for name, shape in _shapes(architecture, vocab or len(tokens)):
        noise = random.standard_normal(shape).astype(np.float32)
        stored = GGMLQuantizationType[kind if len(shape) == 2 else "F32"]
        content = quantize(noise * 0.2 if len(shape) == 2 else 1 + 0.1 * noise, stored)
        written[name] = dequantize(content, stored)
        writer.add_tensor(name, content, raw_dtype=None if stored.name in ("F32", "F16") else stored)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
        written[name] = tensor
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, value)


def _shapes(architecture: str, vocab: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (vocab, 64)
    yield "output_norm.weight", (64,)
    for layer in range(SHAPE["block_count"]):
        at = f"blk.{layer}."
        yield from ((f"{at}{name}.weight", (64,)) for name in ("attn_norm", "ffn_norm"))
        yield from ((f"{at}{name}.weight", shape) for name, shape in _LAYER.items())
        if architecture == "qwen2":
            yield from ((f"{at}{name}.bias", _LAYER[name][:1]) for name in ("attn_q", "attn_k", "attn_v"))
        if architecture == "qwen3":
            yield from ((f"{at}{name}.weight", (16,)) for name in ("attn_q_norm", "attn_k_norm"))


def with_type(file: Path, name: str, number: int) -> None:
    """Change the number of the type of the tensor called `name`."""
    content = bytearray(file.read_bytes())
    at = content.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    (dimensions,) = struct.unpack_from("<I", content, at)
    struct.pack_into("<I", content, at + 4 + 8 * dimensions, number)
    file.write_bytes(content)


def read_json(folder: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    return content
