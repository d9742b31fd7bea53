"""Compaction: the model summarizes, the client keeps a sealed summary, and the next prompt has it in words."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.records.sealed_text import SealedText
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.responses.official import events_of
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, serving

pytestmark = pytest.mark.anyio

RESPONSES, COMPACT, COUNT = "/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"
TRIGGER = {"type": "compaction_trigger"}
SUMMARY = "The user wants the typo in notes.txt fixed. Nothing is done yet."
WROTE = Message(SUMMARY, "I sum up.")
F = {"type": "function", "name": "f", "parameters": {"type": "object"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "developer", "content": "You edit files."},
    {"role": "user", "content": [{"type": "input_text", "text": "Fix the typo."}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "teh"},
]


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(WROTE, tok)


def settings(**changes: Any) -> Settings:
    return Settings(served_model_name=MODEL, record_key=b"k" * 32, **changes)


async def posted(
    engine: ScriptedEngine, tok: Tokenizer, path: str, server: Settings, headers: Mapping[str, str] = {}, **body: Any
) -> httpx.Response:
    async with in_process(engine, tok, server) as client:
        return await client.post(path, json={"model": MODEL, **body}, headers=headers)


def prompt_of(engine: ScriptedEngine, tok: Tokenizer) -> str:
    return tok.decode(engine.seen[-1].prompt)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trigger_is_answered_with_one_item(engine: ScriptedEngine, tok: Tokenizer, stream: bool) -> None:
    """Of the kind that codex waits for, and which it sends back."""
    body = {"input": [*HISTORY, TRIGGER], "tools": [F], "store": False, "stream": stream}
    response = await posted(engine, tok, RESPONSES, settings(), **body)
    assert response.status_code == 200
    if stream:
        events = events_of(response.text)
        assert [event["type"].removeprefix("response.") for event in events] == [
            *("created", "in_progress", "output_item.added", "output_item.done", "completed")
        ]
        assert [event["sequence_number"] for event in events] == list(range(5))
        last = events[-1]["response"]
        assert last["output"] == [events[3]["item"]]
    else:
        last = response.json()
    (item,) = last["output"]
    assert (item["type"], last["status"]) == ("compaction", "completed")
    assert item["id"].startswith("cmp_") and SUMMARY not in base64.b64decode(item["encrypted_content"]).decode(
        "latin-1"
    )
    assert last["usage"]["output_tokens"] == len(engine.ids)
    # The prompt begins like the turn's, and a call is not what is asked for.
    turn = await posted(engine, tok, RESPONSES, settings(), input=HISTORY, tools=[F], store=False)
    assert turn.status_code == 200
    asked, before = (tok.decode(seen.prompt) for seen in engine.seen)
    assert asked.startswith(before[: before.rindex("<|im_assistant|>")]) and "Write the summary." in asked
    back = [HISTORY[1], item, {"role": "user", "content": "Go on."}]
    assert (await posted(engine, tok, RESPONSES, settings(), input=back, store=False)).status_code == 200
    assert SUMMARY in prompt_of(engine, tok)


async def test_compact_returns_the_users_messages_and_a_summary(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    app = create_app(engine, KimiK25(), tok, settings(response_store=tmp_path / "r.db"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        client = openai.AsyncOpenAI(base_url="http://dovetail/v1", api_key="any", max_retries=0, http_client=http)
        first = await client.responses.create(model=MODEL, input="Hello.")
        compacted = await client.responses.compact(
            model=MODEL, previous_response_id=first.id, instructions="Be brief.", input=HISTORY
        )
        assert (compacted.object, compacted.usage.output_tokens) == ("response.compaction", len(engine.ids))
        shown = [(item.type, getattr(item, "role", None)) for item in compacted.output]
        assert shown == [("message", "user"), ("message", "user"), ("compaction", None)]
        assert "Be brief." in prompt_of(engine, tok) and "Hello." in prompt_of(engine, tok)
        items = [item.model_dump(warnings=False) for item in compacted.output]
        await client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "Go on."}])
        prompt = prompt_of(engine, tok)
        assert prompt.index("Hello.") < prompt.index("Fix the typo.") < prompt.index(SUMMARY) < prompt.index("Go on.")
        assert "teh" not in prompt
        with pytest.raises(openai.NotFoundError):  # it is not stored
            await client.responses.retrieve(compacted.id)
        text = await client.responses.compact(model=MODEL, input="Hello.")
        assert [item.type for item in text.output] == ["message", "compaction"]
        streamed = await http.post("http://dovetail" + COMPACT, json={"model": MODEL, "input": "a", "stream": True})
        assert streamed.json()["object"] == "response.compaction"


async def test_a_stored_compaction_replaces_what_came_before(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    async with in_process(engine, tok, settings(response_store=tmp_path / "r.db")) as client:

        async def go_on(**body: Any) -> str:
            response = await client.post(RESPONSES, json={"model": MODEL, **body})
            assert response.status_code == 200, response.text
            name: str = response.json()["id"]
            return name

        engine.scripts = [ids_of(Message("First answer."), tok)]
        name = await go_on(input="First question.")
        name = await go_on(input=[*HISTORY, TRIGGER], previous_response_id=name, tools=[F])
        assert "First answer." in prompt_of(engine, tok)
        name = await go_on(input="Go on.", previous_response_id=name)
        name = await go_on(input="And on.", previous_response_id=name)
    prompt = prompt_of(engine, tok)
    assert prompt.count(SUMMARY) == 2  # the compaction's, and an answer of the same words
    for shown in ("First question.", "Fix the typo.", "Go on.", "And on."):
        assert shown in prompt
    for replaced in ("First answer.", "teh", "You edit files.", "Write the summary."):
        assert replaced not in prompt


async def test_no_other_tenants_summary_is_read(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """By the names of keys, and by the server's secret. What cannot be read is left out, and the model is told."""
    tenants = keyed(named("a"), named("b"), record_key=b"k" * 32)
    made = await posted(engine, tok, RESPONSES, tenants, bearer("a"), input=[*HISTORY, TRIGGER], tools=[F])
    (item,) = made.json()["output"]
    forged = {**item, "encrypted_content": base64.b64encode(b"\x01" + bytes(16) + SUMMARY.encode()).decode()}
    for server, headers, sent in (
        (tenants, bearer("b"), item),
        (settings(), {}, item),
        (keyed(named("a"), record_key=b"another secret of 32 bytes or so"), bearer("a"), item),
        (tenants, bearer("a"), forged),
        (tenants, bearer("a"), {**item, "encrypted_content": "gAAAAABo of another server"}),
        (tenants, bearer("a"), {"type": "context_compaction"}),
    ):
        response = await posted(
            engine, tok, RESPONSES, server, headers, input=[sent, {"role": "user", "content": "And?"}]
        )
        assert response.status_code == 200
        assert response.headers["x-dovetail-omitted"].startswith(f"input[0]:{sent['type']}")
        prompt = prompt_of(engine, tok)
        assert SUMMARY not in prompt and "cannot read it" in prompt and "And?" in prompt
    for kind in ("compaction", "compaction_summary", "context_compaction"):
        await posted(engine, tok, RESPONSES, tenants, bearer("a"), input=[{**item, "type": kind}])
        assert SUMMARY in prompt_of(engine, tok)


