"""The engine on a GPU: logits and greedy ids are those of the processor, with every drafter and any schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.completion import Completion, Sampling
from dovetail.engine.attention.gpu_mla import KernelLatentCache
from dovetail.engine.models.base import collate
from tests.engine.checkpoints import load_core, run, write_target
from tests.engine.schedules import FEW_EXPERTS, SMALL, Checkpoints, schedule
from tests.engine.test_logits import CASES, TOKENS, table

if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

#: Latents of widths that the kernel has, and so many heads that they are cached as latents.
KERNEL: dict[str, Any] = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "num_attention_heads": 12}


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Tiny checkpoints whose truth is the processor's, and which run on the GPU."""
    root = tmp_path_factory.mktemp("gpu")
    tiny = Checkpoints(root, {})
    wide = tiny.targets["latent"] = write_target(root / "wide", **KERNEL, **SMALL, **FEW_EXPERTS)
    tiny._models["latent"] = load_core(wide, max_batch=1).models.target
    tiny.settings = {"device": "cuda"}
    return tiny


@pytest.mark.parametrize("case", [*CASES, "kernel"])
def test_logits_are_those_of_the_processor(case: str, tmp_path: Path) -> None:
    path = write_target(tmp_path, base=CASES.get(case, CASES["plain"] | KERNEL))
    logits = []
    for device in ("cpu", "cuda"):
        model = load_core(path, max_batch=2, device=device).models.target
        rows = table(7, 3, 5, 4)
        chunks = [(0, 20), (20, 21), (21, 25), (25, 41)]
        with torch.inference_mode():
            parts = [model.forward(collate([(TOKENS[start:end], start, rows)]))[0] for start, end in chunks]
            logits.append(model.logits(torch.cat(parts)).cpu())
    assert (logits[0] - logits[1]).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["auto", "bfloat16", "fp8", "fp8_ds_mla"])
def test_the_kernel_decodes(kind: str, tmp_path: Path) -> None:
    core = load_core(write_target(tmp_path, **KERNEL), device="cuda", kv_cache_dtype=kind)
    attention: Any = core.models.target._layers[0][1]  # type: ignore[attr-defined]
    assert type(attention._latent) is KernelLatentCache
    answers = [
        run(
            load_core(tmp_path, device=device, kv_cache_dtype=kind, max_batch=4),
            {str(i): Completion(tuple(TOKENS[: 9 * i + 5]), 12, sampling=Sampling(temperature=0)) for i in range(4)},
        )
        for device in ("cpu", "cuda")
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("number", range(60))
@pytest.mark.parametrize("overlap", [None, False])
def test_random_schedules(on_gpu: Checkpoints, number: int, overlap: bool | None) -> None:
    schedule(on_gpu, number, overlap)


@pytest.mark.parametrize("drafter", ["eagle3", "parallel", "draft model", "mtp", "none"])
def test_sampled_answers_are_drawn(on_gpu: Checkpoints, drafter: str) -> None:
    """With every way to shape a distribution, and equal for equal seeds."""
    samplings = [
        Sampling(seed=1),
        Sampling(seed=2, top_p=0.8, top_k=20),
        Sampling(seed=3, min_p=0.1, temperature=0.7),
        Sampling(seed=4, presence_penalty=1.0, repetition_penalty=1.2, logit_bias={5: 4.0}),
    ]
    completions = {
        str(i): Completion((2, 3 + i), 30, sampling=sampling, logprobs=2) for i, sampling in enumerate(samplings)
    }
    name = "heads" if drafter == "mtp" else "latent"
    core = load_core(on_gpu.targets[name], on_gpu.drafters[drafter], device="cuda", draft_tokens=3)
    first, again = run(core, completions), run(core, completions)
    assert first == again and all(ids for ids in first.values())
