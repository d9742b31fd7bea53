"""Requests that real clients sent (`../shared/data/clientcases`), each of which a server once refused or misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

SETTINGS = Settings(served_model_name=MODEL)
CONTEXT = 2**20


@pytest.fixture
def engine(tok: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tok, context=CONTEXT)


def case(shared_data: Path, name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((shared_data / "clientcases" / f"{name}.json").read_text(encoding="utf-8"))
    return recorded


async def replay(
    engine: ScriptedEngine, tok: Tokenizer, recorded: dict[str, Any], settings: Settings = SETTINGS
) -> httpx.Response:
    """The answer to a recorded request."""
    thinking = (recorded["request"].get("thinking") or {}).get("type") != "disabled"
    engine.ids = ids_of(Message("Done."), tok, thinking=thinking)
    async with in_process(engine, tok, settings) as client:
        return await client.request(recorded["method"], recorded["path"], json=recorded["request"])


LIMITED = (
    "01-continue-max_tokens-400",
    "01-fixed-kimi-code-200",
    "01-kimi-cli-1.49-max_completion_tokens-400",
    "01-kimi-code-max_completion_tokens-400",
    "01-kimi-code-openai-type-max_tokens-400",
    "01-opencode-max_tokens-400",
    "01-pi-max_tokens-400",
    "01-qwen-code-max_tokens-400",
)


@pytest.mark.parametrize("name", LIMITED)
async def test_a_limit_above_the_room_is_cut(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path, name: str
) -> None:
    recorded = case(shared_data, name)
    assert (await replay(engine, tok, recorded)).status_code == 200
    prompt = len(engine.seen[0].prompt)
    engine.info = msgspec.structs.replace(engine.info, context=prompt + 100)
    answer = await replay(engine, tok, recorded)
    assert answer.status_code == 200 and answer.headers["x-dovetail-max-tokens"] == "100"
    assert engine.seen[1].max_tokens == 100
    strict = msgspec.structs.replace(SETTINGS, strict_max_tokens=True)
    refused = await replay(engine, tok, recorded, strict)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
