"""Two gateways with one store, and what each does while the store is down: killed, paused, full.

With real servers: see `servers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.limits import meters
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.records.memory import TABLE as ANSWERS
from dovetail.gateway.store.interface import DEFAULT_LIMITS, Store, StoreError
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process
from tests.gateway.store.servers import TIMEOUT_S, Server, running
from tests.gateway.test_memory import CALLED, Chat, continued
from tests.gateway.test_token_exact import letter_by_letter

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["redis", "postgresql"])]

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HI: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
#: What a request may take beside the wait for the store, on a busy machine.
SLACK_S = 2.0


def settings_of(store: Store, **limits: int) -> Settings:
    settings = keyed(
        named("a", **limits), named("b"), response_store=store, memory=store, strict="off", record_key=b"k" * 32
    )
    assert settings.keys is not None
    settings.keys.share(store)
    return settings


@contextlib.asynccontextmanager
async def gateways(
    server: Server, engine: ScriptedEngine, tok: Tokenizer, number: int = 2, timeout: float = 20.0, **limits: int
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of gateways in front of `engine`, each with a connection of its own to the store."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(number):
            store = await asyncio.to_thread(server.store, timeout)
            stack.callback(store.close)
            clients.append(await stack.enter_async_context(in_process(engine, tok, settings_of(store, **limits))))
        yield clients


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)


@pytest.fixture
def empty(server: Server, shared: Store) -> Server:
    return server


async def test_no_request_more_than_the_limit(empty: Server, engine: ScriptedEngine, tok: Tokenizer) -> None:
    """A race of three gateways for one key's minute: not one too many, and not one too few."""
    async with gateways(empty, engine, tok, 3, requests_per_minute=20) as clients:
        posts = [each.post(CHAT, json=HI, headers=bearer("a")) for _ in range(15) for each in clients]
        answers = await asyncio.gather(*posts)
        assert Counter(each.status_code for each in answers) == {200: 20, 429: 25}
        left = {each.headers["x-ratelimit-remaining-requests"] for each in answers if each.status_code == 429}
        assert left == {"0"}, "a gateway told what is only its own"
        assert (await clients[0].post(CHAT, json=HI, headers=bearer("b"))).status_code == 200


async def test_no_request_runs_beside_more_than_may(empty: Server, engine: ScriptedEngine, tok: Tokenizer) -> None:
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    async with gateways(empty, engine, tok, concurrent_requests=3) as clients:
        running_ = [asyncio.create_task(each.post(CHAT, json=HI, headers=bearer("a"))) for each in clients * 4]
        done, pending = await asyncio.wait(running_, timeout=2)
        assert [task.result().status_code for task in done] == [429] * 5 and len(pending) == 3
        go.set()
        assert [(await task).status_code for task in pending] == [200] * 3
        for i in range(6):  # one after the other, through both: a place that is given back is there
            assert (await clients[i % 2].post(CHAT, json=HI, headers=bearer("a"))).status_code == 200


async def test_tokens_count_in_both(empty: Server, engine: ScriptedEngine, tok: Tokenizer) -> None:
    body = HI | {"max_tokens": 50}
    async with gateways(empty, engine, tok, tokens_per_minute=1_000) as (one, other):
        used = (await one.post(CHAT, json=body, headers=bearer("a"))).json()["usage"]["total_tokens"]
        second = await other.post(CHAT, json=body, headers=bearer("a"))
        remaining = int(second.headers["x-ratelimit-remaining-tokens"])
        assert 1_000 - 2 * used - 50 <= remaining <= 1_000 - used - used // 2
        go = asyncio.Event()

        async def before(number: int) -> None:
            await go.wait()

        engine.before = before
        large = HI | {"max_tokens": 600}
        both = [asyncio.create_task(each.post(CHAT, json=large, headers=bearer("a"))) for each in (one, other)]
        done, pending = await asyncio.wait(both, return_when="FIRST_COMPLETED")
        assert [task.result().status_code for task in done] == [429] and len(pending) == 1, "both hold what one may"
        go.set()
        assert [(await task).status_code for task in pending] == [200]


