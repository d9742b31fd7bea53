"""What a target checkpoint is, from its config.json, its index of weights and its tokenizer's files alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import CheckpointError, DovetailError
from dovetail.plan import shape
from dovetail.plan.checkpoint import Stored, read_config, read_json, stored
from dovetail.plan.methods import method_of
from dovetail.plan.shape import Attention, Experts, Fields, Quantization, Rope
from dovetail.plan.weights import Weights, of_target

#: Files by which a tokenizer is known, and the library that reads each.
_TOKENIZERS = {
    "tokenizer.json": "tokenizers",
    "tiktoken.model": "tiktoken",
    "tekken.json": "tekken",
    "tokenizer.model": "sentencepiece",
}
_GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForImageTextToText")
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_DEEPEST = 4  # Qwen3-Omni's is the second
_ENCODERS = ("vision_config", "visual", "audio_config", "vision_tower_config", "encoder_config")


class ChatFormat(msgspec.Struct, frozen=True):
    """The model's language by name and why it is that, or "unknown" and why."""

    name: str
    reason: str | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target as its files describe it. Sizes are in elements, lengths in tokens.

    `architecture` and `family` (the config's model_type) are the whole model's, `text_architecture` and `text_family`
    its language model's; they differ only where a multimodal model wraps one. `context_note` says what `context`
    counts. `mtp_weights` is None where no file tells whether the MTP layers that the config promises are there.
    """

    path: str
    architecture: str
    text_architecture: str
    family: str
    text_family: str
    multimodal: bool
    layers: int
    hidden: int
    vocab: int
    attention: Attention
    experts: Experts | None
    dense_width: int | None
    context: int
    context_note: str
    rope: Rope
    dtype: str
    quantization: Quantization | None
    tied_embeddings: bool
    mtp_layers: int
    mtp_weights: bool | None
    weights: Weights
    tokenizer: str | None
    format: ChatFormat


def look(path: str) -> Target:
    """Read the folder `path`. Raises `CheckpointError` for what is no language model, or half of one."""
    raw = read_config(path)
    where = f"{path}/config.json"
    outer = Fields(raw, where)
    _refuse_other_kinds(raw, path)
    text = _language_model(outer)
    multimodal = text is not outer or any(raw.get(name) is not None for name in _ENCODERS)
    architecture = _architecture(raw, path)
    layers = shape.layers(text)
    attention, experts = shape.attention(text, layers), shape.experts(text, layers)
    rope = shape.rope(text)
    context = shape.context(text, rope)
    if context is None:
        raise CheckpointError(f"{where}: max_position_embeddings is not there, so the longest context is unknown")
    files = stored(path)
    quantized = _quantization(outer, text, path)
    dtype = shape.dtype(text, outer)
    tied = text.flag("tie_word_embeddings") if "tie_word_embeddings" in text.raw else outer.flag("tie_word_embeddings")
    mtp = _mtp_layers(text) or _mtp_layers(outer)
    return Target(
        path=path,
        architecture=architecture,
        text_architecture=_first_text(text.raw.get("architectures")) or architecture,
        family=outer.text("model_type") or text.text("model_type") or architecture,
        text_family=text.text("model_type") or outer.text("model_type") or architecture,
        multimodal=multimodal,
        layers=layers,
        hidden=text.size("hidden_size", "n_embd", "d_model"),
        vocab=text.size("vocab_size"),
        attention=attention,
        experts=experts,
        dense_width=text.number("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size"),
        context=context,
        context_note=_context_note(text, rope, context),
        rope=rope,
        dtype=dtype,
        quantization=quantized,
        tied_embeddings=tied,
        mtp_layers=mtp,
        mtp_weights=_has_mtp_weights(files, layers) if mtp else None,
        weights=of_target(
            text,
            attention,
            experts,
            quantized,
            layers=layers,
            mtp_layers=mtp,
            vision=outer.block("vision_config"),
            plain_bits=shape.bits(dtype),
            tied=tied,
            stored=files,
        ),
        tokenizer=next((kind for name, kind in _TOKENIZERS.items() if (Path(path) / name).is_file()), None),
        format=chat_format(path),
    )


def chat_format(path: str) -> ChatFormat:
    """What `dovetail.format` finds in the folder, without failing."""
    from dovetail.formats import format

    try:
        found = format(path)
        return ChatFormat(found.name, found.because or None)
    except DovetailError as error:
        return ChatFormat("unknown", error.message)


def _refuse_other_kinds(raw: Mapping[str, Any], path: str) -> None:
    method = method_of(raw)
    if method is not None:
        raise CheckpointError(f"{path} is a drafter ({method}), no target: give it as --drafter")
    if "dim" in raw and "n_layers" in raw and "hidden_size" not in raw:
        # https://github.com/deepseek-ai/DeepSeek-V3.2-Exp: inference/config_671B_v3.2.json
        name = "DeepSeek-V3.2" if "index_topk" in raw else "DeepSeek-V3 or V3.1"
        raise CheckpointError(
            f"{path} holds the config of DeepSeek's own inference demo ({name}: dim {raw['dim']}, n_layers "
            f"{raw['n_layers']}, dtype {raw.get('dtype')}), which no engine here reads: give the folder with the "
            "Hugging Face config.json (architectures DeepseekV3ForCausalLM or DeepseekV32ForCausalLM)"
        )
    if raw.get("is_encoder_decoder"):
        raise CheckpointError(f"{path} is an encoder and a decoder ({raw.get('model_type')}); only decoders are served")


def _architecture(raw: Mapping[str, Any], path: str) -> str:
    name = _first_text(raw.get("architectures"))
    if name is None:
        raise CheckpointError(f"{path}/config.json names no architectures: it is half a config, or not a model's")
    if not name.endswith(_GENERATIVE):
        raise CheckpointError(
            f"{path} is a {name} (model_type {raw.get('model_type')}), which is no language model that generates: a "
            f"target's architecture ends in {' or '.join(_GENERATIVE[:2])}"
        )
    return name


def _first_text(listed: object) -> str | None:
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) else None


def _language_model(fields: Fields) -> Fields:
    """The config of the language model inside a multimodal one (Kimi-K2.5: text_config), or the config itself."""
    for _ in range(_DEEPEST):
        inner = fields.block(*_INNER)
        if inner is None:
            return fields
        fields = inner
    raise CheckpointError(f"{fields.where}: that is nested too deep to be a model's")


def _mtp_layers(fields: Fields) -> int:
    return fields.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers") or 0


def _has_mtp_weights(files: Stored, layers: int) -> bool | None:
    """MTP layers follow the last one (DeepSeek) or are called mtp (Qwen); quantized copies often leave them out."""
    if files.tensors is None:
        return None
    named = re.compile(rf"(^|\.)(layers\.{layers}\.|mtp)")
    return any(named.search(name) for name in files.tensors)


def _quantization(outer: Fields, text: Fields, path: str) -> Quantization | None:
    """In config.json, with the language model inside it, or in the file that ModelOpt writes beside it."""
    for fields in (outer, text):
        block = fields.block("quantization_config", "compression_config")
        if block is not None:
            return shape.quantization(block.raw, fields.where)
    file = Path(path) / "hf_quant_config.json"
    return shape.quantization(read_json(file), str(file)) if file.is_file() else None


def _context_note(text: Fields, rope: Rope, context: int) -> str:
    if rope.type in ("yarn", "deepseek_yarn") and rope.factor and rope.original:
        return f"max_position_embeddings {context}, {rope.type} ×{rope.factor:g} of {rope.original} already in it"
    if rope.factor and rope.type not in ("default", "mrope"):
        return f"max_position_embeddings with {rope.type} ×{rope.factor:g}: {context}"
    return f"max_position_embeddings {context}"
