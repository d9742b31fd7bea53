"""Runs in a Python that has vLLM, Triton and torch: MLA backends, Dovetail's and vLLM's own, one job in JSON a line.

With TRITON_INTERPRET=1 kernels run in Triton's interpreter; without it they are compiled ahead of time. A job has a
backend, sequences (`contexts`: tokens, with the window's) and windows (`counts`); metadata are made by the backend's
own builder from vLLM's `CommonAttentionMetadata`.
"""
# ruff: noqa: E402  (the Pythons with vLLM set their own path, to which ours is added before the imports)

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[3] / "src"), os.environ["DOVETAIL_TRITON"]]

import torch
import vllm
from vllm import platforms

# vLLM's build for CPUs hides Triton. The platform is found out before that is turned off.
assert platforms.current_platform.is_cpu()
platforms.vllm_version_matches_substr = lambda text: False

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.attention import mla_attention
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import triton_mla
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens
from vllm.v1.attention.ops import triton_decode_attention

from dovetail.engine.attention import triton_mla as own_kernel
from dovetail.engine.attention.latent_rows import latent_rows
from dovetail.engine.attention.partial import attend_part, merge
from dovetail.plugins.vllm.register import register

RANK, ROPE, BLOCK = 512, 64, 16
SCALE = 192**-0.5


def backend(name: str) -> Any:
    register()
    return AttentionBackendEnum[name].get_class()


@contextlib.contextmanager
def vllm_config(job: dict[str, Any], rank: int) -> Iterator[Any]:
    """vLLM's configuration, with what a builder asks of the model, on rank `rank` of a DCP group."""
    ranks, heads = job.get("ranks", 1), job["heads"]
    layer = SimpleNamespace(
        **{"q_lora_rank": 1536, "kv_lora_rank": RANK, "qk_nope_head_dim": 128, "qk_rope_head_dim": ROPE},
        **{"v_head_dim": 128, "num_heads": heads, "non_causal_multi_token_decode": False},
        prefill_backend=SimpleNamespace(clone=lambda: SimpleNamespace(prepare_metadata=lambda prefill: None)),
        dcp_manager=object.__new__(mla_attention.MLADCPManager),
    )
    config = VllmConfig()
    config.model_config = SimpleNamespace(
        **{"max_model_len": 4096, "dtype": torch.float16, "get_head_size": lambda: RANK + ROPE},
        get_num_attention_heads=lambda parallel: heads,
    )
    config.cache_config.cache_dtype = job.get("cache", "auto")
    config.cache_config.block_size = BLOCK
    config.parallel_config.decode_context_parallel_size = ranks
    config.parallel_config.cp_kv_cache_interleave_size = job.get("interleave", 1)
    config.compilation_config.static_forward_context = {"layer": layer}
    drafts = job.get("drafts", 0)
    if drafts:
        config.speculative_config = SimpleNamespace(
            **{"num_speculative_tokens": drafts, "parallel_drafting": False, "method": "eagle3"}
        )
    parallel_state._DCP = SimpleNamespace(world_size=ranks, rank_in_group=rank)
    mla_attention.MLADCPManager.init_kv_gather = lambda *arguments: None
    mla_attention.get_num_attention_heads_from_layers = lambda *arguments: heads // ranks
    with set_current_vllm_config(config, check_compile=False):
        yield config
    parallel_state._DCP = None


def builder(job: dict[str, Any], config: Any) -> Any:
    spec = SimpleNamespace(block_size=BLOCK, dtype=torch.float16)
    return backend(job["backend"]).get_builder_cls()(spec, ["layer"], config, torch.device("cpu"))


def metadata(job: dict[str, Any], made: Any, table: Any, ranks: int, rank: int) -> Any:
    """What `build` makes of a batch: `counts` tokens of each sequence of `contexts`."""
    counts, contexts = torch.tensor(job["counts"]), torch.tensor(job["contexts"], dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).to(torch.int32)
    tokens = job.get("padded", int(starts[-1]))
    common = CommonAttentionMetadata(
        **{"query_start_loc": starts, "query_start_loc_cpu": starts, "seq_lens": contexts, "num_reqs": len(counts)},
        **{"num_actual_tokens": tokens, "max_query_len": int(counts.max()), "max_seq_len": int(contexts.max())},
        **{"block_table_tensor": table, "slot_mapping": torch.zeros(tokens, dtype=torch.int64)},
        seq_lens_cpu_upper_bound=contexts,
        causal=job.get("causal", True),
        dcp_local_seq_lens=get_dcp_local_seq_lens(contexts, ranks, rank, job.get("interleave", 1)),
    )
    return made.build(0, common)


