"""Lists of Python calls: where one begins, and near-misses. test_python_literals has the arguments."""

from __future__ import annotations

import functools
import json

import pytest

import dovetail
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Event, Message
from dovetail.reading.reader import MALFORMED
from tests.reading import whole
from tests.reading.whole import calls, kinds

FMT = dovetail.format("pythonic")
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "search", "ns.get-time")]
CALLS, CALLS_END, TAG, EOT = "<|python_start|>", "<|python_end|>", "<|python_tag|>", "<|eot|>"
ONE = "[search(q='x')]"
CALLED = [("search", '{"q": "x"}')]
parse = functools.partial(whole.read, "pythonic", tools=TOOLS)


def unreadable(text: str) -> tuple[str, str]:
    return "search", json.dumps({"q": None, MALFORMED: text})


def test_written_messages() -> None:
    arguments = r'{"q":"a\/\"b\"\n","n":[1.50,null,true],"is it":{"true":false}}'
    answer = Message("", "", (Call("", "search", arguments), Call("", "ns.get-time", "{}")))
    written = r'[search(q="a/\"b\"' + r'\n", n=[1.50,None,True], **{"is it": {"true":False}}), ns.get-time()]'
    assert FMT.write(answer).text == written + EOT
    assert FMT.write(Message("Look: ", "Hm.", (Call("", "f", "{}"),))).text == (
        f"<think>Hm.</think>Look: {CALLS}[f()]{CALLS_END}{EOT}"
    )
    assert FMT.write(Message("Hi", "Hm."), thinking=False).text == f"Hi{EOT}"
    assert parse(FMT.write(answer).text).calls[0].arguments == (
        r'{"q": "a/\"b\"\n", "n": [1.50, null, true], "is it": {"true": false}}'
    )


