"""Calls whose name stands before their arguments, and calls whose name is a key: near-misses of them."""

from __future__ import annotations

import functools

import pytest

from dovetail.events import Message
from dovetail.formats.base import ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.declared.named_calls import KeyedCalls, NamedCalls
from tests.reading import whole
from tests.reading.families import TOOLS, format_of
from tests.reading.whole import calls, kinds

named, in_text, keyed = (functools.partial(whole.read, name) for name in ("named_calls", "named_in_text", "apertus"))
HEAD = "<|call|>a1<|name|>ping<|args|>"
CALL = HEAD + '{"a": 1}<|/call|>'
ONE = [("ping", '{"a": 1}')]


@pytest.mark.parametrize(
    ("body", "expected", "content", "defects"),
    [
        (CALL + CALL.replace("a1", "a2"), ONE * 2, "", []),
        ('\n<|call|> a1\n<|name|> ping <|args|>\n{"a": 1}\n<|/call|>\n', ONE, "", []),
        (CALL + CALL, ONE * 2, "", ["duplicate_id"]),
        (CALL.replace("a1", "a b"), ONE, "a b", ["unreadable_id"]),
        (CALL.replace("a1", ""), ONE, "", []),
        (CALL.removesuffix("<|/call|>"), ONE, "", ["missing_call_end"]),
        (CALL.removesuffix("<|/call|>") + CALL.replace("a1", "a2"), ONE * 2, "", ["missing_call_end"]),
        (CALL.replace("<|args|>", ""), ONE, "", ["missing_separator"]),
        (HEAD + "<|/call|>", [("ping", "{}")], "", ["missing_arguments"]),
        (HEAD.removesuffix("<|args|>") + "<|/call|>", [("ping", "{}")], "", ["missing_arguments"]),
        (HEAD + "null<|/call|>", [("ping", "{}")], "", ["missing_arguments"]),
        (HEAD + '{"a": 1<|/call|>', [("ping", '{"a": 1}')], "", ["missing_bracket"]),
        (HEAD + '"{\\"a\\": 1}"<|/call|>', ONE, "", ["string_arguments"]),
        (HEAD.replace("ping", "what") + "<|/call|>", [("what", "{}")], "", ["unknown_name", "missing_arguments"]),
        (CALL + "so" + CALL.replace("a1", "a2"), ONE * 2, "so", ["text_in_section"]),
        ("<|calls|>" + CALL, ONE, "", ["stray_marker"]),
        ("<|name|>" + CALL, ONE, "", ["stray_marker"]),
        (CALL + '<|call|><|name|>{"a": 1}<|/call|>', ONE, '{"a": 1}',
         ["missing_name", "text_in_section", "stray_marker"]),
    ],
)  # fmt: skip
def test_near_misses(body: str, expected: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = named(f"<|calls|>{body}<|/calls|><|end|>", thinking=False)
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


@pytest.mark.parametrize(
    "body",
    [
        "<|call|>a1<|name|>what<|/call|>",
        '<|call|>a1<|name|><|args|>{"a": 1}<|/call|>',
        '<|call|>a1{"a": 1}<|/call|>',
        '<|call|>a1<|name|>p q<|args|>{"a": 1}<|/call|>',
        f"<|call|>{'n' * 1500}<|/call|>",
    ],
)
def test_what_is_no_call_is_text(body: str) -> None:
    text = f"<|calls|>{body}<|/calls|>"
    assert named(f"{text}<|end|>", thinking=False) == Message(text)


@pytest.mark.parametrize(
    ("output", "expected", "content", "defects"),
    [
        (CALL + "<|/calls|>", ONE, "", ["missing_section"]),
        ("<|calls|>" + CALL, ONE, "", ["missing_section_end"]),
        ("<|calls|>" + CALL + "<|think|>x", ONE, "", ["missing_section_end"]),
        ("<|calls|>" + HEAD + '{"a": "b', [("ping", '{"a": "b')], "", ["truncated_call", "missing_section_end"]),
        ("<|calls|><|call|>a1", [], "<|calls|><|call|>a1", []),
        ("Hi.\n<|calls|>" + CALL + "<|/calls|>\nBye.", ONE, "Hi.\n\nBye.", []),
    ],
)
def test_sections(output: str, expected: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = named(output, thinking=False)
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


def test_the_id_is_the_model_s() -> None:
    assert [call.id for call in named(f"<|calls|>{CALL}<|/calls|>", thinking=False).calls] == ["a1"]


@pytest.mark.parametrize(
    ("output", "expected", "content", "defects"),
    [
        ('Hi.<function=ping>{"a": 1}</function>', ONE, "Hi.", []),
        ('<function=ping>{"a": 1}</function>\n<function=ping>{"a": 1}</function>', ONE * 2, "", []),
        ('<function=ping>{"a": "</function>"}</function> so', [("ping", '{"a": "</function>"}')], " so", []),
        ("<function=ping></function>", [("ping", "{}")], "", ["missing_arguments"]),
        ('<function=ping>{"a": 1}', ONE, "", ["missing_call_end"]),
        ('<function=ping>{"a": 1} so', ONE, "so", ["text_in_section", "missing_call_end"]),
        ("<function=a b>c", [], "<function=a b>c", []),
    ],
)
def test_markers_that_are_text(output: str, expected: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = in_text(output)
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


@pytest.mark.parametrize(
    ("body", "expected", "content", "defects"),
    [
        ('[{"ping": {"a": 1}}]', ONE, "", []),
        ('[ {\n"ping" :\n{"a": 1} } , {"ping":{"a": 1}}]', ONE * 2, "", []),
        ('[{"name": "ping", "arguments": {"a": 1}}]', ONE, "", []),
        ('[{"arguments": {"a": 1}, "name": "ping"}]', ONE, "", []),
        ('[{"what": {"a": 1}}]', [("what", '{"a": 1}')], "", ["unknown_name"]),
        ('[{"ping": {"a": 1}, "ping": {}}]', ONE, '"ping": {}', ["extra_key"]),
        ('[{"ping": 3}]', [], '<|tools_prefix|>[{"ping": 3}]<|tools_suffix|>', []),
        ('[{"": {"a": 1}}]', [], '<|tools_prefix|>[{"": {"a": 1}}]<|tools_suffix|>', []),
    ],
)
def test_the_name_as_a_key(body: str, expected: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = keyed(f"<|tools_prefix|>{body}<|tools_suffix|>")
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


def test_a_tool_that_is_called_as_a_usual_key() -> None:
    tools = [{"type": "function", "function": {"name": "function"}}]
    message = format_of("apertus").parse('<|tools_prefix|>[{"function": {"name": 1}}]<|tools_suffix|>', tools)
    assert (calls(message), kinds(message)) == ([("function", '{"name": 1}')], [])


class OneInSection(DeclaredFormat):
    name = "one_in_section"
    reasoning: ReasoningBlock = "none"
    controls = ("[CALL]", "[ARGS]", "[ID]")
    end_of_turn = ("</s>",)
    calls = NamedCalls("[CALL]{call}", "{name}[ID]{index}[ARGS]{arguments}", after_content="\n")


def test_the_section_opens_the_call() -> None:
    fmt = OneInSection()
    text = '[CALL]ping[ID]0[ARGS]{"a": 1}[CALL]ping[ID]1[ARGS]{"a": 1} so</s>'
    message = fmt.parse("Hi.\n" + text, TOOLS)
    assert (message.content, calls(message), [call.id for call in message.calls]) == ("Hi. so", ONE * 2, ["0", "1"])
    assert not message.defects
    assert "Hi.\n" + text.replace(" so", "") == fmt.write(message.__class__("Hi.", "", message.calls)).text


@pytest.mark.parametrize(
    "call",
    [
        "{name}[ARGS]",
        "{arguments}[NAME]{name}",
        "{id}{name}[ARGS]{arguments}",
        "{name}[ARGS]{arguments}",
        "<f={name}>{arguments}{id}",
    ],
)
def test_what_no_reader_could_take_apart_is_refused(call: str) -> None:
    with pytest.raises(ValueError, match="call must"):
        NamedCalls("{call}", call)


def test_a_key_needs_both_slots() -> None:
    with pytest.raises(ValueError, match=r"call must have \{arguments\}, \{name\} once"):
        KeyedCalls("<|calls|>{call}", '{"{name}": {}}')
