"""gpt-oss' messages: their headers, and near-misses."""

from __future__ import annotations

import functools

import pytest

import dovetail
from dovetail.events import Call, Message
from tests.reading import whole
from tests.reading.whole import calls, kinds

FMT = dovetail.format("harmony")
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "search", "functions.odd")]
START, END, MESSAGE, CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"


def say(channel: str, text: str, end: str = END) -> str:
    return f"{CHANNEL}{channel}{MESSAGE}{text}{end}"


def call(header: str = "commentary to=functions.search ", arguments: str = '{"q": "x"}', end: str = CALL) -> str:
    return f"{CHANNEL}{header}{CONSTRAIN}json{MESSAGE}{arguments}{end}"


NEXT = f"{START}assistant"
CALLED = [("search", '{"q": "x"}')]
parse = functools.partial(whole.read, "harmony", tools=TOOLS)


def test_written_messages() -> None:
    answer = Message("Look:", "Hm.", (Call("", "search", '{"q":1}'), Call("", "get_weather", "{}")))
    assert FMT.write(answer).text == (
        f"{CHANNEL}analysis{MESSAGE}Hm.{END}{NEXT}{CHANNEL}commentary{MESSAGE}Look:{END}"
        f"{NEXT}{CHANNEL}commentary to=functions.search {CONSTRAIN}json{MESSAGE}" + '{"q":1}' + CALL + NEXT + CHANNEL
        + f"commentary to=functions.get_weather {CONSTRAIN}json{MESSAGE}" + "{}" + CALL
    )  # fmt: skip
    assert FMT.write(Message("Done.", "Hm."), thinking=False).text == say("final", "Done.", RETURN)


@pytest.mark.parametrize(
    "header",
    [
        f"{CHANNEL}commentary to=functions.search {CONSTRAIN}json",
        f"{CHANNEL}commentary to=functions.search{CONSTRAIN}json",
        f"{CHANNEL}commentary to=functions.search json",
        f"{CHANNEL}commentary to=functions.search code",
        f"{CHANNEL}commentary to=functions.search",
        f"{CHANNEL}analysis to=functions.search ",
        f" to=functions.search{CHANNEL}commentary json",
        f"to=functions.search{CHANNEL}commentary {CONSTRAIN}json",
        f"{NEXT} to=functions.search{CHANNEL}commentary {CONSTRAIN}json",
        f"{NEXT}{CHANNEL}commentary to=functions.search {CONSTRAIN}json",
        f"{CHANNEL}commentary {CONSTRAIN}json to=functions.search",
        f"assistant{CHANNEL}commentary to=functions.search",
    ],
)
@pytest.mark.parametrize("end", [CALL, ""])
def test_headers_of_calls(header: str, end: str) -> None:
    """Engines may drop the `<|call|>` that ends the turn."""
    message = parse(header + MESSAGE + '{"q": "x"}' + end)
    assert (calls(message), message.content, kinds(message)) == (CALLED, "", [])


