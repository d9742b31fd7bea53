"""The verdict's words for real turns: what a scripted model writes, through the gateway, into a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.events import Call, CallArguments, CallStart, Defect, Event, Message
from dovetail.gateway.observe.recording import Recording
from dovetail.gateway.observe.redaction import redacted
from dovetail.inspect.verdict import misfits, verdict
from dovetail.reading import MALFORMED
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_recordings import only, recorded
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

WEATHER = tool(
    "get_weather",
    taking({"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "array", "items": {"type": "integer"}}}, "city"),
)


def call(arguments: str, number: int = 0) -> Call:
    return Call(f"functions.get_weather:{number}", "get_weather", arguments)


PARIS = call('{"city": "Paris"}')

#: What the model writes, what the request adds, and what the verdict says of it.
TURNS: dict[str, tuple[Message, dict[str, Any], str]] = {
    "ended in reasoning": (
        Message(reasoning="I will call the tool now."),
        {"dovetail": {"strict": "off", "silent": True}},
        "the model ended its turn in reasoning: no content, no call",
    ),
    "ended in reasoning, and had to go on": (
        Message(reasoning="I will call the tool now."),
        {},
        "the model would have ended its turn without a word, and had to go on",
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


def invalid(text: str) -> list[str]:
    """What is reported of a call with the arguments `text`, which are no JSON."""
    return [*misfits([CallStart(0, "a", "f"), CallArguments(0, text), Defect("invalid_json", "call 0")])]


def malformed(arguments: str) -> list[str]:
    """What is reported of a call that cannot be read."""
    return [*misfits([CallStart(0, "a", "f"), CallArguments(0, arguments), Defect("malformed_call", "a")])]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("I think so", "where the schema begins"),
        ('{"a": {"b": [1, 2, hm hm', "at the schema's `b`"),
        ('{"a": "x: y", "b c": Это так', "at the schema's `b c`"),
        ('{"a": 1} and more', "where the schema begins"),
        ('{"a": 1, and more', "where the schema begins"),
        *(
            (text, None)
            for text in ('{"a" 1}', '{"a": 1, }', '{"a": 1]', "5 6", "]", '{"a": "I think', "{}", '{"a": Paris}')
        ),
    ],
)
def test_prose_in_place_of_json_is_named_by_its_place(text: str, where: str | None) -> None:
    assert invalid(text) == ([] if where is None else [f"call 1 (f): prose {where}"])
    assert malformed(json.dumps({"a": None, MALFORMED: text})) == invalid(text)
    assert malformed(text) == invalid(text)  # the input of a custom tool


def test_a_long_hostile_text_takes_linear_time() -> None:
    """In quadratic time, each would take minutes."""
    for text in ("[" * 200_000, '{"a":' * 40_000, '"' + "\\" * 199_999, " " * 200_000, "a" * 200_000, "9" * 200_000):
        invalid(text)
    assert invalid("[" + '"\\"",' * 40_000 + "I think")


def test_a_detail_of_a_defect_that_says_nothing_is_left_out() -> None:
    start = CallStart(0, "a", "f")
    for detail in ("", "[5 characters]", "call 0"):
        assert not [*misfits([start, CallArguments(0, '{"a"'), Defect("invalid_json", detail)])]
    events: list[Event] = [
        start,
        CallArguments(0, '{"a": 1}'),
        Defect("schema_mismatch", "call 0: /b/c against #/x/type"),
    ]
    assert [*misfits(events)] == ["call 1 (f): `b.c` does not fit the schema's `type`"]
    for arguments, pointer in (("{", "/b/c"), ("[" * 5000, "/b/c"), ("[1]", "/" + "9" * 5000), ("[1]", "/７")):
        written: list[Event] = [
            start,
            CallArguments(0, arguments),
            Defect("schema_mismatch", f"call 0: {pointer} against #/type"),
        ]
        assert [each.endswith("does not fit the schema's `type`") for each in misfits(written)] == [True]
    assert not [*misfits([Defect("schema_mismatch", f"call {'9' * 5000}")])]
    assert not [*misfits([start, CallArguments(0, "I think so"), Defect("malformed_call", "[1 character]")])]
