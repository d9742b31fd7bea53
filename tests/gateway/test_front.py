"""What the gateway refuses before it reads a request, what it keeps of a refused one, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def app_of(engine: ScriptedEngine, tok: Tokenizer, **settings: Any) -> Any:
    engine.ids = ids_of(Message(content="ok"), tok)
    return create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, **settings))


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_web_page_cannot_start_work(engine: ScriptedEngine, tok: Tokenizer, media_type: str) -> None:
    """Without asking, a page may send other origins these types only (Fetch, "CORS-safelisted request-header")."""
    body = httpx.Request("POST", "http://test", json=BODY).content
    headers = {"content-type": media_type} if media_type else {}
    async with client_of(app_of(engine, tok)) as client:
        refused = await client.post(PATH, content=body, headers=headers)
        taken = await client.post(PATH, content=body, headers={"content-type": "Application/JSON; charset=utf-8"})
    assert refused.status_code == 415 and "application/json" in refused.json()["error"]["message"]
    assert taken.status_code == 200 and len(engine.seen) == 1


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
async def test_a_foreign_host_is_refused(engine: ScriptedEngine, tok: Tokenizer, host: str, allowed: bool) -> None:
    """A page may give its own name this machine's address (DNS rebinding), and then shares the server's origin."""
    app = app_of(engine, tok, hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    async with client_of(app) as client:
        answers = [await client.get(path, headers={"host": host}) for path in ("/v1/models", "/health", "/metrics")]
        answers.append(await client.post(PATH, json=BODY, headers={"host": host}))
    assert [answer.status_code for answer in answers] == ([200] if allowed else [421]) * 4
    assert allowed or "--allow-host" in answers[0].json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({**BODY, "temperature": 9}, 400), ({**BODY, "model": "no"}, 404), ({**BODY, "pad": "x" * 20_000}, 413)],
)
async def test_nothing_of_a_refused_request_stays(
    engine: ScriptedEngine, tok: Tokenizer, body: dict[str, Any], status: int
) -> None:
    """A cycle through the exception's traceback would keep the body until the collector runs."""
    app = app_of(engine, tok, max_body_bytes=10_000)
    async with client_of(app) as client:
        await client.post(PATH, json=body)
        gc.collect()
        gc.disable()
        try:
            assert (await client.post(PATH, json=body)).status_code == status
            await asyncio.sleep(0)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            leaked = [each for each in gc.garbage if isinstance(each, asyncio.Future | BaseException)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert leaked == []


async def test_a_draining_server_refuses_what_has_no_token_yet(engine: ScriptedEngine, tok: Tokenizer) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def before(number: int) -> None:
        if len(engine.seen) == 2 or number:
            started.set()
            await go.wait()

    app = app_of(engine, tok)
    engine.before = before
    async with client_of(app) as client:
        assert (await client.get("/ready")).status_code == 200
        running = asyncio.create_task(client.post(PATH, json=BODY))
        await started.wait()
        waiting = asyncio.create_task(client.post(PATH, json=BODY))
        while len(engine.seen) < 2:
            await asyncio.sleep(0)
        app.state.draining.start()
        late = await client.post(PATH, json=BODY)
        refused = await waiting
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        go.set()
        assert (await running).status_code == 200
    for answer in (late, refused):
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert "shutting down" in answer.json()["error"]["message"]
    assert engine.running == 0 and len(engine.seen) == 2
