"""The key of an endpoint that a command asks."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.errors import InvalidRequest


def endpoint_key(path: str | None, variable: str) -> str | None:
    """The key in a file, or else in an environment variable. Raises `InvalidRequest` without showing the key."""
    if path is None:
        key, where = os.environ.get(variable), f"the environment variable {variable}"
        if not key:
            return None
    else:
        where = path
        try:
            key = Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"the key file {path} cannot be read as ASCII text") from None
    if not key.isascii() or len(key.split()) != 1:
        raise InvalidRequest(f"{where} must hold one key, on one line")
    return key.strip()
