"""GLM's calls, with newlines (4.5, 4.6) and without (4.7), and near-misses of them."""

from __future__ import annotations

import re

import pytest

import dovetail
from dovetail.events import Call, CallEnd, Message
from dovetail.tokens import Segment
from tests.reading import whole

FMT = dovetail.format("glm45")
PROPERTIES = {"query": {"type": "string"}, "topn": {"type": "integer"}, "note": {"type": ["string", "null"]}}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "submit"}},
]
X = '{"query": "x"}'


def argument(value: str = "x", key: str = "query", end: str = "</arg_value>\n") -> str:
    return f"<arg_key>{key}</arg_key>\n<arg_value>{value}{end}"


def call(*body: str, name: str = "search\n") -> str:
    return f"<tool_call>{name}" + "".join(body) + "</tool_call>"


SUBMIT = call(name="submit")


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        ("\n" + call(argument()), [("search", X)], "", []),
        ("\nHere.\n" + call(argument()) + "\n" + SUBMIT + "after", [("search", X), ("submit", "{}")], "Here.after", []),
        (call("<arg_key>query</arg_key><arg_value>x</arg_value>", name="search"), [("search", X)], "", []),
        (call(argument(), name="\nsearch\n"), [("search", X)], "", []),
        (SUBMIT, [("submit", "{}")], "", []),
        (SUBMIT + " \n<|observation|>", [("submit", "{}")], "", []),
        # ends that are missing
        (call(argument(end="\n")), [("search", X)], "", ["missing_parameter_end"]),
        (call(argument(end=""), argument("3", "topn")),
         [("search", '{"query": "x", "topn": 3}')], "", ["missing_parameter_end"]),
        ("<tool_call>search\n" + argument() + SUBMIT, [("search", X), ("submit", "{}")], "", ["missing_call_end"]),
        ("<tool_call>submit" + SUBMIT, [("submit", "{}")] * 2, "", ["missing_call_end"]),
        ("<tool_call>search\n" + argument() + "<|user|>", [("search", X)], "", ["missing_call_end"]),
        ("<tool_call>search\n" + argument(), [("search", X)], "", ["missing_call_end"]),
        (SUBMIT + "</tool_call>", [("submit", "{}")], "", ["stray_marker"]),
        # keys without values, values without keys
        (call("<arg_key>query<arg_value>x</arg_value>"), [("search", X)], "", ["missing_key_end"]),
        (call("<arg_key>query</arg_key>\nx</arg_value>"), [("search", X)], "", ["missing_value_start"]),
        (call("<arg_key>query</arg_key>\n", argument("3", "topn")), [("search", '{"topn": 3}')], "query\n",
         ["missing_value"]),
        (call("<arg_key>query", "<arg_key>topn</arg_key><arg_value>3</arg_value>"), [("search", '{"topn": 3}')],
         "query", ["missing_key_end", "missing_value"]),
        (call("<arg_value>x</arg_value>"), [], call("<arg_value>x</arg_value>"), []),
        (call("<arg_key>query</arg_key> a <arg_value>x</arg_value>"), [],
         call("<arg_key>query</arg_key> a <arg_value>x</arg_value>"), []),
        (call("<arg_key>" + "x" * 2000), [], call("<arg_key>" + "x" * 2000), []),
        # names and bodies
        (call('{"query": "x"}\n'), [("search", X)], "", ["json_arguments"]),
        ("<tool_call>search\n" + '{"query": "x"}' + SUBMIT, [("search", X), ("submit", "{}")], "",
         ["json_arguments", "missing_call_end"]),
        (call('{"name": "search"}', name=""), [("search", "{}")], "", ["other_syntax", "missing_arguments"]),
        (call(name="no call at all") + "after", [], call(name="no call at all") + "after", []),
        (call(argument(), name=""), [], call(argument(), name=""), []),
        (call(name=""), [], call(name=""), []),
        (call(name="find"), [("find", "{}")], "", ["unknown_name"]),
        ("<tool_call>" + "x" * 2000, [], "<tool_call>" + "x" * 2000, []),
        ("<tool_call>no call</think>a", [], "<tool_call>no calla", ["stray_marker"]),
        # values
        (call(argument("null", "note")), [("search", '{"note": null}')], "", []),
        (call(argument(" a\n")), [("search", '{"query": " a\\n"}')], "", []),
        (call(argument(), argument("y")), [("search", '{"query": "x", "query": "y"}')], "", ["duplicate_parameter"]),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, calls: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    message = whole.read("glm45", text, TOOLS)
    assert (whole.calls(message), message.content, whole.kinds(message)) == (calls, content, defects)


def test_a_call_without_a_name_is_of_the_only_tool() -> None:
    message = FMT.parse(call(argument(), name=""), TOOLS[:1])
    assert [(c.name, c.arguments) for c in message.calls] == [("search", X)]
    assert [defect.kind for defect in message.defects] == ["missing_name"]
    assert not FMT.parse(call(name=""), TOOLS[:1]).calls


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call>sear", []),
        ("<tool_call>search\n<arg_key>que", [""]),
        ("<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>par", ['{"query": "par']),
        ("<tool_call>search\n" + argument(), ['{"query": "x"']),
        ("<tool_call>search\n<arg_key>query</arg_key>\n", [""]),
        ("<tool_call>search\n<arg_key>no key", [""]),
    ],
)
def test_a_call_cut_by_length_stays_cut(text: str, arguments: list[str]) -> None:
    reader = FMT.reader(TOOLS)
    events = [*reader.feed(text), *reader.finish("length")]
    message = dovetail.fold(events)
    assert ([c.arguments for c in message.calls], message.content) == (arguments, "")
    assert not any(isinstance(event, CallEnd) for event in events)
    assert "truncated_call" in [defect.kind for defect in message.defects]


