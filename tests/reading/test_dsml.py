"""DSML as DeepSeek V3.2, V4 and V4.1 write it, and near-misses of it."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.errors import RenderError
from dovetail.events import Call, CallArguments, CallEnd, Event, Message

FMT = dovetail.format("deepseek_v32")
PROPERTIES = {
    "query": {"type": "string"},
    "topn": {"type": "integer"},
    "deep": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "submit", "parameters": {"type": "object", "properties": {}}}},
]
SECTION, SECTION_END = "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"
INVOKE_END, PARAMETER_END = "</｜DSML｜invoke>\n", "</｜DSML｜parameter>\n"
SUBMIT = '<｜DSML｜invoke name="submit">\n' + INVOKE_END


def opener(attributes: str = 'name="search"') -> str:
    return f"<｜DSML｜invoke {attributes}>\n"


def parameter(value: str = "x", attributes: str = 'name="query" string="true"', end: str = PARAMETER_END) -> str:
    return f"<｜DSML｜parameter {attributes}>{value}{end}"


def call(*body: str) -> str:
    return opener() + "".join(body) + INVOKE_END


def section(*calls: str) -> str:
    return SECTION + "".join(calls) + SECTION_END


def kinds(message: Message) -> list[str]:
    return [defect.kind for defect in message.defects]


def stream(pieces: list[str], reason: str = "stop", **asked: object) -> list[Event]:
    reader = FMT.reader(TOOLS, thinking=False, **asked)  # type: ignore[arg-type]
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.finish(reason)]


X = '{"query": "x"}'


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (section(call(parameter())), [("search", X)], "", []),
        ("Here.\n\n" + section(call(parameter())) + "after", [("search", X)], "Here.after", []),
        (section(call(parameter())) + "\n" + section(SUBMIT) + "\n", [("search", X), ("submit", "{}")], "", []),
        (section(call(parameter())) + " \nafter", [("search", X)], " \nafter", []),
        ("\n\n  " + section("  ", call("\n\t ", parameter(), "   ")), [("search", X)], "\n\n  ", []),
        (section(call("\n")), [("search", "{}")], "", []),
        # calls without their section, sections without calls
        ("a " + call(parameter()) + "b", [("search", X)], "a \nb", ["missing_section"]),
        (call(parameter()) + SUBMIT, [("search", X), ("submit", "{}")], "", ["missing_section"]),
        (call(parameter()) + section(SUBMIT), [("search", X), ("submit", "{}")], "", ["missing_section"]),
        (call(parameter()) + SECTION_END + "b", [("search", X)], "b", ["missing_section"]),
        (section(), [], "", ["empty_section"]),
        (section("words"), [], section("words"), []),
        (section(call(parameter()), "words", SUBMIT), [("search", X), ("submit", "{}")], "words", ["text_in_section"]),
        (SECTION + section(SUBMIT), [("submit", "{}")], "", ["missing_section_end"]),
        (SECTION + SUBMIT, [("submit", "{}")], "", ["missing_section_end"]),
        (SECTION + SUBMIT + "</think>x", [("submit", "{}")], "x", ["stray_marker"]),
        # ends that are missing, ends that are one too many
        (section(opener(), parameter()), [("search", X)], "", ["missing_call_end"]),
        (section(opener(), parameter(), SUBMIT), [("search", X), ("submit", "{}")], "", ["missing_call_end"]),
        (section(call(parameter(end="\n"))), [("search", X)], "", ["missing_parameter_end"]),
        (section(call(parameter(end=""), parameter("3", 'name="topn" string="true"'))),
         [("search", '{"query": "x", "topn": 3}')], "", ["missing_parameter_end", "mistyped_value"]),
        (section(call(parameter(), PARAMETER_END), INVOKE_END), [("search", X)], "", ["stray_marker"] * 2),
        (section(PARAMETER_END, SUBMIT), [("submit", "{}")], "", ["stray_marker"]),
        (INVOKE_END + "x", [], INVOKE_END + "x", []),
        # names that are missing, and two tools that it may be
        (section(parameter(), INVOKE_END), [], section(parameter(), INVOKE_END), []),
        (section(opener(""), INVOKE_END), [], "", ["missing_name", "stray_marker", "empty_section"]),
        (section(call(parameter("x", 'foo="1"'))), [], section(call(parameter("x", 'foo="1"'))), []),
        (section(opener('name="find"'), parameter(), INVOKE_END), [("find", X)], "", ["unknown_name"]),
        # attributes
        (section(opener('name="search" id="1"'), parameter(), INVOKE_END), [("search", X)], "", ["extra_attributes"]),
        (section(opener('name="search" x'), parameter("x", 'name="query" y string="true"'), INVOKE_END),
         [("search", X)], "xy", ["text_in_section"] * 2),
        (section(call(parameter("x", 'type="s" name="query" string="true" name="b"'))), [("search", X)], "",
         ["extra_attributes"]),
        (section(opener("name='search'"), parameter("x", "name='query' string='true'"), INVOKE_END), [("search", X)],
         "", ["attribute_quotes"] * 2),
        (section(opener("name = search"), parameter("x", "string=true name=query"), INVOKE_END), [("search", X)],
         "", ["attribute_quotes"] * 2),
        (section(opener("search"), parameter("x", 'query string="true"'), INVOKE_END), [("search", X)], "",
         ["missing_attribute"] * 2),
        (section(opener('\n  name="search"\n'), parameter(), INVOKE_END), [("search", X)], "", []),
        (section(call(parameter("x", 'name="a>b > c" string="true"'))), [("search", '{"a>b > c": "x"}')], "", []),
        (section(call(parameter("x", 'name="a"b" string="true"'))), [("search", '{"a\\"b": "x"}')], "", []),
        (section(call(parameter("x", 'name="it\'s a" string="true"'))), [("search", '{"it\'s a": "x"}')], "", []),
        (section(call(parameter("x", 'name="query string="true"'))), [("search", X)], "", ["attribute_quotes"]),
        (section(call(parameter("x", 'name="query'))), [("search", X)], "", ["attribute_quotes", "missing_attribute"]),
        (section(call(parameter("x > y\n", 'name="note'))), [("search", '{"note": "x > y\\n"}')], "",
         ["attribute_quotes", "missing_attribute"]),
        (section(opener('name="search').rstrip(), " > ", parameter(), INVOKE_END), [("search", X)], "",
         ["attribute_quotes", "stray_bracket"]),
        # tags without their bracket
        (section('<｜DSML｜invoke name="search"\n', parameter(), INVOKE_END), [("search", X)], "", ["unclosed_tag"]),
        (section(call('<｜DSML｜parameter name="query" string="true"\nx', PARAMETER_END)), [("search", X)], "",
         ["unclosed_tag"]),
        (section('<｜DSML｜invoke name="submit"/>\n'), [("submit", "{}")], "", ["self_closing_tag"]),
        (section(call('<｜DSML｜parameter name="query" string="true" />')), [("search", '{"query": ""}')], "",
         ["self_closing_tag"]),
        (section("<｜DSML｜invoke ", "name " * 300, ">", SUBMIT), [("submit", "{}")],
         f"{SECTION}<｜DSML｜invoke {'name ' * 300}>", ["missing_section"]),
        (section(call("<｜DSML｜parameter ", "x" * 2000, PARAMETER_END)), [],
         section(call("<｜DSML｜parameter ", "x" * 2000, PARAMETER_END)), []),
        # JSON where parameters should be
        (section(call('{"query": "x"}\n')), [("search", X)], "", ["json_arguments"]),
        (section(call('  {"query": "x"} more')), [("search", X)], "more", ["json_arguments", "text_in_section"]),
        (section(call('{"query": oops}')), [("search", '{"query": "oops"}')], "",
         ["json_arguments", "unquoted_value"]),
        (section(opener(), '{"query": "x"}\n', SUBMIT), [("search", X), ("submit", "{}")], "",
         ["json_arguments", "missing_call_end"]),
        # values
        (section(call(parameter(), parameter("y"))), [("search", '{"query": "x", "query": "y"}')], "",
         ["duplicate_parameter"]),
        (section(call(parameter("3", 'name="topn"'))), [("search", '{"topn": 3}')], "", ["missing_attribute"]),
        (section(call(parameter("null", 'name="note"'))), [("search", '{"note": null}')], "", ["missing_attribute"]),
        (section(call(parameter("3", 'name="topn" string="true"'))), [("search", '{"topn": 3}')], "",
         ["mistyped_value"]),
        (section(call(parameter("true", 'name="deep" string="true"'))), [("search", '{"deep": true}')], "",
         ["mistyped_value"]),
        (section(call(parameter("three", 'name="topn" string="true"'))), [("search", '{"topn": "three"}')], "", []),
        (section(call(parameter("3.5", 'name="topn" string="true"'))), [("search", '{"topn": "3.5"}')], "", []),
        (section(call(parameter("3", 'name="note" string="true"'))), [("search", '{"note": "3"}')], "", []),
        (section(call(parameter("3", 'name="more" string="true"'))), [("search", '{"more": "3"}')], "", []),
        (section(call(parameter("True", 'name="deep" string="false"'))), [("search", '{"deep": true}')], "",
         ["python_value"]),
        (section(call(parameter("x", 'name="topn" string="false"'))), [("search", '{"topn": "x"}')], "",
         ["invalid_value"]),
        (section(call(parameter("a\n\n", 'name="query" string="TRUE"'))), [("search", '{"query": "a\\n\\n"}')], "", []),
        (section(call(parameter("</｜DSML｜x> <think>"))), [("search", '{"query": "</｜DSML｜x> <think>"}')], "", []),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, calls: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    for pieces in ([text], list(text)):
        message = dovetail.fold(stream(pieces))
        assert [(c.name, c.arguments) for c in message.calls] == calls
        assert message.content.rstrip("\n") == content
        assert kinds(message) == defects


@pytest.mark.parametrize(
    "text", [section(parameter(), INVOKE_END), section(opener(""), parameter(), INVOKE_END), section(parameter())]
)
def test_a_call_without_a_name_is_of_the_only_tool(text: str) -> None:
    message = FMT.parse(text, TOOLS[:1], thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == [("search", X)]
    assert kinds(message)[0] == "missing_name"


@pytest.mark.parametrize(
    ("text", "arguments", "content", "closing"),
    [
        (SECTION + opener() + parameter("par", end=""), ['{"query": "par'], "", '"}'),
        (SECTION + opener() + parameter(), ['{"query": "x"'], "", "}"),
        (SECTION + opener() + parameter("[1, 2", 'name="note" string="false"', ""), ['{"note": [1, 2'], "", "]}"),
        (SECTION + opener(), [""], "", ""),
        (SECTION + opener() + '{"query": "pa', ['{"query": "pa'], "", '"}'),
        (SECTION + '<｜DSML｜invoke name="sea', [], "", ""),
        (SECTION + opener() + '<｜DSML｜parameter name="quer', [""], "", ""),
    ],
)
def test_a_call_cut_by_length_stays_cut(text: str, arguments: list[str], content: str, closing: str) -> None:
    events = stream([text], "length")
    message = dovetail.fold(events)
    assert ([c.arguments for c in message.calls], message.content) == (arguments, content)
    assert not any(isinstance(event, CallEnd) for event in events)
    assert "truncated_call" in kinds(message) or not arguments
    repaired = stream([text], "length", repair_arguments=True)
    assert [c.arguments for c in dovetail.fold(repaired).calls] == [a + closing for a in arguments]
    assert any(isinstance(event, CallEnd) for event in repaired) == bool(closing)


def test_string_values_stream_and_hold_back_a_marker_at_most() -> None:
    reader = FMT.reader(TOOLS, thinking=False)
    reader.feed(SECTION + opener() + '<｜DSML｜parameter name="query" string="true">')
    for piece, shown in (
        ('a "b"', 'a \\"b\\"'),
        (" </｜DSML｜para", " "),
        ("x>\n", "</｜DSML｜parax>"),
        ("<", ""),
        ("b", "\\n<b"),
    ):
        events = reader.feed(piece)
        assert "".join(e.fragment for e in events if isinstance(e, CallArguments)) == shown


MESSAGE = Message(
    "Here.",
    "hm",
    (Call("", "search", '{"query": "x", "topn": 3.0}'), Call("", "submit", "{}")),
)


@pytest.mark.parametrize(
    ("name", "block", "space"),
    [("deepseek_v32", "function_calls", ""), ("deepseek_v4", "tool_calls", ""), ("deepseek_v41", " calls", " ")],
)
def test_flavours(name: str, block: str, space: str) -> None:
    d = f"｜DSML｜{space}"
    written = (
        f'hm</think>Here.\n\n<｜DSML｜{block}>\n<{d}invoke name="search">\n'
        f'<{d}parameter name="query" string="true">x</{d}parameter>\n'
        f'<{d}parameter name="topn" string="false">3.0</{d}parameter>\n</{d}invoke>\n'
        f'<{d}invoke name="submit">\n\n</{d}invoke>\n</｜DSML｜{block}><｜end▁of▁sentence｜>'
    )
    fmt = dovetail.format(name)
    assert fmt.write(MESSAGE, thinking=True).text == written
    assert fmt.write(Message("Hi."), thinking=False).text == "Hi.<｜end▁of▁sentence｜>"
    read = fmt.parse(written, TOOLS, thinking=True)
    assert (read.content, read.reasoning, read.defects) == ("Here.", "hm", ())
    assert [(c.name, c.arguments) for c in read.calls] == [(c.name, c.arguments) for c in MESSAGE.calls]
    assert {s.text for s in fmt.write(MESSAGE).segments if s.control} == {
        "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>"
    }  # fmt: skip


@pytest.mark.parametrize("arguments", ["[1]", '{"a": ', "[" * 100_000])
def test_arguments_that_are_no_object_cannot_be_written(arguments: str) -> None:
    with pytest.raises(RenderError, match="not a JSON object"):
        FMT.write(Message("", "", (Call("", "search", arguments),)))
