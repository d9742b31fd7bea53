"""What a drafter's config.json declares, held against its target.

Two formats: speculators (https://github.com/vllm-project/speculators) and the plain configs of trainers such as
SpecForge and TorchSpec. A folder that is neither is a model of its own, and drafts as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engine.config.base import Size, TargetConfig, field, only
from dovetail.engine.config.deepseek_v3 import DeepseekV3Config, deepseek_v3_config
from dovetail.engine.config.llama import LlamaConfig, llama_config, qwen3_config
from dovetail.engine.config.target import target_config
from dovetail.errors import CheckpointError

_READS_TWICE = tuple(
    f"self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
)
_LLAMA_STYLE = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_MLA_STYLE = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
_PARALLEL = ("PEagleDraftModel", "PeagleLlamaForCausalLM")
# What transformers takes for a field that is not there. The speculators format leaves such fields out.
_BOTH = {"hidden_size": 4096, "num_attention_heads": 32}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _BOTH | {"vocab_size": 32000, "intermediate_size": 11008},
    "qwen3": _BOTH | {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32},
}
# An MLA-style drafter says nothing of experts, and has none.
_NO_EXPERTS = dict.fromkeys(
    ("moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"), 1
) | {"routed_scaling_factor": 1.0}


class _Eagle3Fields(msgspec.Struct, frozen=True, kw_only=True):
    """`aux_layers` are ascending: i stands for the residual stream that enters layer i of the target. `norm_before_fc`
    is one norm over all of them, `fc_norm` one for each; `norm_output` says that the hidden state goes on normed.
    `speculative_tokens` is what the drafter's own config proposes, None where it does not say."""

    draft_vocab_size: Size
    target_hidden_size: Size
    aux_layers: tuple[int, ...]
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token_id: int | None = None
    speculative_tokens: Size | None = None


class Eagle3Config(_Eagle3Fields, frozen=True, kw_only=True):
    """An EAGLE-3 drafter, or a P-EAGLE one if there is a `mask_token_id`. `layer` describes its layers, which are all
    dense, and the target's vocabulary."""

    layer: LlamaConfig | DeepseekV3Config

    @property
    def cache_width(self) -> int:
        """Numbers cached per token, over all layers."""
        return self.layer.cache_width * self.layer.num_hidden_layers

    @property
    def feature_width(self) -> int:
        return len(self.aux_layers) * self.target_hidden_size

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor but the optional `embed_tokens.weight` and `lm_head.weight`."""
        hidden = self.layer.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, self.feature_width), "norm.weight": (hidden,)}
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (self.feature_width,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden_size,) for i in range(len(self.aux_layers))}
        shapes["layers.0.hidden_norm.weight"] = (hidden,)
        for name, shape in self.layer.expected_tensors().items():
            if name.startswith("model.layers."):
                name = name.removeprefix("model.")
                wide = name.startswith("layers.0.") and name.endswith(_READS_TWICE)
                shapes[name] = (shape[0], 2 * shape[1]) if wide else shape
        if self.draft_vocab_size != self.layer.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes


class MTPConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first of a DeepSeek-V3 checkpoint's multi-token prediction layers, which follow its own."""

    target: DeepseekV3Config

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The target's hidden state after its final norm."""
        return (self.target.num_hidden_layers + 1,)

    @property
    def cache_width(self) -> int:
        """Numbers cached per token."""
        return self.target.cache_width

    @property
    def prefix(self) -> str:
        return f"model.layers.{self.target.num_hidden_layers}."

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that is read; embeddings and head are the target's."""
        hidden, index = self.target.hidden_size, self.target.num_hidden_layers
        following = msgspec.structs.replace(self.target, num_hidden_layers=index + 1).expected_tensors()
        return {name: shape for name, shape in following.items() if name.startswith(self.prefix)} | {
            self.prefix + "enorm.weight": (hidden,),
            self.prefix + "hnorm.weight": (hidden,),
            self.prefix + "eh_proj.weight": (hidden, 2 * hidden),
            self.prefix + "shared_head.norm.weight": (hidden,),
        }


