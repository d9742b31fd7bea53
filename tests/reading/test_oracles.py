"""Laws 1 to 6 for four families, against naive readings of the whole: outputs of well-formed pieces, modestly damaged.

The damage is what the laws decide: ends of calls and sections that are missing, calls without a section, names that no
tool has, text after and between calls, reasoning that a call cuts short, and an output cut off at `length`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dovetail
from dovetail.events import CallEnd, Event, Message
from tests.reading import families, oracles
from tests.reading.families import PARAMETERS, TOOLS, cut, stream

SCHEMAS: oracles.Schemas = {name: schema or {} for name, schema in PARAMETERS.items()}
Atom = tuple[str, bool]  # a piece of output, and whether it may be cut off in its middle
Output = list[Atom]

# -- what stands in them ----------------------------------------------------------------------------------------------

HALVES = (
    "<",
    "</",
    "<｜",
    "<｜DSM",
    "</｜DSML",
    "<tool_",
    "</tool_ca",
    "<fun",
    "</para",
    "<|",
    "<|cha",
)
BITS = (
    *HALVES,
    "{",
    "}",
    '"',
    "\\",
    "[",
    "]",
    "é漢🙂",
    "a < b",
    "name=",
    "to=",
    '{"a": 1}',
    "null",
    "3",
    "true",
    "words",
)
inner = st.lists(st.sampled_from((*BITS, " ", "\n", "\n\n", "\t")), max_size=5).map("".join)
#: No whitespace at the ends, where what is text and what is layout is a family's own affair.
words = inner.map(str.strip)
after = inner.filter(lambda text: not text or bool(text.strip()))
values: dict[str, st.SearchStrategy[Any]] = {
    "string": inner,
    "integer": st.integers() | st.just(9007199254740993),
    "number": st.sampled_from((0.5, -2.25, 10, -7)),
    "boolean": st.booleans(),
    "place": st.fixed_dictionaries({"lat": st.just(1.5)}, optional={"name": inner}),
    "word": st.sampled_from(("Paris", "a < b", "two words", "nullable", "line\nline", "é")),
}
typed: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "get_weather": {
        "city": values["string"],
        "unit": st.sampled_from(("celsius", "fahrenheit")),
        "days": values["integer"],
        "alerts": values["boolean"],
    },
    "edit_file": {
        "path": values["string"],
        "text": values["word"] | st.none(),
        "lines": st.lists(values["integer"], max_size=3),
        "mode": values["word"] | values["integer"],
    },
    "pin-it": {
        "where": values["place"],
        "path": st.lists(values["place"], max_size=2),
        "zoom": values["number"],
        "weight": values["number"] | st.none(),
    },
    "ns.get-time": {},
    "ping": {},
}
calls = st.sampled_from(sorted(typed)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries({}, optional=typed[name]))
)


def solid(*texts: str) -> Output:
    return [(text, False) for text in texts]


def soft(text: str) -> Output:
    return [(text, True)]


# -- how the families write them --------------------------------------------------------------------------------------


@st.composite
def dsml(draw: st.DrawFn, thinking: bool) -> Output:
    """Reasoning, text, sections of calls (or calls without one), and text after.

    Nothing follows a section in open reasoning, where it is a mention otherwise. A call to no tool has its end.
    """
    out: Output = soft(draw(inner)) if thinking else []
    closed = reasoned = not thinking or draw(st.booleans())
    if reasoned:
        out += (solid("</think>") if thinking else []) + soft(draw(inner))
    for _ in range(draw(st.integers(0, 2 if reasoned else 1))):
        section = draw(st.booleans())
        out += solid("\n\n<｜DSML｜function_calls>" if closed else "<｜DSML｜function_calls>", "\n") if section else []
        for name, arguments in draw(st.lists(calls, min_size=1, max_size=3)):
            out += solid(f'<｜DSML｜invoke name="{name}">', "\n")
            for key, value in arguments.items():
                string = isinstance(value, str)
                out += solid(f'<｜DSML｜parameter name="{key}" string="{json.dumps(string)}">')
                out += soft(value) if string else solid(json.dumps(value))
                out += solid("</｜DSML｜parameter>", "\n")
            ended = not (reasoned and arguments) or draw(st.booleans())
            out += solid("</｜DSML｜invoke>", *(["\n"] if section else [])) if ended else []
            out += soft(draw(words)) if ended and reasoned else []
        closed = section and draw(st.booleans())
        out += solid("</｜DSML｜function_calls>") + soft(draw(after) if reasoned else "") if closed else []
    return out + draw(st.sampled_from(([], solid("<｜end▁of▁sentence｜>"))))


@st.composite
def hermes(draw: st.DrawFn, thinking: bool) -> Output:
    out: Output = soft(draw(inner)) + solid("</think>") if thinking else []
    out += soft(draw(words))
    for name, arguments in draw(st.lists(calls, max_size=4)):
        out += solid("\n<tool_call>", "\n")
        named, given = f'"name": {json.dumps(name)}', json.dumps(arguments, ensure_ascii=draw(st.booleans()))
        order = draw(st.sampled_from(("name first", "arguments first", "no arguments")))
        if order == "name first":
            out += solid(f'{{{named}, "arguments": ') + soft(given) + solid("}")
        elif order == "arguments first":
            out += solid(f'{{"arguments": {given}, {named}}}')
        else:
            out += solid(f"{{{named}}}")
        ended = draw(st.sampled_from(("\n</tool_call>", "</tool_call>", "")))
        out += solid(ended) + soft(draw(words)) if ended else []
    return out + draw(st.sampled_from(([], solid("<|im_end|>"))))


@st.composite
def qwen3_coder(draw: st.DrawFn, thinking: bool) -> Output:
    out: Output = soft(draw(words)) + solid("\n</think>\n\n") if thinking else []
    before = draw(words)
    out += soft(before)
    for place, (name, arguments) in enumerate(draw(st.lists(calls, max_size=4))):
        if draw(st.booleans()):  # a function of no tool, in no section, is prose
            out += solid("\n<tool_call>" if place and not before else "\n\n<tool_call>", "\n")
        out += solid(f"<function={name}>", "\n")
        for key, value in arguments.items():
            out += solid(f"<parameter={key}>\n")
            out += soft(value) if isinstance(value, str) else solid(json.dumps(value))
            out += solid("\n</parameter>", "\n")
        ends = (solid("</function>", "\n"), solid("</function>"), [])
        out += draw(st.sampled_from(ends if arguments else ends[:2]))
        ended = draw(st.booleans())
        before = draw(words) if ended else ""
        out += solid("</tool_call>") + soft(before) if ended else []
    return out + draw(st.sampled_from(([], solid("<|im_end|>"))))


@st.composite
def harmony(draw: st.DrawFn, thinking: bool) -> Output:
    """Messages on any channel, to tools in either place of the header; what ends one may be missing before the next."""
    out: Output = []
    for place in range(draw(st.integers(1, 4))):
        out += solid("<|start|>assistant") if place else []
        if draw(st.booleans()):
            name, arguments = draw(calls)
            to = draw(st.sampled_from((f"functions.{name}", name)))
            json_mark = draw(st.sampled_from((" <|constrain|>json", "<|constrain|>json", " json", "")))
            before = f" to={to}<|channel|>commentary{json_mark}"
            after = f"<|channel|>commentary to={to}{json_mark}"
            out += solid(draw(st.sampled_from((before, after))) + "<|message|>") + soft(json.dumps(arguments))
            out += draw(st.sampled_from((solid("<|call|>"), [])))
        else:
            out += solid(f"<|channel|>{draw(st.sampled_from(('analysis', 'commentary', 'final')))}<|message|>")
            out += soft(draw(inner)) + draw(st.sampled_from((solid("<|end|>"), solid("<|return|>"), [])))
        out += soft(draw(words)) if out[-1][0] in ("<|call|>", "<|end|>", "<|return|>") else []
    return out


Oracle = Callable[..., oracles.Read]
CASES: dict[str, tuple[Oracle, Callable[[bool], st.SearchStrategy[Output]]]] = {
    "deepseek_v32": (oracles.deepseek_v32, dsml),
    "hermes": (oracles.hermes, hermes),
    "qwen3_coder": (oracles.qwen3_coder, qwen3_coder),
    "harmony": (oracles.harmony, harmony),
}

# -- comparing --------------------------------------------------------------------------------------------------------


def so_far(arguments: str) -> Any:
    """What the arguments of an unfinished call hold: values if only ends are missing, else the text.

    A name without a value says nothing.
    """
    arguments = re.sub(r'(?:, |(\{))"(?:[^"\\]|\\.)*": $', r"\1", arguments)
    for end in ("", "}", '"}', "{}"):
        try:
            return oracles.loads(arguments + end)
        except ValueError:
            continue
    return arguments


def compare(name: str, text: str, events: list[Event], *, thinking: bool, reason: str) -> None:
    message: Message = dovetail.fold(events)
    expected = CASES[name][0](text, SCHEMAS, thinking=thinking, reason=reason)
    ended = {event.index for event in events if isinstance(event, CallEnd)}
    read = [
        (call.name, oracles.loads(call.arguments) if i in ended else so_far(call.arguments), i in ended)
        for i, call in enumerate(message.calls)
    ]
    wanted = [
        (called, so_far(values) if isinstance(values, str) and not whole else values, whole)
        for (called, values), whole in zip(expected.calls, expected.whole, strict=True)
    ]
    prose = expected.content, expected.reasoning
    if reason == "length":
        prose = without_begun(name, prose[0], text), without_begun(name, prose[1], text)
    assert (message.content, message.reasoning, read) == (*prose, wanted)


def without_begun(name: str, prose: str, text: str) -> str:
    """`prose`, without the beginning of a marker in which the output `text` was cut off."""
    begun = (
        mark[:n] for mark in families.markers(name) for n in range(1, len(mark)) if is_begun(mark.strip(), mark[:n])
    )
    ends = (beginning for beginning in begun if text.endswith(beginning) and prose.endswith(beginning))
    return prose.removesuffix(max(ends, key=len, default=""))


def is_begun(mark: str, begun: str) -> bool:
    """Whether no text ends in `begun` by chance: it is most of `mark`, or the beginning of a control token."""
    begun = begun.strip()
    return bool(re.match(r"</?｜|<\|/?\w\w", begun)) or (len(begun) >= 4 and 2 * len(begun) > len(mark))


@pytest.mark.parametrize("name", CASES)
@given(st.data(), st.booleans(), families.cuts)
def test_equals_the_naive_reading(name: str, data: st.DataObject, thinking: bool, places: list[int]) -> None:
    text = "".join(piece for piece, _ in data.draw(CASES[name][1](thinking)))
    assume(not text.endswith("<|message|>"))  # of `harmony`: nothing shows then that it is a message's header
    compare(name, text, stream(name, cut(text, places), thinking=thinking), thinking=thinking, reason="stop")


@pytest.mark.parametrize("name", CASES)
@given(st.data(), st.booleans(), st.integers(min_value=0), st.integers(min_value=0))
def test_cut_off_equals_the_naive_reading(
    name: str, data: st.DataObject, thinking: bool, place: int, inside: int
) -> None:
    output = data.draw(CASES[name][1](thinking))
    place %= len(output) + 1
    text = "".join(piece for piece, _ in output[:place])
    if place < len(output) and output[place][1]:
        text += output[place][0][: inside % (len(output[place][0]) + 1)]
    for pieces in ([text], list(text)):
        events = stream(name, pieces, "length", TOOLS, thinking=thinking)
        compare(name, text, events, thinking=thinking, reason="length")
