"""The session of a request: where clients name it, what stands for one that they do not name, and who gets it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dovetail.backends.remote import RemoteEngine, Server, Vocabulary
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.bodies import salt_and_session
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import Fake, run, vllm_answer
from tests.backends.remote.test_llama_cpp import ending, event_of
from tests.backends.remote.test_sglang import sglang
from tests.gateway.scripted import MODEL

HELLO = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
AGAIN = [*HELLO["messages"], {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]  # type: ignore[misc]


@asynccontextmanager
async def gateway(fake: Fake, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    end = (tokenizer.control["<|im_end|>"],)
    engine = RemoteEngine([Server(fake.url, Vocabulary(tokenizer.vocab_size, end, tokenizer.control))])
    app = create_app(engine, KimiK25(), tokenizer, Settings(served_model_name=MODEL))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client,
    ):
        yield client


def sent(fake: Fake) -> str | None:
    """The session that the server got with the last completion."""
    heads = [head for head in fake.headers if head.startswith("POST /v1/completions")]
    return dict(line.split(": ", 1) for line in heads[-1].splitlines()[1:] if line).get("X-Session-ID")


def test_sessions_as_clients_name_them(small_tokenizer: Tokenizer) -> None:
    fields: list[tuple[dict[str, Any], str]] = [
        ({"session_id": "s", "prompt_cache_key": "k"}, "s"),
        ({"prompt_cache_key": "k", "user": "u"}, "k"),
        ({"metadata": {"session_id": "m"}, "user": "u"}, "m"),
        ({"metadata": {"user_id": "user_1_session_2"}}, "user_1_session_2"),
        ({"user": "u"}, "u"),
    ]

    async def main() -> None:
        async with Fake(context=4096) as fake, gateway(fake, small_tokenizer) as client:
            for more, session in fields:
                assert (await client.post("/v1/chat/completions", json=HELLO | more)).status_code == 200
                assert sent(fake) == session
                headers = {"X-Session-ID": "mine"}
                answer = await client.post("/v1/chat/completions", json=HELLO | more, headers=headers)
                assert answer.status_code == 200 and "session_id" not in answer.headers.get("x-dovetail-omitted", "")
                assert sent(fake) == "mine"
            await client.post("/v1/messages", json=HELLO | {"metadata": {"user_id": "claude"}})
            assert sent(fake) == "claude"
            await client.post("/v1/responses", json={"model": MODEL, "input": "hello", "prompt_cache_key": "codex"})
            assert sent(fake) == "codex"

    run(main)


def test_a_conversation_without_a_name_is_known_by_its_beginning(small_tokenizer: Tokenizer) -> None:
    async def main() -> None:
        async with Fake(context=4096) as fake, gateway(fake, small_tokenizer) as client:

            async def session(**more: Any) -> str | None:
                assert (await client.post("/v1/chat/completions", json=HELLO | more)).status_code == 200
                return sent(fake)

            first = await session()
            assert first and await session(messages=AGAIN, temperature=0.5) == first
            others = [{"role": "system", "content": "You are terse."}, *HELLO["messages"]]  # type: ignore[misc]
            assert await session(messages=others) != first
            assert await session(messages=[{"role": "user", "content": "hullo"}]) != first
            assert await session(cache_salt="mine") != first
            hidden = await session(user="Zoë")
            assert hidden and hidden.isascii() and hidden != first, "no header can have it"
            assert await session(user="Zoë", messages=AGAIN) == hidden
            await client.post("/v1/completions", json={"model": MODEL, "prompt": "hello", "max_tokens": 4})
            assert sent(fake) is None

    run(main)


def test_priorities_go_to_engines_that_have_them(small_tokenizer: Tokenizer) -> None:
    end = small_tokenizer.control["<|im_end|>"]

    async def of_sglang(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([end], 1, {"type": "stop"})

    async def of_llama_cpp(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield event_of([end], 1)
        yield ending(1, "eos")

    servers = [("vllm", vllm_answer, True), ("sglang", of_sglang, True), ("llamacpp", of_llama_cpp, False)]

    async def main() -> None:
        for owner, says, passed in servers:
            async with Fake(owner, says, context=4096) as fake, gateway(fake, small_tokenizer) as client:
                before = len(fake.received)
                answer = await client.post("/v1/chat/completions", json=HELLO | {"priority": -3})
                assert (fake.received[before:][-1].get("priority") == -3) is passed, owner
                assert ("priority" in answer.headers.get("x-dovetail-omitted", "")) is not passed
                for body in (HELLO | {"priority": "high"}, HELLO | {"priority": 1 << 31}):
                    answer = await client.post("/v1/chat/completions", json=body)
                    assert answer.status_code == 400 and answer.json()["error"]["param"] == "priority"

    run(main)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b'{"metadata": "text"}', b'{"metadata": {"user_id": 1}}', b'{"user": ["u"]}'),
        *(b'{"user": ""}', b'{"user": "\xff"}', b'{"metadata": ' + b"[" * 10_000, b'{"prompt_cache_key": null}'),
    ],
)
def test_what_is_no_session(body: bytes) -> None:
    assert salt_and_session(body) == (None, "")


def test_a_session_beside_a_salt() -> None:
    body = {"cache_salt": "s", "user": "u", "messages": [{"user": "other"}]}
    assert salt_and_session(json.dumps(body).encode()) == ("s", "u")
