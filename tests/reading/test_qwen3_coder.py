"""Qwen3-Coder's calls, and near-misses of them."""

from __future__ import annotations

import json

import pytest

import dovetail
from dovetail.events import Call, Message
from tests.reading import whole

FMT = dovetail.format("qwen3_coder")
PROPERTIES = {
    "query": {"type": "string"},
    "topn": {"type": "integer"},
    "deep": {"type": "boolean"},
    "tags": {"type": "array"},
    "note": {"type": ["string", "null"]},
}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "submit"}},
]
X = '{"query": "x"}'
SUBMIT = "<function=submit>\n</function>\n"


def parameter(value: str = "x", key: str = "query", end: str = "\n</parameter>\n") -> str:
    return f"<parameter={key}>\n{value}{end}"


def function(*body: str) -> str:
    return "<function=search>\n" + "".join(body) + "</function>\n"


def section(*calls: str) -> str:
    return "<tool_call>\n" + "".join(calls) + "</tool_call>"


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (section(function(parameter())), [("search", X)], "", []),
        ("Here.\n\n" + section(SUBMIT) + "\n" + section(SUBMIT), [("submit", "{}")] * 2, "Here.", []),
        (section(function(parameter()), SUBMIT) + "after", [("search", X), ("submit", "{}")], "after", []),
        (section("<function=search><parameter=query>x</parameter></function>"), [("search", X)], "", []),
        # without <tool_call>, which is a call only if it names a tool
        (function(parameter()) + "</tool_call>b", [("search", X)], "b", ["missing_section"]),
        ("a " + function(parameter()) + SUBMIT + "b", [("search", X), ("submit", "{}")], "a \nb", ["missing_section"]),
        (function(parameter()) + "\n" + section(SUBMIT), [("search", X), ("submit", "{}")], "", ["missing_section"]),
        (SUBMIT + "</function>\n</parameter>\n", [("submit", "{}")], "", ["missing_section"] + ["stray_marker"] * 2),
        ('<function="submit">\n</function>', [("submit", "{}")], "", ["missing_section", "attribute_quotes"]),
        ("see <function=find>", [], "see <function=find>", []),
        ("see <function=search and <function=search\n<", [], "see <function=search and <function=search\n<", []),
        ("<function=" + "x" * 200 + ">", [], "<function=" + "x" * 200 + ">", []),
        ("<function=<tool_call>\n" + SUBMIT + "</tool_call>", [("submit", "{}")], "", ["stray_marker"]),
        ("<function=sub", [], "<function=sub", []),
        ("</function></parameter></tool_call>a", [], "</function></parameter></tool_call>a", []),
        # ends that are missing
        (section(function(parameter(end="\n"))), [("search", X)], "", ["missing_parameter_end"]),
        (section(function(parameter(end="\n"), parameter("3", "topn"))), [("search", '{"query": "x", "topn": 3}')], "",
         ["missing_parameter_end"]),
        (section("<function=search>\n", parameter()), [("search", X)], "", ["missing_call_end"]),
        (section("<function=search>\n", parameter(), SUBMIT), [("search", X), ("submit", "{}")], "",
         ["missing_call_end"]),
        ("<tool_call>\n" + SUBMIT + section(SUBMIT), [("submit", "{}")] * 2, "", ["missing_section_end"]),
        ("<tool_call>\n" + SUBMIT + "<|im_end|>", [("submit", "{}")], "", ["missing_section_end"]),
        (section("<function=search\n", "<parameter=query\n", "x\n</parameter>\n</function>\n"), [("search", X)], "",
         ["unclosed_tag"] * 2),
        (section("<function=submit/>\n"), [("submit", "{}")], "", ["self_closing_tag"]),
        # names and bodies
        (section('<function="search">\n', parameter(key="'query'"), "</function>"), [("search", X)], "",
         ["attribute_quotes"] * 2),
        (section(function(parameter(key="it's"))), [("search", '{"it\'s": "x"}')], "", []),
        (section("<function=>\n", "</function>\n"), [], section("<function=>\n", "</function>\n"), []),
        (section('<function name="search">\n', '<parameter name="query">\nx\n</parameter>\n', "</function>"),
         [("search", X)], "", ["missing_attribute"] * 2),
        (section("<function name='search' id='1'>\n", "<parameter query>x</parameter>\n", "</function>"),
         [("search", X)], "", ["extra_attributes", "missing_attribute"]),
        (section("<function = search>\n", "<parameter =query >\nx\n</parameter>\n", "</function>"),
         [("search", X)], "", []),
        (section('<function=search id="1">\n', "<parameter=\"query\" type='s' x=\"\">x</parameter>", "</function>"),
         [("search", X)], "", ["extra_attributes"] * 2),
        (section('<function id="1">\n', "</function>\n"), [], section('<function id="1">\n', "</function>\n"), []),
        (section("<functions>\n", SUBMIT), [("submit", "{}")], "<tool_call>\n<functions>\n", ["missing_section"]),
        ('<function name="submit">', [], '<function name="submit">', []),
        (section("<function=find>\n", "</function>\n"), [("find", "{}")], "", ["unknown_name"]),
        (section(function('{"query": "x"}\n')), [("search", X)], "", ["json_arguments"]),
        (section("words"), [], section("words"), []),
        (section(function(parameter(), "words")), [("search", X)], "words", ["text_in_section"]),
        # values
        (section(function(parameter("\n a\n"))), [("search", '{"query": "\\n a\\n"}')], "", []),
        (section(function(parameter(""))), [("search", '{"query": ""}')], "", []),
        (section(function(parameter("a </function> <parameter=b> c"))),
         [("search", '{"query": "a </function> <parameter=b> c"}')], "", []),
        (section(function(parameter("True", "deep"))), [("search", '{"deep": true}')], "", ["python_value"]),
        (section(function(parameter("[{'a': None}]", "tags"))), [("search", '{"tags": [{"a": null}]}')], "",
         ["python_value"]),
        (section(function(parameter("null", "note"))), [("search", '{"note": null}')], "", []),
        (section(function(parameter("nullable", "note"))), [("search", '{"note": "nullable"}')], "", []),
        (section(function(parameter("9007199254740993.1", "topn"))), [("search", '{"topn": 9007199254740993.1}')], "",
         []),
        (section(function(parameter(), parameter("y"))), [("search", '{"query": "x", "query": "y"}')], "",
         ["duplicate_parameter"]),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, calls: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    message = whole.read("qwen3_coder", text, TOOLS, thinking=False)
    assert (whole.calls(message), message.content, whole.kinds(message)) == (calls, content, defects)


