"""Retries on a real engine: the model continues, under its constraint, from what the client has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import dovetail
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, TokenBatch
from dovetail.engine.settings import EngineSettings
from dovetail.gateway import Settings, create_app

pytestmark = pytest.mark.anyio

DEMO = Path(dovetail.__file__).parent / "data" / "demo"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Leaving(EmbeddedEngine):
    """Stops during a request whose id contains `leaves`."""

    leaves: str | None = None

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        async for batch in super().complete(completion):
            if self.leaves is not None and self.leaves in completion.request_id:
                await self.stop()
            yield batch


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(EmbeddedEngine) as (client, _):
        yield client


@asynccontextmanager
async def serving(kind: type[EmbeddedEngine]) -> AsyncIterator[tuple[httpx.AsyncClient, EmbeddedEngine]]:
    engine = kind(DEMO / "target", DEMO / "drafter", EngineSettings(draft_tokens=3, max_batch=4, threads=1))
    settings = Settings(served_model_name="demo", retry_invalid=2)
    app = create_app(engine, dovetail.format(DEMO / "target"), dovetail.tokenizer(DEMO / "target"), settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://dovetail", timeout=60) as client:
            yield client, engine


def body(city: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "description": "Get the weather", "parameters": parameters},
    }
    messages = [{"role": "user", "content": "Please get the weather for city Paris."}]
    return {"model": "demo", "messages": messages, "tools": [tool], "temperature": 0.3, "max_tokens": 300, "seed": 5}


async def test_an_answer_that_is_never_valid_uses_every_retry(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=body({"type": "string", "not": {}}))
    message, usage = answer.json()["choices"][0]["message"], answer.json()["usage"]
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    assert [defect["kind"] for defect in message["dovetail"]["defects"]] == ["schema_mismatch"]
    assert usage["retries"]["times"] == 2
    assert usage["retries"]["completion_tokens"] > 0
    assert answer.headers["x-dovetail-unenforced"] == "tools[0].function.parameters#/properties/city/not"


async def test_a_valid_answer_is_not_retried(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=body({"type": "string", "not": {"const": "London"}}))
    message = answer.json()["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert "dovetail" not in message
    assert "retries" not in answer.json()["usage"]


async def test_an_engine_lost_between_attempts_leaves_the_first_answer() -> None:
    async with serving(Leaving) as (client, engine):
        assert isinstance(engine, Leaving)
        engine.leaves = "-retry1"
        answer = await client.post("/v1/chat/completions", json=body({"type": "string", "not": {}}))
        assert answer.status_code == 200, answer.text
        (choice,), usage = answer.json()["choices"], answer.json()["usage"]
        assert choice["finish_reason"] == "tool_calls"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"]
        assert [defect["kind"] for defect in choice["message"]["dovetail"]["defects"]] == ["schema_mismatch"]
        assert usage["retries"]["times"] == 1
        # The engine is stopped.
        assert (await client.post("/v1/chat/completions", json=body({"type": "string"}))).status_code >= 500