@pytest.mark.parametrize(
    ("text", "content", "called", "defects"),
    [
        (ONE, "", CALLED, []),
        (f" \n{ONE}\n", "", CALLED, []),
        ("[ search (q='x')]", "[ search (q='x')]", [], []),
        ("[\n  search(q='x'),\n  get_weather(),\n]", "", [*CALLED, ("get_weather", "{}")], []),
        (f"{CALLS}{ONE}{CALLS_END}", "", CALLED, []),
        (f"{TAG}{ONE}{EOT}", "", CALLED, []),
        (f"{CALLS}{ONE}\n{CALLS_END}\n{EOT}", "", CALLED, []),
        (f"{ONE}\n{ONE}", "", CALLED * 2, []),
        (f"{CALLS}{ONE}{CALLS_END}{CALLS}{ONE}{CALLS_END}", "", CALLED * 2, []),
        # Text.
        ("plain [1] text", "plain [1] text", [], []),
        ("   ", "   ", [], []),
        ("[not a call]", "[not a call]", [], []),
        ("[1, 2]", "[1, 2]", [], []),
        ("[", "[", [], []),
        ("[sear", "[sear", [], []),
        ("search(q='x')]", "search(q='x')]", [], []),
        ("[link](http://x)", "[link](http://x)", [], []),
        ("see [link(x)](http://x)", "see [link(x)](http://x)", [], []),
        (f"See: {ONE}", "See: ", CALLED, []),
        (f"See: {ONE} and [link(x)]", f"See: {ONE} and [link(x)]", [], []),
        (f"See:\n{ONE} and [link(x)]", "See:\n and [link(x)]", CALLED, []),
        (f"See: {ONE} \n{ONE}{EOT}", "See: ", CALLED * 2, []),
        (f"You can call {ONE}.", f"You can call {ONE}.", [], []),
        ("[[search(q='x')]]", "[[search(q='x')]]", [], []),
        ("See [search(q=f(x))] now", "See [search(q=f(x))] now", [], []),
        (f"See [[[{ONE} {'x' * 5000}", f"See [[[{ONE} {'x' * 5000}", [], []),
        (f"See [search(q='{'x' * 5000}')]", "See ", [("search", '{"q": "' + "x" * 5000 + '"}')], []),
        (f"{ONE} Done.", " Done.", CALLED, []),
        (f"a{CALLS}{ONE}{CALLS_END} b", "a b", CALLED, []),
        (f"{CALLS}print(1){CALLS_END}", f"{CALLS}print(1){CALLS_END}", [], []),
        (f"{CALLS}search(q='x'){CALLS_END}", "", CALLED, ["missing_list"]),
        (f"{CALLS}search(q='x')\n{CALLS_END}", "", CALLED, ["missing_list"]),
        (f"{CALLS}[se:arch(q='x')]{CALLS_END}", f"{CALLS}[se:arch(q='x')]{CALLS_END}", [], []),
        (f"{CALLS}[sear{CALLS_END}", f"{CALLS}[sear{CALLS_END}", [], []),
        (f"{CALLS}[sear", f"{CALLS}[sear", [], []),
        (f"{CALLS}{ONE}{CALLS_END}{TAG}print(1){EOT}", f"{TAG}print(1)", CALLED, []),
        (f"{CALLS}{ONE}[1]{CALLS_END}", "[1]", CALLED, []),
        (f"{CALLS}{CALLS_END}", "", [], ["empty_section"]),
        (f"{CALLS_END}a", f"{CALLS_END}a", [], []),
        (f"a{CALLS_END}", "a", [], ["stray_marker"]),
        (" " * 40 + ONE, " " * 40, CALLED, []),
        # Names.
        ("[unheard(q='x')]", "", [("unheard", '{"q": "x"}')], ["unknown_name"]),
        ("[ns.get-time()]", "", [("ns.get-time", "{}")], []),
        ("[2fast()]", "[2fast()]", [], []),
        (f"[{'x' * 200}()]", f"[{'x' * 200}()]", [], []),
        # Ends that are missing.
        ("[search(q='x')", "", CALLED, ["missing_section_end"]),
        ("[search(q='x'),", ",", CALLED, ["missing_section_end"]),
        ("[search(q='x'], b", ", b", CALLED, ["missing_call_end"]),
        (f"{CALLS}[search(q='x'{CALLS_END}", "", CALLED, ["missing_call_end", "missing_section_end"]),
        ("[search(q='x') get_weather()]", "", [*CALLED, ("get_weather", "{}")], ["missing_comma"]),
        ("[search(q='x') or so]", "or so]", CALLED, ["missing_section_end"]),
        ("[search(q='x'), get_wea", ",get_wea", CALLED, ["truncated_call"]),
        (
            f"[search(q='x{EOT}",
            "",
            [("search", '{"q": "x", "malformed_arguments": ""}')],
            ["malformed_call", "missing_section_end"],
        ),
        ("[search(q=f(x)), search(q='x')]", "", [unreadable("f(x)"), *CALLED], ["malformed_call"]),
        ("[search(q=f('x', ", "", [unreadable("f('x', ")], ["malformed_call", "missing_section_end"]),
        ("[search(q=f(] a", "", [unreadable("f(] a")], ["malformed_call", "missing_section_end"]),
        ("[search(q=f(1)}] a", " a", [unreadable("f(1)")], ["malformed_call", "stray_bracket"]),
        (f"[search(q=f('x\\'{EOT}", "", [unreadable("f('x\\'")], ["malformed_call", "missing_section_end"]),
        (f'{CALLS}[{{"name": "search", "arguments": {{"q": "x"}}}}]{CALLS_END}', "", CALLED, ["json_arguments"]),
        (f'{CALLS}{{"name": "search", "arguments": {{"q": "x"}}}}{CALLS_END}', "", CALLED, ["json_arguments"]),
        (
            f'{CALLS}[{{"name": "search", "arguments": {{"q": "x"}}}}, {{"a": 1}}]{CALLS_END}',
            '{"a": 1}]',
            CALLED,
            ["json_arguments", "unreadable_call"],
        ),
        (
            f'{CALLS}[{{"name": "search", "arguments": {{"q": "x"}}}}, {{"a{CALLS_END}',
            '{"a',
            CALLED,
            ["json_arguments", "unreadable_call"],
        ),
        (f'{CALLS}[{{"a": 1}}]{CALLS_END}', f'{CALLS}[{{"a": 1}}]{CALLS_END}', [], []),
        # words that name no tool
        (f"{CALLS}[look around(q='x')]{CALLS_END}", f"{CALLS}[look around(q='x')]{CALLS_END}", [], []),
    ],
)
def test_where_calls_are(text: str, content: str, called: list[tuple[str, str]], defects: list[str]) -> None:
    message = parse(text)
    assert (message.content, calls(message), kinds(message)) == (content, called, defects)


def test_brackets_that_are_too_deep() -> None:
    message = parse(f"[search(q={'[' * 5000})]")
    assert "malformed_call" in kinds(message)
    assert message.calls[0].arguments.count("[") == 5000


