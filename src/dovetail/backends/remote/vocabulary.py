"""What a client must know of a model's vocabulary to exchange token ids with an engine on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_config
from dovetail.checkpoints.generation import check_eos_ids, read_eos_ids
from dovetail.checkpoints.target import language_model
from dovetail.errors import CheckpointError
from dovetail.tokens import Tokenizer


class Vocabulary(msgspec.Struct, frozen=True):
    """Token ids are below `size`. `eos_ids` end a turn. `control`: ids of the control tokens by literal.
    `blanks`: as in `Tokenizer`."""

    size: int
    eos_ids: tuple[int, ...]
    control: Mapping[str, int]
    blanks: tuple[int, ...] = ()


def read_vocabulary(target: Path, tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary that the small files in the folder `target` declare. Raises `CheckpointError`."""
    whole = Fields(read_config(target), f"{target}/config.json")
    text = language_model(whole)
    size = text.number("vocab_size") or whole.number("vocab_size") or 0
    if size < tokenizer.vocab_size:
        raise CheckpointError(
            f"{target}: vocab_size must not be below the tokenizer's {tokenizer.vocab_size} ids, found {size}"
        )
    eos_ids = next(iter(read_eos_ids(target, text, whole)), ())
    check_eos_ids(target, eos_ids, size)
    return Vocabulary(size, eos_ids, tokenizer.control, tokenizer.blanks)
