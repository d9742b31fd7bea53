"""Several servers as one engine: how requests are distributed, and how it continues when servers come and go."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from dovetail.backends.remote import Deadlines, RemoteEngine, Server, routing
from dovetail.backends.remote.errors import ServerLost
from dovetail.completion import Completion, Engine, MetricSample, total
from dovetail.errors import EngineBusy, EngineError, EngineTimeout, EngineUnavailable, InvalidRequest
from tests.backends.remote.fake import (
    EOS,
    PROMPT,
    VOCABULARY,
    Answer,
    Broken,
    Fake,
    completion,
    continuation,
    ids_of,
    run,
    sse,
    until,
    vllm_answer,
    vllm_chunk,
    whole,
)
from tests.backends.vllm_program import NO_PROMPT


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are looked at every 50 ms, so that a test does not wait a second for what they report."""
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.05)


Test = Callable[[RemoteEngine, list[Fake]], Awaitable[None]]


def with_servers(fakes: list[Fake], test: Test, **options: Any) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            for fake in fakes:
                await stack.enter_async_context(fake)
            engine = RemoteEngine([fake.server() for fake in fakes], **options)
            await engine.start()
            try:
                await test(engine, fakes)
            finally:
                await engine.stop()

    run(main)


def up(engine: RemoteEngine, fake: Fake) -> bool:
    """Whether the engine counts this one of its servers as up."""
    return MetricSample("server_up", {"server": fake.name}, 1) in engine.gauges()


async def answered(engine: RemoteEngine, requested: Completion | None = None) -> list[int]:
    return ids_of([batch async for batch in engine.complete(requested or completion())])


