"""Reads a Hugging Face checkpoint folder: what it declares, whether that fits together, and then its tensors.

`inspect_target` and `inspect_drafter` read config.json and the safetensors headers only, and raise one
`CheckpointError` that names what is wrong before anything loads. Nothing here knows what a tensor is for; `expected`
tables in the models' own configs say which must be there and in which shape.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from dovetail.engine.config import DrafterConfig, TargetConfig, drafter_config, target_config
from dovetail.errors import CheckpointError

# Stored float types that can be upcast to the compute type. Quantized layouts are refused by name.
_FLOATS = {"F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Where one tensor is stored, as its file's header declares it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A target checkpoint that has been looked over and found whole."""

    path: Path
    config: TargetConfig
    tensors: Mapping[str, TensorHeader]
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter checkpoint that has been looked over and found to fit its target."""

    path: Path
    config: DrafterConfig
    tensors: Mapping[str, TensorHeader]


def inspect_target(path: Path) -> Target:
    """Look over a target without loading it. Raises `CheckpointError`."""
    raw = _read_json(path, "config.json")
    config = target_config(raw, path)
    tensors = _headers(path)
    _check_tensors(path, tensors, config.expected_tensors())
    return Target(path, config, tensors, _eos_ids(path, raw, config.vocab_size))


def inspect_drafter(path: Path, target: Target) -> Drafter:
    """Look over an EAGLE-3 drafter in speculators format, and hold it against its target. Raises `CheckpointError`."""
    config = drafter_config(_read_json(path, "config.json"), path, target.config)
    tensors = _headers(path)
    _check_tensors(path, tensors, config.expected_tensors())
    if "embed_tokens.weight" in tensors:
        _check_tensors(path, tensors, {"embed_tokens.weight": (target.config.vocab_size, config.hidden_size)})
    elif config.hidden_size != target.config.hidden_size:
        raise CheckpointError(
            f"{path} has no embed_tokens.weight, so it shares the target's embeddings, but its hidden_size is "
            f"{config.hidden_size} and the target's is {target.config.hidden_size}"
        )
    return Drafter(path, config, tensors)


def load_tensors(tensors: Mapping[str, TensorHeader], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Read `names` as stored, each file opened once."""
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(tensors[name].file, []).append(name)
    loaded: dict[str, torch.Tensor] = {}
    for file, wanted in by_file.items():
        with safe_open(file, framework="pt") as handle:
            for name in wanted:
                loaded[name] = handle.get_tensor(name)
    return loaded


def _eos_ids(path: Path, config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids that end a turn: generation_config.json is the later word where both files speak."""
    generation = _read_json(path, "generation_config.json") if (path / "generation_config.json").is_file() else {}
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = declared if isinstance(declared, list) else [declared]
    if not ids or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise CheckpointError(
            f"{path}: eos_token_id must be one or more token ids below the vocab_size of {vocab_size}, "
            f"found {declared!r:.80}"
        )
    return tuple(ids)


def _read_json(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint folder")
    if not file.is_file():
        raise CheckpointError(f"{path} has no {name}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return content


def _headers(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the folder, from one model.safetensors or from the shards its index names."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        single = path / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(f"{path} has neither model.safetensors nor model.safetensors.index.json")
        return _file_headers(single)
    weight_map = _read_json(path, index.name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to file names")
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (path / shard).is_file()]:
        raise CheckpointError(f"{path} lacks {len(missing)} of {len(shards)} shards that its index names: {missing[0]}")
    found: dict[str, TensorHeader] = {}
    for shard in shards:
        found.update(_file_headers(path / shard))
    return found


def _file_headers(file: Path) -> dict[str, TensorHeader]:
    """The header of one safetensors file: 8 bytes of length, then JSON (https://github.com/huggingface/safetensors)."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise CheckpointError(f"{file} is not a safetensors file, or it is cut short")
        try:
            header: dict[str, Any] = json.loads(handle.read(length))
            header.pop("__metadata__", None)
            found = {name: TensorHeader(file, t["dtype"], tuple(t["shape"])) for name, t in header.items()}
            end = max((t["data_offsets"][1] for t in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} has an unreadable safetensors header: {error}") from error
    if 8 + length + end > size:
        raise CheckpointError(f"{file} is cut short: {size} bytes of {8 + length + end}")
    return found


def _check_tensors(path: Path, found: Mapping[str, TensorHeader], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        header = found.get(name)
        if header is None:
            raise CheckpointError(f"{path}: tensor {name} is missing (expected shape {list(shape)})")
        if header.shape != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {list(header.shape)}, expected {list(shape)}")
        wanted = {"d2t": {"I64"}, "t2d": {"BOOL"}}.get(name, _FLOATS)
        if header.dtype not in wanted:
            raise CheckpointError(
                f"{path}: tensor {name} is stored as {header.dtype}, expected {' or '.join(sorted(wanted))}"
            )
