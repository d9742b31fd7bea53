"""Validation of a finished answer: each call against its tool's schema, content against the `response_format`.

A fault becomes a `Defect` event after the invalid call or content. No event is delayed or changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from dovetail.conversation import Tool, Tools
from dovetail.errors import SchemaRefused
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event
from dovetail.formats.answers.tool_choice import requires_call, usable
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.grammar.inputs.check import InputChecker
from dovetail.grammar.schemas.check import Checker, Fault, Kind, RegexBudget, checker
from dovetail.grammar.schemas.repair import Budget

_OBJECT: Mapping[str, Any] = {"type": "object"}


class ValidatedCall(msgspec.Struct, frozen=True):
    """The result of validating one call. `tool` is the called tool, None if the request has no such tool; `fault` is
    None for a valid call."""

    tool: str | None
    fault: Kind | Literal["unknown_name"] | None


class AnswerSchemas(msgspec.Struct, frozen=True):
    """What an answer is validated against: a checker for each tool by name, and one for content (None: any text).

    `unchecked` lists the fields of the request whose schemas cannot be used at all. `required`: an answer has to call.
    """

    tools: Mapping[str, Checker | InputChecker]
    content: Checker | None
    unchecked: tuple[str, ...] = ()
    required: bool = False


def answer_schemas(request: TurnRequest, tools: Tools) -> AnswerSchemas:
    """What an answer to `request`, which may call `tools`, is validated against.

    Unusable parts of a tool's schema are left out. Raises `SchemaRefused` for an unusable schema of a tool with
    `"strict": true`.
    """
    checkers: dict[str, Checker | InputChecker] = {}
    unchecked: list[str] = []
    budget, regex_budget = Budget(), RegexBudget()
    for tool in tools:
        if tool.custom:
            checkers[tool.name], unusable = _input_checker(tool, tool.grammar_field)
            unchecked += unusable
            continue
        origin = tool.schema_field
        usable_tool, left_out = usable(tool, budget)
        checked = "#" not in left_out
        try:
            checkers[tool.name] = checker({**(usable_tool.parameters or {}), **_OBJECT}, origin, regex_budget)
        except SchemaRefused:
            if tool.strict:
                raise
            checkers[tool.name], checked = checker(_OBJECT, origin), False  # only the model sees this schema
        if not checked:
            unchecked.append(f"{origin}#")
    content = None
    if (wanted := request.response_format) is not None:
        content = checker(wanted.schema, wanted.origin, regex_budget)
    return AnswerSchemas(checkers, content, tuple(unchecked), requires_call(request.tool_choice))


def _input_checker(tool: Tool, origin: str) -> tuple[Checker | InputChecker, list[str]]:
    """The checker of a custom tool, and the field of its grammar if that cannot be used and is only shown."""
    arguments = checker(tool.parameters, origin)
    if tool.grammar is None:
        return arguments, []
    try:
        return InputChecker(tool.grammar, arguments, origin), []
    except SchemaRefused:
        return arguments, [origin]


async def _fault(checker: Checker | InputChecker, text: str) -> Fault | None:
    """The first fault of `text`. A check that may take long runs in a thread, so that the event loop goes on."""
    return checker.fault(text) if checker.is_quick(text) else await asyncio.to_thread(checker.fault, text)


class AnswerValidator:
    """Validates the events of one choice: `feed` them as they come, then `finish`. `calls` has the results so far."""

    def __init__(self, schemas: AnswerSchemas) -> None:
        self._schemas = schemas
        self._open: dict[int, tuple[str, list[str]]] = {}  # the name and the argument fragments of calls without an end
        self._content: list[str] = []
        self._called = False
        self._malformed = False  # whether the reader could not read the call that ends next
        self.calls: list[ValidatedCall] = []

    async def feed(self, events: Iterable[Event]) -> list[Event]:
        """`events`, with a `Defect` after each call that is not valid."""
        checked: list[Event] = []
        for event in events:
            match event:
                case CallStart(index, _, name):
                    checked += self._unended()
                    self._open[index] = name, []
                    self._called = True
                case CallArguments(index, fragment) if index in self._open:
                    self._open[index][1].append(fragment)
                case Defect("malformed_call"):
                    self._malformed = True
                case Content(text) if self._schemas.content is not None:
                    self._content.append(text)
                case _:
                    pass
            checked.append(event)
            if isinstance(event, CallEnd) and event.index in self._open:
                name, arguments = self._open.pop(event.index)
                checked += await self._ended(event.index, name, "".join(arguments))
        return checked

    async def finish(self, reason: Literal["stop", "length", "stop_string"]) -> list[Event]:
        """The defects that only the end of the answer shows.

        After "length" nothing is added: the client knows that the answer is cut off. After a stop string a call may be
        cut off, and only content is validated.
        """
        defects: list[Event] = []
        if reason == "stop":
            defects += self._unended()
            if self._schemas.required and not self._called:  # the engine did not keep to the grammar
                defects.append(Defect("missing_call", "tool_choice asks for a call"))
        if reason != "length":
            defects += await self._content_defects()
        return defects

    async def _ended(self, index: int, name: str, arguments: str) -> list[Event]:
        malformed, self._malformed = self._malformed, False
        checker = self._schemas.tools.get(name)
        if checker is None:  # the reader has reported it
            self.calls.append(ValidatedCall(None, "unknown_name"))
            return []
        if malformed:  # the reader has reported that too
            self.calls.append(ValidatedCall(name, "invalid_json"))
            return []
        fault = await _fault(checker, arguments)
        self.calls.append(ValidatedCall(name, fault.kind if fault else None))
        return [] if fault is None else [Defect(fault.kind, f"call {index}: {fault.detail}".removesuffix(": "))]

    def _unended(self) -> list[Event]:
        """Defects of calls that the reader could not end, because their arguments are not JSON."""
        defects: list[Event] = []
        for index, (name, _) in self._open.items():
            self.calls.append(ValidatedCall(name if name in self._schemas.tools else None, "invalid_json"))
            defects.append(Defect("invalid_json", f"call {index}"))
        self._open.clear()
        return defects

    async def _content_defects(self) -> list[Event]:
        content = "".join(self._content)
        if self._schemas.content is None or (self._called and not content.strip()):
            return []
        fault = await _fault(self._schemas.content, content)
        return [] if fault is None else [Defect(fault.kind, f"content: {fault.detail}".removesuffix(": "))]