@pytest.mark.parametrize(
    ("recipient", "name", "defects"),
    [
        ("functions.search", "search", []),
        ("functions.odd", "functions.odd", []),
        ("search", "search", ["missing_prefix"]),
        ("functions.unheard", "unheard", ["unknown_name"]),
        ("browser.search", "browser.search", ["unknown_name"]),
        ("python", "python", ["unknown_name"]),
    ],
)
def test_recipients(recipient: str, name: str, defects: list[str]) -> None:
    message = parse(call(f"commentary to={recipient} "))
    assert ([c.name for c in message.calls], kinds(message)) == ([name], defects)


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "called", "defects"),
    [
        (say("analysis", "a") + NEXT + say("final", "b", RETURN), "b", "a", [], []),
        (say("analysis", "a") + NEXT + say("analysis", "b") + NEXT + call(), "", "a\nb", CALLED, []),
        (say("commentary", "a") + NEXT + call() + NEXT + say("final", "b", ""), "a\nb", "", CALLED, []),
        (say("analysis", "") + NEXT + say("final", ""), "", "", [], []),
        # Text outside messages.
        ("Hello", "Hello", "", [], ["text_outside_message"]),
        (" \n", "", "", [], []),
        (f"Hello {NEXT}" + say("analysis", "a"), "Hello ", "a", [], ["text_outside_message"]),
        (call() + " Done.", "Done.", "", CALLED, ["text_outside_message"]),
        (say("final", "a") + RETURN + CALL + "b", "ab", "", [], ["stray_marker"] * 2 + ["text_outside_message"]),
        ("assistant is here", "assistant is here", "", [], ["text_outside_message"]),
        # Starts and ends that are missing.
        (say("analysis", "a") + say("final", "b"), "b", "a", [], ["missing_start"]),
        (say("analysis", "a") + "assistant" + say("final", "b"), "b", "a", [], ["missing_start"]),
        (say("analysis", "a", NEXT) + say("final", "b"), "b", "a", [], ["missing_message_end"]),
        (say("analysis", "a", "") + say("final", "b"), "b", "a", [], ["missing_message_end", "missing_start"]),
        (call(end=NEXT) + say("final", "b"), "b", "", CALLED, ["missing_call_end"]),
        (call(end=END) + NEXT + say("final", "b"), "b", "", CALLED, ["missing_call_end"]),
        (call(end="") + say("final", "b"), "b", "", CALLED, ["missing_call_end", "missing_start"]),
        # Headers.
        (say("thoughts", "a"), "a", "", [], ["unknown_channel"]),
        (f"{START}assistant{MESSAGE}a", "a", "", [], ["missing_channel"]),
        (f"{MESSAGE}a", "a", "", [], ["missing_channel"]),
        (f"{CONSTRAIN}json{MESSAGE}a", "a", "", [], ["missing_channel"]),
        (f"{CHANNEL}analysis{CHANNEL}final{MESSAGE}a", "a", "", [], []),
        (say("final a bit", "b"), "b", "", [], ["text_in_header"]),
        (say("analysis", "a") + NEXT + say("analysis -", "b"), "", "a\nb", [], ["text_in_header"]),
        (f"{CHANNEL}final {CONSTRAIN}hello{MESSAGE}a", "a", "", [], ["text_in_header"]),
        (call().replace("json", "jsonl", 1), "", "", CALLED, ["text_in_header"]),
        (f"{CHANNEL}thoughts{CHANNEL}final{MESSAGE}a", "a", "", [], ["text_in_header"]),
        (f"{CHANNEL}final{CONSTRAIN}code{MESSAGE}a", "a", "", [], []),
        (f"{CHANNEL}final Hello{END}", "Hello", "", [], ["missing_message"]),
        (f"{CHANNEL}final" + '{"a": 1}' + END, '{"a": 1}', "", [], ["missing_message"]),
        (f"{CHANNEL}analysis{NEXT}" + say("final", "a"), "a", "", [], ["missing_message", "missing_message_end"]),
        (f"{CHANNEL}ana", "", "", [], ["missing_message", "unknown_channel"]),
        (f"{CHANNEL}" + "x" * 2000, "x" * 2000, "", [], ["endless_header", "text_outside_message"]),
        (CHANNEL * 3000, "", "", [], ["endless_header", "missing_start", "endless_header", "missing_start"]),
        (f"{START}functions.search to=assistant{CHANNEL}commentary{MESSAGE}r{END}", "r", "", [], ["unexpected_role"]),
        (say("commentary to=user", "a"), "a", "", [], []),
        (say("final", f"a{MESSAGE}b{CONSTRAIN}"), f"a{MESSAGE}b", "", [], ["stray_marker"]),
        (say("final", f"{MESSAGE}a"), "a", "", [], ["stray_marker"]),
        # Calls.
        (f"{CHANNEL}commentary to=functions.search json" + '{"q": "x"}' + CALL, "", "", CALLED, ["missing_message"]),
        (f"{CHANNEL}commentary to=functions.search{CALL}", "", "", [("search", "{}")],
         ["missing_message", "missing_arguments"]),
        (call(arguments=" "), "", "", [("search", "{}")], ["missing_arguments"]),
        (call(arguments="not json"), "", "", [("search", '{"malformed_arguments": "not json"}')], ["malformed_call"]),
        (call(arguments='{"q": "x"} ok'), "ok", "", CALLED, ["text_in_section"]),
        (call("to=functions.search "), "", "", CALLED, ["missing_channel"]),
        (call("commentary to=functions.search ? "), "", "", CALLED, ["text_in_header"]),
        (" to=a" + call(), "", "", CALLED, ["text_in_header"]),
        (call("commentary to=functions. "), '{"q": "x"}', "", [], ["missing_name"]),
        (call("commentary "), '{"q": "x"}', "", [], ["missing_name"]),
        (f"{CHANNEL}commentary to=functions.se", "", "", [], ["missing_message", "truncated_call"]),
        (f"{CHANNEL}commentary to=functions.search{NEXT}{END}", "to=functions.search ", "", [],
         ["missing_message", "call_without_arguments", "missing_message_end", "missing_message", "missing_channel"]),
    ],
)  # fmt: skip
def test_near_misses_are_read_as_meant(
    text: str, content: str, reasoning: str, called: list[tuple[str, str]], defects: list[str]
) -> None:
    message = parse(text)
    assert (message.content, message.reasoning, calls(message)) == (content, reasoning, called)
    assert kinds(message)[: len(defects)] == defects
    assert len(message.defects) == len(defects) or text.startswith(CHANNEL * 2)


