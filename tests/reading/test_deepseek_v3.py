"""`deepseek_v3` and `deepseek_v31`: one kind of section, two shapes of a call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dovetail
from dovetail.events import Call, Message
from dovetail.tokens import Tokenizer
from tests.reading.families import TOOLS
from tests.reading.whole import calls, kinds, read

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
END = "<｜end▁of▁sentence｜>"
JSON = '{"a": "```json {}"}'


def v3(arguments: str = JSON, name: str = "ping", kind: str = "function", fence: str = "```json") -> str:
    return f"{CALL}{kind}{SEP}{name}\n{fence}\n{arguments}\n```{CALL_END}"


def v31(arguments: str = JSON, name: str = "ping") -> str:
    return f"{CALL}{name}{SEP}{arguments}{CALL_END}"


def section(*calls: str) -> str:
    return SECTION + "".join(calls) + SECTION_END


@pytest.mark.parametrize(
    ("call", "as_v3", "as_v31"),
    [
        (v3(), [], ["fenced_arguments"]),
        (v31(), ["missing_fence"], []),
        (v3(fence="```"), ["missing_language"], ["fenced_arguments"]),
        (v3(fence=""), ["missing_fence"], []),
        (f"{CALL}function{SEP}ping\n{JSON}{CALL_END}", ["missing_fence"], []),
        (f"{CALL}ping{SEP}\n```json\n{JSON}\n```{CALL_END}", [], ["fenced_arguments"]),
        (f"{CALL}ping{JSON}{CALL_END}", ["missing_separator", "missing_fence"], ["missing_separator"]),
        (f"{CALL}ping\n```json\n{JSON}```{CALL_END}", ["missing_separator"], ["missing_separator", "fenced_arguments"]),
    ],
)
def test_either_shape_is_read_with_either(call: str, as_v3: list[str], as_v31: list[str]) -> None:
    for name, defects in (("deepseek_v3", as_v3), ("deepseek_v31", as_v31)):
        message = read(name, section(call) + END, thinking=False)
        assert calls(message) == [("ping", JSON)]
        assert (message.content, sorted(kinds(message))) == ("", sorted(defects))


@pytest.mark.parametrize(
    ("text", "expected", "content", "defects"),
    [
        (section(v3(), "\n", v3()), [JSON] * 2, "", []),
        (f"a{section(v3())}b{section(v3())}c{END}", [JSON] * 2, "abc", []),
        (v3() + SECTION_END, [JSON], "", ["missing_section"]),
        (SECTION + v3() + END, [JSON], "", ["missing_section_end"]),
        (SECTION + v3().removesuffix(CALL_END) + v3() + SECTION_END, [JSON] * 2, "", ["missing_call_end"]),
        (SECTION + SECTION + v3() + CALL_END + SECTION_END, [JSON], "", ["stray_marker"] * 2),
        (section("nonsense"), [], section("nonsense"), []),
        (section(v3('{"n": 9007199254740993.10}')), ['{"n": 9007199254740993.10}'], "", []),
        (section(v3("[1]")), ['{"malformed_arguments": "[1]"}'], "", ["malformed_call"]),
        (section(v3("null")), ["{}"], "", ["missing_arguments"]),
        (section(v3('{"a": 1')), ['{"a": 1}'], "", ["missing_bracket"]),
        (section(f"{CALL}function{SEP}ping{CALL_END}"), ["{}"], "", ["missing_fence", "missing_arguments"]),
        (section(v3('{"a": 1} so')), ['{"a": 1}'], "so\n```", ["text_in_section"]),
        (section(v3("oops {}")), [], section(v3("oops {}")), []),
        (section(v3(kind="tool")), [JSON], "tool", ["unknown_type"]),
        (section(v3("{}", name="unheard")), ["{}"], "", ["unknown_name"]),
        (section(v3("{}", name="")), [], section(v3("{}", name="")), []),
        (section(f"{CALL}function{SEP}{CALL_END}"), [], section(f"{CALL}function{SEP}{CALL_END}"), []),
        (section(f"{CALL}ping"), [], section(f"{CALL}ping"), []),
        (section(f"{CALL}ping{SEP}so"), [], section(f"{CALL}ping{SEP}so"), []),
        (f"{SECTION}{CALL}pi", [], f"{SECTION}{CALL}pi", []),
        (SECTION + f"{CALL}function{SEP}pi", [], SECTION + f"{CALL}function{SEP}pi", []),
        (section(f"{CALL}{'x' * 3000}"), [], section(f"{CALL}{'x' * 3000}"), []),
        (f"<think>hm{section(v3())}", [JSON], "", ["reasoning_not_closed"]),
        (section(v3() + "<think>hm"), [JSON], "", ["stray_marker"]),
        (f"<｜tool▁outputs▁begin｜>x{SEP}", [], f"<｜tool▁outputs▁begin｜>x{SEP}", []),
    ],
)
def test_near_misses(text: str, expected: list[str], content: str, defects: list[str]) -> None:
    message = read("deepseek_v3", text)
    assert [arguments for _, arguments in calls(message)] == expected
    assert (message.content, kinds(message)) == (content, defects)


def test_a_header_of_another_version_may_hold_arguments_that_are_no_object() -> None:
    message = read("deepseek_v31", section(f"{CALL}ping{SEP}null{CALL_END}"), thinking=False)
    assert (calls(message), kinds(message)) == ([("ping", "{}")], ["missing_arguments"])


def test_written_messages() -> None:
    answer = Message("Hello.", "hm", (Call("call_0", "ping", JSON), Call("call_1", "ping", "{}")))
    written = dovetail.format("deepseek_v3").write(answer).text
    assert written == f"<think>hm</think>Hello.{section(v3(), chr(10), v3('{}'))}{END}"
    assert read("deepseek_v3", written) == answer
    assert dovetail.format("deepseek_v3").write(Message("Hello.")).text == "Hello." + END
    written = dovetail.format("deepseek_v31").write(answer).text
    assert written == f"hm</think>Hello.{section(v31(), v31('{}'))}{END}"
    assert read("deepseek_v31", written) == answer
    assert dovetail.format("deepseek_v31").write(Message("Hello."), thinking=False).text == "Hello." + END


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31"])
def test_the_models_own_tokens(published_tokenizer: Callable[[str], Tokenizer], name: str) -> None:
    """Markers are tokens: text that spells them, in content and in arguments, stays text."""
    tokenizer = published_tokenizer("deepseek_v3")
    fmt = dovetail.format(name)
    arguments = f'{{"a": "{CALL_END}{SECTION}"}}'
    answer = Message(f"{SECTION}ping{SEP}", "hm", (Call("call_0", "ping", arguments),))
    ids = fmt.write(answer).ids(tokenizer)
    for size in (1, 3, len(ids)):
        reader = fmt.reader(TOOLS, tokenizer=tokenizer)
        events = [event for i in range(0, len(ids), size) for event in reader.feed("", ids[i : i + size])]
        assert dovetail.fold(events + reader.finish()) == answer
