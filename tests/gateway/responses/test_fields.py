"""What each field of a response does, and what the response tells of it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dovetail.completion import Sampling
from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.apis.responses.exchange import ResponsesExchange
from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
from dovetail.gateway.http import response as http_response
from dovetail.gateway.store import sqlite
from dovetail.gateway.store.interface import StoreError
from dovetail.tokens import Tokenizer
from tests.gateway.responses.official import ITEMS, accumulated, check_body, check_event, check_order, events_of
from tests.gateway.responses.test_client import ASKS, FINE, PARIS, WEATHER, bytes_of, client_of
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, serving

pytestmark = pytest.mark.anyio

F: Any = {"type": "function", "name": "f"}
G: Any = {"type": "custom", "name": "g"}
NAMESPACE: Any = {"type": "namespace", "name": "ns", "description": "", "tools": [F, G]}


async def post(engine: ScriptedEngine, tok: Tokenizer, file: Path | None = None, /, **body: Any) -> httpx.Response:
    """`file`: in which responses are stored."""
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, response_store=file))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        return await client.post("/v1/responses", json={"model": MODEL, "input": "hi", **body})


async def answer(engine: ScriptedEngine, tok: Tokenizer, **body: Any) -> Any:
    response = await post(engine, tok, **body)
    assert response.status_code == 200, response.text
    check_body(response.json())
    return response.json()


def prompt(engine: ScriptedEngine, tok: Tokenizer) -> str:
    return bytes_of(tok, engine.seen[-1].prompt).decode()


@pytest.mark.parametrize(("strict", "shown"), ((None, True), (True, True), (False, False)))
async def test_the_format_is_told_with_all_its_fields(
    engine: ScriptedEngine, tok: Tokenizer, strict: bool | None, shown: bool
) -> None:
    engine.ids = ids_of(Message("{}"), tok)
    asked = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    body = await answer(engine, tok, text={"format": asked if strict is None else {**asked, "strict": strict}})
    assert body["text"] == {"format": {**asked, "description": None, "strict": shown}, "verbosity": "medium"}


async def test_what_was_asked_for_is_told(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    plain = await answer(engine, tok)
    echoed = {
        "temperature": 1.0,
        "top_p": 1.0,
        "truncation": "disabled",
        "tool_choice": "auto",
        "tools": [],
        "user": None,
    }
    echoed |= {"metadata": {}, "store": False, "background": False, "service_tier": "default", "instructions": None}
    echoed |= {
        "parallel_tool_calls": True,
        "max_output_tokens": None,
        "previous_response_id": None,
        "top_logprobs": 0,
    }
    echoed |= {
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
    }
    assert {field: plain[field] for field in echoed} == echoed
    assert plain["id"].startswith("resp_") and len(plain["id"]) == 37
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "max_output_tokens": 99,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "user": "me",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "truncation": "auto",
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "instructions": "Be brief.",
        "reasoning": {"effort": "high", "summary": "detailed"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    }
    engine.ids = ids_of(Message("{}"), tok)
    extra = {"service_tier": "flex", "seed": 3, "top_k": 7, "min_p": 0.5, "repetition_penalty": 1.5, "unknown": 1}
    body = await answer(engine, tok, **asked, **extra)
    assert {field: body[field] for field in asked} == asked
    assert body["service_tier"] == "default"
    assert engine.seen[-1].max_tokens == 99
    assert engine.seen[-1].sampling == Sampling(
        temperature=0.5, top_p=0.25, top_k=7, min_p=0.5, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, seed=3,
    )  # fmt: skip
    assert "system<|im_middle|>Be brief.<|im_end|>" in prompt(engine, tok)
    engine.ids = ids_of(Message("{}"), tok, thinking=False)
    body = await answer(engine, tok, reasoning={"effort": "none", "generate_summary": "auto"})
    assert body["reasoning"] == {"effort": "none", "summary": "auto"}
    assert prompt(engine, tok).endswith("<think></think>")


async def test_the_end_is_incomplete_at_the_limit(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ASKS, tok)
    cut = len(engine.ids) - 12
    body = await answer(engine, tok, tools=[WEATHER], max_output_tokens=cut)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["completed_at"] is None and body["usage"]["output_tokens"] == cut
    assert [item["status"] for item in body["output"]] == ["completed", "completed", "incomplete"]
    assert body["dovetail"]["defects"][0]["kind"] == "truncated_call"
    streamed = await post(engine, tok, tools=[WEATHER], max_output_tokens=cut, stream=True)
    assert events_of(streamed.text)[-1]["type"] == "response.incomplete"
    # A limit above the room is cut to the room.
    engine.ids = ids_of(Message("ok"), tok)
    wide = await post(engine, tok, max_output_tokens=10**6)
    assert wide.headers["x-dovetail-max-tokens"] == str(engine.seen[-1].max_tokens)
    assert engine.seen[-1].max_tokens == 4096 - len(engine.seen[-1].prompt)


async def test_a_prompt_above_the_context(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Whole: an error. Streamed: a stream that fails with the code from which agents learn to shorten the history."""
    long = "word " * 3_000
    whole = await post(engine, tok, input=long)
    assert whole.status_code == 400
    assert (whole.json()["error"]["code"], whole.json()["error"]["param"]) == ("context_length_exceeded", "input")
    streamed = await post(engine, tok, input=long, stream=True)
    assert streamed.status_code == 200
    created, _, failed = events_of(streamed.text)
    check_event(created)
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert failed["response"]["status"] == "failed" and not failed["response"]["store"]
    wrong = await post(engine, tok, input=[{"role": "robot"}], stream=True)
    assert wrong.status_code == 400
    assert not engine.seen


