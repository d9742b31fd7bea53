"""The config of a drafter for the embedded engine, checked against its target."""

from __future__ import annotations

import msgspec

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.drafter_fit import misfit
from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.target import Target
from dovetail.engine.config.base import TargetConfig
from dovetail.engine.config.deepseek_v3 import DeepseekV3Config, dense_mla_config
from dovetail.engine.config.llama import LlamaConfig, llama_config, qwen3_config
from dovetail.engine.config.target import decoder_config
from dovetail.errors import CheckpointError

_READS_TWICE = tuple(
    f"self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
)
_LLAMA_STYLE = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PEagleDraftModel", "PeagleLlamaForCausalLM")
_MLA_STYLE = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")


class Eagle3Config(msgspec.Struct, frozen=True, kw_only=True):
    """An EAGLE-3 drafter, or a P-EAGLE drafter when there is a `mask_token_id`.

    `layer` describes its layers, which are all dense, and the target's vocabulary. `aux_layers` are ascending: i is the
    hidden state that enters layer i of the target. `norm_before_fc` is one norm over all of them, `fc_norm` one for
    each. `norm_output`: the hidden state is passed on normed.
    """

    layer: LlamaConfig | DeepseekV3Config
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token_id: int | None = None

    @property
    def feature_width(self) -> int:
        return len(self.aux_layers) * self.target_hidden_size

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor except the optional `embed_tokens.weight` and `lm_head.weight`."""
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
    """The first multi-token prediction layer of a DeepSeek-V3 checkpoint. These layers follow the target's own."""

    target: DeepseekV3Config

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The target's hidden state after its final norm."""
        return (self.target.num_hidden_layers + 1,)

    @property
    def prefix(self) -> str:
        return f"model.layers.{self.target.num_hidden_layers}."

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that is read. Embeddings and head are the target's."""
        hidden, index = self.target.hidden_size, self.target.num_hidden_layers
        following = msgspec.structs.replace(self.target, num_hidden_layers=index + 1).expected_tensors()
        return {name: shape for name, shape in following.items() if name.startswith(self.prefix)} | {
            self.prefix + "enorm.weight": (hidden,),
            self.prefix + "hnorm.weight": (hidden,),
            self.prefix + "eh_proj.weight": (hidden, 2 * hidden),
            self.prefix + "shared_head.norm.weight": (hidden,),
        }


DrafterConfig = Eagle3Config | MTPConfig | TargetConfig


def drafter_config(drafter: Drafter, target: Target) -> Eagle3Config | TargetConfig:
    """The config of a drafter with a checkpoint of its own. Raises `CheckpointError` when it does not fit `target`."""
    if drafter.method == "draft_model":
        config: Eagle3Config | TargetConfig = decoder_config(
            drafter.path, drafter.architecture, drafter.model_type, drafter.quantization, drafter.fields
        )
    else:
        config = _eagle3(drafter, target)
    reason = misfit(drafter, target)
    if reason is not None:
        raise CheckpointError(f"{drafter.path} does not fit the target: {reason}")
    return config


def mtp_config(target: Target, config: TargetConfig) -> MTPConfig:
    """The MTP layer inside a target. Raises `CheckpointError` if the target has no MTP layer."""
    if not isinstance(config, DeepseekV3Config) or not target.mtp_layers:
        raise CheckpointError(
            f"{target.path}: drafting with mtp needs the MTP layers of a DeepSeek-V3 checkpoint, but its architecture "
            f"is {target.architecture} and its num_nextn_predict_layers is {target.mtp_layers}"
        )
    return MTPConfig(target=config)


def _eagle3(drafter: Drafter, target: Target) -> Eagle3Config:
    if drafter.method not in ("eagle3", "peagle"):
        raise CheckpointError(
            f"{drafter.path} drafts by {drafter.method}; the embedded engine drafts with eagle3, peagle, mtp layers "
            "inside the target, and draft models"
        )
    if not drafter.use_aux_hidden_state:
        raise drafter.fields.error("use_aux_hidden_state is False, which the embedded engine does not support")
    layer = _layer(drafter, target)
    if drafter.method == "peagle" and drafter.mask_token is None:
        raise drafter.fields.error("a P-EAGLE drafter needs a mask_token_id, and there is none")
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=drafter.draft_vocab or layer.vocab_size,
        target_hidden_size=drafter.target_hidden or layer.hidden_size,
        aux_layers=_aux_layers(drafter, target.layers),
        norm_before_residual=drafter.norm_before_residual,
        norm_before_fc=drafter.norm_before_fc,
        fc_norm=drafter.fc_norm,
        norm_output=drafter.norm_output,
        mask_token_id=drafter.mask_token if drafter.method == "peagle" else None,
    )


def _layer(drafter: Drafter, target: Target) -> LlamaConfig | DeepseekV3Config:
    """The drafter's layers. One that declares no context has its target's."""
    fields = Fields({"max_position_embeddings": target.context, **drafter.fields.raw}, drafter.fields.where)
    if drafter.config_format == "speculators":
        if drafter.model_type not in ("llama", "qwen3"):
            raise fields.error(f"model_type is {drafter.model_type!r}, not llama or qwen3")
    elif drafter.architecture in _MLA_STYLE:
        return dense_mla_config(fields)
    elif drafter.architecture not in _LLAMA_STYLE:
        raise fields.error(
            f"architecture {drafter.architecture} is not supported: the embedded engine runs EAGLE-3 drafters of "
            f"{', '.join(_LLAMA_STYLE + _MLA_STYLE)}"
        )
    return (qwen3_config if drafter.model_type == "qwen3" else llama_config)(fields)


def _aux_layers(drafter: Drafter, layers: int) -> tuple[int, ...]:
    if drafter.aux_layers is not None:
        return drafter.aux_layers
    if drafter.config_format == "speculators":
        raise drafter.fields.error("eagle_aux_hidden_state_layer_ids is missing: which layers it reads is unknown")
    if layers < 3:
        raise drafter.fields.error(
            f"eagle_aux_hidden_state_layer_ids is missing, and the target's {layers} layers are too few for the default"
        )
    return tuple(sorted({2, layers // 2, layers - 3}))  # the default of EAGLE-3 trainers
