"""From checkpoint folders to loaded models: check everything by configs and headers first, then read the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dovetail.checkpoints.tensor_files import cache_scales
from dovetail.engine.attention.latent_rows import row_bytes
from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.compute import default_threads
from dovetail.engine.config import Eagle3Config, MTPConfig, TargetConfig
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.drafting.deferred import Deferred
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.load import DrafterCheckpoint, inspect_drafter, load_drafter
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.models.base import Model
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.parallel.channel import Task
from dovetail.engine.parallel.group import Layout
from dovetail.engine.parallel.sizes import BLOCK_SIZE, indivisible, part
from dovetail.engine.parallel.workers import LedModel, Workers
from dovetail.engine.settings import FP8, LOOKUP, EngineSettings
from dovetail.engine.weights import TargetCheckpoint, inspect_target, load_tensors
from dovetail.errors import CheckpointError, EngineError
from dovetail.tokens import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _nothing_to_close() -> None: ...


@dataclass(frozen=True, slots=True)
class Models:
    """A loaded target, its drafter (None: nothing drafts), and `pool`, the blocks of the target's KV cache.

    `context`: the most tokens in a sequence. `method`: how tokens are drafted, by the plan's name for it. `sources`:
    what the models were made of, in values whose `repr` changes when the models do. `close` ends the other ranks.
    """

    target: Model
    drafter: Drafter | None
    pool: BlockPool
    context: int
    eos_ids: tuple[int, ...]
    method: str
    sources: tuple[object, ...]
    close: Callable[[], None] = _nothing_to_close


def load_models(
    target: Path,
    drafter: Path | str | None,
    tokenizer: Tokenizer,
    settings: EngineSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Models:
    """Load a target's folder and a drafter: a folder, `INSIDE`, `LOOKUP`, or None.

    Sets torch's thread count for the calling thread, which must be the one that runs the models. `progress` is called
    with the bytes of the target read so far and in all. Raises `CheckpointError` or `EngineError` before any weight is
    read when a checkpoint is incomplete or does not fit.
    """
    sizes = settings.sizes
    threads = settings.threads or max(1, default_threads() // sizes.tensor)
    torch.set_num_threads(threads)
    checkpoint = inspect_target(target)
    draft_checkpoint = None if drafter is None or drafter == LOOKUP else inspect_drafter(drafter, checkpoint)
    config, dtype = checkpoint.config, DTYPES[settings.dtype]
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{target}: the tokenizer has {tokenizer.vocab_size} ids, the model's vocab_size is {config.vocab_size}"
        )
    if reason := indivisible(config, sizes):
        raise EngineError(f"{target}: {reason}")
    context = _context(settings, config)
    block_size = BLOCK_SIZE * sizes.context
    blocks = _cache_blocks(_token_bytes(checkpoint, draft_checkpoint, settings), context, settings)
    pool = BlockPool(blocks, block_size)
    aux_layers = () if draft_checkpoint is None else draft_checkpoint.aux_layers
    own = blocks * BLOCK_SIZE, context, aux_layers
    close = _nothing_to_close
    with torch.inference_mode():
        if sizes.tensor == 1:
            model = _load_part(checkpoint, settings, None, *own, progress)
        else:
            workers = Workers(sizes, settings.rank_deadline)
            close = workers.close
            ranks = workers.start(
                [Task(rank, workers.meeting, target, settings, *own, threads) for rank in range(1, sizes.tensor)]
            )
            model = LedModel(_load_part(checkpoint, settings, ranks, *own, progress), workers, ranks.tensor)
            workers.wait_loaded()
        drafts: Drafter | None = Forced(Lookup()) if drafter == LOOKUP else None
        if draft_checkpoint is not None:
            loaded = load_drafter(
                draft_checkpoint,
                model,
                BlockPool(blocks, block_size),
                context=context,
                dtype=dtype,
                options=draft_options(settings, draft_checkpoint.decoder.latent_widths is not None),
                prefix_caching=settings.prefix_caching,
                draft_sampling=settings.draft_sampling,
            )
            drafts = Forced(Deferred(loaded))
    sources = (config, drafter if draft_checkpoint is None else draft_checkpoint.config)
    method = _method(drafter, draft_checkpoint)
    return Models(model, drafts, pool, context, checkpoint.target.eos_ids, method, sources, close)


def load_part(
    target: Path,
    settings: EngineSettings,
    ranks: Layout,
    rows: int,
    context: int,
    aux_layers: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> Model:
    """One rank's part of the target in a folder. Raises `CheckpointError`."""
    return _load_part(inspect_target(target), settings, ranks, rows, context, aux_layers, progress)


