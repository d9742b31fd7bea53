"""Queries: the prompt of a chat completion, and text to tokens and back."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.apis.chat_request import ChatRequest
from dovetail.gateway.apis.tokens import TokenizeRequest
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

CALL = {"id": "mine", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Say <|im_end|> and ü."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "mine", "content": "done"},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
BODY = {"model": MODEL, "messages": CONVERSATION, "tools": [TOOL]}


async def test_a_rendered_prompt_is_the_one_that_the_engine_gets(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok) as client:
        answer = await client.post("/v1/chat/completions", json=BODY)
        rendered = await client.post("/v1/chat/completions/render", json=BODY)
        counted = await client.post("/tokenize", json=BODY)
        spelled = await client.post("/detokenize", json={"tokens": engine.seen[0].prompt})
    assert len(engine.seen) == 1, "a query does not run the engine"
    prompt = rendered.json()
    assert tuple(prompt["token_ids"]) == engine.seen[0].prompt
    assert prompt["count"] == len(prompt["token_ids"]) == answer.json()["usage"]["prompt_tokens"]
    assert prompt["prompt"] == "".join(segment["text"] for segment in prompt["segments"])
    controls = [segment["text"] for segment in prompt["segments"] if segment["control"]]
    assert [tok.control[text] for text in controls] == [i for i in prompt["token_ids"] if i in tok.control_literals]
    assert prompt["dovetail"] == {"repairs": answer.json()["choices"][0]["message"]["dovetail"]["repairs"]}
    assert rendered.headers["x-dovetail-repairs"] == answer.headers["x-dovetail-repairs"] != ""
    assert counted.json() == {
        "count": prompt["count"],
        "max_model_len": engine.info.context,
        "tokens": prompt["token_ids"],
        "token_strs": None,
    }
    assert spelled.json() == {"prompt": prompt["prompt"]}


async def test_a_prompt_above_the_context_is_counted(engine: ScriptedEngine, tok: Tokenizer) -> None:
    long = {"model": MODEL, "messages": [{"role": "user", "content": "so " * engine.info.context}]}
    async with in_process(engine, tok) as client:
        assert (await client.post("/v1/chat/completions", json=long)).status_code == 400
        assert (await client.post("/tokenize", json=long)).json()["count"] > engine.info.context


@pytest.mark.parametrize("text", ["", "the user asks", "ü🌧️ <|im_end|>", "<|im_user|>x<|im_end|>"])
async def test_text_to_tokens_and_back(engine: ScriptedEngine, tok: Tokenizer, text: str) -> None:
    async with in_process(engine, tok) as client:
        plain = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        controls = {"prompt": text, "dovetail": {"control_tokens": True}, "add_special_tokens": False}
        special = (await client.post("/tokenize", json=controls)).json()
        for ids in (plain["tokens"], special["tokens"]):
            assert (await client.post("/detokenize", json={"tokens": ids})).json() == {"prompt": text}
    assert plain["tokens"] == tok.encode(text) and plain["count"] == len(plain["tokens"])
    assert plain["token_strs"] == [tok.decode([token]) for token in plain["tokens"]]
    assert ("<|im_end|>" in text) == (tok.control["<|im_end|>"] in special["tokens"])
    assert not set(plain["tokens"]) & set(tok.control_literals)


REFUSED: list[tuple[str, Any, str | None]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": CONVERSATION}, "prompt"),
    ("/tokenize", {"prompt": 3}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "dovetail": {"control_token": True}}, "dovetail.control_token"),
    ("/tokenize", {"messages": CONVERSATION, "dovetail": {"control_tokens": True}}, "dovetail.control_tokens"),
    ("/tokenize", {"messages": CONVERSATION, "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"messages": [{"role": "robot"}]}, "messages[0].role"),
    ("/tokenize", {"messages": "hi"}, "messages"),
    ("/tokenize", {"messages": CONVERSATION, "tools": [{}]}, "tools[0].type"),
    ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
    ("/detokenize", {"tokens": [1, 1.5]}, "tokens[1]"),
    ("/detokenize", {"tokens": [10**6]}, "tokens[0]"),
    ("/detokenize", {"tokens": [10**30]}, "tokens[0]"),
    ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
    ("/v1/chat/completions/render", {"messages": CONVERSATION}, "model"),
    ("/v1/chat/completions/render", BODY | {"model": "other"}, "model"),
    ("/v1/chat/completions/render", BODY | {"max_tokens": "many"}, "max_tokens"),
    ("/v1/chat/completions/render", [], None),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED, ids=[f"{path} {body}"[:60] for path, body, _ in REFUSED])
async def test_a_wrong_query_names_the_field(
    engine: ScriptedEngine, tok: Tokenizer, path: str, body: Any, param: str | None
) -> None:
    async with in_process(engine, tok) as client:
        response = await client.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == (404 if error["code"] == "model_not_found" else 400)
    assert error["param"] is None if param is None else error["param"].startswith(param), error


async def test_a_query_larger_than_the_limit_is_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok, Settings(served_model_name=MODEL, max_body_bytes=100)) as client:
        assert (await client.post("/tokenize", json={"prompt": "a" * 200})).status_code == 413


def test_a_tokenize_request_has_every_field_of_a_chat_completion() -> None:
    assert set(ChatRequest.__struct_fields__) < set(TokenizeRequest.__struct_fields__)