async def test_truncation_drops_the_oldest_items(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    items = [{"role": "user", "content": f"question {i} " + "word " * 400} for i in range(12)]
    response = await post(engine, tok, input=items, truncation="auto", instructions="Be kind.")
    assert response.status_code == 200
    gone = response.headers["x-dovetail-omitted"].split(", ")
    assert gone == [f"input[{i}]" for i in range(len(gone))] and 0 < len(gone) < 12
    shown = prompt(engine, tok)
    assert "Be kind." in shown
    assert [f"question {i} " in shown for i in range(12)] == [i >= len(gone) for i in range(12)]
    least = 4096 // 4
    assert engine.seen[-1].max_tokens >= least
    # One item fewer would not have fit, unless the answer is to be short.
    response = await post(engine, tok, input=items[len(gone) - 1 :], instructions="Be kind.")
    assert response.status_code == 400 or engine.seen[-1].max_tokens < least
    short = await post(engine, tok, input=items, truncation="auto", instructions="Be kind.", max_output_tokens=5)
    assert len(short.headers["x-dovetail-omitted"].split(", ")) < len(gone)
    alone = await post(engine, tok, input="word " * 5_000, truncation="auto")
    assert alone.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("sizes", [(1,), (3, 2), (100,)])
async def test_log_probabilities_of_the_text(engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...]) -> None:
    engine.sizes = sizes
    message = Message("It rains. 🌧️ Überall <|im_end|> < ", "Let me see…", (PARIS,))
    engine.ids = ids_of(message, tok)
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [WEATHER]}
    body = await answer(engine, tok, **fields)
    (part,) = body["output"][1]["content"]
    assert part["text"] == message.content
    spelled = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode()
    assert spelled == message.content, "the tokens are not those of the text"
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = events_of((await post(engine, tok, stream=True, **fields)).text)
    for event in events:
        check_event(event)
    items = check_order(events)
    assert items[1]["content"] == [part]
    sent = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert sent == part["logprobs"]
    assert (await answer(engine, tok, top_logprobs=1, tools=[WEATHER]))["output"][1]["content"][0]["logprobs"]
    assert not (await answer(engine, tok, tools=[WEATHER]))["output"][1]["content"][0]["logprobs"]


