"""Estimates how a GPU's memory is spent: weights, drafter, an allowance for the engine, and KV cache with the rest.

Estimates are for the fullest GPU, under tensor, pipeline, data and decode-context parallelism. Compared with the tokens
of KV cache that vLLM printed, they are 2 % too high for Kimi-K2-Thinking on 8 H200 (715,072, and 5,721,088 with DCP 8;
from vLLM's recipe) and 3 % too low for Qwen3-8B on one RTX 5090 (89,040).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.checkpoints.attention import Attention
from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.target import Target
from dovetail.checkpoints.weight_sizes import dtype_bits
from dovetail.engine.settings import packed_bytes
from dovetail.plan.hardware import Gpu
from dovetail.plan.layers import Setting

GIB = 2**30
#: Bytes of the CUDA context, libraries' workspaces and CUDA graphs; and of buffers for communication between GPUs.
_FIXED, _COMMUNICATION = GIB, GIB
#: Bytes for sampling per sequence and vocabulary entry: logits, their order, probabilities, in 32 and 64 bits.
_SAMPLING = 28
#: vLLM 0.33's packed rows of sparse MLA (layers/attention/mla_attention.py): in FP8, 512 latent bytes, their scales
#: (16) and 64 rotary elements in bf16.
_SPARSE_ROWS = {"fp8": 656, "nvfp4": 352}


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan spreads a model over GPUs. Lengths are in tokens; defaults are vLLM 0.33's.

    `max_batched_tokens`: tokens of one step. `max_batch`: sequences that run at once. If they are None, vLLM's values
    for a GPU of that size are used.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    decode_context: int = 1
    draft_tensor: int | None = None
    kv_dtype: str = "auto"
    draft_kv_dtype: str | None = None
    utilization: float = 0.92
    cache_bytes: int | None = None
    context: int | None = None
    max_batch: int | None = None
    max_batched_tokens: int | None = None
    quantization: str | None = None
    language_model_only: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data


def layout(settings: Mapping[str, Setting[Any]]) -> Layout:
    """The layout that a plan's settings describe; settings without a value have `Layout`'s default."""
    fields = {
        "tensor": "tensor_parallel_size",
        "pipeline": "pipeline_parallel_size",
        "data": "data_parallel_size",
        "decode_context": "decode_context_parallel_size",
        "draft_tensor": "draft_tensor_parallel_size",
        "kv_dtype": "kv_cache_dtype",
        "draft_kv_dtype": "draft_kv_cache_dtype",
        "utilization": "gpu_memory_utilization",
        "cache_bytes": "kv_cache_memory_bytes",
        "context": "context",
        "max_batch": "max_batch",
        "max_batched_tokens": "max_batched_tokens",
        "quantization": "quantization",
        "language_model_only": "language_model_only",
    }
    values = {field: settings[name].value for field, name in fields.items() if name in settings}
    return Layout(**{field: value for field, value in values.items() if value is not None})


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one GPU in bytes, and what all GPUs together can cache.

    `room`: left for the KV cache; negative if the weights alone do not fit. `per_token`: bytes of KV cache per token,
    target and drafter together. `per_sequence`: bytes of KV cache that do not grow with the sequence. `tokens`,
    `sequences`: what all replicas can cache at once, in tokens and in sequences of `context` tokens. None if the
    cache's layout is unknown (DeepSeek-V4).
    """

    total: int
    usable: int
    weights: int
    drafter: int
    allowance: int
    room: int
    context: int
    per_token: float | None
    per_sequence: int
    tokens: int | None
    sequences: int | None

    @property
    def sequence(self) -> int | None:
        """Bytes of KV cache for one sequence of `context` tokens."""
        return None if self.per_token is None else math.ceil(self.per_token * self.context) + self.per_sequence

    @property
    def fits(self) -> bool:
        """Whether one sequence of full length fits, without which an engine does not start."""
        return self.room > (self.sequence or 0)

    @property
    def hopeless(self) -> bool:
        """Whether one sequence would not fit even if the engine used half of its allowance.

        vLLM was measured to use 0.8 of it (Qwen3-8B) and 1.1 of it (Kimi), so a hopeless plan surely fails.
        """
        return self.room + self.allowance // 2 <= (self.sequence or 0)

    @property
    def longest(self) -> int | None:
        """The longest context with room for one sequence."""
        if self.per_token is None or self.room <= self.per_sequence:
            return None if self.per_token is None else 0
        return int((self.room - self.per_sequence) / max(self.per_token, 1))


