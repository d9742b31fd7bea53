"""Digests of messages: what clients change without meaning to does not count, and everything else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.events import Call, Message
from dovetail.formats.base import parameters_by_name
from dovetail.gateway.records.record import digests_of_answer, digests_of_history

ANSWER = Message("Hello.\n", "I think.", (Call("a:0", "f", '{"x": 1.0, "y": ["é", null]}'),))


def history(**changes: Any) -> dict[str, Any]:
    call = {"id": "a:0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.0, "y": ["é", null]}'}}
    message = {"role": "assistant", "content": "Hello.\n", "reasoning_content": "I think.", "tool_calls": [call]}
    return {**message, **changes}


def calls(arguments: Any, call_id: str = "a:0", name: str = "f") -> dict[str, Any]:
    return history(tool_calls=[{"id": call_id, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "message",
    [
        history(),
        history(content=" Hello."),
        history(content=[{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]),
        history(reasoning_content=None, reasoning="I think."),
        history(reasoning_content="", thinking="\nI think.\n"),
        history(name=None, refusal=None),
        calls('{"y":["\\u00e9",null],"x":1}'),
        calls({"x": 1, "y": ["é", None]}),
    ],
)
def test_these_are_the_message_that_was_sent(message: dict[str, Any]) -> None:
    assert digests_of_history(message) == digests_of_answer(ANSWER)


@pytest.mark.parametrize(
    "message",
    [
        history(content="Hello!"),
        history(content=None),
        history(tool_calls=None),
        history(tool_calls=history()["tool_calls"] * 2),
        calls('{"x": 1.5, "y": ["é", null]}'),
        calls('{"x": true, "y": ["é", null]}'),
        calls('{"x": 1.0, "y": [null, "é"]}'),
        calls('{"x": 1.0, "y": ["é", null]'),
        calls('{"x": 1.0, "y": ["é", null]}', call_id="a:1"),
        calls('{"x": 1.0, "y": ["é", null]}', name="g"),
    ],
)
def test_these_are_another_message(message: dict[str, Any]) -> None:
    message_digest, reasoning = digests_of_history(message)
    assert message_digest != digests_of_answer(ANSWER)[0]
    assert reasoning == digests_of_answer(ANSWER)[1]


def test_reasoning_has_a_digest_of_its_own() -> None:
    assert digests_of_history(history(reasoning_content="I thought."))[0] == digests_of_answer(ANSWER)[0]
    assert digests_of_history(history(reasoning_content="I thought."))[1] != digests_of_answer(ANSWER)[1]
    assert digests_of_history(history(reasoning_content=" "))[1] == b"" == digests_of_answer(Message("x"))[1]
    assert digests_of_history(history(reasoning_content=7))[1] == b""


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 200_000, "1" * 5_000, "1e999"])
def test_any_arguments_have_a_digest_and_equal_themselves(text: str) -> None:
    digest = digests_of_answer(Message("", "", (Call("a", "f", text),)))
    assert (
        digests_of_history(history(content="", reasoning_content="", tool_calls=calls(text, "a")["tool_calls"]))
        == digest
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_reserialised_arguments_are_equal(value: Any) -> None:
    once, again = json.dumps({"v": value}), json.dumps({"v": value}, indent=1, ensure_ascii=False)
    assert digests_of_history(calls(once)) == digests_of_history(calls(again))


def tool(properties: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]


DEFAULTS = parameters_by_name(
    tool({"x": {"type": "number"}, "all": {"type": "boolean", "default": False}, "n": {"default": 0}})
)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": 1.0, "y": ["é", null], "all": false}',
        '{"n": 0, "all": false, "x": 1, "y": ["é", null]}',
    ],
)
def test_a_client_may_add_the_defaults_of_a_schema(arguments: str) -> None:
    """As claude-code does."""
    assert digests_of_history(calls(arguments), DEFAULTS) == digests_of_answer(ANSWER, DEFAULTS)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": 1.0, "y": ["é", null], "all": true}',
        '{"x": 1.0, "y": ["é", null], "all": 0}',
        '{"x": 1.0, "y": ["é", null], "n": false}',
        '{"x": 1.0, "y": ["é", null], "z": null}',
        '{"y": ["é", null], "all": false}',
    ],
)
def test_other_arguments_are_not_added_in_silence(arguments: str) -> None:
    assert digests_of_history(calls(arguments), DEFAULTS) != digests_of_answer(ANSWER, DEFAULTS)


EDIT: dict[str, Any] = {"type": "object", "properties": {"all": {"default": False}, "text": {}}}
NESTED = tool(
    {
        "edit": EDIT,
        "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}},
        "rows": {"items": {"items": EDIT}},
        "odd": {"$ref": "#/$defs/none/there", "items": 3},
    }
)
NESTED[0]["function"]["parameters"]["$defs"] = {"edit": EDIT}
NEST = '{"edit": {"text": "a"}, "edits": [{"text": "b"}, {}], "rows": [[{}]], "odd": [{"all": false}]}'


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        (NEST.replace('"a"}', '"a", "all": false}'), True),
        (NEST.replace('"b"}', '"b", "all": false}').replace("{}]", '{"all": false}]'), True),
        (NEST.replace("[[{}]]", '[[{"all": false}]]'), True),
        (NEST.replace('"a"}', '"a", "all": true}'), False),
        (NEST.replace("{}]", '{"all": 0}]'), False),
        (NEST.replace('"odd": [{"all": false}]', '"odd": [{}]'), False),
        (NEST.replace('"odd": [{"all": false}]', '"odd": []'), False),
    ],
)
def test_defaults_inside_of_arguments(arguments: str, same: bool) -> None:
    answer = Message("", "", (Call("functions.f:0", "f", NEST),))
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    unchanged = digests_of_history(
        {"role": "assistant", "content": "", "tool_calls": [call]}, parameters_by_name(NESTED)
    ) == digests_of_answer(answer, parameters_by_name(NESTED))
    assert unchanged == same


@pytest.mark.parametrize("tools", [None, [], [{}], tool(None), tool({"all": True}), tool([]), [{"function": 3}]])
def test_without_a_default_every_argument_counts(tools: Any) -> None:
    schemas = parameters_by_name(tools)
    added = calls('{"x": 1.0, "y": ["é", null], "all": false}')
    assert digests_of_history(added, schemas) != digests_of_answer(ANSWER, schemas)
    assert digests_of_history(history(), schemas) == digests_of_answer(ANSWER, schemas)


@pytest.mark.slow
def test_a_long_default_is_compared_at_once() -> None:
    """Written as JSON for each item, a default of a megabyte beside 100,000 items would take minutes."""
    schema = {"properties": {"a": {"items": {"properties": {"x": {"default": "x" * 1_000_000}}}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    message = calls(json.dumps({"a": [{"x": 0}] * 100_000}))
    assert digests_of_history(message, parameters_by_name(tools)) == digests_of_history(message)
