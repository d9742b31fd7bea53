"""Python's literals as JSON: against `ast.literal_eval` and `json`, however they are written and cut."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import CallArguments, CallEnd, Event, Message
from dovetail.reading.python_text import number
from dovetail.reading.reader import MALFORMED

FMT = dovetail.format("pythonic")
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}}]


def stream(pieces: list[str] | str, reason: str = "stop", **options: Any) -> list[Event]:
    reader = FMT.reader(TOOLS, **options)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.finish(reason)


def read(arguments: str, size: int = 3) -> Message:
    text = f"[f({arguments})]"
    whole = FMT.parse(text, TOOLS)
    assert dovetail.fold(stream([text[i : i + size] for i in range(0, len(text), size)])) == whole
    assert dovetail.fold(stream(text)) == whole
    return whole


def kinds(message: Message) -> list[str]:
    return [defect.kind for defect in message.defects]


def value_of(literal: str) -> Any:
    message = read(f"a={literal}")
    assert kinds(message) == []
    return json.loads(message.calls[0].arguments)["a"]


# Each value with one way to write it. Bytes and complex numbers have no JSON.
scalars = st.one_of(
    st.sampled_from(("None", "True", "False")),
    st.integers().map(repr),
    st.integers().map(lambda n: f"{n:+_}"),
    st.integers(min_value=0).flatmap(lambda n: st.sampled_from((hex(n), oct(n), bin(n), f"-0X{n:_X}"))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from((".5", "5.", "-.5e3", "0.0", "00", "1_0.0_1", "1E+5", "01.5", "- 1", "+ 0x_f", "0_0", "1e0_1")),
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda t: "<" not in t)  # no marker
strings = st.one_of(
    text.map(repr),
    # Not beyond U+FFFF: what JSON escapes as a pair is two characters in Python.
    st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF, exclude_characters="<"), max_size=12).map(
        json.dumps
    ),
    text.map(lambda t: json.dumps(t, ensure_ascii=False)),
    text.map(lambda t: '"""' + t.encode("unicode_escape").decode().replace('"', '\\"') + '"""'),
    text.map(lambda t: "".join(f"\\U{ord(c):08x}" for c in t).join("''")),
    st.tuples(text, text).map(lambda pair: f"{pair[0]!r} \n{pair[1]!r}"),
    st.sampled_from(
        (
            r"r'\d\'\\'",
            'R"\\n"',
            "u'é'",
            r"'\x41\101\7\0018\N{BULLET}\a\
'",
            "'''a'b\n\"c'''",
            '""""x"""',
            "''",
            '""',
            "''''''",
        )
    ),
)
space = st.sampled_from(("", "", " ", "\n  "))


def brackets(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def joined(items: list[str], gap: str, last: str) -> str:
        return gap + f"{gap},{gap}".join(items) + (last if items else "")

    last = st.sampled_from(("", ",", " , "))
    lists = st.builds(joined, st.lists(inner, max_size=4), space, last)
    keys = strings | st.sampled_from(("2", "None", "True", "2.5"))
    pairs = st.builds(lambda k, gap, v: f"{k}{gap}:{gap}{v}", keys, space, inner)
    return st.one_of(
        lists.map(lambda items: f"[{items}]"),
        lists.map(lambda items: f"({items})"),
        inner.map(lambda item: f"({item},)"),
        st.builds(joined, st.lists(pairs, max_size=3), space, last).map(lambda items: f"{{{items}}}"),
    )


literals = st.recursive(scalars | strings, brackets, max_leaves=10)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("{'a', 'b'}", ["a", "b"]),
        ("{ 1,2.50 , None}", [1, 2.5, None]),
        ("{'a,\\'b:'}", ["a,'b:"]),
        ("{'a': {'b'}, 'c': [{2}]}", {"a": ["b"], "c": [[2]]}),
        ("{'x', {'y': 1}, 'z',}", ["x", {"y": 1}, "z"]),
        ("{}", {}),
        ("{ }", {}),
    ],
)
def test_a_set_is_a_list(literal: str, value: Any) -> None:
    assert value_of(literal) == value


@given(literals, st.integers(min_value=1, max_value=5))
def test_equals_what_python_reads(literal: str, size: int) -> None:
    message = read(f"a={literal} , b = 1", size)
    expected = json.loads(json.dumps({"a": ast.literal_eval(f"({literal})"), "b": 1}))
    found = json.loads(message.calls[0].arguments)
    assert found == expected
    assert kinds(message) == []