def test_without_tools_only_what_begins_with_a_call_is_one() -> None:
    assert calls(parse(ONE, tools=None)) == CALLED
    assert parse(f"See: {ONE}", tools=None).content == f"See: {ONE}"


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content", "called", "defects"),
    [
        (f"<think>{ONE}</think>\n{ONE}", False, ONE, "", CALLED, []),
        (f"so</think>{ONE}", True, "so", "", CALLED, []),
        (f"so{CALLS}{ONE}{CALLS_END}", True, "so", "", CALLED, ["reasoning_not_closed"]),
        (f"so{CALLS}{ONE}{CALLS_END} and so", True, f"so{CALLS}{ONE}{CALLS_END} and so", "", [], []),
        (f"`{CALLS}`, then {CALLS_END} so</think>b", True, f"`{CALLS}`, then {CALLS_END} so", "b", [], []),
        (f"`{CALLS}`, </think> and `{EOT}`", False, "", f"`{CALLS}`, </think> and `{EOT}`", [], []),
        (f"so{EOT}\na", True, "so", "\na", [], []),
        (f"so{EOT}a", True, f"so{EOT}a", "", [], []),
        ("a</think>b", False, "", "ab", [], ["stray_marker"]),
    ],
)
def test_reasoning(
    text: str, thinking: bool, reasoning: str, content: str, called: list[tuple[str, str]], defects: list[str]
) -> None:
    message = parse(text, thinking=thinking)
    assert (message.reasoning, message.content, calls(message), kinds(message)) == (reasoning, content, called, defects)


@pytest.mark.parametrize(
    ("text", "arguments", "repaired"),
    [
        ("[search(q='pa", '{"q": "pa', '{"q": "pa"}'),
        ("[search(q='pa\\", '{"q": "pa\\\\', '{"q": "pa\\\\"}'),
        ("[search(q=[1, 2", '{"q": [1, 2', '{"q": [1, 2]}'),
        ("[search(q=('a', {'b': ", '{"q": ["a", {"b": ', None),
        ("[search(q=('a'", '{"q": "a"', '{"q": "a"}'),
        ("[search(q='x', li", '{"q": "x"li', None),
        ("[search(", "{", "{}"),
    ],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_cut_call_stays_cut(text: str, arguments: str, repaired: str | None, reason: str) -> None:
    message = parse(text, reason=reason)
    assert (calls(message), kinds(message)[:1]) == ([("search", arguments)], ["truncated_call"])
    assert calls(parse(text, reason=reason, repair_arguments=True)) == [("search", repaired or arguments)]


@pytest.mark.parametrize("text", ["", "[", "[sear"])
def test_a_list_that_was_cut_off_before_its_first_call(text: str) -> None:
    message = parse(CALLS + text, reason="length")
    assert (message.content, message.defects) == ("", (Defect("truncated_call", CALLS + text),))


def test_text_that_is_held_back() -> None:
    reader = FMT.reader(TOOLS)

    def feed(text: str) -> list[Event]:
        return reader.feed(text)

    assert feed("a [") == [Content("a ")]
    assert feed("sea ") == [Content("["), Content("sea ")]
    assert feed("[search(q='x')") == []
    assert feed(" b\n") == [Content("["), Content("search(q='x') b\n")]
    assert feed("[sea ") == [Content("[sea"), Content(" ")]
    assert feed("\n[se") == [Content("\n")]
    assert feed("arch(") == [CallStart(0, "call_0", "search"), CallArguments(0, "{")]
    assert "".join(e.fragment for e in feed("q='") if isinstance(e, CallArguments)) == '"q": "'
    assert feed("pa") == [CallArguments(0, "pa")]
    assert CallEnd(0) in feed("')")
    assert feed("]") == []
    assert feed("[not") == []
    assert feed("hing]") == [Content("[nothing"), Content("]")]
    longest = max(len(tool["function"]["name"]) for tool in TOOLS)  # type: ignore[index]
    assert feed("[" + "x" * (longest + 1)) == [Content("["), Content("x" * (longest + 1))]


@pytest.mark.parametrize("place", ["reasoning", "content"])
def test_what_lfm2_mentions_is_text(place: str) -> None:
    text = "Calls stand between `<|tool_call_start|>` and <|tool_call_end|>, as in [search(q='x')] here."
    message = whole.read("lfm2", text + "</think>" * (place == "reasoning"), TOOLS, thinking=place == "reasoning")
    assert message == (Message("", text) if place == "reasoning" else Message(text))