@given(text=st.text(max_size=40), other=st.text(max_size=40), place=st.integers(0, 2**20), bit=st.integers(0, 7))
def test_a_seal_is_opened_by_its_maker_alone(text: str, other: str, place: int, bit: int) -> None:
    ours = SealedText(b"key", "a")
    sealed = ours.seal(text)
    assert ours.open(sealed) == SealedText(b"key", "a").open(sealed) == text
    assert SealedText(b"key", "b").open(sealed) is None and SealedText(b"yek", "a").open(sealed) is None
    assert (ours.seal(other) == sealed) == (other == text)
    body = bytearray(base64.b64decode(sealed))
    body[place % len(body)] ^= 1 << bit
    assert ours.open(base64.b64encode(body).decode()) is None
    assert ours.open(base64.b64encode(body[:-1]).decode()) is None
    assert ours.open(other) is None


@pytest.mark.parametrize("path", [RESPONSES, COMPACT])
async def test_a_model_that_writes_no_summary(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    engine.ids = ids_of(Message("", "I only think."), tok)
    silent = settings(allow_silent=True)
    failed = await posted(engine, tok, path, silent, input=[*HISTORY, TRIGGER], tools=[F])
    assert failed.status_code == 500 and "no summary" in failed.json()["error"]["message"]
    if path == RESPONSES:
        streamed = await posted(engine, tok, path, silent, input=[*HISTORY, TRIGGER], tools=[F], stream=True)
        last = events_of(streamed.text)[-1]
        assert last["type"] == "response.failed" and last["response"]["output"] == []


async def test_a_conversation_that_is_full_is_compacted_too(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """The oldest messages give way, and a summary that meets its limit is used as far as it goes."""
    engine = ScriptedEngine(tok, context=2048)
    engine.ids = ids_of(Message("word " * 1000, "I sum up."), tok)
    long = [{"role": "user", "content": f"{i} " + "word " * 100} for i in range(12)]
    for server in (settings(), settings(strict_max_tokens=True)):
        response = await posted(engine, tok, RESPONSES, server, input=[*long, TRIGGER])
        assert response.status_code == 200 and response.json()["status"] == "completed"
        assert response.headers["x-dovetail-omitted"].startswith("input[0]")
        assert engine.seen[-1].max_tokens >= 512
    refused = await posted(engine, tok, COMPACT, settings(), input=[{"role": "user", "content": "word " * 1500}])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RESPONSES, {"input": [TRIGGER]}, "input"),
        (COMPACT, {}, "input"),
        (COMPACT, {"input": "a", "model": "another"}, "model"),
        (COMPACT, {"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
        (RESPONSES, {"input": [{"type": "compaction", "encrypted_content": 3}]}, "input[0].encrypted_content"),
        (COUNT, {}, "input"),
        (COUNT, {"input": "a", "model": "another"}, "model"),
        (COUNT, {"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
        (COUNT, {"input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_an_error_names_the_field(
    engine: ScriptedEngine, tok: Tokenizer, path: str, body: dict[str, Any], param: str
) -> None:
    refused = await posted(engine, tok, path, settings(), **body)
    assert refused.json()["error"]["param"] == param and refused.status_code in (400, 404)
    assert not engine.seen


async def test_a_trigger_elsewhere_is_left_out(engine: ScriptedEngine, tok: Tokenizer) -> None:
    response = await posted(engine, tok, RESPONSES, settings(), input=[TRIGGER, *HISTORY], tools=[F])
    assert response.headers["x-dovetail-omitted"].startswith("input[0]:compaction_trigger")
    assert [item["type"] for item in response.json()["output"]] == ["reasoning", "message"]


async def test_input_tokens_are_those_of_the_prompt(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    app = create_app(engine, KimiK25(), tok, settings(response_store=tmp_path / "r.db"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        client = openai.AsyncOpenAI(base_url="http://dovetail/v1", api_key="any", max_retries=0, http_client=http)
        request: dict[str, Any] = {"input": HISTORY, "instructions": "Be brief.", "tools": [F]}
        first = await client.responses.create(model=MODEL, **request)
        counted = await client.responses.input_tokens.count(model=MODEL, **request)
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", len(engine.seen[0].prompt))
        second = {"input": "Go on.", "previous_response_id": first.id}
        await client.responses.create(model=MODEL, **second)
        assert (await client.responses.input_tokens.count(**second)).input_tokens == len(engine.seen[1].prompt)
    assert len(engine.seen) == 2


async def test_a_key_counts_its_own_history_only(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    tenants = keyed(named("a"), named("b"), response_store=tmp_path / "r.db")
    async with in_process(engine, tok, tenants) as client:
        made = await client.post(RESPONSES, json={"model": MODEL, "input": "a"}, headers=bearer("a"))
        body = {"input": "b", "previous_response_id": made.json()["id"]}
        assert (await client.post(COUNT, json=body, headers=bearer("a"))).status_code == 200
        assert (await client.post(COUNT, json=body, headers=bearer("b"))).status_code == 400


async def test_a_websocket_is_told_to_use_http(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """On a real connection, as codex asks: after 426 it goes on over HTTP at once."""
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "jWGC8pT8sMfV4MelDEZmwA==",
    }
    async with serving(engine, tok) as url, httpx.AsyncClient(base_url=url) as client:
        refused = await client.get(RESPONSES, headers=headers)
        assert refused.status_code == 426 and "use HTTP" in refused.json()["error"]["message"]
        plain = await client.get(RESPONSES)
        assert (plain.status_code, plain.headers["allow"]) == (405, "POST")
        other = await client.get("/v1/no_such_path", headers=headers)
        assert other.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/responses/resp_1", "DELETE, GET"),
        ("PUT", COMPACT, "DELETE, GET, POST"),
        ("DELETE", RESPONSES, "POST"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/ping", "GET, POST"),
    ],
)
async def test_a_wrong_method_is_told_what_allow_says(
    engine: ScriptedEngine, tok: Tokenizer, method: str, path: str, allow: str
) -> None:
    async with in_process(engine, tok) as client:
        refused = await client.request(method, path, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, allow)
    message = refused.json()["error"]["message"]
    assert f"is served for {' and '.join(allow.split(', '))}, not for {method}" in message


def test_a_sealed_summary_is_small(tok: Tokenizer) -> None:
    sealed = SealedText(b"key", "a").seal(SUMMARY)
    assert len(sealed) <= (len(SUMMARY) + 17) * 4 / 3 + 4 and json.dumps(sealed) == f'"{sealed}"'
