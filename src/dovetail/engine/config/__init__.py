"""What config.json of a target or a drafter declares, as frozen data, checked once where it enters. No torch here."""

from dovetail.engine.config.base import LinearScaling, Llama3Scaling, Rope, TargetConfig, Yarn
from dovetail.engine.config.deepseek_v3 import DeepseekV3Config
from dovetail.engine.config.drafter import (
    DrafterConfig,
    Eagle3Config,
    MTPConfig,
    check_verifier,
    drafter_config,
    mtp_config,
)
from dovetail.engine.config.llama import LlamaConfig, Qwen3Config
from dovetail.engine.config.target import target_config

__all__ = [
    "DeepseekV3Config",
    "DrafterConfig",
    "Eagle3Config",
    "LinearScaling",
    "Llama3Scaling",
    "LlamaConfig",
    "MTPConfig",
    "Qwen3Config",
    "Rope",
    "TargetConfig",
    "Yarn",
    "check_verifier",
    "drafter_config",
    "mtp_config",
    "target_config",
]
