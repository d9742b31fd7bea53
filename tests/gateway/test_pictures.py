"""Pictures in requests to a model that reads text only."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.events import Message
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
INPUT = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
LINKED = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "seen"}, BLOCK]}
F = {"name": "f", "input_schema": {"type": "object"}}


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)


@pytest.mark.parametrize(
    ("path", "fields", "left_out", "shown"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]}]},
            "messages[0].content[1]:image_url",
            "What is it?[picture left out: this model reads text only]",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}]},
            "messages[0].content[0]:video_url",
            "[video left out: this model reads text only]",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [INPUT, INPUT]}]},
            "input[0].content[0]:input_image, input[0].content[1]:input_image",
            "[picture left out: this model reads text only][picture left out: this model reads text only]",
        ),
        (
            "/v1/messages",
            {"max_tokens": 9, "messages": [{"role": "user", "content": [BLOCK]}, ANSWER, USER]},
            "messages[0].content[0]:image",
            "[picture left out: this model reads text only]",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [USER, USE, {"role": "user", "content": [RESULT]}, ANSWER, USER],
                "tools": [F],
            },
            "messages[2].content[0].content[1]:image",
            "seen\n\n[picture left out: this model reads text only]",
        ),
    ],
    ids=["chat", "video", "responses", "messages", "an earlier result"],
)
async def test_a_placeholder_stands_for_a_picture(
    engine: ScriptedEngine, tok: Tokenizer, path: str, fields: dict[str, Any], left_out: str, shown: str
) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dovetail-omitted"] == left_out
    assert shown in tok.decode(engine.seen[0].prompt)


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "user", "content": [BLOCK]}], "messages.0.content.0.image.source.base64"),
        ([{"role": "user", "content": [LINKED]}], "messages.0.content.0.image.source.url"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages.0.content.0.image.source.base64"),
        ([USER, ANSWER, {"role": "user", "content": [{"type": "text", "text": "a"}, BLOCK]}], "messages.2.content.1"),
        ([USER, USE, {"role": "user", "content": [RESULT]}], "messages.2.content.0.image.source.base64"),
        ([{"role": "user", "content": [BLOCK]}, {"role": "system", "content": "note"}], "messages.0.content.0"),
        ([{"role": "user", "content": [BLOCK]}, {"role": "assistant", "content": "It is"}], "messages.0.content.0"),
    ],
    ids=["a block", "a link", "no source", "the last message", "a result", "a note behind", "an answer to continue"],
)
async def test_messages_refuses_a_picture_in_the_newest_turn(
    engine: ScriptedEngine, tok: Tokenizer, messages: list[Any], where: str
) -> None:
    body = {"model": MODEL, "messages": messages, "tools": [F]}
    async with in_process(engine, tok) as client:
        for path, fields in (("/v1/messages", {"max_tokens": 9}), ("/v1/messages/count_tokens", {})):
            error = (await client.post(path, json=body | fields)).json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(where) and "Could not process image" in error["message"]
    assert not engine.seen
