"""Tiny random checkpoints for the engine's tests, written as ordinary folders."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from dovetail.checkpoints.drafter import read_drafter
from dovetail.checkpoints.target import Target, read_target
from dovetail.completion import Completion, TokenBatch, total
from dovetail.engine.config import Eagle3Config, drafter_config, mtp_config, target_config
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.tokens import Tokenizer

TARGET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.8,
    "kv_lora_rank": 64,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 1,
}

DRAFTER: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 97,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
    "norm_before_residual": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
    },
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 97,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    },
}

# The same drafter as SpecForge and TorchSpec write it, and one with DeepSeek-V2's attention.
PLAIN_DRAFTER: dict[str, Any] = DRAFTER["transformer_layer_config"] | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "draft_vocab_size": 97,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 3], "use_aux_hidden_state": True},
}

MLA_DRAFTER: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": 97,
    "draft_vocab_size": 97,
    "rope_theta": 50000.0,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2], "use_aux_hidden_state": True},
}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": 1,
}

QWEN3: dict[str, Any] = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "use_sliding_window": False,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}

# A cache of latents: so many heads that expanding them would cost more than kv_lora_rank 16 does.
LATENT = {"kv_lora_rank": 16}


class ByteTokenizer(Tokenizer):
    """Token i is the letter at i, so that stop strings can be written down."""

    control: Mapping[str, int] = MappingProxyType({})
    vocab_size = 97

    def _encode(self, text: str) -> list[int]:
        return [ord(c) - 30 for c in text]

    def _bytes(self, token: int) -> bytes:
        return chr(token + 30).encode()


def write_target(path: Path, seed: int = 0, base: dict[str, Any] = TARGET, **changes: Any) -> Path:
    """A target folder; the weights are large enough that attention and routing differ from token to token."""
    _write_config(path, base | changes)
    shapes = target_config(read_target(str(path))).expected_tensors()
    save_file({name: _random(name, shape, seed) for name, shape in shapes.items()}, path / "model.safetensors")
    return path


def write_llama(path: Path, seed: int = 0, **changes: Any) -> Path:
    """As `write_target`, of the Llama architecture."""
    return write_target(path, seed, LLAMA, **changes)


def write_qwen3(path: Path, seed: int = 0, **changes: Any) -> Path:
    """As `write_target`, of the Qwen3 architecture."""
    return write_target(path, seed, QWEN3, **changes)


def write_drafter(
    path: Path,
    target: dict[str, Any] | None = None,
    seed: int = 1,
    base: dict[str, Any] = DRAFTER,
    own: Sequence[str] = ("lm_head.weight",),
    **changes: Any,
) -> Path:
    """An EAGLE-3 drafter's folder for a target made by `write_target` with the changes in `target`; `own` are those of
    the tensors it could share that it brings along."""
    config = base | changes
    _write_config(path, config)
    fitted = drafter_config(read_drafter(str(path)), described(TARGET | (target or {})))
    assert isinstance(fitted, Eagle3Config)
    count, vocab, hidden = fitted.draft_vocab_size, fitted.layer.vocab_size, fitted.layer.hidden_size
    shapes = fitted.expected_tensors()
    shapes |= {name: (count if name == "lm_head.weight" else vocab, hidden) for name in own}
    if fitted.mask_token_id is not None:
        shapes["mask_hidden"] = (1, 1, fitted.feature_width)
    tensors = {name: _random(name, shape, seed) for name, shape in shapes.items()}
    if "d2t" in tensors:
        kept = torch.arange(count) * vocab // count
        tensors["d2t"] = kept - torch.arange(count)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, kept, True)
    if "speculators_model_type" not in config:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    save_file(tensors, path / "model.safetensors")
    return path


def described(config: dict[str, Any]) -> Target:
    """The target that a config.json declares."""
    with tempfile.TemporaryDirectory() as folder:
        _write_config(Path(folder), config)
        return read_target(folder)


def write_mtp_target(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A target folder with one MTP layer, as DeepSeek-V3 is published: its embeddings and head are there once more."""
    _write_config(path, TARGET | changes | {"num_nextn_predict_layers": 1})
    target = read_target(str(path))
    config = target_config(target)
    mtp = mtp_config(target, config)
    shapes = config.expected_tensors() | mtp.expected_tensors()
    tensors = {name: _random(name, shape, seed) for name, shape in shapes.items()}
    tensors[mtp.prefix + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[mtp.prefix + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path / "model.safetensors")
    return path


def batches_of(core: LLMCore, completions: dict[str, Completion]) -> dict[str, list[TokenBatch]]:
    """The outcomes of each completion, all added at once."""
    batches: dict[str, list[TokenBatch]] = {name: [] for name in completions}
    for name, completion in completions.items():
        core.add(name, completion)
    while core.live:
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch)
            batches[name].append(outcome)
        core.check_integrity()
    return batches


def run(core: LLMCore, completions: dict[str, Completion], late: dict[int, str] | None = None) -> dict[str, list[int]]:
    """Output ids of every completion; `late` maps a step number to the request that is only added there."""
    late = late or {}
    out: dict[str, list[int]] = {name: [] for name in completions}
    for name, completion in completions.items():
        if name not in late.values():
            core.add(name, completion)
    number = 0
    while core.live or number <= max(late, default=-1):
        if number in late:
            core.add(late[number], completions[late[number]])
        for name, outcome in core.step():
            if not isinstance(outcome, TokenBatch):
                raise outcome
            out[name] += outcome.ids
        core.check_integrity()
        number += 1
    gauges = core.gauges()
    assert total(gauges, "free_blocks") == total(gauges, "total_blocks")
    return out


def load_core(
    target: Path,
    drafter: Path | str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> LLMCore:
    """A core in one thread, which drafts nothing unless `settings` give draft_tokens."""
    chosen = EngineSettings(**{"draft_tokens": 0, "threads": 1} | settings)
    return LLMCore.load(target, drafter, tokenizer or ByteTokenizer(), chosen, progress)


def _random(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(map(ord, name)) * 7919 + len(name))
    noise = torch.randn(shape, generator=generator)
    if "norm" in name and len(shape) == 1:
        return 1 + 0.1 * noise
    if name.endswith("e_score_correction_bias"):
        return 0.2 * noise
    # As published checkpoints have them: numbers that 16 bits hold, which some processors keep so.
    return (noise * (1.0 if "embed" in name else 1.2 * shape[-1] ** -0.5)).bfloat16().float()


def _write_config(path: Path, config: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").unlink(missing_ok=True)
    (path / "config.json").write_text(json.dumps(config))
