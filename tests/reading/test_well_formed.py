"""Law 6b: a repair never fires on a well-formed output, whatever its values spell."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, CallArguments, Message
from dovetail.reading.bare_keys import BareKeyReader
from dovetail.reading.nested_tags import NestedTagReader
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.reading.reader import FARTHEST
from dovetail.reading.two_languages import JsonOrTagReader
from dovetail.tokens import Segment
from tests.examples import examples
from tests.reading import families
from tests.reading.families import TOOLS, cut, meaning, stream
from tests.reading.test_laws import families_all

#: Examples for each property and family.
few = examples(20, fuzz=400)
#: What other families mark calls with, and what JSON and Python end strings with.
FOREIGN = (
    *(
        "</parameter1>",
        "</parameter\n",
        "</parameter/>\n",
        "</city>\n",
        "</path>",
        "<parameter=foo>\n",
        "</function_call>",
    ),
    *(
        "<|DSML|parameter name=",
        "</|DSML|parameter>",
        "</｜｜DSML｜｜invoke>\n",
        "\r\n",
        "</parameter></function>",
        "{",
    ),
    *("<tool_call>", "</tool_call>", "</arg_value>", "</parameter>", "\n</parameter>\n", "<|call|>", "[TOOL_CALLS]"),
    *("<|tool_call_end|>", "<｜tool▁call▁end｜>", "</｜DSML｜parameter>", "<|close|>argument<|sep|>", "<|python_end|>"),
    *('"}', "'", '"', "\\", "\n", '",', "')", "}]", ")]", '": ', " ", "x", "é"),
)


def excluded(name: str) -> tuple[str, ...]:
    """What the family's grammar does not allow inside a string: nothing, unless parameters are tags.

    Of strings between markers, a text that spells the marker cannot be told from several strings.
    """
    reader = families.format_of(name).reader()
    if isinstance(reader, BareKeyReader):
        return (reader.string_end,)
    if isinstance(reader, NestedTagReader):
        return (reader.mark,)
    if not isinstance(reader, ParameterReader) or isinstance(reader, JsonOrTagReader):
        return ()
    return (reader.parameter_end, *(s for s in reader.value_stops if not any(c in s for c in reader.controls)))


def near_markup(name: str) -> st.SearchStrategy[str]:
    """Text made of the markers of the family, of halves of them, and of other families' markers."""
    known = families.markers(name)
    halves = st.tuples(st.sampled_from(known), st.integers(1, 40), st.booleans()).map(
        lambda drawn: drawn[0][: drawn[1]] if drawn[2] else drawn[0][drawn[1] :]
    )
    written = st.sampled_from(families.sample_outputs(name, thinking=False))
    pieces = st.sampled_from(known) | halves | st.sampled_from(FOREIGN) | st.text(max_size=4) | written
    return st.lists(pieces, max_size=8).map("".join)


def messages(name: str) -> st.SearchStrategy[Message]:
    """Messages whose strings are near markup, as far as the family's grammar allows it."""
    never = excluded(name)
    texts = near_markup(name)
    strings = texts.filter(lambda text: not any(stop in text + "\n" for stop in never)) if never else texts
    if issubclass(families.format_of(name).reader_type, BareKeyReader | NestedTagReader):
        texts = strings
    quoted = st.tuples(strings, st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))
    in_json = st.tuples(texts, st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))
    reader_type = families.format_of(name).reader_type
    # Where nothing says that an item is a string, the schema has to.
    items = st.just("2") if issubclass(reader_type, NestedTagReader) else in_json
    calls = st.one_of(
        quoted.map(lambda text: ("get_weather", f'{{"city": {text}, "days": 3}}')),
        st.tuples(quoted, items).map(lambda drawn: ("edit_file", f'{{"path": {drawn[0]}, "lines": [1, {drawn[1]}]}}')),
        in_json.map(lambda text: ("pin-it", f'{{"where": {{"lat": 1, "name": {text}}}, "zoom": 2.50}}')),
    )
    return st.lists(calls, min_size=1, max_size=3).map(
        lambda drawn: Message("", "", tuple(Call(f"functions.{n}:{i}", n, a) for i, (n, a) in enumerate(drawn)))
    )


