"""Laws 1 to 6 for the Kimi reader, against a naive reading of the whole text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import CallEnd, Event, Message
from tests.examples import examples
from tests.reading import families, whole
from tests.reading.kimi_oracle import MARKERS, THINK_END, read

FMT = dovetail.format("kimi_k25")
TOOLS = [{"type": "function", "function": {"name": n}} for n in ("get_weather", "search", "ns.get-time")]

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def call(header: str = "functions.get_weather:0", arguments: str = '{"city": "Paris"}') -> str:
    return f"{CALL}{header}{ARGS}{arguments}{CALL_END}"


def section(*calls: str) -> str:
    return SECTION + "".join(calls) + SECTION_END


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=4).map(json.dumps)
headers = st.sampled_from(
    (
        "functions.get_weather:0",
        "functions.search:1",
        "search:2",
        "search",
        " functions.ns.get-time:3 ",
        "7",
        "a:b:4",
    )
)
scraps = st.one_of(
    st.sampled_from(MARKERS).map(lambda m: m[: len(m) // 2]),
    st.sampled_from(
        ("<", "<|", " ", "\n", "{", "}", '"', "\\", "[", "]", "hello", "é漢🙂", '{"a": 1}', '{"a": "}', "null")
    ),
    headers,
    arguments,
    st.text(max_size=10),
)
prose = st.lists(scraps, max_size=4).map("".join)
#: Without tools, any text after the marker of a call, or before that of arguments, may be a name: see `test_laws.py`.
mentions = st.tuples(prose, st.sampled_from((SECTION, SECTION_END, CALL_END)), prose).map(
    lambda drawn: f"{drawn[0]}`{drawn[1]}` is a marker{drawn[2]}"
)
#: Calls, some without their arguments' marker or without their end. (`test_json_mending.py` has other arguments.)
some_calls = st.lists(
    st.builds(
        lambda header, marker, given, end: f"{CALL}{header}{marker}{given}{end}",
        headers,
        st.sampled_from((ARGS, ARGS, "")),
        arguments,
        st.sampled_from((CALL_END, CALL_END, "")),
    ),
    min_size=1,
    max_size=3,
).map("".join)
sections = st.builds(
    lambda start, inside, end: start + inside + end,
    st.sampled_from((SECTION, SECTION, "")),
    some_calls,
    st.just(SECTION_END),
)


@st.composite
def outputs(draw: st.DrawFn, thinking: bool) -> str:
    """Reasoning that may mention markers and is closed, then text that may, and sections of calls."""
    reasoning = "".join(draw(st.lists(mentions | prose, max_size=2))) + THINK_END if thinking else ""
    return reasoning + "".join(draw(st.lists(prose | mentions | sections, max_size=5)))


def kinds(message: Message) -> list[str]:
    return [defect.kind for defect in message.defects]


@given(st.data(), st.booleans(), st.sampled_from(("stop", "length")))
def test_equals_the_naive_reading_of_the_whole(data: st.DataObject, thinking: bool, reason: str) -> None:
    text = data.draw(outputs(thinking))
    reader = FMT.reader(thinking=thinking)
    events = [*reader.feed(text), *reader.finish(reason)]
    message = dovetail.fold(events)
    expected = read(families.without_begun_marker(text, message), thinking=thinking, reason=reason)
    assert message.content == expected.content
    assert message.reasoning == expected.reasoning
    assert [(c.name, c.arguments) for c in message.calls] == expected.calls
    ended = {event.index for event in events if isinstance(event, CallEnd)}
    assert [index in ended for index in range(len(message.calls))] == expected.whole


@examples(30)
@given(st.data(), st.booleans())
def test_every_step_is_a_prefix_of_the_naive_reading_so_far(data: st.DataObject, thinking: bool) -> None:
    text = data.draw(outputs(thinking))
    reader = FMT.reader(thinking=thinking)
    events: list[Event] = []
    for end, character in enumerate(text, start=1):
        events += reader.feed(character)
        so_far, naive = dovetail.fold(events), read(text[:end], thinking=thinking, reason="length")
        assert naive.content.startswith(so_far.content)
        assert naive.reasoning.startswith(so_far.reasoning)
        assert [c.name for c in so_far.calls] == [name for name, _ in naive.calls][: len(so_far.calls)]
        assert all(wanted.startswith(c.arguments) for c, (_, wanted) in zip(so_far.calls, naive.calls, strict=False))


@pytest.mark.parametrize(
    ("header", "name", "call_id", "defects"),
    [
        ("functions.search:2", "search", "functions.search:2", []),
        (" functions.search:2\n", "search", "functions.search:2", []),
        ("search:2", "search", "functions.search:2", ["missing_prefix"]),
        ("functions.search", "search", "functions.search:0", ["missing_index"]),
        ("search", "search", "functions.search:0", ["missing_index", "missing_prefix"]),
        ("functions.ns.get-time:1", "ns.get-time", "functions.ns.get-time:1", []),
        ("functions.unheard:0", "unheard", "functions.unheard:0", ["unknown_name"]),
    ],
)
def test_near_miss_ids(header: str, name: str, call_id: str, defects: list[str]) -> None:
    message = FMT.parse(section(call(header)), TOOLS, thinking=False)
    assert [(c.name, c.id) for c in message.calls] == [(name, call_id)]
    assert kinds(message) == defects


@pytest.mark.parametrize(
    ("text", "names", "content", "defects"),
    [
        (section(call()), ["get_weather"], "", []),
        (
            section(f"{CALL}functions.search:0{ARGS}{{}}", call("functions.search:1")),
            ["search"] * 2,
            "",
            ["missing_call_end"],
        ),
        (section(f"{CALL}functions.search:0" + '{"a": 1}' + CALL_END), ["search"], "", ["glued_arguments"]),
        (call(), ["get_weather"], "", ["missing_section", "missing_section_end"]),
        (call() + section(call("functions.search:1")), ["get_weather", "search"], "", ["missing_section"]),
        (section(call(), call()), ["get_weather"] * 2, "", ["duplicate_id"]),
        (section(call()) + "after", ["get_weather"], "after", []),
        ("a" + section(call()) + "b" + section(call("functions.search:1")), ["get_weather", "search"], "ab", []),
        (section(f"{CALL}functions.search:0{CALL_END}"), ["search"], "", ["missing_arguments"]),
        (section(call(arguments="{oops}")), ["get_weather"], "", ["unquoted_key", "malformed_call"]),
        (section(call(arguments="[1]")), ["get_weather"], "", ["malformed_call"]),
        (section(call(arguments="null")), ["get_weather"], "", ["missing_arguments"]),
        (section(call(arguments='"{}"')), ["get_weather"], "", ["string_arguments"]),
        (
            section(call(arguments='{"a": 1}</think>so')),
            ["get_weather"],
            "so",
            ["stray_marker", "text_in_section"],
        ),
        (section(call(arguments='{"a": 1} and more')), ["get_weather"], "and more", ["text_in_section"]),
        (section("words"), [], section("words"), []),
        (CALL_END + "x", [], CALL_END + "x", []),
        (section(call(arguments='{"n": 9007199254740993.10}')), ["get_weather"], "", []),
    ],
)
def test_near_misses_are_read_as_meant(text: str, names: list[str], content: str, defects: list[str]) -> None:
    message = FMT.parse(text, TOOLS, thinking=False)
    assert [c.name for c in message.calls] == names
    assert message.content == content
    assert kinds(message) == defects


def test_a_call_without_a_number_takes_the_next_that_is_free() -> None:
    message = FMT.parse(section(call("functions.search:1"), call("functions.search")), TOOLS, thinking=False)
    assert [c.id for c in message.calls] == ["functions.search:1", "functions.search:2"]
    assert kinds(message) == ["missing_index"]


def test_reasoning_ends_a_section() -> None:
    message = FMT.parse(f"{SECTION}{call()}<think>why</think>after", TOOLS, thinking=False)
    assert ([c.name for c in message.calls], message.reasoning, message.content) == (["get_weather"], "why", "after")


@pytest.mark.parametrize("text", [section(f'{CALL}{{"city": "Paris"}}{CALL_END}'), SECTION + CALL + "x" * 5000 + ARGS])
def test_what_is_no_call_is_text(text: str) -> None:
    message = FMT.parse(text, TOOLS, thinking=False)
    assert message == Message(text)
    assert dovetail.fold(families.stream("kimi_k25", list(text), tools=TOOLS, thinking=False)) == message


@pytest.mark.parametrize("end", ["", CALL_END])
def test_a_call_in_json(end: str) -> None:
    text = section(*(f'{CALL}{{"name": "{name}", "arguments": {{}}}}{end}' for name in ("search", "get_weather")))
    message = whole.read("kimi_k25", text, TOOLS, thinking=False)
    assert whole.calls(message) == [("search", "{}"), ("get_weather", "{}")]
    assert whole.kinds(message) == ["other_syntax", *([] if end else ["missing_call_end"])] * 2


@pytest.mark.parametrize("header", ["functions.search:0", "functions.search", "functions.search:{}"])
def test_many_calls_cost_no_more_each(header: str) -> None:
    """Look-ups of ids already given out, counted: a bounded number for each call, duplicates or not."""

    class Counting(set[str]):
        lookups = 0

        def __contains__(self, item: object) -> bool:
            self.lookups += 1
            return super().__contains__(item)

    reader = FMT.reader(TOOLS, thinking=False)
    reader._ids = taken = Counting()
    calls = 2000
    message = dovetail.fold(reader.feed(section(*(call(header.format(i)) for i in range(calls)))))
    assert len({c.id for c in message.calls}) == calls
    assert taken.lookups <= 5 * calls


def tool(name: str, *keys: str) -> dict[str, object]:
    properties = {key: {"type": "string"} for key in keys}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties, "required": keys}}}


BASH, WEATHER = tool("Bash", "command"), tool("get_weather", "city")
LS = '{"command": "ls"}'
UUID = "550e8400-e29b-41d4-a716-446655440000"
SINGULAR, SINGULAR_END = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"


def read_calls(text: str, tools: list[dict[str, object]], *, reason: str = "stop") -> Message:
    return whole.read("kimi_k25", text, tools, reason, thinking=False)


@pytest.mark.parametrize(
    ("header", "name", "call_id", "defects"),
    [
        ("functions_Bash_2", "Bash", "functions.Bash:2", ["misspelled_name"]),
        ("functions-Bash-2", "Bash", "functions.Bash:2", ["misspelled_name"]),
        ("functions_Bash", "Bash", "functions.Bash:0", ["misspelled_name"]),
        ("Bash_2", "Bash", "functions.Bash:2", ["misspelled_name"]),
        ("functions_Bash_2:3", "Bash", "functions.Bash:3", ["misspelled_name"]),
        ("functions.bash:2", "Bash", "functions.Bash:2", ["misspelled_name"]),
        ("call_ab12", "Bash", "functions.Bash:0", ["missing_name"]),
        (UUID, "Bash", "functions.Bash:0", ["missing_name"]),
        (f"functions.{UUID}:3", "Bash", "functions.Bash:3", ["missing_name"]),
        ("chatcmpl-tool-0a1b", "Bash", "functions.Bash:0", ["missing_name"]),
        ("7", "Bash", "functions.Bash:7", ["missing_name"]),
        ("", "Bash", "functions.Bash:0", ["missing_name"]),
        ("functions.rm:1", "rm", "functions.rm:1", ["unknown_name"]),
    ],
)
@pytest.mark.parametrize("tools", [[BASH], [WEATHER, BASH]])
def test_ids_of_other_forms(
    header: str, name: str, call_id: str, defects: list[str], tools: list[dict[str, object]]
) -> None:
    message = read_calls(section(call(header, LS)), tools)
    assert [(c.name, c.id, c.arguments) for c in message.calls] == [(name, call_id, LS)]
    assert (message.content, kinds(message)) == ("", defects)


@pytest.mark.parametrize(
    "arguments", ['{"other": 1}', "[1]", "", '{"command": "' + "y" * 5000 + '"}', '{"command": "never closed']
)
def test_an_id_whose_arguments_fit_no_tool_is_passed_on(arguments: str) -> None:
    message = read_calls(section(call(arguments='{"city": "Oslo"}'), call("call_ab12", arguments)), [WEATHER, BASH])
    assert [c.name for c in message.calls] == ["get_weather", "call_ab12"]
    assert "unknown_name" in kinds(message)


def test_arguments_that_fit_several_tools_name_none() -> None:
    message = read_calls(section(call("call_ab12", LS)), [BASH, tool("sh", "command")])
    assert [c.name for c in message.calls] == ["call_ab12"] or message.content


@pytest.mark.parametrize(
    ("text", "defects"),
    [
        (SINGULAR + call("functions.Bash:0", LS) + SINGULAR_END, ["misspelled_marker"] * 2),
        (SECTION + call("functions.Bash:0", LS) + SINGULAR_END, ["misspelled_marker"]),
        (SINGULAR + call("functions.Bash:0", LS) + SECTION_END, ["misspelled_marker"]),
        (
            f"{SECTION}{CALL}functions.Bash:0{ARGS}{LS}{SINGULAR_END}",
            ["missing_call_end", "misspelled_marker"],
        ),
        (
            SECTION + SINGULAR + call("functions.Bash:0", LS) + SECTION_END,
            ["misspelled_marker", "stray_marker"],
        ),
    ],
)
def test_markers_in_the_singular(text: str, defects: list[str]) -> None:
    message = read_calls(text, [BASH, WEATHER])
    assert (whole.calls(message), message.content, kinds(message)) == ([("Bash", LS)], "", defects)


def test_a_mention_of_such_a_marker_is_text() -> None:
    text = f"Use {SINGULAR} to open a section, and {SINGULAR_END} to close it."
    assert read_calls(text, [BASH]) == Message(text)


def test_a_later_header_that_is_cut_off_is_no_content() -> None:
    message = read_calls(
        SECTION + call("functions.Bash:0", LS) + CALL + "functions.get_w", [BASH, WEATHER], reason="length"
    )
    assert (whole.calls(message), message.content) == ([("Bash", LS)], "")
    assert kinds(message) == ["truncated_call", "missing_section_end"]
