"""The target's logits equal transformers': prompt at once, in any chunks or token by token, in every type."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.attention import causal
from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.config import DeepseekV3Config
from dovetail.engine.models.base import Model, collate
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.settings import AttentionBackend, CacheDType
from dovetail.engine.weights import inspect_target, load_tensors
from dovetail.errors import EngineError
from tests.engine.checkpoints import LATENT, LLAMA, LLAMA3, QWEN3, TARGET, YARN, write_llama, write_qwen3, write_target
from tests.engine.processors import needs, one_for_each
from tests.examples import examples

DEEPSEEK: dict[str, dict[str, Any]] = {
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
DENSE: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama, one key-value head": LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama, a key-value head each": LLAMA | {"num_key_value_heads": None, "head_dim": None, "rms_norm_eps": 1e-3},
    "llama, biases": LLAMA | {"attention_bias": True},
    "llama, linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama, llama3": LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "llama, yarn": LLAMA | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6} | YARN},
    "mistral": LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": 8},
    "qwen3": QWEN3,
    "qwen3, tied": QWEN3 | {"tie_word_embeddings": True, "num_key_value_heads": 3, "rms_norm_eps": 1e-3},
    "qwen3, biases": QWEN3 | {"attention_bias": True, "rope_theta": 1e6},
}
CASES = {name: TARGET | changes for name, changes in DEEPSEEK.items()} | DENSE
TOKENS = [(i * 37 + 5) % 97 for i in range(41)]
CHUNKS = [(0, 1), (1, 2), (2, 20), (20, 21), (21, 26), (26, 41)]


def load(
    path: Path, aux_layers: tuple[int, ...] = (), options: Options | None = None, dtype: torch.dtype = torch.float32
) -> Model:
    checkpoint = inspect_target(path)
    weights = load_tensors(checkpoint.tensors, checkpoint.config.expected_tensors())
    return build_model(
        checkpoint.config,
        weights,
        rows=512,
        context=256,
        dtype=dtype,
        aux_layers=aux_layers,
        options=options or Options(),
    )


def table(*blocks: int) -> BlockTable:
    rows = BlockTable(16)
    for block in blocks:
        rows.append(block)
    return rows


def logits(model: Model, chunks: list[tuple[int, int]]) -> torch.Tensor:
    """At every position, computed chunk by chunk."""
    rows = table(7, 3, 5, 4)
    with torch.inference_mode():
        parts = [model.forward(collate([(TOKENS[start:end], start, rows)]))[0] for start, end in chunks]
        return model.logits(torch.cat(parts))


def off(checkpoint: torch.Tensor, expected: torch.Tensor) -> float:
    """How far off a position is, typically: a few are far off, where rounding sent a token to another expert."""
    return ((checkpoint - expected).norm(dim=-1) / expected.norm(dim=-1)).median().item()


def reference(path: Path) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """transformers' logits, and the residual stream that enters each layer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    entering: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _m, args: entering.append(args[0][0]))
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0], entering


@pytest.mark.parametrize("case", CASES)
def test_equal_to_transformers(case: str, tmp_path: Path) -> None:
    path = write_target(tmp_path, base=CASES[case])
    expected, entering = reference(path)
    with torch.inference_mode():
        model = load(path, aux_layers=(0, 1, 2))
        _, aux = model.forward(collate([(TOKENS, 0, table(0, 1, 2))]))
    assert (logits(model, [(0, 41)]) - expected).abs().max() < 1e-4
    assert (logits(model, CHUNKS) - expected).abs().max() < 1e-4
    assert aux is not None
    assert (aux - torch.cat(entering, -1)).abs().max() < 1e-4


FAMILIES = {"heads": write_target, "latent": write_target, "llama": write_llama, "qwen3": write_qwen3}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = LATENT if request.param == "latent" else {}
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param), **changes)


