"""The official client against the Responses API: every method, streamed and not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from dovetail.events import Call, Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
PARIS = Call("functions.get_weather:0", "get_weather", '{"city": "Paris — «été» 🌦"}')
ASKS = Message("I will look. ", "I need the weather.", (PARIS,))
FINE = Message("It rains.", "So it rains.")


@asynccontextmanager
async def client_of(
    engine: ScriptedEngine, tok: Tokenizer, store: Path | None = None, **settings: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, response_store=store, **settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    key = settings.get("api_key") or "any"
    async with httpx.AsyncClient(transport=transport) as http:
        yield openai.AsyncOpenAI(base_url="http://dovetail/v1", api_key=key, max_retries=0, http_client=http)


async def test_create_and_stream_give_the_same(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(ASKS, tok)
    engine.sizes = (4, 1, 3)
    request: dict[str, Any] = {"model": MODEL, "input": "Weather in Paris?", "tools": [WEATHER]}
    async with client_of(engine, tok) as client:
        whole = await client.responses.create(**request)
        deltas = ""
        async with client.responses.stream(**request) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas += event.delta
            final = await stream.get_final_response()
    assert whole.output_text == final.output_text == deltas == ASKS.content
    for response in (whole, final):
        reasoning, message, call = response.output
        assert reasoning.type == "reasoning" and reasoning.content is not None
        assert reasoning.content[0].text == ASKS.reasoning
        assert message.type == "message"
        assert call.type == "function_call"
        assert (call.call_id, call.name, call.arguments) == (PARIS.id, PARIS.name, PARIS.arguments)
        assert response.usage is not None
        assert response.usage.input_tokens == len(engine.seen[0].prompt)
        assert response.usage.output_tokens == len(engine.ids)
        assert 0 < response.usage.output_tokens_details.reasoning_tokens < len(engine.ids)
        assert response.status == "completed"
    assert engine.running == 0


async def test_the_second_turn_has_the_first_in_its_prompt_id_for_id(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """By the items that the client got, and by the id of a stored response."""
    ids = ids_of(ASKS, tok)
    result: Any = {"type": "function_call_output", "call_id": PARIS.id, "output": "rain"}
    user: Any = {"role": "user", "content": "Weather in Paris?"}
    async with client_of(engine, tok) as client:
        engine.scripts = [ids, ids_of(FINE, tok)]
        asked = await client.responses.create(model=MODEL, input=[user], tools=[WEATHER])
        history: Any = [user, *(item.model_dump(exclude_none=True) for item in asked.output), result]
        answered = await client.responses.create(model=MODEL, input=history, tools=[WEATHER])
    first, second = engine.seen
    assert answered.output_text == "It rains."
    assert second.prompt[: len(first.prompt) + len(ids)] == (*first.prompt, *ids)


async def test_stored_responses(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    ids = ids_of(ASKS, tok)
    result: Any = {"type": "function_call_output", "call_id": PARIS.id, "output": "rain"}
    async with client_of(engine, tok, tmp_path / "responses.db") as client:
        engine.scripts = [ids, ids_of(FINE, tok), ids]
        asked = await client.responses.create(model=MODEL, input="Weather in Paris?", tools=[WEATHER])
        answered = await client.responses.create(model=MODEL, input=[result], previous_response_id=asked.id)
        first, second = engine.seen
        assert answered.previous_response_id == asked.id
        assert bytes_of(tok, ids) in bytes_of(tok, second.prompt)
        assert await client.responses.retrieve(asked.id) == asked
        page = await client.responses.input_items.list(asked.id)
        assert [item.content[0].text for item in page.data] == ["Weather in Paris?"]  # type: ignore[union-attr]
        reference: Any = [{"type": "item_reference", "id": page.data[0].id}]
        again = await client.responses.create(model=MODEL, input=reference, tools=[WEATHER], store=False)
        assert engine.seen[2].prompt == first.prompt
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(again.id)
        with pytest.raises(openai.BadRequestError, match="only background responses can be cancelled"):
            await client.responses.cancel(asked.id)
        await client.responses.delete(asked.id)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.delete(asked.id)
        assert unknown.value.param == "response_id"
        with pytest.raises(openai.BadRequestError) as broken:
            await client.responses.create(model=MODEL, input="And?", previous_response_id=answered.id)
        assert (broken.value.param, broken.value.code) == ("previous_response_id", "previous_response_not_found")


def bytes_of(tok: Tokenizer, ids: tuple[int, ...]) -> bytes:
    return b"".join(map(tok.token_bytes, ids))


class Weather(BaseModel):
    city: str
    degrees: int


async def test_parse(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message('{"city": "Paris", "degrees": 21}'), tok)
    async with client_of(engine, tok) as client:
        parsed = await client.responses.parse(model=MODEL, input="Weather?", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Paris", degrees=21)