CHOICES: list[tuple[Any, Any, str]] = [
    ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}, ""),
    ({"type": "custom", "name": "g"}, {"type": "custom", "custom": {"name": "g"}}, ""),
    ({"type": "function", "name": "f", "namespace": "ns"}, {"type": "function", "function": {"name": "ns__f"}}, ""),
    ({"type": "function", "name": "ns__f"}, {"type": "function", "function": {"name": "ns__f"}}, ""),
    ({"type": "web_search_preview"}, "auto", "tool_choice:web_search_preview"),
    ("required", "required", ""),
    (
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "web_search"}, F, {"type": "namespace", "name": "ns"}],
        },
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [
                    {"type": "function", "function": {"name": "f"}},
                    {"type": "function", "function": {"name": "ns__f"}},
                    {"type": "custom", "custom": {"name": "ns__g"}},
                ],
            },
        },
        "tool_choice.tools[0]:web_search",
    ),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, "none", "tool_choice.tools[0]:mcp"),
]


@pytest.mark.parametrize(("choice", "chat", "omitted"), CHOICES)
def test_tool_choice(choice: Any, chat: Any, omitted: str) -> None:
    body = {"model": MODEL, "input": "hi", "tools": [F, G, NAMESPACE, {"type": "mcp"}], "tool_choice": choice}
    exchange = ResponsesExchange(json.dumps(body).encode(), None, 1_000)
    request = exchange.turn_request
    assert request.tool_choice == chat
    assert [tool[tool["type"]]["name"] for tool in request.tools] == ["f", "g", "ns__f", "ns__g"]
    assert request.omitted == ("tools[3]:mcp", *filter(None, [omitted]))
    shown = exchange.begun()
    assert shown.tool_choice == choice
    assert [tool["type"] for tool in shown.tools] == ["function", "custom", "namespace"]


async def test_the_extension_works_in_both_directions(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
    history = [{"role": "user", "content": "hi"}, call, result]
    response = await post(engine, tok, input=history, dovetail={"draft_tokens": 0, "return_token_ids": True})
    extension = response.json()["dovetail"]
    assert extension["token_ids"] == list(engine.ids) and extension["prompt_token_ids"] == list(engine.seen[-1].prompt)
    assert engine.seen[-1].draft_tokens == 0
    places = [(repair["kind"], repair["where"]) for repair in extension["repairs"]]
    assert places == [("call_id", "input[1].call_id"), ("result_id", "input[2].call_id")]
    assert response.json()["usage"]["speculation"]["drafted"]
    assert "x-dovetail-omitted" not in response.headers
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}
    tools = [{"type": "web_search"}, {**F, "parameters": schema}]
    response = await post(engine, tok, tools=tools, dovetail={"strict": "schema"})
    assert response.headers["x-dovetail-unenforced"] == "tools[1].parameters#/properties/a/not"


async def test_a_failing_engine(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ASKS, tok)

    async def fail(number: int) -> None:
        if number == 20:
            raise RuntimeError("a secret of the server")

    engine.before = fail
    streamed = await post(engine, tok, stream=True, tools=[WEATHER])
    events = events_of(streamed.text)
    assert events[-1]["type"] == "response.failed" and "secret" not in streamed.text
    typed = [check_event(event) for event in events]
    assert accumulated(typed)[1] is None
    whole = await post(engine, tok, tools=[WEATHER])
    assert whole.status_code == 500 and "secret" not in whole.text


