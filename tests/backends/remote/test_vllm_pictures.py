"""Pictures to vLLM over a real connection, as its endpoint for token ids takes them (the real one: tests/vllm)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.completion import Picture, Sampling, TokenBatch
from dovetail.errors import InvalidRequest
from dovetail.grammar import FreeText, Grammar
from tests.backends.remote.fake import EOS, PROMPT, Fake, completion, continuation, ids_of, sse, whole

PATH = "/inference/v1/generate"
DATA = b"a file"
PICTURE = Picture(DATA, "image/png", hashlib.sha256(DATA).hexdigest())
URL = "data:image/png;base64," + base64.b64encode(DATA).decode()
#: What vLLM 0.32 says to a picture that cannot be read, and what models without eyes say before they look at one.
UNREADABLE = "Failed to load image: cannot identify image file <_io.BytesIO object>"


def chunk(ids: list[int], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": "x",
        "usage": None,
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, **fields}],
    }


async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
    ids = continuation(body["token_ids"], body["sampling_params"]["max_tokens"])
    yield sse(chunk(ids[:3]) | {"prompt_token_ids": [5] * 50, "mm_placeholders": {"image": []}})
    yield sse(chunk([]), chunk(ids[3:], "length"))
    details = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 32}}
    yield sse({"choices": [], "usage": details}, b"[DONE]")


def error(message: str) -> bytes:
    return b'{"error": {"message": "%s", "type": "BadRequestError", "code": 400}}' % message.encode()


class Seeing(Fake):
    """A vLLM whose endpoint says `message` to the picture that is none."""

    def __init__(self, message: str = UNREADABLE, status: int = 400, answer: Any = answer) -> None:
        super().__init__(answer=answer)
        self.pages[PATH] = lambda body: (status, error(message)) if _probe(body) else self._generate(body)

    def _generate(self, body: Any) -> Any:
        self.received.append(body)


def _probe(body: Any) -> bool:
    return bool(body["content_parts"] == [{"type": "image_url", "url": "data:image/png;base64,AAAA"}])


async def asked(fake: Fake, **fields: Any) -> list[TokenBatch]:
    server = fake.server()
    try:
        await server.open()
        return await whole(server, completion(8, (5, 6, 7), **fields))
    finally:
        await server.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("message", "status", "sees"),
    [
        (UNREADABLE, 400, True),
        ("At most 0 image(s) may be provided in one prompt.", 400, False),
        ("m is not a multimodal model", 400, False),
        ("Not Found", 404, False),
        ("Failed to load image", 500, False),
    ],
)
async def test_a_vllm_is_asked_whether_it_takes_pictures(message: str, status: int, sees: bool) -> None:
    async with Seeing(message, status) as fake:
        server = fake.server()
        await server.open()
        assert server.info.pictures is sees
        await server.close()


@pytest.mark.anyio
async def test_the_request_with_pictures() -> None:
    async with Seeing() as fake:
        await asked(fake, pictures=(PICTURE, PICTURE), sampling=Sampling(temperature=0.5, seed=3), min_tokens=2)
        (body,) = fake.received
    assert body.pop("request_id") == "dovetail-0"
    assert body == {
        "model": "m",
        "token_ids": [*PROMPT],
        "content_parts": [{"type": "image_url", "url": URL}] * 2,
        "sampling_params": {
            "max_tokens": 8,
            "min_tokens": 2,
            "stop_token_ids": [EOS],
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": 3,
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


@pytest.mark.anyio
async def test_a_grammar_applies_from_the_first_token() -> None:
    async with Seeing() as fake:
        await asked(fake, pictures=(PICTURE,), grammar=Grammar(FreeText()))
        (body,) = fake.received
    assert body["reasoning_ended"] is True
    assert "structural_tag" in body["sampling_params"]["structured_outputs"]


@pytest.mark.anyio
async def test_a_salt_goes_with_the_pictures() -> None:
    async with Seeing() as fake:
        await asked(fake, pictures=(PICTURE,), cache_salt="mine")
        (body,) = fake.received
    assert body["cache_salt"] == "mine"


@pytest.mark.anyio
async def test_the_answer_says_how_long_the_prompt_is_with_its_pictures() -> None:
    async with Seeing() as fake:
        batches = await asked(fake, pictures=(PICTURE,))
    assert ids_of(batches) == continuation(PROMPT, 8)
    assert [batch.prompt_tokens for batch in batches] == [50] + [None] * (len(batches) - 1)
    assert (batches[-1].finish, batches[-1].cached) == ("length", 32)


@pytest.mark.anyio
async def test_log_probabilities_beside_pictures() -> None:
    async def scored(body: dict[str, Any]) -> AsyncIterator[bytes]:
        top = [{"token_id": 9, "logprob": -3.0}, {"token_id": 8, "logprob": -1.0}, {"token_id": 7, "logprob": -2.0}]
        content = [{"token_id": 9, "logprob": -3.0, "rank": 3, "top_logprobs": top}]
        yield sse(chunk([9], "length", logprobs={"content": content if body["sampling_params"]["logprobs"] else []}))

    async with Seeing(answer=scored) as fake:
        (batch,) = await asked(fake, pictures=(PICTURE,), logprobs=2)
        assert batch.logprobs[0].logprob == -3.0 and batch.logprobs[0].top == ((8, -1.0), (7, -2.0))
        with pytest.raises(Exception, match="cannot be read: log probabilities that do not match"):
            await asked(fake, pictures=(PICTURE,), logprobs=0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, UNREADABLE),
        (
            500,
            "Expected there to be 2 prompt placeholders, but instead found 1 prompt placeholders!",
        ),
    ],
)
async def test_a_picture_that_vllm_cannot_read_or_place_is_the_clients_error(status: int, message: str) -> None:
    """The same request again would fail in the same way."""
    async with Seeing() as fake:
        fake.pages[PATH] = lambda body: (status, error(message))
        with pytest.raises(InvalidRequest, match=f"the engine refused this: {message[:20]}"):
            await asked(fake, pictures=(PICTURE,))
