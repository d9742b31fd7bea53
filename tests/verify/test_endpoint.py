"""An endpoint that is down, slow, busy, or lacks something is not tested, and never has a wrong score."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from dovetail.client import transport
from dovetail.client.endpoint import Limits
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import HttpTransport, Reply, base_of
from dovetail.completion import Completion
from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.verify.language import Language
from dovetail.verify.suites.protocol import Protocol
from tests.verify.harness import AppTransport, Only, endpoint, gateway, verified
from tests.verify.model import Model


class Answers:
    """A transport that gives replies in turn, the last one for ever. `sent`: method and path of each request."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = [*replies]
        self.sent: list[tuple[str, str]] = []

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        self.sent.append((method, path))
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    async def close(self) -> None:
        pass


def reply(status: int, body: Any = None, retry_after: str | None = None) -> Reply:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(status, headers, json.dumps(body).encode())


def because(*replies: Reply, **options: Any) -> str:
    """Why nothing of an endpoint with these replies is tested."""
    (reason,) = {
        outcome.untested.because if outcome.untested else "tested"
        for outcome in verified(endpoint(Answers(*replies), **options), suites=[Protocol()])
    }
    return reason


NOTHING = Language()
MODELS = reply(200, {"data": [{"id": "m"}]})


def test_a_busy_endpoint_is_asked_again_when_it_says_so() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    busy = Answers(reply(429, retry_after="7"), reply(503), reply(529), reply(200, {}))
    answered = asyncio.run(endpoint(busy, sleep=sleep).send("GET", "/"))
    assert answered.status == 200
    assert waits == [7, 2, 4]


def test_an_endpoint_that_stays_busy_is_not_tested() -> None:
    assert "asked again in 999 seconds" in because(reply(429, retry_after="999"))
    assert "after 127 of waiting; 120 is the most" not in because(reply(503))
    assert "it answered 503" in because(reply(503))


def test_a_date_tells_how_long_to_wait() -> None:
    at = datetime.now(UTC) + timedelta(seconds=60)
    waits = [reply(429, retry_after=format_datetime(each, usegmt=True)).retry_after for each in (at, at - timedelta(1))]
    assert 50 < (waits[0] or 0) <= 60
    assert waits[1] == 0
    assert reply(429, retry_after="soon").retry_after is None


def test_the_number_of_requests_is_bounded() -> None:
    busy = AppTransport(gateway())
    outcomes = verified(endpoint(busy, limits=Limits(max_requests=20, max_tokens=64)), suites=[Protocol()])
    assert len(busy.requests) == 20
    reasons = [outcome.untested.because for outcome in outcomes if outcome.untested]
    assert set(reasons) == {"20 requests are sent (--max-requests)"}
    assert not any(outcome.failures for outcome in outcomes)


@pytest.mark.parametrize(
    ("replies", "options", "reason"),
    [
        ([reply(401)], {}, "a key is needed"),
        ([MODELS, reply(403)], {}, "a key is needed"),
        ([reply(200, {"data": []})], {}, "it lists no model: choose one with --model-name"),
        ([reply(200, {"data": [{"id": "a"}, {"id": "b"}]})], {}, "it lists a, b: choose one with --model-name"),
        ([reply(200, [1])], {}, "it lists no model: choose"),
        ([reply(200, {"data": [{"id": 1}, {"id": None}]})], {}, "it lists no model: choose"),
        ([reply(500)], {}, "it lists no model (/v1/models answered 500): choose one with --model-name"),
        ([MODELS], {"model": "n"}, "it does not serve 'n', but m"),
        ([reply(404), reply(404, {"error": {"message": "no route"}})], {"model": "n"}, "no model 'n': 404: no route"),
        ([MODELS, reply(400, {"error": "no"})], {}, "it refuses a plain request: 400"),
        ([MODELS, reply(500, {"error": {"message": "boom"}})], {}, "it answered 500: boom"),
        ([MODELS, reply(500, "boom")], {}, 'it answered 500: "boom"'),
        ([MODELS, reply(200, "<html>")], {}, 'it answers a plain request with no chat completion: "<html>"'),
        (
            [MODELS, reply(200, {"error": {"message": "busy"}})],
            {},
            'no chat completion: {"error": {"message": "busy"}}',
        ),
        ([MODELS, reply(200, {"choices": []})], {}, "no chat completion"),
        ([MODELS, reply(200, {"choices": [{"message": None}]})], {}, "no chat completion"),
    ],
)
def test_nothing_is_tested_where_nothing_answers(replies: list[Reply], options: dict[str, Any], reason: str) -> None:
    assert reason in because(*replies, **options)


