"""Every drafter's drafts equal a slow, obvious reference that recomputes everything from the drafter's definition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.completion import Completion, Sampling, TokenBatch, total
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting import chain
from dovetail.engine.settings import AttentionBackend
from tests.engine import naive
from tests.engine.checkpoints import (
    DRAFTER,
    LATENT,
    LLAMA,
    MLA_DRAFTER,
    PLAIN_DRAFTER,
    QWEN3,
    TARGET,
    load_core,
    run,
    write_drafter,
    write_mtp_target,
    write_target,
)
from tests.engine.gates import fickle

pytestmark = pytest.mark.slow

LAYER = DRAFTER["transformer_layer_config"]
OWN = ("embed_tokens.weight", "lm_head.weight")
PEAGLE: dict[str, Any] = {"speculators_model_type": "peagle", "mask_token_id": 96}
EAGLE3: dict[str, dict[str, Any]] = {
    "speculators": {},
    "residual not normed": {"norm_before_residual": False},
    "own vocabulary": {"draft_vocab_size": 41},
    "two aux layers, named backwards": {"eagle_aux_hidden_state_layer_ids": [2, 1]},
    "everything shared": {"own": ()},
    "narrow, nothing shared": {
        "own": OWN,
        "target_hidden_size": 48,
        "transformer_layer_config": LAYER | {"hidden_size": 32, "num_attention_heads": 4},
    },
    "norms before fc": {"norm_before_fc": True, "fc_norm": True, "norm_output": True},
    "two layers": {"transformer_layer_config": LAYER | {"num_hidden_layers": 2}},
    "plain": {"base": PLAIN_DRAFTER},
    "plain, 3.1": {"base": PLAIN_DRAFTER, "fc_norm": True, "norm_output": True, "draft_vocab_size": 50},
    "mla": {"base": MLA_DRAFTER},
    "mla, norms": {"base": MLA_DRAFTER, "own": OWN, "fc_norm": True, "norm_output": True, "norm_before_residual": True},
    "qwen3 layers with biases": {
        "transformer_layer_config": LAYER | {"model_type": "qwen3", "num_hidden_layers": 2, "attention_bias": True}
    },
    "on llama": {"target": LLAMA},
    "parallel": PEAGLE,
    "parallel, more": PEAGLE
    | {
        "own": OWN,
        "norm_before_fc": True,
        "draft_vocab_size": 60,
        "transformer_layer_config": LAYER | {"num_hidden_layers": 3},
    },
}


MTP: dict[str, dict[str, Any]] = {
    "mtp": {},
    "mtp, latent cache": LATENT | {"num_hidden_layers": 2},
}
DRAFT_MODELS: dict[str, dict[str, Any]] = {
    "draft model": {"base": TARGET, "num_hidden_layers": 2, **LATENT},
    "draft model, llama": {"base": LLAMA, "num_hidden_layers": 1, "hidden_size": 24},
    "draft model, qwen3": {"base": QWEN3, "num_hidden_layers": 1, "tie_word_embeddings": True},
}


def made(case: str, folder: Path) -> tuple[Path, Path | str]:
    """Folders of a target and a drafter."""
    if case in MTP:
        return write_mtp_target(folder / "target", eos_token_id=0, **MTP[case]), "mtp"
    base = EAGLE3.get(case, {}).get("target", TARGET)
    target = write_target(folder / "target", base=base, eos_token_id=0)
    if case in DRAFT_MODELS:
        return target, write_target(folder / "drafter", seed=5, **DRAFT_MODELS[case])
    return target, write_drafter(folder / "drafter", **EAGLE3[case])


def reference(core: LLMCore, target: Path, drafter: Path | str) -> naive.Reference:
    assert core.models.drafter is not None
    if isinstance(drafter, str):
        model = naive.load(target, core.models.drafter.aux_layers)
        return naive.chained(naive.MTPReference(target, model), model)
    if not core.models.drafter.aux_layers:
        return naive.alone(naive.load(drafter))
    model = naive.load(target, core.models.drafter.aux_layers)
    network = naive.Eagle3Reference(drafter, model)
    return naive.parallel(network, model) if "mask_token_id" in network.raw else naive.chained(network, model)


CASES = [*EAGLE3, *MTP, *DRAFT_MODELS]


#: One case of each kind of drafter; the others are proofs.
ON_AND_OFF = ("speculators", "parallel", "mtp", "draft model")


def always_and_on_and_off() -> Iterator[Any]:
    for case in CASES:
        yield pytest.param(case, False, id=f"{case}-always")
        yield pytest.param(case, True, id=f"{case}-on and off", marks=() if case in ON_AND_OFF else pytest.mark.proof)


@pytest.mark.parametrize(("case", "gated"), list(always_and_on_and_off()))
def test_drafts_equal_the_reference(case: str, gated: bool, tmp_path: Path) -> None:
    """In a batch of prompts of all lengths in parts, with too little room, greedy and sampled, and found again; and
    by a gate that turns it off for a while."""
    target, drafter = made(case, tmp_path)
    core = load_core(
        target, drafter, draft_tokens=4, context=128, max_batch=4, kv_cache_memory_bytes=1, max_batched_tokens=24
    )
    if gated:
        fickle(core, seed=1, longest=12)
    with torch.inference_mode():
        seen = naive.check_drafts(core, reference(core, target, drafter))
    sampled = Sampling(temperature=0.8, seed=3)
    greedy = Sampling(temperature=0)
    naive.through_everything(
        core,
        {
            "a": Completion(tuple(range(2, 50)), 60, sampling=greedy),
            "b": Completion(tuple(range(2, 44)), 60, sampling=greedy),
            "c": Completion((9,), 20, sampling=sampled),
            "d": Completion((*range(2, 18), *range(60, 82)), 60, sampling=sampled),
        },
    )
    assert sum(length > 0 for length in seen) > (15 if gated else 40) and max(seen) == 4
    gauges = core.gauges()
    assert total(gauges, "preemptions_total") > 0 and total(gauges, "prompt_tokens_cached_total") > 0


@pytest.mark.parametrize("most", [64 << 20, 300])
@pytest.mark.parametrize("case", ON_AND_OFF)
def test_drafts_come_back_when_blocks_are_free_again(
    case: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts of before, unless too much has waited for blocks: then none."""
    monkeypatch.setattr(chain, "_WAITING_BYTES", most)
    target, drafter = made(case, tmp_path)
    core = load_core(target, drafter, draft_tokens=3, context=200, max_batch=2)
    own: Any = core.models.drafter
    while hasattr(own, "_drafter"):
        own = own._drafter
    pool, completion = own._tables.pool, Completion(tuple(range(2, 22)), 70, sampling=Sampling(temperature=0))
    with torch.inference_mode():
        seen = naive.check_drafts(core, reference(core, target, drafter))
    out = list[int]()
    core.add("a", completion)

    def step_to(length: int) -> list[int]:
        """The lengths of the drafts until the output has this length."""
        before = len(seen)
        while len(out) < length:
            for _, outcome in core.step():
                assert isinstance(outcome, TokenBatch)
                out.extend(outcome.ids)
        return seen[before:]

    assert 3 in step_to(3)
    taken = list(iter(lambda: pool.take(None), None))
    # In the last rows of its last block there is no room for a whole chain.
    assert not any(step_to(30)[-5:])
    pool.release(taken)
    lengths = step_to(66)
    assert any(lengths) is (most > 300 or case == "draft model")
    step_to(70)
    core.check_integrity()
    assert out == run(load_core(target, context=200), {"a": completion})["a"]


