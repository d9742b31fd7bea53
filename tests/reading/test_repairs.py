"""Near-misses of single families, and what must not be taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dovetail
from dovetail.events import CallArguments
from dovetail.reading.json_end import string_goes_on
from dovetail.reading.reader import FARTHEST
from dovetail.tokens import Segment
from tests.reading import families, whole
from tests.reading.families import TOOLS

PARIS, EMPTY = [("get_weather", '{"city": "x"}')], [("ping", "{}")]
DSML = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n{}</｜DSML｜invoke>\n</｜DSML｜function_calls>'
GLM = "<tool_call>{}</tool_call>"
ARG = "<arg_key>city</arg_key><arg_value>x</arg_value>"
V3, V3_END = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"


@pytest.mark.parametrize(
    ("name", "text", "calls", "content", "defects"),
    [
        # calls without their openers
        ("glm47", "So. get_weather" + ARG + "</tool_call>", PARIS, "So. ", ["missing_section"]),
        ("glm47", "find" + ARG, [], "find" + ARG, []),
        ("glm45", GLM.format("get_weather\ncity</arg_key>\n<arg_value>x</arg_value>\n"), PARIS, "",
         ["missing_key_start"]),
        ("glm45", GLM.format("get_weather\n" + "city</arg_key></arg_key>\n<arg_value>x</arg_value>\n"), PARIS, "",
         ["missing_key_start", "stray_marker"]),
        ("glm47", GLM.format("get_weather<arg_key>days</arg_key><arg_value>3</arg_value>city</arg_key>"
                             "<arg_value>x</arg_value>"),
         [("get_weather", '{"days": 3, "city": "x"}')], "", ["missing_key_start"]),
        ("glm47", GLM.format("find city</arg_key><arg_value>x</arg_value>"), [],
         GLM.format("find city</arg_key><arg_value>x</arg_value>"), []),
        ("glm47", GLM.format("ping<arg_key>a</arg_key>" + "x" * 3000), [],
         GLM.format("ping<arg_key>a</arg_key>" + "x" * 3000), []),
        ("glm47", GLM.format("ping<arg_key>a</arg_key><arg_value>1</arg_value>" + "x" * 300),
         [("ping", '{"a": 1}')], "x" * 300, ["text_in_section"]),
        ("mistral", "get_weather[ARGS]{\"city\": \"x\"}", PARIS, "", ["missing_section"]),
        ("mistral", "[TOOL_CALLS]Ping[ARGS][ARGS] {}", EMPTY, "", ["misspelled_name", "stray_marker"]),
        ("mistral", '[TOOL_CALLS][ ,, {"name": "ping", "arguments": {}}]', EMPTY, "", ["stray_separator"]),
        ("mistral", "[TOOL_CALLS][ , so", [], "[TOOL_CALLS][ , so", []),
        ("mistral", '[TOOL_CALLS][{"name": "ping",, "arguments": {},}]', EMPTY, "", ["stray_separator"] * 2),
        ("mistral", '[TOOL_CALLS][{"name": "ping" "arguments": {}};]', EMPTY, "", ["missing_comma", "stray_separator"]),
        ("llama3_json", '{"type": "function",, "name": "ping", "parameters": {}}', EMPTY, "", ["stray_separator"]),
        ("llama3_json", '{"type": "function",, "name": "pong"', [], '{"type": "function",, "name": "pong"', []),
        ("deepseek_v31", V3 + 'get_weather<｜tool▁sep｜><｜tool▁sep｜>{"city": "x"}' + V3_END, PARIS, "",
         ["missing_call_start", "stray_marker"]),
        ("deepseek_v3", 'function<｜tool▁sep｜>get_weather\n```json\n{"city": "x"}\n``````' + V3_END, PARIS, "",
         ["missing_section", "stray_marker"]),
        ("deepseek_v3", "function<｜tool▁sep｜>ping\n```json\n{}" + V3_END, EMPTY, "",
         ["missing_section", "missing_fence"]),
        ("kimi_k2", KIMI + 'functions.get_weather:0<|tool_call_argument_begin|>{"city": "x"}' + KIMI_END, PARIS, "",
         ["missing_call_start"]),
        ("kimi_k2", KIMI + "functions.\nPing :0<|tool_call_argument_begin|><|tool_call_argument_begin|>{}" + KIMI_END,
         EMPTY, "", ["missing_call_start", "misspelled_name", "stray_marker"]),
        # doubled tags
        ("harmony", "<|channel|><|channel|>commentary to=functions.ping<|message|><|message|>{}<|call|>", EMPTY, "",
         ["stray_marker"] * 2),
        # python
        ("pythonic", "<|python_start|>[get_weather (city='x')]<|python_end|>", PARIS, "", []),
        ("pythonic", "<|python_start|>[get_weather so]<|python_end|>", [],
             "<|python_start|>[get_weather so]<|python_end|>", []),
        ("pythonic", "[get_weather({'city': 'x'}), ping({ })]", [*PARIS, *EMPTY], "", ["json_arguments"] * 2),
        ("pythonic", "[get_weather(input={'city': 'x'})]", PARIS, "", ["wrapped_arguments"]),
        ("pythonic", "[get_weather(input={'town': 'x'})]", [("get_weather", '{"input": {"town": "x"}}')], "", []),
        ("pythonic", "[get_weather(input='x')]", [("get_weather", '{"input": "x"}')], "", []),
        # wrapped arguments that are none
        ("hermes", '<tool_call>\n{"name": "ping", "arguments": {"input": {"x": 1}}}\n</tool_call>',
         [("ping", '{"input": {"x": 1}}')], "", []),
        ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"input" : {"city": "x"} } }\n</tool_call>',
         PARIS, "", ["wrapped_arguments"]),
        ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"input": {"city": "x"}, "days": 3}}</tool_call>',
         PARIS, '"days": 3', ["wrapped_arguments", "extra_key", "stray_bracket"]),
        ("kimi_k2", "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
                    '{"input": {"city": "x"}<|tool_call_end|>' + KIMI_END[17:], PARIS, "", ["missing_section",
         "wrapped_arguments"]),
        ("gemma4", '<|tool_call>call:get_weather{input: {city:<|"|>x<|"|>}}<tool_call|>', PARIS, "",
         ["wrapped_arguments"]),
        ("gemma4", '<|tool_call>call:get_weather{input:{town:<|"|>x<|"|>}}<tool_call|>',
         [("get_weather", '{"input": {"town": "x"}}')], "", []),
        ("gemma4", "<|tool_call>call:get_weather{input:{input:3}}<tool_call|>",
         [("get_weather", '{"input": {"input": 3}}')], "", []),
        # a section after a call outside of one
        ("kimi_k2", "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>" + KIMI +
         "<|tool_calls_section_end|>", EMPTY, "", ["missing_section"]),
        ("deepseek_v31", "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>" + V3 + V3_END[17:], EMPTY,
         "", ["missing_section"]),
        ("named_calls", "<|call|>a<|name|>ping<|args|>{}<|/call|><|calls|><|/calls|>", EMPTY, "", ["missing_section"]),
        # what breaks off
        ("kimi_k2", KIMI + '<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{"inp' + KIMI_END,
         [("ping", '{"inp": null, "malformed_arguments": "{\\"inp"}')], "", ["malformed_call"]),
        ("kimi_k3", '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="ping"<|open|>ca',
         [("ping", "")], "ca", ["stray_marker", "missing_separator"]),
        ("qwen3_coder", "<tool_call>\n<function=ping</para", [], "<tool_call>\n<function=ping</para", []),
        # values
        ("pythonic", "[get_weather({'town': '\\101'})]", [("get_weather", '{"city": "{\\"town\\": \\"A\\"}"}')], "",
         ["positional_argument", "mistyped_value"]),
        ("gemma4", "<|tool_call>call:get_weather{city:x}<tool_call|>", PARIS, "", ["unquoted_value"]),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="pin-it">\n<parameter name="where">{"name": "</parameter>"}'
         "</parameter>\n</invoke>\n</minimax:tool_call>", [("pin-it", '{"where": {"name": "</parameter>"}}')], "", []),
        # words in another case
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=alerts>\nTRUE\n</parameter>\n</function>\n"
                        "</tool_call>", [("get_weather", '{"alerts": true}')], "", ["python_value"]),
        ("hermes", '<tool_call>\n{"name": "GET-WEATHER", "arguments": {"city": "x"}}\n</tool_call>', PARIS, "",
         ["misspelled_name"]),
    ],
)  # fmt: skip
def test_reading(name: str, text: str, calls: Any, content: str, defects: list[str]) -> None:
    message = whole.read(name, text, thinking=False)
    assert (whole.calls(message), message.content) == (calls, content)
    kinds = whole.kinds(message)
    assert kinds[: len(defects)] == defects
    assert defects or not kinds or kinds == ["missing_section_end"]


def test_a_name_that_two_tools_are_like_is_neithers() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("a_b", "a-b")]
    message = whole.read("hermes", '<tool_call>\n{"name": "A_B", "arguments": {}}\n</tool_call>', tools)
    assert (whole.calls(message), whole.kinds(message)) == ([("A_B", "{}")], ["unknown_name"])


def test_among_very_many_tools_a_name_opens_no_call() -> None:
    tools = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(200)]
    assert not whole.read("glm47", "tool_1" + ARG + "</tool_call>", tools, thinking=False).calls


def test_tokens_that_come_twice_in_an_argument() -> None:
    """Only as tokens: in text, the second is the beginning of the value."""

    def read(name: str, text: str) -> Any:
        control = families.controls(name)
        reader = families.format_of(name).reader(TOOLS, thinking=False)
        events = []
        pieces = text.split("\x00")
        for number, piece in enumerate(pieces):
            events += reader.feed_segments([Segment(piece, False)])
            if number + 1 < len(pieces):
                events += reader.feed_segments([Segment(control[control.index("｜DSML｜")], True)])
        return dovetail.fold([*events, *reader.finish()])

    tag = '<\x00parameter name="city" string="true">'
    body = f'<\x00function_calls>\n<\x00invoke name="get_weather">\n{tag}{tag}x</\x00parameter>\n</\x00invoke>\n'
    message = read("deepseek_v32", body + "</\x00function_calls>")
    assert (whole.calls(message), whole.kinds(message)) == (PARIS, ["stray_marker"])
    message = read("deepseek_v32", f'<\x00function_calls>\n<\x00invoke name="get_weather">\n{tag}')
    assert whole.calls(message) == [("get_weather", '{"city": "')]
    reader = families.format_of("glm47").reader(TOOLS, thinking=False)
    events = []
    for text, is_control in (
        *(("<tool_call>", True), ("get_weather", False), ("<arg_key>", True), ("city", False), ("</arg_key>", True)),
        *(("<arg_value>", True), ("<arg_value>", True), ("x", False), ("</arg_value>", True), ("</tool_call>", True)),
    ):
        events += reader.feed_segments([Segment(text, is_control)])
    message = dovetail.fold([*events, *reader.finish()])
    assert (whole.calls(message), whole.kinds(message)) == (PARIS, ["stray_marker"])


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        ("", None), ("abc", None), ("abc\\", None), ('abc"', None), ('abc" ', None),
        ('abc",', 3), ('abc" }', 3), ('abc":', 3), ('a\\"c"]', 4), ('abc" x', -1), ("abc\n", -1), ('a"b"', -1),
        ("x" * FARTHEST, FARTHEST), ("x" * (FARTHEST - 1) + "\\" + '"', FARTHEST - 1),
        ("x" * (FARTHEST - 1) + '"}', FARTHEST - 1), ("x" * (FARTHEST - 2) + '" }', FARTHEST - 2),
    ],
)  # fmt: skip
def test_whether_a_string_goes_on(text: str, goes_on: int | None) -> None:
    assert string_goes_on("<" + text, 1) == goes_on


@pytest.mark.parametrize("rest", ["", "y" * 3000, "\\'" * 1500, "'" + " " * 2000])
def test_a_python_string_that_spells_a_marker(rest: str) -> None:
    opened = "[ping(a='x<|python_end|>"
    message = whole.read("pythonic", opened + rest, reason="length")
    assert json.loads(message.calls[0].arguments.rstrip('"') + '"}')["a"].startswith("x<|python_end|>")
    for after, ended in ((", b=1)]", True), (")]", True), (" 'more')]", True), (" so", False)):
        message = whole.read("pythonic", opened + "y'" + after)
        assert ('"x<|python_end|>y' in message.calls[0].arguments) is ended


def test_an_output_that_is_cut_off_may_go_on_as_a_value() -> None:
    text = '<tool_call>\n{"name": "ping", "arguments": {"a": "</tool_call> is'
    assert whole.read("hermes", text, reason="length").calls[0].arguments == '{"a": "</tool_call> is'
    (call,) = whole.read("hermes", text).calls
    assert json.loads(call.arguments) == {"a": None, "malformed_arguments": '{"a": "'}


def test_the_end_of_arguments_may_be_ordinary_text() -> None:
    """A part of it at the end of what is searched at once, or of a piece, may still become it."""
    for size in (0, 1, 500, 505, 509, 512, 513, 1030):
        value = json.dumps({"a": "<" * size})
        text = f"<function=ping>{value}</fun</function>"
        message = whole.read("named_in_text", text)
        assert whole.calls(message) == [("ping", value)]
        cut = f'<function=ping>{{"a": "{"x" * size}</func'
        (call,) = whole.read("named_in_text", cut, reason="length").calls
        assert call.arguments == cut.partition(">")[2]


def test_values_that_are_passed_on_before_they_end() -> None:
    reader = families.format_of("kimi_k2").reader(TOOLS)
    opened = "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>"
    events = [*reader.feed(opened), *reader.feed('{"a": '), *reader.feed("12"), *reader.feed("3, "), *reader.feed('"b')]
    assert [event.fragment for event in events if isinstance(event, CallArguments)] == ['{"a":', " 123", ', "b']
