"""In one request the tools and the response format are checked once; what comes later takes them as they are."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from dovetail.conversation import ResponseFormat, Tools, check_response_format, check_tools
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import prepared

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_checked_tools_stay_as_they_are() -> None:
    tools = check_tools([TOOL], "messages[1].tools")
    assert isinstance(tools, Tools) and check_tools(tools) is tools
    assert tools[0].schema_field == "messages[1].tools[0].function.parameters"


def test_a_checked_response_format_stays_as_it_is() -> None:
    requested = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    checked = check_response_format(requested, "text.format", "text.format")
    assert checked is not None and checked == requested
    assert checked.schema == {"type": "array"} and checked.origin == "text.format.schema"
    assert check_response_format(checked) is checked


def test_a_turn_reads_its_tools_and_its_response_format_once(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are checked when the body is read. Later stages have them typed."""
    counted: Counter[str] = Counter()

    def count(name: str, check: Any) -> None:
        def counting(value: Any, *arguments: Any) -> Any:
            counted[name] += not isinstance(value, Tools | ResponseFormat | None)
            return check(value, *arguments)

        for module in [module for name, module in sys.modules.items() if name.startswith("dovetail.")]:
            if getattr(module, name, None) is check:
                monkeypatch.setattr(module, name, counting)

    for check in (check_tools, check_response_format):
        count(check.__name__, check)
    turn = prepared(tok, tools=[TOOL], response_format={"type": "json_object"})
    assert turn.grammar is not None and turn.schemas.content is not None
    assert counted == {"check_tools": 1, "check_response_format": 1}
