"""Pages about the server, keys, other origins, and paths that are not served."""

from __future__ import annotations

import json

import pytest

import dovetail
from dovetail.completion import MetricSample
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
KEY = "sesame-42"


async def test_the_pages(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        root = (await client.get("/")).json()
        assert root["server"] == "dovetail" and root["version"] == dovetail.__version__
        assert "POST /v1/chat/completions" in root["paths"] and "GET|POST /ping" in root["paths"]
        head = await client.head("/")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.get("/version")).json() == {"version": dovetail.__version__}
        for ping in (await client.get("/ping"), await client.post("/ping")):
            assert (ping.status_code, ping.json()) == (200, {"status": "ok", "model": MODEL})
        models = (await client.get("/v1/models")).json()
        assert models == (await client.get("/v1/models/")).json()
        assert models["data"] == [(await client.get(f"/v1/models/{MODEL}")).json()]


async def test_an_engine_that_is_down_fails_the_ping(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.gauges = lambda: [MetricSample("up", {}, 0)]  # type: ignore[method-assign]
    async with in_process(engine, tok) as client:
        assert [(await client.get(path)).status_code for path in ("/ping", "/health")] == [503, 503]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": KEY}, 401),
        ({"authorization": f"Bearer {KEY}2"}, 401),
        ({"x-api-key": KEY}, 200),
        ({"api-key": KEY}, 200),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "ü".encode()}, 401),
        ({"authorization": "Bearer other", "x-api-key": KEY}, 200),
        ({"authorization": "Bearer other", "api-key": "another"}, 401),
    ],
    ids=str,
)
async def test_a_key_may_come_in_three_headers(
    engine: ScriptedEngine, tok: Tokenizer, headers: dict[str, str], status: int
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    settings = Settings(served_model_name=MODEL, api_key=KEY)
    async with in_process(engine, tok, settings) as client:
        for path, body in [
            ("/v1/chat/completions", BODY),
            ("/v1/chat/completions/render", BODY),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": [1]}),
        ]:
            response = await client.post(path, json=body, headers=headers)
            assert response.status_code == status
            assert KEY not in response.text
        assert (await client.get("/v1/models/", headers=headers)).status_code == status
        assert (await client.get("/nowhere", headers=headers)).status_code == (404 if status == 200 else 401)
        open_paths = ["/", "/health", "/metrics", "/ping", "/version"]
        assert [(await client.get(path, headers=headers)).status_code for path in open_paths] == [200] * 5


ORIGIN = "https://app.example"


async def test_pages_of_other_origins_may_call_only_if_the_operator_lets_them(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    preflight = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    sent = {"origin": ORIGIN, "authorization": f"Bearer {KEY}"}
    async with in_process(engine, tok, Settings(served_model_name=MODEL, api_key=KEY)) as client:
        assert (await client.options("/v1/chat/completions", headers=preflight)).status_code == 401
        answer = await client.post("/v1/chat/completions", json=BODY, headers=sent)
        assert "access-control-allow-origin" not in answer.headers
    for origins, allowed in [((ORIGIN,), ORIGIN), (("*",), "*"), (("https://other.example",), None)]:
        settings = Settings(served_model_name=MODEL, api_key=KEY, allow_origins=origins)
        async with in_process(engine, tok, settings) as client:
            answered = await client.options("/v1/chat/completions", headers=preflight)
            assert answered.status_code == (400 if allowed is None else 200)
            assert answered.headers.get("access-control-allow-origin") == allowed
            if allowed:
                assert "x-stainless-os" in answered.headers["access-control-allow-headers"]
                assert "POST" in answered.headers["access-control-allow-methods"]
            # An error has to be readable too, streamed or not.
            for headers, body in [(sent, BODY), (sent, BODY | {"stream": True}), ({"origin": ORIGIN}, BODY), (sent, 3)]:
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.headers.get("access-control-allow-origin") == allowed
                assert answer.headers["access-control-expose-headers"] == "*"


async def test_a_slash_at_the_end_of_a_path_changes_nothing(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """A redirect would name HTTP behind a proxy that speaks HTTPS, and few clients follow one after a POST."""
    settings = Settings(served_model_name=MODEL, api_key=KEY)
    async with in_process(engine, tok, settings) as client:
        assert (await client.get("/health/")).status_code == 200
        assert (await client.get("/v1/models/")).status_code == 401
        sent = {"authorization": f"Bearer {KEY}"}
        assert (await client.get("/v1/models/", headers=sent)).json()["object"] == "list"
        assert (await client.get(f"/v1/models/{MODEL}/", headers=sent)).json()["id"] == MODEL
        for path in ("/v1/chat/completions/", "/v1/messages/", "/v1/responses//"):
            assert (await client.post(path, json={}, headers=sent)).status_code == 400
        assert (await client.post("/v1/messages/", json={}, headers=sent)).json()["type"] == "error"


@pytest.mark.parametrize(
    ("method", "path", "status", "hint"),
    [
        ("POST", "/chat/completions", 404, "/v1/chat/completions is: the client's base URL has to end with /v1"),
        ("GET", "/models", 404, "base URL has to end with /v1"),
        ("POST", "/v1/v1/chat/completions", 404, "its base URL has to end without"),
        ("POST", "/chat/completions/", 404, "/v1/chat/completions is: the client's base URL has to end with /v1"),
        ("POST", "//v1/chat/completions", 404, "is not served; /v1/chat/completions is"),
        (
            "POST",
            "/anthropic/v1/messages/count_tokens",
            404,
            "/anthropic/v1/messages/count_tokens is not served; /v1/messages",
        ),
        ("POST", "/v1/embeddings", 404, "served are POST /v1/chat/completions"),
        ("GET", "/docs", 404, "GET /v1/models"),
        ("GET", "/v1/chat/completions", 405, "is served for POST, not for GET"),
        ("DELETE", "/ping", 405, "is served for GET and POST, not for DELETE"),
        ("POST", "/" + "x" * 5000, 404, "xxx is not served"),
    ],
)
async def test_a_path_that_is_not_served_names_what_is(
    engine: ScriptedEngine, tok: Tokenizer, method: str, path: str, status: int, hint: str
) -> None:
    async with in_process(engine, tok) as client:
        response = await client.request(method, path, json={})
    error = json.loads(response.text)["error"]
    assert response.status_code == status
    assert hint in error["message"] and len(error["message"]) < 1500
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
