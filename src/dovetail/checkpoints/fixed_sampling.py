"""Fixed sampling: the values that a server allows for each sampling field, as `--fixed-sampling` has them.

`temperature=0.6/0/1,top_p=0.95` allows three temperatures, of which the first is the default. A field without values
has the one that changes nothing. `model` stands for the values in the checkpoint's generation_config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_optional
from dovetail.errors import InvalidRequest

#: Every sampling field, with the value that changes nothing. `top_k` 0 keeps all tokens.
NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
}

#: The allowed values of each field; the first is the default.
FixedSampling = Mapping[str, tuple[float, ...]]


def parse(text: str) -> FixedSampling:
    """The values in `text`. Raises `InvalidRequest` that says what is wrong with it."""
    values: dict[str, tuple[float, ...]] = {field: (value,) for field, value in NEUTRAL.items()}
    for part in text.split(","):
        field, equals, listed = part.strip().partition("=")
        if field not in values or not equals:
            raise InvalidRequest(f"{part!r:.80} must be FIELD=VALUE, and FIELD one of {', '.join(values)}")
        values[field] = tuple(_number(each, field) for each in listed.split("/"))
    return values


def _number(text: str, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{field}={text:.80} must be a number")
    return value


def of_model(folder: Path) -> FixedSampling:
    """The values in the generation_config.json in `folder`. Raises `CheckpointError`."""
    generation = Fields(read_optional(folder / "generation_config.json"), f"{folder}/generation_config.json")
    declared = {field: generation.real(field) for field in NEUTRAL if field != "n"}
    return {field: (NEUTRAL[field] if (value := declared.get(field)) is None else value,) for field in NEUTRAL}
