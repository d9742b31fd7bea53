"""In one request the tools are checked and converted once; what comes later takes them as they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dovetail import conversation, custom_tools
from dovetail.conversation import Tools, check_tools
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import prepared

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_checked_tools_stay_as_they_are() -> None:
    tools = check_tools([TOOL], "messages[1].tools")
    assert isinstance(tools, Tools) and check_tools(tools) is tools
    assert tools[0].schema_field == "messages[1].tools[0].function.parameters"


def test_a_turn_reads_its_tools_once(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_tool_types` walks the tools as the client sent them: once when the body is read, and once for the turn,
    which knows the names that the model writes."""
    counted: Counter[str] = Counter()

    def counting(module: Any, name: str) -> None:
        original = getattr(module, name)

        def count(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, count)

    counting(conversation, "check_tool_types")
    counting(custom_tools, "input_grammar")
    turn = prepared(tok, tools=[TOOL], response_format={"type": "json_object"})
    assert turn.grammar is not None and isinstance(turn.language.tools, Tools)
    assert counted == {"check_tool_types": 2}
