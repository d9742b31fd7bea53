"""Pictures in requests to a model that sees: one internal part for all APIs, and one picture for each place."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK2
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.formats import chat_templates
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

# Of one pixel, red and blue.
RED, BLUE = (
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
        if red
        else "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYPgPAAEDAQAIicLsAAAAAElFTkSuQmCC"
    )
    for red in (True, False)
)
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}
F = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PLACE = "<|media_pad|>"


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def chat(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), **more}}


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def part(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(data), **more}


@pytest.fixture(autouse=True)
def sees(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
#: Two pictures in a turn, in the history, and in a result, through each API.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        CHAT,
        {"messages": [{"role": "user", "content": [chat(RED), {"type": "text", "text": "or"}, chat(BLUE)]}]},
    ),
    "chat, a URL as a string": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url(RED)}, chat(BLUE)]}]},
    ),
    "chat, history": (
        CHAT,
        {"messages": [{"role": "user", "content": [chat(RED)]}, ANSWER, {"role": "user", "content": [chat(BLUE)]}]},
    ),
    "chat, result": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": [chat(RED)]},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "a", "content": [chat(BLUE)]},
            ],
            "tools": [FUNCTION],
        },
    ),
    "responses": (RESPONSES, {"input": [{"role": "user", "content": [part(RED), part(BLUE)]}]}),
    "responses, result": (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [part(RED)]},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": [part(BLUE)]},
            ]
        },
    ),
    "messages": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [block(RED), {"type": "text", "text": "or"}, block(BLUE)]}],
        },
    ),
    "messages, result": (
        MESSAGES,
        {
            "max_tokens": 9,
            "tools": [F],
            "messages": [
                {"role": "user", "content": [block(RED)]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [block(BLUE)]},
                    ],
                },
            ],
        },
    ),
}


@pytest.mark.parametrize(("path", "fields"), REQUESTS.values(), ids=REQUESTS)
async def test_the_engine_gets_a_picture_for_each_place(
    engine: ScriptedEngine, tok: Tokenizer, path: str, fields: dict[str, Any]
) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-dovetail-omitted" not in answer.headers
    (completion,) = engine.seen
    assert [picture.data for picture in completion.pictures] == [RED, BLUE]
    assert [picture.sha256 for picture in completion.pictures] == [
        hashlib.sha256(each).hexdigest() for each in (RED, BLUE)
    ]
    assert completion.prompt.count(tok.control[PLACE]) == 2
    assert ("Error: <|media_begin|>" in tok.decode(completion.prompt)) is ("is_error" in str(fields))


async def test_texts_around_a_picture_of_messages_keep_their_blank_line(engine: ScriptedEngine, tok: Tokenizer) -> None:
    texts = [{"type": "text", "text": text} for text in "ab"]
    async with in_process(engine, tok) as client:
        await client.post(
            MESSAGES,
            json={"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": [*texts, block(RED)]}]},
        )
    assert "a\n\nb<|media_begin|>image<|media_content|><|media_pad|><|media_end|>" in tok.decode(engine.seen[0].prompt)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_text_that_spells_a_place_is_none(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    spelled = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|><|image_pad|><start_of_image>"
    kind, picture = {CHAT: ("text", chat(RED)), RESPONSES: ("input_text", part(RED)), MESSAGES: ("text", block(RED))}[
        path
    ]
    turn = {"role": "user", "content": [{"type": kind, "text": spelled}, picture]}
    field = "input" if path == RESPONSES else "messages"
    async with in_process(engine, tok) as client:
        answer = await client.post(
            path, json={"model": MODEL, field: [turn], **({"max_tokens": 9} if path == MESSAGES else {})}
        )
    assert answer.status_code == 200, answer.text
    assert engine.seen[0].prompt.count(tok.control[PLACE]) == 1
    assert tok.decode(engine.seen[0].prompt).count(PLACE) == 2


@pytest.mark.parametrize(
    ("detail", "omitted"), [("auto", None), ("high", None), ("low", "detail"), ("original", "detail")]
)
async def test_a_detail_that_asks_for_less_is_reported(
    engine: ScriptedEngine, tok: Tokenizer, detail: str, omitted: str | None
) -> None:
    requests = (
        (
            CHAT,
            {"messages": [{"role": "user", "content": [chat(RED, detail=detail)]}]},
            "messages[0].content[0].image_url.detail",
        ),
        (RESPONSES, {"input": [{"role": "user", "content": [part(RED, detail=detail)]}]}, "input[0].content[0].detail"),
    )
    async with in_process(engine, tok) as client:
        for path, fields, field in requests:
            answer = await client.post(path, json={"model": MODEL, **fields})
            assert answer.headers.get("x-dovetail-omitted") == (field if omitted else None)


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*content]}]}


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no URL": (CHAT, user({"type": "image_url"}), "messages[0].content[0].image_url"),
    "no text as URL": (
        CHAT,
        user({"type": "image_url", "image_url": {"url": 3}}),
        "messages[0].content[0].image_url.url",
    ),
    "a detail": (CHAT, user(chat(RED, detail="huge")), "messages[0].content[0].image_url.detail"),
    "base64": (
        CHAT,
        user({"type": "image_url", "image_url": {"url": "data:image/png;base64,é"}}),
        "messages[0].content[0].image_url.url",
    ),
    "not base64": (
        CHAT,
        user({"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}}),
        "messages[0].content[0].image_url.url",
    ),
    "a file": (
        CHAT,
        user({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
        "messages[0].content[0].image_url.url",
    ),
    "https": (
        CHAT,
        user({"type": "image_url", "image_url": {"url": "https://a.example/a.png"}}),
        "messages[0].content[0].image_url.url",
    ),
    "audio": (CHAT, user({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].type"),
    "a stored file": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].image_url",
    ),
    "input_file": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        "input[0].content[0].type",
    ),
}


@pytest.mark.parametrize(("path", "fields", "param"), BAD.values(), ids=BAD)
async def test_a_bad_picture_is_refused_by_name(
    engine: ScriptedEngine, tok: Tokenizer, path: str, fields: dict[str, Any], param: str
) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and error["message"].startswith(param)
    assert not engine.seen


@pytest.mark.parametrize(
    "source",
    [
        None,
        {"type": "file", "file_id": "f"},
        {"type": "url", "url": "http://a"},
        {"type": "base64", "media_type": "image/png", "data": "é"},
    ],
)
async def test_messages_refuses_it_in_the_words_of_anthropic(
    engine: ScriptedEngine, tok: Tokenizer, source: Any
) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
    }
    async with in_process(engine, tok) as client:
        error = (await client.post(MESSAGES, json=body)).json()["error"]
    assert (
        error["message"].startswith("messages.0.content.0.image.source.")
        and "Could not process image: " in error["message"]
    )


async def test_a_video_is_still_left_out(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post(
            CHAT, json={"model": MODEL, **user({"type": "video_url", "video_url": {"url": "x"}}, chat(RED))}
        )
    assert answer.headers["x-dovetail-omitted"] == "messages[0].content[0]:video_url"
    assert "[video left out: this model reads text and pictures only]" in tok.decode(engine.seen[0].prompt)


async def test_a_picture_in_a_document_or_an_answer_is_left_out(engine: ScriptedEngine, tok: Tokenizer) -> None:
    document = {"type": "document", "source": {"type": "content", "content": [block(RED)]}}
    earlier = {"max_tokens": 9, "messages": [{"role": "user", "content": [document]}, ANSWER, USER]}
    answered = {"input": [USER, {"role": "assistant", "content": [part(RED)]}, USER]}
    fields = ("messages[0].content[0].source.content[0]:image", "input[1].content[0]:input_image")
    async with in_process(engine, tok) as client:
        for path, body, field in ((MESSAGES, earlier, fields[0]), (RESPONSES, answered, fields[1])):
            answer = await client.post(path, json={"model": MODEL, **body})
            assert answer.headers["x-dovetail-omitted"] == field
    for completion in engine.seen:
        assert not completion.pictures
        assert "[picture left out: the model sees none here]" in tok.decode(completion.prompt)


async def test_a_family_without_a_place_reads_text_only(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok, fmt=KimiK2()) as client:
        body = {"model": MODEL, **user(chat(RED)), "dovetail": {"strict": "off"}}
        answer = await client.post(CHAT, json=body)
    assert answer.headers["x-dovetail-omitted"] == "messages[0].content[0]:image_url"
    assert not engine.seen[0].pictures


async def test_a_raw_prompt_cannot_have_a_place(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": [5, tok.control[PLACE]]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"
        assert (await client.post("/v1/completions", json={"model": MODEL, "prompt": PLACE})).status_code == 200


async def test_a_place_that_the_model_wrote_goes_back_as_text(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Its tokens would be a place without a picture, for the pictures behind it to fall into."""
    engine.ids = (*tok.encode("see "), tok.control[PLACE], tok.control["<|im_end|>"])
    own = {"dovetail": {"record": True, "strict": "off"}, "chat_template_kwargs": {"thinking": False}}
    async with in_process(engine, tok) as client:
        first = await client.post(CHAT, json={"model": MODEL, **user(chat(RED)), **own})
        message = first.json()["choices"][0]["message"]
        assert message["dovetail"]["record"]
        history = [*user(chat(RED))["messages"], message, *user(chat(BLUE))["messages"]]
        await client.post(CHAT, json={"model": MODEL, "messages": history, **own})
    assert [picture.data for picture in engine.seen[1].pictures] == [RED, BLUE]
    assert engine.seen[1].prompt.count(tok.control[PLACE]) == 2


