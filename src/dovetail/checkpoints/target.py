"""Reads a target checkpoint: what its config.json, its index of weights and its tokenizer's files declare."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dovetail.checkpoints.attention import Attention, read_attention
from dovetail.checkpoints.experts import Experts, read_experts
from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_config, read_object
from dovetail.checkpoints.generation import read_eos_ids
from dovetail.checkpoints.methods import drafting_method
from dovetail.checkpoints.positions import Rope, context_length, read_rope
from dovetail.checkpoints.quantization import Quantization, read_quantization
from dovetail.checkpoints.tensor_files import Stored, stored
from dovetail.checkpoints.weight_sizes import Weights, dtype_bits, weigh_target, weight_dtype
from dovetail.errors import CheckpointError

#: The files that tokenizers come in, and the library that reads each.
_TOKENIZERS = {
    "tokenizer.json": "tokenizers",
    "tiktoken.model": "tiktoken",
    "tekken.json": "tekken",
    "tokenizer.model": "sentencepiece",
}
_GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForImageTextToText")
_LANGUAGE_MODELS = ("text_config", "llm_config", "language_config", "thinker_config")
_DEEPEST = 4  # blocks within blocks; Qwen3-Omni's language model is in the second
_ENCODERS = ("vision_config", "visual", "audio_config", "vision_tower_config", "encoder_config")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target as its files describe it. Sizes are in elements, lengths in tokens.

    `path` is the name by which the user calls the checkpoint. `architecture` and `family` (the config's model_type)
    describe the whole model; `text_architecture`, `text_family` and `fields` describe its language model, which differs
    only when a multimodal model contains it. `eos_ids` end a turn: from generation_config.json if it declares any,
    else from config.json. `context_note` says how `context` was computed. `mtp_weights` is None when
    no file lists the tensors, so that nobody knows whether the declared MTP layers are there.
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
    mtp_layers: int
    mtp_weights: bool | None
    weights: Weights
    tokenizer: str | None
    eos_ids: tuple[int, ...]
    fields: Fields


def read_target(folder: str, name: str | None = None) -> Target:
    """The target in `folder`; `name` is what errors and `Target.path` call it (default: the folder).

    Raises `CheckpointError` for a checkpoint that is no language model or is incomplete.
    """
    name = name or folder
    whole = Fields(read_config(folder), f"{name}/config.json")
    _refuse_other_kinds(whole, name)
    text = language_model(whole)
    architecture = _architecture(whole, name)
    layers = text.layers()
    attention, experts = read_attention(text, layers), read_experts(text, layers)
    rope = read_rope(text)
    context = context_length(text, rope)
    if context is None:
        raise text.error("max_position_embeddings is missing, so the longest context is unknown")
    files = stored(folder)
    quantization = _quantization(whole, text, folder)
    dtype = weight_dtype(text, whole)
    mtp_layers = _mtp_layers(text) or _mtp_layers(whole) or _UNCOUNTED_MTP.get(architecture, 0)
    return Target(
        path=name,
        architecture=architecture,
        text_architecture=_first_text(text.raw.get("architectures")) or architecture,
        family=whole.text("model_type") or text.text("model_type") or architecture,
        text_family=text.text("model_type") or whole.text("model_type") or architecture,
        multimodal=text is not whole or any(whole.raw.get(name) is not None for name in _ENCODERS),
        layers=layers,
        hidden=text.hidden(),
        vocab=text.size("vocab_size"),
        attention=attention,
        experts=experts,
        dense_width=text.number("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size"),
        context=context,
        context_note=_context_note(rope, context),
        rope=rope,
        dtype=dtype,
        quantization=quantization,
        mtp_layers=mtp_layers,
        mtp_weights=_has_mtp_weights(files, layers) if mtp_layers else None,
        weights=weigh_target(
            text,
            attention,
            experts,
            quantization,
            layers=layers,
            mtp_layers=mtp_layers,
            vision=whole.block("vision_config"),
            unquantized_bits=dtype_bits(dtype),
            tied=(text if "tie_word_embeddings" in text.raw else whole).flag("tie_word_embeddings"),
            stored=files,
        ),
        tokenizer=next((kind for file, kind in _TOKENIZERS.items() if (Path(folder) / file).is_file()), None),
        eos_ids=next(iter(read_eos_ids(Path(folder), text, whole)), ()),
        fields=text,
    )


def _refuse_other_kinds(config: Fields, name: str) -> None:
    method = drafting_method(config)
    raw = config.raw
    if method is not None:
        raise CheckpointError(f"{name} is a drafter ({method}), not a target: give it as --drafter")
    if "dim" in raw and "n_layers" in raw and "hidden_size" not in raw:
        # https://github.com/deepseek-ai/DeepSeek-V3.2-Exp: inference/config_671B_v3.2.json
        model = "DeepSeek-V3.2" if "index_topk" in raw else "DeepSeek-V3 or V3.1"
        raise CheckpointError(
            f"{name} holds the config of DeepSeek's own inference demo ({model}: dim {raw['dim']}, n_layers "
            f"{raw['n_layers']}, dtype {raw.get('dtype')}), which no engine here reads: give the folder with the "
            "Hugging Face config.json (architectures DeepseekV3ForCausalLM or DeepseekV32ForCausalLM)"
        )
    if raw.get("is_encoder_decoder"):
        raise CheckpointError(
            f"{name} is an encoder-decoder model ({raw.get('model_type')}); only decoder models are supported"
        )


def _architecture(config: Fields, name: str) -> str:
    architecture = _first_text(config.raw.get("architectures"))
    if architecture is None:
        raise config.error("architectures is missing, so this is an incomplete config or not a model's")
    if not architecture.endswith(_GENERATIVE):
        raise CheckpointError(
            f"{name} is a {architecture} (model_type {config.raw.get('model_type')}), which does not generate text: a "
            f"target's architecture ends in {' or '.join(_GENERATIVE[:2])}"
        )
    return architecture


def _first_text(listed: object) -> str | None:
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) else None


def language_model(config: Fields) -> Fields:
    """The config of the language model inside a multimodal one (Kimi-K2.5: text_config), or the config itself."""
    for _ in range(_DEEPEST):
        inner = config.block(*_LANGUAGE_MODELS)
        if inner is None:
            return config
        config = inner
    raise config.error(f"language models are nested more than {_DEEPEST} deep")


#: MTP layers that vLLM 0.33 uses of models whose configs do not count them (models/mimo_v2_mtp.py).
_UNCOUNTED_MTP = {"MiMoV2ForCausalLM": 1, "MiMoV2OmniForCausalLM": 1, "MiMoV2FlashForCausalLM": 1}


def _mtp_layers(config: Fields) -> int:
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
    nested = config.block("mtp_config")  # Inkling
    return config.number(*names) or (nested.number(*names) if nested is not None else None) or 0


def _has_mtp_weights(files: Stored, layers: int) -> bool | None:
    """MTP layers follow the last layer (DeepSeek) or are called mtp (Qwen). Quantized copies often leave them out."""
    if files.tensors is None:
        return None
    is_mtp = re.compile(rf"(^|\.)(layers\.{layers}\.|mtp)").search
    return any(is_mtp(name) for name in files.tensors)


def _quantization(whole: Fields, text: Fields, folder: str) -> Quantization | None:
    """The quantization in config.json, in its language model's part, or in the file that ModelOpt writes beside it."""
    for config in (whole, text):
        block = config.block("quantization_config", "compression_config")
        if block is not None:
            return read_quantization(block)
    file = Path(folder) / "hf_quant_config.json"
    return read_quantization(Fields(read_object(file), str(file))) if file.is_file() else None


def _context_note(rope: Rope, context: int) -> str:
    if rope.type in ("yarn", "deepseek_yarn") and rope.factor and rope.original:
        return f"max_position_embeddings {context}, {rope.type} ×{rope.factor:g} of {rope.original} already in it"
    if rope.factor and rope.type not in ("default", "mrope"):
        return f"max_position_embeddings with {rope.type} ×{rope.factor:g}: {context}"
    return f"max_position_embeddings {context}"
