"""YAML that people write, config files and recipes, read without trust: what is costly or means two things is out.

The values are those of YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema), less its hexadecimal and
octal numbers, infinities and NaN: null, true and false, whole and decimal numbers, else text. `strict: off` says the
word off. No aliases, no tags, no second document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from dovetail.errors import PlanError

_LARGEST = 1 << 20  # bytes
_DEEPEST = 32
_WORDS: dict[str, bool | None] = {"": None, "~": None, "true": True, "false": False, "null": None}
_WORDS |= {spelled: value for word, value in _WORDS.items() for spelled in (word.capitalize(), word.upper())}
_DIGITS = "(0|[1-9][0-9]{0,99})"  # longer ones are nobody's number, and stay text
_WHOLE = re.compile(rf"[-+]?{_DIGITS}")
_DECIMAL = re.compile(rf"[-+]?({_DIGITS}\.[0-9]*|\.[0-9]+|{_DIGITS}(?=[eE]))([eE][-+]?[0-9]{{1,3}})?")
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path, what: str) -> Any:
    """The one value in `file`, None if it is empty. Raises `PlanError`, which begins with `what`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{what} {file} cannot be read: {reason}") from error
    if len(content) > _LARGEST:
        raise PlanError(f"{what} {file} is larger than {_LARGEST >> 20} MiB, which no such file is")
    try:
        return _value_of(yaml.parse(content, Loader=_PARSER))
    except (yaml.YAMLError, ValueError) as error:
        raise PlanError(f"{what} {file} is not YAML as it is read here: {' '.join(str(error).split())}") from error


def _value_of(events: Iterator[yaml.Event]) -> Any:
    """Built from events on a stack of one's own: a parser's own way calls itself as deep as the file says."""
    open_: list[dict[str, Any] | list[Any]] = []
    keys: list[str | None] = []  # of each open one, the key that waits for its value
    root: list[Any] = []
    for event in events:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused(event, "anchors and aliases are not read")
        if getattr(event, "tag", None) is not None:
            raise _refused(event, f"the tag {event.tag:.40} is not read")
        value: Any
        match event:
            case yaml.DocumentStartEvent() if root:
                raise _refused(event, "it holds more than one document")
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                open_.pop()
                keys.pop()
                continue
            case yaml.MappingStartEvent():
                value = {}
            case yaml.SequenceStartEvent():
                value = []
            case yaml.ScalarEvent():
                value = _scalar(event)
            case _:
                continue
        inside = open_[-1] if open_ else root
        if isinstance(inside, list):
            inside.append(value)
        elif (key := keys[-1]) is not None:
            inside[key] = value
            keys[-1] = None
        elif not isinstance(event, yaml.ScalarEvent):
            raise _refused(event, "a key must be text")
        elif event.value in inside:
            raise _refused(event, f"{event.value!r:.80} is there twice")
        else:
            keys[-1] = event.value
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open_) == _DEEPEST:
                raise _refused(event, f"it is nested deeper than {_DEEPEST}")
            open_.append(value)
            keys.append(None)
    return root[0] if root else None


def _scalar(event: yaml.ScalarEvent) -> str | int | float | bool | None:
    text: str = event.value
    text.encode()  # "\ud800" is no text, and could not be shown
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _refused(event: yaml.Event, why: str) -> ValueError:
    return ValueError(f"{why} (line {event.start_mark.line + 1})")
