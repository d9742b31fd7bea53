"""Reads a Hugging Face checkpoint folder: what it declares, whether that fits together, and then its tensors.

`inspect_target` reads config.json and the safetensors headers only, and raises one `CheckpointError` that names what is
wrong before anything loads. Nothing here knows what a tensor is for; `expected`
tables in the models' own configs say which must be there and in which shape.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dovetail.engine.config import TargetConfig, target_config
from dovetail.errors import CheckpointError
from dovetail.tokens.ends import eos_ids

# Stored float types that can be upcast to the compute type. Quantized layouts are refused by name.
_FLOATS = {"F32", "F16", "BF16"}
# All that is read. How many bits others take is looked up too, since a header must add up whether read or not.
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_BYTES |= {"U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
# As the format bounds it.
_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Where one tensor is stored, as its file's header declares it: `size` bytes from byte `start` of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Target:
    """A target checkpoint that has been looked over and found whole."""

    path: Path
    config: TargetConfig
    tensors: Mapping[str, TensorHeader]
    eos_ids: tuple[int, ...]


def inspect_target(path: Path) -> Target:
    """Look over a target without loading it. Raises `CheckpointError`."""
    raw = read_json(path, "config.json")
    config = target_config(raw, path)
    tensors = headers(path)
    check_tensors(path, tensors, config.expected_tensors())
    generation = read_json(path, "generation_config.json") if (path / "generation_config.json").is_file() else {}
    return Target(path, config, tensors, eos_ids(path, raw, generation, config.vocab_size))


class Weights(Mapping[str, torch.Tensor]):
    """Tensors by name, as stored. Each is read when it is asked for, into memory of its own, and not kept.

    So a model that takes them layer by layer never has the checkpoint in memory beside what it makes of it.
    `progress(done, total)` is called with bytes read so far. Raises `CheckpointError` when a file has changed since it
    was looked over.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorHeader],
        names: Iterable[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._tensors = {name: tensors[name] for name in names}
        self._progress = progress
        self._unread = set(self._tensors)
        self._total = sum(header.size for header in self._tensors.values())
        self._done = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        header = self._tensors[name]
        content = bytearray(header.size)
        try:
            with header.file.open("rb", buffering=0) as handle:
                handle.seek(header.start)
                read, into = 0, memoryview(content)
                # One call reads 2 GiB at most.
                while count := handle.readinto(into[read:]):
                    read += count
        except OSError as error:
            raise CheckpointError(f"{header.file} cannot be read: {error}") from error
        if read < header.size:
            raise CheckpointError(f"{header.file} has been cut short: {name} is not whole")
        if self._progress is not None and name in self._unread:
            self._unread.remove(name)
            self._done += header.size
            self._progress(self._done, self._total)
        return torch.frombuffer(content, dtype=_DTYPES[header.dtype]).view(header.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def load_tensors(
    tensors: Mapping[str, TensorHeader],
    names: Iterable[str],
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """The tensors called `names`, to be read one by one."""
    return Weights(tensors, names, progress)


def read_json(path: Path, name: str) -> dict[str, Any]:
    """A file of the folder `path`, which must hold an object. Raises `CheckpointError`."""
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


def headers(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the folder, from one model.safetensors or from the shards its index names."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        single = path / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(f"{path} has neither model.safetensors nor model.safetensors.index.json")
        return _file_headers(single)
    weight_map = read_json(path, index.name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to file names")
    shards = sorted(set(weight_map.values()))
    if outside := [shard for shard in shards if Path(shard).name != shard]:
        raise CheckpointError(f"{index} names a shard outside its folder: {outside[0]!r}")
    if missing := [shard for shard in shards if not (path / shard).is_file()]:
        raise CheckpointError(f"{path} lacks {len(missing)} of {len(shards)} shards that its index names: {missing[0]}")
    found: dict[str, TensorHeader] = {}
    for shard in shards:
        own = _file_headers(path / shard)
        if twice := found.keys() & own.keys():
            name = min(twice)
            raise CheckpointError(f"{path}: tensor {name} is in two shards, {found[name].file.name} and {shard}")
        found |= own
    for name, shard in weight_map.items():
        if name not in found or found[name].file.name != shard:
            raise CheckpointError(f"{index} says that tensor {name} is in {shard}, which does not have it")
    return found


def _file_headers(file: Path) -> dict[str, TensorHeader]:
    """The header of one safetensors file: 8 bytes of length, then JSON (https://github.com/huggingface/safetensors)."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size or length > _HEADER:
            raise CheckpointError(f"{file} is not a safetensors file, or it is cut short")
        try:
            header: dict[str, Any] = json.loads(handle.read(length))
            header.pop("__metadata__", None)
            found = {name: _tensor_header(file, 8 + length, tensor) for name, tensor in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{file} has an unreadable safetensors header: {error}") from error
    # The format leaves no gaps, so that every byte belongs to one tensor.
    end = 8 + length
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].size)):
        width = _BYTES.get(tensor.dtype)
        if tensor.start != end or (width is not None and tensor.size != width * math.prod(tensor.shape)):
            raise CheckpointError(
                f"{file} has a header that does not add up: {name}, {tensor.dtype} {list(tensor.shape)}, is said to be "
                f"{tensor.size} bytes from byte {tensor.start}, after what ends at {end}"
            )
        end += tensor.size
    if end != size:
        short = "cut short" if end > size else "longer than its header says"
        raise CheckpointError(f"{file} is {short}: {size} bytes of {end}")
    return found


def _tensor_header(file: Path, start: int, declared: Mapping[str, Any]) -> TensorHeader:
    dtype, shape, (begin, end) = declared["dtype"], declared["shape"], declared["data_offsets"]
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, begin, end - begin)):
        raise ValueError(f"{declared!r:.80}")
    return TensorHeader(file, dtype, tuple(shape), start + begin, end - begin)


def check_tensors(path: Path, found: Mapping[str, TensorHeader], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `CheckpointError` unless all of `expected` are there, in their shapes."""
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