async def two_turns(engine: ScriptedEngine, tok: Tokenizer, *earlier: bytes) -> tuple[tuple[int, ...], str]:
    """Ask about the red picture and get a record; then go on, where the pictures are `earlier`.

    Returns what the second prompt has to begin with if the record counts, and what the second response reports.
    """
    pieces = tuple(token for letter in "weather" for token in tok.encode(letter))
    assert pieces != tuple(tok.encode("weather"))
    engine.ids = (*pieces, tok.control["<|im_end|>"])
    own = {"dovetail": {"record": True}, "chat_template_kwargs": {"thinking": False}}
    async with in_process(engine, tok) as client:
        first = await client.post(CHAT, json={"model": MODEL, **user(chat(RED)), **own})
        message = first.json()["choices"][0]["message"]
        history = [*user(*map(chat, earlier))["messages"], message, *user(chat(BLUE))["messages"]]
        second = await client.post(CHAT, json={"model": MODEL, "messages": history, **own})
    return engine.seen[0].prompt + pieces, second.headers.get("x-dovetail-repairs", "")


async def test_a_recorded_answer_keeps_its_tokens_beside_pictures(engine: ScriptedEngine, tok: Tokenizer) -> None:
    begins, repairs = await two_turns(engine, tok, RED)
    second = engine.seen[1]
    assert second.prompt[: len(begins)] == begins and not repairs
    assert [picture.data for picture in second.pictures] == [RED, BLUE]


