"""Cached prompts are kept apart: by key, and by the `cache_salt` of a request, in every API."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.bodies import salt_and_session
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
APIS: list[tuple[str, dict[str, Any]]] = [
    CHAT,
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
    ("/v1/responses", {"input": "hi"}),
]


@pytest.fixture
def engine(engine: ScriptedEngine, tok: Tokenizer) -> ScriptedEngine:
    engine.ids = ids_of(Message(content="ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, salts_cache=True)
    return engine


async def salts(engine: ScriptedEngine, tok: Tokenizer, settings: Settings, *requests: Any) -> list[str | None]:
    """What the engine gets for requests, each an API, a body's further fields and headers."""
    engine.seen.clear()
    async with in_process(engine, tok, settings) as client:
        for (path, body), fields, headers in requests:
            answer = await client.post(path, json={"model": MODEL, **body, **fields}, headers=headers)
            assert answer.status_code == 200 and "x-dovetail-omitted" not in answer.headers, answer.text
    return [each.cache_salt for each in engine.seen]


@pytest.mark.parametrize("api", APIS)
async def test_each_key_has_a_salt_of_its_own(
    engine: ScriptedEngine, tok: Tokenizer, api: tuple[str, dict[str, Any]]
) -> None:
    alice, bob, own = bearer("alice"), bearer("bob"), {"cache_salt": "own"}
    settings = keyed(named("alice"), named("bob"), api_key="sesame")
    requests = [(api, {}, alice), (api, {}, bob), (api, own, alice), (api, own, bob), (api, {}, alice)]
    requests += [(api, {}, {"x-api-key": "sesame"}), (api, own, {"x-api-key": "sesame"})]
    *named_ones, again, unnamed, salted = await salts(engine, tok, settings, *requests)
    assert len({*named_ones, salted}) == 5 and again == named_ones[0] and unnamed is None
    for salt in named_ones:
        assert salt is not None and len(salt) == 64 and salt.isalnum()  # vLLM takes no more than 128, without / and @


@pytest.mark.parametrize("api", APIS)
async def test_without_keys_the_clients_own_salt_counts(
    engine: ScriptedEngine, tok: Tokenizer, api: tuple[str, dict[str, Any]]
) -> None:
    fields: list[dict[str, Any]] = [{"cache_salt": "/@ long" * 40}, {"cache_salt": "b"}, {"cache_salt": None}, {}]
    first, second, *none = await salts(engine, tok, Settings(served_model_name=MODEL), *((api, f, {}) for f in fields))
    assert first and second and first != second and none == [None, None]


async def test_keys_may_share(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Then salts are those of clients alone."""
    settings = keyed(named("alice"), named("bob"), salt_cache=False)
    own = {"cache_salt": "own"}
    requests = [(CHAT, each, bearer(name)) for each in ({}, own) for name in ("alice", "bob")]
    none, also_none, one, other = await salts(engine, tok, settings, *requests)
    assert none is also_none is None and one == other is not None


@pytest.mark.parametrize("value", ["", 5, ["a"], {"a": 1}])
@pytest.mark.parametrize("api", APIS)
async def test_a_salt_that_is_no_text_is_refused(
    engine: ScriptedEngine, tok: Tokenizer, api: tuple[str, dict[str, Any]], value: Any
) -> None:
    path, body = api
    async with in_process(engine, tok) as client:
        refused = await client.post(path, json={"model": MODEL, **body, "cache_salt": value})
    assert refused.status_code == 400 and "cache_salt" in refused.json()["error"]["message"]


def test_a_salt_elsewhere_in_the_body_is_none() -> None:
    assert salt_and_session(b'{"metadata": {"cache_salt": 5}}')[0] is None
    assert salt_and_session(b'["cache_salt"]')[0] is None and salt_and_session(b'"cache_salt')[0] is None


async def test_an_engine_without_salts_is_told_about(
    engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """The client that asks for one reads it in a header, the operator of named keys in the log."""
    engine.info = msgspec.structs.replace(engine.info, salts_cache=False)
    caplog.set_level(logging.WARNING, "dovetail.gateway")
    async with in_process(engine, tok) as client:
        path, body = CHAT
        answer = await client.post(path, json={"model": MODEL, **body, "cache_salt": "a"})
    assert answer.headers["x-dovetail-omitted"] == "cache_salt" and engine.seen[-1].cache_salt is None
    for settings, warns in ((keyed(named("a")), True), (keyed(named("a"), salt_cache=False), False)):
        caplog.clear()
        app = create_app(engine, KimiK25(), tok, settings)
        async with app.router.lifespan_context(app):
            assert ("no salts for cached prompts" in caplog.text) is warns