DrafterConfig = Eagle3Config | MTPConfig | TargetConfig


def drafter_config(raw: Mapping[str, Any], path: Path, target: TargetConfig) -> Eagle3Config | TargetConfig:
    """Check and convert a drafter's config.json, and hold it against its target. Raises `CheckpointError`."""
    config: Eagle3Config | TargetConfig
    if "speculators_model_type" in raw:
        config = _speculators(raw, path, target)
    elif _architecture(raw, path) in _LLAMA_STYLE + _MLA_STYLE + _PARALLEL:
        config = _plain(raw, path, target)
    else:
        config = target_config(raw, path)
    layer = config.layer if isinstance(config, Eagle3Config) else config
    if layer.vocab_size != target.vocab_size:
        raise _misfit(path, f"vocab_size is {layer.vocab_size}", f"{target.vocab_size}")
    if isinstance(config, Eagle3Config):
        _check_fit(config, path, target)
    return config


def mtp_config(raw: Mapping[str, Any], path: Path, target: TargetConfig) -> MTPConfig:
    """The MTP layer that a target's own config.json declares. Raises `CheckpointError`."""
    layers = raw.get("num_nextn_predict_layers")
    if not isinstance(target, DeepseekV3Config) or not isinstance(layers, int) or layers < 1:
        raise CheckpointError(
            f"{path}: drafting with mtp needs the MTP layers of a DeepSeek-V3 checkpoint, but its architecture is "
            f"{_architecture(raw, path)} and its num_nextn_predict_layers is {layers!r}"
        )
    return MTPConfig(target=target)


def check_verifier(raw: Mapping[str, Any], path: Path, target: Mapping[str, Any]) -> None:
    """Hold the target that a drafter's config names against a target's config.json; a drafter of a text model does not
    fit the multimodal model around it, which counts its positions otherwise. Raises `CheckpointError`."""
    verifier = field(field(raw, "speculators_config", dict, path), "verifier", dict, path)
    named, own = field(verifier, "architectures", list, path), field(target, "architectures", list, path)
    if named and not any(name in own for name in named):
        raise _misfit(path, f"verifier is {', '.join(map(str, named))}", ", ".join(map(str, own)), "architecture")
    declared, model_type = raw.get("target_model_type"), target.get("model_type")
    if declared is not None and declared != model_type:
        raise _misfit(path, f"target_model_type is {declared!r}", f"{model_type!r}", "model_type")


def _speculators(raw: Mapping[str, Any], path: Path, target: TargetConfig) -> Eagle3Config:
    kind = raw["speculators_model_type"]
    if kind not in ("eagle3", "peagle"):
        raise CheckpointError(
            f"{path}: speculators_model_type is {kind!r}; the embedded engine drafts with 'eagle3' and 'peagle'"
        )
    declared = field(raw, "transformer_layer_config", dict, path)
    if not declared:
        raise CheckpointError(f"{path}: transformer_layer_config is missing")
    model_type = declared.get("model_type")
    if model_type not in _DEFAULTS:
        raise CheckpointError(f"{path}: transformer_layer_config's model_type is {model_type!r}, not llama or qwen3")
    layer = _DEFAULTS[model_type] | {name: value for name, value in declared.items() if value is not None}
    aux = raw.get("eagle_aux_hidden_state_layer_ids")
    return _eagle3(raw, path, target, layer, aux, kind == "peagle")