def test_text_behind_a_key_that_is_cut_off_is_content() -> None:
    message = whole.read("glm45", "<tool_call>search\n<arg_key>query</arg_key>words", TOOLS, "length", thinking=False)
    assert (whole.calls(message), message.content) == ([("search", "")], "querywords")
    assert whole.kinds(message) == ["missing_value", "truncated_call"]


SECOND = call("<arg_key>query</arg_key><arg_value>x</arg_value>", name="search")
PLACE = [{"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {}}}}}]
OSLO = '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("text", "tools", "calls", "defects"),
    [
        # another marker stands for the opener of a key, or for its end
        (call("<tool_call>query</arg_key><arg_value>x</arg_value>", name="search"), TOOLS, [("search", X)],
         ["missing_key_start"]),
        (call("\n<tool_call>query</arg_key>\n<arg_value>x</arg_value>\n<tool_call>topn</arg_key>\n<arg_value>3</arg_value>"),
         TOOLS, [("search", '{"query": "x", "topn": 3}')], ["missing_key_start"] * 2),
        (call("<arg_value>query</arg_key><arg_value>x</arg_value>"), TOOLS, [("search", X)], ["missing_key_start"]),
        (call("<arg_key>query<arg_key><arg_value>x</arg_value>"), TOOLS, [("search", X)], ["missing_key_end"]),
        (call("<arg_key>query</arg_value>\n<arg_value>x</arg_value>"), TOOLS, [("search", X)], ["missing_key_end"]),
        (call(argument())[: -len("</tool_call>")] + SECOND, TOOLS, [("search", X)] * 2, ["missing_call_end"]),
        # no key at all
        (call("<arg_value>Oslo</arg_value>", name="get_weather"), PLACE, [("get_weather", OSLO)], ["missing_key"]),
        # names
        (call("<arg_key>city</arg_key><arg_value>Oslo</arg_value>", name="get weather"), PLACE, [("get_weather", OSLO)],
         ["misspelled_name"]),
        ("<tool_call>submit</arg_value>", TOOLS, [("submit", "{}")], ["stray_marker", "missing_arguments"]),
        ("<tool_call>submit</arg_value></tool_call>", TOOLS, [("submit", "{}")], ["stray_marker"]),
    ],
)  # fmt: skip
def test_markers_in_place_of_others(
    text: str, tools: list[dict[str, object]], calls: list[tuple[str, str]], defects: list[str]
) -> None:
    for name in ("glm45", "glm47"):
        message = whole.read(name, text, tools, thinking=False)
        assert (whole.calls(message), message.content, whole.kinds(message)) == (calls, "", defects)


@pytest.mark.parametrize(
    "text", ["use <tool_call>search or <tool_call>query</arg_key> so", "<tool_call>search</arg_value> is wrong"]
)
def test_a_mention_is_no_call(text: str) -> None:
    assert whole.read("glm47", text, TOOLS, thinking=False) == Message(text)


@pytest.mark.parametrize(
    ("cut", "content"), [("<tool_call>sea", ""), ("<tool_call>other", "other"), ("<tool_call>search<arg_key>to", "")]
)
def test_a_later_header_that_is_cut_off_is_no_content(cut: str, content: str) -> None:
    message = whole.read("glm47", SECOND + cut, TOOLS, "length", thinking=False)
    assert (whole.calls(message)[0], message.content) == (("search", X), content)
    assert "truncated_call" in whole.kinds(message)


@pytest.mark.parametrize(
    ("inside", "defect"), [("x" * 2000, "text_in_section"), ("<arg_key>" + "x" * 2000, "endless_header")]
)
def test_text_that_is_too_long_for_a_key_is_content(inside: str, defect: str) -> None:
    message = whole.read("glm47", call(argument("3", "topn"), inside), TOOLS, thinking=False)
    assert (whole.calls(message), message.content) == ([("search", '{"topn": 3}')], "x" * 2000)
    assert whole.kinds(message)[0] == defect


def test_a_doubled_token_in_front_of_a_value_is_dropped() -> None:
    controls = FMT.reader_type.controls
    pieces = re.split("(" + "|".join(map(re.escape, controls)) + ")", call(argument("<arg_value>x")))
    reader = FMT.reader(TOOLS)
    message = dovetail.fold(reader.feed_segments(Segment(piece, piece in controls) for piece in pieces if piece))
    assert (whole.calls(message), whole.kinds(message)) == ([("search", X)], ["stray_marker"])


CALLS = (Call("", "search", '{"query": "x", "topn": 3.0}'), Call("", "submit", "{}"))
WRITTEN = """
<think>hm</think>
Here.
<tool_call>search
<arg_key>query</arg_key>
<arg_value>x</arg_value>
<arg_key>topn</arg_key>
<arg_value>3.0</arg_value>
</tool_call>
<tool_call>submit
</tool_call><|observation|>"""


@pytest.mark.parametrize(("name", "written"), [("glm45", WRITTEN), ("glm47", WRITTEN.replace("\n", "")[7:])])
def test_written_as_the_template_does(name: str, written: str) -> None:
    fmt, newline = dovetail.format(name), "\n" if name == "glm45" else ""
    assert fmt.write(Message("Here.", "hm", CALLS)).text == written
    assert fmt.write(Message("", "hm", CALLS)).text == written.replace(f"{newline}Here.", "")
    read = fmt.parse(written, TOOLS)
    assert (read.content, read.reasoning, read.defects) == ("Here.", "hm", ())
    assert [(c.name, c.arguments) for c in read.calls] == [(c.name, c.arguments) for c in CALLS]
    assert fmt.write(Message("Here."), thinking=False).text == newline + "Here.<|user|>"
