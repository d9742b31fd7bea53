"""`JsonPrefix`: tells, piece by piece, whether a text may still become one JSON object or array."""

from __future__ import annotations

import re

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
_OPEN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORD = re.compile(r"[-+.\w]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_BEGUN_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE][-+]?[0-9]*)?)?|[eE](?:[-+]?[0-9]*))?)?")
_NAMES = ("true", "false", "null")
#: The most characters of a number or a name.
LONGEST_SCALAR = 64
#: What may come next, apart from whitespace.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _COMMA_OR_END, _NOTHING = range(7)


class JsonPrefix:
    """Follows JSON's grammar. The first character fed must be `{` or `[`."""

    def __init__(self) -> None:
        self._next = _VALUE
        self._open: list[str] = []
        self._in_string = False
        self._escape = ""  # the beginning of an escape, if the text fed so far ends in one
        self._word: str | None = None  # a number or a name that may continue
        self._possible = True

    @property
    def in_string(self) -> bool:
        """Whether the text fed so far ends inside a string, but not inside an escape."""
        return self._possible and self._in_string and not self._escape

    def feed(self, text: str) -> bool:
        """Whether the text fed so far is the beginning of an object or array, or all of one."""
        self._possible = self._possible and self._follow(text)
        return self._possible

    def _follow(self, text: str) -> bool:
        text, self._escape = self._escape + text, ""
        at = 0
        while at < len(text):
            if self._in_string:
                at = _STRING.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
                if at == len(text):
                    return True
                if text[at] == '"':
                    self._in_string = False
                    at += 1
                    continue
                begun = _OPEN_ESCAPE.fullmatch(text, at)
                self._escape = text[at:]
                return begun is not None
            if self._word is not None:
                end = _WORD.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
                self._word += text[at:end]
                if end == len(text):
                    return _may_continue(self._word)
                if not is_whole_scalar(self._word):
                    return False
                self._word = None
                at = end
                continue
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
            if at < len(text) and not self._mark(text[at]):
                return False
            at += self._word is None
        return True

    def _mark(self, mark: str) -> bool:
        """Read one character outside of strings and words."""
        expected = self._next
        if mark == '"' and expected not in (_COLON, _COMMA_OR_END, _NOTHING):
            self._in_string = True
            self._next = _COLON if expected in (_KEY, _KEY_OR_END) else _COMMA_OR_END
        elif mark in "{[" and expected in (_VALUE, _VALUE_OR_END):
            self._open.append("}" if mark == "{" else "]")
            self._next = _KEY_OR_END if mark == "{" else _VALUE_OR_END
        elif mark in "}]" and expected in (_VALUE_OR_END, _KEY_OR_END, _COMMA_OR_END) and self._open[-1] == mark:
            self._open.pop()
            self._next = _COMMA_OR_END if self._open else _NOTHING
        elif mark == "," and expected == _COMMA_OR_END:
            self._next = _KEY if self._open[-1] == "}" else _VALUE
        elif mark == ":" and expected == _COLON:
            self._next = _VALUE
        elif expected in (_VALUE, _VALUE_OR_END) and (mark in "-tfn" or mark in "0123456789"):
            self._word = ""
            self._next = _COMMA_OR_END
        else:
            return False
        return True


def _may_continue(word: str) -> bool:
    if len(word) > LONGEST_SCALAR:
        return False
    return _BEGUN_NUMBER.fullmatch(word) is not None or any(name.startswith(word) for name in _NAMES)


def is_whole_scalar(word: str) -> bool:
    """Whether `word` is a JSON number, true, false or null."""
    return len(word) <= LONGEST_SCALAR and (word in _NAMES or _NUMBER.fullmatch(word) is not None)
