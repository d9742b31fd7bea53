"""The time that the grammars of one request take is bounded together."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.conversation import check_tools
from dovetail.custom_tools import InputGrammar
from dovetail.errors import SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs import check as together
from dovetail.grammar.inputs.check import check_together
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import prepared


def custom(name: str, definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": grammar}}


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS = [
    custom("a", 'start: "a"'),
    FUNCTION,
    custom("b", 'start: "b"'),
    custom("c", "start: ("),
    custom("d", 'start: "d"'),
]


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each grammar costs 0.7 of 2 seconds; returns the definitions that are read."""
    read: list[str] = []

    def cost(grammar: InputGrammar) -> float:
        read.append(grammar.definition)
        return 0.7

    monkeypatch.setattr(together, "_cost", cost)
    monkeypatch.setattr(together, "_COSTS", Cache(10, 1000))
    return read


def test_the_grammar_after_the_last_second_is_not_read(costs: list[str]) -> None:
    check_together(check_tools(TOOLS[:-1]))  # what remains is less than the third needs, but not nothing
    for _ in range(2):  # cached grammars count again
        with pytest.raises(SchemaRefused) as refused:
            check_together(check_tools(TOOLS))
        assert refused.value.param == "tools[4].custom.format.grammar.definition"
    assert costs == ['start: "a"', 'start: "b"', "start: ("]


def test_a_request_learns_which_tool_is_too_much(costs: list[str], small_tokenizer: Tokenizer) -> None:
    with pytest.raises(SchemaRefused, match="took more than 2 seconds") as refused:
        prepared(small_tokenizer, tools=TOOLS[:2] + TOOLS[2:3] + [custom("e", 'start: "e"'), custom("d", 'start: "d"')])
    assert refused.value.param == "tools[4].custom.format.grammar.definition"


def test_usual_grammars_cost_little(small_tokenizer: Tokenizer) -> None:
    """The cost is that of reading: a grammar that cannot be used has one too, and raises nothing here."""
    for tool in check_tools([TOOLS[0], TOOLS[3]]):
        assert tool.grammar is not None
        assert together._cost(tool.grammar) > 0
    check_together(check_tools(TOOLS))
