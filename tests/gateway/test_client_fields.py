"""Fields as the field's clients send them: other names of the same thing, and values that mean none."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import ContextExceeded, InvalidRequest
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Tokenizer
from tests.gateway.families import WithOptions
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, prepared, turn_request

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}


def turn(**fields: Any) -> TurnRequest:
    return turn_request({"messages": [USER], **fields})


@pytest.mark.parametrize(
    ("fields", "on", "effort"),
    [
        ({}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "disabled", "effort": "high", "keep": "all"}}, False, "high"),
        ({"thinking": {"type": "enabled", "effort": "low"}}, True, "low"),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"keep": "all"}}, True, None),
        ({"thinking": False}, False, None),
        ({"thinking": True}, True, None),
        ({"enable_thinking": False}, False, None),
        ({"enable_thinking": True}, True, None),
        ({"reasoning": {"effort": "none"}}, False, "none"),
        ({"reasoning": {"effort": "high"}}, True, "high"),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"reasoning": {}}, True, None),
        ({"reasoning_effort": "none"}, False, "none"),
        ({"reasoning_effort": "high", "enable_thinking": False}, False, "high"),
        ({"chat_template_kwargs": {"thinking": False}, "enable_thinking": False}, False, None),
        ({"reasoning_effort": "max", "thinking": {"effort": "low"}}, True, "low"),
        ({"reasoning_effort": "none", "thinking": {"effort": "low"}}, True, "low"),
        ({"thinking": {"effort": "none"}}, False, "none"),
        ({"reasoning_effort": "none", "enable_thinking": False}, False, "none"),
    ],
)
def test_reasoning_is_switched_under_every_name(fields: dict[str, Any], on: bool, effort: str | None) -> None:
    request = turn(**fields)
    assert (request.thinking, request.reasoning_effort) == (on, effort)


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"reasoning": {"effort": "none", "enabled": True}}, "reasoning.effort"),
        ({"thinking": {"type": "enabled", "effort": "none"}}, "thinking.effort"),
        ({"reasoning_effort": "none", "thinking": {"type": "adaptive"}}, "reasoning_effort"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking.type"),
    ],
)
def test_switches_that_contradict_each_other_are_refused(fields: dict[str, Any], at_fault: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        turn(**fields)
    assert refusal.value.param == at_fault


def test_a_switch_closes_the_reasoning_block_of_the_prompt(tok: Tokenizer) -> None:
    def text(**fields: Any) -> str:
        return tok.decode(prepared(tok, **fields).prompt)

    off = text(chat_template_kwargs={"thinking": False})
    assert off != text()
    for fields in ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, {"reasoning": {"effort": "none"}}):
        assert text(**fields) == off


@pytest.mark.parametrize(
    ("fields", "omitted"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 99}, "thinking_budget": 98}, "thinking_budget"),
        ({"reasoning_effort": "max", "thinking": {"effort": "low"}}, "reasoning_effort"),
    ],
)
async def test_fields_without_effect_are_in_a_header(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any], omitted: str
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": [USER], **fields})
    assert response.headers["x-dovetail-omitted"] == omitted


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_unknown_fields_are_in_a_header(
    engine: ScriptedEngine, tok: Tokenizer, path: str, fields: dict[str, Any]
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    harmless = {"metadata": {}, "user": "u", "store": False, "service_tier": "auto"}
    unknown = {"max_token": 5, "mirostat": [{"deep": None}], "a b\r\n": "c"}
    async with in_process(engine, tok) as client:
        taken = await client.post(path, json={"model": MODEL} | fields | harmless | unknown)
        silent = await client.post(path, json={"model": MODEL} | fields | harmless)
    assert (taken.status_code, silent.status_code) == (200, 200)
    assert taken.headers["x-dovetail-omitted"] == "max_token, mirostat, a%20b%0D%0A"
    assert "x-dovetail-omitted" not in silent.headers


def test_options_reach_a_template_that_has_them(tok: Tokenizer) -> None:
    fields: dict[str, Any] = {"verbosity": "low", "thinking": {"keep": "all"}}
    fmt = WithOptions("verbosity", "preserve_thinking")
    prepared(tok, fmt, **fields)
    assert fmt.rendered[-1] == {"thinking": True, "verbosity": "low", "preserve_thinking": True}
    prepared(tok, WithOptions(), **fields)  # nothing happens without


def test_how_an_answer_may_end_reaches_the_engine(tok: Tokenizer) -> None:
    fields = {"ignore_eos": True, "min_tokens": 3, "stop_token_ids": [5, 6], "logit_bias": {"7": -100, "8": 2.5}}
    completion = prepared(tok, **fields).choices[0].completion
    assert (completion.ignore_eos, completion.min_tokens, completion.stop_token_ids) == (True, 3, (5, 6))
    assert completion.sampling.logit_bias == {7: -100.0, 8: 2.5}


def test_an_operator_may_keep_the_gate(tok: Tokenizer) -> None:
    keeps = Settings(served_model_name=MODEL, gate_override=False)
    assert not prepared(tok, dovetail={"gate": False}).choices[0].completion.gated
    for extension in ({}, {"gate": True}, {"gate": None}):
        assert prepared(tok, settings=keeps, dovetail=extension).choices[0].completion.gated
    with pytest.raises(InvalidRequest) as refusal:
        prepared(tok, settings=keeps, dovetail={"gate": False})
    assert refusal.value.param == "dovetail.gate"


@pytest.mark.parametrize("value", [-1, None])
def test_no_limit(value: int | None) -> None:
    assert turn(max_tokens=value).max_tokens is None
    assert turn(max_completion_tokens=value, max_tokens=9).max_tokens == (None if value else 9)


@pytest.mark.parametrize(("value", "strings"), [("", ()), (["", "x"], ("x",)), ([""], ()), ("x", ("x",))])
def test_an_empty_stop_string_is_none(value: Any, strings: tuple[str, ...]) -> None:
    assert turn(stop=value).stop == strings


async def test_a_stop_token_ends_the_answer_of_an_engine_that_goes_on(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """As one behind HTTP may. Its text is not part of the answer."""
    (dot,) = tok.encode(".")
    engine.ids = ids_of(Message("It rains. It pours."), tok, thinking=False)
    body = {"model": MODEL, "messages": [USER], "stop_token_ids": [dot], "enable_thinking": False}
    async with in_process(engine, tok) as client:
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It rains", "stop")
    assert answer["usage"]["completion_tokens"] == engine.ids.index(dot) + 1


async def test_usage_in_every_chunk(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("It rains."), tok)
    body = {"model": MODEL, "messages": [USER], "stream": True, "stream_options": {"continuous_usage_stats": True}}
    async with in_process(engine, tok) as client:
        *chunks, done = events_of((await client.post("/v1/chat/completions", json=body)).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert done == "[DONE]" and chunks[-1]["choices"] == []
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == len(engine.ids)
    assert all(chunk["usage"]["prompt_tokens"] == len(engine.seen[0].prompt) for chunk in chunks)


# -- formats and choices ---------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
NESTED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


@pytest.mark.parametrize(
    "flat",
    [
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "name": "answer", "schema": SCHEMA, "json_schema": None},
    ],
)
def test_a_schema_directly_in_the_response_format(flat: dict[str, Any]) -> None:
    assert turn(response_format=flat).response_format == NESTED


async def test_an_error_in_such_a_schema_names_the_clients_field(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async def refused(response_format: dict[str, Any]) -> str:
        body = {"model": MODEL, "messages": [USER], "response_format": response_format}
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        field = response.json()["error"]["param"]
        assert field in response.json()["error"]["message"]
        return str(field)

    impossible = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    async with in_process(engine, tok) as client:
        assert await refused({"type": "json_schema", "schema": impossible}) == "response_format.schema"
        assert await refused({"type": "json_schema", "schema": 3}) == "response_format.schema"
        assert await refused({"type": "json_schema", "schema": {}, "name": "a b"}) == "response_format.name"
        assert await refused({"type": "json_schema", "schema": {}, "strict": "yes"}) == "response_format.strict"
        assert await refused({"type": "json_schema"}) == "response_format.json_schema"
        assert await refused({**NESTED, "schema": SCHEMA}) == "response_format.schema"
        nameless = {"type": "json_schema", "json_schema": {"name": "a"}}
        assert await refused(nameless) == "response_format.json_schema.schema"


def test_any_is_another_word_for_required() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert turn(tools=[tool], tool_choice="any").tool_choice == "required"
    with pytest.raises(InvalidRequest) as refused:
        turn(tool_choice="any")
    assert refused.value.param == "tool_choice"


# -- the context -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 50_000}]}, "messages"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_completion_tokens": 5000}, "max_completion_tokens"),
    ],
    ids=["too many tokens", "far too long", "max_tokens", "max_completion_tokens"],
)
def test_an_overflow_is_told_in_the_words_that_clients_look_for(
    tok: Tokenizer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ContextExceeded, match="This model's maximum context length is 4096 tokens") as refused:
        prepared(tok, settings=Settings(served_model_name=MODEL, strict_max_tokens=True), **fields)
    assert refused.value.param == param and refused.value.code == "context_length_exceeded"