def budget(target: Target, drafter: Drafter | None, layout: Layout, gpu: Gpu) -> Budget:
    """Estimate how the memory of each GPU is spent."""
    context = layout.context or target.context
    layout = _as_stored(target, layout)
    batch, batched_tokens = _batch(layout, gpu)
    usable = int(gpu.memory * layout.utilization)
    weights = _target_weights(target, layout)
    draft_weights = _drafter_weights(drafter, layout)
    spare = allowance(target, layout, batch, batched_tokens)
    room = usable - weights - draft_weights - spare
    if layout.cache_bytes is not None:  # vLLM then ignores the utilization
        room = min(layout.cache_bytes, gpu.memory - weights - draft_weights - spare)
    per_token = per_token_of(target, drafter, layout)
    per_sequence = _windowed(target.attention, target.dtype, layout, context)
    if drafter is not None and drafter.attention is not None and drafter.layers:
        per_sequence += _windowed(drafter.attention, drafter.dtype, _drafter_layout(drafter, layout), context)
    sequence = None if per_token is None else math.ceil(per_token * context) + per_sequence
    sequences = None if sequence is None else max(room, 0) // max(sequence, 1) * layout.data
    tokens = None if per_token is None else int(max(room, 0) / max(per_token, 1)) * layout.data
    return Budget(
        total=gpu.memory,
        usable=usable,
        weights=weights,
        drafter=draft_weights,
        allowance=spare,
        room=room,
        context=context,
        per_token=per_token,
        per_sequence=per_sequence,
        tokens=tokens,
        sequences=sequences,
    )


def _as_stored(target: Target, layout: Layout) -> Layout:
    """The layout with "auto" resolved: a checkpoint with scales for an FP8 cache gets one (utils/torch_utils.py)."""
    if layout.kv_dtype == "auto" and target.quantization is not None and target.quantization.kv_cache:
        return msgspec.structs.replace(layout, kv_dtype=target.quantization.kv_cache)
    return layout


def per_token_of(target: Target, drafter: Drafter | None, layout: Layout) -> float | None:
    """Bytes of KV cache per token on one GPU, for target and drafter. None for an unknown layout."""
    layout = _as_stored(target, layout)
    own = cache_per_token(target.attention, target.layers, target.dtype, layout)
    if drafter is None or drafter.attention is None or not drafter.layers:
        return own
    more = cache_per_token(drafter.attention, drafter.layers, drafter.dtype, _drafter_layout(drafter, layout))
    return None if own is None or more is None else own + more


def _batch(layout: Layout, gpu: Gpu) -> tuple[int, int]:
    """Sequences at once and tokens per step: the plan's, else vLLM 0.33's defaults (engine/arg_utils.py)."""
    if gpu.memory >= 160 * GIB:
        batch, tokens = 1024, 16384
    elif gpu.memory >= 70 * GIB and "A100" not in gpu.name:
        batch, tokens = 1024, 8192
    else:
        batch, tokens = 256, 2048
    return layout.max_batch or batch, layout.max_batched_tokens or tokens


