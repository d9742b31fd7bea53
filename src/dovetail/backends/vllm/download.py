"""Counts the downloaded bytes of a model, because vLLM's log says nothing while it downloads one."""

from __future__ import annotations

import os
from pathlib import Path


def downloaded_bytes(snapshot: str) -> int:
    """The size of the hub's cache for the model whose `snapshot` folder this is, unfinished files included.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache: snapshots/REVISION links into blobs/.
    """
    try:
        with os.scandir(Path(snapshot).parent.parent / "blobs") as blobs:
            return sum(_size(blob) for blob in blobs)
    except OSError:
        return 0


def _size(blob: os.DirEntry[str]) -> int:
    try:
        return blob.stat().st_size
    except OSError:  # an unfinished file that was renamed in this moment
        return 0