def test_text_before_any_header_is_reasoning_if_that_is_open() -> None:
    message = parse("Hm. " + NEXT + say("final", "a"), thinking=True)
    assert (message.reasoning, message.content) == ("Hm. ", "a")
    assert parse(say("final", "a") + "b", thinking=True).content == "ab"


def test_a_cut_call_stays_cut() -> None:
    message = parse(call(arguments='{"q": "par', end=""), reason="length")
    assert (calls(message), kinds(message)) == ([("search", '{"q": "par')], ["truncated_call"])
    repaired = parse(call(arguments='{"q": "par', end=""), reason="length", repair_arguments=True)
    assert calls(repaired) == [("search", '{"q": "par"}')]


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "called", "junk"),
    [
        # Text glued to a channel's name, without a `<|message|>`.
        (f"{CHANNEL}finalThe answer is 4.{RETURN}", "The answer is 4.", "", [], ""),
        (f"{CHANNEL}analysisWe add two.{END}{NEXT}{say('final', '4')}", "4", "We add two.", [], ""),
        (f"{CHANNEL}final{CONSTRAIN}Four is it.{RETURN}", "Four is it.", "", [], ""),
        (f"{CHANNEL}final json is text{RETURN}", "json is text", "", [], ""),
        (f"{CHANNEL}finally there{RETURN}", "finally there", "", [], ""),
        (f"{CHANNEL}The answer{RETURN}", "The answer", "", [], ""),
        (f"{CHANNEL}final: " + "word " * 500, "word " * 500, "", [], ""),
        (f"{START}analysis{MESSAGE}a{END}{NEXT}final{MESSAGE}b", "b", "a", [], ""),
        # Words in a header.
        (f"{CHANNEL}??{END}{NEXT}{say('final', 'a')}", "a", "", [], "??"),
        (f"{CHANNEL}??{MESSAGE}a{END}{NEXT}{say('final', 'b')}", "a\nb", "", [], "??"),
        (f"{CHANNEL}commentary?{END}{NEXT}{say('final', 'a')}", "a", "", [], "?"),
        (f"{CHANNEL}commentary?commentary?{END}{NEXT}{call()}", "", "", CALLED, "? commentary ?"),
        (f"{CHANNEL}commentary to=assistant{CHANNEL}commentary?{END}{NEXT}{say('final', 'a')}", "a", "", [], "?"),
        (f"{CHANNEL}search{END}{NEXT}{call()}", "", "", CALLED, ""),
        (call(f"search{CHANNEL}commentary to=functions.search "), "", "", CALLED, "search"),
        (call("––commentary to=functions.search "), "", "", CALLED, "––"),
        (call("commentary to=functions.search search "), "", "", CALLED, "search"),
        (call("commentary to=functions.search 去 "), "去", "", CALLED, "去"),
        (call("commentary? to=functions.search "), "", "", CALLED, "?"),
        (call("commentaryto=functions.search "), "", "", CALLED, ""),
        (call().replace("json", "commentary", 1), "", "", CALLED, "commentary"),
        (f"{CHANNEL}final {CONSTRAIN}response{MESSAGE}Hello.", "Hello.", "", [], "response"),
        (say("final " + "many words " * 9, "a"), "many words " * 9 + "a", "", [], ("many words " * 9)[:-1]),
        # Recipients.
        (call("commentary to=functions.get weather "), "", "", [("get_weather", '{"q": "x"}')], ""),
        (call("commentary to=functions.get weather ? "), "", "", [("get_weather", '{"q": "x"}')], "?"),
        (f"{CHANNEL}commentary to=functions.searchjson{MESSAGE}" + '{"q": "x"}', "", "", CALLED, ""),
        (f"{CHANNEL}commentary to=functions.search please" + '{"q": "x"}', "", "", CALLED, "please"),
        (f"{CHANNEL}functions.search{MESSAGE}" + '{"q": "x"}' + CALL, "", "", CALLED, ""),
        (f"{CHANNEL}search" + '{"q": "x"}' + CALL, "", "", CALLED, ""),
        (f"{CHANNEL}commentary to=functions.search so be it{CALL}", "", "",
         [("search", '{"malformed_arguments": "so be it"}')], ""),
    ],
)  # fmt: skip
def test_headers_with_too_much_or_too_little(
    text: str, content: str, reasoning: str, called: list[tuple[str, str]], junk: str
) -> None:
    message = parse(text)
    assert (message.content, message.reasoning, calls(message)) == (content, reasoning, called)
    assert [defect.detail for defect in message.defects if defect.kind == "text_in_header"] == [junk] * bool(junk)
    assert message.defects


