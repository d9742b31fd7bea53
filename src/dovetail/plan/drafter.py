"""What a drafter checkpoint is: its method, its shape, what it reads from its target, and what it proposes itself.

Two ways of writing it down are read: the speculators format (https://github.com/vllm-project/speculators), which names
its method and its target, and the plain configs that trainers such as SpecForge and TorchSpec leave, of which only the
architecture and the shape tell what they are.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dovetail.errors import CheckpointError
from dovetail.plan import shape, target
from dovetail.plan.checkpoint import Stored, read_config, stored
from dovetail.plan.methods import BLOCK_METHODS, OF_EMBEDDED, Method, method_of
from dovetail.plan.shape import Attention, Fields, Quantization, Rope
from dovetail.plan.target import Target
from dovetail.plan.weights import Part, Parts, Weights, weighed


class Drafter(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter as its files describe it. A field that is None was not said.

    `target_hidden` is the width of the target's hidden states, which is the drafter's own where nothing else is said.
    `aux_layers` are as `aux_field` writes them: eagle_aux_hidden_state_layer_ids i means the stream that enters layer
    i, target_layer_ids i the one that leaves it. `draft_tokens` is what the checkpoint itself proposes, `most_tokens`
    how many it can draft in a step. `verifier` is the target that it names, `target_type` that target's model_type.
    """

    path: str
    architecture: str
    method: Method
    written_as: Literal["speculators", "plain", "inside the target"]
    model_type: str | None
    layers: int | None
    hidden: int | None
    target_hidden: int | None
    vocab: int | None
    draft_vocab: int | None
    attention: Attention | None
    aux_layers: tuple[int, ...] | None = None
    aux_field: str | None = None
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
    norm_before_residual: bool | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    has_vocab_map: bool | None = None
    weights: Weights | None = None


