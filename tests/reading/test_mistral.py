"""`mistral`: named calls of newer models, lists of older ones."""

from __future__ import annotations

import functools

import pytest

import dovetail
from dovetail.events import Call, Message
from tests.reading import whole
from tests.reading.whole import calls, kinds

read = functools.partial(whole.read, "mistral")
CALLS, ARGS, CALL_ID, CLOSER, END = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[/TOOL_CALLS]", "</s>"
NAMED = f'{CALLS}ping{ARGS}{{"a": 1}}'
OBJECT = '{"name": "ping", "arguments": {"a": 1}}'
LIST = f"{CALLS}[{OBJECT}]"


@pytest.mark.parametrize(
    ("text", "count", "content", "defects"),
    [
        (NAMED + END, 1, "", []),
        (f"Look.{NAMED}{NAMED}{END}", 2, "Look.", []),
        (f'{CALLS}ping{{"a": 1}}{END}', 1, "", []),
        (f'{CALLS} ping {ARGS} {{"a": 1}}\n{END}', 1, "", []),
        (f"{NAMED} Done.", 1, " Done.", []),
        (f"{NAMED}\n{NAMED}", 2, "", []),
        (f"{NAMED}{CLOSER}", 1, "", []),
        (LIST + END, 1, "", []),
        (f"{CALLS} [{OBJECT}, {OBJECT}]{END}", 2, "", []),
        (f"{LIST}{CLOSER} Done.", 1, " Done.", []),
        (f"{CALLS}[{OBJECT}{CLOSER}", 1, "", ["missing_bracket"]),
        (f"{CALLS}[{OBJECT}{END}", 1, "", ["missing_bracket"]),
        (f"{CALLS}[{OBJECT}", 1, "", ["missing_bracket"]),
        (f"{LIST}{NAMED}", 2, "", []),
        (f"{LIST}so", 1, "so", []),
        (f"{LIST} so", 1, " so", []),
        (f"{LIST};;;;] hello", 1, ";;;;] hello", []),
        (f"{LIST}, [1] so", 1, ", [1] so", []),
        (f"{CALLS}[{OBJECT}, so", 1, ", so", ["text_in_section", "missing_bracket"]),
        (f"{CALLS}[{OBJECT} so {OBJECT}]", 2, "so ", ["text_in_section"]),
        (f"{CALLS}[{OBJECT}, so, {OBJECT}] so", 2, ", so,  so", ["text_in_section"]),
        (f"{CALLS}[{OBJECT}, {CLOSER}", 1, ", ", ["missing_bracket"]),
        (f"{CALLS}[{OBJECT},\n]{END}", 1, "", ["stray_separator"]),
        (f"{CALLS}[{OBJECT};]{END}", 1, "", ["stray_separator"]),
        (f"{CALLS}[{OBJECT},, {OBJECT}]{END}", 2, "", ["stray_separator"]),
        (f"{LIST}{' ' * 40}{LIST}", 2, " " * 40, []),
        (CALLS + OBJECT, 1, "", ["missing_list"]),
        (f"{CALLS}[]", 0, "", ["empty_section"]),
        (f"{CALLS}[] so", 0, f"{CALLS}[] so", []),
        (f"{CALLS}get_weather{END}", 0, f"{CALLS}get_weather", []),
        (f"{CALLS}[not json]", 0, f"{CALLS}[not json]", []),
        (f"{CALLS}not a list{CLOSER}", 0, f"{CALLS}not a list{CLOSER}", []),
        (f"{CALLS}not a name{ARGS}{{}}", 0, f"{CALLS}not a name{ARGS}{{}}", []),
        (f"{CALLS}{ARGS}{{}}", 0, f"{CALLS}{ARGS}{{}}", []),
        (f"{CALLS}pi", 0, f"{CALLS}pi", []),
        (CALLS, 0, "", ["empty_section"]),
        (f"{CALLS}{'x' * 3000}{ARGS}{{}}", 0, f"{CALLS}{'x' * 3000}{ARGS}{{}}", []),
        (f"{OBJECT}{CLOSER}", 0, OBJECT + CLOSER, []),
        (f"{ARGS}x", 0, f"{ARGS}x", []),
        (f'{CALLS}ping{ARGS}"{{\\"a\\": 1}}"', 1, "", ["string_arguments"]),
    ],
)
def test_where_calls_may_stand(text: str, count: int, content: str, defects: list[str]) -> None:
    message = read(text)
    assert calls(message) == [("ping", '{"a": 1}')] * count
    assert (message.content, kinds(message)) == (content, defects)


