"""What requests need before the engine: clients take turns, its cost counts, too much is refused first."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.apis import chat_request, messages_request
from dovetail.gateway.apis.responses import request as responses_request
from dovetail.gateway.limits.bodies import check_count
from dovetail.gateway.limits.queue import FairThreads
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TURN = {"role": "user", "content": "a"}
PART = {"type": "text", "text": "a"}


class Gate:
    """Work that waits in its thread until it is let through, and the order in which works begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._doors: dict[str, threading.Event] = {}

    def work(self, name: str) -> str:
        door = self._doors[name] = threading.Event()
        self.begun.append(name)
        assert door.wait(30)
        return name

    async def open(self, name: str) -> None:
        await self.until(name)
        self._doors[name].set()

    async def until(self, name: str) -> None:
        async with asyncio.timeout(30):
            while name not in self._doors:
                await asyncio.sleep(0.001)


async def test_one_client_cannot_have_every_thread() -> None:
    threads, gate = FairThreads(3, "test"), Gate()
    heavy = [asyncio.create_task(threads.run("a", lambda i=i: gate.work(f"a{i}"))) for i in range(4)]
    await gate.until("a1")
    other = asyncio.create_task(threads.run("b", lambda: gate.work("b0")))
    await gate.open("b0")
    assert await other == "b0" and gate.begun == ["a0", "a1", "b0"]
    for i in range(4):
        await gate.open(f"a{i}")
    assert await asyncio.gather(*heavy) == ["a0", "a1", "a2", "a3"]


async def test_the_next_is_the_client_with_the_fewest_threads_and_then_with_the_least_time() -> None:
    threads, gate = FairThreads(2, "test"), Gate()

    def spend() -> None:
        sum(range(200_000))

    await threads.run("busy", spend)
    names = ["x", "busy", "busy2", "idle", "x2", "y"]
    clients = {"x": "x", "x2": "x", "busy": "busy", "busy2": "busy", "idle": "idle", "y": "y"}
    tasks = [asyncio.create_task(threads.run(clients[name], lambda name=name: gate.work(name))) for name in names]
    await gate.open("busy")  # x and busy have the threads; then comes who has had none
    await gate.open("idle")
    await gate.open("y")
    await gate.open("x")
    await asyncio.gather(*(gate.open(name) for name in ("busy2", "x2")))
    await asyncio.gather(*tasks)
    assert gate.begun[:4] == ["x", "busy", "idle", "y"]


async def test_work_that_nobody_waits_for_is_dropped_and_what_has_begun_counts_to_its_end() -> None:
    threads, gate, took = FairThreads(2, "test"), Gate(), list[float]()
    first, second = (
        asyncio.create_task(threads.run("a", lambda name=name: gate.work(name), took.append)) for name in ("1", "2")
    )
    await gate.until("1")
    first.cancel(), second.cancel()
    third = asyncio.create_task(threads.run("a", lambda: gate.work("3"), took.append))
    await asyncio.sleep(0.02)
    assert gate.begun == ["1"], "the first one still has the client's thread"
    await gate.open("1")
    await gate.open("3")
    assert await third == "3" and gate.begun == ["1", "3"] and len(took) == 2


async def test_errors_of_the_work_reach_who_waits() -> None:
    threads = FairThreads(2, "test")
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 // 0)
    assert await threads.run("a", lambda: 1) == 1


