"""The white space of a layout of calls, as a chat template writes it where a `response_template` admits any."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from dovetail.errors import DovetailError
from dovetail.events import Call
from dovetail.formats.declared.declared import Declaration, JsonCalls
from dovetail.formats.derived.sample_answers import CONTENT, LONG, QUESTION, SECOND, TOOLS, USER, Render, SampleCall
from dovetail.formats.response_templates.anchors import BLANK

#: White space inside of JSON.
SPACE = "\ufdd3"
_MARK = re.compile(f"{BLANK}+|{SPACE}")
#: The places of white space are numbered by the characters from here on.
_FIRST = 0xE200
_NUMBER = re.compile(f"([{chr(_FIRST)}-{chr(_FIRST + 0xFF)}])")
#: A member with the id of the first call, or with its number.
_ID = re.compile(rf'"(\w+)":\s*"({LONG.id}|0)"')

D = TypeVar("D", bound=Declaration)


def filled(calls: D, blank: str) -> D:
    """`calls` with `blank` around its markup, and one blank inside of JSON."""
    return _replaced(calls, _MARK, lambda mark: " " if mark == SPACE else blank)


def as_rendered(calls: D, render: Render, *, objects: bool) -> D | None:
    """`calls` with the white space that the template writes; None if it writes other markup, or no calls.

    `objects`: whether the template gets arguments as objects.
    """
    for content, called in itertools.product((CONTENT, ""), ((LONG, SECOND), (LONG,))):
        prompt = _prompt(render, content, called, objects)
        numbers = itertools.count(_FIRST)
        numbered = _replaced(_with_id(calls, prompt), _MARK, lambda _: chr(next(numbers)))  # noqa: B023
        match = re.search(content + _pattern(numbered, called, bool(content)), prompt)
        if match is not None:
            shown = match.groupdict()
            return _replaced(numbered, _NUMBER, lambda number: shown.get(f"b{ord(number)}") or "")  # noqa: B023
    return None


def _with_id(calls: D, prompt: str) -> D:
    """`calls` with the member of an id or of a number that the template writes into each JSON object, if it does."""
    shown = _ID.search(prompt)
    if shown is None or not isinstance(calls, JsonCalls):
        return calls
    first, own = shown.start() < prompt.find(LONG.name), shown[2] == LONG.id
    if not first and not own:  # no reader takes a number at the end
        return calls
    member = f'"{shown[1]}":{SPACE}"{{{"id" if own else "index"}}}"'
    call = f"{{{member},{SPACE}{calls.call[1:]}" if first else f"{calls.call[:-1]},{SPACE}{member}}}"
    return replace(calls, call=call)


def _prompt(render: Render, content: str, called: tuple[SampleCall, ...], objects: bool) -> str:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": dict(call.arguments) if objects else json.dumps(call.arguments),
            },
        }
        for call in called
    ]
    for shown in (content, *(() if content else (None,))):
        try:
            prompt = render([USER, {"role": "assistant", "content": shown, "tool_calls": calls}], TOOLS, False).text
        except DovetailError:
            continue
        return prompt.rpartition(QUESTION)[2]
    return ""


def _pattern(numbered: Declaration, called: tuple[SampleCall, ...], after_content: bool) -> str:
    """A regex of the calls, in which each place of white space is the same every time."""
    calls = [Call(call.id, call.name, json.dumps(call.arguments)) for call in called]
    text = "".join(segment.text for segment in numbered.segments(calls, (), after_content=after_content))
    return "".join(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    seen = set()
    for piece in _NUMBER.split(text):
        if not _NUMBER.fullmatch(piece):
            yield re.escape(piece)
        elif piece in seen:
            yield f"(?P=b{ord(piece)})"
        else:
            seen.add(piece)
            yield rf"(?P<b{ord(piece)}>\s*)"


def _replaced(calls: D, marks: re.Pattern[str], make: Callable[[str], str]) -> D:
    texts: dict[str, Any] = {name: marks.sub(lambda mark: make(mark[0]), text) for name, text in vars(calls).items()}
    return replace(calls, **texts)  # type: ignore[type-var]
