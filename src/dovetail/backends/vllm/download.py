"""How much of a model that vLLM fetches from the hub is here: its log is silent about that, for hours."""

from __future__ import annotations

import os
from pathlib import Path


def fetched(snapshot: str) -> int:
    """Bytes in the hub's cache of the model whose `snapshot` folder that is, half-fetched files included.

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
    except OSError:  # a half-fetched file that has just got its name
        return 0
