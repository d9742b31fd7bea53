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


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("02-cline-image-400", "messages[4].content[0]:image_url"),
        ("02-codex-view_image-400", "input[7].output[0]:input_image, tools[8]:web_search"),
        ("02-kimi-code-ReadMediaFile-400", "messages[5].content[1]:image_url"),
    ],
)
async def test_a_placeholder_stands_for_a_picture(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path, name: str, left_out: str
) -> None:
    answer = await replay(engine, tok, case(shared_data, name))
    assert answer.status_code == 200 and answer.headers["x-dovetail-omitted"] == left_out
    prompt = tok.decode(engine.seen[0].prompt)
    assert prompt.count("[picture left out") == 1 and "iVBORw0KGgo" not in prompt


async def test_claude_code_is_told_of_a_picture_in_anthropics_words(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path
) -> None:
    """By which it knows to drop the picture; what else is in its history has a placeholder."""
    for name in ("02-claude-code-image-400-1", "02-claude-code-image-anthropic-wording-recovers"):
        recorded = case(shared_data, name)
        refused = await replay(engine, tok, recorded)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(
            "messages.3.content.0.image.source.base64: Could not process image"
        )
        recorded["request"]["messages"] += [
            {"role": "assistant", "content": "I could not read it."},
            {"role": "user", "content": "Go on."},
        ]
        answer = await replay(engine, tok, recorded)
        assert answer.status_code == 200
        assert answer.headers["x-dovetail-omitted"] == "messages[3].content[0].content[0]:image"
    assert "[picture left out" in tok.decode(engine.seen[0].prompt)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_claude_code_is_told_how_much_too_long_its_prompt_is(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path, number: int
) -> None:
    recorded = case(shared_data, f"03-claude-code-too-long-400-{number}")
    assert (await replay(engine, tok, recorded)).status_code == 200
    prompt = len(engine.seen[0].prompt)
    engine.info = msgspec.structs.replace(engine.info, context=prompt - 7)
    refused = await replay(engine, tok, recorded)
    message = refused.json()["error"]["message"]
    assert (refused.status_code, message) == (400, f"prompt is too long: {prompt} tokens > {prompt - 7} maximum")


async def test_a_search_for_tools_has_a_result(engine: ScriptedEngine, tok: Tokenizer, shared_data: Path) -> None:
    answer = await replay(engine, tok, case(shared_data, "07-claude-code-ToolSearch-result-dropped"))
    assert answer.status_code == 200 and "billing_line=1" in answer.headers["x-dovetail-repairs"]
    assert "Available now: mcp__w__get_weather" in tok.decode(engine.seen[0].prompt)


async def test_options_that_the_template_does_not_have_are_left_out(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path
) -> None:
    answer = await replay(engine, tok, case(shared_data, "06-pi-preserve_thinking-400"))
    assert answer.status_code == 200
    assert answer.headers["x-dovetail-omitted"] == "chat_template_kwargs.preserve_thinking"


async def test_a_change_of_tools_is_left_out(engine: ScriptedEngine, tok: Tokenizer, shared_data: Path) -> None:
    answer = await replay(engine, tok, case(shared_data, "10-messages-tool_addition-400"))
    assert answer.status_code == 200
    assert answer.headers["x-dovetail-omitted"] == "messages[2].content[1]:tool_addition"


async def test_a_refusal_in_a_history_is_text(engine: ScriptedEngine, tok: Tokenizer, shared_data: Path) -> None:
    answer = await replay(engine, tok, case(shared_data, "11-chat-refusal-part-400"))
    assert answer.status_code == 200 and "x-dovetail-omitted" not in answer.headers
    assert "I cannot" in tok.decode(engine.seen[0].prompt)


async def test_a_sub_agent_asks_for_another_name(engine: ScriptedEngine, tok: Tokenizer, shared_data: Path) -> None:
    recorded = case(shared_data, "08-claude-code-haiku-404")
    for aliases, status in (((), 404), (("claude-haiku-*",), 200), (("*",), 200)):
        answer = await replay(engine, tok, recorded, msgspec.structs.replace(SETTINGS, aliases=aliases))
        assert answer.status_code == status
    assert sent(answer)[0]["message"]["model"] == "claude-haiku-5-5"


async def test_codex_is_told_to_do_without_a_websocket(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path
) -> None:
    recorded = case(shared_data, "04-codex-websocket-405")
    asks = {name: recorded["req_headers"][name] for name in ("connection", "upgrade", "sec-websocket-key")}
    async with in_process(engine, tok) as client:
        assert (await client.get(recorded["path"], headers=asks)).status_code == 426


async def test_codex_gets_the_compaction_that_it_asks_for(
    engine: ScriptedEngine, tok: Tokenizer, shared_data: Path
) -> None:
    recorded = case(shared_data, "05-codex-compaction_trigger-dropped")
    answer = await replay(engine, tok, recorded)
    done = [event for event in sent(answer) if event["type"] == "response.output_item.done"]
    assert [event["item"]["type"] for event in done] == ["compaction"]
    assert sent(answer)[-1]["type"] == "response.completed"
    assert "compaction" not in answer.headers["x-dovetail-omitted"]


def sent(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]
