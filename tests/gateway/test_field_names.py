"""Field names: what a turn says of chat completions' fields is told under the names that the client's API has."""

from __future__ import annotations

import pytest

from dovetail.errors import InvalidRequest
from dovetail.formats.prompts.history import Repair
from dovetail.gateway.turn.turn_request import FieldNames

NAMES = FieldNames(
    {
        "messages": "input",
        "messages[1]": "input[4]",
        "messages[1].tool_calls[0].function": "input[5]",
        "messages[1].tool_calls[0].id": "input[5].call_id",
        "tools[0].function": "tools[3]",
    }
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("messages", "input"),
        ("messages[0].content", "input[0].content"),
        ("messages[1].content[2].type", "input[4].content[2].type"),
        ("messages[1].tool_calls[0].function.name", "input[5].name"),
        ("messages[1].tool_calls[0].id", "input[5].call_id"),
        ("messages[10]", "input[10]"),
        ("tools[0].function.parameters#/properties/messages[1]", "tools[3].parameters#/properties/messages[1]"),
        ("tools[0].function#", "tools[3]#"),
        ("messagesque", "messagesque"),
        ("temperature", "temperature"),
        ("", ""),
    ],
)
def test_the_longest_prefix_counts(path: str, name: str) -> None:
    assert NAMES.of(path) == name
    assert FieldNames().of(path) == path


def test_errors_and_repairs_are_renamed() -> None:
    repair = Repair("call_id", "messages[1].tool_calls[0].id", "a -> b")
    assert NAMES.of_repair(repair) == Repair("call_id", "input[5].call_id", "a -> b")
    assert FieldNames().of_repair(repair) is repair
    with pytest.raises(InvalidRequest) as caught, NAMES.in_errors():
        raise InvalidRequest("messages[1].role must be one of …", param="messages[1].role")
    assert (caught.value.message, caught.value.param) == ("input[4].role must be one of …", "input[4].role")
    with pytest.raises(InvalidRequest, match="no field") as caught, NAMES.in_errors():
        raise InvalidRequest("no field")
    assert caught.value.param is None
