"""Greedy ids equal those of vLLM 0.32 on CPU: Llama and DeepSeek-V3's architecture, with EAGLE-3 and without.

DOVETAIL_VLLM_CPU is the Python of an environment with vLLM; `benchmarks/engine/setup.sh FOLDER` makes one.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail.completion import Completion, Sampling
from tests.engine.checkpoints import DRAFTER, YARN, load_core, run, write_drafter, write_target
from tests.engine.test_against_transformers import GQA, MAX_TOKENS, PROMPTS, write

# What vLLM's attention asks of DeepSeek-V3, and of any head.
MLA: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "vocab_size": 97,
}
LLAMA = GQA | {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32}
TARGETS: dict[str, dict[str, Any]] = {
    "Llama": LLAMA,
    "DeepSeek-V3": MLA,
    "DeepSeek-V3, yarn": MLA | {"rope_scaling": YARN},
}
K = 3


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path


@pytest.fixture(scope="module")
def python() -> str:
    python = os.environ.get("DOVETAIL_VLLM_CPU")
    if not python:
        pytest.skip("DOVETAIL_VLLM_CPU does not name the Python of an environment with vLLM on CPU")
    return python


@pytest.fixture(scope="module")
def pairs(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    pairs = {}
    for name, fields in TARGETS.items():
        folder = tmp_path_factory.mktemp("pair")
        if name == "Llama":
            target = write(folder / "target", "Llama", fields)
        else:
            target = write_target(folder / "target", **fields)
        layer = DRAFTER["transformer_layer_config"] | {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "num_hidden_layers": 1,
            "max_position_embeddings": 256,
        }
        verifier = {"name_or_path": str(target), "architectures": []}
        speculators = DRAFTER["speculators_config"] | {"verifier": verifier}
        drafter = write_drafter(
            folder / "drafter",
            fields if name != "Llama" else MLA,
            transformer_layer_config=layer,
            speculators_config=speculators,
            target_hidden_size=64,
            draft_vocab_size=64,
            eagle_aux_hidden_state_layer_ids=[1, 2, 3],
        )
        pairs[name] = Pair(target, drafter)
    return pairs


@pytest.fixture(scope="module")
def theirs(
    python: str, pairs: dict[str, Pair], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool], Any]:
    """vLLM's answers by target, without drafter and with it, from one process."""
    keys = [(name, drafts) for name in pairs for drafts in (False, True)]
    jobs = [
        {
            "target": str(pairs[name].target),
            "drafter": str(pairs[name].drafter) if drafts else None,
            "draft_tokens": K,
            "prompts": list(PROMPTS.values()),
            "max_tokens": MAX_TOKENS,
        }
        for name, drafts in keys
    ]
    cache = tmp_path_factory.mktemp("cache")
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "",
    }
    done = subprocess.run(
        [python, str(Path(__file__).with_name("vllm_ids.py"))],
        env=os.environ | quiet,
        input=json.dumps(jobs),
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = (dict(zip(PROMPTS, ids, strict=True)) for ids in json.loads(done.stdout))
    return dict(zip(keys, answers, strict=True))


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "EAGLE-3"])
@pytest.mark.parametrize("name", TARGETS)
def test_answers_equal_those_of_vllm(
    name: str, drafts: bool, pairs: dict[str, Pair], theirs: dict[tuple[str, bool], Any]
) -> None:
    pair = pairs[name]
    drafter = pair.drafter if drafts else None
    core = load_core(pair.target, drafter, draft_tokens=K, max_batch=4)
    greedy = Sampling(temperature=0)
    answers = run(core, {n: Completion(prompt, MAX_TOKENS, sampling=greedy) for n, prompt in PROMPTS.items()})
    assert answers == theirs[name, drafts]
    assert len({token for answer in answers.values() for token in answer}) > 10
    assert not drafts or core.counters().drafted > 0