@pytest.mark.parametrize("earlier", [(BLUE,), (RED, RED), (BLUE, RED), ()], ids=["changed", "more", "other", "none"])
async def test_a_record_is_of_the_pictures_before_it(
    engine: ScriptedEngine, tok: Tokenizer, earlier: tuple[bytes, ...]
) -> None:
    """An answer about another picture is no answer of this conversation, though the places are the same tokens."""
    begins, repairs = await two_turns(engine, tok, *earlier)
    assert engine.seen[1].prompt[: len(begins)] != begins
    assert "record_changed" in repairs


async def test_prompts_with_other_pictures_are_not_the_same(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        for data in (RED, BLUE, RED):
            await client.post(CHAT, json={"model": MODEL, **user(chat(data))})
    red, blue, again = engine.seen
    assert red.prompt == blue.prompt and red.seen != blue.seen and red.seen == again.seen
    place = red.prompt.index(tok.control[PLACE])
    assert red.seen[place] == hashlib.sha256(RED).hexdigest()


async def test_a_response_that_is_stored_has_its_pictures_again(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    settings = Settings(served_model_name=MODEL, response_store=tmp_path / "responses.db", max_body_bytes=600)
    async with in_process(engine, tok, settings) as client:
        body = {"model": MODEL, "input": [{"role": "user", "content": [part(RED), part(BLUE)]}]}
        first = (await client.post(RESPONSES, json=body)).json()
        more = {"model": MODEL, "input": "and now?", "previous_response_id": first["id"]}
        again = await client.post(RESPONSES, json=more)
        assert again.status_code == 200, again.text
    one, two = engine.seen
    assert [picture.data for picture in two.pictures] == [RED, BLUE]
    end = len(one.prompt) - one.prompt[::-1].index(tok.control[PLACE])
    assert two.seen[:end] == one.seen[:end]


#: A template that shows the pictures of the last message only.
FORGETFUL = """{%- for message in messages %}<|im_user|>{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content or [] %}{% if part.type != 'image' %}{{ part.text }}
{%- elif message == messages[-1] %}<|media_pad|>{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_assistant|>{% endif %}"""


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "messages[0].content[0]"),
        (RESPONSES, "input[0].content[0]"),
        (MESSAGES, "messages[0].content[0]"),
    ],
)
async def test_another_number_of_places_is_a_400_that_names_the_part(
    engine: ScriptedEngine, tok: Tokenizer, path: str, field: str
) -> None:
    fmt = chat_templates.of_source(FORGETFUL, ("<|im_user|>", "<|im_assistant|>", "<|im_end|>", PLACE))
    assert fmt.picture == PLACE
    shown = {CHAT: chat, RESPONSES: part, MESSAGES: block}[path]
    turns = [{"role": "user", "content": [shown(RED)]}, ANSWER, {"role": "user", "content": [shown(BLUE)]}]
    body = {"model": MODEL, "max_tokens": 9, "input" if path == RESPONSES else "messages": turns}
    async with in_process(engine, tok, fmt=fmt) as client:
        answer = await client.post(path, json=body if path == MESSAGES else body | {"dovetail": {"strict": "off"}})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{field}: the chat template writes 1 places for 2 pictures")
    assert not engine.seen
