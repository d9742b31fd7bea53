"""MiniCPM5's calls: tags that nothing surrounds, and strings in CDATA."""

from __future__ import annotations

import json

import pytest

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from tests.reading.families import TOOLS, stream, tokenizer_of

CITY = '<function name="get_weather"><param name="city">'


def read(text: str, **options: str) -> tuple[str, list[tuple[str, object]], list[str]]:
    """Content, calls and kinds of defects, in one piece and in pieces of one character."""
    message = dovetail.format("minicpm5").parse(text, TOOLS, thinking=False, **options)
    assert dovetail.fold(stream("minicpm5", list(text), thinking=False, **options)) == message
    calls = [(call.name, json.loads(call.arguments)) for call in message.calls]
    return message.content, calls, [defect.kind for defect in message.defects]


@pytest.mark.parametrize(
    ("value", "city", "defects"),
    [
        ("Paris</param>", "Paris", []),
        ("</param>", "", []),
        ("a]]></param>", "a]]>", []),
        ("a & b</param>", "a & b", []),
        ("<![CDATA[a < b\n]]></param>", "a < b\n", []),
        ("<![CDATA[]]></param>", "", []),
        ("<![CDATA[a]]>]]></param>", "a]]>", []),
        ("<![CDATA[</param></function>]]></param>", "</param></function>", []),
        ("\n<![CDATA[a]]>\n</param>", "a", []),
        ("x <![CDATA[a]]></param>", "x <![CDATA[a]]>", []),
        ("<![CDATA[a</param>", "a", ["missing_parameter_end"]),
        ("<![CDATA[a", "a", ["missing_parameter_end"]),
        ("a", "a", ["missing_parameter_end"]),
    ],
)
def test_values(value: str, city: str, defects: list[str]) -> None:
    assert read(f"{CITY}{value}</function>") == ("", [("get_weather", {"city": city})], defects)


def test_a_second_value_in_cdata_does_not_end_the_first() -> None:
    text = f'{CITY}<![CDATA[a]]>\n</param><param name="unit"><![CDATA[b]]></param></function>'
    assert read(text) == ("", [("get_weather", {"city": "a", "unit": "b"})], [])


def test_a_name_without_its_closing_quote() -> None:
    text = '<function name="get_weather"><param name="city>Paris</param></function>'
    assert read(text) == ("", [("get_weather", {"city": "Paris"})], ["attribute_quotes"])


def test_cdata_that_is_cut_off() -> None:
    text = f"{CITY}<![CDATA[a\nb"
    message = dovetail.format("minicpm5").parse(text, TOOLS, thinking=False)
    assert [call.arguments for call in message.calls] == ['{"city": "a\\nb']


@pytest.mark.parametrize(
    ("text", "content", "calls", "defects"),
    [
        ('Hi\n<function name="ping"></function>\n<function name="ping"></function>', "Hi", ["ping", "ping"], []),
        ('<function name="ping"></function>Hi', "Hi", ["ping"], []),
        ('<function name="ping"></function>\n\nHi', "\n\nHi", ["ping"], []),
        ('<function name="ping"><function name="ping"></function>', "", ["ping", "ping"], ["missing_call_end"]),
        ("<function=ping></function>", "", ["ping"], ["missing_attribute"]),
        ("<function='ping'></function>", "", ["ping"], ["missing_attribute"]),
        ("<function ping></function>", "", ["ping"], ["missing_attribute"]),
        ("</function></param>Hi", "</function></param>Hi", [], []),
        ("<function>", "<function>", [], []),
    ],
)
def test_calls_stand_alone(text: str, content: str, calls: list[str], defects: list[str]) -> None:
    message, called, kinds = read(text)
    assert (message, [name for name, _ in called], kinds) == (content, calls, defects)


def test_values_as_the_template_prints_them() -> None:
    text = '<function name="edit_file"><param name="lines">[1, 2]</param><param name="text">None</param></function>'
    assert read(text)[1] == [("edit_file", {"lines": [1, 2], "text": "None"})]
    text = '<function name="get_weather"><param name="alerts">True</param></function>'
    assert read(text) == ("", [("get_weather", {"alerts": True})], ["python_value"])


def test_a_string_in_cdata_where_the_schema_has_another_type() -> None:
    text = '<function name="get_weather"><param name="days"><![CDATA[3]]></param></function>'
    assert read(text) == ("", [("get_weather", {"days": 3})], ["mistyped_value"])


@pytest.mark.parametrize("value", ["a < b", "a & b", "a\nb", "<![CDATA[", "]]>", "]]></param>"])
def test_strings_are_written_so_that_they_read_back(value: str) -> None:
    fmt = dovetail.format("minicpm5")
    message = Message("", "", (Call("call_0", "get_weather", json.dumps({"city": value})),))
    reader = fmt.reader(TOOLS, thinking=False, tokenizer=tokenizer_of("minicpm5"))
    events = reader.feed_segments(fmt.write(message, thinking=False).segments)
    assert dovetail.fold([*events, *reader.finish()]) == message


def test_tags_that_are_text_open_no_calls_without_a_section() -> None:
    with pytest.raises(ValueError, match="section must surround calls"):

        class Text(DeclaredFormat):
            name = "text"
            controls = ()
            end_of_turn = ("<|end|>",)
            calls = TagCalls("{call}", '<call name="{name}">{parameters}</call>', '<p name="{key}">{value}</p>')
