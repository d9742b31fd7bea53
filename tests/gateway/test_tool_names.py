"""Tool names with `/` and `:`: the model reads and writes other names, the client sees its own in every field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.gateway.turn.tools import ToolNames
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, in_process, prepared
from tests.tools import tool

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}


def called(name: str, call_id: str = "a") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "a", "name": "github/search", "content": "ok"}
TOOLS = [tool("github/search"), tool("github_search"), tool("mcp:now")]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_call_has_the_clients_name(engine: ScriptedEngine, tok: Tokenizer, stream: bool) -> None:
    calls = (Call("functions.github_search_2:1", "github_search_2", "{}"), Call("functions.mcp_now:2", "mcp_now", "{}"))
    engine.ids = ids_of(Message("", "", calls), tok)
    body = {"model": MODEL, "messages": [USER, called("github/search"), RESULT], "tools": TOOLS, "stream": stream}
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", json=body)
        metrics = (await client.get("/metrics")).text
    message = (folded(events_of(response.text)[:-1])[0] if stream else response.json()["choices"][0])["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["github/search", "mcp:now"]
    assert 'tool="github/search"' in metrics and "defects" not in message.get("dovetail", {})
    prompt = tok.decode(engine.seen[0].prompt)
    assert "functions.github_search_2:0" in prompt and "github/search" not in prompt


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "mcp:now"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("mcp:now")]}},
    ],
)
def test_a_choice_by_the_clients_name(tok: Tokenizer, choice: Any) -> None:
    for name, allowed in (("mcp_now", True), ("github_search", False)):
        ids = ids_of(Message("", "", (Call(f"functions.{name}:0", name, "{}"),)), tok)
        constraint = prepared(tok, tools=TOOLS, tool_choice=choice).choices[0].completion.constraint
        assert constraint is not None and all(map(constraint.advance, ids)) is allowed


def test_tools_that_messages_declare_are_renamed() -> None:
    messages = [{"role": "system", "content": "", "tools": [tool("a:b")]}, called("a:b")]
    names = ToolNames.of(None, messages)
    assert names.to_model == {"a:b": "a_b"} and names.to_client == {"a_b": "a:b"}


def test_a_call_to_a_tool_that_is_gone_is_renamed_too() -> None:
    names = ToolNames.of([tool("a_b")], [called("a/b")])
    assert names.to_model == {"a/b": "a_b_2"} and names.to_client == {}


@given(
    declared=st.lists(st.text("ab_/:", min_size=1, max_size=4), unique=True, max_size=6),
    history=st.lists(st.text("ab_/:", min_size=1, max_size=4), max_size=6),
)
def test_names_stay_apart_and_are_the_same_in_every_turn(declared: list[str], history: list[str]) -> None:
    tools = [tool(name) for name in declared]
    names = ToolNames.of(tools, [called(name) for name in history])
    model = [names.to_model.get(name, name) for name in declared]
    assert len(set(model)) == len(declared)
    assert not any("/" in name or ":" in name for name in (*model, *names.to_model.values()))
    assert [names.to_client.get(name, name) for name in model] == declared
    first = ToolNames.of(tools, [])
    assert all(names.to_model[name] == mapped for name, mapped in first.to_model.items())


@pytest.mark.parametrize("tools", [None, 3, "a/b", [None], [{}], [{"type": "function", "function": {"name": 3}}]])
def test_what_is_not_well_formed_is_left_alone(tools: Any) -> None:
    names = ToolNames.of(tools, [None, {"tool_calls": 3}, called("a/b")])
    assert names.in_tools(tools) == tools
    assert names.in_choice(3) == 3


@pytest.mark.parametrize("name", ["a@b", "a b", "", "x" * 129, "functions.a/b"])
def test_other_characters_are_refused(tok: Tokenizer, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prepared(tok, tools=[tool(name)])
    assert refused.value.param == "tools[0].function.name"
