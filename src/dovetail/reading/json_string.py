"""`StringDecoder`: decodes the inside of a JSON string, piece by piece."""

from __future__ import annotations

import json
import re

_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    # A pair of surrogates; the beginning of an escape or of such a pair; any one escape, valid or not.
    rf"{_HIGH}{_LOW}|(?P<begun>\\(?:u[0-9a-fA-F]{{0,3}})?\Z|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z)"
    r"|\\u[0-9a-fA-F]{4}|\\.",
    re.DOTALL,
)
_SIMPLE = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\b": "\b", "\\f": "\f", '\\"': '"', "\\\\": "\\", "\\/": "/"}


class StringDecoder:
    """Decodes every character as soon as its escape is complete. An escape that JSON does not have stays as it is."""

    def __init__(self) -> None:
        self._buffered = ""

    def feed(self, text: str) -> str:
        """The next characters. The beginning of an escape at the end of `text` is buffered."""
        text, self._buffered = self._buffered + text, ""
        return _ESCAPE.sub(self._decoded, text) if "\\" in text else text

    def end(self) -> str:
        """The buffered text. Nothing can complete it any more."""
        rest, self._buffered = self._buffered, ""
        return rest

    def _decoded(self, match: re.Match[str]) -> str:
        if match["begun"] is None:
            return _character(match.group())
        self._buffered = match.group()
        return ""


def _character(escape: str) -> str:
    simple = _SIMPLE.get(escape)
    if simple is not None:
        return simple
    try:
        decoded: str = json.loads(f'"{escape}"')
        decoded.encode()
    except ValueError:  # an escape that JSON does not have, or half of a pair of surrogates
        return escape
    return decoded


def decode(text: str) -> str:
    """The whole inside of a string, decoded."""
    decoder = StringDecoder()
    return decoder.feed(text) + decoder.end()
