"""The queue in front of the engine: no place is lost, clients share the engine, and waiting has bounds."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import EngineBusy
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.http import response as http_response
from dovetail.gateway.limits import queue as admission
from dovetail.gateway.limits.queue import Admission, QueueLimits
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_no_place_is_lost_whoever_gives_up(running: int, seed: int) -> None:
    rng = random.Random(seed)
    now = 0
    most = 0

    async def request(queue: Admission, client: str, answers: int) -> None:
        nonlocal now, most
        async with queue.admitted(client, answers, 10):
            now += answers
            most = max(most, now)
            try:
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                now -= answers

    async def main() -> None:
        queue = Admission(QueueLimits(running=running))
        tasks = []
        for _ in range(30):
            tasks.append(asyncio.create_task(request(queue, rng.choice("abc"), rng.randint(1, 3))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in done if not (each is None or isinstance(each, asyncio.CancelledError))] == []
        assert (queue.waiting, queue.waiting_tokens) == (0, 0)
        async with AsyncExitStack() as stack:  # every place is free again
            async with asyncio.timeout(1):
                for _ in range(running):
                    await stack.enter_async_context(queue.admitted("x", 1, 1))

    asyncio.run(main())
    assert most <= running + 2


def test_a_client_with_many_requests_does_not_keep_others_waiting() -> None:
    order: list[str] = []

    async def request(queue: Admission, client: str, answers: int) -> None:
        async with queue.admitted(client, answers, 10):
            order.append(client)
            for _ in range(5):
                await asyncio.sleep(0)

    async def main() -> None:
        queue = Admission(QueueLimits(running=16))
        greedy = [asyncio.create_task(request(queue, "greedy", 16)) for _ in range(66)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(request(queue, client, 1)) for client in "ab"]
        await asyncio.gather(*greedy, *others)

    asyncio.run(main())
    assert set(order[1:3]) == {"a", "b"}


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_a_full_queue_refuses_the_client_that_has_most_waiting(size: int, seed: int) -> None:
    """In requests, or in tokens where those are the limit. Nobody is admitted, so the oracle knows who waits."""
    rng = random.Random(seed)
    by_tokens = rng.random() < 0.5
    limits = QueueLimits(running=1, waiting=1_000 if by_tokens else size, waiting_tokens=size if by_tokens else 10**9)
    waiting: list[tuple[str, int, asyncio.Task[None]]] = []

    async def request(queue: Admission, client: str, tokens: int) -> None:
        async with queue.admitted(client, 1, tokens):
            pass

    def load(client: str) -> int:
        return sum(tokens if by_tokens else 1 for each, tokens, _ in waiting if each == client)

    async def main() -> None:
        queue = Admission(limits)
        async with queue.admitted("running", 1, 1):
            for _ in range(20):
                client, tokens = rng.choice("aaab"), rng.randint(1, 3)
                task = asyncio.create_task(request(queue, client, tokens))
                waiting.append((client, tokens, task))
                while len(waiting) > 1 and (sum(load(each) for each in "ab") > size):
                    busiest = max(load(each) for each in "ab")
                    if load(client) == busiest:  # the newcomer itself
                        waiting.pop()
                        break
                    other = "b" if client == "a" else "a"
                    waiting.remove([each for each in waiting if each[0] == other][-1])
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                waiting_tokens = sum(tokens for _, tokens, _ in waiting)
                assert (queue.waiting, queue.waiting_tokens) == (len(waiting), waiting_tokens)
                assert not any(task.done() for _, _, task in waiting)
        await asyncio.gather(*(task for _, _, task in waiting))
        assert (queue.waiting, queue.waiting_tokens) == (0, 0)

    asyncio.run(main())


@pytest.mark.anyio
@pytest.mark.parametrize("gives_up", [None, "before", "refused", "admitted"])
async def test_a_request_that_gives_up_at_its_end_leaves_no_place_behind(gives_up: str | None) -> None:
    queue = Admission(QueueLimits(running=1, waiting=2))

    async def request(client: str) -> None:
        async with queue.admitted(client, 1, 1):
            pass

    async with queue.admitted("running", 1, 1):
        first, second = [asyncio.create_task(request("a")) for _ in range(2)]
        await asyncio.sleep(0)
        other = asyncio.create_task(request("b"))
        if gives_up == "before":
            second.cancel()  # it still waits when b arrives
        await asyncio.sleep(0)  # refuses the second request of a, which has not seen it
        if gives_up == "refused":
            second.cancel()
    if gives_up == "admitted":
        other.cancel()
        first.cancel()
    ends = [type(each) for each in await asyncio.gather(first, second, other, return_exceptions=True)]
    gone, done = asyncio.CancelledError, type(None)
    assert (
        ends
        == {
            None: [done, EngineBusy, done],
            "before": [done, gone, done],
            "refused": [done, gone, done],
            "admitted": [gone, EngineBusy, gone],
        }[gives_up]
    )
    assert (queue.waiting, queue.waiting_tokens) == (0, 0)
    async with asyncio.timeout(5):
        await request("c")


@pytest.mark.anyio
async def test_what_is_remembered_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_CLIENTS", 3)
    queue = Admission(QueueLimits(running=1))
    for number in range(10):
        async with queue.admitted(f"{number}", 1, 1):
            assert len(queue._admitted) <= 3


@pytest.mark.anyio
async def test_what_waits_is_bounded_by_number_tokens_and_time() -> None:
    queue = Admission(QueueLimits(running=1, waiting=2, waiting_tokens=100, seconds=0.05))

    async def waiting(tokens: int) -> None:
        async with queue.admitted("a", 1, tokens):
            raise AssertionError

    async with queue.admitted("a", 1, 10):
        first = asyncio.create_task(waiting(1_000))  # alone it may be longer than the bound
        await asyncio.sleep(0)
        with pytest.raises(EngineBusy, match="1000 tokens are waiting"):
            await waiting(1)
        with pytest.raises(EngineBusy, match="has waited for"):
            await first
        some = [asyncio.create_task(waiting(40)) for _ in range(2)]
        await asyncio.sleep(0)
        assert (queue.waiting, queue.waiting_tokens) == (2, 80)
        with pytest.raises(EngineBusy, match="2 requests are waiting"):
            await waiting(1)
        assert all(isinstance(each, EngineBusy) for each in await asyncio.gather(*some, return_exceptions=True))


@pytest.mark.anyio
async def test_a_request_that_waits_is_told_so(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy hangs up on a stream without a byte, typically after 60 seconds."""
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.02)
    engine.ids = ids_of(Message(content="ok"), tok)
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    settings = Settings(served_model_name=MODEL, queue=QueueLimits(running=1))
    async with in_process(engine, tok, settings) as client:
        running = asyncio.create_task(client.post(PATH, json=BODY))
        while not engine.seen:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(client.post(PATH, json={**BODY, "stream": True}))
        shown = ""
        while f'dovetail_queued_requests{{model="{MODEL}"}} 1.0' not in shown:
            await asyncio.sleep(0.01)
            shown = (await client.get("/metrics")).text
        for _ in range(20):  # between any two of them a ping may come, however slow the machine is
            await asyncio.sleep(0.01)
        assert len(engine.seen) == 1
        go.set()
        assert (await running).status_code == 200
        answer: httpx.Response = await waiting
    assert answer.text.count(": waiting\n\n") >= 2
    assert answer.text.endswith("data: [DONE]\n\n") and len(engine.seen) == 2
