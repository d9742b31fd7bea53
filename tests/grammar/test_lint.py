"""The lint names what the grammars leave out, and what keeps a schema from being used."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail.grammar import Grammar
from dovetail.grammar.lint import lint

BOTH = ("lark", "structural_tag")
SCHEMA = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "uniqueItems": True},
        "name": {"type": "string", "maxLength": 3},
        "kind": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    },
}


def test_each_grammar_leaves_out_what_it_leaves_out() -> None:
    found = lint("f", SCHEMA, BOTH)
    assert found.problem is None and not found.clean
    assert found.unenforced == {
        "lark": ("#/properties/tags/uniqueItems", "#/properties/kind/oneOf"),
        "structural_tag": ("#/properties/tags/uniqueItems", "#/properties/name/maxLength", "#/properties/kind/oneOf"),
    }
    assert list(lint("f", SCHEMA, ["lark"]).unenforced) == ["lark"]


def test_what_is_enforced_in_full_is_clean() -> None:
    found = lint("f", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, BOTH)
    assert found.clean
    assert found.unenforced == {"lark": (), "structural_tag": ()}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength: -1 is less"),
        ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type: "),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "#/properties/a/$ref: "),
        ({"properties": {"a": {"multipleOf": 999_999_937}}}, "#/properties/a/multipleOf is where"),
        (
            {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["a"], "type": "object"},
            "#/properties/a",
        ),
        ({"type": "object", "required": ["b"], "additionalProperties": False}, "#"),
    ],
)
def test_what_cannot_be_used_is_named(schema: dict[str, Any], problem: str) -> None:
    found = lint("f", schema, BOTH)
    assert not found.clean
    assert found.problem is not None and found.problem.startswith(problem)
    assert found.unenforced == {}


@pytest.mark.parametrize("name", ["kimi_k25", "qwen3_coder", "hermes"])
def test_the_family_has_its_say(name: str) -> None:
    """How a family writes arguments decides what a grammar of them keeps."""
    fmt = dovetail.format(name)
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}

    def grammar() -> Grammar:
        made = fmt.grammar([tool], tool_choice="required")
        assert made is not None
        return made

    found = lint("f", SCHEMA, BOTH, grammar)
    assert found.problem is None
    for pointers in found.unenforced.values():
        assert "#/properties/tags/uniqueItems" in pointers
        assert all(pointer.startswith("#/properties/") for pointer in pointers)
