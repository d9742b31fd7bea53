"""A checkpoint's folder: its small JSON files, which weights are there, and whether something is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", _INDEX)
_TOKENIZERS = ("tokenizer.json", "tiktoken.model")
_POINTER = b"version https://git-lfs"
_LONGEST_HEADER = 25_000_000  # bytes; models of that many tensors have more than one file, and an index
_LONGEST_INDEX = 100_000_000
_LONGEST_JSON = 8_000_000  # a config that names every expert of a large model has some of them


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The weights as files: their bytes and where that number is from, and the tensors' names, where files say."""

    bytes: int | None = None
    source: Literal["index", "files"] | None = None
    tensors: frozenset[str] | None = None


class _Metadata(msgspec.Struct):
    total_size: int | float | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata | None = None


_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


class _Entry(msgspec.Struct, gc=False):
    """Of a tensor in a header; `__metadata__` has no offsets."""

    data_offsets: tuple[_Offset, _Offset] = (0, 0)


def stored(path: str) -> Stored:
    """What the index or the files of the folder `path` say of its weights, without opening a tensor.

    A folder without weights is no error: a plan can be made from a config alone. Raises `CheckpointError` for weights
    that are there in part, that are git-lfs pointers, or that are cut short.
    """
    folder = Path(path)
    if os.path.lexists(folder / _INDEX):
        return _indexed(folder)
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    files = files or sorted(folder.glob("pytorch_model*.bin"))
    _check_fetched(files)
    size = sum(file.stat().st_size for file in files)
    if not size:
        return Stored()
    tensors = _header(files[0]) if len(files) == 1 and files[0].suffix == ".safetensors" else None
    return Stored(bytes=size, source="files", tensors=tensors)


def _indexed(folder: Path) -> Stored:
    """By the files where they are here: an index may be another checkpoint's."""
    index = _index(folder)
    shards = _shards(folder, index)
    here = [folder / shard for shard in shards if os.path.lexists(os.path.join(folder, shard))]
    if here and len(here) < len(shards):
        missing = next(shard for shard in shards if not os.path.lexists(folder / shard))
        raise CheckpointError(
            f"{folder} is half a checkpoint: {len(here)} of the {len(shards)} files of its index are there, "
            f"{missing} is not; fetch it again"
        )
    _check_fetched(here)
    tensors = frozenset(index.weight_map)
    size = sum(shard.stat().st_size for shard in here)
    if size:
        return Stored(bytes=size, source="files", tensors=tensors)
    total = index.metadata.total_size if index.metadata else None
    if total is not None and 0 < total < 2**60:
        return Stored(bytes=int(total), source="index", tensors=tensors)
    return Stored(tensors=tensors)


def _shards(folder: Path, index: _Index) -> list[str]:
    """The files of the index, all of which are in the folder."""
    shards = sorted(set(index.weight_map.values()))
    for shard in shards:
        if shard.startswith("/") or ".." in shard.split("/") or not shard.strip("./"):
            raise CheckpointError(f"{folder / _INDEX} has weights in {shard!r:.80}, which is no file of its folder")
    return shards


def _index(folder: Path) -> _Index:
    file = folder / _INDEX
    _check_fetched([file])
    try:
        return msgspec.json.decode(_content(file, _LONGEST_INDEX), type=_Index)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not an index of weights: {error}") from error


def _content(file: Path, longest: int) -> bytes:
    """The bytes of `file`. Raises `CheckpointError` for one that is longer, or no file at all."""
    if not file.is_file():
        raise CheckpointError(f"{file} is no file")
    with file.open("rb") as opened:
        content = opened.read(longest + 1)
    if len(content) > longest:
        raise CheckpointError(f"{file} is longer than {longest / 1e6:.0f} MB, which no such file is")
    return content


def _check_fetched(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{file} is no file but a folder, a pipe or a link that leads nowhere: that is half a checkpoint, "
                "fetch it again"
            )
        if file.stat().st_size < 1024 and file.read_bytes().startswith(_POINTER):
            raise CheckpointError(f"{file} is a git-lfs pointer, not weights: run `git lfs pull` in its folder")


def _header(file: Path) -> frozenset[str]:
    """The names in a safetensors file, whose length must be what its header says.

    https://huggingface.co/docs/safetensors: eight bytes of length, JSON, then the tensors.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(size, _LONGEST_HEADER):
                raise CheckpointError(f"{file} is no safetensors file, or cut short within its header")
            header = msgspec.json.decode(opened.read(length), type=dict[str, _Entry])
        header.pop("__metadata__", None)
        end = 8 + length + max((entry.data_offsets[1] for entry in header.values()), default=0)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} has no header of a safetensors file") from error
    if size != end:
        raise CheckpointError(f"{file} is cut short or damaged: {size} bytes, {end} by its own header; fetch it again")
    return frozenset(header)


def read_config(path: str) -> Mapping[str, Any]:
    """config.json of the folder `path`. Raises `CheckpointError` when there is no such thing."""
    folder = Path(path)
    if not folder.exists():
        raise CheckpointError(f"there is no folder {path}")
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{path} is not a checkpoint folder: it has no config.json")
    return read_json(file)


def read_json(file: Path) -> Mapping[str, Any]:
    """The object in `file`. Raises `CheckpointError` when it holds none."""
    try:
        text = _content(file, _LONGEST_JSON).decode()
        content = json.loads(text)
        if r"\u" in text:
            msgspec.json.encode(content)  # half a character, "\ud800", is no text and could not be shown
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return content


def check_whole(path: str, *, tokenizer: bool) -> None:
    """Raise `CheckpointError` when weights (or the tokenizer, if it should have one) are not there at all."""
    for wanted in (_WEIGHTS, _TOKENIZERS) if tokenizer else (_WEIGHTS,):
        if not any((Path(path) / name).is_file() for name in wanted):
            raise CheckpointError(f"{path} is half a checkpoint: it has neither {' nor '.join(wanted)}")
    folder = Path(path)
    if not (folder / _WEIGHTS[0]).is_file():
        shards = _shards(folder, _index(folder))
        if not any((folder / shard).is_file() for shard in shards):
            raise CheckpointError(f"{path} is half a checkpoint: of the {len(shards)} files of its index none is there")


def has_weights(path: str) -> bool:
    """Whether any file of weights is in the folder, of whatever kind."""
    return any(file.suffix in (".safetensors", ".bin") for file in Path(path).iterdir())


def has_tokenizer(path: str) -> bool:
    """Whether the folder holds a tokenizer of a kind that Dovetail reads."""
    return any((Path(path) / name).is_file() for name in _TOKENIZERS)
