"""Checks a target's weight files against its config, and reads tensors one by one.

`inspect_target` reads the small files and the headers of the weights, and raises one `CheckpointError` that names what
is wrong before anything loads. The configs of the models declare which tensors there must be, and their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from dovetail.checkpoints.generation import check_eos_ids
from dovetail.checkpoints.target import Target, read_target
from dovetail.checkpoints.tensor_files import TensorHeader, read_headers
from dovetail.engine.config import TargetConfig, target_config
from dovetail.engine.gguf import dequantized, in_halves
from dovetail.engine.parallel.shards import Shard, axis_of, shard_of
from dovetail.errors import CheckpointError

#: Stored types that are read.
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
#: Stored types of weights, which can be converted to the type that the model computes in.
_FLOATS = {"F32", "F16", "BF16"}
#: Quantized types of GGUF files, which become float32 when they are read.
_QUANTIZED = {
    *(f"Q{bits}_{kind}" for bits in (4, 5) for kind in (0, 1)),
    "Q8_0",
    *(f"Q{bits}_K" for bits in range(2, 7)),
}


@dataclass(frozen=True, slots=True)
class TargetCheckpoint:
    """A target whose files were checked: what they declare, the engine's config, and where the tensors are."""

    path: Path
    target: Target
    config: TargetConfig
    tensors: Mapping[str, TensorHeader]


def inspect_target(path: Path) -> TargetCheckpoint:
    """Checks a target without loading it. Raises `CheckpointError`."""
    target = read_target(str(path))
    config = target_config(target)
    tensors = read_headers(path)
    check_tensors(path, tensors, config.expected_tensors())
    check_eos_ids(path, target.eos_ids, config.vocab_size)
    return TargetCheckpoint(path, target, config, tensors)


class Weights(Mapping[str, torch.Tensor]):
    """Tensors by name, as stored. Each look-up reads the tensor from its file into new memory and does not cache it.

    A model that is built layer by layer therefore never has the whole checkpoint in memory beside its own weights.
    `progress(done, total)` gets the bytes read so far. `rank` of `ranks` gets its own part of each tensor, and reads no
    more than that. Raises `CheckpointError` when a file has changed since its header was read.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorHeader],
        names: Iterable[str],
        progress: Callable[[int, int], None] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._tensors = {name: tensors[name] for name in names}
        self._shards = {name: shard_of(name, header, rank, ranks) for name, header in self._tensors.items()}
        self._rank, self._ranks = rank, ranks
        self._progress = progress
        self._unread = set(self._tensors)
        self._total = sum(shard.size for shard in self._shards.values())
        self._done = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        header = self._tensors[name]
        if header.dtype in _QUANTIZED or header.paired_heads:
            return self._part(name, header)
        shard = self._shards[name]
        return torch.frombuffer(self._content(name, shard), dtype=_DTYPES[header.dtype]).view(shard.shape)

    def _part(self, name: str, header: TensorHeader) -> torch.Tensor:
        """The rank's part of a tensor that has to be read whole: a block of a quantized row may lie in two parts."""
        content = self._content(name, shard_of(name, header, 0, 1))
        stored = _DTYPES.get(header.dtype)
        tensor = dequantized(content, header) if stored is None else torch.frombuffer(content, dtype=stored)
        tensor = in_halves(tensor.view(header.shape), header.paired_heads)
        axis = axis_of(name) if self._ranks > 1 else None
        return tensor if axis is None else tensor.chunk(self._ranks, axis)[self._rank]

    def _content(self, name: str, shard: Shard) -> bytearray:
        """The bytes of `shard` of a tensor."""
        header = self._tensors[name]
        content = bytearray(shard.size)
        try:
            read = _read(header.file, shard, memoryview(content))
        except OSError as error:
            raise CheckpointError(f"{header.file} cannot be read: {error}") from error
        if read < shard.size:
            raise CheckpointError(f"{header.file} has been cut short: {name} is incomplete")
        if self._progress is not None and name in self._unread:
            self._unread.remove(name)
            self._done += self._shards[name].size
            self._progress(self._done, self._total)
        return content

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _read(file: Path, shard: Shard, into: memoryview) -> int:
    """Fill `into` with the pieces of `shard`. Returns how many bytes of them there were."""
    read = 0
    with file.open("rb", buffering=0) as handle:
        for start in shard.starts:
            handle.seek(start)
            end = read + shard.piece
            # One call reads 2 GiB at most.
            while count := handle.readinto(into[read:end]):
                read += count
    return read


def load_tensors(
    tensors: Mapping[str, TensorHeader],
    names: Iterable[str],
    progress: Callable[[int, int], None] | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> Weights:
    """The tensors called `names`, each read when it is looked up; of `rank`, the part that it computes with."""
    return Weights(tensors, names, progress, rank, ranks)


def check_tensors(path: Path, tensors: Mapping[str, TensorHeader], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `CheckpointError` unless `tensors` has all `expected` names, with their shapes and a supported type."""
    for name, shape in expected.items():
        header = tensors.get(name)
        if header is None:
            raise CheckpointError(f"{path}: tensor {name} is missing (expected shape {list(shape)})")
        if header.shape != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {list(header.shape)}, expected {list(shape)}")
        types = {"d2t": {"I64"}, "t2d": {"BOOL"}}.get(name, _FLOATS | _QUANTIZED)
        if header.dtype not in types:
            raise CheckpointError(
                f"{path}: tensor {name} is stored as {header.dtype}, expected {', '.join(sorted(types))}"
            )