async def test_a_conversation_by_ids(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.scripts = [ids_of(ASKS, tok), ids_of(FINE, tok), ids_of(Message("Bye."), tok)]
    result: Any = {"type": "function_call_output", "call_id": PARIS.id, "output": "rain"}
    async with client_of(engine, tok, tmp_path / "r.db") as client:
        first = await client.responses.create(model=MODEL, input="Rome?", tools=[WEATHER], instructions="Old rules.")
        second = await client.responses.create(model=MODEL, input=[result], previous_response_id=first.id)
        third = await client.responses.create(
            model=MODEL, input="Bye", previous_response_id=second.id, instructions="New rules."
        )
        assert third.output_text == "Bye."
        shown = prompt(engine, tok)
        # Instructions are those of the last request; all else is there once, in its order.
        assert "Old rules." not in shown
        order = ["New rules.", "Rome?", "I will look.", PARIS.arguments, "rain", "It rains.", "Bye"]
        places = [shown.index(text) for text in order]
        assert places == sorted(places)
        assert {shown.count(text) for text in ("Rome?", PARIS.arguments, "It rains.")} == {1}
        page = await client.responses.input_items.list(second.id)
        assert page.data[0].type == "function_call_output"
        # A request may only go on, and refer to items of any response.
        engine.scripts = [ids_of(Message("Again."), tok)] * 2
        again = await client.responses.create(model=MODEL, previous_response_id=second.id)
        assert again.output_text == "Again." and (await client.responses.input_items.list(again.id)).data == []
        reference: Any = [{"type": "item_reference", "id": third.output[0].id}, {"role": "user", "content": "Hm?"}]
        referring = await client.responses.create(model=MODEL, input=reference)
        assert "Bye." in prompt(engine, tok)
        listed = (await client.responses.input_items.list(referring.id)).data
        assert listed[1].id == third.output[0].id


def test_what_a_request_loads_is_bounded(tmp_path: Path) -> None:
    """A long conversation, a long response, and one item again and again."""
    store = ResponseStore(tmp_path / "r.db")
    for name, previous in (("a", None), ("b", f"resp_{'a' * 32}")):
        item = {"type": "message", "id": f"msg_{name * 32}_in0", "role": "user", "content": "x" * 2_000}
        text = json.dumps([item]).encode()
        store.put(StoredResponse(f"resp_{name * 32}", previous, int(time.time()), text, b'{"output": []}', ""))
    reference = {"type": "item_reference", "id": f"msg_{'a' * 32}_in0"}

    def messages(room: int, **fields: Any) -> int:
        body = json.dumps({"model": MODEL, "input": "hi", **fields}).encode()
        return len(ResponsesExchange(body, store, room).turn_request.messages)

    assert messages(5_000, previous_response_id=f"resp_{'b' * 32}") == 3
    assert messages(5_000, input=[reference]) == 1
    assert messages(50_000, input=[reference] * 20) == 20
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (4_100, "previous_response_id", {"previous_response_id": f"resp_{'b' * 32}"}),
        (1_000, "input", {"input": [reference]}),
        (5_000, "input", {"input": [reference] * 2}),
    ]
    for room, param, fields in cases:
        with pytest.raises(InvalidRequest, match="too long together") as long:
            messages(room, **fields)
        assert long.value.param == param


