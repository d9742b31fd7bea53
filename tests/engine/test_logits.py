"""The target's logits equal transformers' DeepseekV3ForCausalLM, prompt at once or token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.engine.checkpoint import inspect_target, load_tensors
from dovetail.engine.models.base import SequenceRows, collate
from dovetail.engine.models.deepseek_v3 import DeepseekV3, expands
from tests.engine.checkpoints import LATENT, YARN, write_target

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "latent cache": LATENT,
    "latent cache, yarn": LATENT | {"rope_scaling": YARN, "rms_norm_eps": 1e-3},
    "no q_lora": {"q_lora_rank": None},
    "groups": {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    "many experts": {"n_routed_experts": 24, "n_group": 2, "topk_group": 1, "norm_topk_prob": False},
    "yarn": {"rope_scaling": YARN},
    "tied": {"tie_word_embeddings": True, "n_shared_experts": 2},
    "all dense": {"first_k_dense_replace": 3, "q_lora_rank": None, "rope_scaling": YARN | {"mscale_all_dim": None}},
}
TOKENS = [(i * 37 + 5) % 97 for i in range(41)]


def load(path: Path, aux_layers: tuple[int, ...] = ()) -> DeepseekV3:
    found = inspect_target(path)
    weights = load_tensors(found.tensors, found.config.expected_tensors())
    return DeepseekV3(found.config, weights, rows=512, context=256, dtype=torch.float32, aux_layers=aux_layers)


def reference(path: Path) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """transformers' logits, and the residual stream that enters each layer."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = json.loads((path / "config.json").read_text())
    model = DeepseekV3ForCausalLM.from_pretrained(path, config=DeepseekV3Config(**config), dtype=torch.float32)
    entering: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _m, args: entering.append(args[0][0]))
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0], entering


@pytest.mark.parametrize("case", CASES)
def test_equal_to_transformers(case: str, tmp_path: Path) -> None:
    path = write_target(tmp_path, **CASES[case])
    expected, entering = reference(path)
    with torch.inference_mode():
        model = load(path, aux_layers=(0, 1, 2))
        rows = SequenceRows((7, 3, 5, 4), 16)
        hidden, aux = model.forward(collate([(TOKENS, 0, rows)]))
        whole = model.logits(hidden)
        pieces = []
        for start, end in [(0, 1), (1, 2), (2, 20), (20, 21), (21, 26), (26, 41)]:
            part, _ = model.forward(collate([(TOKENS[start:end], start, rows)]))
            pieces.append(model.logits(part))
    assert (whole - expected).abs().max() < 1e-4
    assert (torch.cat(pieces) - expected).abs().max() < 1e-4
    assert aux is not None
    assert (aux - torch.cat(entering, -1)).abs().max() < 1e-4


def test_a_folder_that_transformers_wrote(tmp_path: Path) -> None:
    """Its tensor names and its config's spelling (rope_parameters, defaults left out) are read as they are."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    first = write_target(tmp_path / "first", rope_scaling=YARN, n_group=2, topk_group=1)
    config = DeepseekV3Config(**json.loads((first / "config.json").read_text()))
    model = DeepseekV3ForCausalLM.from_pretrained(first, config=config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "second")
    with torch.inference_mode():
        batch = collate([(TOKENS, 0, SequenceRows((0, 1, 2), 16))])
        mine, theirs = load(tmp_path / "second"), load(first)
        assert torch.equal(mine.forward(batch)[0], theirs.forward(batch)[0])


def test_cases_cover_both_caches(tmp_path: Path) -> None:
    kinds = {expands(inspect_target(write_target(tmp_path / c.replace(" ", ""), **CASES[c])).config) for c in CASES}
    assert kinds == {True, False}


def test_mixed_batch_equals_alone(tmp_path: Path) -> None:
    """A prompt, a single token and a window in one batch give what each gives alone."""
    model = load(write_target(tmp_path, **LATENT))
    with torch.inference_mode():
        rows = [SequenceRows(table, 16) for table in ((0, 1, 2), (5, 4), (9, 7))]
        alone = [
            model.forward(collate([(TOKENS[:30], 0, rows[0])]))[0],
            model.forward(collate([(TOKENS[:9], 0, rows[1])]))[0][-1:],
            model.forward(collate([(TOKENS[3:15], 0, rows[2])]))[0][-4:],
        ]
        parts = [(TOKENS[:30], 0, rows[0]), (TOKENS[8:9], 8, rows[1]), (TOKENS[11:15], 8, rows[2])]
        together, _ = model.forward(collate(parts))
    assert (together - torch.cat(alone)).abs().max() < 1e-4
