"""The tokens that pictures take count as any other tokens: in usage, metrics, spans and the limits of keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dovetail.completion import Completion, TokenBatch
from dovetail.events import Message
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process
from tests.gateway.test_pictures_seen import BLUE, CHAT, MESSAGES, RED, RESPONSES, block, chat, part, user

pytestmark = pytest.mark.anyio

#: The tokens of a picture. One of them stands in the prompt that the engine gets.
EACH = 70


class Seeing(ScriptedEngine):
    """It tells with its first tokens how many the prompt has with its pictures, and that all but 5 were cached."""

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        whole: int | None = len(completion.prompt) + len(completion.pictures) * (EACH - 1)
        self.cached = (whole or 0) - 5
        async for batch in super().complete(completion):
            yield msgspec.structs.replace(batch, prompt_tokens=whole)
            whole = None


@pytest.fixture
def seeing(tok: Tokenizer) -> ScriptedEngine:
    engine = Seeing(tok)
    engine.ids, engine.sizes = ids_of(Message("ok"), tok), (2,)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    return engine


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, user(chat(RED), chat(BLUE))),
    "responses": (RESPONSES, {"input": [{"role": "user", "content": [part(RED), part(BLUE)]}]}),
    "messages": (MESSAGES, {"max_tokens": 99, **user(block(RED), block(BLUE))}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), REQUESTS.values(), ids=REQUESTS)
async def test_usage_has_the_tokens_of_pictures(
    seeing: ScriptedEngine, tok: Tokenizer, path: str, fields: dict[str, Any], stream: bool
) -> None:
    body = {"model": MODEL, "stream": stream, **fields}
    if path == CHAT:
        body |= {"n": 2} | ({"stream_options": {"include_usage": True}} if stream else {})
    async with in_process(seeing, tok) as client:
        answer = await client.post(path, json=body)
        metrics = (await client.get("/metrics")).text
    whole = len(seeing.seen[0].prompt) + 2 * (EACH - 1)
    usage = usage_of(answer.text, path, stream)
    if path == MESSAGES:
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, whole - 5)
    elif path == RESPONSES:
        assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (whole, whole - 5)
        assert usage["total_tokens"] == whole + len(seeing.ids)
    else:
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (whole, whole - 5)
        assert usage["total_tokens"] == whole + 2 * len(seeing.ids), "the prompt counts once"
    assert f'dovetail_prompt_tokens_total{{model="{MODEL}"}} {whole}.0' in metrics


def usage_of(text: str, path: str, stream: bool) -> dict[str, Any]:
    if not stream:
        usage: dict[str, Any] = json.loads(text)["usage"]
        return usage
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == RESPONSES:
        events = [event["response"] for event in events if event["type"] == "response.completed"]
    usage = {}
    for event in events:
        usage |= event.get("usage") or {}
    return usage


async def test_a_keys_tokens_a_minute_count_them(seeing: ScriptedEngine, tok: Tokenizer) -> None:
    settings = keyed(named("a", tokens_per_minute=1000))
    assert settings.keys is not None
    (account,) = settings.keys.accounts
    body = {"model": MODEL, "max_tokens": 9, **user(chat(RED))}
    async with in_process(seeing, tok, settings) as client:
        answer = await client.post(CHAT, json=body, headers=bearer("a"))
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == len(seeing.seen[0].prompt) + EACH - 1
    assert (account.prompt_tokens, account.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert [left for _, _, left, _ in account.meters()] == [1000 - usage["total_tokens"]]
