"""Text and JSON from files and standard input, with errors that name the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dovetail.errors import InvalidRequest


def read_text(path: str) -> str:
    """The text of a file; `-` is standard input. Raises `InvalidRequest`."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{_name(path)} is not UTF-8: {error.reason} at byte {error.start}") from error


def read_json(path: str) -> Any:
    """The JSON value in a file; `-` is standard input. Raises `InvalidRequest`."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise InvalidRequest(f"{_name(path)} is not JSON: {error}") from error


def _name(path: str) -> str:
    return "standard input" if path == "-" else path
