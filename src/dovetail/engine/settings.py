"""The settings of the embedded engine: one frozen object, from the plan to `LLMCore`.

A field has the name of the setting in the plan. This module imports no torch, so that a command can check settings
and show them before it loads anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from dovetail.engine.compute import Kernels, kernels_here
from dovetail.engine.parallel.sizes import Sizes
from dovetail.errors import EngineError

DType = Literal["float32", "bfloat16"]
CacheDType = Literal["auto", "float32", "bfloat16", "fp8", "fp8_ds_mla"]
AttentionBackend = Literal["auto", "matmul", "sdpa"]
Quantization = Literal["int8"]
DraftSampling = Literal["greedy", "probabilistic"]
GateMode = Literal["measured", "off"]

#: Attention treats a window of more tokens than this and one as a part of a prompt (`attention.causal.PREFILL`).
MAX_DRAFT_TOKENS = 15
#: As a drafter: look up what followed earlier in the same sequence.
LOOKUP = "lookup"
#: As a drafter: the MTP layers in the target's own checkpoint.
INSIDE = "mtp"

#: Types of caches that only latents have (`attention/latent_rows.py`).
FP8: tuple[CacheDType, ...] = ("fp8", "fp8_ds_mla")
#: How many numbers of a latent share a scale in fp8_ds_mla.
GROUP = 128

_CHOICES: dict[str, tuple[Any, ...]] = {
    "gate": get_args(GateMode),
    "dtype": get_args(DType),
    "quantization": (None, *get_args(Quantization)),
    "attention_backend": get_args(AttentionBackend),
    "kv_cache_dtype": get_args(CacheDType),
    "draft_attention_backend": (None, *get_args(AttentionBackend)),
    "draft_kv_cache_dtype": (None, *get_args(CacheDType)),
    "draft_sampling": get_args(DraftSampling),
}
_AT_LEAST_ONE = (
    "speculate_below_context",
    "speculate_up_to_batch",
    "context",
    "max_batch",
    "max_batched_tokens",
    "kv_cache_memory_bytes",
    "threads",
    "tensor_parallel_size",
    "decode_context_parallel_size",
    "context_interleave",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the embedded engine runs a target and its drafter. None leaves a setting to the engine.

    Raises `EngineError` that names the field for a value that the engine does not have.
    """

    #: Tokens drafted per sequence and step; with gate "measured" only whether anything is drafted at all.
    draft_tokens: int
    #: The most tokens that the gate drafts per sequence and step; None: `draft_tokens`.
    max_draft_tokens: int | None = None
    #: Nothing is drafted for sequences of this many tokens or more.
    speculate_below_context: int | None = None
    #: Nothing is drafted while more sequences than this decode.
    speculate_up_to_batch: int | None = None
    #: "measured": draft as many tokens as pay, by measured step times and acceptance; "off": always `draft_tokens`.
    gate: GateMode = "off"
    #: The folder of the gate's cost files; None: step times are measured at every start.
    cost_folder: Path | None = None
    #: How likely a draft is to be accepted when those before it were, for the gate while it has not seen any and its
    #: cost file says nothing; None: not known.
    acceptance: float | None = None
    draft_sampling: DraftSampling = "probabilistic"
    #: The most tokens in a sequence; None: what the target's config declares.
    context: int | None = None
    #: The most sequences that run at once.
    max_batch: int = 16
    #: The most tokens that one step computes. A longer prompt is computed in parts.
    max_batched_tokens: int = 512
    #: The most bytes of KV cache. The cache always holds one sequence of full length, and never more than `max_batch`.
    kv_cache_memory_bytes: int = 1 << 30
    #: Whether prompts that begin alike share blocks of the KV cache.
    prefix_caching: bool = True
    #: Whether a second thread fills masks and prepares the next step: always, never, or (None) where that pays.
    async_scheduling: bool | None = None
    #: The type of weights and computation.
    dtype: DType = "float32"
    #: How the large weights of target and drafter are quantized as they load.
    quantization: Quantization | None = None
    attention_backend: AttentionBackend = "auto"
    #: "auto": as `dtype`. "fp8" and "fp8_ds_mla" are for latents (`attention/latent_rows.py`).
    kv_cache_dtype: CacheDType = "auto"
    #: The drafter's own attention backend and cache type; None: as the target's, but "auto" for a drafter that has no
    #: latents and whose target has an FP8 cache.
    draft_attention_backend: AttentionBackend | None = None
    draft_kv_cache_dtype: CacheDType | None = None
    #: How many ranks, which are processes, compute the target together. The drafter is on the first of them.
    tensor_parallel_size: int = 1
    #: How many of them share one cache of latents, each with other positions.
    decode_context_parallel_size: int = 1
    #: How many positions in a row one of these stores.
    context_interleave: int = 1
    #: Seconds that a rank waits for another before the engine ends.
    rank_deadline: float = 60.0
    #: Torch's threads in each rank; None: `default_threads`, divided by ranks.
    threads: int | None = None
    #: Which kernels multiply by weights; only tests choose others than this processor's.
    kernels: Kernels = field(default_factory=kernels_here)

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "max_draft_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_DRAFT_TOKENS:
                raise EngineError(f"{name} must be from 0 to {MAX_DRAFT_TOKENS}, not {value}")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError(f"{name} must be 1 or more, not {value}")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise EngineError(f"acceptance must be from 0 to 1, not {self.acceptance}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                words = ", ".join(choice for choice in choices if choice is not None)
                raise EngineError(f"{name} {value!r} is not one of {words}")

    @property
    def sizes(self) -> Sizes:
        """How the target is divided over ranks."""
        return Sizes(self.tensor_parallel_size, self.decode_context_parallel_size, self.context_interleave)

    @property
    def most_draft_tokens(self) -> int:
        """The most tokens that a step may draft for one sequence; 0 where `draft_tokens` is 0."""
        if not self.draft_tokens or self.max_draft_tokens is None:
            return self.draft_tokens
        return self.max_draft_tokens


def packs(rank: int, rope: int) -> bool:
    """Whether latents of `rank` and `rope` numbers have rows of fp8_ds_mla: whole groups, and aligned scales."""
    return rank % min(GROUP, rank) == 0 and rank % 4 == 0 and rope % 2 == 0


def packed_bytes(rank: int, rope: int) -> int:
    """Bytes of a row of fp8_ds_mla: `rank` of e4m3, a float32 for each group, `rope` bfloat16. 656 for 512 and 64."""
    return rank + rank // min(GROUP, rank) * 4 + rope * 2
