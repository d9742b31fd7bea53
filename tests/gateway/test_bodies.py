"""The memory of bodies: bounded over all requests, and a body that does not end keeps nobody out."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from dovetail.errors import EngineBusy, PayloadTooLarge
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.bodies import Bodies
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process
from tests.gateway.test_pictures_seen import RED, url

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}
PATHS = ["/v1/chat/completions", "/v1/responses", "/tokenize"]


class Sender:
    """A request whose body is sent in parts, one at a time."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent = b""
        headers = [(b"content-type", b"application/json")]
        self.request = Request({"type": "http", "headers": headers}, self._messages.get)

    async def send(self, part: bytes, *, last: bool = False) -> None:
        self.sent += part
        self._messages.put_nowait({"type": "http.request", "body": part, "more_body": not last})
        for _ in range(5):  # the reader takes it
            await asyncio.sleep(0)


async def whole(bodies: Bodies, sender: Sender, done: asyncio.Event) -> bytes:
    """The body, whose memory counts until `done`."""
    async with bodies.read(sender.request) as body:
        await done.wait()
        return body.take()


async def begun(bodies: Bodies, sender: Sender, done: asyncio.Event) -> asyncio.Task[bytes]:
    task = asyncio.create_task(whole(bodies, sender, done))
    await asyncio.sleep(0)
    return task


async def test_a_new_body_takes_the_place_of_the_one_that_has_been_arriving_for_longest() -> None:
    bodies, done = Bodies(100, 250), asyncio.Event()
    senders = [Sender() for _ in range(4)]
    tasks = [await begun(bodies, sender, done) for sender in senders]
    await senders[0].send(b"a" * 100, last=True)  # whole, and held
    await senders[1].send(b"b" * 100)
    await senders[2].send(b"c" * 50)
    assert not any(task.done() for task in tasks)
    await senders[3].send(b"d")
    with pytest.raises(EngineBusy, match="try again later"):
        await tasks[1]
    await senders[3].send(b"d" * 99)
    await senders[2].send(b"c")
    with pytest.raises(EngineBusy):  # what is whole is held, and only these two could make room
        await tasks[2]
    await senders[3].send(b"", last=True)
    done.set()
    assert [await tasks[0], await tasks[3]] == [b"a" * 100, b"d" * 100]
    last = Sender()
    task = await begun(bodies, last, done)
    await last.send(b"e" * 100, last=True)
    assert await task == b"e" * 100


async def test_a_body_that_alone_is_too_much_is_refused() -> None:
    bodies, done = Bodies(100, 150), asyncio.Event()
    buffered, late = Sender(), Sender()
    task = await begun(bodies, buffered, done)
    await buffered.send(b"a" * 100, last=True)
    refused = await begun(bodies, late, done)
    await late.send(b"b" * 51)
    await late.send(b"b", last=True)
    with pytest.raises(EngineBusy):
        await refused
    large = Sender()
    too_large = await begun(bodies, large, done)
    await large.send(b"c" * 101)
    done.set()
    assert await task == b"a" * 100
    with pytest.raises(EngineBusy):  # there was no room for it either
        await too_large
    large = Sender()
    too_large = await begun(bodies, large, done)
    await large.send(b"c" * 101)
    with pytest.raises(PayloadTooLarge):
        await too_large


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_whatever_comes_in_whatever_order_the_memory_is_bounded(sizes: list[list[int]], order: Any) -> None:
    async def main() -> None:
        bodies, done = Bodies(1000, 100), asyncio.Event()
        senders = [Sender() for _ in sizes]
        tasks = [await begun(bodies, sender, done) for sender in senders]
        turns = [number for number, parts in enumerate(sizes) for _ in parts]
        order.shuffle(turns)
        left = [list(parts) for parts in sizes]
        for number in turns:
            size = left[number].pop()
            await senders[number].send(bytes([number]) * size, last=not left[number])
            buffered = [len(senders[n].sent) for n, task in enumerate(tasks) if not task.done()]
            assert sum(buffered) <= 100
        done.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for sender, result in zip(senders, results, strict=True):
            assert result == sender.sent or isinstance(result, EngineBusy)
        last = Sender()
        task = await begun(bodies, last, done)
        await last.send(b"x" * 100, last=True)
        assert await task == b"x" * 100, "all of the memory is free again"

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
async def test_the_gateway_refuses_a_body_without_room(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    settings = Settings(served_model_name=MODEL, body_memory_bytes=5000)
    begins, stop = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"[" * 3000
        begins.set()
        await stop.wait()

    transport = httpx.ASGITransport(create_app(engine, KimiK25(), tok, settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        waiting = asyncio.create_task(client.post(path, content=slow(), headers=JSON))
        async with asyncio.timeout(30):
            await begins.wait()
            small = await client.post("/v1/chat/completions", json=BODY)
            large = await client.post("/v1/chat/completions", json=BODY | {"metadata": {"pad": "x" * 3000}})
            refused = await waiting
    assert (small.status_code, large.status_code, refused.status_code) == (200, 200, 503)
    assert refused.headers["retry-after"] == "1" and refused.json()["error"]["code"] == "engine_busy"


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS[:2])
async def test_the_bytes_of_a_body_are_dropped_once_it_is_read(
    engine: ScriptedEngine, tok: Tokenizer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running answer does not hold the body that asked for it, nor count it."""

    class Bytes(bytearray):  # of which there may be weak references
        pass

    taken: list[weakref.ref[Bytes]] = []
    monkeypatch.setattr("dovetail.gateway.limits.bodies.Body.take", lambda body: noted(body, taken))

    def noted(body: Any, taken: list[weakref.ref[Bytes]]) -> Bytes:
        data, body._data = Bytes(body._data), b""
        taken.append(weakref.ref(data))
        return data

    engine.ids = ids_of(Message(content="ok"), tok)
    buffered: list[Any] = []

    async def before(number: int) -> None:
        gc.collect()
        buffered.extend(ref() for ref in taken if ref() is not None)

    engine.before = before
    asked = {"/v1/responses": {"model": MODEL, "input": "hi"}}.get(path, BODY)
    transport = httpx.ASGITransport(create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post(path, content=json.dumps(asked), headers=JSON)
    assert response.status_code == 200, response.text
    assert taken and not buffered


async def test_pictures_count_until_the_answer_ends(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    picture = {"type": "image_url", "image_url": {"url": url(RED)}}
    text = {"type": "text", "text": "a" * 400}
    asked = [
        {"model": MODEL, "messages": [{"role": "user", "content": [text, part]}]}
        for part in (picture, {"type": "text", "text": "a" * 99})
    ]
    settings = Settings(served_model_name=MODEL, body_memory_bytes=1000)
    begun, done = asyncio.Event(), asyncio.Event()

    async def before(number: int) -> None:
        begun.set()
        await done.wait()

    async with in_process(engine, tok, settings) as client:
        for number, (first, status) in enumerate(zip(asked, (503, 200), strict=True)):
            engine.before = before
            begun.clear()
            done.clear()
            running = asyncio.create_task(client.post(PATHS[0], json=first))
            await begun.wait()
            other = asyncio.create_task(client.post(PATHS[0], json=asked[1]))
            if status == 503:
                assert (await other).status_code == 503
            done.set()
            assert [(await running).status_code, (await other).status_code] == [200, status], number
