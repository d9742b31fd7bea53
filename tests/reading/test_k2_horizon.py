"""K2-Horizon's answers: reasoning at every effort, and calls as JSON (`tool_call_format=json`)."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.formats.families.k2_horizon import THINK_END
from dovetail.grammar import Choice, Concat, ControlToken, FreeText
from dovetail.tokens import Prompt, Segment
from tests.reading import whole
from tests.reading.families import TOOLS
from tests.reading.whole import calls, kinds

CALL = "<ifm|tool_calls>\n<ifm|tool_call>ping\n</ifm|tool_call>\n</ifm|tool_calls>"
JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize("effort", ["think", "think_fast", "think_faster"])
def test_reasoning_at_every_effort(effort: str) -> None:
    fmt = dovetail.format("k2_horizon")
    opened = Prompt(
        [Segment("<|ifm|im_start|>", True), Segment("assistant\n", False), Segment(f"<ifm|{effort}>", True)]
    )
    assert fmt.left_open(opened)
    assert not fmt.left_open(Prompt([*opened.segments, Segment("\n", False), Segment(f"</ifm|{effort}>", True)]))
    read = whole.read("k2_horizon", f"Hm.</ifm|{effort}>Yes.{CALL}", thinking=True)
    assert (read.reasoning, read.content, len(read.calls), read.defects) == ("Hm.", "Yes.", 1, ())
    read = whole.read("k2_horizon", f"<ifm|{effort}>\nHm.</ifm|{effort}>Yes.", thinking=False)
    assert (read.reasoning, read.content, read.defects) == ("Hm.", "Yes.", ())


def test_the_grammar_closes_reasoning_as_the_prompt_opened_it() -> None:
    grammar = dovetail.format("k2_horizon").grammar(TOOLS)
    assert grammar is not None and isinstance(grammar.root, Concat)
    closers = THINK_END, "</ifm|think_fast>", "</ifm|think_faster>"
    assert grammar.root.items[0] == Concat((FreeText(), Choice(tuple(map(ControlToken, closers)))))


def test_calls_as_json() -> None:
    text = f"<ifm|tool_calls>\n<ifm|tool_call>{JSON}</ifm|tool_call>\n</ifm|tool_calls>"
    message = whole.read("k2_horizon", text, thinking=False)
    assert (calls(message), message.content) == ([("get_weather", '{"city": "Paris"}')], "")
    assert set(kinds(message)) == {"other_syntax"}
