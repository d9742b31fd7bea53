"""Tools whose schemas cannot be used as they are: they are served, and the response lists what was left out."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from dovetail.errors import SchemaRefused
from dovetail.events import Call, Message
from dovetail.tokens import Tokenizer
from tests.demo_server import demo_server
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, prepared

pytestmark = pytest.mark.anyio

WHERE = "tools[0].function.parameters"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def prop(schema: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}, **beside}


#: Schema -> pointers to what is left out of it.
UNUSABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no list of names": (prop({"required": True, "title": None}), ["#/properties/a/required"]),
    "a reference to nowhere": (prop({"$ref": "#/definitions/y"}), ["#/properties/a/$ref"]),
    "a reference to the network": (prop({"$ref": "http://127.0.0.1:1/y"}), ["#/properties/a/$ref"]),
    "no regular expression": (prop({"type": "string", "pattern": "["}), ["#/properties/a/pattern"]),
    "Python's": (prop({"type": "string", "pattern": r"^x\Z"}), ["#/properties/a/pattern"]),
    "Google's types": ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}, "b": {"type": "INTEGER"}}}, []),
    "Python's types": ({"type": "dict", "properties": {"a": {"type": "str"}, "b": {"type": "int"}}}, []),
    "a list for a schema": (prop([]), ["#/properties/a"]),
    "a list for properties": ({"type": "object", "properties": []}, ["#/properties"]),
    "a type that arguments have not": ({**prop({}), "type": "string"}, ["#/type"]),
    "arguments or null": ({**prop({}), "type": ["object", "null"]}, []),
    "no schema at all": (
        {"$schema": "http://json-schema.org/draft-04/schema#", **prop({}), "exclusiveMinimum": True},
        ["#"],
    ),
}


def tool(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **fields}}


def call(arguments: str, tok: Tokenizer) -> tuple[int, ...]:
    return ids_of(Message("", "hm", (Call("functions.f:0", "f", arguments),)), tok)


async def post(client: httpx.AsyncClient, stream: bool, **fields: Any) -> tuple[list[dict[str, Any]], httpx.Response]:
    """The message, or the deltas of a stream, and the whole response."""
    answer = await client.post("/v1/chat/completions", json=BODY | {"stream": stream} | fields)
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()["choices"][0]["message"]], answer
    return [event["choices"][0]["delta"] for event in events_of(answer.text)[:-1] if event["choices"]], answer


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", UNUSABLE)
async def test_the_usable_part_of_a_schema_is_used(
    engine: ScriptedEngine, tok: Tokenizer, name: str, stream: bool
) -> None:
    schema, left_out = UNUSABLE[name]
    arguments = '{"a":"x","b":1}'
    engine.ids = call(arguments, tok)
    async with in_process(engine, tok) as client:
        messages, answer = await post(client, stream, tools=[tool(schema)])
    pieces = [each["function"].get("arguments") or "" for it in messages for each in it.get("tool_calls", ())]
    assert "".join(pieces) == arguments
    assert not any("dovetail" in it for it in messages)
    assert answer.headers.get("x-dovetail-unenforced") == (", ".join(WHERE + it for it in left_out) or None)


@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_strict_tool_with_an_unusable_schema_is_refused(
    engine: ScriptedEngine, tok: Tokenizer, name: str
) -> None:
    """By its own `strict`, or by that of the request."""
    schema, _ = UNUSABLE[name]
    asking = {"tools": [tool(schema, strict=True)]}, {"tools": [tool(schema)], "dovetail": {"strict": "schema"}}
    async with in_process(engine, tok) as client:
        answers = [await client.post("/v1/chat/completions", json=BODY | fields) for fields in asking]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == WHERE and WHERE in answer.json()["error"]["message"]
    assert not engine.seen


@pytest.mark.parametrize("level", ["names", "off"])
@pytest.mark.parametrize("name", UNUSABLE)
async def test_less_than_a_schema_lists_what_is_not_checked(
    engine: ScriptedEngine, tok: Tokenizer, name: str, level: str
) -> None:
    """And nothing else, because only the name is enforced."""
    schema, left_out = UNUSABLE[name]
    engine.ids = call('{"a": "x"}', tok)
    async with in_process(engine, tok) as client:
        messages, answer = await post(client, False, tools=[tool(schema)], dovetail={"strict": level})
    assert "dovetail" not in messages[0]
    assert answer.headers.get("x-dovetail-unenforced") == (f"{WHERE}#" if left_out == ["#"] else None)


async def test_the_rest_is_enforced_and_checked(engine: ScriptedEngine, tok: Tokenizer) -> None:
    tools = [tool(prop({"$ref": "#/definitions/y"}, required=["b"]))]
    engine.ids = invalid = call('{"b": "x", "a": 3}', tok)
    async with in_process(engine, tok) as client:
        messages, _ = await post(client, False, tools=tools, dovetail={"strict": "names"})
        detail = "call 0: /b against #/properties/b/type"
        assert messages[0]["dovetail"]["defects"] == [{"kind": "schema_mismatch", "detail": detail}]
        engine.ids = call('{"b": 1, "a": 3}', tok)
        await post(client, False, tools=tools)
    constraint = engine.seen[-1].constraint
    assert constraint is not None
    assert not all(map(constraint.another().advance, invalid))  # type: ignore[attr-defined]  # a Matcher


async def test_the_prompt_shows_the_schema_as_it_was_sent(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = call('{"a": "x"}', tok)
    async with in_process(engine, tok) as client:
        await post(client, False, tools=[tool(UNUSABLE["Python's"][0])])
        shown = tok.decode(engine.seen[-1].prompt)
        await post(client, False, tools=[tool(UNUSABLE["Python's"][0])], dovetail={"strict": "off"})
    assert tok.decode(engine.seen[-1].prompt) == shown


async def test_a_schema_that_no_value_fits_is_refused_with_a_way_out(engine: ScriptedEngine, tok: Tokenizer) -> None:
    never = tool({"type": "object", "required": ["c"], "additionalProperties": False})
    engine.ids = call("{}", tok)
    async with in_process(engine, tok) as client:
        refused = await client.post("/v1/chat/completions", json=BODY | {"tools": [never]})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, WHERE)
        assert '"dovetail": {"strict": "names"}' in error["message"]
        messages, _ = await post(client, False, tools=[never], dovetail={"strict": "names"})
    assert [defect["kind"] for defect in messages[0]["dovetail"]["defects"]] == ["schema_mismatch"]


async def test_out_of_bounds_is_refused_sloppy_or_not(engine: ScriptedEngine, tok: Tokenizer) -> None:
    deep: dict[str, Any] = {"title": 3}
    for _ in range(120):
        deep = {"items": deep}
    for schema in (prop({"multipleOf": 999_999_937, "title": 3}), prop(deep)):
        async with in_process(engine, tok) as client:
            refused = await client.post("/v1/chat/completions", json=BODY | {"tools": [tool(schema)]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, WHERE)


@pytest.mark.slow
def test_the_demo_pair_answers_with_all_of_them_at_once() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "parameters": schema}}
        for i, (schema, _) in enumerate(UNUSABLE.values())
    ]
    listed = [f"tools[{i}].function.parameters{at}" for i, (_, lost) in enumerate(UNUSABLE.values()) for at in lost]
    body = {"model": "demo", "messages": [{"role": "user", "content": "Please call tool_1."}], "tools": tools}
    body |= {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200, "temperature": 0}
    with demo_server() as url, httpx.Client(base_url=url, timeout=120) as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        header = answer.headers["x-dovetail-unenforced"].split(", ")
        assert set(header) == set(listed)
        message = answer.json()["choices"][0]["message"]
        (made,) = message["tool_calls"]
        assert made["function"]["name"].startswith("tool_")
        assert isinstance(json.loads(made["function"]["arguments"]), dict)
        assert "dovetail" not in message
        streamed = client.post("/v1/chat/completions", json=body | {"stream": True})
        assert streamed.headers["x-dovetail-unenforced"] == answer.headers["x-dovetail-unenforced"]
        deltas = [event["choices"][0]["delta"] for event in events_of(streamed.text)[:-1] if event["choices"]]
        pieces = [each["function"].get("arguments") or "" for it in deltas for each in it.get("tool_calls", ())]
        assert "".join(pieces) == made["function"]["arguments"]


def test_patterns_that_are_too_large_together_are_not_checked(tok: Tokenizer) -> None:
    """One request of 1.5 KB held everybody up for 6 seconds, and kept 0.5 GB."""
    large = [tool(prop({"pattern": rf"^{i}\p{{L}}{{1,50}}$"}), name=f"f{i}") for i in range(20)]
    turn = prepared(tok, tools=large, dovetail={"strict": "off"})
    assert turn.unenforced == tuple(f"tools[{i}].function.parameters#" for i in range(1, 20))
    with pytest.raises(SchemaRefused, match=r"tools\[1\].*patterns.*are too large together"):
        prepared(tok, tools=[{**each, "function": {**each["function"], "strict": True}} for each in large])
