"""Reads a drafter checkpoint: its method, its shape, what it reads from its target, and how many tokens it proposes.

There are two formats: speculators (https://github.com/vllm-project/speculators), which names its method and its target,
and the plain configs of trainers such as SpecForge and TorchSpec, whose method follows from the architecture. A
checkpoint that is neither is a complete model and drafts as a draft model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.checkpoints.attention import Attention, read_attention
from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_config
from dovetail.checkpoints.methods import BLOCK_METHODS, Method, drafting_method
from dovetail.checkpoints.positions import Rope, context_length, read_rope
from dovetail.checkpoints.quantization import Quantization, read_quantization
from dovetail.checkpoints.target import Target, read_target
from dovetail.checkpoints.tensor_files import Stored, stored
from dovetail.checkpoints.weight_sizes import Part, Parts, Weights, dtype_bits, weigh, weight_dtype
from dovetail.errors import CheckpointError

ConfigFormat = Literal["speculators", "plain", "inside the target"]
#: model_type -> values that vLLM 0.33 adds to a plain config (config/speculative.py).
_PLAIN_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"muse_glimmer_assistant": {"vocab_size": 202048}}
#: Values that transformers assumes for absent fields. The speculators format leaves out fields with these values.
_SPECULATORS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000, "intermediate_size": 11008},
    "qwen3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 151936,
        "intermediate_size": 22016,
    },
}


class Drafter(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter as its files describe it. None means that the files do not declare it.

    `path` is the name by which the user calls the checkpoint; `fields` describe its layers. `target_hidden`: width
    of the target's hidden states. `aux_layers`: which hidden states of the target it reads, where i is the one that
    enters layer i. `draft_tokens`: how many tokens the checkpoint proposes; `most_tokens`: how many it can draft in a
    step. `verifier`: the target that it names; `target_type`: that target's model_type.
    """

    path: str
    architecture: str
    method: Method
    config_format: ConfigFormat
    model_type: str | None
    layers: int | None
    hidden: int | None
    target_hidden: int | None
    vocab: int | None
    draft_vocab: int | None
    attention: Attention | None
    fields: Fields
    aux_layers: tuple[int, ...] | None = None
    use_aux_hidden_state: bool = True
    target_layers: int | None = None
    target_type: str | None = None
    block_size: int | None = None
    draft_tokens: int | None = None
    most_tokens: int | None = None
    verifier: str | None = None
    verifier_architectures: tuple[str, ...] = ()
    rope: Rope | None = None
    context: int | None = None
    mask_token: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    has_vocab_map: bool | None = None
    weights: Weights | None = None


def read_drafter(folder: str, name: str | None = None) -> Drafter:
    """The drafter in `folder`; `name` is what errors and `Drafter.path` call it (default: the folder).

    A complete model is a drafter of the method `draft_model`. Raises `CheckpointError`.
    """
    name = name or folder
    config, files = Fields(read_config(folder), f"{name}/config.json"), stored(folder)
    method = drafting_method(config, files.tensors)
    if method is None:
        model = read_target(folder, name)
        return _of_target(model, "draft_model", "plain", layers=model.layers, weights=model.weights)
    return _read(name, config, method, files)


def mtp_drafter(target: Target) -> Drafter:
    """The MTP layers of a target as a drafter. Raises `CheckpointError` when they or their weights are absent.

    Each layer was trained for one token ahead. One layer can run again for the next token (vLLM 0.33,
    config/speculative.py), so the number of draft tokens has no limit.
    """
    if not target.mtp_layers:
        raise CheckpointError(
            f"{target.path} has no MTP layers inside (num_nextn_predict_layers is 0 or absent): use a drafter with a "
            "checkpoint of its own"
        )
    if target.mtp_weights is False:
        raise CheckpointError(
            f"{target.path} declares {target.mtp_layers} MTP layers, but its weights hold none, as in many quantized "
            "copies: use the original checkpoint, or a drafter with a checkpoint of its own"
        )
    mtp = target.weights.parts.mtp
    weights = msgspec.structs.replace(target.weights, bytes=mtp, parts=Parts(mtp=mtp))
    drafter = _of_target(target, "mtp", "inside the target", layers=target.mtp_layers, weights=weights)
    return msgspec.structs.replace(
        drafter,
        draft_tokens=target.mtp_layers,
        target_hidden=target.hidden,
        attention=_full(target.attention),
    )