def _plain(raw: Mapping[str, Any], path: Path, target: TargetConfig) -> Eagle3Config:
    """SpecForge counts the layer that a stream leaves, others the one that it enters, and no field says which. Whoever
    starts with 1 counts by leaving, it would be 2 the other way (https://github.com/sgl-project/sglang/pull/25454)."""
    block = field(raw, "eagle_config", dict, path)
    only(block, path, use_aux_hidden_state=True)
    aux = raw.get("eagle_aux_hidden_state_layer_ids") or block.get("eagle_aux_hidden_state_layer_ids")
    if aux is None:
        layers = target.num_hidden_layers
        aux = [2, layers // 2, layers - 3]
    elif isinstance(aux, list) and aux[:1] == [1]:
        aux = [i + 1 if isinstance(i, int) else i for i in aux]
    return _eagle3({**raw, **block}, path, target, raw, aux, _architecture(raw, path) in _PARALLEL)


def _eagle3(
    raw: Mapping[str, Any],
    path: Path,
    target: TargetConfig,
    layer: Mapping[str, Any],
    aux: object,
    parallel: bool,
) -> Eagle3Config:
    described = {
        "num_hidden_layers": 1,
        "max_position_embeddings": target.max_position_embeddings,
        **{name: value for name, value in layer.items() if value is not None},
    }
    shape: LlamaConfig | DeepseekV3Config
    if _architecture(raw, path) in _MLA_STYLE:
        dense = {"first_k_dense_replace": described["num_hidden_layers"]}
        shape = deepseek_v3_config(described | _NO_EXPERTS | dense, path)
    else:
        shape = (qwen3_config if described.get("model_type") == "qwen3" else llama_config)(described, path)
    fields = {
        "draft_vocab_size": raw.get("draft_vocab_size") or shape.vocab_size,
        "target_hidden_size": raw.get("target_hidden_size") or shape.hidden_size,
        "aux_layers": sorted(set(aux)) if isinstance(aux, list) and all(isinstance(i, int) for i in aux) else aux,
        "norm_before_residual": raw.get("norm_before_residual") or False,
        "norm_before_fc": raw.get("norm_before_fc") or False,
        "fc_norm": raw.get("fc_norm") or False,
        "norm_output": raw.get("norm_output") or False,
        "mask_token_id": _mask_token(raw, path) if parallel else None,
        "speculative_tokens": _speculative_tokens(raw, path),
    }
    try:
        checked = msgspec.convert(fields, _Eagle3Fields)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}/config.json: {error}") from error
    return Eagle3Config(layer=shape, **msgspec.structs.asdict(checked))


def _check_fit(config: Eagle3Config, path: Path, target: TargetConfig) -> None:
    if config.target_hidden_size != target.hidden_size:
        raise _misfit(
            path, f"target_hidden_size is {config.target_hidden_size}", f"{target.hidden_size}", "hidden_size"
        )
    if config.draft_vocab_size > target.vocab_size:
        raise _misfit(path, f"draft_vocab_size is {config.draft_vocab_size}", f"{target.vocab_size}")
    layers = target.num_hidden_layers
    if not config.aux_layers or any(not 0 <= i <= layers for i in config.aux_layers):
        raise CheckpointError(
            f"{path} does not fit the target: it reads eagle_aux_hidden_state_layer_ids {list(config.aux_layers)}, the "
            f"target has {layers} layers (0 to {layers} can be read)"
        )
    if config.mask_token_id is not None and not 0 <= config.mask_token_id < target.vocab_size:
        raise _misfit(path, f"mask_token_id is {config.mask_token_id}", f"{target.vocab_size}")


def _misfit(path: Path, its: str, value: str, name: str = "vocab_size") -> CheckpointError:
    return CheckpointError(f"{path} does not fit the target: its {its}, the target's {name} is {value}")


def _architecture(raw: Mapping[str, Any], path: Path) -> str:
    return ", ".join(map(str, field(raw, "architectures", list, path))) or "unnamed"


def _mask_token(raw: Mapping[str, Any], path: Path) -> object:
    """Its three spellings, in the order in which vLLM looks for them."""
    for name in ("mask_token_id", "pard_token", "ptd_token_id"):
        if raw.get(name) is not None:
            return raw[name]
    raise CheckpointError(f"{path}: a P-EAGLE drafter needs a mask_token_id, and there is none")


def _speculative_tokens(raw: Mapping[str, Any], path: Path) -> int | None:
    block = field(raw, "speculators_config", dict, path)
    default = block.get("default_proposal_method")
    for method in field(block, "proposal_methods", list, path):
        if isinstance(method, dict) and method.get("proposal_type") == default:
            tokens: int | None = method.get("speculative_tokens")
            return tokens
    return None