def impl(job: dict[str, Any]) -> Any:
    return backend(job["backend"]).get_impl_cls()(
        *(job["heads"], RANK + ROPE, SCALE, 1, job.get("alibi"), job.get("window"), job.get("cache", "auto")),
        *(None, job.get("type", "decoder"), None),
        **{"q_lora_rank": 1536, "kv_lora_rank": job.get("latent", RANK), "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": ROPE, "qk_head_dim": 192, "v_head_dim": 128, "kv_b_proj": None},
    )


class Stored:
    """The latents of all sequences; and the part of them that a rank stores, in blocks, every other byte 255."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.generator = torch.Generator().manual_seed(job.get("seed", 0))
        self.kind, self.contexts = job.get("cache", "auto"), job["contexts"]
        self.scale = 0.37 if self.kind == "fp8" else 1.0
        self.latents = [torch.randn(context, RANK + ROPE, generator=self.generator) for context in self.contexts]
        for i, latents in enumerate(self.latents):
            rows = self._rows(len(latents))
            rows.write(torch.arange(len(latents)), latents)
            self.latents[i] = rows.read(slice(None)).float()

    def _rows(self, count: int) -> Any:
        return latent_rows(self.kind, count, RANK, ROPE, torch.float16, self.scale)

    def on(self, rank: int, ranks: int, interleave: int) -> tuple[Any, Any]:
        """The cache as vLLM has it, [blocks, BLOCK, width], and the block table, int32 [sequences, blocks]."""
        parts = [latents[torch.arange(len(latents)) // interleave % ranks == rank] for latents in self.latents]
        needed = [-(-len(part) // BLOCK) for part in parts]
        free = torch.randperm(sum(needed) + 2, generator=self.generator).tolist()
        rows = self._rows(len(free) * BLOCK)
        rows.data.view(torch.uint8).fill_(255)
        table = torch.zeros(len(parts), max([1, *needed]), dtype=torch.int32)
        for sequence, (part, count) in enumerate(zip(parts, needed, strict=True)):
            blocks = [free.pop() for _ in range(count)]
            table[sequence, :count] = torch.tensor(blocks, dtype=torch.int32)
            where = [block * BLOCK + i for block in blocks for i in range(BLOCK)][: len(part)]
            rows.write(torch.tensor(where, dtype=torch.int64), part)
        data = rows.data.view(torch.float8_e4m3fn) if self.kind == "fp8" else rows.data
        return data.view(-1, BLOCK, data.shape[-1]), table


def layer_of(stored: Stored) -> Any:
    return SimpleNamespace(_k_scale_float=stored.scale, _k_scale=torch.tensor(stored.scale))


def forward(job: dict[str, Any]) -> dict[str, Any]:
    """`forward_mqa` on every rank, merged; how far it is from the oracle on the whole cache."""
    ranks, interleave, heads = job.get("ranks", 1), job.get("interleave", 1), job["heads"]
    stored = Stored(job)
    tokens = job.get("padded", sum(job["counts"]))
    queries = (torch.randn(tokens, heads, RANK + ROPE, generator=stored.generator) * 2).to(torch.float16)
    mixed, sums, decodes = [], [], []
    for rank in range(ranks):
        with vllm_config(job, rank) as config:
            cache, table = stored.on(rank, ranks, interleave)
            made = metadata(job, builder(job, config), table, ranks, rank)
            decodes.append(made.num_decode_tokens)
            asked: Any = queries if job.get("joined") else (queries[..., :RANK], queries[..., RANK:])
            out, lse = impl(job).forward_mqa(asked, cache, made, layer_of(stored))
            mixed.append(out.float())
            sums.append(lse)
    merged, total = merge(torch.stack(mixed), torch.stack(sums).float())
    error = sum_error = 0.0
    first = 0
    for latents, count, context in zip(stored.latents, job["counts"], job["contexts"], strict=True):
        own = slice(first, first + count)
        ends = torch.arange(context - count + 1, context + 1)
        expected, whole = attend_part(queries[own].float() * SCALE, latents, ends, RANK)
        error = max(error, float((merged[own] - expected).abs().max()))
        sum_error = max(sum_error, float((total[own] - whole).abs().max()))
        first += count
    padding = bool((merged[first:] == 0).all()) and bool((total[first:] == -torch.inf).all())
    return {
        **{"decode_tokens": decodes, "error": error, "sum_error": sum_error, "padding_is_zero": padding},
        **{"lse": str(sums[0].dtype), "out": str(out.dtype)},
    }


class Recorder:
    """Stands for a kernel: its launches, which are not made."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launches.append((grid, args, kwargs))


