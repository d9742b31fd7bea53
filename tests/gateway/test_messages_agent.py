"""A coding agent's requests: everything that such a client sends is taken, and its second turn is token-exact.

The requests have the shape of Claude Code's and none of its words.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.families.deepseek_dsml import DeepSeekV32
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.gateway.anthropic_sdk import accumulated, sse
from tests.gateway.scripted import MODEL, ScriptedEngine
from tests.gateway.test_messages_streams import tokenizer_of

pytestmark = pytest.mark.anyio

CACHED = {"cache_control": {"type": "ephemeral"}}
SETTINGS = Settings(served_model_name=MODEL, record_key=b"sesame")
HEADERS = {
    "authorization": "Bearer any",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24",
    "x-stainless-lang": "js",
}


def tool(number: int) -> dict[str, Any]:
    """A tool whose schema has the keywords that agents use."""
    properties: dict[str, Any] = {
        "path": {"type": "string", "description": "Which file", "minLength": 1, "maxLength": 4096},
        "mode": {"type": "string", "enum": ["fast", "thorough"], "default": "fast"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "exclusiveMinimum": 0},
        "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"const": None}]}, "maxItems": 8},
        "extra": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {}},
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": ["path"],
        "additionalProperties": False,
    }
    return {"name": f"Tool{number}", "description": f"Does thing {number}. " * 20, "input_schema": schema}


def request(*messages: dict[str, Any]) -> dict[str, Any]:
    question = [{"type": "text", "text": "A reminder."}, {"type": "text", "text": "Tidy the file.", **CACHED}]
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=9.9; cc_entrypoint=sdk;"},
            {"type": "text", "text": "You work on files.", **CACHED},
            {"type": "text", "text": "Be brief.", **CACHED},
        ],
        "messages": [
            {"role": "user", "content": question},
            {"role": "system", "content": "Helpers: none."},
            *messages,
        ],
        "tools": [tool(number) for number in range(24)],
        "metadata": {"user_id": json.dumps({"session_id": "1"})},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }


def letter_by_letter(fmt: Format, message: Message, tok: Tokenizer) -> tuple[int, ...]:
    """A spelling of `message` that the tokenizer would not choose."""
    ids: list[int] = []
    for text, control in fmt.write(message).segments:
        ids += [tok.control[text]] if control else [token for letter in text for token in tok.encode(letter)]
    return tuple(ids)


async def post(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], httpx.Headers]:
    response = await client.post("/v1/messages?beta=true", json=body, headers=HEADERS)
    assert response.status_code == 200, response.text
    return accumulated(sse(response.text)), response.headers


@pytest.mark.parametrize("fmt", [KimiK25(), DeepSeekV32()], ids=lambda fmt: fmt.name)
async def test_two_turns_of_an_agent(fmt: Format) -> None:
    tok = tokenizer_of(fmt.name)
    engine = ScriptedEngine(tok, context=100_000)
    engine.sizes = (3, 1)
    arguments = '{"path": "the file.txt"}'
    called = Message("I am reading the file.", "The file first.", (Call("functions.Tool3:0", "Tool3", arguments),))
    engine.ids = letter_by_letter(fmt, called, tok)
    transport = httpx.ASGITransport(create_app(engine, fmt, tok, SETTINGS), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        first, headers = await post(client, request())
        assert "billing_line=1" in headers["x-dovetail-repairs"]
        thinking, text, use, record = first["content"]
        assert (thinking["thinking"], text["text"], use["name"]) == (
            "The file first.",
            "I am reading the file.",
            "Tool3",
        )
        assert use["input"] == {"path": "the file.txt"}
        assert record["type"] == "redacted_thinking" and record["data"]

        # The client returns the blocks as they came, in an order of its own, and its marks for the cache wander.
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "done", "is_error": False, **CACHED}
        echoed = {"role": "assistant", "content": [thinking, text, record, use]}
        engine.ids = tuple(fmt.write(Message("Tidy.", "Good.")).ids(tok))
        second, headers = await post(client, request(echoed, {"role": "user", "content": [result]}))
        assert [block["type"] for block in second["content"]] == ["thinking", "text"]
        assert second["stop_reason"] == "end_turn"
        assert "record" not in headers.get("x-dovetail-repairs", "")

        # Without the record the text is the same, and the tokens are the tokenizer's.
        without = {"role": "assistant", "content": [thinking, text, use]}
        await post(client, request(without, {"role": "user", "content": [result]}))
        # A call or thinking that somebody changed is noticed.
        other = {"role": "assistant", "content": [thinking, text, use | {"input": {"path": "x"}}, record]}
        _, headers = await post(client, request(other, {"role": "user", "content": [result]}))
        assert "record_changed=1" in headers["x-dovetail-repairs"]
        forged = thinking | {"thinking": "Something else."}
        changed = {"role": "assistant", "content": [forged, text, use]}
        _, headers = await post(client, request(changed, {"role": "user", "content": [result]}))
        assert "foreign_thinking=1" in headers["x-dovetail-repairs"]
    prompts = [completion.prompt for completion in engine.seen]
    output = letter_by_letter(fmt, called, tok)
    assert prompts[1][: len(prompts[0]) + len(output)] == prompts[0] + output
    assert prompts[2][: len(prompts[0]) + len(output)] != prompts[0] + output
    assert tok.decode(prompts[2]) == tok.decode(prompts[1])
    assert "cc_version" not in tok.decode(prompts[0])
    assert all("Helpers: none." in tok.decode(prompt) for prompt in prompts)
