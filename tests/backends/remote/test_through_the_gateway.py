"""A chat completion on an engine behind HTTP: the gateway sends the grammar, and reports the drafts that are known."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.backends.remote import RemoteEngine, Server, Vocabulary
from dovetail.events import Call, Message
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import Fake, run, sse, vllm_chunk
from tests.gateway.scripted import MODEL, ids_of, in_process
from tests.tools import taking, tool

_WEATHER = tool("get_weather", taking({"city": {"type": "string"}}))
_SPECULATES = b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 0.0\n'
_TOLD = {"speculative_decoding": {"num_draft_tokens": 9, "num_accepted_draft_tokens": 5}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (500, (500, "the engine failed; ")),
        (503, (503, "the engine takes no ")),
        (400, (400, "the engine refused this: secret at")),
    ],
)
def test_clients_are_not_told_what_servers_say_of_themselves(
    small_tokenizer: Tokenizer, status: int, expected: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Fake(context=4096) as fake:
            end = (small_tokenizer.control["<|im_end|>"],)
            engine = RemoteEngine(
                [Server(fake.url, Vocabulary(small_tokenizer.vocab_size, end, small_tokenizer.control))]
            )
            await engine.start()
            fake.pages["/v1/completions"] = (status, b"secret at 10.0.0.7")
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            async with in_process(engine, small_tokenizer) as client:
                response = await client.post("/v1/chat/completions", json=body)
            await engine.stop()
        message = response.json()["error"]["message"]
        assert (response.status_code, message[: len(expected[1])]) == expected
        assert status == 400 or ("secret" not in message and fake.name not in message)
        assert status != 500 or f"{fake.name} failed with HTTP status 500: secret at 10.0.0.7" in caplog.text

    run(main)


@pytest.mark.parametrize("metrics", [b"", _SPECULATES])
def test_counts_after_a_stop_string_are_not_invented(small_tokenizer: Tokenizer, metrics: bytes) -> None:
    ids = small_tokenizer.encode("hello world STOP and more text follows here")

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for at in range(0, len(ids), 4):
            yield sse(vllm_chunk(ids[at : at + 4]))
        usage = {"prompt_tokens_details": {"cached_tokens": 5}}
        yield sse(vllm_chunk([], "length"), {"choices": [], "usage": usage, "metrics": _TOLD}, b"[DONE]")

    async def main() -> None:
        async with Fake(answer=answer, context=4096, metrics=(200, metrics)) as fake:
            end = (small_tokenizer.control["<|im_end|>"],)
            engine = RemoteEngine(
                [Server(fake.url, Vocabulary(small_tokenizer.vocab_size, end, small_tokenizer.control))]
            )
            await engine.start()
            body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            async with in_process(engine, small_tokenizer) as client:
                whole = (await client.post("/v1/chat/completions", json=body)).json()
                cut = (await client.post("/v1/chat/completions", json=body | {"stop": ["STOP"]})).json()
            await engine.stop()
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
        assert whole["usage"]["speculation"]["drafted"] == 9
        assert (whole["choices"][0]["finish_reason"], cut["choices"][0]["finish_reason"]) == ("length", "stop")
        assert "prompt_tokens_details" not in cut["usage"]
        # That nothing is drafted is known of some.
        assert ("speculation" in cut["usage"]) == (not metrics)

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("metrics", "expected", "speculation"),
    [(b"", None, (0, 0)), (_SPECULATES, _TOLD, (9, 5)), (_SPECULATES, None, None)],
)
def test_a_call(
    small_tokenizer: Tokenizer, stream: bool, metrics: bytes, expected: object, speculation: tuple[int, int] | None
) -> None:
    call = Call("functions.get_weather:0", "get_weather", '{"city": "Paris"}')
    ids = ids_of(Message(content="ok", calls=(call,)), small_tokenizer)

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        assert json.loads(body["structured_outputs"]["structural_tag"])["type"] == "structural_tag"
        for at in range(0, len(ids), 4):
            yield sse(vllm_chunk(ids[at : at + 4], "stop" if at + 4 >= len(ids) else None))
        yield sse({"choices": [], "usage": {}, "metrics": expected}, b"[DONE]")

    async def main() -> None:
        async with Fake(answer=answer, context=4096, metrics=(200, metrics)) as fake:
            end = (small_tokenizer.control["<|im_end|>"],)
            vocabulary = Vocabulary(small_tokenizer.vocab_size, end, small_tokenizer.control)
            engine = RemoteEngine([Server(fake.url, vocabulary)])
            await engine.start()
            body: dict[str, Any] = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [_WEATHER],
            }
            body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            async with in_process(engine, small_tokenizer) as client:
                response = await client.post("/v1/chat/completions", json=body)
            await engine.stop()
        assert response.status_code == 200, response.text
        if stream:
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
            calls = [each for event in events for c in event["choices"] for each in c["delta"].get("tool_calls", [])]
            arguments, usage = "".join(each["function"]["arguments"] for each in calls), events[-1]["usage"]
        else:
            arguments = response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
            usage = response.json()["usage"]
        assert json.loads(arguments) == {"city": "Paris"}
        assert usage["completion_tokens"] == len(ids)
        reported = usage.get("speculation")
        assert speculation == (None if reported is None else (reported["drafted"], reported["accepted"]))

    run(main)
