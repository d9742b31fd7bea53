"""Remedies keep a prompt beginning with the last one, and change an order only: the model is told the same."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.conversation import check_tools
from dovetail.events import Message
from dovetail.formats.prompts.history import Repair
from dovetail.gateway import Settings
from dovetail.gateway.records.memory import Tenant
from dovetail.gateway.turn.prefix import DATE, SentPrompt, SentPrompts
from dovetail.gateway.turn.prompt import without_billing_lines
from dovetail.gateway.turn.remedies import remedied
from dovetail.gateway.turn.turn_request import FieldNames, TurnRequest
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process
from tests.gateway.test_memory import settings_in

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "function": {"name": f"tool_{i}", "description": f"It is {i}."}} for i in range(4)]
RULES = "\n".join(f"Rule {i}: be kind." for i in range(20))
BILLING = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli; cch=0{}1;"


def system(minute: int) -> str:
    return f"You are an agent.\n<env>\n  Platform: linux\n  Current time: 10:{minute}\n</env>\n{RULES}"


async def asked(client: Any, body: dict[str, Any], text: str) -> str:
    """Ask with one more message of the user, and take the answer into the history. Returns the repairs."""
    body["messages"].append({"role": "user", "content": text})
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    body["messages"].append({"role": "assistant", "content": response.json()["choices"][0]["message"]["content"]})
    return str(response.headers.get("x-dovetail-repairs", ""))


def conversation(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "system", "content": system(10)}], "tools": TOOLS, **more}


def shared(engine: ScriptedEngine) -> int:
    """How many tokens the last two prompts begin with together."""
    old, new = (each.prompt for each in engine.seen[-2:])
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))


@pytest.mark.parametrize(
    ("off", "repairs"),
    [(None, "tools_order=1"), ("request", ""), ("server", ""), ("memory", "")],
)
async def test_tools_keep_the_order_that_the_conversation_began_with(
    off: str | None, repairs: str, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    server = Settings(served_model_name=MODEL) if off == "memory" else settings_in(tmp_path)
    if off == "server":
        server = msgspec.structs.replace(server, no_repair=frozenset({"tools_order"}))
    body = conversation(dovetail={"repair": {"tools_order": False}} if off == "request" else {})
    async with in_process(engine, tok, server) as client:
        await asked(client, body, "go")
        for order in ([3, 1, 0, 2], [1, 2, 3, 0]):
            body["tools"] = [TOOLS[i] for i in order]
            assert await asked(client, body, "on") == repairs
            assert (shared(engine) >= len(engine.seen[-2].prompt) - 8) == (off is None)
        body["tools"] = TOOLS[:3]
        assert await asked(client, body, "on") == "", "other tools are no remedy's"


@pytest.mark.parametrize("on", [True, False])
async def test_a_line_with_the_time_moves_once_it_changes(
    on: bool, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    body = conversation(dovetail={"repair": {} if on else {"date_line": False}})
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        seen = []
        for minute in (10, 10, 11, 12, 12):
            body["messages"][0] = {"role": "system", "content": system(minute)}
            seen.append((await asked(client, body, "go"), shared(engine) if len(engine.seen) > 1 else 0))
    assert [repairs for repairs, _ in seen] == ["", "", *(["date_line=1"] * 3 if on else [""] * 3)]
    kept = tok.decode(engine.seen[-2].prompt[: seen[3][1]])
    assert ("Rule 19" in kept) == on
    assert seen[4][1] > seen[3][1], "the same time again: all of the prompt is kept"


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("off", [False, True])
async def test_billing_lines_are_left_out(api: str, off: bool, engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Through every API, with memory and without it."""
    engine.ids = ids_of(Message("ok"), tok)
    user = [{"role": "user", "content": "go"}]
    async with in_process(engine, tok, Settings(served_model_name=MODEL)) as client:
        for number in (1, 2):
            text = f"{BILLING.format(number, number)}\n\nBe brief."
            path, fields = {
                "chat": ("chat/completions", {"messages": [{"role": "system", "content": text}, *user]}),
                "messages": ("messages", {"system": [{"type": "text", "text": text}], "messages": user}),
                "responses": ("responses", {"instructions": text, "input": user}),
            }[api]
            body = {"model": MODEL, "max_tokens" if api != "responses" else "max_output_tokens": 9, **fields}
            response = await client.post(f"/v1/{path}", json=body | {"dovetail": {"repair": not off}})
            assert response.status_code == 200, response.text
            assert response.headers.get("x-dovetail-repairs", "") == ("" if off else "billing_line=1")
    assert (engine.seen[0].prompt == engine.seen[1].prompt) != off
    assert ("cch=" in tok.decode(engine.seen[1].prompt)) == off


