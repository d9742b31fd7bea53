"""Which token ids end a turn, as a checkpoint's folder declares it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import CheckpointError


def eos_ids(folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """`eos_token_id` of `folder`: what generation_config.json holds is the later word, where it speaks, than what
    config.json does. Raises `CheckpointError`."""
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = declared if isinstance(declared, list) else [declared]
    if not ids or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise CheckpointError(
            f"{folder}: eos_token_id must be one or more token ids below the vocab_size of {vocab_size}, "
            f"found {declared!r:.80}"
        )
    return tuple(ids)
