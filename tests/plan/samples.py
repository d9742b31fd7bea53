"""Valid values of every setting, at least two that differ; for a setting with choices, all of them."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from dovetail.plan.option import Option
from dovetail.plan.options import OPTIONS

#: Settings whose values have a form of their own, ends that not every number has, or only some words that engines take.
_OF_NAME: dict[str, tuple[Any, ...]] = {
    "target": ("/models/target", "Qwen/Qwen3-8B"),
    "drafter": ("/models/drafter", "RedHatAI/Qwen3-8B-speculator.eagle3"),
    "tokenizer": ("/models/tokenizer", "Qwen/Qwen3-8B"),
    "engine": ("embedded", "vllm"),
    "quantization": ("fp8", "awq"),
    "load_format": ("safetensors", "fastsafetensors"),
    "draft_attention_backend": ("TRITON_MLA", "FLASHINFER"),
    "attention_backend": ("TRITON_MLA", "FLASHINFER"),
    "speculate_below_context": (7000, 16384),
    "draft_acceptance": ("standard", "block"),
    "gpu_memory_utilization": (0.9, 1.0),
    "env": ({"NCCL_P2P_LEVEL": "SYS"}, {"OMP_NUM_THREADS": 8}),
    "engine_args": ("--enforce-eager", "--uvicorn-log-level warning --enable-expert-parallel"),
    "gpus": ("8x B200", "auto"),
    "format": ("kimi_k25", "deepseek_v31"),
    "fixed_sampling": ("temperature=0.6/1,top_p=0.95", "model"),
    "no_repair": ("none", "all"),
    "image_urls": ("images.example", "*"),
    "allow_host": ("models.example", "a.example,b.example"),
    "otlp_endpoint": ("http://localhost:4318", "https://collector.example/v1/traces"),
    "store": ("redis://redis.example/1", "postgresql://me@db.example/dovetail?sslmode=verify-full"),
    "uds_mode": ("600", "0660"),
    "alias": ("haiku=scripted", "haiku=scripted,claude-*=scripted"),
    "allow_origin": ("*", "https://app.example,http://localhost:3000"),
}


def _samples(option: Option) -> tuple[Any, ...]:
    if option.name in _OF_NAME:
        return _OF_NAME[option.name]
    if option.choices is not None:
        return tuple(choice for choice in option.choices if choice != option.unset_word)
    info = inspect.type_info(option.type)
    kind = info.types[0] if isinstance(info, inspect.UnionType) else info
    match kind:
        case inspect.BoolType():
            return True, False
        case inspect.IntType():
            least = kind.ge or 0
            return least, least + 7
        case inspect.FloatType():
            return 0.5, 30.0
    return f"/{option.name}/one", f"/{option.name}/another"


SAMPLES: dict[str, tuple[Any, ...]] = {option.name: _samples(option) for option in OPTIONS}
