"""Kimi K3's tags: blocks, calls and their typed arguments, and near-misses."""

from __future__ import annotations

import functools

import pytest

import dovetail
from dovetail.errors import RenderError
from dovetail.events import Call, Message
from tests.reading import whole
from tests.reading.whole import calls, kinds

FMT = dovetail.format("kimi_k3")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
TOOLS = [SEARCH, {"type": "function", "function": {"name": "ns.get-time"}}]
END = "<|end_of_msg|>"


def tag(words: str) -> str:
    return f"<|open|>{words}<|sep|>"


def close(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


def argument(key: str = "city", kind: str = "string", value: str = "Paris") -> str:
    return tag(f'argument key="{key}" type="{kind}"') + value + close("argument")


def call(*body: str, head: str = 'tool="search" index="1"') -> str:
    return tag(f"call {head}") + "".join(body or (argument(),)) + close("call")


def tools(*body: str) -> str:
    return tag("tools") + "".join(body or (call(),)) + close("tools")


OVER = close("response")
LAST = close("message") + END
CALLED = [("search", '{"city": "Paris"}')]
parse = functools.partial(whole.read, "kimi_k3", thinking=False, tools=TOOLS)
UNNAMED = [("search", "{}")]


def test_written_messages() -> None:
    arguments = '{"city": "P<&\\"é", "a&\\"b": [1.50, null], "n": 1.50, "t": true, "o": {}, "z": null}'
    answer = Message("Look.", "Hm.", (Call("", "search", arguments), Call("", "ns.get-time", "{}")))
    body = (
        argument(value='P<&"é'),
        argument("a&amp;&quot;b", "array", "[1.50, null]"),
        argument("n", "number", "1.50"),
        argument("t", "boolean", "true"),
        argument("o", "object", "{}"),
        argument("z", "null", "null"),
    )
    second = tag('call tool="ns.get-time" index="2"') + close("call")
    written = "Hm." + close("think") + tag("response") + "Look." + OVER + tools(call(*body) + second) + LAST
    assert FMT.write(answer).text == written
    message = parse(written, thinking=True)
    assert (message.content, message.reasoning, message.defects) == ("Look.", "Hm.", ())
    assert calls(message) == [("search", arguments), ("ns.get-time", "{}")]
    assert FMT.write(Message("Look.", "Hm."), thinking=False).text == "Look." + OVER + LAST
    with pytest.raises(RenderError, match="not a JSON object"):
        FMT.write(Message(calls=(Call("", "search", "[]"),)))


@pytest.mark.parametrize(
    ("kind", "value", "read", "defects"),
    [
        ("string", "12", '"12"', []),
        ("string", " a\n", '" a\\n"', []),
        ("string", "", '""', []),
        ("string", "a<|sep|><|open|>b<|close|>c&quot;", '"a<|sep|><|open|>b<|close|>c&quot;"', []),
        ("number", "9007199254740993.10", "9007199254740993.10", []),
        ("number", " 3 ", "3", []),
        ("integer", "3", "3", []),
        ("number", "three", '"three"', ["invalid_value"]),
        ("boolean", "true", "true", []),
        ("boolean", "True", "true", ["python_value"]),
        ("null", "null", "null", []),
        ("object", '{"a": [1]}', '{"a": [1]}', []),
        ("array", "['x']", '["x"]', ["python_value"]),
        ("text", "x", '"x"', ["missing_type"]),
    ],
)
def test_the_declared_type_decides(kind: str, value: str, read: str, defects: list[str]) -> None:
    message = parse(OVER + tools(call(argument("any", kind, value))))
    assert (calls(message), kinds(message)) == ([("search", f'{{"any": {read}}}')], defects)


def test_without_a_type_the_schema_decides() -> None:
    body = (tag('argument key="days"') + "3" + close("argument"), tag('argument key="city"') + "3" + close("argument"))
    message = parse(OVER + tools(call(*body)))
    assert (calls(message), kinds(message)) == ([("search", '{"days": 3, "city": "3"}')], ["missing_type"] * 2)


@pytest.mark.parametrize(
    ("text", "content", "called", "defects"),
    [
        ("a" + OVER + tools() + LAST, "a", CALLED, []),
        (OVER + tools(call(), call()), "", CALLED * 2, []),
        (OVER + tools(call(head='tool="search"')), "", CALLED, []),
        (OVER + tools(call(head='index="1" tool="search"')), "", CALLED, []),
        (OVER + tools(tag('call tool="ns.get-time" index="1"') + close("call")), "", [("ns.get-time", "{}")], []),
        (OVER + tools(call(argument("a&amp;lt;&quot;"))), "", [("search", '{"a&lt;\\"": "Paris"}')], []),
        (OVER + tools(call(tag('json type="object"') + '{"city": "Paris"}' + close("json"))), "", CALLED, []),
        (OVER + "\n" + tools("\n" + call("\n", argument(), "\n") + "\n") + "\n" + LAST, "", CALLED, []),
        # Blocks.
        ("a" + tools(), "a", CALLED, ["response_not_closed"]),
        (tag("response") + "a" + OVER, "a", [], ["stray_marker"]),
        (OVER + "a" + tools() + "b", "ab", CALLED, ["text_in_section"] * 2),
        (OVER + END + "a", "a", [], ["text_in_section"]),
        (OVER + LAST + tag('message role="assistant"') + tag("response") + "a", "a", [], []),
        (OVER + LAST + tag('message role="user"') + "a", "a", [], ["unexpected_role", "text_in_section"]),
        (OVER + tag('response x="1"') + "a", "a", [], ["extra_attributes"]),
        (OVER + tag("response also") + "a", " alsoa", [], []),
        ("a" + close("think") + "b", "ab", [], ["stray_marker", "text_in_section"]),
        ("a<|sep|>b" + tag("foo") + "c", "a<|sep|>b" + tag("foo") + "c", [], []),
        ("a<|open|>", "a", [], ["stray_marker"]),
        ("a" + OVER + "<|open|>", "a", [], ["stray_marker"]),
        ("a" + argument(), "a" + argument(), [], []),
        # Closers and openers that are missing.
        (OVER + tools(tag('call tool="search" index="1"') + argument()), "", CALLED, ["missing_call_end"]),
        (OVER + tag("tools") + call(), "", CALLED, ["missing_section_end"]),
        (OVER + tag("tools") + call() + LAST, "", CALLED, ["missing_section_end"]),
        (OVER + call() + close("tools"), "", CALLED, ["missing_section"]),
        ("a" + call(), "a", CALLED, ["response_not_closed", "missing_section", "missing_section_end"]),
        (OVER + tools(argument() + close("call")), 'key="city" type="string"Paris', [],
         ["stray_marker", "text_in_section", *["stray_marker"] * 3]),
        (OVER + tools(call(tag('argument key="city" type="string"') + "Paris")), "", CALLED,
         ["missing_parameter_end"]),
        (OVER + tools(call(tag('argument key="city" type="string"') + "P" + argument("days", "number", "3"))), "",
         [("search", '{"city": "P", "days": 3}')], ["missing_parameter_end"]),
        (OVER + tools(call(tag("json") + '{"city": "Paris"}')), "", CALLED, []),
        (OVER + tools(call(), close("call"), close("argument"), tag("tools")), "", CALLED, ["stray_marker"] * 3),
        (OVER + tools(call(argument(), close("argument"))), "", CALLED, ["stray_marker"]),
        # Tags.
        (OVER + tools(call().replace("<|sep|>", "")), "", CALLED, ["missing_separator"] * 4),
        (OVER + tools('<|open|>call tool="search"' + argument() + close("call")), "", CALLED, ["missing_separator"]),
        ("a<|close|>response", "a", [], ["missing_separator"]),
        ("a<|close|>response" + tools(), "a", CALLED, ["missing_separator"]),
        (OVER + "<|open|>responsea", "a", [], ["missing_separator"]),
        (OVER + tools(call(head="tool='search'")), "", CALLED, ["attribute_quotes"]),
        (OVER + tools(call(head="tool=search")), "", CALLED, ["attribute_quotes"]),
        (OVER + tools(call(head="search")), "", CALLED, ["missing_attribute"]),
        (OVER + tools(call(head='name="search"')), "", CALLED, ["missing_attribute"]),
        (OVER + tools(call(head='tool="search" id="x"')), "", CALLED, ["extra_attributes"]),
        (OVER + tools(call(head='tool="search" index="one"')), "", CALLED, ["extra_attributes"]),
        (OVER + tools(call(head='name="x" tool="search"')), "", CALLED, ["extra_attributes"]),
        (OVER + tools(call(tag('json id="x"') + '{"city": "Paris"}')), "", CALLED, ["extra_attributes"]),
        (OVER + LAST + tag('message role="assistant" id="x"') + tag("response") + "a", "a", [], ["extra_attributes"]),
        (OVER + tools(call(head='tool="search" tool="search"')), "", CALLED, []),
        (OVER + tools(call(head='tool="search" tool="b"')), 'tool="b"', CALLED, ["text_in_section"]),
        (OVER + tools(call(head='tool="unheard"')), "", [("unheard", '{"city": "Paris"}')], ["unknown_name"]),
        (OVER + tools(call(close("call"), head='index="1"')), 'index="1"', [],
         ["missing_name", "text_in_section", "stray_marker", "stray_marker"]),
        (OVER + tools(call(tag('argument type="string"') + "Paris" + close("argument"))), 'type="string"Paris',
         UNNAMED, ["missing_key", "text_in_section", "stray_marker"]),
        (OVER + tools(call(tag('argument key="city" type="string" so') + "Paris" + close("argument"))), "so",
         CALLED, ["text_in_section"]),
        (OVER + tools(call('<|open|>argument key="city" type="string" Paris' + close("argument"))), "",
         [("search", '{"city": " Paris"}')], ["missing_separator"]),
        (OVER + tools(call(argument(), argument())), "", [("search", '{"city": "Paris", "city": "Paris"}')],
         ["duplicate_parameter"]),
        (OVER + tag("tools") + "<|open|>call " + "x" * 2000, "x" * 2000, [],
         ["endless_header", "missing_name", "text_in_section", "text_in_section", "missing_section_end"]),
        # Bodies.
        (OVER + tools(call(' {"city": "Paris"}')), "", CALLED, []),
        (OVER + tools(call(tag("json") + close("json"))), "", UNNAMED, ["missing_arguments"]),
        (OVER + tools(call(tag("json") + "{oops" + close("json"))), "",
         [("search", '{"oops": null, "malformed_arguments": "{oops"}')], ["unquoted_key", "malformed_call"]),
        (OVER + tools(call(tag("json") + "{} more" + close("json"))), "more", UNNAMED, ["text_in_section"]),
        (OVER + tools(call(argument(), "more")), "more", CALLED, ["text_in_section"]),
        (OVER + tools("more"), "more", [], ["text_in_section"]),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, content: str, called: list[tuple[str, str]], defects: list[str]
) -> None:
    message = parse(text)
    assert (message.content, calls(message), kinds(message)) == (content, called, defects)


def test_the_only_tool_is_meant_where_none_is_named() -> None:
    for body in (call(head='index="1"'), argument() + close("call"), tag("json") + '{"city": "Paris"}' + close("call")):
        message = parse(OVER + tools(body), tools=[SEARCH])
        assert (calls(message), kinds(message)) == (CALLED, ["missing_name"])


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "called", "defects"),
    [
        ("so" + close("think") + tag("response") + "a" + OVER, "so", "a", [], []),
        ("so" + tag("response") + "a", "so", "a", [], ["reasoning_not_closed"]),
        ("so" + tools(), "so", "", CALLED, ["reasoning_not_closed"]),
        ("so" + close("think") + tools(), "so", "", CALLED, []),
        ("so" + close("think") + "a", "so", "a", [], ["text_in_section"]),
        (tag("think") + "so" + close("think"), "so", "", [], ["stray_marker"]),
        ("a" + close("think") + "<|open|>think b" + close("think"), "a b", "", [], ["missing_separator"]),
        ("so" + END + "a", f"so{END}a", "", [], []),
    ],
)
def test_reasoning(text: str, reasoning: str, content: str, called: list[tuple[str, str]], defects: list[str]) -> None:
    message = parse(text, thinking=True)
    assert (message.reasoning, message.content, calls(message), kinds(message)) == (reasoning, content, called, defects)


