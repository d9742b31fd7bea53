"""Required calls through the gateway: the turn ends at text after them, and at a call that repeats itself."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.completion import TokenBatch
from dovetail.events import Call, Message, fold
from dovetail.gateway.turn.output import OutputReader
from dovetail.gateway.turn.validation import AnswerSchemas, AnswerValidator
from dovetail.tokens import Detokenizer, Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, in_process
from tests.reading import families

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [TOOL],
    "tool_choice": "required",
    "chat_template_kwargs": {"thinking": False},
}


@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_a_repeated_call_ends_the_turn(engine: ScriptedEngine, tok: Tokenizer, size: int) -> None:
    arguments = ('{"a": 1}', '{"a": 2}', '{"a": 2}', '{"a": 2}')
    calls = tuple(Call(f"functions.f:{i}", "f", each) for i, each in enumerate(arguments))
    engine.ids, engine.sizes = ids_of(Message(calls=calls), tok, thinking=False), (size,)
    async with in_process(engine, tok) as client:
        whole = (await client.post("/v1/chat/completions", json=BODY)).json()
        streamed = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a": 1}', '{"a": 2}']
    assert choice["message"]["dovetail"]["defects"][-1]["kind"] == "repeated_call"
    assert "record" not in choice["message"]["dovetail"]
    (again,) = folded(event for event in events_of(streamed.text) if event != "[DONE]")
    assert again["message"]["tool_calls"] == choice["message"]["tool_calls"]
    assert whole["usage"]["completion_tokens"] < len(engine.ids)
    assert engine.running == 0 and len(engine.freed) == 2


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_text_after_a_required_call_ends_the_turn(size: int) -> None:
    fmt, tokenizer = families.format_of("qwen3"), families.tokenizer_of("qwen3")
    call = fmt.write(Message(calls=(Call("0", "f", '{"a": 1}'),)), thinking=False).ids(tokenizer)[:-1]
    ids = (*call, *tokenizer.encode("\nI have called it, and now …"))
    output = OutputReader(
        0,
        fmt.reader([TOOL], thinking=False, tool_choice="required", tokenizer=tokenizer),
        Detokenizer(tokenizer),
        AnswerValidator(AnswerSchemas({}, None)),
        stop=(),
        end_ids=frozenset(),
        speller=None,
    )
    steps = []
    for at in range(0, len(ids), size):
        steps.append(await output.step(TokenBatch(ids[at : at + size], None)))
        if steps[-1].finish is not None:
            break
    message = fold(event for step in steps for event in step.events)
    assert (message.content, len(message.calls)) == ("", 1)
    assert steps[-1].finish == "tool_calls"
    taken = [token for step in steps for token in step.ids]
    assert taken == [*call, *tokenizer.encode("\n")]


@pytest.mark.parametrize("name", sorted(set(families.NAMES) - set(families.ONE_CALL)))
async def test_an_answer_that_ended_early_has_no_record(name: str) -> None:
    """Its tokens would say more than the message that the client was sent."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    calls = tuple(Call(f"functions.f:{i}", "f", '{"a": 1}') for i in range(2))
    ids = tuple(fmt.write(Message(calls=calls), thinking=False).ids(tokenizer))
    output = OutputReader(
        0,
        fmt.reader([TOOL], thinking=False, tool_choice="required", tokenizer=tokenizer),
        Detokenizer(tokenizer),
        AnswerValidator(AnswerSchemas({}, None)),
        stop=(),
        end_ids=frozenset(tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control),
        speller=None,
    )
    step = await output.step(TokenBatch(ids, None))
    assert output.ended_early and step.finish == "tool_calls"
    assert fold(step.events).defects[-1].kind == "repeated_call"