def _of_target(
    target: Target, method: Method, config_format: ConfigFormat, *, layers: int, weights: Weights
) -> Drafter:
    return Drafter(
        path=target.path,
        architecture=target.text_architecture,
        method=method,
        config_format=config_format,
        model_type=target.text_family,
        layers=layers,
        hidden=target.hidden,
        target_hidden=None,
        vocab=target.vocab,
        draft_vocab=target.vocab,
        attention=target.attention,
        fields=target.fields,
        rope=target.rope,
        context=target.context,
        dtype=target.dtype,
        quantization=target.quantization,
        weights=weights,
    )


def _read(name: str, config: Fields, method: Method, files: Stored) -> Drafter:
    speculators = "speculators_model_type" in config.raw
    layer = _layer(config, method, speculators)
    # Trainers write some fields at the top or in a block of their own; the block wins.
    declared = _merged(config, "eagle_config", "dflash_config")
    hidden = layer.number("hidden_size")
    layers = layer.layers() if layer.number("num_hidden_layers") else None
    attention = read_attention(layer, layers or 1) if hidden and layer.number("num_attention_heads") else None
    rope = read_rope(layer)
    most, proposed = _most_tokens(method, config, speculators), _proposed_tokens(config)
    verifier = (config.block("speculators_config") or _EMPTY).block("verifier") or _EMPTY
    quantization = config.block("quantization_config") or layer.block("quantization_config")
    architecture = next(iter(config.items("architectures") or ()), None)
    drafter = Drafter(
        path=name,
        architecture=architecture if isinstance(architecture, str) else method,
        method=method,
        config_format="speculators" if speculators else "plain",
        model_type=layer.text("model_type"),
        layers=layers,
        hidden=hidden,
        target_hidden=declared.number("target_hidden_size", "backbone_hidden_size")
        or layer.number("target_hidden_size")
        or hidden,
        vocab=layer.number("vocab_size"),
        draft_vocab=declared.number("draft_vocab_size") or layer.number("vocab_size"),
        attention=_full(attention) if method == "mtp" and attention is not None else attention,
        fields=layer,
        aux_layers=_aux_layers(declared, speculators),
        use_aux_hidden_state=declared.raw.get("use_aux_hidden_state") is not False,
        target_layers=config.number("num_target_layers"),
        target_type=config.text("target_model_type"),
        block_size=config.number("block_size"),
        draft_tokens=proposed if proposed is not None else most,
        most_tokens=most,
        verifier=verifier.text("name_or_path"),
        verifier_architectures=tuple(str(name) for name in verifier.items("architectures") or ()),
        rope=rope,
        context=context_length(layer, rope),
        mask_token=declared.number("mask_token_id", "pard_token", "ptd_token_id"),  # in vLLM's order
        norm_before_residual=declared.flag("norm_before_residual"),
        norm_before_fc=declared.flag("norm_before_fc"),
        fc_norm=declared.flag("fc_norm"),
        norm_output=declared.flag("norm_output"),
        dtype=weight_dtype(config, layer),
        quantization=None if quantization is None else read_quantization(quantization),
        has_vocab_map=None if files.tensors is None else any(name.endswith("d2t") for name in files.tensors),
    )
    return msgspec.structs.replace(drafter, weights=_weights(drafter, files))


_EMPTY = Fields({}, "")


def _layer(config: Fields, method: Method, speculators: bool) -> Fields:
    """The fields that describe the drafter's layers, with the values that the format leaves out."""
    layer: Fields | None = config
    if speculators:
        layer = config.block("transformer_layer_config")
    elif "hidden_size" not in config.raw:  # Gemma's assistants
        layer = config.block("text_config") or config
    if layer is None:
        raise config.error("transformer_layer_config is missing, which declares the drafter's shape")
    values = {name: value for name, value in layer.raw.items() if value is not None}
    if method in ("eagle", "eagle3", "peagle"):
        values = {"num_hidden_layers": 1, **values}
    model_type = layer.text("model_type")
    if model_type is not None:
        defaults = _SPECULATORS_DEFAULTS if speculators else _PLAIN_DEFAULTS
        values = {**defaults.get(model_type, {}), **values}
    return Fields(values, layer.where)


