"""Gemma's calls, and near-misses of them."""

from __future__ import annotations

import json

import pytest

import dovetail
from dovetail.events import Call, Message
from dovetail.reading.reader import MALFORMED
from tests.reading import whole

FMT = dovetail.format("gemma4")
PROPERTIES = {"query": {"type": "string"}, "topn": {"type": "integer"}, "more": {"type": "object"}, "any": {}}
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "submit"}},
]
X = '{"query": "x"}'
Q = '<|"|>'


def call(arguments: str = f"{{query:{Q}x{Q}}}", before: str = "call:search") -> str:
    return f"<|tool_call>{before}{arguments}<tool_call|>"


def unreadable(text: str, **read: object) -> tuple[str, str]:
    return "search", json.dumps({**read, MALFORMED: text})


@pytest.mark.parametrize(
    ("text", "calls", "content", "defects"),
    [
        (call(), [("search", X)], "", []),
        (call() + call("{}", "call:submit") + "<|tool_response>", [("search", X), ("submit", "{}")], "", []),
        (call() + "\n " + call(), [("search", X)] * 2, "", []),
        ("Here. " + call() + " after", [("search", X)], "Here.  after", []),
        (call(f"{{any:[1,-2.50,true,null,{Q}{Q},{{}},[]],topn:1E400}}"),
         [("search", '{"any": [1, -2.50, true, null, "", {}, []], "topn": 1E400}')], "", []),
        (call(f"{{query:{Q}a\n{{[\"b\\c,:]}}<b>{Q}}}"), [("search", '{"query": "a\\n{[\\"b\\\\c,:]}<b>"}')], "", []),
        # a string's own end ends it, whatever it spells
        (call(f"{{query:{Q}a<tool_call|><|tool_call>b{Q}}}"), [("search", '{"query": "a<tool_call|><|tool_call>b"}')],
         "", []),
        # white space, as models write it between tokens
        (call(f"{{ query : {Q}x{Q} , topn : 3 }}"), [("search", '{"query": "x", "topn": 3}')], "", []),
        (call(before=" call: search "), [("search", X)], "", []),
        # names
        (call(before="search"), [("search", X)], "", ["missing_prefix"]),
        (call(before="call:rm"), [("rm", X)], "", ["unknown_name"]),
        (call(before="call:"), [], call(before="call:"), []),
        (call(before="call:two words"), [], call(before="call:two words"), []),
        (call("", "call:submit"), [("submit", "{}")], "", ["missing_arguments"]),
        (call("", "nonsense"), [], call("", "nonsense"), []),
        ("<|tool_call>" + "n" * 2000, [], "<|tool_call>" + "n" * 2000, []),
        # brackets, commas and ends
        (call(f"{{query:{Q}x{Q}"), [("search", X)], "", ["missing_bracket"]),
        (call("{more:{a:[1"), [("search", '{"more": {"a": [1]}}')], "", ["missing_bracket"]),
        (call("{"), [("search", "{}")], "", ["missing_bracket"]),
        (call(f"{{query:{Q}x{Q},}}"), [("search", X)], "", ["stray_separator"]),
        (call(f"{{topn:3 query:{Q}x{Q}}}"), [unreadable(f"3 query:{Q}x{Q}}}", topn=None)], "", ["malformed_call"]),
        (call(f"{{query:{Q}x{Q}topn:3}}"), [("search", '{"query": "x", "topn": 3}')], "", ["missing_comma"]),
        (call("{topn:3}}"), [("search", '{"topn": 3}')], "", ["stray_bracket"]),
        (f"<|tool_call>call:search{{query:{Q}x{Q}}}", [("search", X)], "", ["missing_call_end"]),
        (f"<|tool_call>call:search{{query:{Q}x{Q}}}<turn|>", [("search", X)], "", ["missing_call_end"]),
        (f"<|tool_call>call:search{{query:{Q}x<turn|>", [("search", X)], "",
         ["missing_parameter_end", "missing_bracket", "missing_call_end"]),
        # quotes, keys and words of JSON and Python
        (call('{"query": "x, \\"y\\" \\\\"}'), [("search", '{"query": "x, \\"y\\" \\\\"}')], "",
         ["attribute_quotes"] * 2),
        (call('{query:"a\nb"}'), [("search", '{"query": "a\\nb"}')], "", ["attribute_quotes"]),
        (call('{query:"x}'), [("search", X)], "", ["attribute_quotes", "missing_parameter_end"]),
        (call(f"{{{Q}query{Q}:{Q}x{Q}}}"), [("search", X)], "", ["attribute_quotes"]),
        (call(f"{{{Q}query{Q}={Q}x{Q}}}"), [("search", X)], "", ["attribute_quotes", "missing_equals"]),
        (call(f"{{{Q}query{Q} {Q}x{Q}}}"), [unreadable(f"query{Q}x{Q}}}")], "",
         ["attribute_quotes", "malformed_call"]),
        (call(f"{{{Q}query"), [unreadable("query")], "", ["attribute_quotes", "malformed_call"]),
        (call("{any:[None,True]}"), [("search", '{"any": [null, true]}')], "", ["python_value"] * 2),
        (call("{query:two words,topn:3}"), [("search", '{"query": "two words", "topn": 3}')], "", ["unquoted_value"]),
        (call("{topn:soon}"), [("search", '{"topn": "soon"}')], "", ["unquoted_value"]),
        (call("{query:3}"), [("search", '{"query": "3"}')], "", ["unquoted_value"]),
        (call("{more:{query:3}}"), [("search", '{"more": {"query": 3}}')], "", []),
        # strings where the schema has another type
        (call(f"{{topn:{Q} 3{Q}}}"), [("search", '{"topn": 3}')], "", ["mistyped_value"]),
        (call(f"{{more:{Q}{{'k': [None]}}{Q}}}"), [("search", '{"more": {"k": [null]}}')], "", ["mistyped_value"]),
        (call(f"{{topn:{Q}three{Q}}}"), [("search", '{"topn": "three"}')], "", ["invalid_value"]),
        # what is no object
        (call("{}", "call:search{query:x,topn:3}"), [("search", '{"query": "x", "topn": 3}')], "{}",
         ["unquoted_value", "text_in_section"]),
        (call("{query:x,query:y}"), [("search", '{"query": "x", "query": "y"}')], "",
         ["unquoted_value", "duplicate_parameter", "unquoted_value"]),
        (call("{query}"), [unreadable("query}")], "", ["malformed_call"]),
        (call("{query:}"), [unreadable("}", query=None)], "", ["malformed_call"]),
        (call("{:3}"), [unreadable(":3}")], "", ["malformed_call"]),
        (call("{query:[1}}"), [("search", '{"query": "[1]"}')], "",
         ["missing_bracket", "mistyped_value", "stray_bracket"]),
        (call(f"{{topn:x{Q}y{Q}}}"), [unreadable(f"x{Q}y{Q}}}", topn=None)], "", ["malformed_call"]),
        (call("{any:" + "[" * 300),
         [("search", f'{{"any": {"[" * 256 + "]" * 256}, "malformed_arguments": "{"[" * 44}"}}')], "",
         ["malformed_call"]),
        ("<|tool_call>call:search{query}<turn|>", [unreadable("query}")], "", ["malformed_call"]),
        # cut off
        ("<|tool_call>call:sea", [], "<|tool_call>call:sea", []),
        ("<|tool_call>call:search{query:" + Q + "a", [("search", '{"query": "a')], "", ["truncated_call"]),
        ("<|tool_call>call:search{topn:12", [("search", '{"topn": 12')], "", ["truncated_call"]),
        ("<|tool_call>call:search{topn:" + Q + "12", [("search", '{"topn": 12')], "",
         ["mistyped_value", "truncated_call"]),
        ("<|tool_call>call:search{que", [("search", "{que")], "", ["truncated_call"]),
        (call() + "<|tool_call>call:sea", [("search", X)], "call:sea", ["truncated_call"]),
        # between calls and in reasoning
        ("<|tool_call>" + call(), [("search", X)], "", ["missing_name"]),
        (f"<|tool_call>call:search{{query:{Q}x{Q}}}" + call(), [("search", X)] * 2, "", ["missing_call_end"]),
        ("<tool_call|>a", [], "<tool_call|>a", []),
        (f"a{Q}b", [], f"a{Q}b", []),
        ("<|channel>thought\nHm." + call(), [("search", X)], "", ["reasoning_not_closed"]),
        ("<|channel>final\na", [], "<|channel>final\na", []),
    ],
)  # fmt: skip
def test_calls(text: str, calls: list[tuple[str, str]], content: str, defects: list[str]) -> None:
    message = whole.read("gemma4", text, TOOLS, thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == calls
    assert (message.content, [defect.kind for defect in message.defects]) == (content, defects)


def test_a_call_that_was_cut_off_may_be_repaired() -> None:
    for text, arguments in (
        ("{more:{a:[" + Q + "b", '{"more": {"a": ["b"]}}'),
        ("{topn:3", '{"topn": 3}'),
    ):
        message = FMT.parse(f"<|tool_call>call:search{text}", TOOLS, repair_arguments=True, reason="length")
        assert [call.arguments for call in message.calls] == [arguments]


def test_reasoning_comes_first() -> None:
    text = "<|channel>thought\nHm.\n<channel|>Here." + call()
    assert FMT.parse(text, TOOLS) == Message("Here.", "Hm.", (Call("call_0", "search", X),))


def test_a_prompt_may_open_reasoning() -> None:
    from dovetail.tokens import Prompt, Segment

    def left_open(text: str, *more: Segment) -> bool:
        return FMT.left_open(Prompt([Segment("<|channel>", True), Segment(text, False), *more]))

    assert left_open("thought\n") and left_open("thought\nHm.")
    assert not left_open("final") and not left_open("thought\n", Segment("<channel|>", True))


def test_arguments_that_are_no_object_are_not_written() -> None:
    for arguments in ("[1]", "3", "{", "[" * 100_000):
        with pytest.raises(dovetail.errors.RenderError):
            FMT.write(Message("", "", (Call("0", "search", arguments),)))
    written = FMT.write(Message("", "", (Call("0", "search", json.dumps({"any": [None, True, 2.5]})),)), thinking=False)
    assert written.text == "<|tool_call>call:search{any:[null,true,2.5]}<tool_call|><|tool_response>"


@pytest.mark.parametrize(
    ("text", "calls", "defects"),
    [
        # brackets
        (call(f"(query:{Q}x{Q})"), [("search", X)], ["wrong_bracket"]),
        (call("(topn:3)") * 2, [("search", '{"topn": 3}')] * 2, ["wrong_bracket"] * 2),
        (call("({topn:3})"), [("search", '{"topn": 3}')], ["wrong_bracket"]),
        (call(f"(query:{Q}x{Q}}}"), [("search", X)], ["wrong_bracket"]),
        (call(f"{{query:{Q}x{Q})"), [("search", X)], ["wrong_bracket"]),
        (call("(any:[f(x)])"), [("search", '{"any": ["f(x)"]}')], ["wrong_bracket", "unquoted_value"]),
        (call("()", "call:submit"), [("submit", "{}")], ["wrong_bracket"]),
        (call(f"(query:{Q}x)"), [("search", X)], ["wrong_bracket", "missing_parameter_end"]),
        (call("(query:two words)"), [("search", '{"query": "two words"}')], ["wrong_bracket", "unquoted_value"]),
        # = for :
        (call(f"{{query={Q}x{Q},topn=3}}"), [("search", '{"query": "x", "topn": 3}')], ["missing_equals"] * 2),
        # strings in other quotes
        (call("{query:'x'}"), [("search", X)], ["attribute_quotes"]),
        (call("{query:'it\\'s, well: \\w+',topn:3}"), [("search", """{"query": "it's, well: \\\\w+", "topn": 3}""")],
         ["attribute_quotes"]),
        (call(f"{{query:'x{Q},topn:3}}"), [("search", '{"query": "x", "topn": 3}')], ["attribute_quotes"]),
        (call(f"{{query:'x'{Q}}}"), [("search", X)], ["attribute_quotes"]),
        (call(f"{{query:{Q}x'}}"), [("search", X)], ["missing_parameter_end"]),
        (call(f"{{query:{Q}x',topn:3}}"), [("search", '{"query": "x", "topn": 3}')], ["missing_parameter_end"]),
        (call('{query:"a "b", c",topn:3}'), [("search", r'{"query": "a \"b\", c", "topn": 3}')], ["attribute_quotes"]),
        (call(r'{query:"\w\n\u00e9\u12"}'), [("search", r'{"query": "\\w\n\u00e9\\u12"}')], ["attribute_quotes"]),
        (call("{topn:'3',more:\"{}\"}"), [("search", '{"topn": 3, "more": {}}')],
         ["attribute_quotes", "mistyped_value"] * 2),
        (call("{any:['a','b, c']}"), [("search", '{"any": ["a", "b, c"]}')], ["attribute_quotes"] * 2),
        (call("{more:{'k':True}}"), [("search", '{"more": {"k": true}}')], ["attribute_quotes", "python_value"]),
        (call("{query:'x"), [("search", '{"query": "x"}')],
         ["attribute_quotes", "missing_parameter_end", "missing_bracket"]),
        # strings without a marker
        (call(f"{{query:{Q}x}}"), [("search", X)], ["missing_parameter_end"]),
        (call(f"{{query:{Q}x,topn:3}}"), [("search", '{"query": "x", "topn": 3}')], ["missing_parameter_end"]),
        (call(f"{{query:{Q}x,any:{Q}y{Q}}}"), [("search", '{"query": "x", "any": "y"}')], ["missing_parameter_end"]),
        (call(f"{{more:{{a:[{Q}x]}}}}"), [("search", '{"more": {"a": ["x"]}}')], ["missing_parameter_end"]),
        (call(f"{{query:x, y{Q},topn:3}}"), [("search", '{"query": "x, y", "topn": 3}')], ["unquoted_value"]),
        (call('{query:if (a) {\n  "b", c}\n,topn:3}'), [("search", r'{"query": "if (a) {\n  \"b\", c}", "topn": 3}')],
         ["unquoted_value"]),
        (call("{query:a, b: c, topn: 3}"), [("search", '{"query": "a, b: c", "topn": 3}')], ["unquoted_value"]),
        (call("{note:a, b}", "call:submit"), [("submit", '{"note": "a, b"}')], ["unquoted_value"]),
        (call("{note:a,more:b}", "call:submit"), [("submit", '{"note": "a", "more": "b"}')], ["unquoted_value"] * 2),
        (call("{query:" + "word, " * 500 + "}"), [("search", json.dumps({"query": ("word, " * 500)[:-1]}))],
         ["unquoted_value"]),
        # names
        (call(before="call:google:mcp:search"), [("search", X)], ["misspelled_name"]),
        (call(before="call:default_api.search"), [("search", X)], ["misspelled_name"]),
        (call(before=":search"), [("search", X)], ["missing_prefix"]),
        (call(before="Call:search"), [("search", X)], ["missing_prefix"]),
        # a well-formed string may spell all of that
        (call(f"{{query:{Q}a',topn:3}}<tool_call|>{Q},any:{Q}\"b)<tool_call|>,query:{Q}}}"),
         [("search", """{"query": "a',topn:3}<tool_call|>", "any": "\\"b)<tool_call|>,query:"}""")], []),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(text: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    message = whole.read("gemma4", text, TOOLS, thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == calls
    assert (message.content, [defect.kind for defect in message.defects]) == ("", defects)


def test_a_bracket_that_may_begin_prose() -> None:
    text = "<|tool_call>call:search(and so on) is what it writes."
    assert whole.read("gemma4", text, TOOLS, thinking=False) == Message(text)


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("thought\nHm.\n<channel|>Answer.", True, "Hm.", "Answer."),
        ("thought\nHm.\n<channel|>Answer.", False, "Hm.", "Answer."),
        ("thought\nHm.", False, "", "thought\nHm."),
        ("thought\n" + "x" * 2000 + "<channel|>", False, "", "thought\n" + "x" * 2000),
        ("thoughts", False, "", "thoughts"),
    ],
)
def test_reasoning_without_its_first_marker(text: str, thinking: bool, reasoning: str, content: str) -> None:
    message = whole.read("gemma4", text, TOOLS, thinking=thinking)
    assert (message.reasoning, message.content) == (reasoning, content)


def test_a_call_that_is_cut_off_where_it_cannot_be_read() -> None:
    message = whole.read("gemma4", "<|tool_call>call:search{query:x,[so", TOOLS, "length", thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == [("search", '{"query": "x,[so')]
    message = whole.read("gemma4", "<|tool_call>call:search{topn:3,[so", TOOLS, "length", thinking=False)
    assert [(c.name, c.arguments) for c in message.calls] == [("search", '{"topn": 3[so')]
    assert [defect.kind for defect in message.defects] == ["truncated_call"]
