"""What must be known of a model's vocabulary to talk ids to an engine that has the model elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import CheckpointError
from dovetail.tokens import Tokenizer
from dovetail.tokens.ends import eos_ids


class Vocabulary(msgspec.Struct, frozen=True):
    """Ids are below `size`; `eos_ids` end a turn; `control` are the control tokens, by their literal."""

    size: int
    eos_ids: tuple[int, ...]
    control: Mapping[str, int]


def read_vocabulary(target: Path, tokenizer: Tokenizer) -> Vocabulary:
    """As config.json and generation_config.json of the folder `target` declare it. Raises `CheckpointError`."""
    config = _read(target / "config.json")
    text = config.get("text_config")
    own = {**config, **text} if isinstance(text, dict) else config
    size = own.get("vocab_size")
    if type(size) is not int or size < tokenizer.vocab_size:
        raise CheckpointError(
            f"{target}: vocab_size must be a number, and not below the tokenizer's {tokenizer.vocab_size} ids, "
            f"found {size!r:.80}"
        )
    generation = target / "generation_config.json"
    said = _read(generation) if generation.is_file() else {}
    return Vocabulary(size, eos_ids(target, own, said, size), tokenizer.control)


def _read(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as a JSON object: {error}") from error