def _merged(config: Fields, *blocks: str) -> Fields:
    merged = dict(config.raw)
    for name in blocks:
        block = config.block(name) or _EMPTY
        merged |= {name: value for name, value in block.raw.items() if value is not None}
    return Fields(merged, config.where)


def _aux_layers(declared: Fields, speculators: bool) -> tuple[int, ...] | None:
    """Which of the target's hidden states are read, counted by the layer that each one enters.

    target_layer_ids counts the layer that a hidden state leaves. So does SpecForge for EAGLE-3, which no field says;
    its lists start with 1, others with 2 (https://github.com/sgl-project/sglang/pull/25454).
    """
    for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids"):
        layers = declared.numbers(name)
        if layers:
            if min(layers) < 0:
                raise declared.error(f"{name} must be layer numbers from 0, found {list(layers)!r:.80}")
            leaves = name == "target_layer_ids" or (not speculators and layers[0] == 1)
            return tuple(sorted({layer + leaves for layer in layers}))
    return None


def _most_tokens(method: Method, config: Fields, speculators: bool) -> int | None:
    """The tokens of a block without the anchor, which is the bonus token, unless the drafter samples the anchor too.

    DSpark's own checkpoints do (deepseek-ai/dspark_qwen3_8b_block7 drafts 7). Those in the speculators format declare
    it as sample_from_anchor (vLLM 0.33, transformers_utils/configs/speculators/algos.py).
    """
    block = config.number("block_size")
    if method not in BLOCK_METHODS or not block:
        return None
    declared = config.raw.get("sample_from_anchor")
    samples_anchor = (method == "dspark" and not speculators) if declared is None else bool(declared)
    return block if samples_anchor else block - 1


def _proposed_tokens(config: Fields) -> int | None:
    """`speculative_tokens` of the default proposal method, or of the first when none is the default."""
    block = config.block("speculators_config") or _EMPTY
    methods = [method for method in block.items("proposal_methods") or () if isinstance(method, dict)]
    if not methods:
        return None
    default = block.raw.get("default_proposal_method")
    method = next((method for method in methods if method.get("proposal_type") == default), methods[0])
    return Fields(method, f"{block.where}: proposal_methods").number("speculative_tokens")


def _weights(drafter: Drafter, files: Stored) -> Weights | None:
    """The size of the architecture as vLLM 0.33 builds it (llama_eagle3.py, deepseek_eagle3.py, qwen3_dflash.py).

    An EAGLE-3 layer reads the embedding beside the hidden state, so twice the width. None when the shape is unknown.
    """
    hidden, layers, attention, vocab = drafter.hidden, drafter.layers, drafter.attention, drafter.vocab
    if not hidden or not layers or attention is None or not vocab:
        return None
    eagle3 = drafter.method in ("eagle3", "peagle")
    first_divided, first_whole = attention.parameters(hidden, 2 * hidden if eagle3 else None)
    divided, whole = attention.parameters(hidden)
    feed_forward = 3 * hidden * (drafter.fields.number("intermediate_size") or 4 * hidden)
    features = len(drafter.aux_layers) if drafter.aux_layers else 3 if eagle3 else 1
    joined = features * (drafter.target_hidden or hidden) * hidden
    counts = [
        ("divided", first_divided + (layers - 1) * divided + layers * feed_forward),
        ("whole", first_whole + (layers - 1) * whole + joined),
    ]
    # Block methods use the target's embedding and head. Others may do so too, but no field says which.
    if drafter.method not in BLOCK_METHODS:
        counts += [("embedding", vocab * hidden), ("head", (drafter.draft_vocab or vocab) * hidden)]
    bits = dtype_bits(drafter.dtype)
    return weigh([Part(name, count, bits, count) for name, count in counts], files)


def _full(attention: Attention) -> Attention:
    """The attention of an MTP layer, which sees all tokens even when the target's layers do not (Qwen3-Next)."""
    return msgspec.structs.replace(attention, linear_layers=0, windowed_layers=0, window=None)
