"""Where an answer does not fit its schema, in words: "prose at the schema's `city`"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dovetail.events import CallArguments, CallStart, Content, Defect, Event

#: The details of defects, as `validation` and `grammar.schemas.check` write them.
_WHERE = re.compile(
    r"(?:call (?P<call>[0-9]{1,9}(?![0-9]))|content)(?:: (?P<pointer>/\S*|the arguments) against (?P<schema>\S+))?"
)
_INDEX = re.compile(r"[0-9]{1,9}")
#: A word, and the beginning of another one.
_PROSE = re.compile(r"[^\W\d_][^\s]*+\s++\S")
#: A string of JSON; group 2: it is a key.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"(\s*+:)?')


def misfits(events: Sequence[Event]) -> Iterator[str]:
    """A sentence for each call, or content, that is no JSON or does not fit its schema."""
    texts = _texts(events)
    names = {event.index: event.name for event in events if isinstance(event, CallStart)}
    for event in events:
        if not isinstance(event, Defect) or event.kind not in ("schema_mismatch", "invalid_json"):
            continue
        where = _WHERE.match(event.detail)
        if where is None:  # redacted
            continue
        index = None if where["call"] is None else int(where["call"])
        subject = "content" if index is None else f"call {index + 1} ({names.get(index, '')})"
        text = texts.get(index, "")
        words = _not_json(text) if where["pointer"] is None else _mismatch(text, where["pointer"], where["schema"])
        if words:
            yield f"{subject}: {words}"


def _texts(events: Sequence[Event]) -> dict[int | None, str]:
    """The arguments of each call by its index, and the content as that of None."""
    pieces: dict[int | None, list[str]] = {}
    for event in events:
        match event:
            case Content(text):
                pieces.setdefault(None, []).append(text)
            case CallArguments(index, fragment):
                pieces.setdefault(index, []).append(fragment)
            case _:
                pass
    return {index: "".join(texts) for index, texts in pieces.items()}


def _not_json(text: str) -> str:
    """Where `text` stops being JSON, if it has prose there."""
    try:
        json.loads(text)
        return ""
    except json.JSONDecodeError as error:
        at, in_a_value = error.pos, error.msg == "Expecting value"
    except (ValueError, RecursionError):  # a number, or a depth, beyond the library's limits
        return ""
    if _PROSE.match(text, at) is None:
        return ""
    keys = [string[1] for string in _STRING.finditer(text, 0, at) if string[2]] if in_a_value else []
    return f"prose at the schema's `{keys[-1]}`" if keys else "prose where the schema begins"


def _mismatch(text: str, pointer: str, schema: str) -> str:
    keyword = schema.rpartition("/")[2]
    if not pointer.startswith("/"):
        return f"does not fit the schema's `{keyword}`"
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    name = "".join(f"[{part}]" if _INDEX.fullmatch(part) else f".{part}" for part in path).removeprefix(".")
    value = _value(text, path)
    if isinstance(value, str) and _PROSE.match(value):
        return f"prose at the schema's `{name}`"
    return f"`{name}` does not fit the schema's `{keyword}`"


def _value(text: str, path: Sequence[str]) -> Any:
    """The value in `text` at the path of a JSON pointer (RFC 6901); None if there is none, as in redacted texts."""
    try:
        value = msgspec.json.decode(text.encode(errors="replace"))
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
        return None
    return value