BEGUN = OVER + tag("tools") + tag('call tool="search" index="1"')


@pytest.mark.parametrize(
    ("text", "arguments", "repaired"),
    [
        (BEGUN, "", ""),
        (BEGUN + tag('argument key="city" type="string"') + "Par", '{"city": "Par', '{"city": "Par"}'),
        (BEGUN + tag('argument key="o" type="object"') + '{"a": [1', '{"o": {"a": [1', '{"o": {"a": [1]}}'),
        (BEGUN + tag("json") + '{"a": "b', '{"a": "b', '{"a": "b"}'),
    ],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_cut_call_stays_cut(text: str, arguments: str, repaired: str, reason: str) -> None:
    message = parse(text, reason=reason)
    assert (calls(message), kinds(message)[0]) == ([("search", arguments)], "truncated_call")
    assert calls(parse(text, reason=reason, repair_arguments=True)) == [("search", repaired)]


@pytest.mark.parametrize(
    ("cut", "content", "defect"),
    [
        ('<|open|>call tool="sea', "", "truncated_call"),
        ('<|open|>call tool="other', 'tool="other', "truncated_call"),
        (tag('call tool="search"') + "<|open|>argument ke", "", "truncated_call"),
        (tag('call tool="search"') + '<|open|>argument key="ci', "", "truncated_call"),
        (tag('call tool="search"') + '<|open|>argument key="ot', 'key="ot', "truncated_argument"),
    ],
)
def test_a_cut_tag_is_content_if_nothing_of_the_tools_begins_like_it(cut: str, content: str, defect: str) -> None:
    message = parse(OVER + tag("tools") + cut, reason="length")
    assert message.content == content
    assert defect in kinds(message)