def without(field: str, message: str, model: Model | None = None) -> AppTransport:
    """A gateway that refuses requests with a field."""
    transport = AppTransport(gateway(model))
    send = transport.send

    async def refusing(method: str, path: str, body: bytes | None) -> Reply:
        if body is not None and field in json.loads(body):
            return reply(400, {"error": {"message": message}})
        return await send(method, path, body)

    transport.send = refusing  # type: ignore[method-assign]
    return transport


@pytest.mark.parametrize(
    ("field", "cases", "reason"),
    [
        ("tools", ("call/auto",), "it refuses a request with tools: 400: no tools here"),
        ("stream", ("stream-equals-whole/text",), "it refuses to stream: 400: no tools here"),
    ],
)
def test_what_an_endpoint_lacks_is_not_tested(field: str, cases: tuple[str, ...], reason: str) -> None:
    outcomes = verified(endpoint(without(field, "no tools here")), suites=[Only(Protocol(), *cases)])
    assert {outcome.untested and outcome.untested.because for outcome in outcomes} == {reason}
    assert not any(outcome.untested.blocking for outcome in outcomes if outcome.untested)


@pytest.mark.parametrize("case", ["stream-equals-whole/text", "call/streamed", "tool-choice/required-streamed"])
def test_a_stream_that_is_none_is_not_tested(case: str) -> None:
    def whole(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(200, reply.headers, b"{}") if reply.body.startswith(b"data:") else reply

    outcomes = verified(endpoint(AppTransport(gateway(), whole)), suites=[Only(Protocol(), case)])
    (outcome,) = (outcome for outcome in outcomes if outcome.case == case)
    assert outcome.untested and "something else" in outcome.untested.because


def test_an_endpoint_with_sampling_of_its_own_is_asked_without_a_temperature() -> None:
    fixed = without("temperature", "temperature is fixed")
    (outcome,) = verified(endpoint(fixed), suites=[Only(Protocol(), "finish/stop")])
    assert outcome.passed
    last = json.loads(fixed.requests[-1][1] or b"")
    assert "temperature" not in last and last["seed"] == 1


class Fickle(Model):
    """Another answer to each request."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        return Message(f"Hello number {len(self.seen)}.")


def test_two_different_answers_to_one_request_are_not_compared() -> None:
    cases = Only(Protocol(), "stream-equals-whole/text", "together/")
    outcomes = verified(endpoint(AppTransport(gateway(Fickle()))), suites=[cases])
    stream, together = (outcome.untested.because if outcome.untested else outcome for outcome in outcomes)
    assert "the same request has two whole answers" in str(stream)
    assert "the same request has two answers" in str(together)


class SometimesFickle(Model):
    """The same answer to each request, but for requests of some numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = numbers

    def wish(self, prompt: str, completion: Completion) -> Message:
        return Message("Goodbye." if len(self.seen) in self._numbers else "Hello there.")


def numbers_of(case: str, **options: Any) -> list[int]:
    """The numbers of the requests of a case, behind those with which the endpoint is probed."""
    model = Model()
    (outcome,) = verified(endpoint(AppTransport(gateway(model))), suites=[Only(Protocol(), case)], **options)
    assert outcome.passed
    last = len(model.seen)
    return [last - 1, last]


@pytest.mark.parametrize("later", [1, 2, 3])
def test_an_answer_that_is_the_same_twice_by_chance_proves_nothing(later: int) -> None:
    _, stream = numbers_of("stream-equals-whole/text")
    model = SometimesFickle(stream, stream + later)
    (outcome,) = verified(
        endpoint(AppTransport(gateway(model))), suites=[Only(Protocol(), "stream-equals-whole/text")], language=NOTHING
    )
    assert outcome.untested and "the same request has two whole answers" in outcome.untested.because


def test_sampled_streams_that_differ_among_each_other_prove_nothing() -> None:
    case = "stream-equals-whole/text"
    model = SometimesFickle()
    fixed = without("temperature", "temperature is fixed", model)
    verified(endpoint(fixed), suites=[Only(Protocol(), case)], language=NOTHING)
    model = SometimesFickle(len(model.seen))
    fixed = without("temperature", "temperature is fixed", model)
    (outcome,) = verified(endpoint(fixed), suites=[Only(Protocol(), case)], language=NOTHING)
    assert outcome.untested and "the same request has two streams" in outcome.untested.because


# -- over a real connection ------------------------------------------------------------------------------------------


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(answer: Handler) -> AsyncIterator[str]:
    ended: list[asyncio.Future[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = asyncio.get_running_loop().create_future()
        ended.append(end)
        try:
            with suppress(asyncio.IncompleteReadError):  # a client that gives up before it has asked
                seen.append(await reader.readuntil(b"\r\n\r\n"))
                await answer(reader, writer)
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
        finally:
            end.set_result(None)

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with listening:
        try:
            yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        finally:
            for end in ended:
                await end


seen: list[bytes] = []


def fetched(answer: Handler, timeout_s: float = 30, key: str = "sk-secret") -> Reply:
    async def fetch() -> Reply:
        async with server(answer) as url:
            http = HttpTransport(url, key, timeout_s)
            try:
                return await http.send("POST", "/v1/x", b"{}")
            finally:
                await http.close()

    return asyncio.run(fetch())


def text(raw: bytes) -> Handler:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


def test_a_whole_reply_comes_back_and_the_key_is_sent() -> None:
    got = fetched(text(b"HTTP/1.1 429 Busy\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno"))
    assert (got.status, got.body, got.retry_after) == (429, b"no", 3)
    assert b"Authorization: Bearer sk-secret" in seen[-1]


@pytest.mark.parametrize(("key", "body"), [("sk-a-secret-key", b"[key] is wrong"), ("no word", b"no word is wrong")])
def test_a_key_that_a_reply_repeats_is_not_in_it(key: str, body: bytes) -> None:
    error = key.encode() + b" is wrong"
    raw = b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(error), error)
    assert fetched(text(raw), key=key).body == body


def test_a_redirect_is_not_followed_with_the_key() -> None:
    before = len(seen)
    moved = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    assert fetched(text(moved)).status == 307
    assert len(seen) == before + 1


def test_connections_that_fail_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotTested, match="closed the connection"):
        fetched(text(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno"))

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client has closed its end

    with pytest.raises(NotTested, match=r"did not finish an answer within 0\.05 seconds"):
        fetched(silent, timeout_s=0.05)
    monkeypatch.setattr(transport, "REPLY_BYTES", 1)
    with pytest.raises(NotTested, match="larger than 1 bytes"):
        fetched(text(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"))


def test_an_endpoint_that_is_down_is_not_tested() -> None:
    async def fetch() -> None:
        async with server(text(b"")) as url:
            pass
        http = HttpTransport(url, None, 30)
        try:
            await http.send("GET", "/", None)
        finally:
            await http.close()

    with pytest.raises(NotTested, match="it cannot be reached: Connection refused"):
        asyncio.run(fetch())


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://api.example.com/v1/", "https://api.example.com"),
        ("https://router.example/api/v1", "https://router.example/api"),
        ("http://[::1]:80/v1", "http://[::1]:80"),
    ],
)
def test_a_url_is_taken_with_and_without_v1(url: str, base: str) -> None:
    assert base_of(url) == base


@pytest.mark.parametrize(
    "url", ["api.example.com", "ftp://x", "http://", "http://x?key=1", "http://x:port", "http://k@x"]
)
def test_a_url_that_is_none_or_may_have_a_key_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        base_of(url)
    assert ("key" not in url and "k@" not in url) or url not in refusal.value.message