async def test_input_items_are_listed_in_pages(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    items = [{"role": "user", "content": f"{i}"} for i in range(3)] + [
        {"role": "user", "content": None, "type": None},
        {"role": "user"},
        {"role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "mine"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "reasoning", "summary": []},
    ]
    async with client_of(engine, tok, tmp_path / "r.db") as client:
        stored = await client.responses.create(model=MODEL, input=items)  # type: ignore[arg-type]
        listed = [item async for item in client.responses.input_items.list(stored.id, limit=2, order="asc")]
        raw = await client.get(f"/responses/{stored.id}/input_items?limit=100", cast_to=httpx.Response)
    page = raw.json()
    ITEMS.validate_json(raw.content, strict=True)
    assert [item.id for item in listed] == [item["id"] for item in page["data"]][::-1]
    assert not page["has_more"] and (page["first_id"], page["last_id"]) == (
        page["data"][0]["id"],
        page["data"][-1]["id"],
    )
    assert len({item["id"] for item in page["data"]}) == 9 and page["data"][2]["id"] == "mine"


async def test_responses_of_another_key_do_not_exist(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with client_of(engine, tok, tmp_path / "r.db", api_key="a") as ours:
        stored = await ours.responses.create(model=MODEL, input="hi")
        async with client_of(engine, tok, tmp_path / "r.db", api_key="b") as theirs:
            for call in (
                theirs.responses.retrieve(stored.id),
                theirs.responses.delete(stored.id),
                theirs.responses.cancel(stored.id),
                theirs.responses.input_items.list(stored.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
            with pytest.raises(openai.BadRequestError):
                await theirs.responses.create(model=MODEL, input="hi", previous_response_id=stored.id)
        assert await ours.responses.retrieve(stored.id) == stored
        with pytest.raises(openai.BadRequestError) as refused:
            await ours.get(f"/responses/{stored.id}?stream=true", cast_to=httpx.Response)
        assert refused.value.param == "stream"


async def test_a_server_without_a_store(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    response = await post(engine, tok, store=True)
    assert response.headers["x-dovetail-omitted"] == "store"
    assert response.json()["store"] is False
    async with client_of(engine, tok) as client:
        for call in (client.responses.retrieve("resp_1"), client.responses.delete("resp_1")):
            with pytest.raises(openai.NotFoundError, match="this server stores no responses"):
                await call
        with pytest.raises(openai.BadRequestError, match="this server stores no responses"):
            await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")


async def test_a_failing_store_costs_no_answer(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    (tmp_path / "folder").mkdir()
    body = (await post(engine, tok, store=True)).json()
    response = await post(engine, tok, tmp_path / "folder")
    assert response.json()["status"] == "completed" and response.json()["store"] is False
    created, *_, completed = events_of((await post(engine, tok, tmp_path / "folder", stream=True)).text)
    assert created["response"]["store"] and not completed["response"]["store"]
    async with client_of(engine, tok, tmp_path / "folder") as client:
        for call in (
            client.responses.retrieve(body["id"]),
            client.responses.delete(body["id"]),
            client.responses.create(model=MODEL, input="hi", previous_response_id=body["id"]),
        ):
            with pytest.raises(openai.InternalServerError) as failed:
                await call
            assert str(tmp_path) not in failed.value.message
    with pytest.raises(StoreError):
        ResponseStore(tmp_path / "folder").get("resp_1")


async def test_a_locked_store_costs_no_answer_and_keeps_nobody_waiting(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has to wait for it, others go on, and what is stored is read."""
    engine.ids = ids_of(Message("ok"), tok)
    path, waiting, go = tmp_path / "r.db", threading.Event(), threading.Event()
    put = ResponseStore.put

    def slow(self: ResponseStore, response: StoredResponse) -> None:
        waiting.set()
        assert go.wait(30)
        put(self, response)

    settings = Settings(served_model_name=MODEL, response_store=path)
    body = {"model": MODEL, "input": "hi"}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "dovetail": {"record": True}}
    record = {"store": False, "include": ["reasoning.encrypted_content"]}
    async with in_process(engine, tok, settings) as client:
        earlier = (await client.post("/v1/responses", json=body)).json()
        monkeypatch.setattr(sqlite, "_LOCK_TIMEOUT", 0.1)
        monkeypatch.setattr(ResponseStore, "put", slow)
        stored = [asyncio.create_task(client.post("/v1/responses", json=body)) for _ in range(12)]
        async with asyncio.timeout(30):
            while not waiting.is_set():
                await asyncio.sleep(0.001)
            for api, fields in (
                ("/v1/chat/completions", chat),
                ("/v1/responses", {**body, **record}),
                ("/v1/responses", {**body, **record, "previous_response_id": earlier["id"]}),
            ):
                assert (await client.post(api, json=fields)).status_code == 200
            assert (await client.get(f"/v1/responses/{earlier['id']}")).status_code == 200
        assert not any(task.done() for task in stored)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        go.set()
        answers = await asyncio.gather(*stored)
        assert {(each.status_code, each.json()["status"], each.json()["store"]) for each in answers} == {
            (200, "completed", False)
        }
        deleted = await client.delete(f"/v1/responses/{earlier['id']}")
        assert deleted.status_code == 503 and deleted.headers["retry-after"]
        other.execute("ROLLBACK")
        other.close()
        assert (await client.post("/v1/responses", json=body)).json()["store"] is True
        assert (await client.delete(f"/v1/responses/{earlier['id']}")).status_code == 200


LONG = "x" * 200_000


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({"user": LONG}, False),
        ({"prompt_cache_key": LONG}, False),
        ({"input": [{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "ws", "x": LONG}]}, False),
        ({"input": [{"role": "user", "content": "hi"}, {"type": "reasoning", "encrypted_content": LONG}]}, False),
        ({"user": LONG[:100_000]}, True),
        ({"input": "the user asks " * 600, "user": LONG}, True),
    ],
)
async def test_what_is_stored_is_bounded_by_what_the_model_read(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, fields: dict[str, Any], stored: bool
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    response = await post(engine, tok, tmp_path / "r.db", **fields)
    assert response.status_code == 200 and response.json()["store"] is stored
    names = [file.name for file in tmp_path.iterdir()]
    assert ("r.db" in names) is stored


async def test_what_is_not_to_be_stored_leaves_nothing_on_the_disk(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    response = await post(engine, tok, tmp_path / "r.db", store=False)
    assert response.json()["store"] is False and not [*tmp_path.iterdir()]
    response = await post(engine, tok, tmp_path / "r.db")
    assert response.json()["store"] is True and [*tmp_path.iterdir()]


def test_an_answer_without_a_record_goes_on_from_its_text(tmp_path: Path) -> None:
    """Very long answers have none."""
    store = ResponseStore(tmp_path / "r.db")
    name = "a" * 32
    message = {"type": "message", "id": f"msg_{name}_0", "role": "assistant", "content": [{"type": "output_text"}]}
    message["content"][0]["text"] = "It rains."  # type: ignore[index]
    body = json.dumps({"output": [message]}).encode()
    store.put(StoredResponse(f"resp_{name}", None, int(time.time()), b'[{"role": "user", "content": "hi"}]', body, ""))
    request = {"model": MODEL, "previous_response_id": f"resp_{name}", "input": "And now?"}
    exchange = ResponsesExchange(json.dumps(request).encode(), store, 10_000)
    assert exchange.turn_request.messages == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "And now?"},
    ]


async def test_a_silent_engine_gets_comments(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no proxy takes the connection for dead. The official client passes over them."""
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.001)
    engine.ids, engine.sizes = ids_of(Message("Done."), tok), (3, 100)
    pinged = [asyncio.Event(), asyncio.Event()]

    async def wait(batch: int) -> None:
        await pinged[batch].wait()

    engine.before = wait
    lines: list[str] = []
    comment = http_response.COMMENT.decode().strip()
    async with serving(engine, tok) as url, httpx.AsyncClient() as client:
        body = {"model": MODEL, "input": "hi", "stream": True}
        async with client.stream("POST", f"{url}/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if line == comment and engine.sent < len(pinged):
                    pinged[engine.sent].set()
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as official,
            official.responses.stream(model=MODEL, input="hi") as stream,
        ):
            final = await stream.get_final_response()
    assert final.output_text == "Done."
    places = [place for place, line in enumerate(lines) if line == comment]
    assert lines[0] == "event: response.created" and len(places) >= 2
    assert check_order(events_of("\n".join(lines).replace(f"{comment}\n\n", "") + "\n"))