async def endless(body: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield sse(vllm_chunk([10]))
        await asyncio.sleep(0.002)


async def nothing(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield b": waiting\n\n"
    await asyncio.Event().wait()


async def broken(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield b": waiting\n\n"
    raise Broken


def at(fakes: list[Fake], place: int, number: int = 0, max_tokens: int = 2) -> Completion:
    """A completion of the conversation `number` that belongs to the server at `place`."""
    names, sessions = [fake.name for fake in fakes], map(str, itertools.count())
    completions = (completion(max_tokens, session=session) for session in sessions)
    own = (each for each in completions if routing.order(routing.key_of(each), names)[0] == names[place])
    return next(itertools.islice(own, number, None))


def test_it_is_an_engine() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        assert isinstance(engine, Engine)
        info = engine.info
        assert (info.context, info.vocab_size, info.eos_ids, info.draft_tokens) == (256, 100, (EOS,), 0)
        assert await answered(engine) == continuation(PROMPT, 8)
        with pytest.raises(EngineError, match="started already"):
            await engine.start()
        await engine.stop()
        with pytest.raises(EngineError, match="not running"):
            await answered(engine)

    with_servers([Fake(), Fake("vllm", context=256)], test)


def test_servers_are_named_once() -> None:
    for names in ([], ["http://a:1", "http://a:1/v1"]):
        with pytest.raises(EngineError, match="each server once"):
            RemoteEngine([Server(name, VOCABULARY) for name in names])


def test_a_conversation_stays_with_its_server() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        for place in (0, 1, 1, 0, 1):
            for number in range(2):
                await answered(engine, at(fakes, place, number))
        assert [len(fake.received) for fake in fakes] == [4, 6]

    with_servers([Fake(), Fake()], test)


def test_a_much_fuller_server_is_passed_over() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        requested = at(fakes, 0, max_tokens=10**6)
        tasks = []
        for count in range(1, 11):
            tasks.append(asyncio.create_task(answered(engine, requested)))
            await until(lambda: sum(fake.running for fake in fakes) == count)  # noqa: B023
        # It may run up to one and a half times the average and two more.
        assert [fake.running for fake in fakes] == [9, 1]
        for task in tasks:
            task.cancel()
        await until(lambda: not any(fake.running for fake in fakes))

    with_servers([Fake(answer=endless), Fake(answer=endless)], test)


def test_cancelling_frees_the_connection() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        async with aclosing(engine.complete(completion(10**6))) as batches:
            async for _ in batches:
                break
        await until(lambda: not fakes[0].running)

    with_servers([Fake(answer=endless)], test)


def test_a_request_that_received_nothing_is_sent_elsewhere() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        assert await answered(engine, at(fakes, 0, max_tokens=8)) == continuation(PROMPT, 8)
        assert [len(fake.received) for fake in fakes] == [1, 1]
        assert total(engine.gauges(), "resent_total") == 1

    with_servers([Fake(answer=broken), Fake()], test)


def test_a_request_that_received_nothing_waits_until_the_server_is_back() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        (fake,) = fakes
        usual, fake.answer = fake.answer, nothing
        task = asyncio.create_task(answered(engine))
        await until(lambda: fake.running == 1)
        await fake.stop()
        await until(lambda: total(engine.gauges(), "waiting_for_server") == 1)
        assert total(engine.gauges(), "up") == 0
        late = asyncio.create_task(answered(engine))
        await until(lambda: total(engine.gauges(), "waiting_for_server") == 2)
        fake.answer = usual
        await fake.start()
        assert await task == await late == continuation(PROMPT, 8)
        assert total(engine.gauges(), "up") == 1

    with_servers([Fake()], test)


def test_a_request_that_has_begun_ends_with_a_clean_error() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        begun = 0
        with pytest.raises(EngineError, match="after the answer had begun") as caught:
            async for _ in engine.complete(completion(10**6)):
                begun += 1
                if begun == 2:
                    await fakes[0].stop()
        assert type(caught.value) is EngineUnavailable
        assert total(engine.gauges(), "resent_total") == 0

    with_servers([Fake(answer=endless)], test)


def test_a_request_waits_for_a_limited_time() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        await fakes[0].stop()
        waiting = asyncio.create_task(answered(engine))
        await until(lambda: total(engine.gauges(), "waiting_for_server") == 1)
        with pytest.raises(EngineUnavailable, match="1 requests wait for one already"):
            await answered(engine)
        with pytest.raises(EngineUnavailable, match=r"no engine answered for 0\.5 seconds"):
            await waiting

    with_servers([Fake()], test, patience_s=0.5, most_waiting=1)


def test_a_request_is_sent_at_most_twice() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        with pytest.raises(EngineError, match="sent 2 times without an answer"):
            await answered(engine)
        assert sorted(len(fake.received) for fake in fakes) == [0, 1, 1]

    with_servers([Fake(answer=broken) for _ in range(3)], test)


def test_a_broken_connection_does_not_mean_a_lost_server() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        (fake,) = fakes
        usual = vllm_answer

        async def once(body: dict[str, Any]) -> AsyncIterator[bytes]:
            fake.answer = usual
            raise Broken
            yield b""

        others = [asyncio.create_task(answered(engine)) for _ in range(3)]
        await until(lambda: len(fake.received) == 3)
        fake.answer = once
        assert await answered(engine) == continuation(PROMPT, 8)
        assert total(engine.gauges(), "up") == 1 and len(fake.received) == 5
        for other in others:
            await other

    with_servers([Fake()], test)


POISON = (66, 1)


def poisoned(fake: Fake) -> Answer:
    """The server dies of `POISON` as vLLM does: its answers fail, it becomes unhealthy, and then it exits."""

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body["prompt"][0] == POISON[0]:
            fake.pages["/health"] = (503, b"")
            yield sse({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        async for piece in vllm_answer(body):
            yield piece

    return answer


def test_a_poisoned_prompt_takes_three_servers_down_however_often_it_is_sent() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        for fake in fakes:
            fake.answer = poisoned(fake)
        poison = completion(prompt=POISON)
        with pytest.raises(EngineError, match="sent 2 times without an answer"):
            await answered(engine, poison)
        assert sum(bool(fake.received) for fake in fakes) == 2, "one request takes two servers down"
        assert await answered(engine) == continuation(PROMPT, 8)
        for _ in range(3):  # a client that retries
            with pytest.raises(InvalidRequest, match="the engine died 3 times while it ran this prompt"):
                await answered(engine, poison)
        sent = [body["prompt"][0] for fake in fakes for body in fake.received].count(POISON[0])
        assert sent == 3
        assert await answered(engine) == continuation(PROMPT, 8)

    with_servers([Fake() for _ in range(4)], test)


def test_all_requests_of_one_death_are_sent_again() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        (fake,) = fakes
        usual, fake.answer = fake.answer, nothing
        requested = [completion(prompt=(number, 1)) for number in range(5, 10)]
        tasks = [asyncio.create_task(answered(engine, each)) for each in requested]
        await until(lambda: fake.running == 5)
        await fake.stop()
        await until(lambda: total(engine.gauges(), "waiting_for_server") == 5)
        assert total(engine.gauges(), "resent_total") == 5
        fake.answer = usual
        await fake.start()
        assert [len(ids) for ids in await asyncio.gather(*tasks)] == [8] * 5

    with_servers([Fake()], test)


def test_an_error_of_a_healthy_server_is_not_retried() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        for fake in fakes:
            fake.pages["/v1/completions"] = (500, b"no")
        with pytest.raises(EngineError, match="HTTP status 500"):
            await answered(engine)
        assert total(engine.gauges(), "resent_total") == 0

    with_servers([Fake(), Fake()], test)


def test_a_slow_server_is_late_and_not_lost() -> None:
    async def commenting(body: dict[str, Any]) -> AsyncIterator[bytes]:
        while True:
            yield b": waiting\n\n"
            await asyncio.sleep(0.01)

    async def main(answer: Answer) -> None:
        async with Fake(answer=answer) as fake:
            engine = RemoteEngine([fake.server(silence_s=0.02, deadlines=Deadlines(first_token_s=0.4))])
            await engine.start()
            with pytest.raises(EngineTimeout, match=r"sent no token for 0\.4 seconds"):
                await answered(engine)
            assert (
                total(engine.gauges(), "up") == 1
                and total(engine.gauges(), "resent_total") == 0
                and len(fake.received) == 1
            )
            await engine.stop()

    for each in (nothing, commenting):
        run(functools.partial(main, each))


def test_a_failing_watch_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        (server,) = engine.servers

        def fault() -> None:
            raise ZeroDivisionError("odd")

        usual, server.poll = server.poll, fault  # type: ignore[method-assign,assignment]
        await until(lambda: total(engine.gauges(), "up") == 0)
        server.poll = usual  # type: ignore[method-assign]
        await until(lambda: total(engine.gauges(), "up") == 1)
        assert await answered(engine) == continuation(PROMPT, 8)
        assert "cannot be watched" in caplog.text

    with_servers([Fake()], test)


def test_a_late_server_with_a_smaller_context_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Fake(context=512) as here, Fake(context=64) as late:
            await late.stop()
            engine = RemoteEngine([here.server(), late.server()])
            await engine.start()
            assert engine.info.context == 512
            await late.start()
            await until(lambda: "promised 512" in caplog.text)
            assert not up(engine, late)
            await engine.stop()

    run(main)


def test_a_full_server_is_skipped_and_all_full_is_busy() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        fakes[0].pages["/v1/completions"] = (429, b"full")
        assert await answered(engine) == continuation(PROMPT, 8)
        fakes[1].pages["/v1/completions"] = (503, b"full")
        with pytest.raises(EngineBusy, match="accepts no more"):
            await answered(engine)

    with_servers([Fake(), Fake()], test)


def test_a_refusal_is_not_sent_again() -> None:
    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        for fake in fakes:
            fake.pages["/v1/completions"] = (400, b"no")
        with pytest.raises(InvalidRequest):
            await answered(engine)
        assert total(engine.gauges(), "resent_total") == 0

    with_servers([Fake(), Fake()], test)


def test_a_server_that_is_down_at_the_start_joins_later() -> None:
    async def main() -> None:
        async with Fake() as here, Fake() as late:
            await late.stop()
            engine = RemoteEngine([here.server(), late.server()])
            await engine.start()
            for place in (0, 1):
                await answered(engine, at([here, late], place))
            assert len(here.received) == 2
            await late.start()
            await until(lambda: up(engine, late))
            for place in (0, 1):
                await answered(engine, at([here, late], place))
            assert [len(here.received), len(late.received)] == [3, 1]
            await engine.stop()

    run(main)


def test_a_server_is_checked_each_time_it_becomes_healthy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dovetail.backends.remote.server.RECHECK_S", 0.01)
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.02)
    tried: list[str] = []
    good: set[str] = set()

    async def check(server: Server) -> None:
        assert not server.up
        tried.append(server.name)
        assert ids_of(await whole(server, completion(4))) == continuation(PROMPT, 4)
        if server.name not in good:
            raise EngineError(f"{server.name} enforces no grammar")

    async def main() -> None:
        async with Fake() as here, Fake() as late:
            await late.stop()
            models = late.pages["/v1/models"]
            late.pages["/v1/models"] = {"data": [{"id": "other", "owned_by": "vllm", "max_model_len": 512}]}
            good.add(here.name)
            engine = RemoteEngine([here.server(check=check), late.server(check=check)])
            await engine.start()
            assert tried == [here.name]
            await late.start()
            await until(lambda: tried.count(late.name) == 2)
            assert caplog.text.count(f"{late.name} is left out: {late.name} enforces no grammar") == 1
            assert not up(engine, late)
            for number in range(4):
                await answered(engine, at([here, late], number % 2))
            assert len(here.received) == 1 + 4
            await late.stop()  # so that no check is under way
            good.add(late.name)
            late.pages["/v1/models"] = models  # a server that never served has promised no model
            await late.start()
            await until(lambda: up(engine, late))
            tries = len(tried)
            await late.stop()
            await until(lambda: not up(engine, late))
            await late.start()
            await until(lambda: up(engine, late))
            assert tried[tries:] == [late.name], "it may have been started with other options"
            good.remove(late.name)
            await late.stop()
            await until(lambda: not up(engine, late))
            await late.start()
            await until(lambda: len(tried) > tries + 2)
            assert not up(engine, late)
            await engine.stop()

    run(main)


def test_at_the_start_a_failed_check_is_an_error_and_a_full_server_joins_later() -> None:
    full = [True]

    async def check(server: Server) -> None:
        if full[0]:
            raise EngineBusy("too many requests")

    async def refuse(server: Server) -> None:
        raise EngineError(f"{server.name} enforces no grammar")

    async def main() -> None:
        async with Fake() as one, Fake() as other:
            engine = RemoteEngine([one.server(), other.server(check=refuse)])
            with pytest.raises(EngineError, match=f"{other.name} enforces no grammar"):
                await engine.start()
            engine = RemoteEngine([one.server(), other.server(check=check)])
            await engine.start()
            assert not up(engine, other)
            full[0] = False
            await until(lambda: up(engine, other))
            await engine.stop()

    run(main)


@pytest.mark.parametrize(
    ("full", "why"), [(True, "accepts no more requests now: full"), (False, "closed the connection")]
)
def test_a_check_that_cannot_run_is_logged_once_and_repeated(
    full: bool, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.02)
    tried: list[str] = []

    async def check(server: Server) -> None:
        tried.append(server.name)
        await whole(server, completion(4))

    def busy(body: dict[str, Any]) -> object:
        return None if body["prompt"] == NO_PROMPT else (503, b"full")

    async def main() -> None:
        async with Fake() as here, Fake(answer=broken) as late:
            await late.stop()
            if full:
                late.pages["/v1/completions"] = busy
            engine = RemoteEngine([here.server(check=check), late.server(check=check)])
            await engine.start()
            await late.start()
            await until(lambda: tried.count(late.name) == 3)
            messages = [record.message for record in caplog.records if f"{late.name} is left out: " in record.message]
            assert len(messages) == 1 and f"{late.name} cannot be tried out: " in messages[0] and why in messages[0]
            late.answer = vllm_answer
            late.pages.pop("/v1/completions", None)
            await until(lambda: len(engine.servers) == 2)
            await engine.stop()

    run(main)


def test_a_cancelled_start_closes_its_servers() -> None:
    async def check(server: Server) -> None:
        await whole(server, completion(10**6))

    async def main() -> None:
        async with Fake(answer=endless) as one, Fake() as other:
            servers = [one.server(check=check), other.server()]
            starting = asyncio.create_task(RemoteEngine(servers).start())
            await until(lambda: one.running == 1)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            for server in servers:
                with pytest.raises(ServerLost, match="is closed"):
                    await server.page("/health")
            await until(lambda: one.running == 0)

    run(main)


def test_a_start_without_servers_fails() -> None:
    async def main() -> None:
        async with Fake() as down, Fake("openai") as wrong:
            await down.stop()
            engine = RemoteEngine([down.server()])
            with pytest.raises(EngineError, match="cannot be reached"):
                await engine.start()
            engine = RemoteEngine([down.server(), wrong.server()])
            with pytest.raises(EngineError, match="neither vLLM nor"):
                await engine.start()
            await down.start()
            engine = RemoteEngine([down.server()])
            await engine.start()
            await engine.stop()

    run(main)


def test_stopping_ends_what_runs_and_what_waits() -> None:
    async def silent(body: dict[str, Any]) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def main() -> None:
        for answer in (endless, nothing, silent):
            async with Fake(answer=answer) as fake:
                engine = RemoteEngine([fake.server(silence_s=1e9)])
                await engine.start()
                running = asyncio.create_task(answered(engine, completion(10**6)))
                await until(lambda fake=fake: fake.running == 1)
                await engine.stop()
                with pytest.raises(EngineBusy, match="shutting down"):
                    await running
        async with Fake() as down:
            engine = RemoteEngine([down.server()])
            await engine.start()
            await down.stop()
            waiting = asyncio.create_task(answered(engine))
            await until(lambda: total(engine.gauges(), "waiting_for_server") == 1)
            await engine.stop()
            with pytest.raises(EngineBusy, match="shutting down"):
                await waiting

    run(main)


def test_the_counters_of_several_servers_are_labelled() -> None:
    page = (200, b'vllm:num_requests_running 2\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3\n')

    async def test(engine: RemoteEngine, fakes: list[Fake]) -> None:
        await until(lambda: total(engine.gauges(), "running"))
        gauges = engine.gauges()
        if len(fakes) == 1:
            assert (
                total(gauges, "running") == 2
                and MetricSample("accepted_per_position_total", {"position": "0"}, 3) in gauges
            )
            assert total(gauges, "up") == 1
            return
        await until(lambda: sum(sample.name == "running" for sample in engine.gauges()) == 2)
        for fake in fakes:
            assert MetricSample("running", {"server": fake.name}, 2) in engine.gauges()
            labels = {"position": "0", "server": fake.name}
            assert MetricSample("accepted_per_position_total", labels, 3) in engine.gauges()

    with_servers([Fake(metrics=page)], test)
    with_servers([Fake(metrics=page), Fake(metrics=page)], test)


def test_every_server_that_comes_up_after_the_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late one and one that comes back, not those of the start. What runs at the end is cancelled."""
    monkeypatch.setattr("dovetail.backends.remote.engine.POLL_S", 0.01)
    names: list[str] = []

    async def joined(server: Server) -> None:
        assert server.up
        names.append(server.name)
        if len(names) == 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                names.append("cancelled")
                raise

    async def main() -> None:
        async with Fake() as here, Fake() as late:
            await late.stop()
            engine = RemoteEngine([here.server(), late.server()], joined=joined)
            await engine.start()
            await asyncio.sleep(0.05)
            assert names == []
            for fake in (late, here, late):
                if fake.name in [server.name for server in engine.servers]:
                    await fake.stop()
                    await until(lambda fake=fake: fake.name not in [server.name for server in engine.servers])
                count = len(names)
                await fake.start()
                await until(lambda count=count: len(names) == count + 1)
            assert names == [late.name, here.name, late.name]
            await late.stop()
            await until(lambda: [server.name for server in engine.servers] == [here.name])
            await late.start()
            await until(lambda: len(engine.servers) == 2)
            assert len(names) == 3, "the last call still runs"
            await engine.stop()
            assert names[3:] == ["cancelled"]

    run(main)