def _load_part(
    checkpoint: TargetCheckpoint,
    settings: EngineSettings,
    ranks: Layout | None,
    rows: int,
    context: int,
    aux_layers: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> Model:
    config = checkpoint.config
    rank, size = (0, 1) if ranks is None else (ranks.tensor.rank, ranks.tensor.size)
    names = [*config.expected_tensors(), *_scales(checkpoint, settings)]
    return build_model(
        part(config, size),
        load_tensors(checkpoint.tensors, names, progress, rank, size),
        rows=rows,
        context=context,
        dtype=DTYPES[settings.dtype],
        aux_layers=aux_layers,
        options=target_options(settings)._replace(ranks=ranks),
    )


def target_options(settings: EngineSettings) -> Options:
    """How the target is stored and computed."""
    return Options(settings.kv_cache_dtype, settings.attention_backend, settings.quantization, settings.kernels)


def draft_options(settings: EngineSettings, latents: bool) -> Options:
    """How the drafter is stored and computed: as the target where the settings name nothing else.

    `latents`: whether it caches latents. One that does not cannot have its target's FP8 cache, and gets "auto".
    """
    inherited = settings.kv_cache_dtype if latents or settings.kv_cache_dtype not in FP8 else "auto"
    return target_options(settings)._replace(
        kv_cache_dtype=settings.draft_kv_cache_dtype or inherited,
        attention_backend=settings.draft_attention_backend or settings.attention_backend,
    )


def _context(settings: EngineSettings, config: TargetConfig) -> int:
    """The most tokens in a sequence. Raises `EngineError`."""
    context = config.max_position_embeddings if settings.context is None else settings.context
    if not 2 <= context <= config.max_position_embeddings:
        raise EngineError(f"context must be from 2 to the model's {config.max_position_embeddings}, not {context}")
    return context


def _token_bytes(target: TargetCheckpoint, drafter: DrafterCheckpoint | None, settings: EngineSettings) -> int:
    """Bytes of KV cache per token on the first rank, in the caches of target and drafter together."""
    dtype, sizes = DTYPES[settings.dtype], settings.sizes
    own = part(target.config, sizes.tensor)
    in_layer = _layer_bytes(target.path, own, target_options(settings), dtype, split=sizes.context > 1)
    own_bytes = -(-own.num_hidden_layers * in_layer // sizes.context)
    if drafter is None:
        return own_bytes
    options = draft_options(settings, drafter.decoder.latent_widths is not None)
    return own_bytes + drafter.layers * _layer_bytes(drafter.path, drafter.decoder, options, dtype)


def _layer_bytes(path: Path, config: TargetConfig, options: Options, dtype: torch.dtype, *, split: bool = False) -> int:
    """Bytes of KV cache per token in one layer. Raises `EngineError` for an FP8 cache where there are no latents.

    `split`: ranks share the cache, so it is one of latents.
    """
    kind = options.kv_cache_dtype
    if kind not in FP8:
        width = sum(config.latent_widths) if split and config.latent_widths else config.cache_width
        return width * options.cache_dtype(dtype).itemsize
    if config.latent_widths is None:
        raise EngineError(
            f"a KV cache of {kind} stores latents, and {path} has none (its attention is not MLA): use auto or bfloat16"
        )
    return row_bytes(kind, *config.latent_widths)


def _scales(checkpoint: TargetCheckpoint, settings: EngineSettings) -> list[str]:
    """The names of the scales that the target's cache needs, as far as the checkpoint has them."""
    return cache_scales(checkpoint.tensors) if settings.kv_cache_dtype == "fp8" else []


def _cache_blocks(token_bytes: int, context: int, settings: EngineSettings) -> int:
    """Blocks of KV cache: for `max_batch` full sequences, or as many as the memory holds, but for one at least."""
    block_size = BLOCK_SIZE * settings.sizes.context
    sequence = -(-context // block_size)
    in_memory = settings.kv_cache_memory_bytes // (token_bytes * block_size)
    return max(sequence, min(sequence * settings.max_batch, in_memory))


def _method(drafter: Path | str | None, checkpoint: DrafterCheckpoint | None) -> str:
    """How tokens are drafted, by the plan's name for it."""
    if checkpoint is None:
        return "suffix" if drafter == LOOKUP else "none"
    if isinstance(checkpoint.config, Eagle3Config):
        return "eagle3" if checkpoint.config.mask_token_id is None else "peagle"
    return "mtp" if isinstance(checkpoint.config, MTPConfig) else "draft_model"
