"""What Python writes where JSON is asked for: its words, its quotes and trailing commas."""

from __future__ import annotations

import re
from json.encoder import encode_basestring as quote

_PYTHON = re.compile(
    # A string without an end matches up to the end of the text, so that the search does not restart at every quote.
    r"""(?P<word>\b(?:True|False|None)\b)|"(?:[^"\\]|\\.)*+"?|'(?P<string>(?:[^'\\]|\\.)*+)'|'(?:[^'\\]|\\.)*+"""
    r"""|,(?=\s*[\]}])""",
    re.DOTALL,
)
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_IN_STRING = re.compile(r'\\(?:x([0-9a-fA-F]{2})|(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))|["\x00-\x1f]', re.DOTALL)


def from_python(text: str) -> str:
    """`text` with Python's words, quotes and trailing commas replaced by JSON's. Everything else stays."""
    return _PYTHON.sub(_json_token, text)


def _json_token(token: re.Match[str]) -> str:
    if token["word"]:
        return PYTHON_WORDS[token["word"]]
    if token["string"] is not None:
        return f'"{_IN_STRING.sub(_json_escape, token["string"])}"'
    return "" if token.group() == "," else token.group()


def _json_escape(escape: re.Match[str]) -> str:
    if escape[1]:
        return f"\\u00{escape[1]}"
    if escape[2]:
        return escape.group()
    if escape[3]:
        return escape[3] if escape[3] == "'" else quote(escape.group())[1:-1]
    return quote(escape.group())[1:-1]
