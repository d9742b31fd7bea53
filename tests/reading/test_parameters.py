"""Parameters become one JSON object while they come; the way back; and what is buffered meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.reading.json_prefix import LONGEST_SCALAR
from dovetail.reading.parameters import Parameters, members
from dovetail.reading.values import STRING, VALUES, ParameterTypes

SCHEMA = {
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "sn": {"type": ["string", "null"]},
        "si": {"type": ["string", "integer"]},
        "sb": {"type": ["string", "boolean"]},
        "sa": {"type": ["string", "array"]},
    }
}


class Written:
    """What one call's parameters were written as."""

    def __init__(self) -> None:
        self.fragments: list[str] = []
        self.defects: list[tuple[str, str]] = []
        self.parameters = Parameters(
            ParameterTypes(SCHEMA), self.fragments.append, lambda kind, key: self.defects.append((kind, key))
        )

    @property
    def text(self) -> str:
        return "".join(self.fragments)


def write(*given: tuple[str, Iterable[str]], types: frozenset[str] | None = None) -> Written:
    written = Written()
    for key, pieces in given:
        take = written.parameters.open(key, types)
        for piece in pieces:
            take(piece)
        written.parameters.close()
    written.parameters.end()
    assert all(written.fragments)
    return written


@pytest.mark.parametrize(
    ("key", "text", "value", "defect"),
    [
        ("s", 'a "b"\\\n\x01é', '"a \\"b\\"\\\\\\n\\u0001é"', None),
        ("s", '"quoted"', '"\\"quoted\\""', None),
        ("s", "12", '"12"', None),
        ("i", "9007199254740993.1", "9007199254740993.1", None),
        ("i", " 5\n", "5", None),
        ("i", "null", "null", None),
        ("n", "-1e400", "-1e400", None),
        ("o", '{"a": [1.50, {}]}', '{"a": [1.50, {}]}', None),
        ("o", "{'a': True, 'b': [None, \"it's\"],}", '{"a": true, "b": [null, "it\'s"]}', "python_value"),
        (
            "o",
            "{'it\\'s': '\\x41\\n\\d\\\\', 'q\\\"': '\"\n'}",
            '{"it\'s": "\\u0041\\n\\\\d\\\\", "q\\"": "\\"\\n"}',
            "python_value",
        ),
        ("b", "True", "true", "python_value"),
        ("i", "None", "null", "python_value"),
        ("o", r"{\"a\": \"1\"}", '{"a": "1"}', "escaped_value"),
        ("o", "{'a': 'b", "\"{'a': 'b\"", "invalid_value"),
        ("o", "{'a': \"b", '"{\'a\': \\"b"', "invalid_value"),
        ("i", "'5", '"\'5"', "invalid_value"),
        ("o", r"{\"a\": \"\ud800\"}", r'"{\\\"a\\\": \\\"\\ud800\\\"}"', "invalid_value"),
        ("b", "yes", '"yes"', "invalid_value"),
        ("n", "NaN", '"NaN"', "invalid_value"),
        ("i", "", '""', "invalid_value"),
        ("i", "[" * 5000, json.dumps("[" * 5000), "invalid_value"),
        ("sn", "null", "null", None),
        ("sn", "nullable", '"nullable"', None),
        ("sn", "nul", '"nul"', None),
        ("sn", "5", '"5"', None),
        ("si", "5", "5", None),
        ("si", "5.5", '"5.5"', None),
        ("si", "-", '"-"', None),
        ("si", "007", '"007"', None),
        ("si", " 12 ", "12", None),
        ("si", "1" * (LONGEST_SCALAR + 1), f'"{"1" * (LONGEST_SCALAR + 1)}"', None),
        ("si", " " * 70 + "1", json.dumps(" " * 70 + "1"), None),
        ("si", "", '""', None),
        ("sb", "true", "true", None),
        ("sb", "True", '"True"', None),
        ("sa", "[1, 2]", "[1, 2]", None),
        ("sa", "[link](there)", '"[link](there)"', None),
        ("sa", '{"a": 1}', '"{\\"a\\": 1}"', None),
        ("unknown", "12.50", "12.50", None),
        ("unknown", '{"a": 1}', '{"a": 1}', None),
        ("unknown", "{'a': 1}", "\"{'a': 1}\"", None),
        ("unknown", '"quoted"', '"\\"quoted\\""', None),
        ("unknown", "\n words", '"\\n words"', None),
    ],
)
def test_values(key: str, text: str, value: str, defect: str | None) -> None:
    whole, split = write((key, [text] if text else [])), write((key, text))
    assert whole.text == split.text == f'{{"{key}": {value}}}'
    assert whole.defects == split.defects == ([] if defect is None else [(defect, key)])
    json.loads(whole.text)


