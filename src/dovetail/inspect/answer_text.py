"""What the text of an answer is, where it is something else than words: JSON, a call without markup, a loop."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

_FENCE = re.compile(r"```\w*\s*\n(.*?)(?:\n\s*```|$)", re.DOTALL)
_NAMES = ("name", "function", "tool")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_DECODER = json.JSONDecoder()
#: Characters of a text in which calls are looked for, and objects that are tried.
_SEARCHED, _TRIED = 20_000, 64

#: A loop is a text with a letter or digit that comes at least `_REPEATS` times, over `_LENGTH` characters or more.
_REPEATS, _LENGTH = 4, 40
_LONGEST_PERIOD = 500


def is_json(text: str) -> bool:
    """Whether `text` is one object or array of JSON, and nothing else."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def call_in(text: str, tools: Collection[str]) -> str | None:
    """The first of `tools` that `text` calls without markup; None if it calls none.

    `{"name": …, "arguments": {…}}` is a call, wherever it stands, and so is code that is nothing but `name(…)`.
    """
    text = text[:_SEARCHED]
    start = -1
    for _ in range(_TRIED):
        start = text.find("{", start + 1)
        if start < 0:
            break
        name = _called(_object_at(text, start))
        if name in tools:
            return name
    codes = [text, *_FENCE.findall(text)]
    return next((name for name in tools for code in codes if _is_code(code.strip(), name)), None)


def _object_at(text: str, start: int) -> Any:
    try:
        return _DECODER.raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def _called(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        return _called(inner)
    names = (each for key in _NAMES if isinstance(each := value.get(key), str))
    return next(names, None) if any(isinstance(value.get(key), dict | str) for key in _ARGUMENTS) else None


def _is_code(code: str, name: str) -> bool:
    return code.startswith(f"{name}(") and code.endswith(")") and "\n" not in code


class Loop(NamedTuple):
    """The text that repeats, and how many times it stands there in whole."""

    text: str
    times: int


def loop_at_the_end(text: str) -> Loop | None:
    """The shortest text that `text` repeats up to its end, which may be cut; None without one."""
    text = text.rstrip()
    for period in range(1, min(_LONGEST_PERIOD, len(text) // _REPEATS) + 1):
        if text[-period:] != text[-2 * period : -period]:
            continue
        start = len(text) - 2 * period
        while start >= period and text[start - period : start] == text[start : start + period]:
            start -= period
        while start > 0 and text[start - 1] == text[start - 1 + period]:
            start -= 1
        length = len(text) - start
        unit = text[start : start + period]
        if length >= max(_REPEATS * period, _LENGTH) and any(map(str.isalnum, unit)):
            return _from_a_word(text[start:], period)
    return None


def _from_a_word(repeated: str, period: int) -> Loop:
    """The loop, read from where a word begins, if one does within it."""
    starts = (at for at in range(period) if repeated[at].isalnum() and not repeated[at + period - 1].isalnum())
    skipped = next(starts, 0)
    return Loop(repeated[skipped : skipped + period].strip(), (len(repeated) - skipped) // period)
