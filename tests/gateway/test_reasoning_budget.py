"""Budgets of reasoning: the fields of each API, the room for a required call, and engines that enforce none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK2, KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.apis import messages
from dovetail.gateway.apis.messages_request import decode_messages
from dovetail.gateway.apis.responses.exchange import ResponsesExchange
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.grammar.bounded_reasoning import Markers
from dovetail.tokens import Prompt, Tokenizer
from tests.gateway.families import OpensReasoning
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, prepared, turn_request

USER = {"role": "user", "content": "hi"}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
THOUGHT = Message("", "aeiou", (Call("functions.ping:0", "ping", "{}"),))


def reasons_for(turn: PreparedTurn, tok: Tokenizer, most: int = 200) -> int:
    """How many tokens of reasoning the answer may have, up to `most`."""
    constraint = turn.choices[0].completion.constraint
    if constraint is None:
        return most
    (token,) = tok.encode("x")
    return next((n for n in range(most) if not constraint.advance(token)), most)


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        ({"reasoning": {"max_tokens": 9}}, 9),
        ({"thinking_token_budget": 9}, 9),
        ({"thinking_budget": 0}, 0),
        ({"thinking_budget": -1}, 200),
        ({"dovetail": {"reasoning_budget": 9}, "thinking_budget": 7}, 9),
        ({"thinking_budget": 9, "dovetail": {"strict": "off"}}, 9),
        ({"thinking_budget": 9, "tools": [PING]}, 9),
        ({"thinking_budget": 9, "response_format": {"type": "json_object"}}, 9),
        ({}, 200),
    ],
)
def test_fields_of_chat_completions(tok: Tokenizer, fields: dict[str, Any], budget: int) -> None:
    turn = prepared(tok, **fields)
    assert reasons_for(turn, tok) == budget
    assert turn.request.omitted == ()


def test_budgets_of_messages_and_responses(tok: Tokenizer) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": [USER], "max_tokens": 99}
    thinking = {"type": "enabled", "budget_tokens": 9}
    asked = messages.turn_request(decode_messages(json.dumps({**body, "thinking": thinking}).encode()))
    assert reasons_for(run(asked, tok), tok) == 9
    body = {"model": MODEL, "input": "hi", "dovetail": {"reasoning_budget": 9}}
    assert reasons_for(run(ResponsesExchange(json.dumps(body).encode(), None, 9).turn_request, tok), tok) == 9


def run(
    request: TurnRequest, tok: Tokenizer, engine: ScriptedEngine | None = None, fmt: Format | None = None
) -> PreparedTurn:
    settings = Settings(served_model_name=MODEL)
    return TurnRunner(engine or ScriptedEngine(tok), fmt or KimiK25(), tok, settings).prepare(request)


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"tool_choice": "required", "max_tokens": 100}, 75),
        ({"tool_choice": {"type": "function", "function": {"name": "ping"}}, "max_tokens": 100}, 75),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [PING | {"function": {"name": "ping"}}]},
                },
                "max_tokens": 100,
            },
            75,
        ),
        ({"tool_choice": "required", "max_tokens": 100, "thinking_budget": 9}, 9),
        ({"tool_choice": "required", "max_tokens": 100, "thinking_budget": 90}, 75),
        ({"tool_choice": "required", "max_tokens": 1}, 1),
        ({"tool_choice": "auto", "max_tokens": 100}, 200),
        ({"tool_choice": "required", "max_tokens": 2_000}, 200),
    ],
)
def test_a_required_call_has_room(tok: Tokenizer, fields: dict[str, Any], budget: int) -> None:
    assert reasons_for(prepared(tok, tools=[PING], **fields), tok) == budget


def test_the_room_for_a_call_is_bounded(tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok, context=40_000)
    request = turn_request({"messages": [USER], "tools": [PING], "tool_choice": "required", "max_tokens": 20_000})
    assert reasons_for(run(request, tok, engine), tok, 30_000) == 20_000 - 4_096


class KnowsEfforts(KimiK25):
    template_options = (*KimiK25.template_options, "thinking_effort")

    def _render(self, *prompt: Any, thinking_effort: str = "", **options: Any) -> Prompt:
        return super()._render(*prompt, **options)


@pytest.mark.parametrize(
    ("effort", "budget"), [("minimal", 512), ("low", 2_048), ("medium", 8_192), ("high", 32_768), ("xhigh", 40_000)]
)
def test_an_effort_that_the_template_does_not_know_is_a_budget(tok: Tokenizer, effort: str, budget: int) -> None:
    engine = ScriptedEngine(tok, context=100_000)
    chat = turn_request({"messages": [USER], "reasoning_effort": effort})
    body: dict[str, Any] = {"model": MODEL, "input": "hi", "reasoning": {"effort": effort}}
    response = ResponsesExchange(json.dumps(body).encode(), None, 9).turn_request
    for request in (chat, response):
        assert reasons_for(run(request, tok, engine), tok, 40_000) == budget
    assert reasons_for(run(chat, tok, engine, KnowsEfforts()), tok, 40_000) == 40_000
    if budget < 40_000:
        engine.info = msgspec.structs.replace(engine.info, enforces="structural_tag")
        assert run(chat, tok, engine).request.omitted == ("reasoning_effort",)
        assert run(response, tok, engine).request.omitted == ("reasoning.effort",)


@pytest.mark.parametrize(
    ("fields", "budget"),
    [({"thinking_budget": 9}, 9), ({"thinking_budget": -1}, 600), ({"dovetail": {"reasoning_budget": 9}}, 9)],
)
def test_a_budget_counts_before_an_effort(tok: Tokenizer, fields: dict[str, Any], budget: int) -> None:
    assert reasons_for(prepared(tok, reasoning_effort="minimal", **fields), tok, 600) == budget


def test_an_effort_does_not_raise_the_server_s_budget(tok: Tokenizer) -> None:
    for server, budget in ((9, 9), (600, 512)):
        settings = Settings(served_model_name=MODEL, reasoning_budget=server)
        turn = prepared(tok, settings=settings, reasoning_effort="minimal")
        assert reasons_for(turn, tok, 700) == budget


@pytest.mark.parametrize(("fields", "budget"), [({}, 9), ({"thinking_budget": 3}, 3), ({"thinking_budget": -1}, 200)])
def test_a_server_may_have_a_budget(tok: Tokenizer, fields: dict[str, Any], budget: int) -> None:
    settings = Settings(served_model_name=MODEL, reasoning_budget=9)
    assert reasons_for(prepared(tok, settings=settings, **fields), tok) == budget
    if not fields:
        body = {"model": MODEL, "messages": [USER], "max_tokens": 99, "thinking": {"type": "adaptive"}}
        asked = messages.turn_request(decode_messages(json.dumps(body).encode()))
        assert reasons_for(TurnRunner(ScriptedEngine(tok), KimiK25(), tok, settings).prepare(asked), tok) == budget


def test_reasoning_that_the_model_opens_itself(tok: Tokenizer) -> None:
    turn = prepared(tok, OpensReasoning(), thinking_budget=3)
    constraint = turn.choices[0].completion.constraint
    assert constraint is not None
    assert constraint.advance(tok.control["<think>"])
    assert reasons_for(turn, tok) == 3


def test_an_answer_without_reasoning_has_no_budget(tok: Tokenizer) -> None:
    for fmt, fields in ((KimiK25(), {"enable_thinking": False}), (KimiK2(), {})):
        turn = prepared(tok, fmt, thinking_budget=1, **fields)
        assert (reasons_for(turn, tok), turn.request.omitted) == (200, ())


def test_a_budget_that_the_engine_does_not_enforce_is_reported(tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok)
    engine.info = msgspec.structs.replace(engine.info, enforces="structural_tag")
    for fields, omitted in (
        ({"thinking_budget": 9}, ("thinking_budget",)),
        ({"dovetail": {"reasoning_budget": 9}}, ("dovetail.reasoning_budget",)),
        ({"thinking_budget": -1}, ()),
        ({"tools": [PING], "tool_choice": "required"}, ()),
    ):
        assert run(turn_request({"messages": [USER], **fields}), tok, engine).request.omitted == omitted


def bounding(tok: Tokenizer, enforces: Any = "structural_tag") -> ScriptedEngine:
    """As a vLLM with a reasoning config."""
    engine = ScriptedEngine(tok)
    engine.info = msgspec.structs.replace(engine.info, enforces=enforces, bounds_reasoning=True)
    return engine


def budgets(turn: PreparedTurn) -> tuple[int | None, tuple[str, ...]]:
    """What the engine is told, and what is reported as left out."""
    return turn.choices[0].completion.reasoning_budget, turn.request.omitted


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_budget": 9}, 9),
        ({"dovetail": {"reasoning_budget": 0}}, 0),
        ({"thinking_budget": -1}, None),
        ({"tools": [PING], "tool_choice": "required", "max_tokens": 100}, 75),
        ({"enable_thinking": False, "thinking_budget": 9}, None),
    ],
)
def test_an_engine_with_budgets_of_its_own(tok: Tokenizer, fields: dict[str, Any], budget: int | None) -> None:
    request = turn_request({"messages": [USER], **fields})
    assert budgets(run(request, tok, bounding(tok))) == (budget, ())
    assert budgets(run(request, tok, bounding(tok), OpensReasoning())) == (budget, ())
    assert budgets(run(request, tok)) == (None, ())  # the constraint has it


def test_an_engine_counts_the_reasoning_that_the_prompt_begins(tok: Tokenizer) -> None:
    class Begins(KimiK25):
        def _render(self, *arguments: Any, **options: Any) -> Prompt:
            return Prompt.alternating([*super()._render(*arguments, **options).pieces, "aeiou"])

    turn = run(turn_request({"messages": [USER], "thinking_budget": 9}), tok, bounding(tok), Begins())
    assert budgets(turn) == (9 + len(tok.encode("aeiou")), ())


def test_guidance_has_no_budget_beside_a_grammar(tok: Tokenizer) -> None:
    for strict, expected in (("schema", (None, ("thinking_budget",))), ("off", (9, ()))):
        request = turn_request({"messages": [USER], "thinking_budget": 9, "dovetail": {"strict": strict}})
        assert budgets(run(request, tok, bounding(tok, "lark"))) == expected


def test_an_engine_cannot_close_what_several_tokens_close(tok: Tokenizer) -> None:
    """Nor a block that it does not see as we do: here text of the prompt has the closing tag."""

    class TwoTokens(KimiK25):
        closable_markers = None

    class Closed(KimiK25):
        def reasoning_tokens(self, tokenizer: Tokenizer) -> Markers:
            return Markers((tokenizer.control["<|im_end|>"],), (tokenizer.control["<think>"],))

    request = turn_request({"messages": [USER], "thinking_budget": 9})
    for fmt in (TwoTokens(), Closed()):
        assert budgets(run(request, tok, bounding(tok), fmt)) == (None, ("thinking_budget",))


@pytest.mark.anyio
async def test_the_same_answer_where_the_budget_is_not_reached(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(THOUGHT, tok)
    spent = len(tok.encode(THOUGHT.reasoning))
    body = {"model": MODEL, "messages": [USER], "tools": [PING]}
    async with in_process(engine, tok) as client:
        answers = [
            (await client.post("/v1/chat/completions", json={**body, **fields})).json()["choices"][0]
            for fields in ({}, {"thinking_budget": spent})
        ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_budget": -2}, "thinking_budget"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
        ({"thinking": {"budget_tokens": -2}}, "thinking.budget_tokens"),
        ({"reasoning": {"max_tokens": "9"}}, "reasoning.max_tokens"),
        ({"dovetail": {"reasoning_budget": -1}}, "dovetail.reasoning_budget"),
    ],
)
def test_a_budget_of_another_kind_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        turn_request({"messages": [USER], **fields})
    assert refused.value.param == param
