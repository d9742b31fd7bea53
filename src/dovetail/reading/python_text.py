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

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_BASED = re.compile(r"([+-]?)\s*(0(?:[xX](?:_?[0-9a-fA-F])+|[oO](?:_?[0-7])+|[bB](?:_?[01])+))")
_DIGITS = "[0-9](?:_?[0-9])*+"
_DECIMAL = re.compile(rf"([+-]?)\s*({_DIGITS})?(\.(?:{_DIGITS})?)?([eE][+-]?{_DIGITS})?")


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


def number(text: str) -> str | None:
    """A Python number as JSON, with the same digits if JSON allows them; None if `text` is no number."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    if (based := _BASED.fullmatch(text)) is not None:
        return f"{based[1].strip('+')}{int(based[2], 0)}"
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None or not (decimal[2] or len(decimal[3] or "") > 1):
        return None
    sign, whole, fraction, exponent = ((part or "").replace("_", "") for part in decimal.groups())
    if not fraction and not exponent and whole[0] == "0" and whole.strip("0"):
        return None  # Python 2's octal numbers, which Python 3 refuses
    return f"{sign.strip('+')}{whole.lstrip('0') or '0'}{fraction}{'0' if fraction == '.' else ''}{exponent}"
