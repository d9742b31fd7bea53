"""Further names of the model: a map of aliases, or any name at all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dovetail.cli.serve import check_servable, gateway_app
from dovetail.errors import PlanError
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.plan import resolve
from dovetail.server.api_keys import NO_KEYS
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [USER]}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses/compact", {"input": "hi"}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
    ("/v1/messages/count_tokens", {"messages": [USER]}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions/render", {"messages": [USER]}),
    ("/tokenize", {"prompt": "hi"}),
    ("/detokenize", {"tokens": [5]}),
]


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
async def test_every_path_takes_an_alias_and_names_the_model_as_asked(
    engine: ScriptedEngine, tok: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    settings = Settings(served_model_name=MODEL, aliases=("haiku", "claude-*-5"))
    async with in_process(engine, tok, settings) as client:
        for name in ("haiku", "claude-haiku-5", MODEL):
            answer = await client.post(path, json={"model": name, **body})
            assert answer.status_code == 200, answer.text
            assert answer.json().get("model", name) == name
        for name in ("Haiku", "haiku2", "claude-haiku-6", "claude-" + "x" * 500 + "-5"):
            refused = await client.post(path, json={"model": name, **body})
            assert refused.status_code == 404 and repr(MODEL) in refused.json()["error"]["message"]


async def test_a_stream_names_the_model_as_asked(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = Settings(served_model_name=MODEL, aliases=("*",))
    async with in_process(engine, tok, settings) as client:
        for name in ("claude-haiku-5-5", "gpt 9\n", "", "x" * 256):
            body = {"model": name, "messages": [USER], "stream": True}
            answer = await client.post("/v1/chat/completions", json=body)
            *chunks, done = events_of(answer.text)
            assert done == "[DONE]" and {chunk["model"] for chunk in chunks} == {name}
        refused = await client.post("/v1/chat/completions", json={"model": "x" * 257, "messages": [USER]})
        assert refused.status_code == 404


async def test_models_are_listed_by_their_names(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = Settings(served_model_name=MODEL, aliases=("haiku", "claude-*"))
    async with in_process(engine, tok, settings) as client:
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == [MODEL, "haiku"] and listed["first_id"] == MODEL
        for name in (MODEL, "haiku", "claude-opus"):
            assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
        assert (await client.get("/v1/models/opus")).status_code == 404


async def test_a_key_of_the_model_or_of_its_alias(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """A key for the model may call it by any of its names; one for an alias by that name only."""
    settings = keyed(
        named("model", models=frozenset({MODEL})),
        named("alias", models=frozenset({"haiku"})),
        named("none", models=frozenset({"another"})),
        aliases=("haiku", "opus"),
    )
    allowed = {"model": {MODEL, "haiku", "opus"}, "alias": {"haiku"}, "none": set()}
    async with in_process(engine, tok, settings) as client:
        for key, names in allowed.items():
            for name in (MODEL, "haiku", "opus"):
                body = {"model": name, "messages": [USER]}
                answer = await client.post("/v1/chat/completions", json=body, headers=bearer(key))
                assert answer.status_code == (200 if name in names else 404)
            listed = (await client.get("/v1/models", headers=bearer(key))).json()["data"]
            assert {model["id"] for model in listed} == names


@pytest.mark.parametrize(
    ("options", "served", "refused"),
    [
        ({"alias": "haiku=demo,claude-*=demo"}, ("demo", "haiku", "claude-opus"), ("gpt-9", "a=b")),
        ({"alias": "a=b=demo"}, ("demo", "a=b"), ("a",)),
        ({"accept_any_model": True}, ("demo", "gpt-9", ""), ()),
        ({}, ("demo",), ("haiku",)),
    ],
)
async def test_the_options_of_serve(
    engine: ScriptedEngine, tok: Tokenizer, options: dict[str, Any], served: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    plan = resolve(None, {"served_model_name": "demo", "response_store": "none", **options})
    check_servable(plan)
    app = gateway_app(plan, NO_KEYS, engine, KimiK25(), tok)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for names, status in ((served, 200), (refused, 404)):
            for name in names:
                answer = await client.post("/v1/chat/completions", json={"model": name, "messages": [USER]})
                assert answer.status_code == status, answer.text


def test_an_alias_of_another_model_is_refused_before_anything_loads() -> None:
    plan = resolve(None, {"served_model_name": "demo", "alias": "haiku=demo,opus=large"})
    with pytest.raises(PlanError, match="alias is opus=large, but the served model is demo"):
        check_servable(plan)
