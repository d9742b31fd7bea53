"""Loads a drafter: its configs and headers are checked against its target, then its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dovetail.checkpoints.drafter import read_drafter
from dovetail.checkpoints.tensor_files import TensorHeader, read_headers
from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.cache.tables import Tables
from dovetail.engine.config import DrafterConfig, Eagle3Config, MTPConfig, TargetConfig, drafter_config, mtp_config
from dovetail.engine.drafting.base import Chooser, Drafter
from dovetail.engine.drafting.chain import LOOKAHEAD, ChainDrafter, ParallelDrafter
from dovetail.engine.drafting.draft_model import DraftModel
from dovetail.engine.drafting.eagle3 import Eagle3
from dovetail.engine.drafting.mtp import MTP
from dovetail.engine.models.base import Model
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.settings import INSIDE, DraftSampling
from dovetail.engine.weights import TargetCheckpoint, check_tensors, load_tensors
from dovetail.errors import CheckpointError

_EXTRA = ("embed_tokens.weight", "lm_head.weight", "mask_hidden")


@dataclass(frozen=True, slots=True)
class DrafterCheckpoint:
    """A drafter's checkpoint that fits its target.

    `target_ids`: the target's id for each id of the drafter; None if both vocabularies are the same.
    """

    path: Path
    config: DrafterConfig
    tensors: Mapping[str, TensorHeader]
    target_ids: Tensor | None = None

    @property
    def layers(self) -> int:
        """How many layers have a cache."""
        return 1 if isinstance(self.config, MTPConfig) else self.decoder.num_hidden_layers

    @property
    def decoder(self) -> TargetConfig:
        """The config of the drafter's layers."""
        config = self.config
        if isinstance(config, Eagle3Config):
            return config.layer
        return config.target if isinstance(config, MTPConfig) else config

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The residual streams of the target that the drafter reads."""
        return () if isinstance(self.config, TargetConfig) else self.config.aux_layers


def inspect_drafter(source: Path | str, target: TargetCheckpoint) -> DrafterCheckpoint:
    """Checks a drafter against `target` without loading it. Raises `CheckpointError`.

    `source` is the drafter's folder, or "mtp" for the MTP layer inside the target.
    """
    if source == INSIDE:
        inside = mtp_config(target.target, target.config)
        check_tensors(target.path, target.tensors, inside.expected_tensors())
        return DrafterCheckpoint(target.path, inside, target.tensors)
    path = Path(source)
    config = drafter_config(read_drafter(str(path)), target.target)
    # Some trainers name the only layer midlayer.
    tensors = {name.replace("midlayer.", "layers.0.", 1): header for name, header in read_headers(path).items()}
    if not isinstance(config, Eagle3Config):
        check_tensors(path, tensors, config.expected_tensors())
        return DrafterCheckpoint(path, config, tensors)
    _check_eagle3(path, config, tensors, target)
    return DrafterCheckpoint(path, config, tensors, _target_ids(path, config, tensors))


def load_drafter(
    checkpoint: DrafterCheckpoint,
    target: Model,
    pool: BlockPool,
    *,
    context: int,
    dtype: torch.dtype,
    options: Options,
    prefix_caching: bool,
    draft_sampling: DraftSampling,
) -> Drafter:
    """Read the weights of `checkpoint` and make a drafter for `target`, with the block pool `pool` of its own."""
    config = checkpoint.config
    rows = pool.total * pool.block_size
    choose = Chooser(target.vocab_size, checkpoint.target_ids, draft_sampling)
    names = [*config.expected_tensors(), *(name for name in _EXTRA if name in checkpoint.tensors)]
    weights = load_tensors(checkpoint.tensors, names)
    if isinstance(config, TargetConfig):
        model = build_model(config, weights, rows=rows, context=context, dtype=dtype, options=options)
        return DraftModel(model, Tables(pool, share=prefix_caching), choose, config.max_position_embeddings)
    tables = Tables(pool, lookahead=LOOKAHEAD, share=prefix_caching)
    if isinstance(config, MTPConfig):
        mtp = MTP(config, weights, target, rows=rows, context=context, dtype=dtype, options=options)
        return ChainDrafter(mtp, tables, choose)
    eagle3 = Eagle3(config, weights, target, rows=rows, context=context, dtype=dtype, options=options)
    if config.mask_token_id is None:
        return ChainDrafter(eagle3, tables, choose)
    mask = weights["mask_hidden"].view(1, -1).to(dtype)
    return ParallelDrafter(eagle3, tables, choose, config.mask_token_id, mask)


def _check_eagle3(
    path: Path, config: Eagle3Config, tensors: Mapping[str, TensorHeader], target: TargetCheckpoint
) -> None:
    hidden, target_hidden = config.layer.hidden_size, target.config.hidden_size
    fc = tensors.get("fc.weight")
    if fc is not None and fc.shape[1:] != (config.feature_width,):
        raise CheckpointError(
            f"{path} does not fit the target: its fc.weight has shape {list(fc.shape)}, but {len(config.aux_layers)} "
            f"auxiliary layers of the target's hidden_size {target_hidden} are {config.feature_width} numbers"
        )
    expected = config.expected_tensors()
    if "embed_tokens.weight" in tensors:
        expected["embed_tokens.weight"] = (target.config.vocab_size, hidden)
    if "lm_head.weight" in tensors:
        expected["lm_head.weight"] = (config.draft_vocab_size, hidden)
    elif config.draft_vocab_size != target.config.vocab_size:
        raise CheckpointError(
            f"{path} has no lm_head.weight, so it shares the target's head, but its draft_vocab_size is "
            f"{config.draft_vocab_size} and the target's vocab_size is {target.config.vocab_size}"
        )
    for name, shared in (("embed_tokens.weight", "embeddings"), ("lm_head.weight", "head")):
        if name not in tensors and hidden != target_hidden:
            raise CheckpointError(
                f"{path} has no {name}, so it shares the target's {shared}, but its hidden_size is {hidden} and the "
                f"target's is {target_hidden}"
            )
    if "d2t" in tensors:
        expected["d2t"] = (config.draft_vocab_size,)
    if config.mask_token_id is not None:
        mask = tensors.get("mask_hidden")
        leading = () if mask is None else (1,) * (len(mask.shape) - 1)
        expected["mask_hidden"] = (*leading, config.feature_width)
    check_tensors(path, tensors, expected)


def _target_ids(path: Path, config: Eagle3Config, tensors: Mapping[str, TensorHeader]) -> Tensor | None:
    """The target's id for each id of the drafter: ``i + d2t[i]``. If there is a t2d, it must agree."""
    size, vocab = config.draft_vocab_size, config.layer.vocab_size
    if size == vocab and "d2t" not in tensors:
        return None
    maps = load_tensors(tensors, [name for name in ("d2t", "t2d") if name in tensors])
    ids = maps["d2t"] + torch.arange(size)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise CheckpointError(f"{path}: d2t points to {low} to {high}, outside the target's vocabulary of {vocab}")
    ascending = sorted(ids.tolist())
    if len(set(ascending)) < size:
        raise CheckpointError(f"{path}: d2t names a token of the target twice")
    if "t2d" in maps and maps["t2d"].nonzero().flatten().tolist() != ascending:
        raise CheckpointError(f"{path}: d2t and t2d name different tokens")
    return ids
