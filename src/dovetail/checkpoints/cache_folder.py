"""Dovetail's folder in the user's cache. Its place: https://specifications.freedesktop.org/basedir-spec/latest/."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str = "") -> Path | None:
    """The folder `name` in Dovetail's cache, made if need be; None if it cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (cache if cache.is_absolute() else Path.home() / ".cache") / "dovetail" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError):  # there is no home, or its name contains a NUL
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