def test_text_that_opens_a_call_is_text_in_reasoning_and_where_no_call_is_asked_for() -> None:
    message = FMT.parse(SUBMIT + "</think>" + SUBMIT, TOOLS, thinking=True)
    assert (message.reasoning, len(message.calls)) == (SUBMIT.rstrip("\n"), 1)
    message = FMT.parse(SUBMIT, TOOLS, thinking=False, tool_choice="none")
    assert (message.content, message.calls, message.defects) == (SUBMIT, (), ())


def test_without_tools_text_opens_no_call() -> None:
    for text in (SUBMIT, "<function=>"):
        message = FMT.parse(text, thinking=False)
        assert (message.content, message.calls) == (text, ())


def test_written_as_the_template_does() -> None:
    calls = (Call("", "search", '{"query": "x", "topn": 3.0}'), Call("", "submit", "{}"))
    written = (
        "Here.\n\n<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n<parameter=topn>\n3.0\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=submit>\n</function>\n</tool_call><|im_end|>"
    )
    assert FMT.write(Message("Here.", "", calls)).text == written
    assert FMT.write(Message("", "", calls[1:])).text == "<tool_call>" + written.rpartition("<tool_call>")[2]
    answer = Message("Here.", "hm\n", calls)
    text = FMT.write(answer, thinking=True).text
    assert text == "<think>\nhm\n\n</think>\n\n" + written
    read = FMT.parse(text, TOOLS)
    assert (read.content, read.reasoning, read.defects) == ("Here.", "hm\n", ())


KEPT = {"properties": {"all": {"type": "array"}, "n": {"type": "integer"}}}
LISTED = [{"type": "function", "function": {"name": "keep", "parameters": KEPT}}]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2"])
def test_in_a_string_of_json_the_end_of_a_parameter_is_text(name: str, size: int) -> None:
    fmt = dovetail.format(name)
    arguments = json.dumps({"all": ["</parameter>", 'a\\"</parameter></parameter>', {"</parameter>": 1}], "n": 3})
    text = fmt.write(Message("", "", (Call("", "keep", arguments),)), thinking=False).text
    reader = fmt.reader(LISTED, thinking=False)
    events = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
    message = dovetail.fold([*events, *reader.finish()])
    assert [call.arguments for call in message.calls] == [arguments] and not message.defects


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ('["x', '["x'),  # behind a newline it ends JSON that has no end
        ('["x\\', '["x\\'),
        ("12</parameter>", 12),
        ('{"a": 1}</parameter>', {"a": 1}),
        ("</parameter>", ""),
    ],
)
def test_a_value_that_is_no_json_string_ends_with_its_parameter(value: str, read: object) -> None:
    output = f"<tool_call>\n<function=keep>\n<parameter=all>\n{value}\n</parameter>\n</function>\n</tool_call>"
    message = FMT.parse(output, LISTED, thinking=False)
    assert json.loads(message.calls[0].arguments) == {"all": read}
