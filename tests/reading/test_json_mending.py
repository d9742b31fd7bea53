"""`MendedJson`: JSON passes as it is, and what is no JSON comes out as JSON, in any cuts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.reading.arguments import JsonArguments
from dovetail.reading.json_mending import MendedJson
from dovetail.reading.reader import MALFORMED
from dovetail.reading.values import ParameterTypes
from tests.examples import examples
from tests.reading.families import cut, cuts

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": ["boolean", "null"]},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}},
        "any": {},
    }
}
pieces_of_text = st.sampled_from([*'"\\{}[]:, \n\t\x01x1', "é", "'", "\u2028", '",', '": '])
texts = st.lists(pieces_of_text, max_size=8).map("".join) | st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def mended(pieces: list[str], schema: Any = None) -> tuple[str, str, set[str], MendedJson]:
    """What is passed on, the text after it, and the kinds of faults."""
    kinds: list[str] = []
    machine = MendedJson(ParameterTypes(schema), kinds.append)
    out = rest = ""
    for piece in pieces:
        if machine.complete:
            rest += piece
        elif machine.goes_on(piece):
            out += piece
        else:
            fragment, end = machine.feed(piece)
            out, rest = out + fragment, rest + piece[end:]
    return out + machine.flush(), rest, {*kinds}, machine


@examples(200, fuzz=4000)
@given(
    st.dictionaries(texts, values, max_size=5), st.booleans(), st.sampled_from([None, 0, 2, "\t"]), cuts, st.booleans()
)
def test_json_passes_as_it_is(
    value: dict[str, Any], ascii_only: bool, indent: Any, places: list[int], spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (" ,", " :")
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    for pieces in ([text], cut(text, places), list(text)):
        out, rest, kinds, machine = mended([*pieces, " after"])
        assert (out, rest, kinds, machine.complete, machine.malformed) == (text, " after", set(), True, False)


@examples(300, fuzz=6000)
@given(
    st.dictionaries(texts | st.sampled_from([*SCHEMA["properties"]]), values, max_size=4),
    st.lists(st.tuples(st.integers(0), st.sampled_from(["", '"', "'", "{", "}", "]", "[", ",", "\\", "\n", "x", "1"]))),
    cuts,
    st.booleans(),
)
def test_what_comes_out_is_json(
    value: dict[str, Any], faults: list[tuple[int, str]], places: list[int], typed: bool
) -> None:
    """Whatever is deleted and inserted, wherever it is cut, and even if it cannot be read."""
    text = json.dumps(value, ensure_ascii=False)
    for at, fault in faults[:4]:
        at = 1 + at % len(text)
        text = text[:at] + fault + text[at + (not fault) :]
    schema = SCHEMA if typed else None
    whole = mended([text], schema)
    for pieces in (cut(text, places), list(text)):
        assert mended(pieces, schema)[:3] == whole[:3]
    out, _, _, machine = whole
    if machine.complete:
        assert isinstance(json.loads(out), dict)
        return
    if closing := machine.closing():
        assert isinstance(json.loads(out + closing), dict)
    taken_back = json.loads(out + machine.as_malformed())
    assert text.startswith(taken_back.pop(MALFORMED))
    assert not any(item is not None for item in taken_back.values())


CASES = [
    ('{"a": "x\n\ty"}', '{"a": "x\\n\\ty"}', {"unescaped_text"}),
    ('{"a": "it\\\'s"}', '{"a": "it\'s"}', {"unescaped_text"}),
    (r'{"a": "C:\dir \d+ \_ \u12"}', r'{"a": "C:\\dir \\d+ \\_ \\u12"}', {"unescaped_text"}),
    ('{"a": "print("hi")"}', r'{"a": "print(\"hi\")"}', {"unescaped_text"}),
    ('{"a": "say "x", then", "b": 1}', r'{"a": "say \"x\", then", "b": 1}', {"unescaped_text"}),
    ("{'a': 'it\\'s \"x\"'}", r'{"a": "it' + r"'s \"x\"" + '"}', {"python_value"}),
    (r"""{'a': 'x\ny \"z\" \\'}""", r"""{"a": "x\ny \"z\" \\"}""", {"python_value"}),
    ('{"a": True, "b": None}', '{"a": true, "b": null}', {"python_value"}),
    ("{a: oops, b: 1}", '{"a": "oops", "b": 1}', {"unquoted_key", "unquoted_value"}),
    ('{"a": 1,}', '{"a": 1}', {"stray_separator"}),
    ('{"a": [1, 2,],, "b": 2}', '{"a": [1, 2], "b": 2}', {"stray_separator"}),
    ('{"a": 1 "b": 2}', '{"a": 1, "b": 2}', {"missing_comma"}),
    ('{"a": [1, 2}', '{"a": [1, 2]}', {"missing_bracket"}),
    ('{"a": 1]}', '{"a": 1}', {"stray_bracket"}),
    ('{{"a": 1}', '{"a": 1}', {"stray_bracket"}),
    ('{"a": [{"b": "x"], "c": 1}', '{"a": [{"b": "x"}], "c": 1}', {"missing_bracket"}),
    ('{"a": [{"b": "x["y"] = 1"}]}', '{"a": [{"b": "x[\\"y\\"] = 1"}]}', {"unescaped_text"}),
    ('{"a": "x""}', '{"a": "x"}', {"stray_quote"}),
    ('{"a": "x"", "b": ["y""]}', '{"a": "x", "b": ["y"]}', {"stray_quote"}),
    ('{"a"": "say "x""}', '{"a": "say \\"x\\""}', {"stray_quote", "unescaped_text"}),
]


@pytest.mark.parametrize(("text", "meant", "kinds"), CASES)
def test_what_can_only_mean_one_thing_is_mended(text: str, meant: str, kinds: set[str]) -> None:
    for pieces in ([text], list(text)):
        out, rest, found, machine = mended(pieces)
        assert (out, rest, found, machine.complete) == (meant, "", kinds, True)


@pytest.mark.parametrize("begun", ["\\", "\\u", "\\u00e"])
def test_the_beginning_of_an_escape_is_text_at_the_end(begun: str) -> None:
    text = '{"a": "x' + begun
    for pieces in ([text], list(text)):
        out, _, kinds, machine = mended(pieces)
        assert (json.loads(out + machine.closing()), kinds) == ({"a": "x" + begun}, set())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"count": "5", "flag": "true"}', '{"count": 5, "flag": true}'),
        ('{"rows": "[{\\"id\\": \\"a\\"}]"}', '{"rows": [{"id": "a"}]}'),
        ('{"rows": "[{\'id\': 1}]"}', '{"rows": [{"id": 1}]}'),
        ('{"text": {"a": [1, 2.50]}}', '{"text": "{\\"a\\": [1, 2.50]}"}'),
        ('{"text": 5, "any": 5}', '{"text": "5", "any": 5}'),
        ('{"rows": [{"id": 7}]}', '{"rows": [{"id": "7"}]}'),
    ],
)
def test_a_value_of_another_type_becomes_what_the_schema_allows(text: str, meant: str) -> None:
    for pieces in ([text], list(text)):
        assert mended(pieces, SCHEMA)[:3] == (meant, "", {"mistyped_value"})


@pytest.mark.parametrize(
    "text", ['{"count": "many"}', '{"count": "[1]"}', '{"text": null}', '{"text": "5"}', '{"any": {"a": "5"}}']
)
def test_what_is_of_no_allowed_type_stays(text: str) -> None:
    assert mended(list(text), SCHEMA)[:3] == (text, "", set())


@pytest.mark.parametrize(
    ("text", "passed_on", "end"),
    [
        ('{"a": 1, "b": ;', '{"a": 1, "b":', f'null, "a": null, "{MALFORMED}": '),
        ('{"a": [{"b": NaN', '{"a": [{"b":', f'null}}], "a": null, "{MALFORMED}": '),
        ('{"a" "b"', '{"a"', f': null, "{MALFORMED}": '),
        ("{;", "{", f'"{MALFORMED}": '),
        ('{"a": {"b": "x', '{"a": {"b": "x', f'"}}, "a": null, "{MALFORMED}": '),
    ],
)
def test_what_cannot_be_read_says_so(text: str, passed_on: str, end: str) -> None:
    for pieces in ([text], list(text)):
        out, _, _, machine = mended(pieces)
        assert (out, machine.as_malformed()) == (passed_on, end + json.dumps(text) + "}")


@pytest.mark.parametrize(("depth", "malformed"), [(255, False), (256, True), (100_000, True)])
def test_arguments_too_deep_for_parsers_cannot_be_read(depth: int, malformed: bool) -> None:
    text = '{"a": ' + "[" * depth + "]" * depth + "}"
    for pieces in ([text], cut(text, [7, 250, 600])):
        out, _, _, machine = mended(pieces)
        assert machine.malformed is malformed
        arguments = json.loads(out + machine.as_malformed()) if malformed else json.loads(out)
        assert not malformed or arguments[MALFORMED] == text


@pytest.mark.parametrize("text", ["9" * 5000, '"' + "9" * 5000 + '"', '"{' + "[" * 5000 + '"', "null"])
def test_what_is_no_string_of_an_object_holds_none(text: str) -> None:
    arguments = JsonArguments()
    assert arguments.feed(text) == ("", "")
    assert arguments.held() is None
    assert json.loads(arguments.as_malformed()) == {MALFORMED: text}