async def test_the_store_learns_what_a_long_answer_uses(
    empty: Server, engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "_FLUSHED_S", 0.02)
    monkeypatch.setattr(meters, "_RENEWED_S", 0.0)
    go = asyncio.Event()

    async def before(number: int) -> None:
        if number == len(engine.ids) - 1:
            await go.wait()

    engine.before = before
    async with gateways(empty, engine, tok, tokens_per_minute=1_000) as (one, other):
        running_ = asyncio.create_task(one.post(CHAT, json=HI, headers=bearer("a")))
        while engine.sent < len(engine.ids) - 1:
            await asyncio.sleep(0.001)
        engine.before = None
        await asyncio.sleep(0.2)
        second = await other.post(CHAT, json=HI, headers=bearer("a"))
        prompt = second.json()["usage"]["prompt_tokens"]
        used = 1_000 - int(second.headers["x-ratelimit-remaining-tokens"])
        assert used >= 2 * prompt + len(engine.ids) - 1
        go.set()
        assert (await running_).status_code == 200


async def test_a_gateway_that_dies_holds_nothing_for_long(
    empty: Server, engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "_LEASE_S", 1.0)
    dead = await asyncio.to_thread(empty.store)
    settings = settings_of(dead, concurrent_requests=1)
    assert settings.keys is not None
    account: Account = settings.keys.accounts[0]
    request = account.request()
    await request.__aenter__()
    for task in account._use._tasks:  # type: ignore[attr-defined]
        task.cancel()
    async with gateways(empty, engine, tok, 1, concurrent_requests=1) as (client,):
        assert (await client.post(CHAT, json=HI, headers=bearer("a"))).status_code == 429
        await asyncio.sleep(1.1)
        assert (await client.post(CHAT, json=HI, headers=bearer("a"))).status_code == 200
    await request.__aexit__(None, None, None)
    dead.close()


async def test_responses_are_the_same_through_both(empty: Server, engine: ScriptedEngine, tok: Tokenizer) -> None:
    body = {"model": MODEL, "input": "hi"}
    async with gateways(empty, engine, tok) as (one, other):
        first = (await one.post(RESPONSES, json=body, headers=bearer("a"))).json()
        assert first["store"] is True
        goes_on = body | {"previous_response_id": first["id"]}
        assert (await other.post(RESPONSES, json=goes_on, headers=bearer("a"))).status_code == 200
        assert len(engine.seen[-1].prompt) > len(engine.seen[0].prompt)
        url = f"{RESPONSES}/{first['id']}"
        assert (await other.get(url, headers=bearer("b"))).status_code == 404
        assert (await other.post(RESPONSES, json=goes_on, headers=bearer("b"))).status_code == 400
        assert (await other.get(url, headers=bearer("a"))).json()["id"] == first["id"]
        assert (await other.delete(url, headers=bearer("a"))).status_code == 200
        assert (await one.get(url, headers=bearer("a"))).status_code == 404


