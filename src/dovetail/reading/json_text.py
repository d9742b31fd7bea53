"""JSON text: whether it is JSON, and what closes it."""

from __future__ import annotations

import json
import re

WHITESPACE = " \t\r\n"
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}\[\]]', re.DOTALL)


def closing(text: str) -> str | None:
    """The text that closes the open strings and brackets of `text`, if that makes it JSON; else None."""
    closers: list[str] = []
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            closers.append("}" if mark == "{" else "]")
        elif mark in "}]":
            closers[-1:] = []
        elif not token[1]:
            closers.append('"')
    ends = "".join(reversed(closers))
    return ends if is_json(text + ends) else None


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value. NaN and infinities are not JSON."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
