"""How an answer begins, in every format: a required call at once, JSON with its bracket, and no call without tools."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.completion import Constraint
from dovetail.events import Call, Message, fold
from dovetail.grammar.matcher import compile
from dovetail.tokens import Tokenizer
from tests.grammar.test_matcher import TOOLS, allows
from tests.reading import families

NAMES = sorted(families.NAMES)
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = Message("", "", (Call("functions.get_weather:0", "get_weather", '{"city": "x", "days": 1}'),))
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
THINKING = [True, False]


def constraint(name: str, tokenizer: Tokenizer, tools: Any, **options: Any) -> Constraint:
    fmt = families.format_of(name)
    grammar = fmt.grammar(tools, **options)
    assert grammar is not None
    return compile(grammar, tokenizer, [tokenizer.control[literal] for literal in fmt.end_of_turn])


def answer(name: str, message: Message, thinking: bool) -> list[int]:
    """The ids of `message`, behind some reasoning if there is any."""
    reasoning = "Hm." if families.reasons(name, thinking) else ""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    return fmt.write(Message(message.content, reasoning, message.calls), thinking=thinking).ids(tokenizer)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("name", NAMES)
def test_no_text_comes_before_a_required_call(name: str, thinking: bool, choice: Any) -> None:
    tokenizer = families.tokenizer_of(name)
    options = {"tool_choice": choice, "thinking": thinking}
    assert allows(constraint(name, tokenizer, TOOLS, **options), answer(name, CALL, thinking))
    with_text = Message("I will look.", "", CALL.calls)
    assert not allows(constraint(name, tokenizer, TOOLS, **options), answer(name, with_text, thinking))
    # With "auto" there may be text.
    assert allows(constraint(name, tokenizer, TOOLS, thinking=thinking), answer(name, with_text, thinking))


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("name", NAMES)
def test_structured_content_begins_with_its_bracket(name: str, thinking: bool) -> None:
    """Behind the new lines that belong to the markup, which are no content."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    for blanks in ("", "\n", "\n\n", "\n\n\n", " ", "\n" + " " * 32, "\n\n  "):
        ids = answer(name, Message(blanks + '{"a": 1}'), thinking)
        matcher = constraint(name, tokenizer, None, response_format=SCHEMA, thinking=thinking)
        taken = allows(matcher, ids)
        assert taken or blanks
        if taken:
            reader = fmt.reader(None, thinking=families.opened(name, thinking), tokenizer=tokenizer, structured=True)
            assert fold([*reader.feed("", ids), *reader.finish()]).content == '{"a": 1}'


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("name", NAMES)
def test_no_call_begins_where_none_is_allowed(name: str, thinking: bool, tools: Any) -> None:
    tokenizer = families.tokenizer_of(name)
    options = {"tool_choice": "none", "thinking": thinking}
    assert allows(constraint(name, tokenizer, tools, **options), answer(name, Message("It rains."), thinking))
    called = answer(name, CALL, thinking)
    if name not in ("llama3_json", "pythonic") and not families.opens_in_text(name):  # whose calls look like text
        assert not allows(constraint(name, tokenizer, tools, **options), called)
