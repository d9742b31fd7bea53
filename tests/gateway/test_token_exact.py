"""Turns are token-exact: a prompt begins with the prompt and the output of the turn before, id for id.

Unless the model's template leaves something out that it was not trained to see again. benchmarks/token_exact tries more
conversations, and published templates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.events import Call, Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.formats.prompts.history import HistoryRules
from dovetail.gateway import Settings
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Tokenizer
from tests.formats.test_render_laws import RENDERING
from tests.gateway import multi_turn
from tests.gateway.dialogues import APIS
from tests.gateway.multi_turn import Conversation
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, in_process, turn_request

#: What a template does by training, which no record changes.
BY_TRAINING = (
    "template changes what comes before",
    "template drops the reasoning",
    "template ends the turn otherwise",
)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", RENDERING)
def test_the_next_prompt_begins_with_prompt_and_output(name: str, api: str) -> None:
    conversations = 5 if api == "chat" else 2
    pairs = [
        pair
        for seed in range(conversations)
        for pair in Conversation(multi_turn.native(name), seed, api).pairs(6)
        # Messages has records for answers with calls only, and for clients that ask for thinking.
        if pair.recorded or api != "messages"
    ]
    for pair in pairs:
        assert pair.exact or pair.why in BY_TRAINING or (pair.cut and pair.why == "cut inside a call"), pair
        assert not any(repair.startswith("record") for repair in pair.repairs), pair
    assert sum(pair.exact for pair in pairs) >= sum(pair.without for pair in pairs)
    # Inside one loop of calls, templates keep what the model wrote. DeepSeek V3.1's drops the opening of reasoning.
    if name != "deepseek_v31":
        assert all(pair.exact for pair in pairs if pair.same_loop and not pair.cut)


@pytest.mark.slow
def test_published_templates(shared_data: Path) -> None:
    why: Counter[str] = Counter()
    for model in multi_turn.templates(shared_data):
        why.update(pair.why for pair in multi_turn.pairs(model, conversations=2, turns=5))
    assert why[""] > 220
    assert why["other"] < 20


# -- over HTTP --------------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLED = Message("", "Hm.", (Call("functions.f:0", "f", '{ "a" : 1.0 }'),))
#: The same text as the tokenizer would split it, except for one byte at a time.
SETTINGS = Settings(served_model_name=MODEL, strict="off", record_key=b"k" * 32)


def letter_by_letter(message: Message, tok: Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for text, control in KimiK25().write(message).segments:
        ids += [tok.control[text]] if control else [token for letter in text for token in tok.encode(letter)]
    assert tuple(ids) != ids_of(message, tok)
    return tuple(ids)


async def ask(client: httpx.AsyncClient, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": messages, "tools": TOOLS, "dovetail": {"record": True}, **more}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if more.get("stream"):
        *events, _ = events_of(response.text)
        return {"choices": folded(events)}
    return dict(response.json())


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_give_records_and_take_them(
    engine: ScriptedEngine, tok: Tokenizer, stream: bool
) -> None:
    engine.ids = letter_by_letter(CALLED, tok)
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with in_process(engine, tok, SETTINGS) as client:
        message = (await ask(client, history, stream=stream))["choices"][0]["message"]
        history += [message, {"role": "tool", "tool_call_id": "functions.f:0", "content": "done"}]
        await ask(client, history)
        del message["dovetail"]
        await ask(client, history)
    first, second, without = (completion.prompt for completion in engine.seen)
    assert second[: len(first) + len(engine.ids)] == first + engine.ids
    assert without[: len(first) + len(engine.ids)] != first + engine.ids
    assert tok.decode(without) == tok.decode(second)


@pytest.mark.anyio
async def test_every_choice_has_a_record(engine: ScriptedEngine, tok: Tokenizer) -> None:
    scripts = [letter_by_letter(Message(f"Answer {n}.", "Hm."), tok) for n in range(3)]
    engine.scripts = [*scripts]
    user: dict[str, Any] = {"role": "user", "content": "go"}
    async with in_process(engine, tok, SETTINGS) as client:
        choices = (await ask(client, [user], n=3))["choices"]
        for choice in choices:
            engine.ids = ids_of(Message(), tok)
            await ask(client, [user, choice["message"]], add_generation_prompt=False)
    texts = [choice["message"]["content"] for choice in choices]
    assert sorted(texts) == ["Answer 0.", "Answer 1.", "Answer 2."]


@pytest.mark.anyio
async def test_no_record_unless_it_is_asked_for(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(CALLED, tok)
    async with in_process(engine, tok, SETTINGS) as client:
        message = (await ask(client, [{"role": "user", "content": "go"}], dovetail={}))["choices"][0]["message"]
    assert "dovetail" not in message


# -- histories that changed -------------------------------------------------------------------------------------------


def changed(message: dict[str, Any], change: str) -> dict[str, Any]:
    call = message["tool_calls"][0]
    changes: Mapping[str, dict[str, Any]] = {
        "content": {"content": "Other words."},
        "reasoning": {"reasoning_content": "Other words."},
        "call id": {"tool_calls": [{**call, "id": "functions.f:7"}]},
        "arguments": {"tool_calls": [{**call, "function": {"name": "f", "arguments": '{"a": 2}'}}]},
        "no calls": {"tool_calls": None, "content": "Hm."},
    }
    return {**message, **changes[change]}


@pytest.mark.anyio
@pytest.mark.parametrize("change", ["content", "reasoning", "call id", "arguments", "no calls"])
async def test_a_changed_message_is_rendered_from_its_text(engine: ScriptedEngine, tok: Tokenizer, change: str) -> None:
    engine.ids = letter_by_letter(CALLED, tok)
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with in_process(engine, tok, SETTINGS) as client:
        message = changed((await ask(client, history))["choices"][0]["message"], change)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in message["tool_calls"] or ()
        ]
        answer = await ask(client, [*history, message, *results])
        plain = {key: value for key, value in message.items() if key != "dovetail"}
        await ask(client, [*history, plain, *results])
    repairs = answer["choices"][0]["message"]["dovetail"]["repairs"]
    assert {"kind": "record_changed", "where": "messages[1].dovetail.record"}.items() <= repairs[-1].items()
    assert engine.seen[1].prompt == engine.seen[2].prompt


@pytest.mark.anyio
@pytest.mark.parametrize(
    "change",
    [
        {"reasoning_content": None},
        {"content": None},
        {"content": [{"type": "text", "text": ""}]},
        {"tool_calls": [{"id": "functions.f:0", "function": {"name": "f", "arguments": '{"a":1}'}}]},
    ],
)
async def test_accidental_changes_of_clients_are_the_same_message(
    engine: ScriptedEngine, tok: Tokenizer, change: dict[str, Any]
) -> None:
    engine.ids = letter_by_letter(CALLED, tok)
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with in_process(engine, tok, SETTINGS) as client:
        message = (await ask(client, history))["choices"][0]["message"] | change
        answer = await ask(
            client, [*history, message, {"role": "tool", "tool_call_id": "functions.f:0", "content": "x"}]
        )
    first, second = (completion.prompt for completion in engine.seen)
    assert second[: len(first) + len(engine.ids)] == first + engine.ids
    assert "repairs" not in answer["choices"][0]["message"]["dovetail"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("role", "record", "kind"),
    [
        ("assistant", "AAAA", "record_invalid"),
        ("assistant", "not base64!", "record_invalid"),
        ("assistant", 7, "record_invalid"),
        ("assistant", {"a": [1]}, "record_invalid"),
        ("assistant", "A" * 2_000_000, "record_invalid"),
        ("user", None, "record_changed"),
        ("assistant", None, "record_changed"),
    ],
)
async def test_any_other_record_changes_nothing_but_a_report(
    engine: ScriptedEngine, tok: Tokenizer, role: str, record: Any, kind: str
) -> None:
    """`record` None: one of another answer."""
    engine.ids = ids_of(Message("Hello.", "Hm."), tok)
    async with in_process(engine, tok, SETTINGS) as client:
        answer = await ask(client, [{"role": "user", "content": "go"}])
        if record is None:
            record = answer["choices"][0]["message"]["dovetail"]["record"]
        message = {"role": role, "content": "Bye."}
        user = {"role": "user", "content": "go on"}
        first = await ask(client, [user, {**message, "dovetail": {"record": record}}, user])
        await ask(client, [user, message, user])
    assert [repair["kind"] for repair in first["choices"][0]["message"]["dovetail"]["repairs"]] == [kind]
    assert engine.seen[1].prompt == engine.seen[2].prompt


@pytest.mark.anyio
@pytest.mark.parametrize("extension", [None, 7, "x", [], {}, {"record": None}, {"record": ""}, {"repairs": []}])
async def test_a_message_may_have_any_extension_without_a_record(
    engine: ScriptedEngine, tok: Tokenizer, extension: Any
) -> None:
    engine.ids = ids_of(Message("Hello.", "Hm."), tok)
    user = {"role": "user", "content": "go"}
    async with in_process(engine, tok, SETTINGS) as client:
        answer = await ask(client, [user, {"role": "assistant", "content": "Hi.", "dovetail": extension}, user])
    assert "repairs" not in answer["choices"][0]["message"]["dovetail"]


class OneSystemMessage(KimiK25):
    """Knows a system message at the beginning only, so that others move into messages of the user."""

    history_rules = HistoryRules(developer=False, system="one")


def test_answers_stay_in_their_place_where_repairs_merge_messages(tok: Tokenizer) -> None:
    """Each answer has a record. System messages before and between them are merged with others."""
    turns = [("one", "Sys A."), ("two", "Sys B."), ("three", "Sys C.")]
    runner = TurnRunner(ScriptedEngine(tok), OneSystemMessage(), tok, SETTINGS)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}]
    expected: list[tuple[int, ...]] = []
    for content, system in turns:
        messages.append({"role": "user", "content": "go"})
        turn = runner.prepare(turn_request({"messages": messages, "chat_template_kwargs": {"thinking": False}}))
        ids = (*(token for letter in content for token in tok.encode(letter)), tok.control["<|im_end|>"])
        expected.append(turn.prompt + ids)
        messages.append({"role": "assistant", "content": content, "dovetail": {"record": turn.record(0, ids)}})
        messages.append({"role": "system", "content": system})
    last = runner.prepare(turn_request({"messages": messages, "chat_template_kwargs": {"thinking": False}}))
    assert [last.prompt[: len(begin)] == begin for begin in expected] == [True, True, True]


def test_an_answer_that_is_continued_has_one_record(tok: Tokenizer) -> None:
    """It was cut off, and goes on from its own tokens; a text that somebody else wrote goes on without a record."""
    runner = TurnRunner(ScriptedEngine(tok), KimiK25(), tok, SETTINGS)
    off: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
    user: dict[str, Any] = {"role": "user", "content": "go"}
    first, second = (tuple(token for letter in text for token in tok.encode(letter)) for text in ("Some wo", "rds."))
    turn = runner.prepare(turn_request({"messages": [user], **off}))
    cut = {"role": "assistant", "content": "Some wo", "dovetail": {"record": turn.record(0, first)}}
    continued = runner.prepare(turn_request({"messages": [user, cut], "continue_final_message": True, **off}))
    assert continued.prompt == turn.prompt + first
    record = continued.record(0, (*second, tok.control["<|im_end|>"]))
    whole = {"role": "assistant", "content": "Some words.", "dovetail": {"record": record}}
    following = runner.prepare(turn_request({"messages": [user, whole, user], **off}))
    expected = (*turn.prompt, *first, *second, tok.control["<|im_end|>"])
    assert following.prompt[: len(expected)] == expected
    del cut["dovetail"]
    foreign = runner.prepare(turn_request({"messages": [user, cut], "continue_final_message": True, **off}))
    assert foreign.record(0, second) == ""
