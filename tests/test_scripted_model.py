"""The scripted model of `python -m clients` says what its scripts say, in each wire format, and obeys constraints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients import tasks
from clients.scripted import models
from clients.scripted.engine import ScriptedEngine
from dovetail.completion import Completion
from dovetail.gateway import Settings, create_app

TOOLS = [{"type": "function", "function": tasks.WEATHER_TOOL}]
Ask = Callable[..., Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=models.WIRES)
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Ask:
    """Sends a chat completion to the model of a wire format."""
    model = models.load(request.param, tmp_path)
    engine = ScriptedEngine(model, tmp_path / "log.jsonl")
    app = create_app(engine, model.format, model.tokenizer, Settings(served_model_name="scripted"))

    async def post(messages: list[Any], **fields: Any) -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
            body = {"model": "scripted", "messages": messages, **fields}
            answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    return post


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.anyio
async def test_a_greeting_is_answered(ask: Ask) -> None:
    assert (await ask([user(tasks.HELLO)]))["content"] == tasks.HELLO_ANSWER


@pytest.mark.anyio
async def test_an_answer_quotes_the_results_of_its_calls(ask: Ask) -> None:
    first = await ask([user(tasks.BOTH)], tools=TOOLS)
    arguments = [json.loads(call["function"]["arguments"]) for call in first["tool_calls"]]
    assert arguments == [{"city": "Paris"}, {"city": "Rome"}]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"result": result})}
        for call, result in zip(first["tool_calls"], ("one", "two"), strict=True)
    ]
    last = await ask([user(tasks.BOTH), first, *results], tools=TOOLS)
    assert last["content"] == "The result is one. The result is two."


@pytest.mark.anyio
async def test_a_schema_decides_between_content_and_a_call(ask: Ask) -> None:
    person = {"type": "function", "function": {"name": "Person", "parameters": tasks.PERSON_SCHEMA}}
    shape = {"type": "json_schema", "json_schema": {"name": "Person", "schema": tasks.PERSON_SCHEMA}}
    content = await ask([user(tasks.PERSON_REQUEST)], response_format=shape)
    assert json.loads(content["content"]) == tasks.PERSON
    called = await ask([user(tasks.PERSON_REQUEST)], tools=[person], tool_choice="required")
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == tasks.PERSON


@pytest.mark.anyio
async def test_the_last_known_sentence_counts(ask: Ask) -> None:
    history = [user(tasks.WEATHER), {"role": "assistant", "content": "Later."}, user(tasks.COUNT)]
    assert (await ask(history))["content"] == tasks.COUNT_ANSWER


#: Its parameters are not in the order of the script's call: Kimi's prompt shows required ones first.
RUN: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "run_command",
        "parameters": {
            "type": "object",
            "properties": {"timeout": {"type": "integer"}, "command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def grown(first: dict[str, Any], results: int) -> list[dict[str, Any]]:
    """A conversation whose call of `first` was made and answered that many times."""
    request = user(tasks.grow_request("7", "own"))
    call = first["tool_calls"][0]
    turns = []
    for number in range(results):
        again = {**call, "id": f"functions.run_command:{number}"}
        turns += [{**first, "tool_calls": [again]}, {"role": "tool", "tool_call_id": again["id"], "content": "1"}]
    return [request, *turns]


@pytest.mark.anyio
async def test_a_request_without_tools_is_no_turn_of_the_task(ask: Ask) -> None:
    assert (await ask([user("Title: " + tasks.edit_request("/a.txt", "own"))]))["content"] == "Done."


@pytest.mark.anyio
async def test_a_conversation_that_grew_and_is_shortened_ends(ask: Ask) -> None:
    first = await ask(grown({"tool_calls": [{}]}, 0), tools=[RUN])
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"command": "seq 7 4007"}
    for results in (1, 2):
        assert (await ask(grown(first, results), tools=[RUN]))["tool_calls"]
    assert (await ask(grown(first, 1), tools=[RUN]))["content"] == tasks.SHORTENED
    summary = [user(f"Summary: {tasks.SHORTENED} Go on.")]
    assert (await ask(summary, tools=[RUN]))["content"] == tasks.WENT_ON


def test_an_answer_that_is_stopped_is_recorded(tmp_path: Path) -> None:
    model = models.load("kimi_k25", tmp_path)
    engine = ScriptedEngine(model, tmp_path / "log.jsonl")
    turn = model.format.turn([user(tasks.SLOW)])

    async def stop_at_once() -> None:
        answers = engine.complete(Completion(tuple(turn.prompt.ids(model.tokenizer)), max_tokens=1000))
        await anext(answers)
        await answers.aclose()

    asyncio.run(stop_at_once())
    lines = [json.loads(line)["script"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == ["slow", "stopped"]


@pytest.mark.anyio
async def test_it_sees_the_pictures_that_reach_it(tmp_path: Path) -> None:
    model = models.load("kimi_k25", tmp_path)
    engine = ScriptedEngine(model, tmp_path / "log.jsonl")
    app = create_app(engine, model.format, model.tokenizer, Settings(served_model_name="scripted"))
    colors = ("blue", "red", "blue")
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{tasks.PICTURES[color]}"}}
        for color in colors
    ]
    body = {"model": "scripted", "messages": [user([{"type": "text", "text": tasks.SIGHT}, *parts])]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail") as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == tasks.sight_answer(colors)
