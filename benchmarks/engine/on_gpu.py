"""The embedded engine on a GPU: `python -m benchmarks.engine.on_gpu [--json FILE]`.

1. The demo pair answers held-out prompts on the processor and on the GPU, without drafts and with three a step, in
   float32: tokens/s, and at how many tokens the answers differ.
2. A DeepSeek-V3 of random weights, with the widths of published latents: decode tokens/s by batch, context and type of
   cache, by the kernel and by torch's products, and how many greedy tokens both write alike.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file

from benchmarks.latents import DEMO
from dovetail.checkpoints.target import read_target
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.config import target_config
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.tokens import Tokenizer
from dovetail.tokens import tokenizer as load_tokenizer
from training.corpus import sample
from training.data import FORMAT, HELD_OUT

#: 0.8 B parameters; a token reads 0.2 B.
SHAPE: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 32_768,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "routed_scaling_factor": 1.8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 1,
}
GREEDY = Sampling(temperature=0)
TOKENS = 48


class NumberTokenizer(Tokenizer):
    """Has ids and no text: the random model's answers are compared by id."""

    vocab_size = SHAPE["vocab_size"]
    control: Mapping[str, int] = MappingProxyType({})

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def _bytes(self, token: int) -> bytes:
        return b"?"


def random_model(folder: Path) -> Path:
    """Write the checkpoint: bfloat16, spread so that what goes through a layer keeps its size."""
    (folder / "config.json").write_text(json.dumps(SHAPE))
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in target_config(read_target(str(folder))).expected_tensors().items():
        tensor = torch.randn(shape, generator=generator, dtype=torch.float32)
        if len(shape) == 1:
            tensor = tensor * 0.1 + (1.0 if "norm" in name else 0.0)
        elif "embed" not in name:
            tensor *= shape[-1] ** -0.5
        tensors[name] = tensor.bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return folder


def answers(core: LLMCore, prompts: list[tuple[int, ...]], tokens: int) -> tuple[list[list[int]], float, float]:
    """What follows each prompt, decode tokens/s of all together, and drafts accepted per step and sequence."""
    ids: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        core.add(str(i), Completion(prompt, tokens, sampling=GREEDY, ignore_eos=True))
    started: float | None = None
    begun = 0
    while core.live:
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch), outcome
            ids[int(name)] += outcome.ids
        if started is None and all(ids):
            started, begun = time.perf_counter(), sum(map(len, ids))
    assert started is not None
    speed = (sum(map(len, ids)) - begun) / (time.perf_counter() - started)
    counters = core.counters()
    return ids, speed, counters.accepted / max(1, counters.steps)


def alike(some: list[list[int]], others: list[list[int]]) -> float:
    """The share of tokens before the first difference of each answer."""
    same = 0
    for one, other in zip(some, others, strict=True):
        differs = [i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        same += differs[0] if differs else len(one)
    return same / sum(map(len, some))


def demo_pair() -> list[dict[str, Any]]:
    tokenizer = load_tokenizer(str(DEMO / "target"))
    prompts = []
    for seed in range(8):
        drawn = sample(HELD_OUT + seed)
        prompt = FORMAT.render(drawn.messages[: drawn.turn], drawn.tools, thinking=drawn.thinking)
        prompts.append(tuple(prompt.ids(tokenizer)))
    rows = []
    reference: list[list[int]] | None = None
    for device in ("cpu", "cuda"):
        for drafts in (0, 3):
            settings = EngineSettings(draft_tokens=drafts, device=device, threads=None)  # type: ignore[arg-type]
            core = LLMCore.load(DEMO / "target", DEMO / "drafter", tokenizer, settings)
            answers(core, prompts, TOKENS)  # warms up
            one = answers(core, prompts[:1], TOKENS)[1]
            ids, speed, _ = answers(core, prompts, TOKENS)
            reference = reference or ids
            rows.append(
                {"device": device, "drafts": drafts, "one": one, "eight": speed, "alike": alike(reference, ids)}
            )
            core.close()
    return rows


def random_target(folder: Path) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for context, batch in ((1024, 1), (1024, 16), (16_384, 1), (16_384, 16), (65_536, 1)):
        prompts = [
            tuple(torch.randint(2, SHAPE["vocab_size"], (context,), generator=generator).tolist()) for _ in range(batch)
        ]
        reference: list[list[int]] | None = None
        # torch's products take minutes for a long prompt.
        ways = [("bfloat16", "matmul")] if context <= 1024 else []
        for cache, backend in (*ways, ("bfloat16", "auto"), ("fp8_ds_mla", "auto"), ("fp8", "auto")):
            settings = EngineSettings(
                draft_tokens=0,
                device="cuda",
                dtype="bfloat16",
                kv_cache_dtype=cache,  # type: ignore[arg-type]
                attention_backend=backend,  # type: ignore[arg-type]
                context=context + 2 * TOKENS,
                max_batch=batch,
                max_batched_tokens=4096,
                kv_cache_memory_bytes=20 << 30,
                prefix_caching=False,
            )
            core = LLMCore.load(folder, None, NumberTokenizer(), settings)
            answers(core, prompts, 4)  # compiles the kernel
            ids, speed, _ = answers(core, prompts, TOKENS)
            reference = reference or ids
            core.close()
            row = {"context": context, "batch": batch, "cache": cache, "attention": backend}
            yield row | {"tokens_per_second": speed, "alike": alike(reference, ids)}
            del core
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.on_gpu", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("demo", "random"))
    arguments = parser.parse_args()
    console = Console(width=140)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if arguments.only != "random":
        results["demo"] = demo_pair()
        console.print(results)
    if arguments.only != "demo":
        results["random"] = []
        with tempfile.TemporaryDirectory() as folder:
            for row in random_target(random_model(Path(folder))):
                results["random"].append(row)
                console.print(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
