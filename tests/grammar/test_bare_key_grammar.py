"""JSON Schemas as Gemma's arguments: the grammar allows valid calls and no others, in both libraries."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.families.gemma4 import Gemma4
from dovetail.grammar.matcher import compile
from tests.examples import examples
from tests.grammar.test_matcher import allows, tool
from tests.grammar.test_python_grammar import _TREE, FORMATS, of
from tests.grammar.test_python_grammar import _objects as objects
from tests.grammar.test_text_families import both, encoded
from tests.reading import families

__all__ = ["both"]  # a fixture

FMT = dovetail.format("gemma4")
TOKENIZER = families.tokenizer_of("gemma4")
ENDS = [TOKENIZER.control[literal] for literal in FMT.end_of_turn]
Q = '<|"|>'


def ids_of(text: str) -> list[int]:
    return [*encoded(f"<|tool_call>call:f{text}<tool_call|>", TOKENIZER), ENDS[1]]


def accepts(schema: dict[str, Any], text: str) -> bool:
    grammar = FMT.grammar([tool("f", schema)], thinking=False)
    assert grammar is not None
    return allows(compile(grammar, TOKENIZER, ENDS), ids_of(text))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (_TREE, ["{root:{v:1}}", "{root:{next:[{next:[],v:2}],v:1}}"], ["{root:{}}", "{root:{v:1,w:2}}"]),
        (of({"anyOf": [{"type": "string"}, {"type": "null"}]}), ["{a:null}", f"{{a:{Q}x<b>{Q}}}"], ["{a:1}", "{}"]),
        (of({"enum": ["x", "", 1, True, None, {"b": [1]}]}),
         [f"{{a:{Q}x{Q}}}", f"{{a:{Q}{Q}}}", "{a:1}", "{a:true}", "{a:null}", "{a:{b:[1]}}"],
         ["{a:2}", f"{{a:{Q}y{Q}}}"]),
        (of({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}), ["{a:[]}", "{a:[true,false]}"],
         ["{a:[1]}", "{a:[true,true,true]}"]),
        (of({"type": "string", "minLength": 1, "maxLength": 2}), [f"{{a:{Q}é漢{Q}}}"],
         [f"{{a:{Q}{Q}}}", f"{{a:{Q}abc{Q}}}"]),
        (of({"type": "string", "pattern": "^[ab]+$"}), [f"{{a:{Q}ab{Q}}}"], [f"{{a:{Q}c{Q}}}"]),
        (of({"type": "integer", "minimum": 3}), ["{a:3}"], ["{a:2}", "{a:03}"]),
        (of({}), [f'{{a:[1.5,{{k:{Q}"{Q}}},[],{{}}]}}'], ["{a:x}"]),
        ({"type": "object", "properties": {"b": {}, "A": {}}}, ["{A:1,b:2}", "{A:1,b:2,c:3}"], ["{b:2,A:1}"]),
    ],
    ids=lambda it: json.dumps(it)[:50],
)  # fmt: skip
def test_schemas_with_bare_keys(schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not accepts(schema, text)] == []
    assert [text for text in invalid if accepts(schema, text)] == []


class Spelled(Gemma4):
    """Its strings are between ordinary text."""

    controls = tuple(literal for literal in Gemma4.controls if literal != Q)


def test_strings_between_ordinary_text() -> None:
    schema = of({"type": "string", "maxLength": 4})
    grammar = Spelled().grammar([tool("f", schema)], thinking=False)
    assert grammar is not None
    compiled = compile(grammar, TOKENIZER, ENDS)
    for text, valid in ((f"{{a:{Q}x|>{Q}}}", True), (f"{{a:{Q}xxxxx{Q}}}", False), ("{a:x}", False)):
        section = [TOKENIZER.control["<|tool_call>"], *TOKENIZER.encode(f"call:f{text}")]
        ids = [*section, TOKENIZER.control["<tool_call|>"], ENDS[1]]
        assert allows(compiled, ids) is valid


@given(drawn=objects(2))
@examples(30, suppress_health_check=[HealthCheck.too_slow])
def test_both_writers_allow_what_is_written(drawn: Any, both: Any) -> None:
    schema, arguments = map(_renamed, drawn)
    ordered = FMT.shown_order(arguments)
    grammar = FMT.grammar([tool("f", schema)], thinking=False)
    sent = Message("", "", (Call("call_0", "f", json.dumps(ordered, ensure_ascii=False)),))
    ids = FMT.write(sent, thinking=False).ids(TOKENIZER)
    counts = both(grammar, TOKENIZER, tuple(ENDS)).accepted_counts(ids)
    assert counts[0] == counts[1]
    if not any(f"{key}:" in FMT.write(sent).text for key in UNDECLARED):  # those come last, and here they are sorted
        assert counts[0] == len(ids)
    reader = FMT.reader([tool("f", schema)], tokenizer=TOKENIZER)
    (call,) = dovetail.fold([*reader.feed("", ids), *reader.finish()]).calls
    assert json.loads(call.arguments) == arguments
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(json.loads(call.arguments))


def _renamed(it: Any, *, names: bool = False) -> Any:
    """A schema or a value with keys that can be written without quotes. `names`: in a list of keys."""
    if isinstance(it, dict):
        return {_key(key): _renamed(value, names=key == "required") for key, value in it.items()}
    return [_key(item) if names else _renamed(item) for item in it] if isinstance(it, list) else it


#: What `objects` draws as undeclared keys.
UNDECLARED = ("cit", "cityx", "clas", "x", "_", "ab", "key_622063", "key_e6bca2")


def _key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else f"key_{key.encode().hex()}"


def test_keys_that_cannot_be_read_back_are_listed() -> None:
    schema = {"type": "object", "properties": {"a:b": {}, "c": {"type": "string", "pattern": "a"}}}
    grammar = FMT.grammar([tool("f", schema)])
    assert grammar is not None
    origin = "tools[0].function.parameters"
    assert list(grammar.unenforced("lark")) == [(origin, "#/properties/a:b")]
    # Rules in a tag have no patterns.
    assert (origin, "#/properties/c/pattern") in list(grammar.unenforced("structural_tag"))


def test_both_writers_agree_token_by_token(both: Any) -> None:
    schema = of({"anyOf": [{"type": "array", "items": {"$ref": "#/properties/a"}}, {"enum": ["x", True]}]})
    grammar = FMT.grammar([tool("f", schema)], thinking=False)
    matchers = both(grammar, TOKENIZER, tuple(ENDS))
    for made in product(["[", "]", ",", f"{Q}x{Q}", "true", "1"], repeat=3):
        first, second = matchers.accepted_counts(ids_of(f"{{a:{''.join(made)}}}"))
        assert first == second, made
        matchers.first.rollback(first)
        matchers.second.rollback(second)
