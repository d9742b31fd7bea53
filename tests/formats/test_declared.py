"""Formats that are declared by templates, and which of them may begin with reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dovetail
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls, TagCalls
from dovetail.tokens import Prompt
from tests.reading import families

GOOD = {
    "name": "acme",
    "controls": ("<|think|>", "<|/think|>"),
    "end_of_turn": ("<|end|>",),
    "reasoning_block": "<|think|>{reasoning}<|/think|>",
    "calls": JsonCalls("<calls>[{calls}]</calls>", between=", "),
}
KEY_TAGS = "{name}\n{parameters}", "<key>{key}</key><value>{value}</value>"
CALL = '{"id": "0", "tool": "ping", "input": {}}'


@pytest.mark.parametrize(
    ("output", "content", "calls", "defects"),
    [
        (f"<|calls|>[{CALL}]<|end|>", "", 1, ["missing_section_end"]),
        (f"<|calls|>[{CALL}, {CALL}]<|/calls|><|end|>", "", 2, ["duplicate_id"]),
        ("<|think|>Hm. <|answer|>Hi.<|/answer|><|end|>", "Hi.", 0, ["reasoning_not_closed"]),
        ("Before.\n<|answer|>Hi.<|/answer|>\nAfter.<|end|>", "Before.\nHi.\nAfter.", 0, []),
    ],
)
def test_the_example_of_the_docs(output: str, content: str, calls: int, defects: list[str]) -> None:
    message = families.format_of(families.EXAMPLE).parse(output, families.TOOLS)
    assert (message.content, len(message.calls)) == (content, calls)
    assert [defect.kind for defect in message.defects] == defects


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resoning": "none"}, r"Acme\.resoning: a format has no such attribute; reasoning\?"),
        ({"zzz": 1}, r"Acme\.zzz: a format has no such attribute$"),
        *(({name: None}, f"Acme needs the attribute {name}") for name in ("name", "controls", "end_of_turn", "calls")),
        ({"controls": "<|think|>"}, r"Acme\.controls must be a tuple of literals"),
        ({"end_of_turn": "<|end|>"}, r"Acme\.end_of_turn must be a tuple of literals"),
        ({"other_ends": ("",)}, r"Acme\.other_ends must be a tuple of literals"),
        ({"reasoning": "open"}, r"Acme\.reasoning must be one of opened, written, none"),
        ({"reasoning_block": "<|think|>{reason}<|/think|>"}, r"Acme\.reasoning_block must have \{reasoning\} once"),
        ({"reasoning_block": "think {reasoning}"}, r"Acme\.reasoning_block must be two tags around"),
        ({"answer": "<|answer|>{text}"}, r"Acme\.answer must have \{content\} once"),
        ({"wrapped_answer": "<answer>"}, r"Acme\.wrapped_answer must have \{answer\} once"),
        # what contradicts itself
        ({"end_after_calls": "<|over|>"}, r"Acme\.end_after_calls must be one of end_of_turn: '<\|over\|>'"),
        ({"reasoning_block": "<|t|>{reasoning}<|t|>"}, r"Acme\.reasoning_block must end in another tag than it begins"),
        (
            {"calls": JsonCalls("{calls}")},
            r"Acme\.calls: nothing opens them: the section, or the call, must begin with",
        ),
        ({"calls": TagCalls("{calls}", KEY_TAGS[0], KEY_TAGS[1])}, r"Acme\.calls: nothing opens them"),
        (
            {"calls": JsonCalls("<calls>{calls}<|end|>")},
            r"Acme\.calls: '<\|end\|>' ends a turn, so that it cannot stand in the section of calls",
        ),
        (
            {"calls": JsonCalls("<calls>{calls}", '<|end|>{"name": "{name}", "arguments": {arguments}}')},
            r"Acme\.calls: '<\|end\|>' ends a turn, so that it cannot stand in the call of calls",
        ),
        (
            {"other_calls": (JsonCalls("<call>{call}</call>", after_content="<|end|>"),)},
            r"Acme\.calls: '<\|end\|>' ends a turn, so that it cannot stand in the after_content of calls;",
        ),
        (
            {"controls": ("<|think|>", "<|think|>>")},
            r"Acme: the marker '<\|think\|>' is also the beginning of '<\|think\|>>'",
        ),
        (
            {"controls": (), "calls": JsonCalls("<|end{calls}</calls>")},
            r"Acme: the marker '<\|end' is also the beginning of '<\|end\|>'",
        ),
    ],
)
def test_a_family_that_cannot_be_meant_is_refused(changes: dict[str, object], message: str) -> None:
    attributes = {name: value for name, value in (GOOD | changes).items() if value is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        type("Acme", (DeclaredFormat,), attributes)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: JsonCalls("<calls>{call_list}</calls>"), r"section must have \{calls\} once"),
        (lambda: JsonCalls("<calls>{call}{call}</calls>"), r"section must have \{call\} once"),
        (
            lambda: JsonCalls("{calls}", '{"name": "{name}"}'),
            r"call must have \{arguments\}, \{name\} once and may have",
        ),
        (
            lambda: TagCalls("{calls}", "<f={name}></f>", "<p={key}>{value}</p>"),
            r"call must have \{name\}, \{parameters\}",
        ),
        (
            lambda: TagCalls("{calls}", "<f={name}>{parameters}</f>", "<p={key}></p>"),
            r"parameter must have \{key\}, \{value\}",
        ),
        (
            lambda: TagCalls("<calls>{calls}", "<f={name}>{parameters}</f>", "{key}: {value}\n"),
            r"parameter must be a tag with \{key\} in it around \{value\}, as call has one with \{name\}; or",
        ),
        (lambda: TagCalls("<calls>{calls}", KEY_TAGS[0], "<p={key}>{value}</p>"), "parameter must be a tag"),
        (lambda: JsonCalls("<calls>[{calls}]", between="; "), "between must have a comma, because the section is a"),
    ],
)
def test_calls_that_cannot_be_meant_are_refused(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare()


@pytest.mark.parametrize(
    ("name", "left_open", "thinking", "continues", "may"),
    [
        ("qwen3", False, True, False, True),
        ("qwen3", False, True, True, False),
        ("qwen3", False, False, False, False),
        ("kimi_k25", True, True, True, True),
        ("kimi_k25", False, True, False, False),
        ("hermes", True, True, False, False),
    ],
)
def test_whether_an_answer_may_begin_with_reasoning(
    name: str, left_open: bool, thinking: bool, continues: bool, may: bool
) -> None:
    assert dovetail.format(name).may_reason(left_open, thinking=thinking, continues=continues) is may


def test_text_without_a_word_of_its_own_opens_nothing() -> None:
    calls = JsonCalls("functools[{calls}]", between=", ")
    assert calls.reader(("<|end|>",))[1]["openers"] == ("functools[",)
    calls = JsonCalls("\nAction:\n```json\n[\n  {calls}\n]```\n", between=",\n  ")
    assert calls.reader(("<|end|>",))[1]["openers"] == ("\nAction:\n```json\n[",)
    assert JsonCalls("<tools>[{calls}]</tools>", between=", ").reader(("<|end|>",))[1]["openers"] == ("<tools>",)


def test_an_id_after_the_arguments_comes_too_late() -> None:
    for call, late in (
        ('{"id": "{id}", "name": "{name}", "arguments": {arguments}}', False),
        ('{"name": "{name}", "arguments": {arguments}, "id": "{id}"}', True),
    ):
        attributes = GOOD | {
            "controls": (),
            "reasoning": "none",
            "calls": JsonCalls("<calls>[{calls}]</calls>", call, ", "),
        }
        fmt = type("Acme", (DeclaredFormat,), attributes)()
        message = fmt.parse(fmt.write(Message("", "", (Call("a1", "ping", "{}"),))).text, families.TOOLS)
        assert ([call.id for call in message.calls], message.defects) == (["call_0" if late else "a1"], ())


def test_a_family_that_writes_one_call_of_two_is_not_constrained() -> None:
    class One(families.format_of("hermes").__class__):  # type: ignore[misc]
        def write(self, message: Message, *, thinking: bool = True) -> Prompt:
            return super().write(Message(message.content, "", message.calls[:1]), thinking=thinking)

        def _written(self, message: Message, *rest: Any, **more: Any) -> Prompt:
            return super()._written(Message(message.content, "", message.calls[:1]), *rest, **more)

    with pytest.raises(InvalidRequest, match="cannot be constrained yet"):
        One().grammar(families.TOOLS)
