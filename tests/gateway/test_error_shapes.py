"""Errors under /v1/messages have Anthropic's shape and words, those of every other path OpenAI's."""

from __future__ import annotations

import json
import re

import pytest

from dovetail.errors import (
    ContextExceeded,
    DovetailError,
    EngineBusy,
    EngineError,
    InvalidRequest,
    PayloadTooLarge,
    RenderError,
    Unauthorized,
    UnknownModel,
)
from dovetail.gateway import Settings
from dovetail.gateway.http.errors import error_response
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, in_process

pytestmark = pytest.mark.anyio

WORDS: list[tuple[DovetailError, str]] = [
    (InvalidRequest("stop is wrong", param="stop"), "invalid_request_error"),
    (ContextExceeded("too long"), "invalid_request_error"),
    (RenderError("cannot be written"), "invalid_request_error"),
    (Unauthorized("no key"), "authentication_error"),
    (UnknownModel("not served", param="model"), "not_found_error"),
    (PayloadTooLarge("too large"), "request_too_large"),
    (EngineBusy("later"), "overloaded_error"),
    (EngineError("failed"), "api_error"),
]


@pytest.mark.parametrize(("error", "word"), WORDS, ids=[type(error).__name__ for error, _ in WORDS])
def test_each_error_has_anthropics_word(error: DovetailError, word: str) -> None:
    response = error_response(error, "abc", anthropic=True)
    message = f"{error.param}: {error.message}" if error.param == "model" else error.message
    expected = {"type": "error", "error": {"type": word, "message": message}, "request_id": "abc"}
    assert (response.status_code, json.loads(response.body)) == (error.status, expected)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/nothing", "/v1/messagesx", "/v1/nothing", "/"])
@pytest.mark.parametrize("key", [None, "sesame"])
async def test_the_path_decides(engine: ScriptedEngine, tok: Tokenizer, path: str, key: str | None) -> None:
    settings = Settings(served_model_name=MODEL, api_key=key)
    async with in_process(engine, tok, settings) as client:
        response = await client.delete(path, headers={"x-request-id": "mine"})
    assert response.status_code >= 400
    assert response.headers["x-request-id"] == "mine"
    body = response.json()
    if path in ("/v1/messages", "/v1/messages/nothing"):
        assert (body["type"], body["request_id"], response.headers["request-id"]) == ("error", "mine", "mine")
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert "request-id" not in response.headers


#: The words by which claude-code knows a prompt that is too long, and how much too long it is.
TOO_LONG = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)


@pytest.mark.parametrize("words", [100, 5000], ids=["too many tokens", "far too long"])
@pytest.mark.parametrize("stream", [False, True])
async def test_messages_tells_an_overflow_in_anthropics_words(tok: Tokenizer, words: int, stream: bool) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "word " * words}]}
    async with in_process(ScriptedEngine(tok, context=64), tok) as client:
        refused = await client.post("/v1/messages", json=body | {"stream": stream})
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    numbers = TOO_LONG.fullmatch(refused.json()["error"]["message"].removesuffix(" maximum"))
    assert refused.status_code == 400 and numbers is not None
    assert 64 <= int(numbers[1]) <= counted and numbers[2] == "64"
    assert int(numbers[1]) == counted or words == 5000  # which is told before it is tokenized


async def test_messages_tells_a_limit_above_the_room_in_anthropics_words(tok: Tokenizer) -> None:
    strict = Settings(served_model_name=MODEL, strict_max_tokens=True)
    body = {"model": MODEL, "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}]}
    async with in_process(ScriptedEngine(tok, context=64), tok, strict) as client:
        refused = await client.post("/v1/messages", json=body)
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    assert refused.json()["error"]["message"] == (
        f"input length and `max_tokens` exceed context limit: {counted} + 60 > 64, "
        "decrease input length or `max_tokens` and try again"
    )
