"""The grammar of every format allows what the format writes, and what the grammar allows reads back as valid calls."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, Message, is_visible
from dovetail.grammar.matcher import compile
from tests.examples import examples
from tests.grammar.test_matcher import SCHEMA, TOOLS, allowed, allows, valid_arguments
from tests.reading import families

WITH = sorted(families.NAMES)


@pytest.mark.parametrize("name", WITH)
@given(
    made=st.lists(valid_arguments, max_size=3),
    thinking=st.booleans(),
    # What begins as a marker is no text to families whose markers may be text.
    text=st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=8).filter(
        lambda it: "<" not in it[:-1]
    ),
    strict=st.sampled_from(("names", "schema")),
)
@examples(20)
def test_calls_that_a_format_writes_are_accepted(
    name: str,
    made: list[dict[str, Any]],
    thinking: bool,
    text: str,
    strict: Any,
) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    reasoning = text if thinking and fmt.reasoning != "none" else ""
    if name in families.ONE_CALL:
        made = made[:1]
    order = list(fmt.shown_order(SCHEMA)["properties"])  # the library allows no other order
    made = [{key: arguments[key] for key in order if key in arguments} for arguments in made]
    calls = tuple(
        Call(f"functions.get_weather:{i}", "get_weather", json.dumps(a, ensure_ascii=False)) for i, a in enumerate(made)
    )
    ids = fmt.write(Message(text, reasoning, calls), thinking=thinking).ids(tokenizer)
    grammar, may_be_silent = (fmt.grammar(TOOLS, thinking=thinking, strict=strict, silent=it) for it in (False, True))
    assert grammar is not None
    assert may_be_silent is not None
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn]
    assert allows(compile(may_be_silent, tokenizer, ends), ids)
    assert allows(compile(grammar, tokenizer, ends), ids) == (bool(calls) or is_visible(text))


@pytest.mark.parametrize("name", WITH)
def test_an_allowed_walk_is_a_valid_message(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn]
    ended = 0
    for seed in range(12):
        rng = random.Random(seed)
        thinking, choice = seed % 2 == 0, "auto" if seed % 3 else "required"
        grammar = fmt.grammar(TOOLS, thinking=thinking, tool_choice=choice)
        assert grammar is not None
        matcher = compile(grammar, tokenizer, ends)
        ids: list[int] = []
        while not set(ends) & set(ids) and len(ids) < 400:
            options = sorted(allowed(matcher, tokenizer))
            controls = [token for token in options if token in tokenizer.control_literals]
            closers = [t for t in options if tokenizer.token_bytes(t) in (b'"', b"}", b"]", b"1", b"e")]
            token = rng.choice(rng.choice([pool for pool in (options, controls, closers, closers) if pool]))
            assert matcher.advance(token)
            ids.append(token)
        if not set(ends) & set(ids):
            continue
        ended += 1
        reader = fmt.reader(TOOLS, thinking=None if thinking else False, tool_choice=choice, tokenizer=tokenizer)
        message = dovetail.fold([*reader.feed("", ids), *reader.finish()])
        # The turns of messages on channels have two ends, and a grammar does not say which of them.
        wrong_end = {"missing_call_end", "missing_name"} if name in ("harmony", "beam") else set()
        # Nor does one repeat an undeclared name at the end of MiniMax-M3's tags.
        wrong_end |= {"missing_parameter_end", "text_in_section"} if name == "minimax_m3" else set()
        after_calls = {"text_after_calls", "repeated_call", "text_in_section"} if choice == "required" else set()
        assert {d.kind for d in message.defects} - after_calls <= {"duplicate_id", "duplicate_parameter", *wrong_end}
        assert choice == "auto" or message.calls
        for call in message.calls:
            schema = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}[call.name]
            jsonschema.validate(json.loads(call.arguments), schema or {"type": "object"})
    assert ended


@pytest.mark.parametrize("name", WITH)
def test_invalid_arguments_and_unknown_names_are_refused(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn]
    wrong = ({}, {"city": "x", "days": "three"}, {"city": "x", "days": 10}, {"city": "x" * 9, "days": 1})
    foreign = [("rm", {}), ("get_weathe", {"city": "x", "days": 1})]
    for called, said_to in (*foreign, *(("get_weather", each) for each in wrong)):
        arguments = json.dumps(said_to)
        sent = Message("", "", (Call(f"functions.{called}:0", called, arguments),))
        grammar = fmt.grammar(TOOLS, thinking=False)
        assert grammar is not None
        assert not allows(compile(grammar, tokenizer, ends), fmt.write(sent, thinking=False).ids(tokenizer))
    assert fmt.grammar(TOOLS, tool_choice="none", thinking=False) is not None
    assert SCHEMA["required"] == ["city", "days"]
