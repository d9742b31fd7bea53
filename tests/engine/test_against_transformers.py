"""Greedy ids of whole answers equal those of transformers' `generate`, many sequences at once against one at a time.

Llama and Qwen3 are checkpoints that transformers wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.completion import Completion, Sampling
from tests.engine.checkpoints import LATENT, YARN, load_core, run, write_target

pytestmark = pytest.mark.slow

PROMPTS = {
    "a": (2, 3, 4),
    "b": tuple(range(5, 40)),
    "c": (9,),
    "d": (11, 80, 7, 7, 60, 3),
    "e": tuple(range(96, 20, -1)),
}
MAX_TOKENS = 32
GQA: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # so large that every token matters
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "DeepSeek-V3": ("DeepseekV3", {}),
    "DeepSeek-V3, latent cache, yarn": ("DeepseekV3", LATENT | {"rope_scaling": YARN}),
    "DeepSeek-V3, groups": ("DeepseekV3", {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}),
    "Llama": ("Llama", GQA),
    "Llama 3.1": ("Llama", GQA | {"rope_parameters": LLAMA3_ROPE, "num_key_value_heads": 1}),
    "Llama, tied": ("Llama", GQA | {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "Qwen3": ("Qwen3", GQA),
    "Qwen3, tied": ("Qwen3", GQA | {"tie_word_embeddings": True}),
}


def write(path: Path, family: str, fields: dict[str, Any]) -> Path:
    """A tiny checkpoint of random weights."""
    if family == "DeepseekV3":
        return write_target(path, **fields)
    import transformers

    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**fields))
    model.save_pretrained(path)
    return path


def generated(path: Path) -> dict[str, list[int]]:
    """What transformers answers to each prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    answers = {}
    for name, prompt in PROMPTS.items():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_TOKENS, pad_token_id=0
        )
        answers[name] = out[0, len(prompt) :].tolist()
    return answers


@pytest.mark.parametrize("case", CASES)
def test_answers_equal_those_of_generate(case: str, tmp_path: Path) -> None:
    path = write(tmp_path, *CASES[case])
    core = load_core(path, max_batch=3)
    greedy = Sampling(temperature=0)
    answers = run(core, {name: Completion(prompt, MAX_TOKENS, sampling=greedy) for name, prompt in PROMPTS.items()})
    assert answers == generated(path)
    assert len({token for answer in answers.values() for token in answer}) > 10
