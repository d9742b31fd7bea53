"""Why a prompt is computed again: the first thing of the request that made it leave the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.events import Call, Message
from dovetail.gateway import Settings
from dovetail.gateway.records.memory import Tenant
from dovetail.gateway.turn.prefix import CAUSES, SentPrompts
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process
from tests.gateway.test_memory import settings_in
from tests.gateway.test_token_exact import letter_by_letter

TOOLS = [{"type": "function", "function": {"name": name, "description": f"It {name}s."}} for name in ("see", "go")]
SYSTEM = "You are an agent.\nToday is 2026-11-28.\nBe brief."
CALLED = Message("On it.", "Hm.", (Call("functions.go:0", "go", '{ "to" : 1.0 }'),))


class Conversation:
    """Two turns of an agent. What a test changes in `body` before the second one comes back changed."""

    def __init__(self, client: httpx.AsyncClient, engine: ScriptedEngine, **more: Any) -> None:
        self.client, self.engine = client, engine
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "go"}]
        self.body: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": TOOLS, **more}

    async def begin(self) -> None:
        message = (await self.ask())["choices"][0]["message"]
        message.pop("dovetail", None)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}
        self.body["messages"] = [*self.body["messages"], message, result]

    async def ask(self) -> dict[str, Any]:
        response = await self.client.post("/v1/chat/completions", json=self.body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def prefix(self) -> dict[str, Any] | None:
        """What the response says of its prompt. The numbers are those of the engine's prompts."""
        first = self.engine.seen[-1].prompt + self.engine.ids
        answer = await self.ask()
        extension = answer["choices"][0]["message"].get("dovetail") or {}
        prefix: dict[str, Any] | None = extension.get("prefix")
        second = self.engine.seen[-1].prompt
        kept = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        if kept >= len(first) - 1:
            assert prefix is None
        else:
            assert prefix is not None
            assert (prefix["expected"], prefix["kept"], prefix["lost"]) == (len(first), kept, len(first) - kept)
        return prefix


def other_tools(body: dict[str, Any]) -> None:
    body["tools"] = [TOOLS[0]]


def tools_in_another_order(body: dict[str, Any]) -> None:
    body["tools"] = TOOLS[::-1]


def another_date(body: dict[str, Any]) -> None:
    body["messages"][0] = {"role": "system", "content": SYSTEM.replace("28", "29")}


def another_system_text(body: dict[str, Any]) -> None:
    body["messages"][0] = {"role": "system", "content": SYSTEM.replace("brief", "kind")}


def one_line_more(body: dict[str, Any]) -> None:
    body["messages"][0] = {"role": "system", "content": f"{SYSTEM}\nIt is 10:30."}


def another_answer(body: dict[str, Any]) -> None:
    body["messages"][2] = {**body["messages"][2], "content": "I am on it."}


def no_reasoning(body: dict[str, Any]) -> None:
    body["messages"][2] = {key: value for key, value in body["messages"][2].items() if key != "reasoning_content"}


def other_arguments(body: dict[str, Any]) -> None:
    call = body["messages"][2]["tool_calls"][0]
    call["function"] = {**call["function"], "arguments": '{"to":1}'}


def as_it_was(body: dict[str, Any]) -> None:
    pass


