"""MiniMax-M2's calls, and near-misses of them."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import Call, Message
from tests.reading import whole

FMT = dovetail.format("minimax_m2")
PROPERTIES = {"query": {"type": "string"}, "topn": {"type": "integer"}, "note": {"type": ["string", "null"]}}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "submit"}},
]
X = '{"query": "x"}'
SUBMIT = '<invoke name="submit">\n</invoke>\n'


def parameter(value: str = "x", key: str = '"query"', end: str = "</parameter>\n") -> str:
    return f"<parameter name={key}>{value}{end}"


def invoke(*body: str, name: str = '"search"') -> str:
    return f"<invoke name={name}>\n" + "".join(body) + "</invoke>\n"


def section(*calls: str) -> str:
    return "<minimax:tool_call>\n" + "".join(calls) + "</minimax:tool_call>"


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (section(invoke(parameter())), [("search", X)], "", []),
        ("Here.\n" + section(SUBMIT, SUBMIT) + "after", [("submit", "{}")] * 2, "Here.after", []),
        # names without quotes, and with others
        (section(invoke(parameter(key="query"), name="search")), [("search", X)], "", ["attribute_quotes"] * 2),
        (section(invoke(parameter(key="'query'"), name="'search'")), [("search", X)], "", ["attribute_quotes"] * 2),
        (section(invoke(parameter(key='"query" string="true"'))), [("search", X)], "", ["extra_attributes"]),
        (section('<invoke name="submit"/>\n'), [("submit", "{}")], "", ["self_closing_tag"]),
        (section("<invoke name=>\n", "</invoke>\n"), [], section("<invoke name=>\n", "</invoke>\n"), []),
        (section('<invoke id="1" name="search">', '<parameter  name="query">x</parameter>', "</invoke>"),
         [("search", X)], "", ["extra_attributes"]),
        (section("<invoke\nname='search'>", '<parameter\tname = "query" >x</parameter>', "</invoke>"),
         [("search", X)], "", ["attribute_quotes"]),
        (section('<invoke  name="search"\n', '<parameter id=1 name="query"\nx</parameter>', "</invoke>"),
         [("search", X)], "", ["unclosed_tag"] * 2),
        (section('<invoke name="search" - id="1" ;>', '<parameter , name="query">x</parameter>', "</invoke>"),
         [("search", X)], "-  ;,", ["extra_attributes", "text_in_section", "text_in_section"]),
        (section("<invoke search>", "<parameter query>x</parameter>", "</invoke>"), [("search", X)], "",
         ["missing_attribute"] * 2),
        (section('<invoke name="submit"><parameters></parameters></invoke>'), [],
         section('<invoke name="submit"><parameters></parameters></invoke>'), []),
        (section("<invoked>", SUBMIT), [("submit", "{}")], "<minimax:tool_call>\n<invoked>", ["missing_section"]),
        (section(invoke(parameter('a\n<parameter x>\n<invoke\nb'))),
         [("search", '{"query": "a\\n<parameter x>\\n<invoke\\nb"}')], "", []),
        (section('<invoke name="search"\n', parameter(), "</invoke>"), [("search", X)], "", ["unclosed_tag"]),
        # ends that are missing
        (section(invoke(parameter(end="\n"))), [("search", X)], "", ["missing_parameter_end"]),
        (section(invoke(parameter(end="\n"), parameter("3", '"topn"'))), [("search", '{"query": "x", "topn": 3}')], "",
         ["missing_parameter_end"]),
        (section('<invoke name="search">\n', parameter()), [("search", X)], "", ["missing_call_end"]),
        (section('<invoke name="search">\n', parameter(), SUBMIT), [("search", X), ("submit", "{}")], "",
         ["missing_call_end"]),
        ("<minimax:tool_call>\n" + SUBMIT + "[e~[", [("submit", "{}")], "", ["missing_section_end"]),
        # without a section, and only if a tool is named
        ("a " + invoke(parameter()) + "b", [("search", X)], "a \nb", ["missing_section"]),
        (invoke(parameter()) + SUBMIT + "</minimax:tool_call>", [("search", X), ("submit", "{}")], "",
         ["missing_section"]),
        ("<invoke name=search ;>\n</invoke>", [], "<invoke name=search ;>\n</invoke>", []),
        (SUBMIT + '<invoke id="1" name="submit">', [("submit", "{}")], '\n<invoke id="1" name="submit">',
         ["missing_section"]),
        ('see <invoke  name="submit">', [], 'see <invoke  name="submit">', []),
        ('see <invoke name="find"> and <invoke name="', [], 'see <invoke name="find"> and <invoke name="', []),
        # bodies and values
        (section(invoke('{"query": "x"}')), [("search", X)], "", ["json_arguments"]),
        (section(invoke(parameter("\na </invoke> b\n"))), [("search", '{"query": "\\na </invoke> b\\n"}')], "", []),
        (section(invoke(parameter("null", '"note"'))), [("search", '{"note": null}')], "", []),
        (section(invoke(parameter("one", '"topn"'))), [("search", '{"topn": "one"}')], "", ["invalid_value"]),
        (section(invoke(parameter(), parameter("y"))), [("search", '{"query": "x", "query": "y"}')], "",
         ["duplicate_parameter"]),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, calls: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    message = whole.read("minimax_m2", text, TOOLS, thinking=False)
    assert (whole.calls(message), message.content, whole.kinds(message)) == (calls, content, defects)


def test_written_as_the_template_does() -> None:
    calls = (Call("", "search", '{"query": "x", "topn": 3.0}'), Call("", "submit", "{}"))
    written = (
        '\nhm\n</think>\n\nHere.\n<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">x</parameter>\n'
        '<parameter name="topn">3.0</parameter>\n</invoke>\n<invoke name="submit">\n</invoke>\n'
        "</minimax:tool_call>[e~["
    )
    answer = Message("Here.", "\nhm", calls)
    assert FMT.write(answer, thinking=True).text == written
    assert FMT.write(Message("Hi."), thinking=False).text == "Hi.[e~["
    read = FMT.parse(written, TOOLS)  # the prompt ends in `<think>` and a newline
    assert (read.content, read.reasoning, read.defects) == ("Here.", "\nhm", ())
    assert FMT.parse("<think>\n" + written[1:], TOOLS, thinking=False).reasoning == "hm"