@given(literals, st.integers(min_value=0), st.booleans())
def test_cut_off_arguments_are_a_prefix(literal: str, cut: int, repaired: bool) -> None:
    """What has been passed on when the output is cut is what would have been passed on of the whole."""
    text = f"[f(a={literal})]"
    cut = len("[f(") + cut % (len(text) - len("[f("))
    so_far = dovetail.fold(FMT.reader(TOOLS).feed(text[:cut])).calls[0].arguments
    assert FMT.parse(text, TOOLS).calls[0].arguments.startswith(so_far)
    events = stream([text[:cut]], "length", repair_arguments=repaired)
    for event in events:
        if isinstance(event, CallEnd):
            json.loads(dovetail.fold(events).calls[event.index].arguments)


@pytest.mark.parametrize(
    ("python", "json_number"),
    [
        ("9007199254740993.10", "9007199254740993.10"),
        ("-1e400", "-1e400"),
        ("1" * 900, "1" * 900),
        ("+7", "7"),
        ("1_000", "1000"),
        ("0x1F", "31"),
        ("-0b101", "-5"),
        (".5", "0.5"),
        ("-5.", "-5.0"),
        ("5.e3", "5.0e3"),
        ("007.5", "7.5"),
        ("000", "0"),
        ("007", None),
        (".", None),
        ("1__0", None),
        ("1_", None),
        ("_1", None),
        ("0x", None),
        ("1e", None),
        ("e5", None),
        ("", None),
        ("١", None),
        ("1j", None),
    ],
)
def test_numbers(python: str, json_number: str | None) -> None:
    assert number(python) == json_number


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'\\ud83d\\ude00'", "😀"),  # as JSON has it: Python would keep two halves
        ("b'raw'", "raw"),
        (r"'\d\.'", r"\d\."),
        ("f'{x}'", "{x}"),
        ("Rb'\\n'", "\\n"),
        (r"'\x4'", "\\x4"),
        (r"'\u12g4'", "\\u12g4"),
        (r"'\U00110000'", "\\U00110000"),
        (r"'\N{NO SUCH NAME}'", "\\N{NO SUCH NAME}"),
        (r"'\N{BULLET'", "\\N{BULLET"),
        (r"'\Nx'", "\\Nx"),
        ("'a\nb'", "a\nb"),
        ("('a' 'b')", "ab"),
        ("((1), ((2),), ())", [1, [2], []]),
        ("('a', 'b')", ["a", "b"]),
        ("{(): 1}", None),
        ("{1: 'a', True: 'b', None: 'c', 'd': ('e')}", {"1": "a", "true": "b", "null": "c", "d": "e"}),
    ],
)
def test_literals_that_python_refuses_or_json_cannot_express(literal: str, value: Any) -> None:
    if value is None:
        assert kinds(read(f"a={literal}")) == ["malformed_call"]
    else:
        assert value_of(literal) == value


@pytest.mark.parametrize(
    ("arguments", "read_as", "defects"),
    [
        ("a=true, b=null", '{"a": true, "b": null}', ["json_value", "json_value"]),
        ("a=Paris, b=New York ", '{"a": "Paris", "b": "New York"}', ["unquoted_value", "unquoted_value"]),
        ("a=1+2, b=Color.RED", '{"a": "1+2", "b": "Color.RED"}', ["unquoted_value", "unquoted_value"]),
        ("a=1 b=2", '{"a": "1 b=2"}', ["unquoted_value"]),
        ("a='x' b=2", '{"a": "x", "b": 2}', ["missing_comma"]),
        ("a: 1", '{"a": 1}', ["missing_equals"]),
        ("a=1, a=2", '{"a": 1, "a": 2}', ["duplicate_parameter"]),
        ("'Paris', 3", '{"city": "Paris", "days": 3}', ["positional_argument"] * 2),
        ("days=3, ['Paris']", '{"days": 3, "city": "[\\"Paris\\"]"}', ["positional_argument", "mistyped_value"]),
        ("a={b: 1}", '{"a": {"b": 1}}', ["unquoted_value"]),
        ("**{'a b': 1}, c=2", '{"a b": 1, "c": 2}', []),
        ("** {}, c=2,", '{"c": 2}', []),
        ("my-key=1", '{"my-key": 1}', []),
        ("", "{}", []),
        (" \n", "{}", []),
    ],
)
def test_near_misses_are_read_as_meant(arguments: str, read_as: str, defects: list[str]) -> None:
    message = read(arguments)
    assert message.calls[0].arguments == read_as
    assert kinds(message) == defects


