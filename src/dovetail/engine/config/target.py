"""From the architecture that a target's config.json names to the config of the model that runs it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.quantization import Quantization
from dovetail.checkpoints.target import Target
from dovetail.engine.config.base import TargetConfig
from dovetail.engine.config.deepseek_v3 import deepseek_v3_config
from dovetail.engine.config.llama import llama_config, qwen2_config, qwen3_config
from dovetail.errors import CheckpointError

#: Architecture -> the model types it may have, and what makes its config.
_ARCHITECTURES: dict[str, tuple[tuple[str, ...], Callable[[Fields], TargetConfig]]] = {
    "DeepseekV3ForCausalLM": (("deepseek_v3", "kimi_k2"), deepseek_v3_config),
    "LlamaForCausalLM": (("llama",), llama_config),
    "MistralForCausalLM": (("mistral",), llama_config),
    "Qwen2ForCausalLM": (("qwen2",), qwen2_config),
    "Qwen3ForCausalLM": (("qwen3",), qwen3_config),
}


def target_config(target: Target) -> TargetConfig:
    """The config of a target. Raises `CheckpointError` for what the engine does not run."""
    return decoder_config(target.path, target.architecture, target.family, target.quantization, target.fields)


def decoder_config(
    path: str, architecture: str, family: str | None, quantization: Quantization | None, fields: Fields
) -> TargetConfig:
    """The config of the decoder that `fields` describe, a target's or a draft model's. Raises `CheckpointError`."""
    listed = fields.items("architectures") or ()
    if len(listed) > 1:
        architecture = ", ".join(map(str, listed))
    families, convert = _ARCHITECTURES.get(architecture, ((), None))
    if convert is None or family not in families:
        known = ", ".join(f"{name} (model_type {' or '.join(types)})" for name, (types, _) in _ARCHITECTURES.items())
        raise CheckpointError(
            f"{path}: architecture {architecture} (model_type {family!r}) is not supported: the embedded engine runs "
            f"{known}"
        )
    if quantization is not None:
        raise fields.error("quantization_config is set, which the embedded engine does not support")
    return convert(fields)
