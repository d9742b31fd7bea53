"""Faults of a server behind HTTP as clients of every API see them: 502, 503, 504, and nothing private."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from dovetail.backends.remote import Deadlines, RemoteEngine, Server, Vocabulary
from dovetail.backends.remote.errors import GAP, redacted, seconds_of
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import Answer, Fake, run, sse, vllm_chunk
from tests.gateway.scripted import MODEL, in_process

MESSAGES: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
#: A request of each API.
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 8},
    "/v1/messages": MESSAGES,
    "/v1/responses": {"model": MODEL, "input": "hi", "max_output_tokens": 16},
}
each_api = pytest.mark.parametrize("path", REQUESTS)
LATE_FIRST = Deadlines(first_token_s=0.1, idle_s=60)
LATE_NEXT = Deadlines(first_token_s=60, idle_s=0.1)
PATIENT = Deadlines(first_token_s=60, idle_s=60)


@asynccontextmanager
async def in_front(
    fakes: list[Fake], tokenizer: Tokenizer, deadlines: Deadlines = PATIENT, patience_s: float = 0.2
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway in front of `fakes`."""
    vocabulary = Vocabulary(tokenizer.vocab_size, (tokenizer.control["<|im_end|>"],), tokenizer.control)
    servers = [Server(fake.url, vocabulary, deadlines=deadlines) for fake in fakes]
    engine = RemoteEngine(servers, patience_s=patience_s)
    await engine.start()
    try:
        async with in_process(engine, tokenizer) as client:  # type: ignore[arg-type]
            yield client
    finally:
        await engine.stop()


def last_error(response: httpx.Response) -> dict[str, Any]:
    """The error in the last event of a stream, whatever the API."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    event = json.loads(lines[-1].removeprefix("data: "))
    error: dict[str, Any] = event["response"]["error"] if event.get("type") == "response.failed" else event["error"]
    return error


async def hanging(body: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def commenting(body: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield b": still there\n\n"
        await asyncio.sleep(0.01)


async def stalling(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield sse(vllm_chunk([72]))
    yield sse(vllm_chunk([73]))
    await asyncio.Event().wait()


async def dying(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield sse(vllm_chunk([72]))
    yield sse(vllm_chunk([73]))
    raise OSError


@each_api
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", [hanging, commenting])
def test_a_silent_server_is_a_504(path: str, stream: bool, answer: Answer, small_tokenizer: Tokenizer) -> None:
    async def main() -> None:
        async with Fake(answer=answer, context=4096) as fake, in_front([fake], small_tokenizer, LATE_FIRST) as client:
            response = await client.post(path, json=REQUESTS[path] | {"stream": stream})
        body = response.json()
        assert response.status_code == 504 and fake.name not in response.text
        assert "did not answer in time" in body["error"]["message"]
        if path == "/v1/messages":
            assert (body["type"], body["error"]["type"]) == ("error", "timeout_error")
        else:
            assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "engine_timeout")

    run(main)


def test_a_server_whose_health_is_silent_too_is_a_504(small_tokenizer: Tokenizer) -> None:
    """The client has waited for its deadline, and does not wait for the server's health besides."""

    async def main() -> None:
        async with Fake(answer=hanging, context=4096) as fake, in_front([fake], small_tokenizer, LATE_FIRST) as client:
            fake.late.add("/health")
            response = await client.post("/v1/chat/completions", json=MESSAGES)
        assert response.status_code == 504

    run(main)


@each_api
@pytest.mark.parametrize(
    ("answer", "deadlines", "words"),
    [(stalling, LATE_NEXT, "did not answer in time"), (dying, PATIENT, "cannot be reached, or was lost")],
)
def test_a_server_that_stops_within_a_stream_is_an_event(
    path: str, answer: Answer, deadlines: Deadlines, words: str, small_tokenizer: Tokenizer
) -> None:
    async def main() -> None:
        async with Fake(answer=answer, context=4096) as fake, in_front([fake], small_tokenizer, deadlines) as client:
            response = await client.post(path, json=REQUESTS[path] | {"stream": True})
        assert response.status_code == 200 and fake.name not in response.text
        assert words in last_error(response)["message"]

    run(main)