def allowance(target: Target, layout: Layout, batch: int, batched_tokens: int) -> int:
    """Bytes that an engine uses beside weights and cache: an estimate, meant as an upper bound.

    It has a fixed part, the hidden states of the largest step (one copy per active expert), and sampling for the
    largest batch. vLLM measures it by running such a step before it sizes its cache.
    """
    copies = 4 + (target.experts.active if target.experts else 2 * (target.dense_width or 0) // target.hidden)
    step = batched_tokens * target.hidden * 2 * copies
    fixed = _FIXED + (_COMMUNICATION if layout.tensor * layout.pipeline > 1 else 0)
    return fixed + step + batch * target.vocab * _SAMPLING


def cache_per_token(attention: Attention, layers: int, dtype: str, layout: Layout) -> float | None:
    """Bytes of KV cache per token on one GPU, for the layers that cache every token. None for an unknown layout.

    An MLA layer caches a latent vector (1,152 bytes in bf16 for Kimi and DeepSeek). Tensor parallelism copies it to
    every GPU; only decode-context parallelism divides it. In FP8 it takes 576 bytes (vLLM 0.33's TRITON_MLA and others
    store one byte per element). With sparse attention it takes 656, because rows are packed with their scales
    (flashmla_sparse.py), plus the indexer's keys with their scales (deepseek_v2.py). Other layers cache keys and values
    of `kv_heads`, which tensor parallelism divides until one head is left.
    """
    full = max(layers - attention.linear_layers - attention.windowed_layers, 0)
    if attention.kind == "compressed":
        return None
    return math.ceil(full / layout.pipeline) * _row(attention, dtype, layout) / layout.decode_context


def _row(attention: Attention, dtype: str, layout: Layout) -> float:
    """Bytes of one layer's cache per token on one GPU."""
    kind = "fp8" if layout.kv_dtype.startswith("fp8") else layout.kv_dtype
    # NVFP4 has an eight-bit scale for every sixteen elements.
    # A quantized type is of weights only.
    bits = max(dtype_bits(dtype), 16.0) if kind == "auto" else dtype_bits(kind)
    element = {"fp8": 1.0, "nvfp4": 0.5625}.get(kind) or bits / 8
    if attention.kind != "mla":
        return 2 * max(1.0, attention.kv_heads / layout.tensor) * attention.head_dim * element
    rank, rope = attention.kv_lora_rank or 0, attention.rope_dim or 0
    row = packed_bytes(rank, rope) if layout.kv_dtype == "fp8_ds_mla" else (rank + rope) * element
    if attention.index_dim is None:
        return row
    # The indexer's keys are FP8 with a 32-bit scale for every 128.
    return _SPARSE_ROWS.get(kind, row) + attention.index_dim + attention.index_dim // 128 * 4


def _windowed(attention: Attention, dtype: str, layout: Layout, context: int) -> int:
    """Bytes of KV cache of one sequence in layers with a window, which do not grow with its length."""
    if not attention.windowed_layers or attention.kind == "compressed":
        return 0
    rows = min(attention.window or context, context) * math.ceil(attention.windowed_layers / layout.pipeline)
    return math.ceil(rows * _row(attention, dtype, layout))


def _target_weights(target: Target, layout: Layout) -> int:
    """Bytes of the target's weights on the fullest GPU, which has either the embedding or the head in a pipeline."""
    parts = target.weights.parts
    # fp8 halves weights while they load; a checkpoint that is already quantized stays as it is.
    online = 0.5 if layout.quantization and "fp8" in layout.quantization and target.quantization is None else 1.0
    stage = math.ceil(target.layers / layout.pipeline) / target.layers
    # Experts are spread over tensor and data parallel GPUs alike (vLLM: data_parallel_deployment).
    layers = (parts.divided / layout.tensor + parts.experts / (layout.tensor * layout.data)) * online + parts.whole
    tables = parts.embedding + parts.head if layout.pipeline == 1 else max(parts.embedding, parts.head)
    vision = 0 if layout.language_model_only else parts.vision / layout.tensor
    return math.ceil(layers * stage + tables / layout.tensor + vision)


def _drafter_weights(drafter: Drafter | None, layout: Layout) -> int:
    if drafter is None or drafter.weights is None:
        return 0
    tensor = layout.draft_tensor or layout.tensor
    parts = drafter.weights.parts
    return math.ceil((parts.total - parts.whole) / tensor) + parts.whole


def _drafter_layout(drafter: Drafter, layout: Layout) -> Layout:
    """The layout of the drafter's cache: on one pipeline stage, with its own dtype if one is set.

    Decode-context parallelism divides it only if the drafter uses MLA; otherwise every GPU has a copy (vLLM 0.33,
    v1/worker/gpu/model_runner.py).
    """
    mla = drafter.attention is not None and drafter.attention.kind == "mla"
    return msgspec.structs.replace(
        layout,
        tensor=layout.draft_tensor or layout.tensor,
        pipeline=1,
        decode_context=layout.decode_context if mla else 1,
        kv_dtype=layout.draft_kv_dtype or layout.kv_dtype,
    )
