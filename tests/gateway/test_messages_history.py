"""Anthropic's messages, tools and switches as those of a turn; errors and reports name the client's own fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import DovetailError, InvalidRequest
from dovetail.formats.prompts.history import Repair
from dovetail.gateway import Settings
from dovetail.gateway.apis.messages_request import decode_count_tokens, decode_messages, prompt_request, turn_request
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Tokenizer
from tests.gateway.families import WithOptions
from tests.gateway.scripted import MODEL, ScriptedEngine

USER = {"role": "user", "content": "hi"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "f", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1, "b": [1.5, "é"]}}


def read(*messages: Any, **body: Any) -> TurnRequest:
    body = {"model": MODEL, "max_tokens": 100, "messages": messages or [USER], **body}
    return turn_request(decode_messages(json.dumps(body).encode()))


def text(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": t, **more} for t in texts]


def result(content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [1.5, "é"]}'}}
CALLING = {"role": "assistant", "content": [USE]}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}

# (the client's messages, those of the turn)
TRANSLATED: dict[str, tuple[list[Any], list[Any]]] = {
    "text": ([USER], [USER]),
    "blocks": (
        [{"role": "user", "content": text("a", "b", cache_control={"type": "ephemeral"})}],
        [{"role": "user", "content": "a\n\nb"}],
    ),
    "no blocks": ([{"role": "user", "content": []}], [{"role": "user", "content": ""}]),
    "two users": ([USER, USER], [{"role": "user", "content": "hi\n\nhi"}]),
    "an answer in blocks": (
        [{"role": "assistant", "content": text("It ", "rains.")}],
        [{"role": "assistant", "content": "It rains."}],
    ),
    "two answers": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [*text("b"), USE]}],
        [{"role": "assistant", "content": "ab", "tool_calls": [CALL]}],
    ),
    "no answer": ([{"role": "assistant", "content": []}, USER], [{"role": "assistant", "content": ""}, USER]),
    "a call": ([CALLING], [CALLED]),
    "thinking": (
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, *text("a")]}],
        [{"role": "assistant", "content": "a", "reasoning_content": "hm"}],
    ),
    "thinking without a signature": (
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, {"type": "thinking", "thinking": "!"}],
            }
        ],
        [{"role": "assistant", "content": "", "reasoning_content": "hm!"}],
    ),
    "redacted thinking": (
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "blob"}, *text("a")]}],
        [{"role": "assistant", "content": "a", "dovetail": {"record": "blob"}}],
    ),
    "a result": (
        [CALLING, {"role": "user", "content": [result()]}],
        [CALLED, {"role": "tool", "tool_call_id": "toolu_1", "content": "done"}],
    ),
    "results before text": (
        [CALLING, {"role": "user", "content": [*text("so?"), result(text("a", "b"))]}],
        [CALLED, {"role": "tool", "tool_call_id": "toolu_1", "content": "a\n\nb"}, {"role": "user", "content": "so?"}],
    ),
    "an empty result": (
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}],
        [{"role": "tool", "tool_call_id": "toolu_1", "content": ""}],
    ),
    "an error": (
        [{"role": "user", "content": [result("no such file", is_error=True)]}],
        [{"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no such file"}],
    ),
    "an error without text": (
        [{"role": "user", "content": [result("", is_error=True)]}],
        [{"role": "tool", "tool_call_id": "toolu_1", "content": "Error"}],
    ),
    "an error that says so": (
        [{"role": "user", "content": [result("<tool_use_error>no</tool_use_error>", is_error=True)]}],
        [{"role": "tool", "tool_call_id": "toolu_1", "content": "<tool_use_error>no</tool_use_error>"}],
    ),
    "a document": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}},
                    {"type": "document", "source": {"type": "content", "content": "E"}},
                    {"type": "document", "source": {"type": "content", "content": text("F", "G")}},
                    {"type": "search_result", "title": "S", "source": "http://x", "content": text("H")},
                ],
            }
        ],
        [{"role": "user", "content": "T\n\nC\n\nD\n\nE\n\nF\n\nG\n\nS\nhttp://x\n\nH"}],
    ),
    "a system message": (
        [USER, {"role": "system", "content": "be brief"}, {"role": "assistant", "content": "ok"}, USER],
        [USER, {"role": "system", "content": "be brief"}, {"role": "assistant", "content": "ok"}, USER],
    ),
    "a system message for one turn": (
        [USER, {"role": "system", "content": "now", "clear_at": "next_user_message"}],
        [USER, {"role": "system", "content": "now"}],
    ),
    "a system message of an earlier turn": (
        [
            USER,
            {"role": "system", "content": "now", "clear_at": "next_user_message"},
            {"role": "assistant", "content": "ok"},
            USER,
        ],
        [USER, {"role": "assistant", "content": "ok"}, USER],
    ),
    "an empty system message": ([USER, {"role": "system", "content": []}], [USER]),
}


@pytest.mark.parametrize(("messages", "expected"), TRANSLATED.values(), ids=TRANSLATED)
def test_each_message(messages: list[Any], expected: list[Any]) -> None:
    request = read(*messages)
    assert request.messages == expected
    assert request.omitted == ()
    last = expected[-1]
    assert request.continue_final_message == (last["role"] == "assistant")
    assert request.add_generation_prompt == (last["role"] != "assistant")


def test_the_system_prompt() -> None:
    assert read(system="be brief").messages[0] == {"role": "system", "content": "be brief"}
    request = read(system=text("a", "b", cache_control={"type": "ephemeral"}))
    assert request.messages[0] == {"role": "system", "content": "a\n\nb"}
    for nothing in ("", [], None):
        assert read(system=nothing).messages == [USER]


def test_what_servers_ran_is_left_out_and_listed() -> None:
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        *text("It rains."),
    ]
    request = read(
        USER, {"role": "assistant", "content": searched}, {"role": "assistant", "content": searched[:2]}, USER
    )
    assert request.messages == [USER, {"role": "assistant", "content": "It rains."}, USER]
    assert request.omitted == tuple(f"messages[{i}].content[{j}]" for i in (1, 2) for j in (0, 1))
    tool_reference = {
        "role": "user",
        "content": [result([{"type": "tool_reference", "tool_name": "f"}, *text("one tool")])],
    }
    request = read(CALLING, tool_reference)
    assert request.messages[1]["content"] == "Available now: f\n\none tool"
    assert not request.omitted
    request = read(USER, {"role": "system", "content": "x", "output_config": {"effort": "low"}})
    assert request.omitted == ("messages[1].output_config",)


def test_tools() -> None:
    own = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset", "mcp_server_name": "x"}]
    described = TOOL | {"type": "custom", "name": "g", "description": "G", "strict": True, "defer_loading": True}
    request = read(tools=[own[0], TOOL, described | {"input_examples": [{"a": 1}]}, own[1]], mcp_servers=[{"url": "x"}])
    assert request.tools == [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "g", "parameters": SCHEMA, "description": "G", "strict": True}},
    ]
    # Templates write them with their fields in this order, which is OpenAI's.
    assert [*request.tools[1]["function"]] == ["name", "description", "parameters", "strict"]
    assert request.omitted == ("tools[0]", "tools[2].input_examples", "tools[3]", "mcp_servers")
    assert read(tools=own).tools is None


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
    ],
)
def test_tool_choice(choice: Any, expected: Any, parallel: bool) -> None:
    request = read(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("body", "thinking", "effort"),
    [
        ({}, True, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "between_tools"}}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 512}}, True, "minimal"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, True, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2049}}, True, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, True, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10**6}}, True, "max"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1}, "output_config": {"effort": "xhigh"}}, True, "xhigh"),
        ({"output_config": {"effort": None}}, True, None),
    ],
)
def test_thinking_and_effort(body: dict[str, Any], thinking: bool, effort: str | None) -> None:
    request = read(**body)
    assert (request.thinking, request.reasoning_effort) == (thinking, effort)


@pytest.mark.parametrize(
    ("efforts", "rendered"), [((), "xhigh"), (("low", "high", "max"), "max"), (("low", "medium"), "medium")]
)
def test_an_effort_that_the_model_does_not_know_becomes_the_nearest(
    tok: Tokenizer, efforts: tuple[str, ...], rendered: str
) -> None:
    fmt = WithOptions("reasoning_effort")
    fmt.efforts = efforts
    runner(tok, fmt).prepare(read(output_config={"effort": "xhigh"}))
    assert fmt.rendered[-1]["reasoning_effort"] == rendered
    with_none = WithOptions()  # no such option
    runner(tok, with_none).prepare(read(output_config={"effort": "xhigh"}))
    assert "reasoning_effort" not in with_none.rendered[-1]


def test_the_other_fields() -> None:
    request = read(
        stop_sequences=["a", "b"], temperature=0.5, top_p=0.9, top_k=7, max_tokens=5, dovetail={"strict": "off"}
    )
    assert (request.stop, request.max_tokens) == (("a", "b"), 5)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 7)
    assert request.extension.strict == "off"
    assert (read(top_k=0).sampling.top_k, read().sampling.temperature) == (None, 1.0)
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015", "keep": "all"}]
    request = read(context_management={"edits": edits}, metadata={"user_id": "x"}, cache_control={"type": "ephemeral"})
    assert (request.omitted, request.keep_reasoning) == (("context_management.edits[0]",), True)
    assert not read().keep_reasoning
    shape = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_config": {"format": shape}}, {"output_format": shape}):
        expected = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
        assert read(**fields).response_format == expected


def test_reports_name_the_clients_fields(tok: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": [*text("a"), USE]}, {"role": "user", "content": [result()]}]
    turn = prepared(tok, read(*messages, system="s", tools=[TOOL | {"input_schema": SCHEMA | {"not": {"const": 1}}}]))
    assert turn.repairs == (
        Repair("call_id", "messages[1].content[1].id", "toolu_1 -> functions.f:0"),
        Repair("result_id", "messages[2].content[0].tool_use_id", "toolu_1 -> functions.f:0"),
    )
    assert turn.unenforced == ("tools[0].input_schema#/not",)


def test_errors_name_the_clients_fields(tok: Tokenizer) -> None:
    bash = {"type": "bash_20250124", "name": "bash"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"messages": [CALLING, USER]}, "messages[0].content[0].id"),
        ({"messages": [USER, {"role": "user", "content": [result()]}]}, "messages[1].content[0].tool_use_id"),
        ({"tools": [bash, strict({"type": "strin"})]}, "tools[1].input_schema"),
        ({"tools": [bash, strict({"type": "object", "properties": 3})]}, "tools[1].input_schema"),
    ]
    for body, field in cases:
        with pytest.raises(DovetailError) as caught:
            prepared(tok, read(**body))
        assert (caught.value.param or "").startswith(field)
        assert field in caught.value.message


def strict(schema: Any) -> dict[str, Any]:
    return {"name": "f", "strict": True, "input_schema": schema}


def prepared(tok: Tokenizer, request: TurnRequest) -> PreparedTurn:
    return runner(tok).prepare(request)


def runner(tok: Tokenizer, fmt: Any = None) -> TurnRunner:
    return TurnRunner(ScriptedEngine(tok), fmt or WithOptions(), tok, Settings(served_model_name=MODEL))


def test_the_count_reads_the_same_prompt() -> None:
    body = {"model": MODEL, "messages": [USER], "system": "s", "tools": [TOOL], "thinking": {"type": "disabled"}}
    counted = prompt_request(decode_count_tokens(json.dumps(body).encode()))
    asked = turn_request(decode_messages(json.dumps(body | {"max_tokens": 9}).encode()))
    for field in ("messages", "tools", "thinking", "reasoning_effort", "omitted"):
        assert getattr(counted, field) == getattr(asked, field)
    with pytest.raises(InvalidRequest, match="max_tokens is required"):
        decode_messages(json.dumps(body).encode())
