"""The folder of a GGUF file: the small files that checkpoints on the hub have, made once, and links to the weights.

All that reads a checkpoint reads this folder, so that nothing else has to know of GGUF. It is in the user's cache, and
is made again when the file changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.checkpoints.cache_folder import cache_folder
from dovetail.checkpoints.gguf.config import config_json
from dovetail.checkpoints.gguf.header import Header, read_header
from dovetail.checkpoints.gguf.tokenizer import tokenizer_config, tokenizer_json
from dovetail.errors import CheckpointError

_VERSION = 1  # of what is written; a new one makes all folders again


def gguf_folder(file: str | Path) -> str:
    """The folder of the GGUF `file`. Raises `CheckpointError` for a file that is damaged or is no language model."""
    file = Path(file).resolve()
    header = read_header(file)
    parent = cache_folder("gguf")
    if parent is None:
        parent = Path(tempfile.mkdtemp(prefix="dovetail-gguf-"))
    _tidy(parent)
    changed = [(str(part), part.stat().st_size, part.stat().st_mtime_ns) for part in header.parts]
    digest = hashlib.sha256(repr((_VERSION, changed)).encode()).hexdigest()[:16]
    folder = parent / f"{file.stem[:80]}-{digest}"
    if not folder.is_dir():
        _write(folder, header)
    return str(folder)


def only_gguf(folder: Path) -> Path | None:
    """The GGUF file of a folder that has no config.json, or the first part of it; None unless there is exactly one."""
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob("*.gguf"))
    first = {read_header(file).parts[0] for file in files if not file.name.startswith("mmproj")}
    if len(first) > 1:
        names = ", ".join(sorted(file.name for file in first))
        raise CheckpointError(f"{folder} holds several GGUF files: give one of {names}")
    return next(iter(first), None)


def gguf_file(folder: str | Path) -> Path | None:
    """The GGUF file whose weights a folder has, the first part of a split one; None if they are in other files."""
    folder = Path(folder)
    if any(folder.glob("*.safetensors")):
        return None
    first = min(folder.glob("*.gguf"), default=None)
    return None if first is None else first.resolve()


def _write(folder: Path, header: Header) -> None:
    """Make the folder, whole or not at all: another process may make it at the same time."""
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        # The config first, because it refuses what is no language model.
        _dump(made / "config.json", config_json(header))
        _dump(made / "tokenizer.json", tokenizer_json(header.metadata, header.file))
        _dump(made / "tokenizer_config.json", tokenizer_config(header.metadata))
        for part in header.parts:
            (made / part.name).with_suffix(".gguf").symlink_to(part)
        made.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _dump(file: Path, content: Mapping[str, Any]) -> None:
    try:
        file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(f"a text in the header is not UTF-8, so no {file.name} can be made of it") from error


def _tidy(parent: Path) -> None:
    """Remove the folders of files that are gone."""
    for folder in parent.iterdir():
        links = list(folder.glob("*.gguf"))
        if links and not any(os.path.exists(link) for link in links):
            shutil.rmtree(folder, ignore_errors=True)