async def test_memory_has_what_another_gateway_answered(empty: Server, engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Chat()
    async with gateways(empty, engine, tok) as (one, other):
        dialogue.returns(await dialogue.ask(one, **bearer("a")))
        second = await dialogue.ask(other, **bearer("a"))
        assert continued(engine) == [True] and "x-dovetail-repairs" not in second.headers
        await dialogue.ask(other, **bearer("b"))
        assert continued(engine) == [True, False], "another key's answer was put back"


# -- down -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(kind: str) -> Iterator[Server]:
    """A server for this test alone."""
    with running(kind) as server:
        yield server


async def timed(work: Any) -> Any:
    started = time.monotonic()
    result = await work
    assert time.monotonic() - started < 3 * TIMEOUT_S + SLACK_S
    return result


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_a_store_that_is_down(
    how: str, own: Server, engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers go on, unstored and without memory; each gateway counts limits by itself; what needs the store is 503."""
    body = {"model": MODEL, "input": "hi"}
    alice = bearer("a")
    async with gateways(own, engine, tok, timeout=TIMEOUT_S, requests_per_minute=12) as (one, other):
        first = (await one.post(RESPONSES, json=body, headers=alice)).json()
        goes_on = body | {"previous_response_id": first["id"]}
        await asyncio.to_thread(own.kill) if how == "killed" else own.signal(signal.SIGSTOP)
        url = f"{RESPONSES}/{first['id']}"
        for client in (one, other):
            response = await timed(client.post(RESPONSES, json=body, headers=alice))
            assert (response.status_code, response.json()["store"]) == (200, False)
            streamed = await timed(client.post(RESPONSES, json=body | {"stream": True}, headers=alice))
            assert '"store":false' in streamed.text and "response.completed" in streamed.text
            for refused in (
                await timed(client.post(RESPONSES, json=goes_on, headers=alice)),
                await timed(client.get(url, headers=alice)),
                await timed(client.delete(url, headers=alice)),
            ):
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
                assert int(refused.headers["retry-after"]) >= 1 and "127.0.0.1" not in refused.text
            statuses = [(await timed(client.post(CHAT, json=HI, headers=alice))).status_code for _ in range(12)]
            assert statuses.count(429) >= 2 and statuses[0] == 200, "there are no limits without a store"
        assert caplog.text.count("the store does not answer") == 2, "each gateway says so once"
        await asyncio.to_thread(own.start) if how == "killed" else own.signal(signal.SIGCONT)
        await asyncio.sleep(TIMEOUT_S + 1.2)
        stored = (await timed(one.post(RESPONSES, json=body, headers=bearer("b")))).json()["store"]
        assert stored is True
        if own.kind == "postgresql" or how == "paused":
            assert (await timed(one.get(url, headers=alice))).status_code == 200
        await one.post(CHAT, json=HI, headers=alice)
    async with gateways(own, engine, tok, 1, requests_per_minute=12) as (third,):
        counted = await third.post(CHAT, json=HI, headers=alice)
        assert int(counted.headers["x-ratelimit-remaining-requests"]) <= 4, "the store did not learn what was used"


def found(store: Store, turn: bytes = b"t") -> list[Any]:
    return store.entries(ANSWERS, DEFAULT_LIMITS).find(("turn",), "turn", {turn})


def test_one_request_waits_and_the_others_do_not(own: Server, kind: str) -> None:
    """While a store does not answer, it is asked by one request a second."""
    with contextlib.closing(own.store(TIMEOUT_S)) as store:
        own.signal(signal.SIGSTOP)

        def wait() -> float:
            started = time.monotonic()
            with pytest.raises(StoreError, match="answer"):
                found(store)
            return time.monotonic() - started

        assert wait() >= TIMEOUT_S * 0.9
        assert sorted(wait() for _ in range(20))[-2] < TIMEOUT_S / 2
        own.signal(signal.SIGCONT)


def answer_of(size: int, turn: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"place": b"p", "name": None, "turn": turn, "record": "r", "answer": "a"}
    return row | {"calls": os.urandom(size)}


async def test_a_full_store_is_read(own: Server, kind: str, engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Redis at its `maxmemory`, and PostgreSQL whose files may grow no more: what is there is found, and can go."""
    store = await asyncio.to_thread(own.store)

    def fill() -> None:
        entries = store.entries(ANSWERS, DEFAULT_LIMITS)
        entries.put(answer_of(100_000, b"t"), 1)
        own.fill()
        with pytest.raises(StoreError, match=r"maxmemory|[Tt]oo large") as full:
            for number in range(40):
                entries.put(answer_of(400_000, b"%d" % number), 1)
        assert "postgres@" not in str(full.value)
        assert found(store) == [(b"t",)]

    await asyncio.to_thread(fill)
    if kind == "redis":
        async with in_process(engine, tok, settings_of(store, requests_per_minute=3)) as client:
            body = {"model": MODEL, "input": "hi"}
            answers = [await client.post(RESPONSES, json=body, headers=bearer("a")) for _ in range(4)]
            assert [each.status_code for each in answers] == [200, 200, 200, 429]
            assert answers[0].json()["store"] is False
    assert await asyncio.to_thread(store.entries(ANSWERS, DEFAULT_LIMITS).delete, "answer", "a") > 1
    if kind == "redis":
        await asyncio.to_thread(store.entries(ANSWERS, DEFAULT_LIMITS).put, answer_of(100, b"t"), 1)
        assert await asyncio.to_thread(found, store) == [(b"t",)]
    store.close()
