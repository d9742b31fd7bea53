"""Schemas taken apart into flat ones, what of that cannot be done, and families whose grammar depends on it."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail.formats.answers import flat_schemas as schemas
from dovetail.formats.answers.flat_schemas import NotSimpleError
from dovetail.formats.base import Format
from dovetail.grammar import Concat, ExactText, Node, TextUntil, VisibleText
from dovetail.grammar.schemas.references import References

Hermes = type(dovetail.format("qwen3"))


def flat(schema: Any) -> list[dict[str, Any]]:
    return schemas.alternatives(schema, References(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"enum": 3},
        {"allOf": 3},
        {"allOf": [{"minLength": "1"}, {"minLength": 1}]},
        {"allOf": [{"pattern": "a"}, {"pattern": "b"}]},
        {"allOf": [{"properties": {"a": {}}, "patternProperties": {"b": {}}}, {"properties": {"c": {}}}]},
        {"$ref": "#/nowhere"},
    ],
    ids=str,
)
def test_schemas_without_flat_alternatives(schema: Any) -> None:
    with pytest.raises(NotSimpleError):
        flat(schema)


def test_schemas_of_an_all_of_are_merged() -> None:
    assert flat({"allOf": [{"minLength": 1, "pattern": "a"}, {"minLength": 2, "pattern": "a"}]}) == [
        {"minLength": 2, "pattern": "a"}
    ]
    assert flat({"maximum": 3, "allOf": [{"maximum": 2}]}) == [{"maximum": 2}]
    closed = {"properties": {"a": {}}, "additionalProperties": False}
    assert flat({"allOf": [closed, {"properties": {"b": {"type": "null"}}}]}) == [
        {"properties": {"a": {}, "b": False}, "required": [], "additionalProperties": False}
    ]


@pytest.mark.parametrize(
    ("read", "keyword"), [(schemas.properties_of, "properties"), (schemas.required_of, "required")]
)
def test_members_have_to_be_members(read: Any, keyword: str) -> None:
    with pytest.raises(NotSimpleError):
        read({keyword: [3]})


def test_only_the_definitions_in_use_are_carried() -> None:
    root = {"$defs": {"n": {"type": "null"}}, "properties": {"a": {"$defs": {"m": {}}, "$ref": "#/$defs/n"}}}
    found = schemas.carrying(root["properties"]["a"], References(root))
    assert found == {"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}


def test_a_parameter_whose_name_does_not_read_back_is_listed() -> None:
    parameters = {"type": "object", "properties": {'"q"': {"type": "string"}, "r": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    grammar = dovetail.format("qwen3_coder").grammar([tool])
    assert grammar is not None
    assert list(grammar.unenforced("lark")) == [("tools[0].function.parameters", '#/properties/"q"')]


class _Text(Hermes):  # type: ignore[misc, valid-type]
    """A model to which the marks around reasoning are text."""

    reasoning = "opened"

    def mark(self, literal: str) -> Node:
        return ExactText(literal)


class _OtherText(_Text):
    reasoning_block = "<think>{reasoning}[/THINK]"


@pytest.mark.parametrize(
    ("fmt", "reasoned"), [(_Text(), (TextUntil("</think>", ("</think>",)),)), (_OtherText(), ())], ids=["tag", "other"]
)
def test_reasoning_may_end_in_text(fmt: Format, reasoned: tuple[Node, ...]) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    grammar = fmt.grammar([tool], tool_choice="none", thinking=True)
    assert grammar is not None
    unlike = ("<think>", "</think>") if reasoned else ()
    assert grammar.root == Concat((*reasoned, VisibleText((), unlike)))


_A, _B = ({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in "ab")
_CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "listed"),
    [
        ({"oneOf": [_A, _B]}, ["#/oneOf"]),
        ({"oneOf": [_A | _CLOSED, _B | _CLOSED]}, []),
        ({"oneOf": [{"$ref": "#/$defs/a"}, _B], "$defs": {"a": _A}}, ["#/oneOf"]),
        ({"allOf": [{"$ref": "#/$defs/e"}], "$defs": {"e": {"oneOf": [_A, _B]}}}, ["#/$defs/e/oneOf"]),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 1}]}}}, ["#/properties/a/oneOf"]),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}, []),
        ({"properties": {"a": {"type": "string", "oneOf": [{"minLength": 1}, {}]}}}, ["#/properties/a/oneOf"]),
        ({"properties": {"a/b": {"oneOf": [{"type": "string"}, {}, {"type": "null"}]}}}, ["#/properties/a~1b/oneOf"]),
    ],
)
@pytest.mark.parametrize("name", ["glm47", "qwen3_coder", "kimi_k3"])
def test_a_one_of_that_is_taken_for_any_of_is_listed(name: str, parameters: dict[str, Any], listed: list[str]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}
    grammar = dovetail.format(name).grammar([tool])
    assert grammar is not None
    assert [pointer for _, pointer in grammar.unenforced("lark")] == listed


def test_a_one_of_that_refers_to_itself_is_looked_at_once() -> None:
    schema = {"oneOf": [{"type": "null"}, {"$ref": "#"}]}
    references = References(schema)
    assert list(schemas.overlapping(references.root, references)) == ["#/oneOf"]


def test_a_reference_to_nowhere_stays_for_others_to_refuse() -> None:
    assert schemas.carrying({"$ref": "#/nowhere"}, References({})) == {"$ref": "#/nowhere"}