@pytest.mark.parametrize("case", ["speculators", "draft model", "parallel"])
def test_greedy_drafts_for_sampled_requests(case: str, tmp_path: Path) -> None:
    target, drafter = made(case, tmp_path)
    core = load_core(target, drafter, draft_tokens=3, draft_sampling="greedy")
    with torch.inference_mode():
        seen = naive.check_drafts(core, reference(core, target, drafter), "greedy")
    naive.through_everything(core, {"a": Completion((2, 3), 20, sampling=Sampling(temperature=1, seed=1))})
    assert sum(seen) > 20


@pytest.mark.parametrize("backend", ["matmul", "sdpa"])
@pytest.mark.parametrize("case", ["speculators", "mla", "mtp, latent cache", "draft model"])
def test_attention_backends_of_its_own(case: str, backend: AttentionBackend, tmp_path: Path) -> None:
    target, drafter = made(case, tmp_path)
    core = load_core(target, drafter, draft_tokens=3, draft_attention_backend=backend)
    with torch.inference_mode():
        seen = naive.check_drafts(core, reference(core, target, drafter))
    naive.through_everything(core, {"a": Completion(tuple(range(2, 50)), 30, sampling=Sampling(temperature=0))})
    assert sum(seen) > 30


@pytest.mark.parametrize("case", ["speculators", "mla", "parallel", "mtp", "draft model, llama"])
def test_a_cache_type_of_its_own(case: str, tmp_path: Path) -> None:
    """Nearly the same drafts from a cache of half the size, and exactly the same output."""
    target, drafter = made(case, tmp_path)
    wanted = {"a": Completion(tuple(range(2, 50)), 60, sampling=Sampling(temperature=0))}
    counted, outputs, types = [], [], []
    for kind in ("auto", "bfloat16"):
        core = load_core(target, drafter, draft_tokens=3, draft_kv_cache_dtype=kind)
        outputs.append(run(core, wanted))
        counted.append(core.counters().accepted)
        types.append([{t.dtype for t in tensors(part)} for part in (core.models.target, core.models.drafter)])
    assert outputs[0] == outputs[1] == run(load_core(target), wanted)
    assert abs(counted[0] - counted[1]) <= 5
    assert types[0] == [{torch.float32}, {torch.float32}] and types[1] == [{torch.float32}, {torch.bfloat16}]


def tensors(part: Any) -> list[torch.Tensor]:
    """What the caches of a model's or a drafter's layers are made of."""
    while hasattr(part, "_drafter"):  # what `Forced` and `Deferred` are around
        part = part._drafter
    part = getattr(part, "_network", getattr(part, "_model", part))
    layers = part._layers if hasattr(part, "_layers") else [part._layer]
    caches = [layer[1]._latent.rows if getattr(layer[1], "_latent", None) else layer[1]._cache for layer in layers]
    return [t for cache in caches for name, t in vars(cache).items() if name in ("keys", "values", "data")]


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("case", ["speculators", "mla", "parallel, more", "mtp", "draft model, qwen3"])
def test_other_types(case: str, options: dict[str, Any], tmp_path: Path) -> None:
    """In bfloat16, and with weights of 8 bits in float32."""
    target, drafter = made(case, tmp_path)
    core = load_core(target, drafter, draft_tokens=3, **options)
    out = run(core, {"a": Completion(tuple(range(2, 50)), 20, sampling=Sampling(temperature=0))})
    assert len(out["a"]) == 20 and core.counters().drafted > 20
