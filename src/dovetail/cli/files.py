"""Text, JSON and keys from files and standard input, with errors that name the file; and JSON on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

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


def print_json(value: Any) -> None:
    """Print a value that msgspec can encode."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


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


def _name(path: str) -> str:
    return "standard input" if path == "-" else path
