"""The verdict's words for real turns: what a scripted model writes, through the gateway, into a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.conversation import Call, Message
from dovetail.events import CallArguments, CallStart, Defect
from dovetail.gateway.broken_json import Break, break_of, is_prose, named
from dovetail.gateway.recordings.misfits import misfits
from dovetail.gateway.recordings.recording import Recording
from dovetail.gateway.recordings.redaction import redacted
from dovetail.gateway.recordings.verdict import verdict
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_recordings import only, recorded

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}


def call(arguments: str, number: int = 0) -> Call:
    return Call(f"functions.get_weather:{number}", "get_weather", arguments)


PARIS = call('{"city": "Paris"}')

#: What the model writes, what the request adds, and what the verdict says of it.
TURNS: dict[str, tuple[Message, dict[str, Any], str]] = {
    "ended in reasoning": (
        Message(reasoning="I will call the tool now."),
        {},
        "the model ended its turn in reasoning: no content, no call",
    ),
    "prose in place of a value": (
        Message(reasoning="h", calls=(call('{"city": I think Paris}'),)),
        {},
        "call 1 (get_weather): prose at the schema's `city`",
    ),
    "prose in a value": (
        Message(reasoning="h", calls=(call('{"city": "I think it is Paris"}'),)),
        {},
        "call 1 (get_weather): prose at the schema's `city`",
    ),
    "prose in an array": (
        Message(reasoning="h", calls=(PARIS, call('{"city": "Rome", "days": [1, "about two days"]}', 1))),
        {},
        "call 2 (get_weather): prose at the schema's `days[1]`",
    ),
    "another value": (
        Message(reasoning="h", calls=(call('{"city": "Oslo"}'),)),
        {},
        "call 1 (get_weather): `city` does not fit the schema's `enum`",
    ),
    "no value": (
        Message(reasoning="h", calls=(call("{}"),)),
        {},
        "call 1 (get_weather): does not fit the schema's `required`",
    ),
    "prose instead of an object": (
        Message(content="I think it is Paris.", reasoning="h"),
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
            "tools": None,
        },
        "content: prose where the schema begins",
    ),
    "continued": (
        Message(content=" is in France."),
        {"continue_final_message": True, "messages": [{"role": "assistant", "content": "Paris"}]},
        "the prompt lacks a generation prompt: `continue_final_message` was set",
    ),
    "no generation prompt": (
        Message(content="ok", reasoning="h"),
        {"add_generation_prompt": False},
        "the prompt lacks a generation prompt: `add_generation_prompt` was false",
    ),
}


async def recorded_turn(
    engine: ScriptedEngine, tok: Tokenizer, folder: Path, message: Message, **fields: Any
) -> Recording:
    """The recording of a turn in which the model writes `message`, which nothing constrains."""
    if not engine.ids:
        engine.ids = ids_of(message, tok, thinking=bool(message.reasoning))
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a"}],
        "tools": [WEATHER],
        "dovetail": {"strict": "off"},
        **fields,
    }
    async with recorded(engine, tok, folder) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return only(folder)


class Unconstrained(ScriptedEngine):
    """As an engine behind HTTP that ignores the grammar."""

    async def complete(self, completion: Any) -> Any:
        async for batch in super().complete(msgspec.structs.replace(completion, constraint=None)):
            yield batch


@pytest.mark.parametrize("name", TURNS)
async def test_the_verdict_of_a_turn(tok: Tokenizer, tmp_path: Path, name: str) -> None:
    message, fields, words = TURNS[name]
    it = await recorded_turn(Unconstrained(tok), tok, tmp_path, message, **fields)
    assert words in [finding.text for finding in verdict(it)]
    # Without texts, it says what it can.
    assert verdict(redacted(it))


async def test_an_answer_that_is_cut_inside_its_second_call(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    message = Message(reasoning="h", calls=(PARIS, call('{"city": "Rome"}', 1)))
    length = len(ids_of(message, tok)) - 7
    it = await recorded_turn(engine, tok, tmp_path, message, max_tokens=length)
    assert verdict(it)[0].text == f"cut at max_tokens ({length}) inside call 2 (get_weather)"


async def test_how_narrow_the_grammar_was(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.refused = (tok.control["<|im_user|>"],)
    it = await recorded_turn(
        engine, tok, tmp_path, Message(reasoning="h", calls=(PARIS,)), dovetail={"strict": "schema"}
    )
    (words,) = [finding.text for finding in verdict(it) if finding.kind == "grammar"]
    counts = [count for step in it.steps for count in step.allowed or ()]
    assert counts.count(1) > 3
    text = f"the grammar allowed one token only at {counts.count(1)} of {len(counts)} places"
    assert words == f"{text}, and refused a draft in {len(it.steps)} steps"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(values, st.data())
def test_json_and_its_beginnings_have_no_break(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    assert break_of(text) is None
    beginning = text[: data.draw(st.integers(0, len(text)))]
    broken = break_of(beginning)
    # A number or a word that is cut off is the only end that looks broken.
    assert broken is None or broken.rest == beginning[len(beginning) - len(broken.rest) :]
    assert broken is None or "true".startswith(broken.rest) or broken.rest in ("-", "f", "fa", "fal", "fals", *NULLS)


NULLS = ("n", "nu", "nul")


@given(st.text(max_size=60))
def test_any_text_has_a_break_or_is_a_beginning(text: str) -> None:
    broken = break_of(text)
    assert broken is None or (broken.rest and text.endswith(broken.rest))


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("I think so", Break((), "I think so")),
        ('{"a": {"b": [1, 2, hm', Break(("a", "b", 2), "hm")),
        ('{"a": 1} and more', Break((), "and more")),
        ('{"a" 1}', Break(("a",), "1}")),
        ("{a: 1}", Break((), "a: 1}")),
        ('{"a": 1, }', Break((), "}")),
        ('{"a": 1]', Break(("a",), "]")),
        ("5 6", Break((), "6")),
        ("]", Break((), "]")),
        ("truest", Break((), "truest")),
        ('{"a": "cut', None),
        ("{}", None),
    ],
)
def test_where_a_text_stops_being_json(text: str, broken: Break | None) -> None:
    assert break_of(text) == broken


def test_the_names_of_places_and_what_prose_is() -> None:
    assert named(("a", 0, "b", 1)) == "a[0].b[1]" and named(()) == "" and named((2, "a")) == "[2].a"
    assert is_prose("I think") and is_prose("Это так") and not is_prose("Paris") and not is_prose("5 days")


def test_a_long_hostile_text_takes_linear_time() -> None:
    """In quadratic time, each would take minutes."""
    for text in ("[" * 200_000, '{"a":' * 40_000, '"' + "\\" * 199_999, " " * 200_000, "a" * 200_000):
        break_of(text)
        is_prose(text)


def test_a_detail_of_a_defect_that_says_nothing_is_left_out() -> None:
    start = CallStart(0, "a", "f")
    for detail in ("", "[5 characters]", "call 0"):
        assert not [*misfits([start, CallArguments(0, '{"a"'), Defect("invalid_json", detail)])]
    events = [start, CallArguments(0, '{"a": 1}'), Defect("schema_mismatch", "call 0: /b/c against #/x/type")]
    assert [*misfits(events)] == ["call 1 (f): `b.c` does not fit the schema's `type`"]
    for arguments, pointer in (("{", "/b/c"), ("[" * 5000, "/b/c"), ("[1]", "/" + "9" * 5000), ("[1]", "/７")):
        written = [start, CallArguments(0, arguments), Defect("schema_mismatch", f"call 0: {pointer} against #/type")]
        assert [each.endswith("does not fit the schema's `type`") for each in misfits(written)] == [True]
    assert not [*misfits([Defect("schema_mismatch", f"call {'9' * 5000}")])]
    broken = [start, CallArguments(0, '{"a": <'), Defect("invalid_json", "call 0")]
    assert [*misfits(broken)] == ["call 1 (f): no JSON at the schema's `a`"]
