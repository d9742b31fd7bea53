"""MiniMax-M3's calls, and near-misses of them. `#` stands for the control token in front of each tag."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import Call, CallEnd, Message
from dovetail.reading.values import ANY, ParameterTypes
from tests.reading import whole

FMT = dovetail.format("minimax_m3")
PROPERTIES = {
    "query": {"type": "string"},
    "topn": {"type": "integer"},
    "more": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/list"}}},
    "list": {"$ref": "#/$defs/list"},
    "note": {"type": ["string", "null"]},
    "any": {},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"list": {"anyOf": [{"type": "array", "items": {"type": "integer"}}]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "submit"}},
]
X = '{"query": "x"}'
QUERY = "#<query>x#</query>"


def call(inside: str = QUERY, tag: str = '<invoke name="search">', end: str = "#</invoke>\n") -> str:
    return f"#{tag}{inside}{end}"


def in_marks(text: str) -> str:
    return text.replace("#", "]<]minimax[>[")


def section(*calls: str) -> str:
    return "#<tool_call>\n" + "".join(calls) + "#</tool_call>"


CASES = [
    (section(call()), [("search", X)], "", []),
    (section(call(), call("", '<invoke name="submit">')), [("search", X), ("submit", "{}")], "", []),
    ("Here. " + section(call()) + " after", [("search", X)], "Here.  after", []),
    (section(call()) + "\n" + section(call()), [("search", X)] * 2, "", []),
    # values by their types
    (section(call("#<topn> 3 #</topn>#<note>null#</note>#<any>[1, \"a\"]#</any>")),
     [("search", '{"topn": 3, "note": null, "any": [1, "a"]}')], "", []),
    (section(call("#<more>#<a>3#</a>#<b>#<item>1#</item>#<item>2#</item>#</b>#</more>")),
     [("search", '{"more": {"a": "3", "b": [1, 2]}}')], "", []),
    (section(call("#<more>\n  #<a>x#</a>\n#</more>\n")), [("search", '{"more": {"a": "x"}}')], "", []),
    (section(call("#<any>#<item>a#</item>#</any>#<any2>#<k>1#</k>#</any2>")),
     [("search", '{"any": ["a"], "any2": {"k": 1}}')], "", []),
    (section(call("#<query>#</query>#<more>#</more>#<list>#</list>#<topn>#</topn>#<any>#</any>")),
     [("search", '{"query": "", "more": {}, "list": [], "topn": "", "any": ""}')], "", ["missing_value"]),
    (section(call('#<more>{"a": "x"}#</more>')), [("search", '{"more": {"a": "x"}}')], "", []),
    (section(call("#<topn>three#</topn>")), [("search", '{"topn": "three"}')], "", ["invalid_value"]),
    # names
    (section(call(tag="<invoke name='search'>")), [("search", X)], "", ["attribute_quotes"]),
    (section(call(tag='<invoke name="rm">')), [("rm", X)], "", ["unknown_name"]),
    (section(call("", "<invoke id=3>")), [], section(call("", "<invoke id=3>")), []),
    # ends
    (section(call(end="")), [("search", X)], "", ["missing_call_end"]),
    (section(call(end=""), call()), [("search", X)] * 2, "", ["missing_call_end"]),
    (section(call("#<query>x")), [("search", X)], "", ["missing_parameter_end"]),
    (section(call("#<query>x#<topn>3#</topn>")), [("search", '{"query": "x", "topn": 3}')], "",
     ["missing_parameter_end"]),
    (section(call("#<more>#<a>x#</a>")), [("search", '{"more": {"a": "x"}}')], "", ["missing_parameter_end"]),
    (section(call("#<topn>#<query>x#</query>#</topn>")), [("search", '{"topn": {"query": "x"}}')], "", []),
    (section(call("#<note>#</query>")), [("search", '{"note": ""}')], "</query>",
     ["missing_parameter_end", "text_in_section"]),
    (section(call("#<query>x#</other>")), [("search", X)], "</other>", ["missing_parameter_end", "text_in_section"]),
    (section(call("#<list>#<item>1#</item>#<other>2")), [("search", '{"list": [1]}')], "<other>2",
     ["text_in_section", "text_in_section", "missing_parameter_end"]),
    ("#<tool_call>\n" + call(), [("search", X)], "", ["missing_section_end"]),
    ("#<tool_call>\n" + call() + "[e~[", [("search", X)], "", ["missing_section_end"]),
    ("#<tool_call>\n" + call(end="") + "[e~[", [("search", X)], "", ["missing_call_end", "missing_section_end"]),
    ("#<tool_call>\n" + call("#<query>x", end="") + "[e~[", [("search", X)], "",
     ["missing_parameter_end", "missing_call_end", "missing_section_end"]),
    (section("#<tool_call>", call()), [("search", X)], "", ["stray_marker"]),
    (section(call(), "#<tool_call>", call()), [("search", X)] * 2, "", ["missing_section_end"]),
    (section(), [], "", ["empty_section"]),
    # without a section
    (call() + "a", [("search", X)], "\na", ["missing_section"]),
    (call(end="") + "#</tool_call>", [("search", X)], "", ["missing_section", "missing_call_end"]),
    # what is no tag
    (section("#junk", call()), [("search", X)], "#<tool_call>\n#junk\n#</tool_call>", ["missing_section"]),
    (section(call("#x>" + QUERY)), [], section(call("#x>" + QUERY)), []),
    (section(call("#<>" + QUERY)), [("search", X)], "<>", ["text_in_section"]),
    (section(call("#<topn>#x>3#</topn>")), [("search", '{"topn": "x>3"}')], "", ["unclosed_tag", "invalid_value"]),
    (section(call("#<query>#a#b#</query>#<topn>#3#</topn>")), [("search", '{"query": "a#b", "topn": 3}')], "",
     ["unclosed_tag"] * 3),
    (section(call("#<query>#</query>#<query>#<topn>3#</topn>")),
     [("search", '{"query": "", "query": "", "topn": 3}')], "",
     ["duplicate_parameter", "missing_parameter_end"]),
    (section(call("words " + QUERY)), [], section(call("words " + QUERY)), []),
    (section(call(QUERY + QUERY)), [("search", '{"query": "x", "query": "x"}')], "", ["duplicate_parameter"]),
    ("a#b", [], "a#b", []),
    # cut off
    ("#<invoke name=", [], "#<invoke name=", []),
    ("#<tool_call>\n#<invoke name=", [], "#<tool_call>\n#<invoke name=", []),
    ("#<tool_call>\n#<invoke name=\"search\">#<query>a", [("search", '{"query": "a')], "",
     ["truncated_call", "missing_section_end"]),
    ("#<tool_call>\n#<invoke name=\"search\">#<topn>1", [("search", '{"topn": 1')], "",
     ["truncated_call", "missing_section_end"]),
    ('#<invoke name="', [], '#<invoke name="', []),
    # reasoning
    ("</mm:think>" + section(call()), [("search", X)], "", []),
    ("a</mm:think>b", [], "ab", ["stray_marker"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls", "content", "defects"), CASES)
def test_calls(text: str, calls: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = whole.read("minimax_m3", in_marks(text), TOOLS, thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == [(n, in_marks(arguments)) for n, arguments in calls]
    assert (message.content, [defect.kind for defect in message.defects]) == (in_marks(content), defects)


def test_a_call_that_was_cut_off_may_be_repaired() -> None:
    text = in_marks('#<tool_call>\n#<invoke name="search">#<more>#<b>#<item>1')
    message = FMT.parse(text, TOOLS, repair_arguments=True, reason="length")
    assert [call.arguments for call in message.calls] == ['{"more": {"b": [1]}}']


def test_what_spells_a_marker_in_a_value_is_text() -> None:
    text = in_marks(section(call("#<query>a[e~[b#</query>")))
    message = whole.read("minimax_m3", text, TOOLS, thinking=False)
    assert [call.arguments for call in message.calls] == ['{"query": "a[e~[b"}'] and not message.defects


def test_a_call_that_was_cut_off_between_parameters_does_not_end() -> None:
    text = in_marks('#<tool_call>\n#<invoke name="search">#<query>x#</query>')
    message = whole.read("minimax_m3", text, TOOLS, "length", thinking=False)
    assert [defect.kind for defect in message.defects] == ["truncated_call", "missing_section_end"]


def test_reasoning_comes_first() -> None:
    text = "<mm:think>Hm.</mm:think>Here." + in_marks(section(call()))
    assert FMT.parse(text, TOOLS) == Message("Here.", "Hm.", (Call("call_0", "search", X),))


def test_types_inside_of_parameters() -> None:
    types = ParameterTypes(SCHEMA)
    assert types.inside("more")["a"] == {"string"}
    assert types.inside("list").of_items() == types.inside("more").inside("b").of_items() == {"integer"}
    assert types.inside("list").inside(None)["x"] == types.inside("nowhere")["x"] == types.of_items() == ANY


def tools(**properties: object) -> list[dict[str, object]]:
    return [{"type": "function", "function": {"name": "save", "parameters": {"properties": properties}}}]


TEXT = {"type": "string"}
CODE, FILE = tools(code=TEXT), tools(file=TEXT, content=TEXT, n={"type": "integer"})
EDITS = {"type": "array", "items": {"type": "object", "properties": {"old": TEXT, "n": {"type": "integer"}}}}
REPAIRS = [
    # an opening tag is missing
    (CODE, "#ls -la#</code>", '{"code": "ls -la"}', "", ["unclosed_tag", "missing_key_start"]),
    (CODE, "#a > b#</code>", '{"code": "a > b"}', "", ["unclosed_tag", "missing_key_start"]),
    (CODE, "#" + "y" * 3000 + "#</code>", f'{{"code": "{"y" * 3000}"}}', "", ["unclosed_tag", "missing_key_start"]),
    (FILE, "#a.txt#</file>#<content>Hi#</content>", '{"file": "a.txt", "content": "Hi"}', "",
     ["unclosed_tag", "missing_key_start"]),
    (FILE, "#3#</n>#<file>a#</file>Hi#</content>", '{"n": 3, "file": "a", "content": "Hi"}', "",
     ["unclosed_tag", "missing_key_start", "missing_key_start"]),
    (tools(list={"type": "array"}), "#<list>#2#</item>#<item>3#</item>#</list>", '{"list": [2, 3]}', "",
     ["unclosed_tag", "missing_key_start"]),
    (tools(o=EDITS["items"]), "#<o>#x#</old>#</o>", '{"o": {"old": "x"}}', "", ["unclosed_tag", "missing_key_start"]),
    (FILE, "#<n>3#</n>#" + "y" * 2000 + "#<file>a#</file>", '{"n": 3, "file": "a"}', "y" * 2000,
     ["unclosed_tag", *["text_in_section"] * 2]),
    # a bracket is missing
    (CODE, "#code>x#/code>", '{"code": "x"}', "", ["unclosed_tag", "unclosed_tag"]),
    # markup of other families
    (CODE, '#<parameter name="code">x#</parameter>', '{"code": "x"}', "", ["foreign_markup"]),
    (CODE, "#<parameter=code>x#</code>", '{"code": "x"}', "", ["foreign_markup"]),
    (CODE, '#<code lang="py">x#</code>', '{"code": "x"}', "", ["extra_attributes"]),
    # repeated tags
    (CODE, "#<t>a#</t>#<t>b#</t>#<t>3#</t>#<u>1#</u>", '{"t": ["a", "b", 3], "u": 1}', "", ["unlisted_items"]),
    (CODE, "#<t>a#</t>#<code>x#</code>#<t>b#</t>", '{"t": "a", "code": "x", "t": "b"}', "", ["duplicate_parameter"]),
    (CODE, "#<t>#<u>1#</u>#<u>2#</u>#</t>#<t>#<u>3#</u>#</t>", '{"t": [{"u": [1, 2]}, {"u": 3}]}', "",
     ["unlisted_items", "unlisted_items"]),
    (CODE, f"#<t>{'y' * 2000}#</t>#<t>b#</t>", f'{{"t": "{"y" * 2000}", "t": "b"}}', "", ["duplicate_parameter"]),
    (tools(e=EDITS), "#<e>#<old>a#</old>#<n>1#</n>#</e>#<e>#<n>2#</n>#</e>",
     '{"e": [{"old": "a", "n": 1}, {"n": 2}]}', "", ["unlisted_items"]),
    (tools(e={"type": "array", "items": TEXT}), "#<e>1#</e>", '{"e": ["1"]}', "", ["unlisted_items"]),
    (tools(e={"type": "array"}), "#<e>[1]#</e>", '{"e": [1]}', "", []),
    (tools(e={"type": ["array", "null"]}), "#<e>null#</e>", '{"e": null}', "", []),
    (CODE, "#" + "y" * 2000 + "#<t>1#</t>", f'{{"code": "{"y" * 2000}", "t": 1}}', "",
     ["unclosed_tag", "missing_key_start", "missing_parameter_end"]),
    (tools(o=EDITS["items"]), "#<o>#" + "y" * 2000 + "#</o>", '{"o": {}}', "y" * 2000,
     ["unclosed_tag", *["text_in_section"] * 2]),
    # text beside tags
    (tools(e=EDITS), "#<e>words#<item>#<n>1#</n>#</item>#</e>", '{"e": [{"n": 1}]}', "words", ["text_in_section"]),
    (tools(o=EDITS["items"]), "#<o>words#<n>1#</n>more#</o>", '{"o": {"n": 1}}', "wordsmore", ["text_in_section"] * 2),
    (tools(o=EDITS["items"]), "#<o>x#</old>#</o>", '{"o": {"old": "x"}}', "", ["missing_key_start"]),
    (tools(o=EDITS["items"], q=TEXT), "#<o>x#<q>y#</q>", '{"o": "x", "q": "y"}', "",
     ["invalid_value", "missing_parameter_end"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "inside", "arguments", "content", "defects"), REPAIRS)
def test_arguments_that_can_only_mean_one_thing(
    schema: list[dict[str, object]], inside: str, arguments: str, content: str, defects: list[str]
) -> None:
    text = section(call(inside, '<invoke name="save">')).replace("#", "]<]minimax[>[")
    message = whole.read("minimax_m3", text, schema, thinking=False)
    assert (whole.calls(message), message.content) == ([("save", arguments)], content)
    assert whole.kinds(message) == defects


@pytest.mark.parametrize(
    ("text", "defects"),
    [
        ('#tool_call>\n#invoke name="save">#<code>x#</code>#/invoke>\n#/tool_call>', ["unclosed_tag"] * 4),
        ('#invoke name="save">#<code>x#</code>#</invoke>', ["missing_section", "unclosed_tag"]),
    ],
)
def test_a_tag_without_its_first_bracket(text: str, defects: list[str]) -> None:
    message = whole.read("minimax_m3", text.replace("#", "]<]minimax[>["), CODE, thinking=False)
    assert (whole.calls(message), message.content) == ([("save", '{"code": "x"}')], "")
    assert whole.kinds(message) == defects


@pytest.mark.parametrize(
    "text",
    [
        "#invoke and #tool_call> open calls.",
        'First #<invoke name="save">, and #</code> ends a parameter.',
        'It begins with #<invoke name="save"> ' + "and goes on, " * 200,
        'so #<invoke name="save">',
    ],
)
def test_a_mention_is_no_call(text: str) -> None:
    text = text.replace("#", "]<]minimax[>[")
    assert whole.read("minimax_m3", text, CODE, thinking=True) == Message(reasoning=text)
    if "so" not in text:
        assert whole.read("minimax_m3", text, CODE, thinking=False) == Message(text)


@pytest.mark.parametrize(("end", "reason"), [("", "stop"), ("[e~[", "stop"), ("", "length")])
def test_a_header_at_the_end_is_a_call_that_does_not_end(end: str, reason: str) -> None:
    reader = FMT.reader(CODE, thinking=False)
    text = '#<tool_call>\n#<invoke name="save">'.replace("#", "]<]minimax[>[") + end
    events = [*reader.feed(text), *reader.finish(reason)]
    message = dovetail.fold(events)
    assert whole.calls(message) == [("save", "")] and not any(isinstance(event, CallEnd) for event in events)
    assert whole.kinds(message) == ["truncated_call", "missing_section_end"]


FIRST = '#<invoke name="save">#<code>a#</code>#</invoke>\n'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("#<inv", []),
        ("#<invoke na", []),
        ('#<invoke name="sa', []),
        (FIRST + '#<invoke name="sa', [("save", '{"code": "a"}')]),
        (FIRST + "#</tool", [("save", '{"code": "a"}')]),
        ('#<invoke name="save">#<code>a#</co', [("save", '{"code": "a"')]),
        ('#<invoke name="save">#' + "y" * 2000, [("save", '{"code": "' + "y" * 2000)]),
        ('#<invoke name="save">#<code>a#</code>#<co', [("save", '{"code": "a"')]),
    ],
)
def test_no_part_of_a_tag_that_is_cut_off_is_content(text: str, calls: list[tuple[str, str]]) -> None:
    text = ("#<tool_call>\n" + text).replace("#", "]<]minimax[>[")
    message = whole.read("minimax_m3", text, CODE, "length", thinking=False)
    assert (whole.calls(message), message.content) == (calls, "")
    assert "truncated_call" in whole.kinds(message)


PARAMETER = '<parameter name="code">ls -la</parameter>'
OLDER = f'<invoke name="save">\n{PARAMETER}\n</invoke>\n'
LS = '{"code": "ls -la"}'


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (f"<minimax:tool_call>\n{OLDER}</minimax:tool_call>", [LS], "", ["foreign_markup"]),
        (f"Hi.\n<minimax:tool_call>\n{OLDER}{OLDER}</minimax:tool_call>\nso", [LS, LS], "Hi.\n\nso",
         ["foreign_markup"]),
        (f"So {OLDER}then", [LS], "So \nthen", ["missing_section", "foreign_markup"]),
        (f"<minimax:tool_call>{OLDER}", [LS], "", ["foreign_markup", "missing_section_end"]),
        (f'<minimax:tool_call><invoke name="save">{PARAMETER}', [LS], "",
         ["foreign_markup", "missing_call_end", "missing_section_end"]),
        ('<minimax:tool_call><invoke name="save"><parameter name="code">ls -la[e~[', [LS], "",
         ["foreign_markup", "missing_parameter_end", "missing_call_end", "missing_section_end"]),
        ('<minimax:tool_call><invoke name="save">\n</invoke></minimax:tool_call>', ["{}"], "", ["foreign_markup"]),
        (f'<minimax:tool_call>{OLDER}<invoke name="other"></invoke>', [LS], '<invoke name="other"></invoke>',
         ["foreign_markup", "missing_name", "missing_section_end"]),
        (f'<minimax:tool_call>{OLDER}<invoke name="save">', [LS, ""], "",
         ["foreign_markup", "truncated_call", "missing_section_end"]),
        (f'<minimax:tool_call><invoke name="save">{PARAMETER}<parameter x></invoke>', [LS], "<parameter x></invoke>",
         ["foreign_markup", "text_in_section", "missing_call_end", "missing_section_end"]),
    ],
)  # fmt: skip
def test_calls_without_marks(text: str, calls: list[str], content: str, defects: list[str]) -> None:
    message = whole.read("minimax_m3", text, CODE, thinking=False)
    assert (whole.calls(message), message.content) == ([("save", arguments) for arguments in calls], content)
    assert whole.kinds(message) == defects


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        ("", ""),
        ('<parameter name="code">ls', '{"code": "ls'),
        (PARAMETER + '<parameter name="co', '{"code": "ls -la"'),
        (PARAMETER, '{"code": "ls -la"'),
    ],
)
def test_calls_without_marks_that_are_cut_off(cut: str, arguments: str) -> None:
    text = f'<minimax:tool_call><invoke name="save">{cut}'
    message = whole.read("minimax_m3", text, CODE, "length", thinking=False)
    assert (whole.calls(message), message.content) == ([("save", arguments)], "")
    assert whole.kinds(message) == ["foreign_markup", "truncated_call", "missing_section_end"]


@pytest.mark.parametrize(
    "text",
    [
        'Use <invoke name="save"> to call it.',
        '<minimax:tool_call> opens, <invoke name="save">',
        f"<minimax:tool_call>\n{OLDER.replace('save', 'other')}</minimax:tool_call>",
        "<minimax:tool_call>\n</minimax:tool_call>",
        '<minimax:tool_call><invoke name="save">words</invoke>',
    ],
)
def test_mentions_without_marks_are_text(text: str) -> None:
    assert whole.read("minimax_m3", text, CODE, thinking=False) == Message(text)


@pytest.mark.parametrize("begun", ["<invoke na", '<invoke name="sa'])
def test_a_later_call_without_marks_that_is_cut_off_is_no_content(begun: str) -> None:
    message = whole.read("minimax_m3", f"<minimax:tool_call>{OLDER}{begun}", CODE, "length", thinking=False)
    assert (whole.calls(message), message.content) == ([("save", LS)], "")
    assert whole.kinds(message) == ["foreign_markup", "truncated_call", "missing_section_end"]


def test_a_later_header_before_reasoning_is_a_call_without_arguments() -> None:
    text = f'#<tool_call>\n{FIRST}#<invoke name="save"></mm:think>so'
    message = whole.read("minimax_m3", in_marks(text), CODE, thinking=False)
    assert (whole.calls(message), message.content) == ([("save", '{"code": "a"}'), ("save", "{}")], "so")


def test_an_object_that_is_cut_off() -> None:
    text = in_marks('#<tool_call>\n#<invoke name="save">#<o>{"old": "x')
    message = whole.read("minimax_m3", text, tools(o=EDITS["items"]), "length", thinking=False)
    assert whole.calls(message) == [("save", '{"o": {"old": "x')]


@pytest.mark.parametrize(
    ("text", "content", "defects"),
    [
        (f"#<tool_call>\n{FIRST}#<invoke id=3>", "<invoke id=3>", ["missing_name", "text_in_section"]),
        (f"<minimax:tool_call>{OLDER}<invoke nothing", "<invoke nothing", ["foreign_markup", "truncated_call"]),
    ],
)
def test_a_later_call_without_a_name_is_content(text: str, content: str, defects: list[str]) -> None:
    message = whole.read("minimax_m3", in_marks(text), CODE, thinking=False)
    assert (len(message.calls), message.content) == (1, content)
    assert whole.kinds(message) == [*defects, "missing_section_end"]