async def test_a_system_text_of_nothing_else_is_none(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    user = [{"role": "user", "content": "go"}]
    async with in_process(engine, tok, Settings(served_model_name=MODEL)) as client:
        for more in ({}, {"system": BILLING.format(1, 1)}):
            await client.post("/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": user, **more})
    assert engine.seen[0].prompt == engine.seen[1].prompt


def test_billing_lines_of_several_system_texts() -> None:
    """Those that have nothing else go as a whole, and the others' fields have the client's names still."""
    billing = BILLING.format(1, 1)
    messages = [{"role": "system", "content": text} for text in (billing, f"{billing}\nOne.", billing, "Two.")]
    names = FieldNames({f"messages[{i}]": f"system[{i}]" for i in range(4)})
    request = without_billing_lines(TurnRequest(id="a", messages=messages, field_names=names), ())
    assert [message["content"] for message in request.messages] == ["One.", "Two."]
    assert [request.field_names.of(f"messages[{i}].content") for i in range(2)] == [
        "system[1].content",
        "system[3].content",
    ]
    assert [(each.kind, each.where) for each in request.remedies] == [
        ("billing_line", "messages"),
        ("billing_line", "messages[1].content"),
        ("billing_line", "messages"),
    ]


# -- what the model is told -------------------------------------------------------------------------------------------


def following(before: list[Any], now: list[Any], tools: list[Any] = TOOLS) -> tuple[TurnRequest, list[Repair]]:
    """`now` as it goes on from `before`, which had all of `TOOLS`."""
    prompts = SentPrompts()

    def request(messages: list[Any], tools: list[Any]) -> TurnRequest:
        declared = check_tools(tools)
        return TurnRequest(id="x", messages=messages, tools=tools, declared=declared, tenant=Tenant("a"))

    def sent(one: TurnRequest) -> SentPrompt:
        return prompts.compared(one, prompts.following(one), (), ())[1]

    changed, repairs, _ = remedied(request(now, tools), sent(request(before, TOOLS)), ())
    return changed, repairs


def of_system(text: str) -> list[Any]:
    return [{"role": "system", "content": text}, {"role": "user", "content": "go"}]


lines = st.lists(
    st.sampled_from(
        ["Be brief.", "", "  - a list", "Today is {}-11-28.", "- Current time: 10:1{}", "```", "date: {}-1-1", "so: it"]
    )
    | st.text("aB: ,\n-", max_size=8)
)


@settings(max_examples=50)
@given(lines, st.permutations(TOOLS))
def test_the_same_words_and_the_same_tools_are_there(text: list[str], tools: list[Any]) -> None:
    before, now = ("\n".join(line.format(*[year] * line.count("{}")) for line in text) for year in (2026, 2027))
    messages = of_system(now)
    untouched = copy.deepcopy(messages)
    changed, repairs = following(of_system(before), messages, tools)
    assert messages == untouched
    assert list(changed.tools) == TOOLS
    assert [tool.name for tool in changed.declared] == [tool["function"]["name"] for tool in TOOLS]
    told, was = changed.messages[0]["content"].split("\n"), now.split("\n")
    assert Counter(map(str.strip, told)) == Counter(map(str.strip, was))
    moved = Counter(map(str.strip, was)) - Counter(map(str.strip, before.split("\n")))
    rest = [line for line in was if line.strip() not in moved]
    assert [line for line in told if line.strip() not in moved] == rest, "all other lines are in their order"
    assert all(DATE.search(line) for line in moved) or told == was
    assert ("date_line" in {repair.kind for repair in repairs}) == (told != was)
    assert changed.messages[1:] == messages[1:]


@pytest.mark.parametrize(
    "text",
    [
        "The log begins with:\nDate: {}\nRead it.",
        "Today is {},\nwhich is a holiday.",
        "Today is {} and it\nrains.",
        "```\nDate: {}\n```\nRead it.",
        '{{\n "date": "{}"\n}}',
        "config:\n  date: {}\n  zone: UTC",
        "Date: {}\n  of the build\nBe brief.",
        "# Date\n{}\nBe brief.",
        "Be brief at {}.\nBe kind.",
        "Be brief.\nToday is {}.",
    ],
)
def test_a_line_that_others_give_its_meaning_stays(text: str) -> None:
    """What is not safe is only named, and a line at the end is there already."""
    before, now = (of_system(text.format(day)) for day in ("2026-11-28", "2026-11-29"))
    changed, repairs = following(before, now)
    assert (changed.messages, repairs) == (now, [])


def test_another_text_than_the_date_moves_nothing() -> None:
    before = of_system("Today is 2026-11-28.\nBe brief.")
    for text in ("Today is 2026-11-29.\nBe kind.", "Today is 2026-11-29.\nBe brief.\nBe kind."):
        assert following(before, of_system(text))[1] == []
