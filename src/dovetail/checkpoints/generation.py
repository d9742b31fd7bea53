"""Which token ids end a turn, as config.json and generation_config.json declare it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_optional
from dovetail.errors import CheckpointError


def read_eos_ids(folder: Path, *configs: Fields) -> list[tuple[int, ...]]:
    """The `eos_token_id` of generation_config.json and of each of `configs`, leaving out those that declare none.

    generation_config.json has the last word on what ends a turn, so it comes first. Raises `CheckpointError` for a
    value that is not a token id or a list of them.
    """
    generation = Fields(read_optional(folder / "generation_config.json"), f"{folder}/generation_config.json")
    return [ids for ids in map(_eos_ids, (generation, *configs)) if ids]


def check_eos_ids(path: str | Path, ids: Sequence[int], vocab_size: int) -> None:
    """Raises `CheckpointError` unless there is at least one id and all are below `vocab_size`."""
    if not ids or max(ids) >= vocab_size:
        raise CheckpointError(
            f"{path}: eos_token_id must be one or more token ids below the vocab_size of {vocab_size}, found "
            f"{list(ids)!r:.80}"
        )


def _eos_ids(config: Fields) -> tuple[int, ...]:
    declared = config.raw.get("eos_token_id")
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
        raise config.error(f"eos_token_id must be one or more token ids, found {declared!r:.80}")
    return tuple(ids)
