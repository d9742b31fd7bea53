"""The check after, in the stream of an answer: each finished call against its tool's schema, and content against the
request's `response_format`. What does not validate gets a `Defect` behind it; nothing is held back or changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dovetail.conversation import check_response_format, check_tools
from dovetail.errors import SchemaRefused
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event
from dovetail.formats.tool_choice import usable
from dovetail.gateway.apis.chat_request import ChatRequest
from dovetail.grammar.schemas.check import Checker, Fault, Kind, checker
from dovetail.grammar.schemas.mending import Budget

_OBJECT: Mapping[str, Any] = {"type": "object"}


class CheckedCall(msgspec.Struct, frozen=True):
    """A call that was looked at. `tool` is one of the request's, or None; `fault` is None for a valid call."""

    tool: str | None
    fault: Kind | Literal["unknown_name"] | None


class Checks(msgspec.Struct, frozen=True):
    """What an answer is checked against: a checker for each tool, and one for its content (None: any text).

    `unchecked` names schemas that nothing can be checked against, by the field of the request.
    """

    tools: Mapping[str, Checker]
    content: Checker | None
    unchecked: tuple[str, ...] = ()


def checks(request: ChatRequest, tools: Sequence[Mapping[str, Any]]) -> Checks:
    """The checks of an answer to `request`, which may call `tools`: against what is usable of their schemas.

    Raises `SchemaRefused` for a schema that is none, if the tool itself wants it enforced.
    """
    found: dict[str, Checker] = {}
    unchecked: list[str] = []
    budget = Budget()
    for i, tool in enumerate(check_tools(tools)):
        origin = f"tools[{i}].function.parameters"
        held, left_out = usable(tool, budget)
        checked = "#" not in left_out
        try:
            found[tool.name] = checker({**(held.parameters or {}), **_OBJECT}, origin)
        except SchemaRefused:
            if tool.strict:
                raise
            found[tool.name], checked = checker(_OBJECT, origin), False  # the schema is only shown to the model
        if not checked:
            unchecked.append(f"{origin}#")
    content = None
    if (wanted := check_response_format(request.response_format)) is not None:
        content = checker(wanted.schema, wanted.origin)
    return Checks(found, content, tuple(unchecked))


async def _fault(checker: Checker, text: str) -> Fault | None:
    """What is wrong with `text`. The event loop does not wait for what takes long."""
    return checker.fault(text) if checker.is_quick(text) else await asyncio.to_thread(checker.fault, text)


class Checking:
    """Checks the events of one choice. `calls` and `invalid` tell what was found so far."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._open: dict[int, tuple[str, list[str]]] = {}
        self._content: list[str] = []
        self._called = False
        self.calls: list[CheckedCall] = []

    @property
    def invalid(self) -> bool:
        """Whether a finished call was not valid."""
        return any(call.fault not in (None, "unchecked_arguments") for call in self.calls)

    async def feed(self, events: Iterable[Event], *, last: bool, stopped: bool, full: bool) -> list[Event]:
        """`events` with a `Defect` behind what is invalid. `last`: the answer is over; before its own end, because it
        was `stopped` at a string or is `full`, which only the latter tells whoever reads it."""
        found: list[Event] = []
        for event in events:
            match event:
                case CallStart(index, _, name):
                    found += self._unfinished()
                    self._open[index] = name, []
                    self._called = True
                case CallArguments(index, fragment) if index in self._open:
                    self._open[index][1].append(fragment)
                case Content(text) if self._checks.content is not None:
                    self._content.append(text)
                case _:
                    pass
            found.append(event)
            if isinstance(event, CallEnd) and event.index in self._open:
                name, arguments = self._open.pop(event.index)
                found += await self._finished(event.index, name, "".join(arguments))
        if last and not (stopped or full):
            found += self._unfinished()
        if last and not full:
            found += await self._said()
        return found

    async def _finished(self, index: int, name: str, arguments: str) -> list[Event]:
        checker = self._checks.tools.get(name)
        if checker is None:  # the reader has said so
            self.calls.append(CheckedCall(None, "unknown_name"))
            return []
        fault = await _fault(checker, arguments)
        self.calls.append(CheckedCall(name, fault.kind if fault else None))
        return [] if fault is None else [Defect(fault.kind, f"call {index}: {fault.detail}".removesuffix(": "))]

    def _unfinished(self) -> list[Event]:
        """Calls that are over, though the reader could not end them: their arguments are no JSON."""
        found: list[Event] = []
        for index, (name, _) in self._open.items():
            self.calls.append(CheckedCall(name if name in self._checks.tools else None, "invalid_json"))
            found.append(Defect("invalid_json", f"call {index}"))
        self._open.clear()
        return found

    async def _said(self) -> list[Event]:
        content = "".join(self._content)
        if self._checks.content is None or (self._called and not content.strip()):
            return []
        fault = await _fault(self._checks.content, content)
        return [] if fault is None else [Defect(fault.kind, f"content: {fault.detail}".removesuffix(": "))]
