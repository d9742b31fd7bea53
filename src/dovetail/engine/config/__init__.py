"""The configs of the models that the embedded engine runs, made from what a checkpoint declares. No torch here."""

from dovetail.engine.config.base import TargetConfig
from dovetail.engine.config.deepseek_v3 import DeepseekV3Config
from dovetail.engine.config.drafter import DrafterConfig, Eagle3Config, MTPConfig, drafter_config, mtp_config
from dovetail.engine.config.llama import LlamaConfig, Qwen3Config
from dovetail.engine.config.target import target_config

__all__ = [
    "DeepseekV3Config",
    "DrafterConfig",
    "Eagle3Config",
    "LlamaConfig",
    "MTPConfig",
    "Qwen3Config",
    "TargetConfig",
    "drafter_config",
    "mtp_config",
    "target_config",
]
