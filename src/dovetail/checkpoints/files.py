"""The folder of a checkpoint: bounded reading of its JSON files, and which files it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import CheckpointError

INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tiktoken.model")
_LONGEST_CONFIG = 8_000_000  # bytes; a config that names every expert of a large model takes some of them
_LONGEST_TOKENIZER = 200_000_000  # bytes; the largest known tokenizer.json has 35 million


def read_config(folder: str | Path) -> Mapping[str, Any]:
    """The config.json of a folder. Raises `CheckpointError` when there is none."""
    folder = Path(folder)
    if not folder.exists():
        raise CheckpointError(f"there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is not a checkpoint folder: it has no config.json")
    return read_object(folder / "config.json")


def read_optional(file: Path) -> Mapping[str, Any]:
    """The object in `file`, empty when there is no such file. Raises `CheckpointError` when it holds anything else."""
    return read_object(file) if file.is_file() else {}


def read_object(file: Path) -> Mapping[str, Any]:
    """The object in a config file. Raises `CheckpointError` when it holds none or is too long."""
    content = read_bounded(file, _LONGEST_CONFIG)
    parsed = _object(file, content)
    if rb"\u" in content:
        try:
            msgspec.json.encode(parsed)
        except ValueError as error:  # half of a surrogate pair cannot be printed or sent
            raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    return parsed


def read_tokenizer_object(file: Path) -> dict[str, Any]:
    """The object in a tokenizer.json. Raises `CheckpointError` when it holds none or is too long."""
    return _object(file, read_tokenizer_file(file))


def read_tokenizer_file(file: Path) -> bytes:
    """The bytes of a tokenizer.json. Raises `CheckpointError` when it is too long."""
    return read_bounded(file, _LONGEST_TOKENIZER)


def read_text(file: Path) -> str:
    """The text of a file such as a chat template. Raises `CheckpointError` when it is not UTF-8 or is too long."""
    try:
        return read_bounded(file, _LONGEST_CONFIG).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} cannot be read as text: {error}") from error


def read_bounded(file: Path, longest: int) -> bytes:
    """The bytes of `file`. Raises `CheckpointError` when it is no file or has more than `longest` bytes."""
    if not file.is_file():
        raise CheckpointError(f"{file} is not a file")
    try:
        with file.open("rb") as opened:
            content = opened.read(longest + 1)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if len(content) > longest:
        raise CheckpointError(f"{file} is longer than {longest / 1e6:.0f} MB, the limit for such a file")
    return content


def _object(file: Path, content: bytes) -> dict[str, Any]:
    # Python's parser, because configs may hold numbers that JSON does not have, such as Infinity.
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return parsed


def has_weights(folder: str | Path) -> bool:
    """Whether the folder holds any weight file, of whatever format."""
    return any(file.suffix in (".safetensors", ".bin", ".gguf") for file in Path(folder).iterdir())


def has_tokenizer(folder: str | Path) -> bool:
    """Whether the folder holds a tokenizer of a kind that Dovetail reads."""
    return any((Path(folder) / name).is_file() for name in TOKENIZERS)
