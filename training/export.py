"""Writes trained weights as ordinary checkpoints: Hugging Face layout for the target, speculators' for the drafter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dovetail.tokens import tokenizer as load_tokenizer
from training.model import DrafterShape, TargetShape

DRAFT_TOKENS = 3


def export(tokenizer_path: Path, run: Path, out: Path) -> None:
    """Write `out`/target and `out`/drafter from `run`'s target.pt and drafter.pt."""
    control = load_tokenizer(tokenizer_path).control
    target, drafter = out / "target", out / "drafter"
    shape = TargetShape()
    config = drafter_config(DrafterShape(), shape.vocab_size, shape.context, "../target", "DeepseekV3ForCausalLM")
    write(target, _target_config(shape, control), torch.load(run / "target.pt", map_location="cpu"))
    write(drafter, config, torch.load(run / "drafter.pt", map_location="cpu"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_path / name, target / name)
    generation = {
        "bos_token_id": control["[BOS]"],
        "eos_token_id": control["<|im_end|>"],
        "do_sample": True,
        "temperature": 1.0,
    }
    (target / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def write(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write a checkpoint of one file of weights, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {
        # The bias that balances the experts decides between near ties: it stays float32, as in DeepSeek's checkpoints.
        name: (
            t if name.endswith("e_score_correction_bias") or not t.is_floating_point() else t.bfloat16()
        ).contiguous()
        for name, t in state.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _target_config(s: TargetShape, control: Any) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": s.vocab_size,
        "hidden_size": s.hidden_size,
        "intermediate_size": s.intermediate_size,
        "moe_intermediate_size": s.moe_intermediate_size,
        "num_hidden_layers": s.num_hidden_layers,
        "num_attention_heads": s.num_attention_heads,
        "num_key_value_heads": s.num_attention_heads,
        "n_shared_experts": s.n_shared_experts,
        "n_routed_experts": s.n_routed_experts,
        "num_experts_per_tok": s.num_experts_per_tok,
        "routed_scaling_factor": s.routed_scaling_factor,
        "first_k_dense_replace": s.first_k_dense_replace,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "q_lora_rank": s.q_lora_rank,
        "kv_lora_rank": s.kv_lora_rank,
        "qk_nope_head_dim": s.qk_nope_head_dim,
        "qk_rope_head_dim": s.qk_rope_head_dim,
        "v_head_dim": s.v_head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": s.context,
        "rope_theta": s.rope_theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": s.rope_factor,
            "original_max_position_embeddings": s.original_context,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rms_norm_eps": s.rms_norm_eps,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": control["[BOS]"],
        "eos_token_id": control["<|im_end|>"],
        "pad_token_id": control["[PAD]"],
    }


def drafter_config(s: DrafterShape, vocab_size: int, context: int, verifier: str, architecture: str) -> dict[str, Any]:
    """The config of a drafter, for the target `verifier` of this vocabulary, context and architecture."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": s.draft_vocab_size,
        "target_hidden_size": s.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(s.aux_layers),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": vocab_size,
            "hidden_size": s.hidden_size,
            "intermediate_size": s.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": s.num_attention_heads,
            "num_key_value_heads": s.num_key_value_heads,
            "head_dim": s.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": context,
            "rope_theta": s.rope_theta,
            "rms_norm_eps": s.rms_norm_eps,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": DRAFT_TOKENS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": [architecture]},
        },
    }
