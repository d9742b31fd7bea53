"""What config.json of a target or a drafter declares, as frozen data, checked once where it enters.

Field names are the files' own. Everything the engine cannot do is refused here, by the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from dovetail.errors import CheckpointError

_C = TypeVar("_C", list[Any], dict[str, Any])
_T = TypeVar("_T")
_Size = Annotated[int, msgspec.Meta(ge=1)]
# Every layer's and expert's tensors are listed to look a checkpoint over; the largest known model has 61 and 384.
_Layers = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Experts = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Yarn(msgspec.Struct, frozen=True):
    """YaRN context extension (https://arxiv.org/abs/2309.00071), with DeepSeek's two mscale fields."""

    factor: _Positive
    original_max_position_embeddings: _Size
    beta_fast: _Positive = 32.0
    beta_slow: _Positive = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions: the base wavelength and, if any, how it is stretched."""

    theta: _Positive
    yarn: Yarn | None


class TargetConfig(msgspec.Struct, frozen=True):
    """The DeepSeek-V3 architecture: MLA and mixture of experts. `q_lora_rank` None means one full q_proj."""

    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    moe_intermediate_size: _Size
    num_hidden_layers: _Layers
    num_attention_heads: _Size
    n_shared_experts: _Size
    n_routed_experts: _Experts
    num_experts_per_tok: _Size
    routed_scaling_factor: float
    kv_lora_rank: _Size
    qk_rope_head_dim: _Size
    qk_nope_head_dim: _Size
    v_head_dim: _Size
    max_position_embeddings: _Size
    rope: Rope
    q_lora_rank: _Size | None = None
    n_group: _Size = 1
    topk_group: _Size = 1
    first_k_dense_replace: Annotated[int, msgspec.Meta(ge=0)] = 0
    norm_topk_prob: bool = True
    rms_norm_eps: _Positive = 1e-6
    tie_word_embeddings: bool = False

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor the model is made of."""
        hidden, heads = self.hidden_size, self.num_attention_heads
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        for i in range(self.num_hidden_layers):
            layer = f"model.layers.{i}."
            attention = layer + "self_attn."
            shapes[layer + "input_layernorm.weight"] = (hidden,)
            shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
            if self.q_lora_rank is None:
                shapes[attention + "q_proj.weight"] = (heads * self.qk_head_dim, hidden)
            else:
                shapes[attention + "q_a_proj.weight"] = (self.q_lora_rank, hidden)
                shapes[attention + "q_a_layernorm.weight"] = (self.q_lora_rank,)
                shapes[attention + "q_b_proj.weight"] = (heads * self.qk_head_dim, self.q_lora_rank)
            shapes[attention + "kv_a_proj_with_mqa.weight"] = (self.kv_lora_rank + self.qk_rope_head_dim, hidden)
            shapes[attention + "kv_a_layernorm.weight"] = (self.kv_lora_rank,)
            shapes[attention + "kv_b_proj.weight"] = (
                heads * (self.qk_nope_head_dim + self.v_head_dim),
                self.kv_lora_rank,
            )
            shapes[attention + "o_proj.weight"] = (hidden, heads * self.v_head_dim)
            if i < self.first_k_dense_replace:
                shapes |= _mlp_shapes(layer + "mlp.", hidden, self.intermediate_size)
                continue
            shapes[layer + "mlp.gate.weight"] = (self.n_routed_experts, hidden)
            shapes[layer + "mlp.gate.e_score_correction_bias"] = (self.n_routed_experts,)
            for expert in range(self.n_routed_experts):
                shapes |= _mlp_shapes(f"{layer}mlp.experts.{expert}.", hidden, self.moe_intermediate_size)
            shared = self.moe_intermediate_size * self.n_shared_experts
            shapes |= _mlp_shapes(layer + "mlp.shared_experts.", hidden, shared)
        return shapes


class DrafterConfig(msgspec.Struct, frozen=True):
    """A Llama-style EAGLE-3 drafter of one layer, in the speculators format.

    `aux_layers` are `eagle_aux_hidden_state_layer_ids`: i stands for the residual stream that enters layer i of the
    target. `speculative_tokens` is what the drafter's own config proposes, None where it does not say.
    """

    vocab_size: _Size
    draft_vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_attention_heads: _Size
    num_key_value_heads: _Size
    head_dim: _Size
    rms_norm_eps: _Positive
    rope: Rope
    target_hidden_size: _Size
    aux_layers: tuple[int, ...]
    norm_before_residual: bool
    speculative_tokens: _Size | None = None

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor but the optional `embed_tokens.weight`."""
        hidden, head = self.hidden_size, self.head_dim
        attention = "layers.0.self_attn."
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, len(self.aux_layers) * self.target_hidden_size),
            "layers.0.hidden_norm.weight": (hidden,),
            "layers.0.input_layernorm.weight": (hidden,),
            attention + "q_proj.weight": (self.num_attention_heads * head, 2 * hidden),
            attention + "k_proj.weight": (self.num_key_value_heads * head, 2 * hidden),
            attention + "v_proj.weight": (self.num_key_value_heads * head, 2 * hidden),
            attention + "o_proj.weight": (hidden, self.num_attention_heads * head),
            "layers.0.post_attention_layernorm.weight": (hidden,),
            "norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
        }
        shapes |= _mlp_shapes("layers.0.mlp.", hidden, self.intermediate_size)
        if self.draft_vocab_size != self.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
            shapes["t2d"] = (self.vocab_size,)
        return shapes


def target_config(raw: Mapping[str, Any], path: Path) -> TargetConfig:
    """Check and convert a target's config.json. Raises `CheckpointError`."""
    architectures = _field(raw, "architectures", list, path)
    if architectures != ["DeepseekV3ForCausalLM"] or raw.get("model_type") not in ("deepseek_v3", "kimi_k2"):
        named = ", ".join(map(str, architectures)) or "unnamed"
        raise CheckpointError(
            f"{path}: architecture {named} (model_type {raw.get('model_type')!r}) is not supported: the embedded "
            "engine runs DeepseekV3ForCausalLM (model_type deepseek_v3 or kimi_k2)"
        )
    _only(
        raw,
        path,
        hidden_act="silu",
        attention_bias=False,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        moe_layer_freq=1,
        rope_interleave=True,
        quantization_config=None,
    )
    config = _convert(raw, path, TargetConfig)
    experts, groups = config.n_routed_experts, config.n_group
    if experts % groups or not 1 <= config.topk_group <= groups:
        raise CheckpointError(
            f"{path}: n_group {groups} and topk_group {config.topk_group} do not fit {experts} experts: n_group must "
            "divide n_routed_experts and topk_group must not exceed n_group"
        )
    # A group's score is the sum of its best two experts, so a group must have two.
    if groups > 1 and experts // groups < 2:
        raise CheckpointError(f"{path}: n_group {groups} leaves fewer than 2 of {experts} experts in a group")
    if config.num_experts_per_tok > config.topk_group * (experts // groups):
        raise CheckpointError(
            f"{path}: num_experts_per_tok {config.num_experts_per_tok} exceeds the experts that topk_group "
            f"{config.topk_group} of n_group {groups} leaves: {config.topk_group * (experts // groups)}"
        )
    if config.qk_rope_head_dim % 2 or config.qk_nope_head_dim % 2:
        raise CheckpointError(
            f"{path}: qk_rope_head_dim {config.qk_rope_head_dim} and qk_nope_head_dim {config.qk_nope_head_dim} must "
            "be even"
        )
    return config


def drafter_config(raw: Mapping[str, Any], path: Path, target: TargetConfig) -> DrafterConfig:
    """Check and convert a drafter's config.json, and hold it against its target. Raises `CheckpointError`."""
    kind = raw.get("speculators_model_type")
    if kind != "eagle3":
        raise CheckpointError(f"{path}: speculators_model_type is {kind!r}; the embedded engine drafts with 'eagle3'")
    layer = raw.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise CheckpointError(f"{path}: transformer_layer_config is missing")
    _only(layer, path, model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False)
    _only(raw, path, norm_before_fc=False, fc_norm=False)
    heads = layer.get("num_attention_heads")
    hidden = layer.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        raise CheckpointError(f"{path}: transformer_layer_config needs hidden_size and num_attention_heads")
    aux = raw.get("eagle_aux_hidden_state_layer_ids")
    fields = {
        "vocab_size": layer.get("vocab_size", target.vocab_size),
        "draft_vocab_size": raw.get("draft_vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": layer.get("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": layer.get("num_key_value_heads") or heads,
        "head_dim": layer.get("head_dim") or hidden // heads,
        "rms_norm_eps": layer.get("rms_norm_eps", 1e-6),
        "rope_theta": layer.get("rope_theta"),
        "rope_scaling": layer.get("rope_scaling"),
        "rope_parameters": layer.get("rope_parameters"),
        "target_hidden_size": raw.get("target_hidden_size") or target.hidden_size,
        "aux_layers": aux,
        "norm_before_residual": raw.get("norm_before_residual", False),
        "speculative_tokens": _speculative_tokens(raw, path),
    }
    config = _convert(fields, path, DrafterConfig)
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{path}: {config.num_attention_heads} heads cannot share {config.num_key_value_heads} key-value heads of "
            f"width {config.head_dim}"
        )
    _check_fit(config, path, target)
    return config


def _check_fit(config: DrafterConfig, path: Path, target: TargetConfig) -> None:
    if config.target_hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{path} does not fit the target: its target_hidden_size is {config.target_hidden_size}, the target's "
            f"hidden_size is {target.hidden_size}"
        )
    if config.vocab_size != target.vocab_size:
        raise CheckpointError(
            f"{path} does not fit the target: its vocab_size is {config.vocab_size}, the target's is "
            f"{target.vocab_size}"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{path} does not fit the target: its draft_vocab_size is {config.draft_vocab_size}, the target's "
            f"vocab_size is {target.vocab_size}"
        )
    layers = target.num_hidden_layers
    if not config.aux_layers or any(not 0 <= i <= layers for i in config.aux_layers):
        raise CheckpointError(
            f"{path} does not fit the target: it reads eagle_aux_hidden_state_layer_ids {list(config.aux_layers)}, the "
            f"target has {layers} layers (0 to {layers} can be read)"
        )


def _speculative_tokens(raw: Mapping[str, Any], path: Path) -> int | None:
    block = _field(raw, "speculators_config", dict, path)
    default = block.get("default_proposal_method")
    for method in _field(block, "proposal_methods", list, path):
        if isinstance(method, dict) and method.get("proposal_type") == default:
            tokens: int | None = method.get("speculative_tokens")
            return tokens
    return None


def _field(raw: Mapping[str, Any], name: str, kind: type[_C], path: Path) -> _C:
    """A list or an object of the config; an empty one where the field is absent or null."""
    value = raw.get(name)
    if value is not None and not isinstance(value, kind):
        raise CheckpointError(
            f"{path}: {name} must be {'a list' if kind is list else 'an object'}, found {value!r:.80}"
        )
    return value or kind()


def _only(raw: Mapping[str, Any], path: Path, **supported: object) -> None:
    """Refuse a field that is set to something the engine does not do. An absent field means the supported value."""
    for field, value in supported.items():
        found = raw.get(field)
        if found is not None and found != value:
            shown = "set" if isinstance(found, dict) else repr(found)
            raise CheckpointError(f"{path}: {field} is {shown}, which the embedded engine does not support")


def _convert(raw: Mapping[str, Any], path: Path, kind: type[_T]) -> _T:
    # An explicit null stands for the default, except where None is itself a value with a default of None.
    fields = {name: value for name, value in raw.items() if value is not None}
    fields["rope"] = _rope(raw, path)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}/config.json: {error}") from error


def _rope(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Both spellings: rope_theta with rope_scaling (checkpoints so far) and rope_parameters (transformers 5)."""
    declared = _field(raw, "rope_parameters", dict, path) or _field(raw, "rope_scaling", dict, path)
    theta = declared.get("rope_theta", raw.get("rope_theta")) or 10000.0
    kind = declared.get("rope_type") or declared.get("type") or "default"
    if kind not in ("default", "yarn"):
        raise CheckpointError(f"{path}: rope type {kind!r} is not supported, only default and yarn")
    if kind == "default":
        return {"theta": theta, "yarn": None}
    return {"theta": theta, "yarn": {name: value for name, value in declared.items() if value is not None}}


def _mlp_shapes(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (width, hidden),
        prefix + "up_proj.weight": (width, hidden),
        prefix + "down_proj.weight": (hidden, width),
    }
