"""A wrong request is an error of the official client's own type that names the field, and never a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.events import Message
from dovetail.gateway.apis.responses.exchange import ResponsesExchange
from dovetail.tokens import Tokenizer
from tests.gateway.responses.test_client import client_of
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

F: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "functions.f:0", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "functions.f:0", "output": "ok"}
USER = {"role": "user", "content": "hi"}


def text_format(**fields: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", **fields}}}


#: (fields added to a good request, the field that the error has to name)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [USER, {"type": "telepathy"}]}, "input[1].type"),
    ({"input": [{"content": "hi"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["hi"]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio", "audio_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": ["input_text"]}]}]}, "input[0].content[0].type"),
    ({"input": [USER, {**CALL, "call_id": None}]}, "input[1].call_id"),
    ({"input": [USER, {**CALL, "name": ""}]}, "input[1].name"),
    ({"input": [USER, {**CALL, "arguments": {}}]}, "input[1].arguments"),
    ({"input": [USER, {**CALL, "type": "custom_tool_call"}]}, "input[1].input"),
    ({"input": [USER, CALL]}, "input[1].call_id"),
    ({"input": [USER, CALL, USER]}, "input[1].call_id"),
    ({"input": [USER, RESULT]}, "input[1].call_id"),
    ({"input": [USER, CALL, {**RESULT, "output": 3}]}, "input[2].output"),
    ({"input": [USER, CALL, {**RESULT, "output": [{"type": "input_file"}]}]}, "input[2].output[0].type"),
    ({"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": 3}]}, "input[1].encrypted_content"),
    ({"input": [USER, {"type": "reasoning", "summary": "x"}]}, "input[1].summary"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": f"msg_{'0' * 32}_in0"}]}, "input[0].id"),
    ({"input": [USER, {"type": "local_shell_call", "action": {}}]}, "input[1].call_id"),
    ({"input": [USER, {"type": "mcp_call", "id": "m", "name": "n"}]}, "input[1].arguments"),
    ({"instructions": ["be kind"]}, "instructions"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"model": 3}, "model"),
    ({"tools": {}}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [F, {"type": "functon", "name": "g"}]}, "tools[1].type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
    ({"tools": [F, F]}, "tools[1].name"),
    ({"tools": [{"type": "web_search"}, {**F, "name": "a b"}]}, "tools[1].name"),
    ({"tools": [{"type": "web_search"}, {**F, "parameters": []}]}, "tools[1].parameters"),
    ({"tools": [{**F, "strict": True, "parameters": {"type": "strin"}}]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "ns", "tools": 3}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0].type"),
    ({"tools": [{"type": "namespace", "name": "ns", "tools": [F, F]}]}, "tools[0].tools[1].name"),
    ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar"}}]}, "tools[0].format.syntax"),
    ({"tools": [{"type": "custom", "name": "p", "format": {"type": "regex"}}]}, "tools[0].format.type"),
    ({"tools": [F], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "any", "tools": [F]}}, "tool_choice.mode"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [3]}}, "tool_choice.tools[0]"),
    (
        {
            "tools": [F],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}, {**F, "name": "g"}]},
        },
        "tool_choice.tools[1]",
    ),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"reasoning": "high"}, "reasoning"),
    ({"text": {"verbosity": "chatty"}}, "text.verbosity"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    (text_format(schema={}), "text.format.name"),
    (text_format(name="a", schema=3), "text.format.schema"),
    (text_format(name="a", strict=True), "text.format.schema"),
    (text_format(name="a", schema={"type": "strin"}, strict=True), "text.format.schema"),
    ({"include": "everything"}, "include"),
    ({"include": ["everything"]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "sometimes"}, "truncation"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"service_tier": "first class"}, "service_tier"),
    ({"store": "yes"}, "store"),
    ({"stream": "yes"}, "stream"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"stop": ["x"]}, "stop"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"n": 2}, "n"),
    ({"seed": 2**64}, "seed"),
    ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
    ({"dovetail": {"strikt": "off"}}, "dovetail.strikt"),
    ({"dovetail": {"repair": {"call_ids": False}}}, "dovetail.repair.call_ids"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_an_error_names_the_field(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any], param: str, streams: bool
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with client_of(engine, tok) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model=MODEL, extra_body={"input": "hi", "stream": streams, **fields})
    error = refused.value
    assert error.param == param or (error.param or "").startswith(f"{param}[")
    assert error.type == "invalid_request_error" and error.code
    assert len(error.message) < 700
    assert not engine.seen


async def test_other_models_and_bodies(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with client_of(engine, tok) as client, in_process(engine, tok) as plain:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(model="another", input="hi")
        assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
        for body in (b"", b"[]", b"{", b'{"model": "scripted", "input": "\\ud800"}', b"\xff"):
            response = await plain.post("/v1/responses", content=body)
            assert response.status_code == 400, body
        assert (await plain.get("/v1/responses")).status_code == 405


async def test_keys(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with client_of(engine, tok, api_key="right") as client:
        client.api_key = "wrong"
        for call in (client.responses.create(model=MODEL, input="hi"), client.responses.retrieve("resp_1")):
            with pytest.raises(openai.AuthenticationError):
                await call


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=many", "limit=²", "order=up", "after=nothing"])
async def test_pages_of_input_items(engine: ScriptedEngine, tok: Tokenizer, query: str, tmp_path: Any) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with client_of(engine, tok, tmp_path / "r.db") as client:
        stored = await client.responses.create(model=MODEL, input="hi")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.get(f"/responses/{stored.id}/input_items?{query}", cast_to=httpx.Response)
    assert refused.value.param == query.partition("=")[0]


#: Any JSON, and more often what may stand in a request.
_words = st.sampled_from(
    "type message role user content input_text text function_call call_id name arguments reasoning summary tools "
    "function namespace custom format web_search item_reference id output".split()
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)


@given(value=_json, tools=_json, choice=_json)
def test_any_json_is_taken_or_refused(value: Any, tools: Any, choice: Any) -> None:
    body = {"model": MODEL, "input": value, "tools": tools, "tool_choice": choice}
    try:
        ResponsesExchange(json.dumps(body).encode(), None, 1_000)
    except DovetailError as error:
        assert error.status == 400
        assert error.param is not None
