"""Calls that are required: the model may always end after them, says nothing else, and does not repeat itself."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.events import Call, Message, fold
from dovetail.grammar.matcher import Matcher, compile
from tests.reading import families

NAMES = sorted(families.NAMES)
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PLACE}} for name in ("get_weather", "get_time")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ONE, OTHER = '{"city": "Paris"}', '{"city": "Oslo"}'


def matcher(name: str, tool_choice: Any) -> Matcher:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    grammar = fmt.grammar(TOOLS, tool_choice=tool_choice, thinking=False)
    assert grammar is not None
    return compile(grammar, tokenizer, ends_of(name))


def ends_of(name: str) -> list[int]:
    control = families.tokenizer_of(name).control
    return [control[literal] for literal in families.format_of(name).end_of_turn]


def taken(constraint: Matcher, ids: Sequence[int]) -> int:
    """How many of `ids` the constraint takes."""
    return next((i for i, token in enumerate(ids) if not constraint.advance(token)), len(ids))


def written(name: str, *arguments: str) -> list[int]:
    """The tokens of calls as the family writes them, without the end of the turn."""
    calls = tuple(Call(f"functions.get_weather:{i}", "get_weather", each) for i, each in enumerate(arguments))
    ids = families.format_of(name).write(Message(calls=calls), thinking=False).ids(families.tokenizer_of(name))
    while ids[-1] in ends_of(name):
        ids = ids[:-1]
    return list(ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_named_tool_is_called_once(name: str) -> None:
    end = ends_of(name)[-1:]
    assert taken(matcher(name, NAMED), written(name, ONE) + end) == len(written(name, ONE)) + 1
    both = written(name, ONE, OTHER)
    assert taken(matcher(name, NAMED), both) < len(both)


@pytest.mark.parametrize("name", NAMES)
def test_required_calls_may_be_several(name: str) -> None:
    ids = written(name, ONE) if name in families.ONE_CALL else written(name, ONE, OTHER)
    assert taken(matcher(name, "required"), ids + ends_of(name)[-1:]) == len(ids) + 1


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", NAMES)
def test_the_turn_may_end_after_the_white_space_between_calls(name: str, choice: str) -> None:
    """A model writes the new line before it decides whether another call comes."""
    tokenizer = families.tokenizer_of(name)
    one, two = written(name, ONE), written(name, ONE, OTHER)
    common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    constraint = matcher(name, choice)
    assert taken(constraint, one[:common]) == common
    for token in two[common:]:
        if not tokenizer.token_bytes(token).isspace() or token in tokenizer.control_literals:
            break
        assert constraint.advance(token)
    assert taken(constraint, one[common:]) == len(one) - common
    assert constraint.advance(ends_of(name)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_no_more_new_lines_than_the_family_writes(name: str) -> None:
    tokenizer, ids = families.tokenizer_of(name), written(name, ONE)
    text = "".join(tokenizer.pieces(ids))
    own = len(text) - len(text.lstrip("\n"))
    assert taken(matcher(name, "required"), tokenizer.encode("\n" * (own + 1))) <= own


@functools.cache
def text_after(name: str) -> list[int]:
    """The tokens of a call and text after it, as the grammar allows them, up to where only the end may come; [] if the
    calls are over at the end of a section."""
    tokenizer, ids = families.tokenizer_of(name), written(name, ONE)
    for word in ("", ">>>all\n"):
        tail = tokenizer.encode(f"{word}I have called it and now I go on and on.")
        count = taken(matcher(name, "required"), ids + tail) - len(ids)
        if count > len(tokenizer.encode(word)):
            whole = [*ids, *tail[:count], *ends_of(name)[-1:]]
            assert taken(matcher(name, "required"), whole) == len(whole)
            return ids + tail[:count]
    return []


@pytest.mark.parametrize("name", NAMES)
def test_text_after_calls_ends_the_answer(name: str) -> None:
    fmt, tokenizer, ids = families.format_of(name), families.tokenizer_of(name), text_after(name)
    if not ids:  # nothing but the end may come
        constraint = matcher(name, "required")
        assert taken(constraint, written(name, ONE)) == len(written(name, ONE))
        assert not constraint.advance(tokenizer.encode("I")[0])
        return
    assert len(ids) - len(written(name, ONE)) <= 40
    for size in (1, 3, len(ids)):
        reader = fmt.reader(TOOLS, thinking=False, tool_choice="required", tokenizer=tokenizer)
        events = [event for at in range(0, len(ids), size) for event in reader.feed("", ids[at : at + size])]
        assert reader.ended
        message = fold([*events, *reader.finish()])
        assert (message.content, [call.arguments for call in message.calls]) == ("", [ONE])
        assert message.defects[-1].kind == "text_after_calls"


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(families.ONE_CALL)))
def test_a_call_that_repeats_the_one_before_it_ends_the_answer(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    rng, messages = random.Random(name), []
    ids = written(name, OTHER, ONE, ONE, OTHER)
    for cuts in (0, 1, 5, len(ids)):
        reader = fmt.reader(TOOLS, thinking=False, tool_choice="required", tokenizer=tokenizer)
        at = sorted(rng.sample(range(1, len(ids)), min(cuts, len(ids) - 1)))
        pieces = zip([0, *at], [*at, len(ids)], strict=True)
        events = [event for begin, end in pieces for event in reader.feed("", ids[begin:end])]
        assert reader.ended
        messages.append(fold([*events, *reader.finish()]))
    assert [call.arguments for call in messages[0].calls] == [OTHER, ONE]
    assert messages[0].defects[-1].kind == "repeated_call"
    assert all(message == messages[0] for message in messages)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "llama3_json", "kimi_k25"])
def test_several_calls_that_repeat_themselves_end_the_answer(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    third = '{"city": "Rome"}'

    def read(*arguments: str) -> tuple[list[str], bool]:
        reader = fmt.reader(TOOLS, thinking=False, tool_choice="required", tokenizer=tokenizer)
        events = [event for token in written(name, *arguments) for event in reader.feed("", [token])]
        calls = fold([*events, *reader.finish()]).calls
        return [call.arguments for call in calls], reader.ended

    assert read(ONE, OTHER, third, ONE, OTHER, third, ONE) == ([ONE, OTHER, third, ONE, OTHER], True)
    assert read(third, ONE, OTHER, ONE, OTHER) == ([third, ONE, OTHER, ONE], True)
    assert read(ONE, OTHER, ONE) == ([ONE, OTHER, ONE], False)  # calling again later is no loop
    assert read(ONE, OTHER, third, OTHER, ONE) == ([ONE, OTHER, third, OTHER, ONE], False)


def test_a_cut_off_call_that_began_like_the_one_before_it_is_shown() -> None:
    fmt, tokenizer = families.format_of("qwen3"), families.tokenizer_of("qwen3")
    ids = written("qwen3", ONE, ONE)[:-4]
    reader = fmt.reader(TOOLS, thinking=False, tool_choice="required", tokenizer=tokenizer)
    message = fold([*reader.feed("", ids), *reader.finish("length")])
    assert len(message.calls) == 2 and not reader.ended


def test_white_space_around_required_calls_is_dropped_however_it_is_cut() -> None:
    text = '\n\nLet me look. \n\n<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>\n\n'
    fmt = families.format_of("hermes")
    whole = fmt.parse(text, TOOLS, tool_choice="required")
    reader = fmt.reader(TOOLS, tool_choice="required")
    piecewise = fold([*(event for character in text for event in reader.feed(character)), *reader.finish()])
    assert whole == piecewise
    assert whole.content == "\n\nLet me look." and len(whole.calls) == 1
    assert fmt.parse(text.replace("Let me look.", ""), TOOLS, tool_choice="required").content == ""


CALL = '<tool_call>\n{"name": "%s", "arguments": %s'
END = "}\n</tool_call>\n"


@pytest.mark.parametrize(
    "text",
    [
        CALL % ("get_weather", ONE) + END + CALL % ("get_weather", '{"city"') + CALL % ("get_time", ONE) + END,
        CALL % ("get_weather", ONE) + END + CALL % ("get_time", '{"city": ') + CALL % ("get_weather", ONE) + END,
    ],
    ids=["another tool", "not right after itself"],
)
def test_a_broken_call_in_between_makes_no_repetition(text: str) -> None:
    fmt = families.format_of("hermes")
    assert fmt.parse(text, TOOLS, tool_choice="required").calls == fmt.parse(text, TOOLS).calls


def test_a_call_without_an_end_in_between_makes_no_repetition() -> None:
    mark, fmt = "]<]minimax[>[", families.format_of("minimax_m3")
    begun = f'{mark}<tool_call>\n{mark}<invoke name="get_weather">'
    call = f"{begun}{mark}<city>Rome{mark}</city>{mark}</invoke>\n{mark}</tool_call>"
    calls = fmt.parse(call + begun + fmt.end_of_turn[0] + call, TOOLS, tool_choice="required").calls
    assert [call.arguments for call in calls] == ['{"city": "Rome"}', "", '{"city": "Rome"}']


def test_white_space_beside_a_defect_stays() -> None:
    fmt = families.format_of("hermes")
    message = fmt.parse("Hello </think>world", TOOLS, tool_choice="required", thinking=False)
    assert message.content == "Hello world"


@pytest.mark.parametrize("name", ["granite", "hunyuan"])
def test_a_new_line_after_calls_forces_no_wrapper(name: str) -> None:
    constraint = matcher(name, "required")
    ids = [*written(name, ONE), *families.tokenizer_of(name).encode("\n"), ends_of(name)[-1]]
    assert taken(constraint, ids) == len(ids)


def test_a_call_without_a_marker_is_no_reasoning() -> None:
    text = '{"name": "get_time", "parameters": {}}'
    for thinking in (None, False):
        assert families.format_of("llama3_json").parse(text, TOOLS, thinking=thinking).calls
