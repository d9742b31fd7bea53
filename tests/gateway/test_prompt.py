"""The request's fields reach the prompt, and the prompt decides how the answer is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dovetail
from dovetail.completion import EngineInfo
from dovetail.errors import InvalidRequest, RenderError
from dovetail.events import Call, Message, fold
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.formats.prompts.history import KINDS
from dovetail.gateway import Settings
from dovetail.gateway.turn.prompt import render_prompt
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.tools import declared_tools
from dovetail.gateway.turn.turn_request import Extension
from dovetail.grammar import ControlToken, Maybe, Node
from dovetail.tokens import Prompt, Tokenizer
from tests.gateway.families import HidesTools, OpensReasoning, ShowsMessageTools, WithOptions
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, prepared, turn_request
from tests.reading.families import RENDERING

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def named(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}


def asking(*ids: str) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answer(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


HISTORY = [USER, asking("a", "b"), answer("b"), answer("a"), asking("a"), answer("a")]
REPAIRED = "empty_content=2,call_id=3,result_id=3"


def prompt(tok: Tokenizer, **body: Any) -> str:
    return tok.decode(prepared(tok, **body).choices[0].completion.prompt)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_repairs_are_in_the_message_the_header_the_metrics_and_the_trace(
    engine: ScriptedEngine, tok: Tokenizer, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    caplog.set_level(logging.DEBUG, "dovetail.gateway")
    async with in_process(engine, tok) as client:
        body = {"model": MODEL, "messages": HISTORY, "stream": stream}
        response = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc"})
        plain = await client.post("/v1/chat/completions", json=body | {"messages": [USER]})
        shown = (await client.get("/metrics")).text
    choice = (events_of(response.text)[-2] if stream else response.json())["choices"][0]
    repairs = choice["delta" if stream else "message"]["dovetail"]["repairs"]
    # Those of the last answer and its results are new.
    assert repairs[0] == {"kind": "empty_content", "where": "messages[4].content", "detail": ""}
    assert [repair["kind"] for repair in repairs] == ["empty_content", "call_id", "result_id"]
    earlier = choice["delta" if stream else "message"]["dovetail"]["earlier_repairs"]
    assert earlier == {"empty_content": 1, "call_id": 2, "result_id": 2}
    assert response.headers["x-dovetail-repairs"] == REPAIRED
    assert "x-dovetail-repairs" not in plain.headers
    counted = {
        s.labels["kind"]: s.value
        for f in text_string_to_metric_families(shown)
        for s in f.samples
        if s.name == "dovetail_repairs_total"
    }
    assert counted == {"empty_content": 2, "call_id": 3, "result_id": 3}
    traced = [record.getMessage() for record in caplog.records if record.name == "dovetail.gateway"]
    assert traced[0] == f"request abc: repairs: {REPAIRED}"
    assert traced[1].endswith(": repairs: none")


@pytest.mark.parametrize(
    ("server", "request_says", "made"),
    [
        ((), None, REPAIRED),
        ((), True, REPAIRED),
        ((), False, ""),
        ((), {}, REPAIRED),
        ((), {"empty_content": False}, "call_id=3,result_id=3"),
        (("call_id", "result_id"), None, "empty_content=2"),
        (("call_id", "result_id"), True, REPAIRED),
        (("call_id", "result_id"), False, ""),
        (("call_id", "result_id"), {"empty_content": False}, ""),
        (("call_id", "result_id"), {"call_id": True, "result_id": True}, REPAIRED),
        (KINDS, {"empty_content": True}, "empty_content=2"),
    ],
)
async def test_a_requests_own_setting_wins(
    engine: ScriptedEngine, tok: Tokenizer, server: Sequence[str], request_says: Any, made: str
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    settings = Settings(served_model_name=MODEL, no_repair=frozenset(server))
    body = {"model": MODEL, "messages": HISTORY, "dovetail": {"repair": request_says}}
    async with in_process(engine, tok, settings) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.headers.get("x-dovetail-repairs", "") == made


async def test_an_unrepairable_history_is_refused_unless_its_repair_is_off(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    async with in_process(engine, tok) as client:
        for history, param, kind in (
            ([USER, answer("a")], "messages[1].tool_call_id", "orphan_result"),
            ([USER, asking("a"), USER], "messages[1].tool_calls[0].id", "unanswered_call"),
        ):
            body: dict[str, Any] = {"model": MODEL, "messages": history}
            refused = await client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            taken = await client.post("/v1/chat/completions", json=body | {"dovetail": {"repair": {kind: False}}})
            assert taken.status_code == 200


def test_every_kind_can_be_named() -> None:
    for kind in KINDS:
        assert Extension(repair={kind: False}).repairs_off(()) == {kind}
        assert Extension(repair={kind: True}).repairs_off(KINDS) == {*KINDS} - {kind}


def test_the_generation_prompt_follows_the_request(tok: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": "well "}]
    opened, closed, continued = "<|im_middle|><think>", "well <|im_end|>", "</think>well "
    for body, end in (
        ({}, opened),
        ({"add_generation_prompt": True}, opened),
        ({"add_generation_prompt": None, "continue_final_message": False}, opened),
        ({"add_generation_prompt": False}, closed),
        ({"continue_final_message": True}, continued),
        ({"continue_final_message": True, "add_generation_prompt": False}, continued),
    ):
        assert prompt(tok, messages=messages, **body).endswith(end), body
    with pytest.raises(InvalidRequest) as both:
        prepared(tok, messages=messages, add_generation_prompt=True, continue_final_message=True)
    assert both.value.param == "continue_final_message"


async def test_a_continued_answer_has_only_the_new_text(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """It is read as content, although the request did not turn thinking off."""
    call = Call("functions.f:0", "f", "{}")
    engine.ids = ids_of(Message(content="a tail. ", calls=(call,)), tok, thinking=False)
    messages = [USER, {"role": "assistant", "content": "The cat has "}]
    body = {"model": MODEL, "messages": messages, "tools": [TOOL], "continue_final_message": True}
    async with in_process(engine, tok) as client:
        whole = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        streamed = events_of((await client.post("/v1/chat/completions", json=body | {"stream": True})).text)
    assert whole["message"]["content"] == "a tail. "
    assert whole["message"]["tool_calls"][0]["id"] == "functions.f:0"
    assert "reasoning_content" not in whole["message"]
    deltas = [event["choices"][0]["delta"] for event in streamed[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "a tail. "
    assert not any("reasoning_content" in delta for delta in deltas)


FORMAT = ("response_format",)
OBJECT = {"response_format": {"type": "json_object"}}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def allowed(mode: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "f"}}]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("declared", "body", "options"),
    [
        ((), {"reasoning_effort": "high", "tool_choice": "auto"}, {"thinking": True}),
        ((), {"reasoning_effort": "none"}, {"thinking": False}),
        (("reasoning_effort",), {"reasoning_effort": "high"}, {"thinking": True, "reasoning_effort": "high"}),
        (("reasoning_effort",), {"reasoning_effort": None}, {"thinking": True}),
        (
            ("reasoning_effort",),
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "max"}},
            {"thinking": True, "reasoning_effort": "max"},
        ),
        (("tool_choice",), {"tool_choice": "none"}, {"thinking": True, "tool_choice": "none"}),
        (("reasoning_effort",), {"reasoning_effort": "none"}, {"thinking": False}),
        (("response_format",), {"response_format": {"type": "text"}}, {"thinking": True}),
        ((), {"chat_template_kwargs": {"thinking": False}}, {"thinking": False}),
        ((), {"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": False}),
        ((), {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}, {"thinking": False}),
        (
            ("enable_thinking",),
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"thinking": False, "enable_thinking": False},
        ),
        (("enable_thinking",), {}, {"thinking": True}),
        (FORMAT, {"response_format": None}, {"thinking": True}),
        (FORMAT, {"response_format": {"type": "json_object"}}, {"thinking": True, **OBJECT}),
        (FORMAT, {"response_format": SCHEMA_FORMAT}, {"thinking": True, "response_format": SCHEMA_FORMAT}),
        (
            FORMAT,
            {"response_format": {"type": "json_object"}},
            {"thinking": True, **OBJECT},
        ),
        (
            FORMAT,
            {"response_format": SCHEMA_FORMAT, "chat_template_kwargs": {"response_format": {"a": 1}}},
            {"thinking": True, "response_format": {"a": 1}},
        ),
        *(
            (("tool_choice",), {"tools": [TOOL], "tool_choice": allowed(mode)}, {"thinking": True, "tool_choice": mode})
            for mode in ("required", "auto")
        ),
    ],
)
def test_the_template_gets_the_options_that_it_declares(
    tok: Tokenizer, declared: tuple[str, ...], body: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    fmt = WithOptions(*declared)
    prepared(tok, fmt, **body)
    assert fmt.rendered[0] == options


def test_a_refused_option_is_named_by_the_field_that_the_client_sent(tok: Tokenizer) -> None:
    for body, param in (
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "chat_template_kwargs.reasoning_effort"),
    ):
        with pytest.raises(InvalidRequest, match="not low") as refused:
            prepared(tok, WithOptions("reasoning_effort"), **body)
        assert refused.value.param == param


def test_a_template_may_ignore_the_thinking_option(tok: Tokenizer) -> None:
    class Always(KimiK25):
        def _render(self, messages: Any, tools: Any, thinking: bool, open_turn: bool, **options: Any) -> Prompt:
            return super()._render(messages, tools, True, open_turn)

    turn = prepared(tok, Always(), tools=[TOOL], chat_template_kwargs={"thinking": False})
    events = turn.choices[0].new_reader().feed("hm</think>ok")
    assert [type(event).__name__ for event in events] == ["Reasoning", "Content"]
    constraint = turn.choices[0].completion.constraint
    assert constraint is not None and constraint.advance(tok.control["</think>"])


@pytest.mark.parametrize("name", RENDERING)
@pytest.mark.parametrize("thinking", [True, False])
def test_user_text_does_not_decide_how_the_answer_is_read(name: str, thinking: bool) -> None:
    fmt = dovetail.format(name)
    think, think_end = fmt.reader_type.think.strip(), fmt.reader_type.think_end.strip()
    usual = fmt.left_open(fmt.render([USER], thinking=thinking))
    assert usual is (thinking and fmt.reasoning == "opened")
    for text in (think, think_end, f"what is {think}?", think + think_end, think_end + think):
        messages = [{"role": "user", "content": text}]
        assert fmt.left_open(fmt.render(messages, thinking=thinking)) is usual


@pytest.mark.parametrize(
    ("body", "may"),
    [
        ({}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"continue_final_message": True, "messages": [USER, {"role": "assistant", "content": "well"}]}, False),
    ],
)
def test_a_model_may_open_its_reasoning_at_the_beginning_only(tok: Tokenizer, body: Any, may: bool) -> None:
    constraint = prepared(tok, OpensReasoning(), tools=[TOOL], **body).choices[0].completion.constraint
    assert constraint is not None and constraint.advance(tok.control["<think>"]) is may


def test_a_continued_answer_is_constrained_or_refused(tok: Tokenizer) -> None:
    class Open(OpensReasoning):
        def _render(self, *arguments: Any, **options: Any) -> Prompt:
            return Prompt.alternating([str(arguments[1]), "<think>", f"I was{arguments[0][-1]['content']}"])

    class Headed(OpensReasoning):
        """Every answer begins with a header."""

        class _answers(AnswerGrammar):
            def reasoning(self, thinking: bool) -> tuple[Node, ...]:
                return (Maybe(ControlToken("<think>")), ControlToken("<|im_middle|>"))

    half = {"messages": [USER, {"role": "assistant", "content": " a"}], "continue_final_message": True}
    for fmt, body, param in (
        (Open(), half, "continue_final_message"),
        (Headed(), half, "continue_final_message"),
        (Open(), {}, "dovetail.strict"),
    ):
        with pytest.raises(InvalidRequest, match="cannot be constrained yet") as refused:
            prepared(tok, fmt, tools=[TOOL], **body)
        assert refused.value.param == param
        assert (
            prepared(tok, fmt, tools=[TOOL], dovetail={"strict": "off"}, **body).choices[0].completion.constraint
            is None
        )
    assert prepared(tok, Headed(), tools=[TOOL]).choices[0].completion.constraint is not None
    unconstrained = prepared(tok, Open(), tools=[TOOL], dovetail={"strict": "off"}, **half)
    assert [type(event).__name__ for event in unconstrained.choices[0].new_reader().feed("hm</think>ok")] == [
        "Reasoning",
        "Content",
    ]


@pytest.mark.parametrize("name", RENDERING)
def test_only_answers_with_headers_cannot_be_continued_under_a_grammar(name: str) -> None:
    fmt = dovetail.format(name)
    half = [USER, {"role": "assistant", "content": "a", "reasoning_content": "r"}]
    turn = fmt.turn(half, [TOOL], continue_final_message=True)
    assert not turn.left_open
    if name in ("harmony", "inkling"):
        with pytest.raises(InvalidRequest, match="cannot be constrained yet"):
            turn.grammar()
    else:
        assert turn.grammar() is not None


@pytest.mark.parametrize("name", ["unseen", "hi"])
def test_tools_that_the_prompt_does_not_show_are_refused(tok: Tokenizer, name: str) -> None:
    """Also a tool whose name is a word of the conversation."""
    tools = [named(name)]
    with pytest.raises(InvalidRequest, match="does not show tools") as refused:
        prepared(tok, HidesTools(), tools=tools)
    assert refused.value.param == "tools"
    assert prepared(tok, HidesTools(), tools=tools, tool_choice="none").prompt


def test_a_format_that_cannot_render_the_probe_may_show_tools(tok: Tokenizer) -> None:
    class Choosy(KimiK25):
        def _render(self, messages: Any, *arguments: Any, **options: Any) -> Prompt:
            if len(messages) < 3:
                raise RenderError("too short")
            return super()._render(messages, *arguments, **options)

    long = [USER, {"role": "assistant", "content": "a"}, USER]
    assert prepared(tok, Choosy(), messages=long, tools=[TOOL]).choices[0].completion.constraint
    assert not prepared(tok, Choosy(), messages=long).choices[0].completion.grammar_required


def test_tools_that_messages_declare_can_be_called(tok: Tokenizer) -> None:
    call = Call("functions.g:0", "g", "{}")
    ids = ids_of(Message(content="ok", calls=(call,)), tok)
    messages = [{"role": "system", "content": "", "tools": [named("g")]}, USER]
    for tools in (None, [TOOL]):
        turn = prepared(tok, ShowsMessageTools(), messages=messages, tools=tools)
        assert turn.choices[0].completion.constraint is not None
        assert all(map(turn.choices[0].completion.constraint.advance, ids[:-1]))
        reader = turn.choices[0].new_reader()
        events = [*reader.feed(tok.decode(ids)), *reader.finish("stop")]
        assert [(made.name, made.arguments) for made in fold(events).calls] == [("g", "{}")]
    for choice in ("required", {"type": "function", "function": {"name": "g"}}):
        chosen = (
            prepared(tok, ShowsMessageTools(), messages=messages, tool_choice=choice).choices[0].completion.constraint
        )
        assert chosen is not None


TWICE = [{"role": "system", "content": "", "tools": [named("g")]}] * 2


@pytest.mark.parametrize(
    ("messages", "tools", "field"),
    [
        ([{**USER, "tools": [named("g")]}], None, "messages[0].tools"),
        ([USER, {"role": "assistant", "content": "", "tools": [named("g")]}, USER], None, "messages[1].tools"),
        ([{"role": "system", "content": "", "tools": [named("3d")]}], None, "messages[0].tools[0].function.name"),
        ([{"role": "system", "content": "", "tools": [named("f")]}], [TOOL], "messages[0].tools[0].function.name"),
        (TWICE, None, "messages[1].tools[0].function.name"),
        ([{"role": "system", "content": "", "tools": [{"type": "bogus"}]}], None, "messages[0].tools[0].type"),
        ([{"role": "system", "content": "", "tools": {"type": "function"}}], None, "messages[0].tools"),
        ([{"role": "system", "content": "", "tools": [None]}], None, "messages[0].tools[0]"),
    ],
)
def test_tools_of_messages_that_are_refused(tok: Tokenizer, messages: Any, tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prepared(tok, ShowsMessageTools(), messages=[*messages, USER], tools=tools)
    assert refused.value.param == field


def test_a_format_that_does_not_know_tools_of_messages_refuses_them(tok: Tokenizer) -> None:
    messages = [{"role": "system", "content": "", "tools": [named("g")]}, USER]
    with pytest.raises(InvalidRequest, match="use the field tools") as refused:
        prepared(tok, messages=messages)
    assert refused.value.param == "messages[0].tools"


def test_kimi_k3_shows_no_content_beside_tools(tok: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be kind.", "tools": [named("g")]}, USER]
    request = turn_request({"messages": messages})
    with pytest.raises(InvalidRequest, match="must be empty") as refused:
        declared_tools(request, SHOWING["kimi_k3"])
    assert refused.value.param == "messages[0].content"


def test_an_error_in_a_messages_tools_names_the_message(tok: Tokenizer) -> None:
    for tools, param in (
        (3, "messages[1].tools"),
        ([named("g"), named("a b")], "messages[1].tools[1].function.name"),
        ([named("g"), named("g")], "messages[1].tools[1].function.name"),
        ([named("g"), named("h", properties={"a": False}, required=["a"])], "messages[1].tools[1].function.parameters"),
        ([named("g", properties={"a": {"multipleOf": 999_999_937}})], "messages[1].tools[0].function.parameters"),
    ):
        messages = [USER, {"role": "system", "content": "", "tools": tools}]
        with pytest.raises(InvalidRequest) as refused:
            prepared(tok, ShowsMessageTools(), messages=messages, tools=[TOOL])
        assert refused.value.param == param
        assert param in refused.value.message


SHOWING = {
    name: dovetail.format(name) for name in ("kimi_k3", "harmony", "deepseek_v32", "deepseek_v4", "deepseek_v41")
}


@pytest.mark.parametrize("name", SHOWING)
def test_formats_show_the_tools_that_messages_declare(name: str) -> None:
    messages = [{"role": "system", "content": "", "tools": [named("g")]}, USER]
    request = turn_request({"messages": messages, "tools": [TOOL]})
    assert [tool.name for tool in declared_tools(request, SHOWING[name])] == ["f", "g"]
    text = render_prompt(request, SHOWING[name], messages).text
    assert all(shown in text for shown in (('"g"', '"f"') if name != "harmony" else ("type g", "type f")))


def test_a_format_that_has_no_grammar_names_the_tools(tok: Tokenizer) -> None:
    class Unconstrained(KimiK25):
        class _answers(AnswerGrammar):
            def calls(self, *arguments: Any, **options: Any) -> Node:
                raise InvalidRequest("cannot be constrained yet")

    with pytest.raises(InvalidRequest, match="yet") as refused:
        prepared(tok, Unconstrained(), tools=[TOOL])
    assert refused.value.param == "tools"


# -- what keeps a call from beginning --------------------------------------------------------------------------------


def begins_a_call(tok: Tokenizer, **body: Any) -> bool:
    """Whether the engine may open a section of calls at the beginning of the answer."""
    constraint = prepared(tok, thinking=False, **body).choices[0].completion.constraint
    return constraint is None or constraint.advance(tok.control["<|tool_calls_section_begin|>"])


def test_without_tools_no_call_begins(tok: Tokenizer) -> None:
    assert begins_a_call(tok, tools=[TOOL])
    assert not begins_a_call(tok)
    assert not begins_a_call(tok, tools=[])
    for choice in ("none", "auto"):
        assert not begins_a_call(tok, tool_choice=choice)
    assert not begins_a_call(tok, tools=[TOOL], tool_choice="none")
    last = {"role": "assistant", "content": "It"}
    assert not begins_a_call(tok, messages=[USER, last], continue_final_message=True)


@pytest.mark.parametrize(
    "body",
    [
        {"dovetail": {"strict": "off"}},
        {"ignore_eos": True},
        {"min_tokens": 2},
        {"add_generation_prompt": False},
    ],
)
def test_plain_text_is_not_constrained_where_that_would_change_more(tok: Tokenizer, body: dict[str, Any]) -> None:
    assert prepared(tok, **body).choices[0].completion.constraint is None


def test_plain_text_is_not_constrained_where_the_grammar_does_not_follow(tok: Tokenizer) -> None:
    """A prompt that ends inside a reasoning block that the model is expected to open itself."""

    class OpensBoth(OpensReasoning):
        def left_open(self, prompt: Prompt) -> bool:
            return True

    assert prepared(tok, OpensBoth()).choices[0].completion.constraint is None
    with pytest.raises(InvalidRequest, match="cannot be constrained yet"):
        prepared(tok, OpensBoth(), tools=[TOOL])


def test_the_ends_of_a_format_end_an_answer_that_the_engine_would_go_on_with(tok: Tokenizer) -> None:
    """Also under a constraint, which knows the end of the turn from the format."""
    engine = ScriptedEngine(tok)
    engine.info = EngineInfo(4096, tok.vocab_size, (tok.control["[EOS]"],), 3)
    runner = TurnRunner(engine, KimiK25(), tok, Settings(served_model_name=MODEL))
    turn = runner.prepare(turn_request({"messages": [USER], "thinking": False}))
    constraint = turn.choices[0].completion.constraint
    assert constraint is not None and constraint.advance(tok.encode("a")[0])
    assert constraint.advance(tok.control["<|im_end|>"])
