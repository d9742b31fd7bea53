"""Which tensors a checkpoint's weight files hold, from their headers and the index, without reading a tensor.

A safetensors header is eight bytes of length, JSON, then the tensors (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dovetail.checkpoints.files import INDEX, TOKENIZERS, read_bounded
from dovetail.checkpoints.gguf.config import paired_heads, tensor_name
from dovetail.checkpoints.gguf.folder import gguf_file
from dovetail.checkpoints.gguf.header import Header, read_header
from dovetail.errors import CheckpointError

_WEIGHTS = ("model.safetensors", INDEX)
_GIT_LFS = b"version https://git-lfs"
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_LONGEST_INDEX = 100_000_000
_TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_TYPE_BYTES |= {"U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The weights as files: their bytes and where that number comes from, and the tensors' names if files list them."""

    bytes: int | None = None
    source: Literal["index", "files"] | None = None
    tensors: frozenset[str] | None = None


class TensorHeader(msgspec.Struct, frozen=True):
    """Where one tensor is stored: `size` bytes from byte `start` of `file`.

    `paired_heads`: how many heads its rows belong to, if the rows that rotate together are neighbours, as in GGUF files
    of Llama; 0: they are halves of the head, as elsewhere.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int
    paired_heads: int = 0


class _Metadata(msgspec.Struct):
    total_size: int | float | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def stored(folder: str | Path) -> Stored:
    """What the index or the files of a folder tell about its weights.

    A folder without weights is no error, because a plan can be made from a config alone. Raises `CheckpointError` when
    only some of the files are there, or when one is a git-lfs pointer or cut short.
    """
    folder = Path(folder)
    if os.path.lexists(folder / INDEX):
        return _indexed(folder)
    gguf = _gguf(folder)
    if gguf is not None:
        return Stored(bytes=gguf.bytes, source="files", tensors=frozenset(gguf.tensors))
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    files = files or sorted(folder.glob("pytorch_model*.bin"))
    _check_fetched(files)
    size = sum(file.stat().st_size for file in files)
    if not size:
        return Stored()
    one = len(files) == 1 and files[0].suffix == ".safetensors"
    return Stored(bytes=size, source="files", tensors=frozenset(_file_headers(files[0])) if one else None)


def _indexed(folder: Path) -> Stored:
    """The sizes of the files win over the index, which may be another checkpoint's."""
    index = _index(folder)
    listed = _shards(folder, index)
    present = [shard for shard in listed if os.path.lexists(os.path.join(folder, shard))]
    if present and len(present) < len(listed):
        missing = next(shard for shard in listed if shard not in present)
        raise CheckpointError(
            f"{folder} is incomplete: it has {len(present)} of the {len(listed)} files that its index lists, "
            f"{missing} is missing; fetch it again"
        )
    files = [folder / shard for shard in present]
    _check_fetched(files)
    tensors = frozenset(index.weight_map)
    size = sum(file.stat().st_size for file in files)
    if size:
        return Stored(bytes=size, source="files", tensors=tensors)
    total = index.metadata.total_size if index.metadata else None
    if total is not None and 0 < total < 2**60:
        return Stored(bytes=int(total), source="index", tensors=tensors)
    return Stored(tensors=tensors)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a folder by name, from one model.safetensors, from the shards of its index, or from a GGUF file.

    Raises `CheckpointError` when a file is missing or damaged, or when index and files disagree.
    """
    if not (folder / INDEX).is_file():
        gguf = _gguf(folder)
        if gguf is not None:
            return _gguf_headers(gguf)
        single = folder / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(f"{folder} has neither model.safetensors nor {INDEX}")
        return _file_headers(single)
    index = _index(folder)
    headers: dict[str, TensorHeader] = {}
    for shard in _shards(folder, index):
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder} is incomplete: {shard}, which its index lists, is missing")
        own = _file_headers(folder / shard)
        if twice := headers.keys() & own.keys():
            name = min(twice)
            raise CheckpointError(f"{folder}: tensor {name} is in two files, {headers[name].file.name} and {shard}")
        headers |= own
    for name, shard in index.weight_map.items():
        if name not in headers or headers[name].file != folder / shard:
            raise CheckpointError(f"{folder / INDEX} places tensor {name} in {shard}, which does not hold it")
    return headers


def _gguf(folder: Path) -> Header | None:
    """The header of the GGUF file whose weights the folder has instead of safetensors; None if it has none."""
    file = gguf_file(folder)
    return None if file is None else read_header(file)


def _gguf_headers(header: Header) -> dict[str, TensorHeader]:
    return {
        name: TensorHeader(
            tensor.file, tensor.type.name, tensor.shape, tensor.start, tensor.size, paired_heads(header, tensor.name)
        )
        for tensor in header.tensors.values()
        if (name := tensor_name(tensor.name)) is not None
    }


def check_complete(folder: str | Path, *, tokenizer: bool) -> None:
    """Raises `CheckpointError` when the weights, or with `tokenizer` the tokenizer, are missing altogether."""
    folder = Path(folder)
    for names in (_WEIGHTS, TOKENIZERS) if tokenizer else (_WEIGHTS,):
        if names is _WEIGHTS and _gguf(folder) is not None:
            continue
        if not any((folder / name).is_file() for name in names):
            raise CheckpointError(f"{folder} is incomplete: it has neither {' nor '.join(names)}")
    if _gguf(folder) is None and not (folder / _WEIGHTS[0]).is_file():
        listed = _shards(folder, _index(folder))
        if not any((folder / shard).is_file() for shard in listed):
            raise CheckpointError(
                f"{folder} is incomplete: it has none of the {len(listed)} files that its index lists"
            )


def _shards(folder: Path, index: _Index) -> list[str]:
    listed = sorted(set(index.weight_map.values()))
    for shard in listed:
        if shard.startswith("/") or ".." in shard.split("/") or not shard.strip("./"):
            raise CheckpointError(f"{folder / INDEX} places weights in {shard!r:.80}, which is outside its folder")
    return listed


def _index(folder: Path) -> _Index:
    file = folder / INDEX
    _check_fetched([file])
    try:
        return msgspec.json.decode(read_bounded(file, _LONGEST_INDEX), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not an index of weights: {error}") from error


def _check_fetched(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{file} is a folder, a pipe or a broken link, not a file: fetch the checkpoint again"
            )
        if file.stat().st_size < 1024 and file.read_bytes().startswith(_GIT_LFS):
            raise CheckpointError(f"{file} is a git-lfs pointer, not weights: run `git lfs pull` in its folder")


def _file_headers(file: Path) -> dict[str, TensorHeader]:
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            prefix = opened.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or 8 + length > size or length > _LONGEST_HEADER:
                raise CheckpointError(f"{file} is not a safetensors file, or it is cut short within its header")
            header = msgspec.json.decode(opened.read(length), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} has an unreadable safetensors header: {error}") from error
    headers = {
        name: TensorHeader(file, entry.dtype, entry.shape, 8 + length + begin, end - begin)
        for name, entry in entries.items()
        for begin, end in (entry.data_offsets,)
    }
    _check_layout(file, headers.items(), 8 + length, size)
    return headers


def _check_layout(file: Path, headers: Iterable[tuple[str, TensorHeader]], end: int, size: int) -> None:
    """The format leaves no gaps: from byte `end` to `size`, every byte belongs to one tensor."""
    for name, tensor in sorted(headers, key=lambda item: (item[1].start, item[1].size)):
        width = _TYPE_BYTES.get(tensor.dtype)
        if tensor.start != end or (width is not None and tensor.size != width * math.prod(tensor.shape)):
            raise CheckpointError(
                f"{file} has an inconsistent header: {name}, {tensor.dtype} {list(tensor.shape)}, has {tensor.size} "
                f"bytes from byte {tensor.start}, but the tensor before it ends at {end}"
            )
        end += tensor.size
    if end > size:
        raise CheckpointError(f"{file} is cut short: it has {size} bytes of {end}; fetch it again")
    if end < size:
        raise CheckpointError(f"{file} is longer than its header declares: {size} bytes instead of {end}")


#: What the scale of an FP8 cache is called inside a layer's attention: the names that vLLM reads
#: (model_loader/weight_utils.py).
CACHE_SCALES = ("k_scale", "attn.k_scale", "mla_attn.mla_attn.k_scale", "kv_scale")

_ENDS = tuple(f".self_attn.{name}" for name in CACHE_SCALES)


def cache_scales(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """The names of the scales of an FP8 cache, one number for each layer of attention.

    Raises `CheckpointError` for one that is not a single float.
    """
    names = [name for name in tensors if name.endswith(_ENDS)]
    for name in names:
        header = tensors[name]
        if math.prod(header.shape) != 1 or header.dtype not in ("F32", "F16", "BF16"):
            raise CheckpointError(
                f"{header.file}: {name}, a scale of an FP8 cache, has shape {list(header.shape)} and type "
                f"{header.dtype}, expected one number of F32, F16 or BF16"
            )
    return names
