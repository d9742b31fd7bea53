"""Reads an OCI image layout: its config and layers, each against its digest, and unpacks its files.

Source: https://github.com/opencontainers/image-spec (image-layout.md, layer.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from dovetail.checkpoints.files import read_bounded
from dovetail.errors import CheckpointError

T = TypeVar("T")
_LONGEST = 8_000_000  # bytes of an index, a manifest or a config
_BLOCK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


class Blob(msgspec.Struct, frozen=True):
    digest: str
    size: int


class _Index(msgspec.Struct, frozen=True):
    manifests: list[Blob]


class _Manifest(msgspec.Struct, frozen=True):
    config: Blob
    layers: list[Blob]


class Config(msgspec.Struct, frozen=True, rename="pascal"):
    """How a container starts."""

    user: str = ""
    env: list[str] = []
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str = "/"
    labels: dict[str, str] | None = None
    exposed_ports: dict[str, object] | None = None


class _Image(msgspec.Struct, frozen=True):
    config: Config


class Layout(msgspec.Struct, frozen=True):
    """An image in the folder of an OCI layout. `digest`: of its manifest. `size`: compressed bytes of all layers."""

    folder: Path
    digest: str
    config: Config
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.config.labels or {}

    def unpack(self, folder: Path, below: str = "") -> None:
        """Write the files of all layers, or those `below` a path such as "models", into `folder`.

        Raises `CheckpointError` for a layer that cannot be read or would write elsewhere.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for layer in self.layers:
            try:
                with tarfile.open(_file(self.folder, layer.digest)) as archive:
                    _apply(archive, folder, PurePosixPath(below))
            except (tarfile.TarError, OSError, EOFError) as error:
                raise CheckpointError(f"{self.folder}: layer {layer.digest} cannot be unpacked: {error}") from error


def read_layout(folder: Path) -> Layout:
    """The one image of a layout, all of whose blobs have their digests. Raises `CheckpointError`."""
    if not (folder / "index.json").is_file():
        raise CheckpointError(f"{folder} is no OCI layout: it has no index.json")
    index = _decoded(folder / "index.json", _Index)
    if len(index.manifests) != 1:
        raise CheckpointError(f"{folder} holds {len(index.manifests)} images: give a layout with one")
    _check(folder, index.manifests[0])
    digest = index.manifests[0].digest
    manifest = _decoded(_file(folder, digest), _Manifest)
    for blob in (manifest.config, *manifest.layers):
        _check(folder, blob)
    image = _decoded(_file(folder, manifest.config.digest), _Image)
    return Layout(folder, digest, image.config, tuple(manifest.layers))


def _decoded(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bounded(file, _LONGEST), type=kind)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _file(folder: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise CheckpointError(f"{folder}: {digest!r:.80} is no SHA-256 digest")
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _check(folder: Path, blob: Blob) -> None:
    file = _file(folder, blob.digest)
    if not file.is_file():
        raise CheckpointError(f"{folder}: blob {blob.digest} is missing")
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise CheckpointError(f"{folder}: blob {blob.digest} was altered, its SHA-256 is {digest.hexdigest()}")


def _apply(archive: tarfile.TarFile, folder: Path, below: PurePosixPath) -> None:
    """Add one layer to `folder`: later files replace earlier ones, and whiteouts remove them."""
    for member in archive:
        path = PurePosixPath(os.path.normpath(member.name.lstrip("/")))
        if below != PurePosixPath() and path != below and below not in path.parents:
            continue
        _refuse_outside(folder, path)
        if member.islnk():
            _refuse_outside(folder, PurePosixPath(os.path.normpath(member.linkname.lstrip("/"))))
        if path.name == _OPAQUE:
            for each in (folder / path.parent).iterdir():
                _remove(each)
        elif path.name.startswith(_WHITEOUT):
            _remove(folder / path.parent / path.name.removeprefix(_WHITEOUT))
        elif not (member.isdev() or member.isfifo()):
            target = folder / path
            if not member.isdir():
                _remove(target)
            archive.extract(member, folder, filter="tar")


def _refuse_outside(folder: Path, path: PurePosixPath) -> None:
    """What is removed lies in `folder`, too, after every link on the way; `tarfile` only checks what is written."""
    parent = (folder / path).parent.resolve()
    if ".." in path.parts or not parent.is_relative_to(folder.resolve()):
        raise tarfile.TarError(f"{path} is outside of the image")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