@pytest.mark.parametrize(
    ("key", "text", "value", "mistyped"),
    [
        ("i", "5", "5", True),
        ("i", "5.0", '"5.0"', False),
        ("i", "five", '"five"', False),
        ("i", "", '""', False),
        ("n", "5e1", "5e1", True),
        ("b", "true", "true", True),
        ("b", "True", '"True"', False),
        ("o", '{"a": 1}', '{"a": 1}', True),
        ("o", '{"a": 1', '"{\\"a\\": 1"', False),
        ("s", "5", '"5"', False),
        ("si", "5", '"5"', False),
        ("unknown", "5", '"5"', False),
    ],
)
def test_a_string_that_the_schema_does_not_allow(key: str, text: str, value: str, mistyped: bool) -> None:
    for pieces in ([text], [*text]):
        written = write((key, pieces), types=STRING)
        assert written.text == f'{{"{key}": {value}}}'
        assert written.defects == [("mistyped_value", key)] * mistyped


WRAPPED = '{"s": "é\\ud83d", "i": 1.50}'


@pytest.mark.parametrize("types", [None, STRING, VALUES])
@pytest.mark.parametrize(
    ("given", "text", "defects"),
    [
        ([("arguments", WRAPPED)], WRAPPED, ["wrapped_arguments"]),
        ([("input", " {} ")], "{}", ["wrapped_arguments"]),
        ([("sn", '"n"'), ("parameters", '{"s": "x"}')], '{"sn": "n", "s": "x"}', ["wrapped_arguments"]),
        ([("input", '{"o": {"s": []}}'), ("o", "{}")], '{"o": {"s": []}, "o": {}}',
         ["wrapped_arguments", "duplicate_parameter"]),
    ],
)  # fmt: skip
def test_arguments_under_a_key_that_the_tool_does_not_have(
    types: frozenset[str] | None, given: list[tuple[str, str]], text: str, defects: list[str]
) -> None:
    for cut in (lambda value: [value], list):
        written = write(*((key, cut(value)) for key, value in given), types=types)
        assert json.loads(written.text).keys() == json.loads(text).keys()
        assert [kind for kind, _ in written.defects if kind != "mistyped_value"] == defects
        assert text in written.text or len(given) > 1


@pytest.mark.parametrize("value", ['{"city": "x"}', '{"s": 1, "city": "x"}', '{"s": 1', "[1]", "s", '"s"', "3"])
def test_what_is_no_object_of_arguments_stays_under_its_key(value: str) -> None:
    as_string = '{"arguments": ' + json.dumps(value) + "}"
    for types, text in ((None, f'{{"arguments": {value}}}'), (STRING, as_string)):
        for pieces in ([value], [*value]):
            written = write(("arguments", pieces), types=types)
            assert written.text in (text, as_string)
            assert not written.defects
    written = Written()
    written.parameters.open("arguments")('{"s"')
    assert (written.text, written.parameters.cut(), written.text) == ("", "", '{"arguments": {"s"')


def test_a_tool_may_have_a_parameter_called_arguments() -> None:
    for schema in ({"properties": {"arguments": {}, "s": {}}}, {"additionalProperties": {"type": "object"}}, None):
        fragments: list[str] = []
        parameters = Parameters(ParameterTypes(schema), fragments.append, lambda kind, key: pytest.fail(kind))
        parameters.open("arguments")('{"s": 1}')
        parameters.close()
        parameters.end()
        assert "".join(fragments) == '{"arguments": {"s": 1}}'


def test_the_type_in_the_output_overrides_the_schema() -> None:
    assert write(("sn", ["5"]), types=VALUES).text == '{"sn": 5}'
    assert write(("sn", ['"5"']), types=VALUES).text == '{"sn": "5"}'


@pytest.mark.parametrize(
    ("text", "value", "mistyped"),
    [
        ("5", '"5"', True),
        ('{"a": 1}\n', '"{\\"a\\": 1}\\n"', True),
        (" x", '" x"', True),
        (" " * 70, json.dumps(" " * 70), True),
        ("", '""', True),
        ('"5"', '"5"', False),
        ('"a" and "b"', '"\\"a\\" and \\"b\\""', True),
    ],
)
def test_a_value_that_the_schema_wants_as_a_string(text: str, value: str, mistyped: bool) -> None:
    for pieces in ([text], [*text]):
        written = write(("s", pieces), types=VALUES)
        assert written.text == f'{{"s": {value}}}'
        assert written.defects == [("mistyped_value", "s")] * mistyped
    written = write(("s", ["null"]), types=frozenset(("null",)))
    assert (written.text, written.defects) == ('{"s": null}', [])


