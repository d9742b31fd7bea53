"""The header of a GGUF file: its metadata and where its tensors are. No tensor is read.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` takes over 20 times as long,
so only its conversion of weights is used (docs/decisions/0053).
"""

from __future__ import annotations

import array
import math
import os
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.errors import CheckpointError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # 1 had shorter counts, and no model of it is in use
_LARGEST = 2**40
_MOST_TENSORS = 1_000_000
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

#: Number of a value's type -> its code in `struct` and `array`; text and lists are numbers 8 and 9.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


class StoredType(NamedTuple):
    """How numbers are stored: `block` of them take `size` bytes."""

    name: str
    block: int
    size: int


#: ggml's numbers for types of tensors. Types that ggml dropped have gaps.
TYPES: Mapping[int, StoredType] = {
    number: StoredType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}


class GGUFTensor(msgspec.Struct, frozen=True):
    """`shape` is in the order of torch. The tensor has `size` bytes from byte `start` of `file`."""

    file: Path
    name: str
    type: StoredType
    shape: tuple[int, ...]
    start: int
    size: int


class Header(msgspec.Struct, frozen=True):
    """What a GGUF file declares, or all parts of a split one, whose metadata is in the first."""

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    parts: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())


def is_gguf(path: str | Path) -> bool:
    """Whether `path` is a GGUF file, by its first bytes; a file whose name says so counts too, so that it is refused
    as what it was meant to be."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(file: str | Path) -> Header:
    """The header of `file` and of the parts beside it. Raises `CheckpointError` for a file that is no whole GGUF."""
    parts = _parts(Path(file))
    read = [_Reader(part).header() for part in parts]
    tensors = {name: tensor for _, own in read for name, tensor in own.items()}
    return Header(parts[0], read[0][0], tensors, tuple(parts))


def _parts(file: Path) -> list[Path]:
    """The files of a model that was split (NAME-00001-of-00003.gguf), else `file` alone."""
    split = _PART.fullmatch(file.name)
    if split is None:
        return [file]
    count = int(split[3])
    names = [f"{split[1]}-{number:05}-of-{split[3]}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not (file.parent / name).is_file()]
    if missing or not count:
        first = missing[0] if missing else "none"
        more = f", nor are {len(missing) - 1} others" if len(missing) > 1 else ""
        raise CheckpointError(f"{file} is one of {count} parts, and {first} is not beside it{more}")
    return [file.parent / name for name in names]


class _Reader:
    """Reads one file from its beginning. Every count is checked against what is left of the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._left = self._size = os.stat(file).st_size
            self._opened = file.open("rb")
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error

    def header(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        with self._opened:
            magic = self._take(4)
            if magic != MAGIC:
                raise self._error(f"it begins with {magic!r}, not with {MAGIC!r}, so it is not a GGUF file")
            version = self._number("I")
            if version not in _VERSIONS:
                swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
                raise self._error("it is big-endian" if swapped else f"GGUF version {version} is not supported")
            tensors, values = self._number("Q"), self._number("Q")
            if max(tensors, values) > _MOST_TENSORS:
                raise self._error(f"its header is damaged: it counts {tensors} tensors and {values} values")
            metadata = {self._text(): self._value(self._number("I")) for _ in range(values)}
            listed = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
            raise self._error(f"general.alignment is {alignment!r}")
        begin = -(-(self._size - self._left) // alignment) * alignment
        placed = {
            name: GGUFTensor(self._file, name, kind, shape, begin + offset, size)
            for name, kind, shape, offset, size in listed
        }
        for tensor in placed.values():
            if tensor.start + tensor.size > self._size:
                raise CheckpointError(
                    f"{self._file} is cut short: it has {self._size:,} bytes, and {tensor.name} ends at "
                    f"{tensor.start + tensor.size:,}; fetch it again"
                )
        return metadata, placed

    def _tensor(self) -> tuple[str, StoredType, tuple[int, ...], int, int]:
        name, dimensions = self._text(), self._number("I")
        if dimensions > 8:
            raise self._error(f"its header is damaged: tensor {name!r:.80} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        kind = TYPES.get(number)
        if kind is None:
            raise self._error(f"tensor {name!r:.80} has the quantization {number}, which is not known here")
        count = math.prod(shape)
        if count > _LARGEST or offset > _LARGEST or (shape and shape[-1] % kind.block):
            raise self._error(f"tensor {name!r:.80}, {kind.name} {list(shape)}, has no such size")
        return name, kind, shape, offset, count // kind.block * kind.size

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            raise self._error(f"its header is damaged: there is no type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if count > self._left:
            raise self._cut()
        if inner not in _NUMBERS:
            return [self._value(inner) for _ in range(count)]
        code = _NUMBERS[inner]
        content = self._take(count * struct.calcsize("<" + code))
        if code == "?":
            return [bool(byte) for byte in content]
        numbers = array.array(code, content)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()

    def _text(self) -> str:
        content = self._take(self._number("Q"))
        return content.decode("utf-8", "surrogateescape")

    def _number(self, code: str) -> Any:
        (number,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        return number

    def _take(self, size: int) -> bytes:
        if size > self._left:
            raise self._cut()
        self._left -= size
        content = self._opened.read(size)
        if len(content) < size:
            raise self._cut()
        return content

    def _cut(self) -> CheckpointError:
        return self._error(f"it is cut short within its header: it has {self._size:,} bytes; fetch it again")

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._file}: {message}")