def look(path: str) -> Drafter:
    """Read the folder `path`; a model that stands alone is a `draft_model`. Raises `CheckpointError`."""
    raw = read_config(path)
    files = stored(path)
    fields = Fields(raw, f"{path}/config.json")
    try:
        method = method_of(raw, files.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{fields.where}: {error.message}") from error
    if method is None:
        return _standing_alone(target.look(path))
    architecture = next(iter(fields.items("architectures") or ()), None)
    return _read(path, fields, method, architecture if isinstance(architecture, str) else method, files)


def _read(path: str, fields: Fields, method: Method, architecture: str, files: Stored) -> Drafter:
    speculators = "speculators_model_type" in fields.raw
    own = fields.block("transformer_layer_config") if speculators else fields
    if own is None:
        raise CheckpointError(f"{fields.where}: transformer_layer_config is missing, which holds the drafter's shape")
    hidden = own.number("hidden_size")
    layers = own.number("num_hidden_layers") or (1 if method in ("eagle", "eagle3") and hidden else None)
    attention = shape.attention(own, layers or 1) if hidden and own.number("num_attention_heads") else None
    aux, aux_field = _aux_layers(fields)
    block = fields.number("block_size")
    if method == "mtp" and attention is not None:
        attention = _full(attention)
    dflash, eagle = fields.block("dflash_config") or _nothing, fields.block("eagle_config") or _nothing
    most = _most_tokens(method, fields, block)
    proposed = _proposed(fields)
    rope = shape.rope(own)
    verifier = (fields.block("speculators_config") or _nothing).block("verifier") or _nothing
    before_residual = fields.raw.get("norm_before_residual")
    drafter = Drafter(
        path=path,
        architecture=architecture,
        method=method,
        written_as="speculators" if speculators else "plain",
        model_type=own.text("model_type"),
        layers=layers,
        hidden=hidden,
        target_hidden=fields.number("target_hidden_size") or own.number("target_hidden_size") or hidden,
        vocab=own.number("vocab_size"),
        draft_vocab=fields.number("draft_vocab_size") or own.number("vocab_size"),
        attention=attention,
        aux_layers=aux,
        aux_field=aux_field,
        target_layers=fields.number("num_target_layers"),
        target_type=fields.text("target_model_type"),
        block_size=block,
        draft_tokens=proposed if proposed is not None else most,
        most_tokens=most,
        verifier=verifier.text("name_or_path"),
        verifier_architectures=tuple(str(name) for name in verifier.items("architectures") or ()),
        rope=rope,
        context=shape.context(own, rope),
        mask_token=fields.number("mask_token_id") or dflash.number("mask_token_id"),
        norm_before_residual=None if before_residual is None else bool(before_residual),
        norm_before_fc=fields.flag("norm_before_fc") or eagle.flag("norm_before_fc"),
        fc_norm=fields.flag("fc_norm"),
        norm_output=fields.flag("norm_output"),
        dtype=shape.dtype(fields, own),
        quantization=_quantization(fields, own),
        has_vocab_map=None if files.tensors is None else any(name.endswith("d2t") for name in files.tensors),
    )
    return msgspec.structs.replace(drafter, weights=_weights(drafter, own, files))


_nothing = Fields({}, "")


def _quantization(fields: Fields, own: Fields) -> Quantization | None:
    block = fields.block("quantization_config") or own.block("quantization_config")
    return None if block is None else shape.quantization(block.raw, fields.where)


def _aux_layers(fields: Fields) -> tuple[tuple[int, ...] | None, str | None]:
    """Which of the target's layers are read, and the field that says so."""
    for holder in (fields, fields.block("eagle_config"), fields.block("dflash_config")):
        if holder is not None:
            for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids"):
                layers = holder.numbers(name)
                if layers is not None:
                    return layers, name
    return None, None


def _most_tokens(method: Method, fields: Fields, block: int | None) -> int | None:
    """A block's tokens but the anchor, which is the bonus token, unless the drafter samples from the anchor too.

    DSpark's own checkpoints do (deepseek-ai/dspark_qwen3_8b_block7 drafts 7), those in the speculators format say so
    in sample_from_anchor (vLLM 0.33, transformers_utils/configs/speculators/algos.py).
    """
    if method not in BLOCK_METHODS or not block:
        return None
    said = fields.raw.get("sample_from_anchor")
    plain_dspark = method == "dspark" and "speculators_model_type" not in fields.raw
    return block if said or (said is None and plain_dspark) else block - 1


def _proposed(fields: Fields) -> int | None:
    """`speculative_tokens` of the default proposal method, or else of the first."""
    block = fields.block("speculators_config")
    methods = [each for each in (block.items("proposal_methods") or ()) if isinstance(each, dict)] if block else []
    if block is None or not methods:
        return None
    default = block.raw.get("default_proposal_method")
    method = next((each for each in methods if each.get("proposal_type") == default), methods[0])
    return Fields(method, f"{fields.where}: proposal_methods").number("speculative_tokens")


def _weights(drafter: Drafter, own: Fields, files: Stored) -> Weights | None:
    """Counted as the architectures are built (vLLM 0.33: llama_eagle3.py, deepseek_eagle3.py, qwen3_dflash.py).

    An EAGLE-3 layer reads the embedding beside the hidden state, twice the width. None where the shape is not said.
    """
    hidden, layers, attention, vocab = drafter.hidden, drafter.layers, drafter.attention, drafter.vocab
    if not hidden or not layers or attention is None or not vocab:
        return None
    eagle = drafter.method in ("eagle3", "peagle")
    plain = shape.bits(drafter.dtype)
    first_divided, first_whole = attention.parameters(hidden, 2 * hidden if eagle else None)
    divided, whole = attention.parameters(hidden)
    feed = 3 * hidden * (own.number("intermediate_size") or 4 * hidden)
    features = len(drafter.aux_layers) if drafter.aux_layers else 3 if eagle else 1
    joined = features * (drafter.target_hidden or hidden) * hidden
    every = [
        ("divided", first_divided + (layers - 1) * divided + layers * feed),
        ("whole", first_whole + (layers - 1) * whole + joined),
    ]
    # Block methods borrow the target's embedding and head; so do others, but where they do cannot be told from here.
    if drafter.method not in BLOCK_METHODS:
        every += [("embedding", vocab * hidden), ("head", (drafter.draft_vocab or vocab) * hidden)]
    return weighed([Part(name, count, plain, count) for name, count in every], files)


def inside(target: Target) -> Drafter:
    """The MTP layers of a target as a drafter. Raises `CheckpointError` when it has none, or their weights are absent.

    Each layer was trained for one token ahead; one layer can be run again for the next (vLLM 0.33,
    config/speculative.py), so nothing bounds the length.
    """
    if not target.mtp_layers:
        raise CheckpointError(
            f"{target.path} has no MTP layers inside (num_nextn_predict_layers is 0 or absent): use a drafter that is "
            "a checkpoint of its own"
        )
    if target.mtp_weights is False:
        raise CheckpointError(
            f"{target.path} promises {target.mtp_layers} MTP layers, but its weights hold none, as in many quantized "
            "copies: use the original checkpoint, or a drafter that is a checkpoint of its own"
        )
    weights = msgspec.structs.replace(
        target.weights, bytes=target.weights.parts.mtp, parts=Parts(mtp=target.weights.parts.mtp)
    )
    drafter = _of_target(
        target, "mtp", "inside the target", layers=target.mtp_layers, draft_tokens=target.mtp_layers, weights=weights
    )
    return msgspec.structs.replace(drafter, attention=_full(target.attention))


def _full(attention: Attention) -> Attention:
    """That of an MTP layer, which sees all tokens whatever the layers of its target do (Qwen3-Next's)."""
    return msgspec.structs.replace(attention, linear_layers=0, windowed_layers=0, window=None)


def _standing_alone(model: Target) -> Drafter:
    return _of_target(model, "draft_model", "plain", layers=model.layers, draft_tokens=None, weights=model.weights)


def _of_target(
    model: Target,
    method: Method,
    written_as: Literal["plain", "inside the target"],
    *,
    layers: int,
    draft_tokens: int | None,
    weights: Weights,
) -> Drafter:
    return Drafter(
        path=model.path,
        architecture=model.text_architecture,
        method=method,
        written_as=written_as,
        model_type=model.text_family,
        layers=layers,
        hidden=model.hidden,
        target_hidden=model.hidden if method == "mtp" else None,
        vocab=model.vocab,
        draft_vocab=model.vocab,
        attention=model.attention,
        draft_tokens=draft_tokens,
        rope=model.rope,
        context=model.context,
        dtype=model.dtype,
        quantization=model.quantization,
        weights=weights,
    )


def cannot_run(drafter: Drafter, engine: str) -> str | None:
    """Why `engine` ("embedded", "vllm", "sglang", "trtllm") cannot run the drafter, or None where it can.

    From vLLM 0.33 (config/speculative.py, models/registry.py), SGLang 0.5.23 (speculative/spec_info.py, models/) and
    TensorRT-LLM's documentation of speculative decoding; the embedded engine's own check says the rest.
    """
    if drafter.hidden is None or drafter.attention is None or drafter.vocab is None:
        return "its config leaves out hidden_size, num_attention_heads or vocab_size, so no engine can build it"
    if drafter.method in ("medusa", "mlp_speculator"):
        return f"{drafter.method} heads were dropped by engines that still run EAGLE-3"
    if engine == "embedded":
        if drafter.method not in OF_EMBEDDED:
            return "the embedded engine drafts with EAGLE-3, P-EAGLE, MTP layers inside the target and draft models"
        if drafter.method == "mtp" and drafter.written_as != "inside the target":
            return "the embedded engine drafts with MTP layers inside the target only"
    elif engine == "vllm":
        mla = drafter.attention.kind == "mla"
        if drafter.method == "domino":
            return "vLLM 0.33 has no Domino; SGLang runs it as DFLASH"
        if drafter.written_as == "speculators" and drafter.method in ("eagle3", "peagle") and mla:
            return "vLLM 0.33 reads speculators drafters of model_type llama or qwen3 only; write it as a plain config"
        if drafter.method == "peagle" and drafter.mask_token is None:
            return "vLLM 0.33 needs a P-EAGLE drafter's mask_token_id, and its config has none"
    elif engine == "sglang":
        if drafter.method == "peagle":
            return "SGLang 0.5.23 has no P-EAGLE; vLLM runs it"
    elif engine == "trtllm" and drafter.method in ("dspark", "domino", "peagle"):
        return f"TensorRT-LLM has no {drafter.method}; it runs EAGLE-3, DFlash, MTP and draft models"
    return None