def a_message_in_between(body: dict[str, Any]) -> None:
    body["messages"].insert(2, {"role": "user", "content": "now"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "cause", "field"),
    [
        (other_tools, "tools", "tools"),
        (tools_in_another_order, "tools_order", "tools"),
        (another_date, "date", "messages[0].content"),
        (another_system_text, "system", "messages[0].content"),
        (one_line_more, "system", "messages[0].content"),
        (another_answer, "answer", "messages[2]"),
        (no_reasoning, "reasoning", "messages[2].reasoning_content"),
        (other_arguments, "arguments", "messages[2].tool_calls"),
        (as_it_was, "tokens", "messages[2]"),
        (a_message_in_between, "history", "messages[2]"),
    ],
)
async def test_the_cause_and_the_field_are_named(
    change: Any, cause: str, field: str, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    """Of a client that forgets, where nothing is kept on the disk."""
    engine.ids = letter_by_letter(CALLED, tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        conversation = Conversation(client, engine, store=False, dovetail={"repair": {"tools_order": False}})
        await conversation.begin()
        change(conversation.body)
        prefix = await conversation.prefix()
        metrics = (await client.get("/metrics")).text
    assert prefix is not None
    assert (prefix["cause"], prefix["field"]) == (cause, field)
    assert f'dovetail_prefix_tokens_lost_total{{cause="{cause}",model="{MODEL}"}} {prefix["lost"]}.0' in metrics


@pytest.mark.anyio
@pytest.mark.parametrize("change", [no_reasoning, other_arguments, as_it_was])
async def test_nothing_is_lost_of_what_memory_puts_back(
    change: Any, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = letter_by_letter(CALLED, tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        conversation = Conversation(client, engine)
        await conversation.begin()
        change(conversation.body)
        assert await conversation.prefix() is None


@pytest.mark.anyio
async def test_what_the_template_drops_is_the_templates(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    """Reasoning from before a message of the user goes, and memory has it."""
    engine.ids = ids_of(Message("Done.", "Hm."), tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        conversation = Conversation(client, engine)
        await conversation.ask()
        messages = conversation.body["messages"]
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "on"}]
        prefix = await conversation.prefix()
    assert prefix is not None and (prefix["cause"], prefix["field"]) == ("template", "messages[2]")


@pytest.mark.anyio
async def test_another_conversation_is_none_of_this_one(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(CALLED, tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        for text in ("one", "two"):
            conversation = Conversation(client, engine)
            conversation.body["messages"][1] = {"role": "user", "content": text}
            answer = await conversation.ask()
            assert "dovetail" not in answer["choices"][0]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("off", ["server", "request"])
async def test_without_memory_nothing_is_told(off: str, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = letter_by_letter(CALLED, tok)
    settings = Settings(served_model_name=MODEL, strict="off") if off == "server" else settings_in(tmp_path)
    more: dict[str, Any] = {"dovetail": {"memory": False}} if off == "request" else {}
    async with in_process(engine, tok, settings) as client:
        conversation = Conversation(client, engine, **more)
        await conversation.begin()
        another_date(conversation.body)
        answer = await conversation.ask()
    assert "dovetail" not in answer["choices"][0]["message"]


def test_prompts_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.gateway.turn.prefix._MOST_TOKENS", 1_000)
    prompts = SentPrompts()

    def send(first: str, *more: str, size: int = 100, tenant: str = "a") -> bool:
        messages = [{"role": "user", "content": text} for text in (first, *more)]
        request = TurnRequest(id="x", messages=messages, tenant=Tenant(tenant))
        return prompts.compared(request, prompts.following(request), range(size), ())[0] is not None

    assert not send("0")
    assert send("0", "more") and not send("0", "more", tenant="b")
    for number in range(1, 15):
        send(str(number))
    assert prompts._tokens <= 1_000
    assert not send("0", "more", "and more"), "the oldest conversation goes first"
    assert send("14", "more")
    for number in range(9):
        send("branches", str(number))
    assert len(next(reversed(prompts._sent.values()))) == 4


def test_every_cause_is_explained() -> None:
    assert all(text.islower() or "model" in text for text in CAUSES.values())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "cause", "field"),
    [
        (another_answer, "answer", "messages[2]"),
        (no_reasoning, "reasoning", "messages[2].reasoning_content"),
        (other_arguments, "arguments", "messages[2].tool_calls"),
    ],
)
async def test_an_earlier_turn_that_comes_back_changed_is_named(
    change: Any, cause: str, field: str, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    """Once it came back as it was, and then it did not."""
    engine.ids = letter_by_letter(CALLED, tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        conversation = Conversation(client, engine, store=False)
        await conversation.begin()
        await conversation.begin()
        change(conversation.body)
        prefix = await conversation.prefix()
    assert prefix is not None and (prefix["cause"], prefix["field"]) == (cause, field)