async def test_a_request_overtakes_another_keys_slow_ones(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever APIs they come."""
    engine.ids = ids_of(Message(content="ok"), tok)
    go, prepare = threading.Event(), TurnRunner.prepare

    def slow(self: TurnRunner, request: Any, *arguments: Any, **named: Any) -> PreparedTurn:
        if "slow" in str(request.messages):
            assert go.wait(30)
        return prepare(self, request, *arguments, **named)

    monkeypatch.setattr(TurnRunner, "prepare", slow)
    settings = keyed(named("a"), named("b"))
    message = [{"role": "user", "content": "slow"}]
    async with in_process(engine, tok, settings) as client:

        async def post(path: str, key: str, **body: Any) -> int:
            answer = await client.post(path, json={"model": MODEL, "max_tokens": 2, **body}, headers=bearer(key))
            return answer.status_code

        slow_ones = [asyncio.create_task(post(CHAT, "a", messages=message)) for _ in range(3)]
        slow_ones += [asyncio.create_task(post(MESSAGES, "a", messages=message)) for _ in range(3)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            assert await post(CHAT, "b", messages=[TURN]) == 200
        assert not any(task.done() for task in slow_ones)
        go.set()
        assert await asyncio.gather(*slow_ones) == [200] * 6
        shown = (await client.get("/metrics")).text
    seconds = {
        line.split('"')[1]: float(line.split()[-1]) for line in shown.splitlines() if "prepare_seconds_total{" in line
    }
    assert seconds["a"] > 0 and seconds["b"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [TURN] * 11}),
        (CHAT, {"messages": [{"role": "user", "content": [PART] * 10}]}),
        (CHAT, {"messages": [TURN, {"role": "assistant", "tool_calls": [{}] * 9}]}),
        (CHAT, {"messages": [{}] * 11, "model": "another"}),
        (CHAT, {"messages": [TURN], "tools": [{}] * 10}),
        (f"{CHAT}/render", {"messages": [TURN] * 11}),
        (MESSAGES, {"messages": [TURN] * 11, "max_tokens": 5}),
        (f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": [PART] * 10}]}),
        (RESPONSES, {"input": [TURN] * 11}),
        (RESPONSES, {"input": [{"type": "message", "role": "user", "content": [PART] * 10}]}),
        ("/tokenize", {"messages": [TURN] * 11}),
    ],
)
async def test_too_many_messages_are_refused_before_anything_is_made_of_them(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the body was decoded")

    for module in (chat_request, messages_request, responses_request):
        monkeypatch.setattr(module, "decode_body", never)
    async with in_process(engine, tok, Settings(served_model_name=MODEL, max_messages=10)) as client:
        refused = await client.post(path, json={"model": MODEL, **body})
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400 and "more than 10 messages" in message and "--max-messages" in message


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [TURN] * 5 + [{"role": "user", "content": [PART] * 4}]},
        {"messages": [TURN] * 4, "tools": [{"type": "function", "function": {"parameters": {}}}] * 3},
        {"messages": [{"role": "user", "content": "{" * 100}]},
        {"messages": [{"role": "user", "content": '[[{"\\' * 30}] * 10},
        {"messages": [TURN], "response_format": {"a": {"b": {"c": {"d": [{}] * 20}}}}},
        {"messages": "{" * 20},
        {"messages": {"{" * 20: 1}},
    ],
)
def test_what_is_no_message_is_not_counted(body: Any) -> None:
    check_count(json.dumps(body).encode(), 10)


@given(st.lists(st.lists(st.text('{}[]"\\a', max_size=6), max_size=3), max_size=6), st.lists(st.text("[{"), max_size=4))
def test_the_count_is_exact(contents: list[list[str]], tools: list[str]) -> None:
    messages = [{"content": [{"text": text} for text in content]} for content in contents]
    body = json.dumps({"messages": messages, "tools": [{"name": name} for name in tools]}).encode()
    number = len(contents) + sum(map(len, contents)) + len(tools)
    check_count(body, number)
    if number:
        with pytest.raises(InvalidRequest, match=f"more than {number - 1} messages"):
            check_count(body, number - 1)


@pytest.mark.parametrize("body", [b"{" * 20, b"]" * 9 + b"{" * 20, b'{"' + b"{" * 20])
def test_a_body_that_is_no_json_is_left_to_its_decoder(body: bytes) -> None:
    check_count(body, 10)


async def test_a_prompt_that_is_refused_as_too_long_costs_its_tokens(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """At most those of the whole context. A refusal before there is a prompt costs none."""
    settings = keyed(named("a", tokens_per_minute=100_000))
    long = [{"role": "user", "content": "the user asks " * 3000}]
    async with in_process(engine, tok, settings) as client:
        for body, spent in (({"messages": [TURN], "top_p": 9}, 0), ({"messages": long}, engine.info.context)):
            answer = await client.post(CHAT, json={"model": MODEL, **body}, headers=bearer("a"))
            assert answer.status_code == 400
            assert answer.headers["x-ratelimit-remaining-tokens"] == str(100_000 - spent)
