"""The lint lists the keywords that a grammar does not enforce, and says why a schema is refused."""

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


def test_each_writer_has_its_own_list() -> None:
    report = lint("f", SCHEMA, BOTH)
    assert report.problem is None and not report.clean
    assert report.unenforced == {
        "lark": ("#/properties/tags/uniqueItems", "#/properties/kind/oneOf"),
        "structural_tag": ("#/properties/tags/uniqueItems", "#/properties/name/maxLength", "#/properties/kind/oneOf"),
    }
    assert list(lint("f", SCHEMA, ["lark"]).unenforced) == ["lark"]


def test_a_schema_that_is_enforced_in_full_is_clean() -> None:
    report = lint("f", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, BOTH)
    assert report.clean
    assert report.unenforced == {"lark": (), "structural_tag": ()}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength: -1 is less"),
        ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type: "),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "#/properties/a/$ref: "),
        ({"properties": {"a": {"multipleOf": 999_999_937}}}, "#/properties/a/multipleOf makes more than"),
        (
            {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["a"], "type": "object"},
            "#: Unsatisfiable schema: required property 'a'",
        ),
        ({"type": "object", "required": ["b"], "additionalProperties": False}, "#"),
    ],
)
def test_an_unusable_schema_is_refused_by_pointer(schema: dict[str, Any], problem: str) -> None:
    report = lint("f", schema, BOTH)
    assert not report.clean
    assert report.problem is not None and report.problem.startswith(problem)
    assert report.unenforced == {}


@pytest.mark.parametrize("name", ["kimi_k25", "qwen3_coder", "hermes"])
def test_the_lint_of_a_family_lists_what_its_grammar_lacks(name: str) -> None:
    """How a family writes arguments decides what a grammar of them keeps."""
    fmt = dovetail.format(name)
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}

    def grammar() -> Grammar:
        made = fmt.grammar([tool], tool_choice="required")
        assert made is not None
        return made

    report = lint("f", SCHEMA, BOTH, grammar)
    assert report.problem is None
    for pointers in report.unenforced.values():
        assert "#/properties/tags/uniqueItems" in pointers
        assert all(pointer.startswith("#/properties/") for pointer in pointers)