def test_text_that_has_to_be_a_string_streams() -> None:
    written = Written()
    take = written.parameters.open("s", VALUES)
    for piece in ("{", '"a"', ": 1"):
        take(piece)
    assert (written.text, written.parameters.cut()) == ('{"s": "{\\"a\\": 1', '"}')


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("i", '"5"', "5"),
        ("i", '"5.5"', '"5.5"'),
        ("b", ' "true"\n', "true"),
        ("o", r'"{\"a\": [1.50]}"', '{"a": [1.50]}'),
        ("o", '"{"a": 1}"', '{"a": 1}'),
        ("o", "\"{'a': None}\"", '{"a": null}'),
        ("o", '"[1]"', '"[1]"'),
        ("o", '""', '""'),
        ("sa", '"[1]"', '"\\"[1]\\""'),
        ("s", '"[1]"', '"\\"[1]\\""'),
    ],
)
@pytest.mark.parametrize("types", [None, STRING])
def test_a_value_in_quotes(types: frozenset[str] | None, key: str, text: str, value: str) -> None:
    read = json.loads(value)
    for pieces in ([text], [*text]):
        written = write((key, pieces), types=types)
        if not isinstance(read, str) or types is None:
            assert written.text == f'{{"{key}": {value}}}'
        assert ("mistyped_value", key) in written.defects or isinstance(read, str)


def test_keys_are_escaped_and_may_come_twice() -> None:
    written = write(('a"b\n', ["1"]), ("s", ["x"]), ("s", ["y"]))
    assert written.text == '{"a\\"b\\n": 1, "s": "x", "s": "y"}'
    assert written.defects == [("duplicate_parameter", "s")]


def test_no_parameters_are_an_empty_object() -> None:
    assert write().text == "{}"


def test_strings_stream_and_values_wait_no_longer_than_they_must() -> None:
    written = Written()
    take = written.parameters.open("s")
    take("some ")
    assert written.text == '{"s": "some '
    written.parameters.close()
    take = written.parameters.open("sn")
    take("nul")
    assert written.text.endswith('"sn": ')
    take("lable")
    assert written.text.endswith('"nullable')
    take(' "more"')
    assert written.text.endswith('"nullable \\"more\\"')
    written.parameters.close()
    take = written.parameters.open("o")
    take('{"a": ')
    assert written.text.endswith('"o": ')
    take("1}")
    written.parameters.close()
    assert written.text.endswith('"o": {"a": 1}')


@pytest.mark.parametrize(
    ("key", "text", "fragments", "closing"),
    [
        ("s", 'Par"', '{"s": "Par\\"', '"}'),
        ("i", "12", '{"i": 12', "}"),
        ("i", "-", '{"i": -', ""),
        ("i", " ", '{"i": ', ""),
        ("o", '{"a": ["b', '{"o": {"a": ["b', '"]}}'),
        ("sa", "[1, ", '{"sa": [1,', ""),
        ("sa", "[1", '{"sa": [1', "]}"),
        ("sn", "nu", '{"sn": "nu', '"}'),
        ("sn", "null", '{"sn": null', "}"),
    ],
)
def test_a_cut_value_keeps_its_beginning(key: str, text: str, fragments: str, closing: str) -> None:
    written = Written()
    written.parameters.open(key)(text)
    assert written.parameters.unfinished
    assert (written.parameters.cut(), written.text) == (closing, fragments)
    if closing:
        json.loads(fragments + closing)


def test_cut_between_parameters() -> None:
    written = Written()
    assert written.parameters.unfinished
    assert written.parameters.cut() == ""
    written.parameters.open("s")
    written.parameters.close()
    assert not written.parameters.unfinished
    assert written.parameters.cut() == "}"


@given(
    st.sampled_from((*SCHEMA["properties"], "unknown")),
    st.lists(st.sampled_from(("null", "tr", "ue", "1", "-", ".5", "e", " ", "\n", "{", "}", "[", '"', "'", "a", "\\"))),
    st.booleans(),
)
def test_pieces_do_not_matter(key: str, pieces: list[str], close: bool) -> None:
    results = []
    for given_in in (pieces, ["".join(pieces)], "".join(pieces)):
        written = Written()
        take = written.parameters.open(key)
        for piece in given_in:
            if piece:
                take(piece)
        closing = "}"
        if close:
            written.parameters.close()
            json.loads(written.text + closing)
        else:
            closing = written.parameters.cut()
        results.append((written.text, closing, written.defects))
    assert results[0] == results[1] == results[2]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.sampled_from((None, 1)))
def test_members_are_what_was_written(arguments: dict[str, Any], indent: int | None) -> None:
    found = {k: v if is_string else json.loads(v) for k, v, is_string in members(json.dumps(arguments, indent=indent))}
    assert found == arguments


def test_members_keep_their_digits() -> None:
    text = ' { "a" : 9007199254740993.10 ,"b":{"c":1e400},"a":"x"} '
    assert [*members(text)] == [("a", "9007199254740993.10", False), ("b", '{"c":1e400}', False), ("a", "x", True)]
    assert [*members(f'{{"n": {"9" * 5000}}}')] == [("n", "9" * 5000, False)]


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"a": 1', "null"])
def test_members_of_something_else(text: str) -> None:
    with pytest.raises(ValueError):
        list(members(text))