@families_all
@few
@given(st.data(), families.cuts)
def test_values_may_spell_any_markup(name: str, data: st.DataObject, places: list[int]) -> None:
    fmt = families.format_of(name)
    message = data.draw(messages(name))
    for prompt in fmt.forms(message, thinking=False):
        text = prompt.text
        for pieces in ([text], cut(text, places), list(text)):
            read = dovetail.fold(stream(name, pieces, thinking=False))
            assert (meaning(read), read.defects) == (meaning(message), ())


def as_tokens(name: str, text: str) -> Message:
    """What is read if every marker in `text` is a control token."""
    pattern = "|".join(map(re.escape, families.controls(name)))
    pieces = [piece for piece in re.split(f"({pattern})", text) if piece]
    reader = families.format_of(name).reader(TOOLS, thinking=False)
    events = [event for p in pieces for event in reader.feed_segments([Segment(p, p in families.controls(name))])]
    return dovetail.fold([*events, *reader.finish()])


#: The families whose values end with a control token.
ENDED_BY_TOKENS = [
    name
    for name in families.NAMES
    if isinstance(reader := families.format_of(name).reader(), ParameterReader)
    and any(control in reader.parameter_end for control in reader.controls)
]


@pytest.mark.parametrize("name", ENDED_BY_TOKENS)
def test_a_token_ends_a_value_that_has_no_end(name: str) -> None:
    """No well-formed value contains a control token. Neither is text that opens the next parameter a part of it."""
    reader = families.format_of(name).reader()
    assert isinstance(reader, ParameterReader)
    message = Message(calls=(Call("0", "get_weather", '{"city": "Paris", "days": 3}'),))
    text = families.format_of(name).write(message, thinking=False).text
    at = text.index("Paris") + len("Paris")
    end = reader.parameter_end + "<|sep|>" * (name == "kimi_k3")
    spoiled = text[:at] + text[at:].replace(end, "", 1)
    for read in (as_tokens(name, spoiled), families.format_of(name).parse(spoiled, TOOLS, thinking=False)):
        (call,), (defect, *_) = read.calls, read.defects
        assert (json.loads(call.arguments), defect.kind) == ({"city": "Paris", "days": 3}, "missing_parameter_end")


@pytest.mark.parametrize(("after", "reason"), [(" more" * 400, "stop"), ("", "length")])
@pytest.mark.parametrize("example", ["days", "ping"])
def test_an_example_in_a_long_value_ends_nothing(after: str, reason: str, example: str) -> None:
    """An optional argument or another call may stand in a text that goes on farther than the reader sees."""
    opening, closing = "<｜DSML｜parameter name=", "</｜DSML｜parameter>"
    inside = f'{opening}"days" string="false">3{closing}'
    if example == "ping":
        inside = f'<｜DSML｜invoke name="ping">\n{inside}'
    start = f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n{opening}"city" string="true">'
    text = f"{start}See {inside}{after}"
    if after:
        text += f"{closing}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    (call,) = dovetail.fold(stream("deepseek_v4", [text], reason, thinking=False)).calls
    assert (call.name, "days\\" in call.arguments) == ("get_weather", True)
    assert after in call.arguments


@families_all
def test_a_value_without_an_end_waits_for_so_much_text(name: str) -> None:
    """Where nothing shows that a marker in a value is one, it is text; what waits for that is limited."""
    fmt = families.format_of(name)
    message = Message(calls=(Call("functions.get_weather:0", "get_weather", '{"city": "Paris"}'),))
    opened = fmt.write(message, thinking=False).text.partition("Paris")[0]
    reader = fmt.reader(TOOLS, thinking=False)
    control = families.controls(name)[-1]
    events = reader.feed(opened + control)
    pending = len(control)
    for _ in range(3000):
        fresh = reader.feed("x")
        events += fresh
        pending += 1 - sum(len(e.fragment) for e in fresh if isinstance(e, CallArguments))
        assert pending <= FARTHEST + len(control) + 16
    (call,) = dovetail.fold([*events, *reader.finish("length")]).calls
    assert call.arguments == '{"city": "' + control + "x" * 3000
