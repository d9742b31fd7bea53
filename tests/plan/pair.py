"""A target and a drafter for plans: config.json, a tokenizer, and weight files that are never opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

VOCABULARY = 384  # some more than the tokenizer has, as real targets do

TARGET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "first_k_dense_replace": 1,
    "eos_token_id": 1,
}
DRAFTER: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": VOCABULARY,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    "transformer_layer_config": {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_theta": 10000.0,
    },
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 2}],
        "verifier": {"name_or_path": "../target", "architectures": ["DeepseekV3ForCausalLM"]},
    },
}


def write_target(folder: Path, tokenizer_file: Path, **changes: Any) -> Path:
    """A Kimi-K2 shaped target, whatever is in `changes`."""
    _write(folder, TARGET | changes)
    shutil.copy(tokenizer_file, folder / "tokenizer.json")
    return folder


def write_drafter(folder: Path, **changes: Any) -> Path:
    """An EAGLE-3 drafter in the speculators format, which expects its target beside it, as `target`."""
    return _write(folder, DRAFTER | changes)


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder
