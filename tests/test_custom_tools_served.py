"""Custom tools of the demo model through the official client: whatever the weights, the input is in the grammar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.demo_server import demo_server
from tests.grammar import random_grammars

#: Bounded, so that every answer ends; with everything that JSON strings have to escape.
PATCH = r"""
start: "*** Begin Patch\n" file~1..2 "*** End Patch" LF?
file: "*** Update File: " NAME LF line~1..2
line: ("+" | "-" | " ") TEXT? LF
NAME: /[a-z"\\]{1,5}/
TEXT: /[^\n]{1,8}/
%import common.LF
"""
NESTED = r'start: "(" (start | /["\\\n]/ | "é") ")" | "1"'
FORMATS = {
    "patch": (PATCH, {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}}),
    "nested": (NESTED, {"type": "grammar", "grammar": {"syntax": "lark", "definition": NESTED}}),
}
USER: Any = [{"role": "user", "content": "Edit the file."}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with demo_server() as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def tool(name: str) -> dict[str, Any]:
    return {"name": "edit", "description": "Edits a file.", "format": FORMATS[name][1]}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_chat_completions_whole_and_streamed(client: openai.OpenAI, name: str) -> None:
    for seed in range(3):
        body: Any = {
            "model": "demo",
            "messages": USER,
            "tools": [{"type": "custom", "custom": tool(name)}],
            "tool_choice": {"type": "custom", "custom": {"name": "edit"}},
            "parallel_tool_calls": False,
            "reasoning_effort": "none",
            "seed": seed,
            "max_tokens": 300,
        }
        whole = client.chat.completions.create(**body).choices[0]
        (call,) = whole.message.tool_calls or ()
        assert call.type == "custom"
        if whole.finish_reason == "tool_calls":
            assert random_grammars.is_member(FORMATS[name][0], call.custom.input)
        pieces = []
        for chunk in client.chat.completions.create(**body, stream=True):
            for piece in chunk.choices[0].delta.model_dump(exclude_unset=True).get("tool_calls", ()):
                pieces.append(piece["custom"].get("input", ""))
        assert "".join(pieces) == call.custom.input
        history: Any = [
            *USER,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "done"},
        ]
        again = client.chat.completions.create(**{**body, "messages": history, "tool_choice": "none"})
        assert again.choices[0].finish_reason in ("stop", "length")


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_responses_whole_and_streamed(client: openai.OpenAI, name: str) -> None:
    body: Any = {
        "model": "demo",
        "input": "Edit the file.",
        "tools": [{"type": "custom", **responses_tool(name)}],
        "tool_choice": {"type": "custom", "name": "edit"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "none"},
        "temperature": 0,
        "max_output_tokens": 300,
        "store": False,
    }
    whole = client.responses.create(**body)
    (item,) = [each for each in whole.output if each.type == "custom_tool_call"]
    if whole.status == "completed":
        assert random_grammars.is_member(FORMATS[name][0], item.input)
    deltas, done = [], ""
    for event in client.responses.create(**body, stream=True):
        if event.type == "response.custom_tool_call_input.delta":
            deltas.append(event.delta)
        elif event.type == "response.custom_tool_call_input.done":
            done = event.input
    assert "".join(deltas) == done == item.input


def responses_tool(name: str) -> dict[str, Any]:
    grammar = FORMATS[name][1]["grammar"]
    return {**tool(name), "format": {"type": "grammar", **grammar}}


def test_a_grammar_that_cannot_be_used_is_a_typed_error(client: openai.OpenAI) -> None:
    bad = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: MISSING"}}
    tools: Any = [{"type": "custom", "custom": {"name": "edit", "format": bad}}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="demo", messages=USER, tools=tools)
    assert refused.value.param == "tools[0].custom.format.grammar.definition"
    assert "the terminal MISSING is not defined" in str(refused.value)
    with pytest.raises(openai.BadRequestError) as refused:
        flat: Any = [{"type": "custom", "name": "edit", "format": {"type": "grammar", **bad["grammar"]}}]
        client.responses.create(model="demo", input="hi", tools=flat, store=False)
    assert refused.value.param == "tools[0].format.definition"