@pytest.mark.parametrize(
    ("backend", "kv", "compute"),
    list(itertools.product(("auto", "matmul", "sdpa"), ("float32", "bfloat16"), ("float32", "bfloat16"))),
)
def test_however_it_is_held(
    folder: Path, backend: AttentionBackend, kv: CacheDType, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel with every type of cache: in float32 as exact as the cache is, and never far off."""
    plain = logits(load(folder), [(0, 41)])
    # Few scores at once, so that prompts are computed in several parts.
    monkeypatch.setattr(causal, "_SCORES", 200)
    options = Options(kv_cache_dtype=kv, attention_backend=backend)
    loaded = load(folder, options=options, dtype=getattr(torch, compute))
    tolerance = 1e-5 if kv == compute == "float32" else 0.05
    for chunks in ([(0, 41)], CHUNKS, [(i, i + 1) for i in range(41)]):
        assert off(logits(loaded, chunks), plain) < tolerance


@pytest.mark.slow
@given(cuts=st.sets(st.integers(1, 40)), scores=st.integers(1, 4000))
@examples(15)
def test_any_chunks(folder: Path, cuts: set[int], scores: int) -> None:
    model = load(folder)
    expected = logits(model, [(0, 41)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal, "_SCORES", scores)
        for backend in ("auto", "matmul", "sdpa"):
            chunked = load(folder, options=Options(attention_backend=backend))
            difference = logits(chunked, list(itertools.pairwise([0, *sorted(cuts), 41]))) - expected
            assert difference.abs().max() < 1e-4


def test_keys_and_values_of_heads_are_floats() -> None:
    with pytest.raises(EngineError, match=r"float8_e4m3fn.*float32 or bfloat16"):
        HeadCache(1, 8, 8, 16, torch.float8_e4m3fn)


@pytest.mark.parametrize("processor", one_for_each("bfloat16"))
def test_bfloat16_by_every_kernel(folder: Path, processor: str) -> None:
    plain = logits(load(folder), [(0, 41)])
    wide = load(folder, options=Options(kernels=needs(processor, "bfloat16", None)), dtype=torch.bfloat16)
    for chunks in ([(0, 41)], CHUNKS):
        assert off(logits(wide, chunks), plain) < 0.05


@pytest.mark.parametrize("processor", one_for_each("int8"))
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_int8_weights(folder: Path, compute: str, processor: str) -> None:
    """8 bits leave the logits close, and a row of them the same, whatever other rows are computed with it."""
    plain = logits(load(folder), [(0, 41)])
    loaded = load(
        folder,
        options=Options(quantization="int8", kernels=needs(processor, compute, "int8")),
        dtype=getattr(torch, compute),
    )
    assert off(logits(loaded, CHUNKS), plain) < 0.1
    hidden = torch.randn(9, 48).to(getattr(torch, compute))
    with torch.inference_mode():
        assert torch.equal(loaded.logits(hidden), torch.cat([loaded.logits(row) for row in hidden.split(2)]))


def test_a_folder_that_transformers_wrote(tmp_path: Path) -> None:
    """Its tensor names and its config's spelling (rope_parameters, defaults left out) are read as they are."""
    from transformers import AutoModelForCausalLM

    cases = [TARGET | {"rope_scaling": YARN, "n_group": 2}, LLAMA | {"rope_scaling": LLAMA3}, QWEN3]
    for number, case in enumerate(cases):
        first, second = tmp_path / f"{number}", tmp_path / f"{number} again"
        model = AutoModelForCausalLM.from_pretrained(write_target(first, base=case), dtype=torch.float32)
        model.save_pretrained(second)
        written = json.loads((second / "config.json").read_text())
        (second / "config.json").write_text(json.dumps(written | {"eos_token_id": 1}))
        assert (logits(load(first), CHUNKS) - logits(load(second), CHUNKS)).abs().max() < 1e-5


def test_cases_cover_both_caches(tmp_path: Path) -> None:
    configs = [inspect_target(write_target(tmp_path / c.replace(" ", ""), **DEEPSEEK[c])).config for c in DEEPSEEK]
    assert {config.expands for config in configs if isinstance(config, DeepseekV3Config)} == {True, False}


def test_mixed_batch_equals_alone(folder: Path) -> None:
    """A prompt, a single token and a window in one batch give what each gives alone."""
    model = load(folder)
    with torch.inference_mode():
        rows = [table(*blocks) for blocks in ((0, 1, 2), (5, 4), (9, 7))]
        alone = [
            model.forward(collate([(TOKENS[:30], 0, rows[0])]))[0],
            model.forward(collate([(TOKENS[:9], 0, rows[1])]))[0][-1:],
            model.forward(collate([(TOKENS[3:15], 0, rows[2])]))[0][-4:],
        ]
        parts = [(TOKENS[:30], 0, rows[0]), (TOKENS[8:9], 8, rows[1]), (TOKENS[11:15], 8, rows[2])]
        together, _ = model.forward(collate(parts))
    assert (together - torch.cat(alone)).abs().max() < 1e-4
