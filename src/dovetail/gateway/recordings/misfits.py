"""Where an answer does not fit its schema, in words: "prose at the schema's `city`"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dovetail.events import CallArguments, CallStart, Content, Defect, Event
from dovetail.gateway.broken_json import Path, break_of, is_prose, named

#: The details of defects, as `validation` and `grammar.schemas.check` write them.
_WHERE = re.compile(
    r"(?:call (?P<call>[0-9]{1,9}(?![0-9]))|content)(?:: (?P<pointer>/\S*|the arguments) against (?P<schema>\S+))?"
)
_INDEX = re.compile(r"[0-9]{1,9}")


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
    broken = break_of(text)
    if broken is None:
        return ""
    return _at("prose" if is_prose(broken.rest) else "no JSON", broken.path)


def _at(what: str, path: Path) -> str:
    return f"{what} at the schema's `{named(path)}`" if path else f"{what} where the schema begins"


def _mismatch(text: str, pointer: str, schema: str) -> str:
    keyword = schema.rpartition("/")[2]
    if not pointer.startswith("/"):
        return f"does not fit the schema's `{keyword}`"
    path, value = _resolved(text, pointer)
    if isinstance(value, str) and is_prose(value):
        return _at("prose", path)
    return f"`{named(path)}` does not fit the schema's `{keyword}`"


def _resolved(text: str, pointer: str) -> tuple[Path, Any]:
    """The path and the value at a JSON pointer (RFC 6901) into `text`."""
    path: list[str | int] = []
    try:
        value = msgspec.json.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):  # of a file that no server wrote so
        value = None
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            path.append(int(key))
            value = value[int(key)]
        else:
            path.append(key)
            value = value.get(key) if isinstance(value, dict) else None
    return tuple(path), value
