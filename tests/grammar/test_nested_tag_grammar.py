"""JSON Schemas as MiniMax-M3's arguments: the grammar allows valid calls and no others, in both libraries.

`#` stands for the control token in front of each tag.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import dovetail
from dovetail.grammar.matcher import compile
from tests.grammar.test_matcher import allows, tool
from tests.grammar.test_python_grammar import _TREE, of
from tests.grammar.test_text_families import both, encoded
from tests.reading import families

__all__ = ["both"]  # a fixture

FMT = dovetail.format("minimax_m3")
TOKENIZER = families.tokenizer_of("minimax_m3")
ENDS = [TOKENIZER.control[literal] for literal in FMT.end_of_turn]
ORIGIN = "tools[0].function.parameters"
ITEMS = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (_TREE, ["#<root>#<v>1#</v>#<next>#<item>#<v>2#</v>#</item>#</next>#</root>", "#<root>#<v>1#</v>#</root>"],
     ["#<root>#</root>", "#<root>#<v>x#</v>#</root>", "#<root>#<v>1#</v>"]),
    (of({"type": "string", "minLength": 1}), ["#<a>any <b> text#</a>"], ["#<a>#</a>", "#<a>x#</b>", ""]),
    (of({"type": "string", "pattern": "^[ab]+$"}), ["#<a>ab#</a>"], ["#<a>c#</a>"]),
    (of(ITEMS), ["#<a>#<item>true#</item>#</a>"], ["#<a>#</a>", "#<a>#<item>1#</item>#</a>", "#<a>true#</a>"]),
    (of({"enum": ["x", "", 1, None]}), ["#<a>x#</a>", "#<a>#</a>", "#<a>1#</a>", "#<a>null#</a>"], ["#<a>2#</a>"]),
    (of({"type": ["integer", "null"]}), ["#<a>-3#</a>", "#<a>null#</a>"], ["#<a>x#</a>"]),
    (of({}), ["#<a>x#</a>", "#<a>#<item>x#</item>#</a>", "#<a>#<k>#<item>1#</item>#</k>#</a>"], ["#<b>x#</b>"]),
    ({"type": "object"}, ["", "#<x>1#</x>#<y>#<z>2#</z>#</y>"], ["#<invoke>1#</invoke>"]),
]  # fmt: skip


def ids_of(inside: str) -> list[int]:
    text = f'#<tool_call>\n#<invoke name="f">{inside}#</invoke>\n#</tool_call>'
    return [*encoded(text.replace("#", "]<]minimax[>["), TOKENIZER), ENDS[0]]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda it: json.dumps(it)[:50])
def test_schemas_as_tags(schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    grammar = FMT.grammar([tool("f", schema)], thinking=False)
    assert grammar is not None
    matcher = compile(grammar, TOKENIZER, ENDS)
    assert [text for text in valid if not allows(matcher.another(), ids_of(text))] == []
    assert [text for text in invalid if allows(matcher.another(), ids_of(text))] == []


def test_both_writers_allow_the_same(both: Any) -> None:
    for schema, valid, invalid in CASES:
        grammar = FMT.grammar([tool("f", schema)], thinking=False)
        assert grammar is not None
        matchers = both(grammar, TOKENIZER, tuple(ENDS))
        exact = not [*grammar.unenforced("structural_tag")]
        for text in (*valid, *(invalid if exact else [])):
            first, second = matchers.accepted_counts(ids_of(text))
            assert first == second, (schema, text)
            matchers.first.rollback(first)
            matchers.second.rollback(second)


def test_what_bare_text_cannot_tell_is_listed() -> None:
    properties = {
        "a": {"type": ["string", "integer"], "minimum": 3},
        "b": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
        "c": {"enum": ["1", 2]},
        "d": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "e/": {"type": "string"},
    }
    grammar = FMT.grammar([tool("f", {"type": "object", "properties": properties})])
    assert grammar is not None
    pointers = ["a/minimum", "b/anyOf", "c/enum", "e~1"]
    listed = sorted(pointer for _, pointer in grammar.unenforced("lark"))
    assert listed == ["#/additionalProperties", *(f"#/properties/{pointer}" for pointer in pointers)]


def test_an_answer_without_reasoning_begins_with_its_end() -> None:
    grammar = FMT.grammar([tool("f", of({}))], thinking=True)
    assert grammar is not None
    for text in ("</mm:think>Yes.", "<mm:think>Hm.</mm:think>Yes.", "Yes."):
        assert allows(compile(grammar, TOKENIZER, ENDS), [*encoded(text, TOKENIZER), ENDS[0]]), text
    assert not allows(compile(grammar, TOKENIZER, ENDS), encoded("Yes.</mm:think>", TOKENIZER))
