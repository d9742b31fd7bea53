"""Near-misses of calls whose parameters are tags, as models write them: in every family that can have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dovetail
from dovetail.events import Call, CallArguments, CallEnd, Message
from dovetail.reading.parameter_reader import ParameterReader
from tests.reading import whole

STRING = {"type": "string"}
PARAMETERS: dict[str, Any] = {
    "get_weather": {"properties": {"city": STRING, "days": {"type": "integer"}}, "required": ["city"]},
    "write_file": {"properties": {"path": STRING, "content": STRING}, "required": ["path", "content"]},
    "note": {"properties": {"text": STRING}},
    "free": {"properties": {"text": STRING}, "additionalProperties": True},
    "ping": {"properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}
    for name, schema in PARAMETERS.items()
]
QWEN = ("qwen3_coder", "nemotron_v3", "step3p5")
OSLO = [("get_weather", '{"city": "Oslo"}')]
ROM = [*OSLO, ("get_weather", '{"city": "Rom"}')]


def read(
    name: str, text: str, reason: str = "stop", tools: Any = TOOLS
) -> tuple[list[tuple[str, str]], str, list[str]]:
    message = whole.read(name, text, tools, reason, thinking=False)
    return whole.calls(message), message.content, whole.kinds(message)


def qwen(*parameters: str, name: str = "get_weather", end: str = "</function>\n", opener: str = "") -> str:
    return (opener or f"<function={name}>\n") + "".join(parameters) + end


def value(text: str, key: str = "city", end: str = "\n</parameter>\n") -> str:
    return f"<parameter={key}>\n{text}{end}"


def section(*calls: str) -> str:
    return "<tool_call>\n" + "".join(calls) + "</tool_call>"


# -- closing tags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize(
    "end",
    [
        *("</parameter/>", "</parameter1>", "</parameter_function>", "</parameters>", "</parameter", "</parameter >"),
        "</city>",
    ],
)
def test_a_misspelled_closing_tag(name: str, end: str) -> None:
    for after in ("\n", "\r\n"):
        output = section(qwen(value("Oslo", end="\n" + end + after), value("3", "days")))
        assert read(name, output) == ([("get_weather", '{"city": "Oslo", "days": 3}')], "", ["misspelled_marker"])
    output = section(qwen(value("Oslo", end="\n" + end + "\n")))
    assert read(name, output) == (OSLO, "", ["misspelled_marker"])


@pytest.mark.parametrize(
    "text",
    [
        "a</parameter1>b",
        "a\n</parameter/>\nb",
        "a</parameter ",
        "a</parameter\nb",
        "a</city>\n</city>",
        "a</parameter1></function></tool_call>b",
        "</parameterless thing> and </parameter",
        "<parameter=x>",
        "see <parameter=x>1</parameter> here",
        "a </parameter> b",
        "a</parameter></function> b",
        "<parameter=x>1</parameter>",
        "a\n<parameter=x>\n1\n</parameter>\nb",
        "a\n<parameter=x>\n1\n</parameter>",
        "a\n<parameter=x>\n1\n</parameter>\n<parameter=y>\n2\n</parameter>",
        "<tool_call> has <parameter=x>1</parameter>",
    ],
)
def test_closing_tags_and_whole_parameters_that_are_text(text: str) -> None:
    output = section(qwen(value(text), value("3", "days")))
    assert read("qwen3_coder", output) == ([("get_weather", json.dumps({"city": text, "days": 3}))], "", [])


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="content">{}</parameter>\n'
         '<parameter name="path">a</parameter>\n</invoke>\n</minimax:tool_call>'),
        ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n'
         '<｜DSML｜parameter name="content" string="true">{}</｜DSML｜parameter>\n'
         '<｜DSML｜parameter name="path" string="true">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
         "</｜DSML｜tool_calls>"),
        ("glm47", "<tool_call>write_file<arg_key>content</arg_key><arg_value>{}</arg_value><arg_key>path</arg_key>"
         "<arg_value>a</arg_value></tool_call>"),
        ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|>'
         '<|open|>argument key="content" type="string"<|sep|>{}<|close|>argument<|sep|>'
         '<|open|>argument key="path" type="string"<|sep|>a<|close|>argument<|sep|><|close|>call<|sep|>'
         "<|close|>tools<|sep|>"),
        ("minicpm5", '<function name="write_file"><param name="content">{}</param><param name="path">a</param>'
         "</function>"),
        ("seed_oss", "<seed:tool_call>\n<function=write_file>\n<parameter=content>{}</parameter>\n"
         "<parameter=path>a</parameter>\n</function>\n</seed:tool_call>"),
        ("muse", ' to=write_file<|message|><atem:function_calls>\n<atem:invoke name="write_file">\n'
         '<atem:parameter name="content">{}</atem:parameter>\n<atem:parameter name="path">a</atem:parameter>\n'
         "</atem:invoke>\n</atem:function_calls><|eot|>"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["It ends with {} each time.", "a {}\nb\n{}\nc"])
def test_a_value_with_its_own_closing_tag_in_it(name: str, output: str, text: str) -> None:
    reader = dovetail.format(name).reader()
    assert isinstance(reader, ParameterReader)
    end = reader.parameter_end + reader.after_parameter_end
    text = text.replace("{}", end)
    ((_, arguments),), content, _ = read(name, output.replace("{}", text, 1))
    assert (json.loads(arguments), content) == ({"content": text, "path": "a"}, "")


def test_a_nested_parameter_ends_before_the_value_does() -> None:
    text = "<parameter>\n  <hello></hello>\n</parameter>\n"
    output = (
        f'<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="content">{text}</parameter>\n'
        '<parameter name="path">a</parameter>\n</invoke>\n</minimax:tool_call>'
    )
    assert read("minimax_m2", output)[0] == [("write_file", json.dumps({"content": text, "path": "a"}))]


@pytest.mark.parametrize(
    ("output", "calls", "content", "defects"),
    [
        # a tag that is no parameter's is one if nothing closes the value behind it
        (section(qwen(value("a", "text", "\n"), value("1", "more"), name="note")),
         [("note", '{"text": "a", "more": 1}')], "", ["missing_parameter_end"]),
        (section(qwen(value("a", "text", "\n"), "<parameter=more>\n1\n", name="note")),
         [("note", '{"text": "a", "more": 1}')], "", ["missing_parameter_end"] * 2),
        (section(qwen(value("a", "text", "\n"), value("1", "more"), name="free")),
         [("free", '{"text": "a", "more": 1}')], "", ["missing_parameter_end"]),
        (section(qwen(value("a", "text", "\n"), value("1", "x" * 300), name="note")),
         [("note", json.dumps({"text": "a", "x" * 300: 1}))], "", ["missing_parameter_end"]),
        # whitespace without an end, text without one
        (section(qwen(value("a", "text", "\n</parameter>" + " " * 2000), name="note")),
         [("note", json.dumps({"text": "a\n</parameter>" + " " * 2000 + "</function>"}))], "",
         ["missing_parameter_end", "missing_call_end"]),
        (section(qwen(value("a", "text", "</parameter></function> b"), name="note", end="\n</function>")),
         [("note", '{"text": "a"}')], "b\n", ["text_in_section", "stray_marker"]),
        # doubled
        (section(qwen(value("Oslo", end="\n</parameter>\n</parameter>\n"))), OSLO, "", ["stray_marker"]),
        (section(qwen(value("Oslo"), end="</function>\n</function>\n</function_invocation>\n")), OSLO, "",
         ["stray_marker", "misspelled_marker", "stray_marker"]),
        (section(qwen(value("Oslo"), end="</function_invocation>\n")), OSLO, "", ["misspelled_marker"]),
        (section(qwen(value("Oslo"))).replace("</tool_call>", "</tool_calls>"), OSLO, "", ["misspelled_marker"]),
        (section(qwen(value("3", "days", "\n</parameter1>\n"))), [("get_weather", '{"days": 3}')], "",
         ["misspelled_marker"]),
        (section(qwen("<parameter=days>3<parameter=city>Oslo</parameter>")),
         [("get_weather", '{"days": 3, "city": "Oslo"}')], "", ["missing_parameter_end"]),
    ],
)  # fmt: skip
def test_what_ends_a_value(output: str, calls: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    assert read("qwen3_coder", output) == (calls, content, defects)


def test_a_wrong_closing_tag_of_minimax() -> None:
    for end in ("</content>", "\n</content>"):
        output = (
            f'<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="content">text{end}\n'
            '<parameter name="path">a</path>\n</invoke>\n</minimax:tool_call>'
        )
        expected = [("write_file", '{"content": "text", "path": "a"}')]
        assert read("minimax_m2", output) == (expected, "", ["misspelled_marker"] * 2)


def test_closing_tags_cost_the_same_each() -> None:
    """Seen in the work that a longer value makes, and in how little of it is held back."""
    reader = dovetail.format("qwen3_coder").reader(TOOLS, thinking=False)
    reader.feed("<tool_call>\n<function=note>\n<parameter=text>\n")
    shown = 0
    text = "</parameter> x <parameter=a> </parameter1> </text> " * 2000
    for at in range(0, len(text), 7):
        events = reader.feed(text[at : at + 7])
        shown += sum(len(event.fragment) for event in events if isinstance(event, CallArguments))
        assert at - shown < 1100
    end = reader.finish()
    assert isinstance(end[0], CallArguments)


def test_an_open_tag_in_a_value() -> None:
    arguments = {"content": "a <|open|>argument b", "path": "c > d"}
    fmt = dovetail.format("kimi_k3")
    output = fmt.write(Message(calls=(Call("", "write_file", json.dumps(arguments)),)), thinking=False).text
    calls, _, defects = read("kimi_k3", output)
    assert ([json.loads(given) for _, given in calls], defects) == ([arguments], [])


def test_two_values_in_a_value() -> None:
    text = "<arg_value>x</arg_value><arg_value>y</arg_value>"
    output = f"<tool_call>note<arg_key>text</arg_key><arg_value>{text}</arg_value></tool_call>"
    calls, content, _ = read("glm47", output)
    assert (calls, content) == ([("note", '{"text": "<arg_value>x"}')], "y")


@pytest.mark.parametrize(
    ("name", "opener"),
    [
        *(("qwen3_coder", opener) for opener in ("<tool_call>", "<parameter=x>", "<function=ping")),
        *(("deepseek_v4", opener) for opener in ("<｜DSML｜tool_calls>", "<|DSML|invoke ", "<｜｜DSML｜｜calls>")),
        ("minimax_m2", "<tool_call>"),
    ],
)
def test_openers_alone_are_text(name: str, opener: str) -> None:
    text = opener * 60 + "."
    assert read(name, text)[:2] == ([], text)


# -- opening tags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize(
    ("output", "calls", "content", "defects"),
    [
        (section(qwen(value("Oslo"), opener="<parameter=get_weather>\n")), OSLO, "", ["misspelled_marker"]),
        (section("<parameter=ping>\n</function>\n", qwen(value("Oslo"), opener="<parameter=get_weather>\n")),
         [("ping", "{}"), *OSLO], "", ["misspelled_marker"] * 2),
        ("So.\n<parameter=ping>\n</function>\n" + qwen(value("Oslo"), opener="<parameter=get_weather>\n")
         + "</tool_call>", [("ping", "{}"), *OSLO], "So.\n",
         ["missing_section", "misspelled_marker", "misspelled_marker"]),
        (section(qwen(value("Oslo"), value("Rom", end="\n</parameter>\n").join(("<parameter=get_weather>\n", "")))),
         ROM, "", ["missing_call_end", "misspelled_marker"]),
        ("see <parameter=city>\nOslo\n</parameter>", [], "see <parameter=city>\nOslo\n</parameter>", []),
        ("see <parameter=ping> for it", [], "see <parameter=ping> for it", []),
        (section("<function=get_weather city=\"Oslo\">\n</function>\n"), OSLO, "", ["extra_attributes"]),
        (section("<function=get_weather city=Oslo id='1'>\n</function>\n"), OSLO, "", ["extra_attributes"]),
        ('<function=get_weather city="Oslo">\n</function>', OSLO, "", ["missing_section", "extra_attributes"]),
        (section(qwen("<parameter=city=Oslo</parameter>\n")), OSLO, "", ["unclosed_tag"]),
        (section(qwen("<parameter=city=Oslo>\n</parameter>\n")), OSLO, "", ["unclosed_tag"]),
        (section(qwen('<parameter=city="Oslo">\n')), OSLO, "", ["unclosed_tag", "missing_parameter_end"]),
        (section(qwen("<parameter=city=Os>lo</parameter>\n")), [("get_weather", '{"city": "Os>lo"}')], "",
         ["unclosed_tag"]),
        (section(qwen("<parameter=city=Os\nlo</parameter>\n")), [("get_weather", '{"city": "Os\\nlo"}')], "",
         ["unclosed_tag"]),
        (section(qwen("<parameter=town=Oslo>x</parameter>\n")), [("get_weather", '{"town=Oslo": "x"}')], "", []),
    ],
)  # fmt: skip
def test_misspelled_opening_tags(
    name: str, output: str, calls: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    assert read(name, output) == (calls, content, defects)


def test_a_value_in_its_tag_at_the_end() -> None:
    assert read("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city=Oslo>") == (
        OSLO,
        "",
        ["unclosed_tag", "missing_call_end", "missing_section_end"],
    )


def test_the_only_tool_may_have_a_parameter_of_its_name() -> None:
    tools = [{"type": "function", "function": {"name": "text", "parameters": PARAMETERS["note"]}}]
    output = section(value("a", "text"), "</function>\n")
    assert read("qwen3_coder", output, tools=tools) == ([("text", '{"text": "a"}')], "", ["missing_name"])


@pytest.mark.parametrize("name", ["qwen3_coder", "nemotron_v3"])
def test_indented_tags(name: str) -> None:
    output = section(qwen(value("Oslo"), value("3", "days"))).replace("\n", "\n ")
    assert read(name, output) == ([("get_weather", '{"city": "Oslo", "days": 3}')], "", ["indented_value"] * 2)
    code = "def f():\n    return 1\n "
    output = (
        f"<tool_call>\n  <function=note>\n    <parameter=text>\n{code}\n    </parameter>\n  </function>\n</tool_call>"
    )
    assert read(name, output) == ([("note", json.dumps({"text": code}))], "", ["indented_value"])
    output = output.replace(code, "    a\n      b\n  c\n  ")
    assert read(name, output)[0] == [("note", json.dumps({"text": "a\n  b\n  c\n  "}))]


@pytest.mark.parametrize("name", ["qwen3_coder", "step3p5"])
def test_lines_that_end_in_crlf(name: str) -> None:
    output = section(qwen(value("Oslo\r\n2"))).replace("\n", "\r\n").replace("\r\r", "\r")
    assert read(name, output) == ([("get_weather", '{"city": "Oslo\\r\\n2"}')], "", ["carriage_return"])
    output = section(qwen(value("Oslo\r")))
    assert read(name, output) == ([("get_weather", '{"city": "Oslo\\r"}')], "", [])
    output = section(qwen(value("Oslo", end="\n</city>\n"))).replace("\n", "\r\n")
    assert read(name, output) == (OSLO, "", ["carriage_return", "misspelled_marker"])


# -- two languages ----------------------------------------------------------------------------------------------------

JSON = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
TAGS = "<function=get_weather>\n<parameter=city>\nRom\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("name", "opener", "end"),
    [
        *((name, "<tool_call>\n", "\n</tool_call>") for name in (*QWEN, "mimo", "hermes", "qwen3")),
        ("seed_oss", "<seed:tool_call>", "</seed:tool_call>"),
    ],
)
def test_json_and_tags_between_the_same_markers(name: str, opener: str, end: str) -> None:
    tags = TAGS.replace(">\nRom\n<", ">Rom<") if name in ("mimo", "seed_oss") else TAGS
    for calls in ([JSON, tags], [tags, JSON], [JSON, tags, JSON]):
        found, content, defects = read(name, "\n".join(opener + call + end for call in calls))
        assert found == [OSLO[0] if call == JSON else ROM[1] for call in calls]
        assert (content, {*defects}) == ("", {"other_syntax"})


def test_a_list_of_json_in_tags() -> None:
    assert read("qwen3_coder", f"<tool_call>[{JSON}, {JSON}]</tool_call>")[0] == OSLO * 2
    assert read("minimax_m2", f"<minimax:tool_call>{JSON}</minimax:tool_call>") == (OSLO, "", ["other_syntax"])
    assert read("deepseek_v4", f"<｜DSML｜tool_calls>{JSON}</｜DSML｜tool_calls>") == (OSLO, "", ["other_syntax"])


@pytest.mark.parametrize("name", ["qwen3_coder", "hermes"])
def test_text_between_the_markers_is_no_call(name: str) -> None:
    for text in (
        "<tool_call> {a} </tool_call> is",
        "<tool_call> <b> </tool_call> is",
        "<tool_call> [1] is",
        "<tool_call> <",
    ):
        assert read(name, "So " + text + " it.") == ([], "So " + text + " it.", [])


# -- other spellings --------------------------------------------------------------------------------------------------


def dsml(token: str, section: str, *, closing: str | None = None, space: str = "") -> str:
    opens, ends = f"<{token}{space}", f"</{token if closing is None else closing}{space}"
    return (
        f'{opens}{section}>\n{opens}invoke name="get_weather">\n{opens}parameter name="city" string="true">Oslo'
        f'{ends}parameter>\n{opens}parameter name="days" string="false">3{ends}parameter>\n{ends}invoke>\n'
        f'{opens}invoke name="get_weather">\n{opens}parameter name="city" string="true">Rom{ends}parameter>\n'
        f"{ends}invoke>\n{ends}{section}>"
    )


DSML_CALLS = [("get_weather", '{"city": "Oslo", "days": 3}'), ROM[1]]


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
@pytest.mark.parametrize(
    "output",
    [
        *(
            dsml("｜DSML｜", section)
            for section in ("function_calls", "tool_calls", "calls", "toolcalls", "_tool_calls")
        ),
        *(dsml("｜DSML｜", "toolcall", space=space) for space in ("", " ")),
        *(dsml(token, "tool_calls") for token in ("｜｜DSML｜｜", "|DSML|", "||DSML||", "|DSML｜", "｜DSML|", "")),
        dsml("|DSML|", "tool_calls", closing="｜DSML｜"),
        dsml("", "function_calls", closing="｜｜DSML｜｜"),
        dsml("", "tool_calls").partition("\n")[2].rpartition("\n")[0],
        dsml("｜｜DSML｜｜", "tool_calls").partition("\n")[2],
    ],
)
def test_dsml_in_other_spellings(name: str, output: str) -> None:
    calls, content, defects = read(name, "So.\n\n" + output)
    assert (calls, content.rstrip("\n")) == (DSML_CALLS, "So.")
    assert {*defects} <= {"misspelled_marker", "missing_section"}


def test_dsml_in_tokens_of_the_model() -> None:
    fmt = dovetail.format("deepseek_v4")
    reader = fmt.reader(TOOLS, thinking=True)
    message = dovetail.fold([*reader.feed("hm" + dsml("｜DSML｜", "function_calls")), *reader.finish()])
    assert (message.reasoning, whole.calls(message)) == ("hm", DSML_CALLS)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('<function>\n<name>get_weather</name>\n<parameter name="city" string="true">Oslo</｜｜DSML｜｜parameter>\n'
         "</｜｜DSML｜｜invoke>\n</｜｜DSML｜｜tool_calls>", OSLO, ""),
        ("see <function> there", [], "see <function> there"),
        ("see <invoke name=\"x\"> and <tool_calls> and <|DSML|invoke name=\"get_weather\"> so", [], None),
        ("Hi.\n\n<｜DSML｜tool_ca", [], "Hi."),
        ("Hi <", [], "Hi <"),
        ("Hi < x <｜DSML｜", [], "Hi < x "),
        (dsml("｜DSML｜", "tool_calls").replace("3</｜DSML｜parameter>\n", "3\n"), DSML_CALLS, ""),
        (dsml("｜DSML｜", "tool_calls").replace("Rom</｜DSML｜parameter>", "Rom</｜DSML｜parameter"), DSML_CALLS, ""),
    ],
)  # fmt: skip
def test_dsml_near_misses(text: str, calls: list[tuple[str, str]], content: str | None) -> None:
    found, shown, _ = read("deepseek_v4", text)
    assert (found, shown) == (calls, text if content is None else content)


def test_values_of_misspelled_tags_may_have_closing_tags_in_them() -> None:
    text = "a </|DSML|parameter> b </parameter> c " * 100
    output = dsml("|DSML|", "tool_calls").replace("Rom", text)
    assert read("deepseek_v4", output)[0][1] == ("get_weather", json.dumps({"city": text}))


def test_a_section_of_minimax_without_its_prefix() -> None:
    output = (
        '<tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n</tool_call>'
    )
    for before in ("", "So.\n"):
        assert read("minimax_m2", before + output) == (OSLO, before.strip(), ["misspelled_marker"] * 2)
    assert read("minimax_m2", "The <tool_call> tag.") == ([], "The <tool_call> tag.", [])
    output = '<minimax:tool_call>\n<invoke name="get_weather" city="Oslo" id="1">\n</invoke>\n</minimax:tool_call>'
    assert read("minimax_m2", output) == (OSLO, "", ["extra_attributes"])


# -- outputs that are cut off -----------------------------------------------------------------------------------------

OPENED = "<tool_call>\n<function=get_weather>\n"


@pytest.mark.parametrize(
    ("name", "text", "reason", "calls", "ended"),
    [
        ("qwen3_coder", OPENED + value("Oslo"), "length", OSLO, True),
        ("qwen3_coder", OPENED + value("Oslo") + "</func", "length", OSLO, True),
        ("qwen3_coder", OPENED + value("Oslo") + "<param", "length", [("get_weather", '{"city": "Oslo"')], False),
        ("qwen3_coder", OPENED + value("3", "days"), "length", [("get_weather", '{"days": 3')], False),
        ("qwen3_coder", OPENED.replace("get_weather", "note") + value("x", "text"), "length",
         [("note", '{"text": "x"')], False),
        ("qwen3_coder", OPENED + value("Oslo", end="\n</parameter"), "stop", OSLO, True),
        ("qwen3_coder", OPENED + value("Oslo", end="\n</parame"), "length", OSLO, True),
        ("qwen3_coder", OPENED + value("Oslo", end="\n</par"), "length", [("get_weather", '{"city": "Oslo\\n</par')],
         False),
        ("qwen3_coder", OPENED + value("Oslo", end="</parameter1"), "stop", OSLO, True),
        ("qwen3_coder", OPENED + value("Oslo") + "</function>\n</tool", "stop", OSLO, True),
        ("deepseek_v4", dsml("｜DSML｜", "tool_calls").partition("</｜DSML｜parameter>")[0] + "</｜DSML｜par", "stop",
         OSLO, True),
        ("deepseek_v4", dsml("｜DSML｜", "tool_calls").partition("</｜DSML｜parameter>")[0] + "</｜DSML｜par", "length",
         OSLO, True),
    ],
)  # fmt: skip
def test_outputs_that_are_cut_off(name: str, text: str, reason: str, calls: list[tuple[str, str]], ended: bool) -> None:
    found, content, defects = read(name, text, reason)
    assert (found, content) == (calls, "")
    reader = dovetail.format(name).reader(TOOLS, thinking=False)
    events = [*reader.feed(text), *reader.finish(reason)]
    assert any(isinstance(event, CallEnd) for event in events) is ended
    assert reason == "stop" or "truncated_call" in defects


@pytest.mark.parametrize("before", [OPENED + value("Oslo"), OPENED + value("Oslo") + "</function>\n"])
def test_a_tag_that_is_cut_off(before: str) -> None:
    calls, content, defects = read("qwen3_coder", before + "<parameter=da", "length")
    assert ([name for name, _ in calls], content, defects[0]) == (["get_weather"], "", "unclosed_tag")


@pytest.mark.parametrize(("name", "outer"), [("mimo", "tool_call"), ("seed_oss", "seed:tool_call")])
def test_near_misses_where_newlines_around_a_value_are_its_own(name: str, outer: str) -> None:
    for end in ("</parameter/>", "</parameter1>", "</city>", "</parameter"):
        output = f"<{outer}>\n<parameter=get_weather>\n<parameter=city>\nOslo\n{end}\n</function>\n</{outer}>"
        newline = "" if end == "</city>" else "\n"
        expected = [("get_weather", json.dumps({"city": "\nOslo" + newline}))]
        assert read(name, output) == (expected, "", ["misspelled_marker"] * 2)


@pytest.mark.parametrize("name", QWEN)
def test_a_tag_that_is_cut_off_behind_many_mistakes(name: str) -> None:
    text = "<tool_call>\n" + "</parameter>\n" * 4 + "<function"
    assert read(name, text) == ([], text, [])
    assert read(name, text, "length") == ([], "", ["truncated_call"])


@pytest.mark.parametrize(("empty", "called"), [(8, True), (9, False)])
def test_an_unknown_call_before_many_empty_sections_is_text(empty: int, called: bool) -> None:
    """So that not all of them are read again at each call."""
    unknown = section(qwen(name="unheard"))
    calls, content, _ = read("qwen3_coder", unknown + ("\n" + section()) * empty)
    assert calls == ([("unheard", "{}")] if called else [])
    assert content.startswith(unknown) is not called
