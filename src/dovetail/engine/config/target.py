"""From the architecture that config.json names to the config that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.engine.config.base import TargetConfig, field
from dovetail.engine.config.deepseek_v3 import deepseek_v3_config
from dovetail.engine.config.llama import llama_config, qwen2_config, qwen3_config
from dovetail.errors import CheckpointError

# By architecture: the model types it may have, and who reads the rest.
_ARCHITECTURES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any], Path], TargetConfig]]] = {
    "DeepseekV3ForCausalLM": (("deepseek_v3", "kimi_k2"), deepseek_v3_config),
    "LlamaForCausalLM": (("llama",), llama_config),
    "MistralForCausalLM": (("mistral",), llama_config),
    "Qwen2ForCausalLM": (("qwen2",), qwen2_config),
    "Qwen3ForCausalLM": (("qwen3",), qwen3_config),
}


def target_config(raw: Mapping[str, Any], path: Path) -> TargetConfig:
    """Check and convert a target's config.json. Raises `CheckpointError`."""
    declared = field(raw, "architectures", list, path)
    name = ", ".join(map(str, declared)) or "unnamed"
    types, read = _ARCHITECTURES.get(name, ((), None))
    if read is None or raw.get("model_type") not in types:
        known = ", ".join(f"{a} (model_type {' or '.join(t)})" for a, (t, _) in _ARCHITECTURES.items())
        raise CheckpointError(
            f"{path}: architecture {name} (model_type {raw.get('model_type')!r}) is not supported: the embedded "
            f"engine runs {known}"
        )
    return read(raw, path)
