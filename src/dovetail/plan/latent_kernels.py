"""Which kernel of vLLM decodes over dense latents (MLA) on a GPU, and which one is fastest by what was measured.

`CUSTOM` is Dovetail's (`plugins/vllm/mla_backend.py`). Sparse attention has other kernels, and nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean

from dovetail.engine.tuning.table import ARCHITECTURES, RANK, ROPE
from dovetail.plan.candidate import Advice, Candidate

#: Tokens of each sequence, and sequences.
WORKS = ((1024, 1), (8192, 16), (32768, 16))
#: Tokens/s for each of `WORKS`, by cache, drafts of a step and kernel, on two machines: vLLM 0.33 on an H100 80 GB, the
#: shape of DeepSeek-V3 with 8 dense layers, 64 heads on one GPU, drafts that are all accepted, CUDA graphs without
#: torch.compile, medians of three runs (2026-11-27; docs/mla.md).
FIGURES: tuple[dict[tuple[str, int], dict[str, tuple[float, ...]]], ...] = (
    {
        ("bfloat16", 0): {
            "TRITON_MLA": (530, 2069, 1134),
            "CUSTOM": (554, 5466, 3547),
            "FLASHMLA": (445, 6832, 3878),
            "FLASH_ATTN_MLA": (596, 5763, 5144),
        },
        ("bfloat16", 3): {"TRITON_MLA": (1310, 2290, 1228), "CUSTOM": (1693, 17394, 5803)},
        ("fp8", 0): {
            "TRITON_MLA": (515, 1812, 995),
            "CUSTOM": (415, 5283, 3171),
            "FLASHMLA": (454, 6173, 5302),
        },
    },
    {
        ("bfloat16", 0): {
            "CUSTOM": (330, 5014, 4214),
            "FLASHMLA": (372, 5782, 5166),
            "FLASH_ATTN_MLA": (415, 4787, 5710),
        },
        ("bfloat16", 3): {
            "CUSTOM": (1128, 18266, 5936),
            "FLASHMLA": (1262, 16633, 13718),
            "FLASH_ATTN_MLA": (1134, 16761, 10792),
        },
    },
)
#: Two processes with the same kernel differ by 10 to 20 %, so kernels within this share of the fastest are level.
LEVEL = 0.8
_HEADS = 64
_DRAFTS = {0: ", without drafts,", 3: ", with three drafts,"}
_NAMED = tuple(f"{context:,} tokens x {batch}" for context, batch in WORKS)


def shares(cache: str, drafts: int) -> dict[str, tuple[float, ...]]:
    """Each kernel's tokens/s in `WORKS`, as shares of the fastest one's. Kernels are compared on the same machine."""
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for machine in FIGURES:
        figures = machine.get((cache, drafts), {})
        for kernel, speeds in figures.items():
            ours = zip(speeds, figures["CUSTOM"], strict=True)
            ratios.setdefault(kernel, []).append(tuple(speed / own for speed, own in ours))
    means = {kernel: [geometric_mean(each) for each in zip(*rows, strict=True)] for kernel, rows in ratios.items()}
    best = [max(each) for each in zip(*means.values(), strict=True)]
    return {kernel: tuple(a / b for a, b in zip(row, best, strict=True)) for kernel, row in means.items()}


def chosen(capability: tuple[int, int], cache: str) -> str:
    """The kernel that vLLM 0.33 takes if no option names one (`_get_backend_priorities`, vllm/platforms/cuda.py)."""
    if capability[0] == 9:
        return "FLASHMLA" if cache == "fp8" else "FLASH_ATTN_MLA"
    return "FLASHINFER_MLA" if capability[0] == 10 else "TRITON_MLA"


def check(plan: Candidate) -> list[Advice]:
    """What there is to know of the kernel for latents: a warning of one that cannot start or is slow, else a note."""
    attention, gpu = plan.target.attention, plan.gpus.gpu if plan.gpus else None
    if plan.engine != "vllm" or attention.kind != "mla" or attention.index_dim is not None:
        return []
    if (attention.kv_lora_rank, attention.rope_dim) != (RANK, ROPE) or gpu is None or gpu.capability is None:
        return []
    cache = "fp8" if str(plan.value("kv_cache_dtype")).startswith("fp8") else "bfloat16"
    given, default = plan.value("attention_backend"), chosen(gpu.capability, cache)
    used = given or default
    name = f"SM{gpu.capability[0]}{gpu.capability[1]}"
    compiled = f"sm_{gpu.capability[0]}{gpu.capability[1]}" in ARCHITECTURES
    reason = _cannot_start(plan, used, name, cache, compiled=compiled)
    if reason is not None:
        return [Advice("warning", "attention_backend", reason)]
    source = f"{plan.text('attention_backend')}, and vLLM's choice" if given else "vLLM 0.33's choice for latents"
    message = f"{source} on {gpu.name} ({name}) with a cache in {cache} is {default}"
    slow = False
    drafts = 3 if plan.value("draft_tokens") and (cache, 3) in FIGURES[0] else 0
    if gpu.capability[0] == 9:
        fastest, slow = _fastest(shares(cache, drafts), used)
        message += f". On an H100 with 64 heads{_DRAFTS[drafts]} fastest or level with it: {fastest}{_heads(plan)}"
    elif default != "TRITON_MLA":
        message += ", and no kernel was timed there"
    elif compiled:
        message += (
            f", its only one. On an H100{_DRAFTS[drafts]} CUSTOM, Dovetail's (`pip install dovetail[vllm]`), makes "
            f"{_beside_triton(shares(cache, drafts))}; on {name} nothing was timed"
        )
    else:
        message += ", the only one"
    if plan.size("decode_context_parallel_size") > 1 and plan.value("draft_tokens") and used in GATHERING:
        message += (
            f". With decode context parallelism {used} verifies drafts as prompts, for which each rank gathers the "
            f"whole context{'; CUSTOM decodes them' if compiled else ''}"
        )
    return [Advice("warning" if slow else "note", "attention_backend", f"{message} (docs/mla.md)")]


#: Kernels whose builders sort drafts as prompts under decode context parallelism (vLLM 0.33, v1/attention/backends/mla:
#: those without `supports_dcp_with_varlen`).
GATHERING = ("TRITON_MLA", "FLASHMLA", "CUTLASS_MLA")


def _cannot_start(plan: Candidate, used: str, name: str, cache: str, *, compiled: bool) -> str | None:
    """Why vLLM cannot start with the kernel `used`, and what can; None if it can. `name`: of the architecture."""
    if used == "CUSTOM":
        known = ", ".join(each.replace("sm_", "SM") for each in ARCHITECTURES)
        reason = f"{plan.text('attention_backend')}: Dovetail's kernel is compiled for {known} and refuses {name}"
        return None if compiled else reason
    if plan.value("kv_cache_dtype") == "fp8_ds_mla":
        own = ", or --attention-backend CUSTOM" if compiled else ""
        return (
            f"{plan.text('kv_cache_dtype')}, which none of vLLM 0.33's kernels for dense latents reads: "
            f"--kv-cache-dtype fp8{own}"
        )
    if used != "TRITON_MLA" or not name.startswith("SM12") or cache != "fp8":
        return None
    own = (
        "--attention-backend CUSTOM takes Dovetail's (`pip install dovetail[vllm]` where vLLM runs), which fits; no "
        f"kernel was timed on {name}"
        if compiled
        else "a cache in bfloat16 needs 63,488"
    )
    return (
        f"{plan.text('kv_cache_dtype')}: TRITON_MLA, the only kernel of vLLM 0.32 and 0.33 for dense MLA on {name}, "
        f"then needs 102,400 bytes of shared memory, of 101,376, and cannot start (vLLM issue 46721). {own}"
    )


def _fastest(found: dict[str, tuple[float, ...]], used: str) -> tuple[str, bool]:
    """The fastest kernels in words; and whether the kernel `used` makes less than half of their tokens somewhere."""
    parts = []
    for place, work in enumerate(_NAMED):
        level = sorted((-row[place], kernel) for kernel, row in found.items() if row[place] >= LEVEL)
        parts.append(f"{work}: {', '.join(kernel for _, kernel in level)}")
    own = found.get(used, (1.0,))
    if min(own) < LEVEL:
        parts.append(f"{used} makes {_listed(own, 2)} of the fastest one's tokens")
    return "; ".join(parts), min(own) < 0.5


def _heads(plan: Candidate) -> str:
    heads = plan.target.attention.heads // plan.size("tensor_parallel_size")
    heads *= plan.size("decode_context_parallel_size")
    return "" if heads == _HEADS else f". With {heads} heads on a GPU, as here, single layers were timed alone"


def _beside_triton(found: dict[str, tuple[float, ...]]) -> str:
    times = [ours / theirs for ours, theirs in zip(found["CUSTOM"], found["TRITON_MLA"], strict=True)]
    return f"{_listed(times, 1)} times its tokens ({', '.join(_NAMED)})"


def _listed(numbers: Iterable[float], digits: int) -> str:
    *others, last = (f"{number:.{digits}f}" for number in numbers)
    return f"{', '.join(others)} and {last}"
