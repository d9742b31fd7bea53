"""What a request asks for and no server of this kind has: left out and listed, by one rule in every API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import dovetail
from dovetail.events import Message
from dovetail.gateway.turn.prompt import render_prompt
from dovetail.tokens import Tokenizer
from tests.gateway.families import WithOptions
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, prepared, turn_request

pytestmark = pytest.mark.anyio

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 9},
    "/v1/completions": {"prompt": "hi"},
}
#: Fields of vendors and of other servers, with values that ask for something.
FIELDS: dict[str, Any] = {
    "moderation": {"model": "omni-moderation"},
    "return_token_ids": True,
    "web_search_options": {},
    "preserve_thinking": True,
    "provider": {"order": ["a"]},
}


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)


@pytest.mark.parametrize("path", APIS)
async def test_fields_are_listed_unless_they_are_null(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json={"model": MODEL, **APIS[path], **FIELDS})
        assert (answer.status_code, answer.headers["x-dovetail-omitted"]) == (200, ", ".join(FIELDS))
        nothing = await client.post(path, json={"model": MODEL, **APIS[path], **dict.fromkeys(FIELDS)})
        assert nothing.status_code == 200 and "x-dovetail-omitted" not in nothing.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_options_that_the_template_never_reads(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    options = {"enable_thinking": True, "preserve_thinking": True, "thinkin": {"a": [1]}, "x y": None}
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json={"model": MODEL, **APIS[path], "chat_template_kwargs": options})
        rendered = await client.post(
            "/v1/chat/completions/render", json={"model": MODEL, "messages": [USER], "chat_template_kwargs": options}
        )
    listed = [f"chat_template_kwargs.{name}" for name in ("preserve_thinking", "thinkin", "x%20y")]
    for each in (answer, rendered):
        assert each.status_code == 200, each.text
        assert each.headers["x-dovetail-omitted"] == ", ".join(listed)


@pytest.mark.parametrize(
    ("declared", "sent", "rendered"),
    [
        ("preserve_thinking", {"preserve_thinking": True}, {"preserve_thinking": True}),
        ("clear_thinking", {"preserve_thinking": True}, {"clear_thinking": False}),
        ("clear_thinking", {"preserve_thinking": False}, {"clear_thinking": True}),
        ("drop_thinking", {"clear_thinking": False}, {"drop_thinking": False}),
        ("truncate_history_thinking", {"preserve_thinking": True}, {"truncate_history_thinking": False}),
        ("keep_past_thinking", {"drop_thinking": True}, {"keep_past_thinking": False}),
        ("clear_thinking", {"preserve_thinking": True, "clear_thinking": True}, {"clear_thinking": True}),
        ("thinking_effort", {"reasoning_effort": "high"}, {"thinking_effort": "high"}),
        ("reasoning_effort", {"thinking_effort": "high"}, {"reasoning_effort": "high"}),
    ],
)
def test_an_option_by_another_name(
    tok: Tokenizer, declared: str, sent: Mapping[str, Any], rendered: Mapping[str, Any]
) -> None:
    fmt = WithOptions(declared)
    turn = prepared(tok, fmt, chat_template_kwargs=sent)
    assert fmt.rendered[0] == {"thinking": True, **rendered} and not turn.request.omitted


def test_an_option_of_another_type_has_no_other_name(tok: Tokenizer) -> None:
    fmt = WithOptions("clear_thinking")
    turn = prepared(tok, fmt, chat_template_kwargs={"preserve_thinking": "yes"})
    assert fmt.rendered[0] == {"thinking": True}
    assert turn.request.omitted == ("chat_template_kwargs.preserve_thinking",)


@pytest.mark.parametrize(
    "fields", [{"chat_template_kwargs": {"preserve_thinking": True}}, {"thinking": {"keep": "all"}}]
)
def test_a_family_keeps_the_reasoning_of_earlier_turns(fields: dict[str, Any]) -> None:
    fmt = dovetail.format("deepseek_v4")
    history = [USER, ANSWER | {"reasoning_content": "I greet."}, USER]

    def prompt(**fields: Any) -> str:
        request = turn_request({"messages": history, **fields}).for_template(fmt.template_options)
        return render_prompt(request, fmt, request.messages).text

    assert "I greet." not in prompt() and "I greet." in prompt(**fields)


async def test_changes_of_tools_in_a_conversation(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Every tool is offered from the beginning; a system message of such changes alone is no message."""
    reference = {"type": "tool_reference", "name": "f"}
    blocks = [{"type": kind, "tool": reference} for kind in ("tool_addition", "tool_removal")]
    messages = [USER, ANSWER, {"role": "system", "content": blocks}, USER]
    tools = [{"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}]
    async with in_process(engine, tok) as client:
        answer = await client.post(
            "/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": messages, "tools": tools}
        )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dovetail-omitted"] == (
        "messages[2].content[0]:tool_addition, messages[2].content[1]:tool_removal"
    )


async def test_a_refusal_is_text(engine: ScriptedEngine, tok: Tokenizer) -> None:
    parts = [{"type": "text", "text": "Sorry. "}, {"type": "refusal", "refusal": "I cannot."}]
    refused = {"role": "assistant", "content": parts}
    async with in_process(engine, tok) as client:
        for path, fields in (
            ("/v1/chat/completions", {"messages": [USER, refused, USER]}),
            ("/v1/responses", {"input": [USER, {**refused, "content": parts[1:]}, USER]}),
        ):
            answer = await client.post(path, json={"model": MODEL, **fields})
            assert answer.status_code == 200 and "x-dovetail-omitted" not in answer.headers
            assert "I cannot." in tok.decode(engine.seen[-1].prompt)
