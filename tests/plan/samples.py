"""Valid values of every setting, at least two that differ; for a setting with choices, all of them."""

from __future__ import annotations

from typing import Any

from dovetail.plan.option import Option
from dovetail.plan.options import OPTIONS

_OF_NAME: dict[str, tuple[Any, ...]] = {
    "target": ("/models/target", "Qwen/Qwen3-8B"),
    "drafter": ("/models/drafter", "RedHatAI/Qwen3-8B-speculator.eagle3"),
    "tokenizer": ("/models/tokenizer", "Qwen/Qwen3-8B"),
    "revision": ("main", "v1"),
    "engine": ("embedded", "vllm"),
    "draft_tokens": (0, 3),
    "draft_top_k": (1, 4),
    "prompt_lookup_min": (8, 16),
    "draft_attention_backend": ("TRITON_MLA", "FLASHINFER"),
    "draft_tensor_parallel_size": (1, 8),
    "max_draft_tokens": (4, 8),
    "speculate_below_context": (7000, 16384),
    "speculate_up_to_batch": (1, 32),
    "quantization": ("fp8", "awq"),
    "load_format": ("safetensors", "fastsafetensors"),
    "attention_backend": ("TRITON_MLA", "FLASHINFER"),
    "context": (4096, 262144),
    "max_batch": (1, 128),
    "max_batched_tokens": (4096, 32768),
    "gpu_memory_utilization": (0.9, 1.0),
    "kv_cache_memory_bytes": (1 << 30, 10**11),
    "mm_processor_cache_gb": (0, 4),
    "seed": (0, 42),
    "env": ({"NCCL_P2P_LEVEL": "SYS"}, {"OMP_NUM_THREADS": 8}),
    "engine_args": ("--enforce-eager", "--uvicorn-log-level warning --enable-expert-parallel"),
    "vllm": ("/engines/bin/vllm", "/engines/another/bin/vllm"),
    "engine_log": ("/logs/vllm.log", "/logs/another.log"),
    "engine_api_key_file": ("/keys/engine", "/keys/another"),
    "first_token_timeout": (0.5, 30.0),
    "engine_idle_timeout": (0.5, 30.0),
    "engine_down_timeout": (0.5, 30.0),
    "gpus": ("8x B200", "auto"),
    "context_interleave": (1, 16),
    "threads": (1, 2),
    "format": ("kimi_k25", "deepseek_v31"),
    "reasoning_budget": (0, 2),
    "fixed_sampling": ("temperature=0.6/1,top_p=0.95", "model"),
    "gate_override": (True, False),
    "no_repair": ("none", "all"),
    "allow_host": ("models.example", "a.example,b.example"),
    "metrics_tools": (True, False),
    "metrics_port": (9100, 9101),
    "otlp_endpoint": ("http://localhost:4318", "https://collector.example/v1/traces"),
    "max_waiting": (1, 100),
    "max_waiting_tokens": (1, 100),
    "queue_timeout": (0.5, 30.0),
    "body_memory": (1 << 23, 1 << 30),
    "max_connections": (1, 100),
    "header_timeout": (0.5, 30.0),
    "body_timeout": (0.5, 30.0),
    "send_timeout": (0.5, 30.0),
    "keep_alive_timeout": (0.5, 30.0),
    "grace": (0.5, 30.0),
    "ssl_certfile": ("/tls/server.pem", "/tls/another.pem"),
    "ssl_keyfile": ("/tls/server.key", "/tls/another.key"),
    "uds": ("/run/dovetail.sock", "/run/another.sock"),
    "uds_mode": ("600", "0660"),
    "served_model_name": ("model", "another"),
    "host": ("127.0.0.1", "::1"),
    "port": (8000, 9000),
    "api_key_file": ("/keys/key", "/keys/another"),
    "api_keys": ("/keys/keys.yaml", "/keys/more.yaml"),
    "response_store": ("/stores/responses.db", "/stores/another.db"),
    "response_store_count": (1, 100),
    "response_store_size": (1, 1 << 20),
    "response_store_age": (0.5, 7.0),
    "record": ("/recordings", "/more/recordings"),
    "record_when": ("always", "requested"),
    "record_redact": (True, False),
    "record_count": (1, 100),
    "record_size": (1, 1 << 20),
    "record_age": (0.5, 7.0),
    "record_key_file": ("/keys/records", "/keys/another"),
    "allow_origin": ("*", "https://app.example,http://localhost:3000"),
}


def _samples(option: Option) -> tuple[Any, ...]:
    name, choices = option.name, option.choices
    if name in _OF_NAME:
        return _OF_NAME[name]
    if choices is not None:
        return tuple(choice for choice in choices if choice != option.unset_word)
    return (1, 8) if name.endswith("_parallel_size") else (True, False)


SAMPLES: dict[str, tuple[Any, ...]] = {option.name: _samples(option) for option in OPTIONS}