#: Arguments whose string has no end.
TAKEN_BACK = '{"a": "x", "a": null, "malformed_arguments": "{\\"a\\": \\"x"}'


@pytest.mark.parametrize(
    ("text", "arguments", "defects"),
    [
        (f"{CALLS}ping{END}", "{}", ["missing_arguments"]),
        (f"{CALLS}ping{CALLS}ping{ARGS}{{}}", "{}", ["missing_arguments"]),
        (f"{CALLS}ping{ARGS}{END}", "{}", ["missing_arguments"]),
        (f"{CALLS}ping{ARGS}null{END}", "{}", ["missing_arguments"]),
        (f"{CALLS}ping{ARGS}12[THINK]", '{"malformed_arguments": "12[THINK]"}', ["malformed_call"]),
        (f'{CALLS}ping{ARGS}{{"a": [1{END}', '{"a": [1]}', ["missing_bracket"]),
        (f'{CALLS}ping{ARGS}{{"a": "x{CALLS}', TAKEN_BACK, ["malformed_call", "empty_section"]),
        (f'{CALLS}ping{ARGS}{{"a": "x', '{"a": "x', ["truncated_call"]),
        (f'{CALLS}ping{ARGS}{{"a": "[THINK]"}}', '{"a": "[THINK]"}', []),
    ],
)
def test_arguments(text: str, arguments: str, defects: list[str]) -> None:
    message = read(text)
    assert message.calls[0].arguments == arguments
    assert [kind for kind in kinds(message) if kind != "reasoning_not_closed"] == [
        kind for kind in defects if kind != "reasoning_not_closed"
    ]


@pytest.mark.parametrize("after", ["[ARGS]{", "{", "[CALL_ID]abcdefghi[ARGS]{"])
def test_a_name_with_a_blank(after: str) -> None:
    message = read(f'{CALLS}get weather{after}"city": "Oslo"}}')
    assert (calls(message), message.content) == ([("get_weather", '{"city": "Oslo"}')], "")
    assert kinds(message) == ["misspelled_name"]


def test_a_later_header_that_is_cut_off_is_no_content() -> None:
    message = read(f"{NAMED}{CALLS}get_wea", reason="length")
    assert (calls(message), message.content, kinds(message)) == ([("ping", '{"a": 1}')], "", ["truncated_call"])


def test_ids_in_the_text() -> None:
    named = f"{CALLS}ping{CALL_ID}VvvODy9mT{ARGS}{{}}"
    assert read(named) == Message(calls=(Call("VvvODy9mT", "ping", "{}"),))
    assert kinds(read(named * 2)) == ["duplicate_id"]
    spaced = read(f'{CALLS}ping{CALL_ID}a b{ARGS}{{"a": 1}}')
    assert ([call.id for call in spaced.calls], spaced.content, kinds(spaced)) == (["call_0"], "a b", ["unreadable_id"])
    alone = read(f"{CALLS}ping{CALL_ID}VvvODy9mT{END}")
    assert (calls(alone), kinds(alone)) == ([("ping", "{}")], ["missing_arguments"])
    cut = read(f"{CALLS}unheard{CALL_ID}VvvODy9mT")
    assert cut == Message(f"{CALLS}unheard{CALL_ID}VvvODy9mT")


def test_an_id_behind_the_arguments_is_as_the_template_of_nemo_has_it() -> None:
    message = read(f'{CALLS}[{OBJECT[:-1]}, "id": "abcdefgh0"}}]{END}')
    assert message == Message(calls=(Call("call_0", "ping", '{"a": 1}'),))


@pytest.mark.parametrize("length", [1016, 1017, 1019, 1023])
def test_a_control_token_where_a_name_is_too_long(length: int) -> None:
    begun = f'{CALLS}[{{"name": "' + "x" * length
    assert read(f"{begun}[THINK]yy") == Message(begun, "yy")


def test_reasoning() -> None:
    answer = Message("Hello.", "hm", (Call("call_0", "ping", "{}"),))
    written = dovetail.format("mistral").write(answer).text
    assert written == f"[THINK]hm[/THINK]Hello.{CALLS}ping{ARGS}{{}}{END}"
    assert read(written) == answer
    assert dovetail.format("mistral").write(answer, thinking=False).text == f"Hello.{CALLS}ping{ARGS}{{}}{END}"