@contextlib.contextmanager
def recorded(module: Any, name: str) -> Iterator[Recorder]:
    kernel, recorder = getattr(module, name), Recorder()
    setattr(module, name, recorder)
    yield recorder
    setattr(module, name, kernel)


def launched(job: dict[str, Any], dtype: torch.dtype) -> tuple[Any, Any, Any, Any]:
    """The first pass as a backend launches it: grid, arguments, options. And the backend's log-sum-exps, not filled."""
    own = job["backend"] == "CUSTOM"
    module, first, second = (
        (own_kernel, "attend_parts", "merge_parts")
        if own
        else (triton_decode_attention, "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2")
    )
    cache = torch.zeros(1, BLOCK, RANK + ROPE).to(torch.float8_e4m3fn if job.get("cache") == "fp8" else dtype)
    table = torch.zeros(len(job["contexts"]), -(-max(job["contexts"]) // BLOCK), dtype=torch.int32)
    layer = SimpleNamespace(_k_scale_float=1.0, _k_scale=torch.ones(()))
    with vllm_config(job, 0) as config, recorded(module, first) as recorder, recorded(module, second):
        made = metadata(job, builder(job, config), table, 1, 0)
        queries = torch.zeros(sum(job["counts"]), job["heads"], RANK + ROPE, dtype=dtype)
        _, sums = impl(job).forward_mqa(queries, cache, made, layer)
    return *recorder.launches[0], sums


def bytes_read(job: dict[str, Any]) -> dict[str, Any]:
    """Bytes of cache that the programs of one layer's first pass read, from its grid and the lengths it is given."""
    grid, args, kwargs, _ = launched(job, torch.float16)
    if job["backend"] == "CUSTOM":
        starts, ends = args[3], args[4]
        longest = [int(ends[starts[s] : starts[s + 1]].max()) for s in range(len(starts) - 1)]
        return {"bytes": sum(longest) * grid[1] * kwargs["ROW"] * args[1].element_size()}
    return {"bytes": int(args[5].sum()) * grid[1] * args[1].shape[-1] * args[1].element_size()}


def compiled(job: dict[str, Any]) -> dict[str, Any]:
    """vLLM's first pass, compiled for `arch` with the constants and options that vLLM launches it with."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _, args, kwargs, _ = launched(job, torch.bfloat16)
    kernel = triton_decode_attention._fwd_grouped_kernel_stage1
    options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages")}
    types = {torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv", torch.float32: "*fp32", torch.int32: "*i32"}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for i, name in enumerate(kernel.arg_names):
        if i >= len(args):
            constants[name], signature[name] = kwargs[name], "constexpr"
        elif isinstance(args[i], torch.Tensor):
            signature[name], attributes[(i,)] = types[args[i].dtype], [["tt.divisibility", 16]]
        elif args[i] == 1 and isinstance(args[i], int):
            constants[name], signature[name] = 1, "constexpr"
        else:
            signature[name] = "fp32" if isinstance(args[i], float) else "i32"
            if signature[name] == "i32" and args[i] % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", int(job["arch"].removeprefix("sm_")), 32), options=options)
    tool = sorted(Path(triton.__file__).parent.rglob("cuobjdump"))[0]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        report = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    usage = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    return {"shared": made.metadata.shared, "registers": usage["REG"], "options": options}


def sums_type(job: dict[str, Any]) -> dict[str, Any]:
    """The type of the log-sum-exps of queries in bfloat16."""
    return {"type": str(launched(job, torch.bfloat16)[3].dtype).removeprefix("torch.")}


def threshold(job: dict[str, Any]) -> dict[str, Any]:
    """How many tokens of a window are decoded, and how a window of drafts is sorted."""
    ranks = job.get("ranks", 1)
    with vllm_config(job, 0) as config:
        made = builder(job, config)
        counts = torch.tensor([job["drafts"] + 1] * 2)
        starts = torch.tensor([0, *counts.cumsum(0).tolist()], dtype=torch.int32)
        common = SimpleNamespace(
            **{"max_query_len": int(counts.max()), "num_reqs": 2, "num_actual_tokens": int(counts.sum())},
            **{"query_start_loc_cpu": starts, "is_prefilling": None},
        )
        uniform = made.query_len_support != mla_attention.QueryLenSupport.VARLEN
        split = mla_attention.split_decodes_and_prefills(
            common, decode_threshold=made.reorder_batch_threshold, require_uniform=uniform
        )
    return {"threshold": made.reorder_batch_threshold, "decodes": split[0], "prefills": split[1], "ranks": ranks}


def refused(job: dict[str, Any]) -> dict[str, Any]:
    """Why the implementation of a layer is refused, or None."""
    with vllm_config(job, 0):
        try:
            impl(job)
        except NotImplementedError as error:
            return {"error": str(error)}
    return {"error": None}


def not_causal(job: dict[str, Any]) -> dict[str, Any]:
    """What the builder says to a window of which every query sees all of it."""
    with vllm_config(job, 0) as config:
        try:
            metadata(job, builder(job, config), torch.zeros(1, 4, dtype=torch.int32), 1, 0)
        except ValueError as error:
            return {"error": str(error)}
    return {"error": None}


def strided(job: dict[str, Any]) -> dict[str, Any]:
    stored = Stored(job)
    with vllm_config(job, 0) as config:
        cache, table = stored.on(0, 1, 1)
        made = metadata(job, builder(job, config), table, 1, 0)
        apart = torch.zeros(len(cache), 2 * BLOCK, RANK + ROPE, dtype=cache.dtype)[:, :BLOCK]
        queries = torch.zeros(sum(job["counts"]), job["heads"], RANK + ROPE, dtype=torch.float16)
        try:
            impl(job).forward_mqa(queries, apart, made, layer_of(stored))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def reasons(job: dict[str, Any]) -> dict[str, Any]:
    """vLLM's own reasons against the backend, for a configuration as its selector makes it."""
    asked = {
        **{"head_size": 576, "dtype": torch.bfloat16, "kv_cache_dtype": "fp8", "block_size": 16, "use_mla": True},
        **{"has_sink": False, "use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False},
        **{"attn_type": "decoder", "use_dcp": True},
    } | job["changes"]
    return {
        "reasons": backend("CUSTOM").validate_configuration(
            device_capability=DeviceCapability(*job["capability"]), **asked
        )
    }


def registered(job: dict[str, Any]) -> dict[str, Any]:
    """The name survives a pickle that a process reads before it has loaded plugins; a second call changes nothing."""
    import pickle

    register()
    register()
    slot = AttentionBackendEnum["CUSTOM"]
    sent = pickle.dumps(slot)
    read = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).name)"
    path = os.pathsep.join(sys.path)
    shown = subprocess.run(
        [sys.executable, "-c", read, sent.hex()], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    return {"class": slot.get_class().__qualname__, "read": shown.stdout.strip(), "path": slot.get_path()}


def taken(job: dict[str, Any]) -> dict[str, Any]:
    """Another plugin's backend in the slot stays there."""
    from vllm.v1.attention.backends.registry import register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "another.plugin.Backend")
    register()
    path = AttentionBackendEnum.CUSTOM.get_path()
    AttentionBackendEnum.CUSTOM.clear_override()
    return {"path": path}


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    job.__name__: job
    for job in (
        *(forward, bytes_read, compiled, sums_type, threshold, refused, not_causal, strided, reasons, registered),
        taken,
    )
}


def main() -> None:
    # There is no GPU: tiles are chosen as on an RTX PRO 6000.
    type(current_platform).get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(12, 0))
    triton_mla.current_platform.num_compute_units = lambda *arguments: 188
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    print(json.dumps({"vllm": vllm.__version__}), file=out)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(JOBS[job.pop("do")](job)), file=out)


if __name__ == "__main__":
    main()