@each_api
def test_a_server_that_stops_within_a_whole_answer_is_a_status(path: str, small_tokenizer: Tokenizer) -> None:
    async def main(answer: Answer, status: int) -> None:
        async with Fake(answer=answer, context=4096) as fake, in_front([fake], small_tokenizer, LATE_NEXT) as client:
            assert (await client.post(path, json=REQUESTS[path])).status_code == status

    for answer, status in ((stalling, 504), (dying, 502)):
        run(lambda answer=answer, status=status: main(answer, status))  # type: ignore[misc]


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_is_down_is_a_502(
    path: str, stream: bool, small_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Fake(context=4096) as fake, in_front([fake], small_tokenizer) as client:
            await fake.stop()
            response = await client.post(path, json=REQUESTS[path] | {"stream": stream})
        assert response.status_code == 502 and fake.name not in response.text
        message = response.json()["error"]["message"]
        assert "the engine cannot be reached" in message and "takes no more requests" not in message
        assert response.headers["x-request-id"] in message
        assert f"{fake.name}: no engine answered for 0.2 seconds" in caplog.text

    run(main)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_servers_status_and_wait_are_passed_on(status: int, small_tokenizer: Tokenizer) -> None:
    async def main() -> None:
        async with Fake(context=4096) as fake, in_front([fake], small_tokenizer) as client:
            fake.pages["/v1/completions"] = (status, b"full, says 10.0.0.7", [("Retry-After", "17")])
            for path, body in REQUESTS.items():
                response = await client.post(path, json=body | {"stream": True})
                assert (response.status_code, response.headers["retry-after"]) == (status, "17")
                assert "10.0.0.7" not in response.text and "try again later" in response.json()["error"]["message"]

    run(main)


@pytest.mark.parametrize(
    ("refusals", "status", "wait"),
    [
        ([(429, "30"), (429, "20")], 429, "20"),
        ([(429, "30"), (503, "20")], 503, "20"),
        ([(503, "30"), (503, None)], 503, "1"),  # one that names no time may have room at once
        ([(429, None), (429, None)], 429, "1"),
    ],
)
def test_of_several_servers_what_is_true_of_all_is_passed_on(
    refusals: list[tuple[int, str | None]], status: int, wait: str, small_tokenizer: Tokenizer
) -> None:
    async def main() -> None:
        async with (
            Fake(context=4096) as one,
            Fake(context=4096) as two,
            in_front([one, two], small_tokenizer, patience_s=60) as client,
        ):
            for fake, (code, seconds) in zip((one, two), refusals, strict=True):
                headers = [] if seconds is None else [("Retry-After", seconds)]
                fake.pages["/v1/completions"] = (code, b"full", headers)
            response = await client.post("/v1/chat/completions", json=MESSAGES)
        assert (response.status_code, response.headers["retry-after"]) == (status, wait)

    run(main)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("17", 17),
        (" 17 ", 17),
        ("0", 0),
        ("9" * 400, 86_400),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0),
        ("Mon, 01 Jan 9999 00:00:00 GMT", 86_400),
        ("Mon, 99 Jan 2001 00:00:00 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: int | None) -> None:
    assert seconds_of(header) == seconds


def test_retry_after_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=500), usegmt=True)
    assert 400 < (seconds_of(later) or 0) <= 500


PRIVATE = (
    'File "/srv/models/vllm/engine/core.py", line 12, in step',
    "/srv/models/kimi",
    "C:\\models\\kimi\\weights",
    "vllm/engine/core.py",
    "~/secret.txt",
    "http://gpu-17:8000/v1",
    "gpu-17.cluster.internal",
    "10.0.0.7:8000",
    "10.0.0.7",
    "[fd00::7]:8000",
    "gpu-17:8000",
    "torch.cuda.OutOfMemoryError",
)


@pytest.mark.parametrize("private", PRIVATE)
def test_private_parts_are_removed(private: str) -> None:
    text = redacted(f"max_tokens is 5000 (at {private}), which is too large")
    assert private not in text and GAP in text
    assert text.startswith("max_tokens is 5000 (at ")


def test_a_traceback_is_removed_to_its_end() -> None:
    text = 'no room Traceback (most recent call last): File "/a/b.py", line 1, in f raise Secret(7) Secret: 7'
    assert redacted(text) == f"no room {GAP}"


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, "
        "1000 in the completion). Please reduce the length of the messages or completion.",
        "temperature must be non-negative, got -0.5.",
        "top_p must be in (0, 1], got 1.5, and/or min_p",
        "",
    ],
)
def test_what_helps_a_client_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(("upstream", "status"), [(400, 400), (422, 400), (500, 500), (502, 502), (504, 504)])
def test_nothing_private_in_a_servers_text_is_passed_on(
    upstream: int, status: int, small_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = f"no room at {', '.join(PRIVATE)}"
    body = json.dumps({"error": {"message": text, "code": upstream}}).encode()

    async def main() -> None:
        async with Fake(context=4096) as fake, in_front([fake], small_tokenizer) as client:
            fake.pages["/v1/completions"] = (upstream, body)
            for path, requested in REQUESTS.items():
                caplog.clear()
                response = await client.post(path, json=requested)
                assert response.status_code == status
                assert not [private for private in (*PRIVATE, fake.name) if private in response.text]
                assert "/srv/models/kimi" in caplog.text, "the operator sees it"
            fake.pages["/v1/completions"] = None
            assert (await client.post("/v1/chat/completions", json=MESSAGES)).status_code == 200

    run(main)


@pytest.mark.parametrize("code", [400, 429, 500])
def test_nothing_private_in_an_error_event_is_passed_on(code: int, small_tokenizer: Tokenizer) -> None:
    async def failing(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sse(vllm_chunk([72]))
        yield sse(vllm_chunk([73]))
        yield sse({"error": {"message": "at /srv/models/kimi on gpu-17:8000", "code": code}})

    async def main() -> None:
        async with Fake(answer=failing, context=4096) as fake, in_front([fake], small_tokenizer) as client:
            response = await client.post("/v1/chat/completions", json=MESSAGES | {"stream": True})
        assert last_error(response)["message"]
        assert "/srv" not in response.text and "gpu-17" not in response.text

    run(main)
