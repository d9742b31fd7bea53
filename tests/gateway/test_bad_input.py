"""A wrong request is answered with a 4xx error in OpenAI's shape that names the field, and never with a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.apis.chat_request import ChatRequest, decode, turn_request
from dovetail.tokens import Tokenizer
from tests.examples import examples
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, openai_client

pytestmark = pytest.mark.anyio

GOOD: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


FINE = tool({"type": "object", "properties": {}})
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}

# (fields added to a good request, the field that the error has to name)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "refusal"}]}]}, "messages[0].content[0].refusal"),
    (
        {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": 3}]}]},
        "messages[0].content[0].refusal",
    ),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function.name"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [FINE, FINE]}, "tools[1].function.name"),
    ({"tools": [tool({"type": "strin"})]}, "tools[0].function.parameters"),
    ({"tools": [FINE, tool({"type": "object", "properties": 3}, "g")]}, "tools[1].function.parameters"),
    ({"tools": [tool([])]}, "tools[0].function.parameters"),
    ({"tools": [tool({"properties": [1]})]}, "tools[0].function.parameters"),
    ({"tools": [tool({}, "a{b")]}, "tools[0].function.name"),
    ({"tools": [tool({}, "functions.f")]}, "tools[0].function.name"),
    ({"tools": [tool({}, "n" * 129)]}, "tools[0].function.name"),
    ({"tools": [tool({"type": "object", "required": [{}]})]}, "tools[0].function.parameters"),
    ({"tools": [tool({"type": "object", "$defs": [1], "not": {}})]}, "tools[0].function.parameters"),
    ({"tools": [FINE], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [FINE], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [FINE], "tool_choice": 3}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1.1}, "repetition_penalty"),
    ({"repetition_penalty": True}, "repetition_penalty"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"50": 101}}, "logit_bias"),
    ({"logit_bias": {"50": "much"}}, "logit_bias"),
    ({"logit_bias": {"9999999": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias"),
    ({"stop_token_ids": [9999999]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [5] * 129}, "stop_token_ids"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"verbosity": "chatty"}, "verbosity"),
    ({"stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
    ({"thinking": {"type": "perhaps"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "effort": "vast"}}, "thinking.effort"),
    ({"thinking": {"type": "enabled", "keep": "some"}}, "thinking.keep"),
    ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "thinking.type"),
    ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, "enable_thinking"),
    ({"reasoning": {"effort": "vast"}}, "reasoning.effort"),
    ({"reasoning": {"enabled": True}, "enable_thinking": False}, "reasoning.enabled"),
    ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"documents": [{}]}, "documents"),
    ({"truncate_prompt_tokens": 100}, "truncate_prompt_tokens"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"repeat_penalty": 1.1}, "repeat_penalty"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
    ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs.continue_final_message"),
    ({"chat_template_kwargs": {"enable_thinking": 0}}, "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
    ({"continue_final_message": 1}, "continue_final_message"),
    ({"continue_final_message": True}, "messages[0]"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"dovetail": {"strikt": "off"}}, "dovetail.strikt"),
    ({"dovetail": {"strict": "very"}}, "dovetail.strict"),
    ({"dovetail": {"draft_tokens": -1}}, "dovetail.draft_tokens"),
    ({"dovetail": {"draft_tokens": 1.5}}, "dovetail.draft_tokens"),
    ({"dovetail": {"return_token_ids": "yes"}}, "dovetail.return_token_ids"),
    ({"dovetail": {"on_malformed_call": "drop"}}, "dovetail.on_malformed_call"),
    ({"dovetail": {"silent": "no"}}, "dovetail.silent"),
    ({"dovetail": {"loops": "end"}}, "dovetail.loops"),
    ({"dovetail": {"repair": 3}}, "dovetail.repair"),
    ({"dovetail": {"repair": ["call_id"]}}, "dovetail.repair"),
    ({"dovetail": {"repair": {"call_ids": False}}}, "dovetail.repair.call_ids"),
    ({"dovetail": {"repair": {"call_id": "no"}}}, "dovetail.repair.call_id"),
    ({"dovetail": {"z" * 500: 1}}, f"dovetail.{'z' * 80}"),
    ({"chat_template_kwargs": {"z" * 500: 1}}, f"chat_template_kwargs.{'z' * 80}"),
    ({"messages": [{"role": "user", "content": [{"type": "p" * 500}]}]}, "messages[0].content[0].type"),
]

#: Unsupported fields: a value that would change the answer, and one that would not.
UNSUPPORTED: list[tuple[str, Any, Any]] = [
    ("bad_words", ["no"], []),
    ("allowed_token_ids", [1], None),
    ("best_of", 2, 1),
    ("use_beam_search", True, False),
    ("length_penalty", 1.5, 1.0),
    ("prompt_logprobs", 0, None),
    ("skip_special_tokens", False, True),
    ("include_stop_str_in_output", True, False),
    ("echo", True, False),
    ("prediction", {"type": "content", "content": "a"}, None),
    ("audio", {"voice": "alloy", "format": "wav"}, None),
    ("modalities", ["text", "audio"], ["text"]),
]


@pytest.mark.parametrize(("field", "something", "nothing"), UNSUPPORTED, ids=[field for field, *_ in UNSUPPORTED])
async def test_an_unsupported_field_is_refused_unless_it_changes_nothing(
    engine: ScriptedEngine, tok: Tokenizer, field: str, something: Any, nothing: Any
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps(GOOD | {field: something}))
        assert error["param"] == field and field in error["message"]
        for neutral in (nothing, None):
            assert (await client.post("/v1/chat/completions", json=GOOD | {field: neutral})).status_code == 200


async def test_the_dovetail_field_may_have_large_and_null_values(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    ours = {"draft_tokens": 10**6, "return_token_ids": None}
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", json=GOOD | {"dovetail": ours})
    assert response.status_code == 200
    assert "dovetail" not in response.json()["choices"][0]["message"]


#: Values that JSON decoders cannot represent.
UNREADABLE = [
    ('"messages": [{"role": "user", "content": [{"type": "text", "text": 1e999}]}]', "messages[0]"),
    ('"chat_template_kwargs": {"a": {"b": ' + "9" * 5000 + "}}", "chat_template_kwargs"),
    ('"n": ' + "9" * 5000, "n"),
    ('"response_format": ' + "[" * 900 + "]" * 900, "response_format"),
    ('"response_format": ' + '{"a":' * 900 + "1" + "}" * 900, "response_format.type"),
]


@pytest.mark.parametrize(("field", "param"), UNREADABLE, ids=[field[:40] for field, _ in UNREADABLE])
async def test_an_error_names_the_field_of_an_unreadable_value(
    engine: ScriptedEngine, tok: Tokenizer, field: str, param: str
) -> None:
    rest = json.dumps(GOOD)[:-1]
    async with in_process(engine, tok) as client:
        error = await refusal(client, f"{rest}, {field}}}")
    assert error["param"] == param
    assert len(error["message"]) < 300


async def test_a_value_of_any_depth_is_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    # At some depth the decoder gives up, and just below it what reads the value after the decoder.
    rest = json.dumps(GOOD)[:-1]
    async with in_process(engine, tok) as client:
        for depth in range(940, 1010, 3):
            error = await refusal(client, f'{rest}, "response_format": {"[" * depth}{"]" * depth}}}')
            assert error["param"] in ("response_format", None)
            assert len(error["message"]) < 300


@pytest.mark.parametrize(("extra", "param"), REFUSED, ids=[json.dumps(extra)[:60] for extra, _ in REFUSED])
async def test_an_error_names_the_wrong_field(
    engine: ScriptedEngine, tok: Tokenizer, extra: dict[str, Any], param: str
) -> None:
    """The official client raises its own error, which has the field."""
    async with (
        in_process(engine, tok) as http,
        openai.AsyncOpenAI(base_url="http://dovetail/v1", api_key="any", http_client=http, max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post("/chat/completions", body=GOOD | extra, cast_to=object)
    error = refused.value
    assert (error.param, error.type) == (param, "invalid_request_error")
    message = error.response.json()["error"]["message"]
    assert param.rsplit(".")[-1].split("[")[0] in message
    assert len(message) < 600, "what is echoed is cut"
    assert not engine.seen


#: The fields whose types say what they may be; the others are looked at in our own words.
TYPED = [field.name for field in msgspec.structs.fields(ChatRequest) if field.type is not Any]


@pytest.mark.parametrize("field", TYPED)
async def test_a_value_that_no_field_has_is_refused_by_name(engine: ScriptedEngine, tok: Tokenizer, field: str) -> None:
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps(GOOD | {field: [[]]}))
    assert error["param"] in (field, f"{field}[0]") and field in error["message"]


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_an_error_names_the_missing_field(engine: ScriptedEngine, tok: Tokenizer, missing: str) -> None:
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps({k: v for k, v in GOOD.items() if k != missing}))
    assert error["param"] == missing
    assert error["message"] == f"{missing} is required"


HEAD = b'{"model": "scripted", "messages": '
BODIES = {
    "empty": b"",
    "cut": b'{"model": "scripted", "messages": [',
    "not JSON": b"hello",
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": HEAD + b'[{"role": "user", "content": "\xff"}]}',
    "lone surrogate": HEAD + b'[{"role": "user", "content": "\\ud800"}]}',
    "two surrogates, wrong way round": HEAD + b'[{"role": "user", "content": "\\udc00\\ud800"}]}',
    "deep": HEAD + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a huge number": HEAD + b'[], "seed": ' + b"9" * 10_000 + b"}",
    "infinity": HEAD + b'[], "temperature": 1e999}',
    "NaN": HEAD + b'[], "temperature": NaN}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_that_is_no_request_is_400(engine: ScriptedEngine, tok: Tokenizer, body: bytes) -> None:
    async with in_process(engine, tok) as client:
        assert (await refusal(client, body))["message"]
    assert not engine.seen


@pytest.mark.parametrize("strict", ["off", "names", "schema"])
@pytest.mark.parametrize("depth", [12, 50, 150, 450])
async def test_a_deep_schema_is_never_a_500(tok: Tokenizer, depth: int, strict: str) -> None:
    engine = ScriptedEngine(tok, context=10**6)
    engine.ids = ids_of(Message(content="ok"), tok)
    nested = '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth
    tools = f'[{{"type": "function", "function": {{"name": "f", "parameters": {nested}}}}}]'
    body = f'{json.dumps(GOOD)[:-1]}, "tools": {tools}, "dovetail": {{"strict": "{strict}"}}}}'
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or response.json()["error"]["message"]


ITSELF = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}
DOUBLING: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
SCHEMAS: dict[str, Any] = {
    "is itself": {"$ref": "#"},
    "holds itself": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "two that are each other": ITSELF | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a choice of itself": ITSELF | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    "twice as large with each reference": ITSELF | {"$defs": {"a": {"$ref": "#/$defs/d0"}, **DOUBLING, "d30": {}}},
    "many properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
    "many values": {"type": "object", "properties": {"p": {"enum": [f"v{i}" for i in range(50_000)]}}},
    "long": {"type": "object", "description": "long " * 200_000},
    "NUL": {"type": "object", "description": "\0", "properties": {"\0": {"const": "\0"}}},
}


@pytest.mark.parametrize("strict", ["off", "names", "schema"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_a_cyclic_or_huge_schema_is_served_or_refused_by_name(tok: Tokenizer, schema: Any, strict: str) -> None:
    engine = ScriptedEngine(tok, context=10**7)
    engine.ids = ids_of(Message(content="ok"), tok)
    body = GOOD | {"tools": [tool(schema)], "dovetail": {"strict": strict}}
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", json=body)
    if response.status_code != 200:
        assert (response.status_code, strict) == (400, "schema")
        assert response.json()["error"]["param"] == "tools[0].function.parameters"


HALF = "\ud83d"
HALVES: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "", "name": HALF}]}, "messages[0].name"),
    ({"tools": [FINE, tool({"properties": {"a": {"enum": [HALF]}}}, "g")]}, "tools[1].function.parameters"),
    ({"tools": [FINE | {"function": {"name": "f", "description": HALF}}]}, "tools[0].function.description"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [HALF]}}}}, "response_format"),
    ({"tool_choice": {"function": {HALF: 1}}}, "tool_choice"),
    ({"stop": ["a", HALF]}, "stop"),
]


@pytest.mark.parametrize(("extra", "param"), HALVES, ids=[param for _, param in HALVES])
async def test_an_error_names_the_field_with_half_a_surrogate_pair(
    engine: ScriptedEngine, tok: Tokenizer, extra: dict[str, Any], param: str
) -> None:
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps(GOOD | extra))
        assert error["param"].startswith(param)
        error = await refusal(client, json.dumps(GOOD | {"user": HALF}))  # in a field that is not read
        assert "not valid JSON" in error["message"]


async def test_a_nul_is_text(tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok)
    engine.ids = ids_of(Message(content="ok"), tok)
    nul = {"role": "user", "content": "a\0b", "name": "\0"}
    async with in_process(engine, tok) as client:
        assert (await client.post("/v1/chat/completions", json=GOOD | {"messages": [nul]})).status_code == 200
    assert tok.decode(engine.seen[0].prompt).startswith("<|im_user|>\0<|im_middle|>a\0b<|im_end|>")


async def test_a_message_of_10_mb_is_too_large_or_too_long(engine: ScriptedEngine, tok: Tokenizer) -> None:
    body = json.dumps(GOOD | {"messages": [{"role": "user", "content": "word " * 2 * 1024 * 1024}]})
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", content=body)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "payload_too_large"
    async with in_process(engine, tok, Settings(served_model_name=MODEL, max_body_bytes=2**25)) as client:
        error = await refusal(client, body)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert not engine.seen


async def test_a_prompt_longer_than_the_context_says_both_numbers(tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok, context=64)
    long = [{"role": "user", "content": "word " * 100}]
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps(GOOD | {"messages": long}))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "64" in error["message"]
    strict = Settings(served_model_name=MODEL, strict_max_tokens=True)
    async with in_process(engine, tok, strict) as client:
        error = await refusal(client, json.dumps(GOOD | {"max_tokens": 60}))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
        assert "60" in error["message"] and "64" in error["message"]


async def test_the_openai_client_raises_its_own_errors(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with openai_client(engine, tok) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-9", messages=GOOD["messages"])
        assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(**GOOD, max_tokens=-2)
        assert wrong.value.param == "max_tokens"


async def test_wrong_paths_and_methods(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        wrong_method = await client.get("/v1/chat/completions")
        wrong_path = await client.post("/v1/embeddings", json=GOOD)
    assert wrong_method.status_code == 405 and wrong_method.headers["allow"] == "POST"
    assert wrong_path.status_code == 404
    for response in (wrong_method, wrong_path):
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_too_large_is_refused_declared_or_not(engine: ScriptedEngine, tok: Tokenizer) -> None:
    small = Settings(served_model_name=MODEL, max_body_bytes=1000)

    async def undeclared() -> Any:
        for _ in range(20):
            yield b" " * 100

    async with in_process(engine, tok, small) as client:
        for content in (b" " * 2000, undeclared()):
            response = await client.post("/v1/chat/completions", content=content)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "payload_too_large"


async def test_the_key_is_required_and_never_shown(
    engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    caplog.set_level("DEBUG")
    settings = Settings(served_model_name=MODEL, api_key="sesame-42")
    async with in_process(engine, tok, settings) as client:
        for header in (None, b"Bearer sesame-4", b"sesame-42", b"Bearer sesame-42 ", b"\xe9", b""):
            for path in ("/v1/models", "/v1/nothing", "/v1"):
                response = await client.get(path, headers={} if header is None else {b"authorization": header})
                assert response.status_code == 401, (path, header)
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert "sesame" not in response.text
        for right in ("Bearer sesame-42", "bearer sesame-42"):
            headers = {"authorization": right}
            assert (await client.post("/v1/chat/completions", json=GOOD, headers=headers)).status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
    assert "sesame" not in caplog.text
    assert "sesame" not in repr(settings)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(ChatRequest.__struct_fields__)
PARTS = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"content": JSON})


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(FIELDS, JSON, max_size=4), st.none() | st.lists(PARTS, max_size=2))
def test_any_json_is_a_request_or_a_refusal(fields: dict[str, Any], messages: Any) -> None:
    body = GOOD | fields | ({} if messages is None else {"messages": messages})
    try:
        turn_request(decode(json.dumps(body).encode()))
    except DovetailError as error:
        assert error.status == 400
        assert error.message


async def refusal(client: httpx.AsyncClient, content: str | bytes) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", content=content)
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    async with in_process(engine, tok) as client:
        error = await refusal(client, json.dumps(GOOD | {"messages": [{"role": "user", "content": "word " * 10**6}]}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "at least" in error["message"], "the number of tokens is not known"
