"""What a checkpoint folder is, a target or a drafter, from its small JSON files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import CheckpointError, PlanError

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZERS = ("tokenizer.json", "tiktoken.model")


def is_drafter(path: str) -> bool:
    """Whether `path` is a folder whose config.json is in the speculators format."""
    return (Path(path) / "config.json").is_file() and "speculators_model_type" in read_config(path)


def read_config(path: str) -> Mapping[str, Any]:
    """config.json of the folder `path`. Raises `CheckpointError` when there is no such thing."""
    folder = Path(path)
    if not folder.exists():
        raise CheckpointError(
            f"there is no folder {path}: give a downloaded checkpoint's (names on a model hub are not looked up)"
        )
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{path} is not a checkpoint folder: it has no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return config


def check_whole(path: str, *, tokenizer: bool) -> None:
    """Raise `CheckpointError` when weights (or the tokenizer, if it should have one) are not there at all."""
    for wanted in (_WEIGHTS, _TOKENIZERS) if tokenizer else (_WEIGHTS,):
        if not any((Path(path) / name).is_file() for name in wanted):
            raise CheckpointError(f"{path} is half a checkpoint: it has neither {' nor '.join(wanted)}")


def verifier(path: str, config: Mapping[str, Any]) -> str:
    """The folder of the target that the drafter at `path` was made for. Raises `PlanError` when it cannot be found."""
    name: object = config
    for key in ("speculators_config", "verifier", "name_or_path"):
        name = name.get(key) if isinstance(name, dict) else None
    if not isinstance(name, str) or not name:
        raise PlanError(
            f"{path} does not say which target it drafts for: give the target as MODEL and this as --drafter"
        )
    for candidate in (Path(path) / name, Path(name).expanduser().absolute()):
        if candidate.is_dir():
            return str(candidate.resolve())
    raise PlanError(
        f"{path} drafts for {name}, which is no folder here or beside it: give the target's folder as MODEL and this "
        "as --drafter"
    )