TRANSCRIPT = (
    f"```\n{START}system{MESSAGE}Be kind.{END}\n{START}user{MESSAGE}Hi{END}\n"
    f"{NEXT}{CHANNEL}final{MESSAGE}Hello.{RETURN}\n```"
)


@pytest.mark.parametrize(
    "text",
    [
        f"The model writes {CHANNEL} in front of a channel.",
        f"A turn begins with `{NEXT}`, then `{CHANNEL}final` and `{MESSAGE}`.",
        f"A turn begins with {NEXT} and ends with {END} or {RETURN}, a call with {CALL}.",
        f"`{NEXT}{CHANNEL}analysis{MESSAGE}Hm.` is how it thinks.",
        f'It is "{CHANNEL}commentary to=functions.search {CONSTRAIN}json{MESSAGE}" that opens it.',
        f"On {CHANNEL}final the answer follows.",
        f"x{CHANNEL}y{START}z{MESSAGE}w{CONSTRAIN}v",
        f"Grep for {MESSAGE}, {CONSTRAIN} and {CHANNEL}, please.",
        f"Like this:\n{TRANSCRIPT}\nThat is all.",
        f"{MESSAGE} comes first.",
        f"`{CALL}` ends it, so does `{END}`.",
        f"{CHANNEL}{CHANNEL} twice and ({END}) once",
    ],
)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_a_mention_is_text(text: str, tools: list[dict[str, object]] | None) -> None:
    answer = say("analysis", text) + NEXT + say("final", text, RETURN)
    assert parse(answer, tools=tools) == Message(text, text)
    assert parse("So: " + answer.partition(MESSAGE)[2], tools=tools, thinking=True) == Message(text, "So: " + text)


def test_code_that_is_not_closed_ends_with_its_message() -> None:
    text = say("analysis", "An odd ` and\n```") + NEXT + say("final", "a `", RETURN)
    assert parse(text) == Message("a `", "An odd ` and\n```")


@pytest.mark.parametrize("header", ["", "comm", "commentary", "commentary to=functions.sea", "final"])
def test_a_header_that_is_cut_off_inside_a_message(header: str) -> None:
    message = parse(f"{CHANNEL}analysis{MESSAGE}Hm. {CHANNEL}{header}", reason="length")
    assert (message.content, message.reasoning) == ("", "Hm. ")


def test_a_long_message_without_markers_ends_where_the_next_one_begins() -> None:
    long = "We think. " * 120
    message = parse(f"analysis{long}assistantfinalHello.")
    assert (message.content, message.reasoning) == ("Hello.", long)
    assert kinds(message).count("missing_message_end") == 1