@pytest.mark.parametrize(
    ("arguments", "read_so_far", "rest"),
    [
        ("a=float('in)f')", '"a": null, ', "float('in)f')"),
        ("a=g(1, [2])", '"a": null, ', "g(1, [2])"),
        ("a='x'.upper()", '"a": "x", ', ".upper()"),
        (r"a=g('it\'s (')", '"a": null, ', r"g('it\'s (')"),
        ("a=[1, 2}, b=3", '"a": [1, 2], ', "}, b=3"),
        ("a={(1), 2}", '"a": {"": null}, ', "(1), 2}"),
        ("a={'x': 1, 'y'}", '"a": {"x": 1, "y": null}, ', "}"),
        ("a={g'x': 1}", '"a": {"": null}, ', "g'x': 1}"),
        ("a={'x'.y: 1}", '"a": {"x": null}, ', ".y: 1}"),
        ("a=[1,,2]", '"a": [1, null], ', ",2]"),
        ("a=(1, g())", '"a": [1, null], ', "g())"),
        ("city=[g()]", '"city": [null], ', "g()]"),
        ("**{'a': g()}", '"a": null, ', "g()}"),
        ("a=", '"a": null, ', ""),
        ("=1", "", "=1"),
        (",a=1", "", ",a=1"),
        ("1, 2, 3", '"city": "1", "days": 2, ', "3"),
        ("a=" + "x" * 2000, '"a": null, ', "x" * 2000),
        ("**[1]", "", "**[1]"),
    ],
)
def test_arguments_that_cannot_be_read_say_so(arguments: str, read_so_far: str, rest: str) -> None:
    message = read(arguments)
    assert message.calls[0].arguments == f"{{{read_so_far}{json.dumps(MALFORMED)}: {json.dumps(rest)}}}"
    assert kinds(message)[-1] == "malformed_call"
    json.loads(message.calls[0].arguments)


def test_arguments_that_cannot_be_read_and_are_cut_off() -> None:
    message = dovetail.fold(stream("[f(a=g(1, [2]", "length"))
    assert (message.calls[0].arguments, kinds(message)[0]) == ('{"a": g(1, [2]', "truncated_call")


@pytest.mark.parametrize(
    ("arguments", "read_as", "defects"),
    [
        ("days='3'", '{"days": 3}', ["mistyped_value"]),
        ("days='three'", '{"days": "three"}', []),
        ("days='[3]'", '{"days": "[3]"}', []),
        ("days=3", '{"days": 3}', []),
        ("city=3.50", '{"city": "3.50"}', ["mistyped_value"]),
        ("city=None", '{"city": null}', []),
        ("city={'a': (1, 'b')}", '{"city": "{\\"a\\": [1, \\"b\\"]}"}', ["mistyped_value"]),
        ("city=('a' 'b')", '{"city": "ab"}', []),
        ("city=Paris", '{"city": "Paris"}', ["unquoted_value"]),
    ],
)
def test_values_are_of_the_types_of_the_schema(arguments: str, read_as: str, defects: list[str]) -> None:
    message = read(arguments)
    assert (message.calls[0].arguments, kinds(message)) == (read_as, defects)


def test_positional_arguments_need_a_schema() -> None:
    for tools in ([], [{"type": "function", "function": {"name": "f", "parameters": {"properties": []}}}]):
        message = FMT.parse("[f(1)]", tools)
        assert (message.calls[0].arguments, kinds(message)) == ('{"malformed_arguments": "1"}', ["malformed_call"])


def test_strings_stream_and_parentheses_wait() -> None:
    reader = FMT.reader(TOOLS)
    reader.feed("[f(a='")
    assert reader.feed("some") == [CallArguments(0, "some")]
    assert reader.feed(' "words\\') == [CallArguments(0, ' \\"words')]
    assert reader.feed("n") == [CallArguments(0, "\\n")]
    reader.feed("', b=(")
    assert reader.feed("'x'") == []
    assert "".join(e.fragment for e in reader.feed(",") if isinstance(e, CallArguments)) == '["x"'
    assert reader.feed(" ((1") == [CallArguments(0, ", ")]
    assert "".join(e.fragment for e in reader.feed("),") if isinstance(e, CallArguments)) == "[1"
    assert any(isinstance(event, CallEnd) for event in reader.feed("))]"))
