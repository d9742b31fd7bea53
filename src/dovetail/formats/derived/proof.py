"""Compares a format with a chat template on random messages.

1. The answer that the template renders reads back as the message, whole and in pieces.
2. What was read, written by the format, is the text that the template rendered.
3. The grammar of a request with these tools accepts that text.

The messages are random with a fixed seed, so that the same template gets the same verdict everywhere.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dovetail.errors import DovetailError
from dovetail.events import Call, Event, Message, fold
from dovetail.formats.base import Format
from dovetail.formats.derived.sample_answers import CONTENT, Messages, Render, atoms_of, begin_of_answer, common
from dovetail.tokens import Prompt, Segment, Tokenizer

MESSAGES = 8
SEED = 22
_TYPES = ("string", "integer", "number", "boolean", "array", "object")
_SCHEMAS: dict[str, dict[str, Any]] = {
    "city": {"type": "string"},
    "note": {"type": "string"},
    "days": {"type": "integer"},
    "ratio": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    # Command R+'s template refuses an object without `additionalProperties`, and a property without a description.
    "place": {
        "type": "object",
        "properties": {"lat": {"type": "number"}, "name": {"type": "string"}},
        "additionalProperties": {},
    },
}
_PROPERTIES = {key: {"description": f"the {key}", **schema} for key, schema in _SCHEMAS.items()}
_NAMES = ("get_weather", "find-place")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} does",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": []},
        },
    }
    for name in _NAMES
]
_USER = {"role": "user", "content": "What is it?"}
#: The defects that a template's own texts may have: it spells values as Python does, or writes all of them as strings.
_MEANT = ("python_value", "mistyped_value")
TEXTS = (
    "Paris",
    "São Paulo 漢字 🙂",
    'He said "no"',
    "a < b && c > d",
    "C:\\new\\tab",
    "{x: [1, 2]}",
    "two\nlines\n\nand more",
    "3",
    "null",
    "it's",
    "a, b; c",
    "tab\there",
)


class Samples:
    """Random messages."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def message(self, number: int, most_calls: int, *, both: bool) -> Message:
        calls = tuple(self._call(i) for i in range(number % (most_calls + 1)))
        content = self._random.choice(TEXTS) if not calls or (both and number % 2) else ""
        return Message(content, "", calls)

    def _call(self, i: int) -> Call:
        count = self._random.choice((0, 1, 1, 2, 4))
        keys = [key for key in _PROPERTIES if key in self._random.sample(list(_PROPERTIES), count)]
        arguments = {key: self._value(key) for key in keys}
        return Call(f"call0000{i}", self._random.choice(_NAMES), json.dumps(arguments, ensure_ascii=False))

    def _value(self, key: str) -> Any:
        pick = self._random.choice
        match key:
            case "days":
                return pick((0, -7, 12345678901234567890))
            case "ratio":
                return pick((2.5, -0.125, 1e16))
            case "exact":
                return pick((True, False))
            case "tags":
                return pick(([], [pick(TEXTS)], ["a", pick(TEXTS)]))
            case "place":
                return pick(({}, {"lat": 1.5, "name": pick(TEXTS)}))
        return pick(TEXTS)


class Verdict(NamedTuple):
    """What is wrong with a format, in three parts; "" for a part that is right for all messages.

    `reading`: an answer of the template does not read back. `writing`: it is written otherwise. `grammar`: the grammar
    refuses it.
    """

    reading: str = ""
    writing: str = ""
    grammar: str = ""

    @property
    def failure(self) -> str:
        return next(filter(None, self), "")


def verdict(fmt: Format, render: Render, parallel: bool, both: bool, messages: int = MESSAGES) -> Verdict:
    """Whether `fmt` reads, writes and constrains what the template renders.

    `parallel`: whether the template shows several calls. `both`: whether it shows content beside calls.
    """
    samples = Samples(SEED)
    drawn = [samples.message(number, 3 if parallel else 1, both=both) for number in range(messages)]
    problems = {"reading": "", "writing": "", "grammar": ""}
    grammar = None
    try:
        grammar = _Grammar(fmt)
    except DovetailError as error:
        problems["grammar"] = error.message
    except ValueError as error:  # from the compiler of grammars
        problems["grammar"] = f"its grammar does not compile: {str(error).partition(chr(10))[0]}"
    try:
        rendered = _Rendered(fmt, render)
        for message in drawn:
            for part, problem in _problems(fmt, rendered, message, grammar):
                problems[part] = problems[part] or problem
            if problems["reading"]:
                break
    except DovetailError as error:
        problems["reading"] = error.message
    return Verdict(**problems)


def alone(fmt: Format) -> Verdict:
    """Whether `fmt` reads and constrains what it writes itself: for a template that shows no calls."""

    def render(messages: Messages, tools: Messages | None, opens: bool) -> Prompt:
        segments = [Segment(f"{_USER['content']}\n", False)]
        for message in messages[1:]:
            calls = (call["function"] for call in message.get("tool_calls", ()))
            called = tuple(
                Call(f"call0000{i}", each["name"], _text_of(each["arguments"])) for i, each in enumerate(calls)
            )
            segments += fmt.write(Message(message["content"] or "", "", called), thinking=False).segments
        return Prompt(segments)

    return verdict(fmt, render, True, True)


def _text_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _problems(
    fmt: Format, rendered: _Rendered, message: Message, grammar: _Grammar | None
) -> Iterator[tuple[str, str]]:
    """The parts of a `Verdict` that one message shows to be wrong."""
    answer, thinking = rendered.answer(message), rendered.thinking
    body = _without_reasoning(fmt, answer)
    shown = f"an answer with {message.content!r:.40}" + (f" and {len(message.calls)} calls" if message.calls else "")
    segments = answer if thinking else body
    tokenizer = _Bytes([control for control in fmt.reader_type.controls if fmt.has_token(control)])
    whole = fmt.reader(TOOLS, thinking=thinking, tokenizer=tokenizer)
    read = fold([*whole.feed_segments(segments), *whole.finish()])
    if (difference := _difference(message, read)) != "":
        yield "reading", f"{shown} does not read back: {difference}"
        return
    text = "".join(segment.text for segment in segments)
    for pieces in _cuts(text, single=len(message.calls) == 2):
        reader = fmt.reader(TOOLS, thinking=thinking)
        events: list[Event] = [event for piece in pieces for event in reader.feed(piece)]
        if (difference := _difference(message, fold([*events, *reader.finish()]))) != "":
            yield "reading", f"{shown} does not read back in pieces: {difference}"
            return
    if read.defects:  # a value is spelled as Python does; we write JSON
        return
    theirs = _text(body)
    # A reader may use no id that comes after the arguments.
    forms = (_text(_without_end(fmt, _written(fmt, read, ids).segments)) for ids in (read.calls, message.calls))
    if theirs not in (ours := list(forms)):
        at = common(ours[0], theirs)
        yield "writing", f"{shown} is written otherwise: {ours[0][at : at + 40]!r} and not {theirs[at : at + 40]!r}"
    if grammar is not None and not grammar.accepts(body):
        yield "grammar", f"the grammar refuses {shown}"


class _Rendered:
    """Renders answers and cuts them out of their prompts."""

    def __init__(self, fmt: Format, render: Render) -> None:
        self._format, self._render = fmt, render
        opened = render([_USER], TOOLS, True)
        answered = render([_USER, {"role": "assistant", "content": CONTENT}], TOOLS, False)
        atoms = atoms_of((*fmt.reader_type.controls, *fmt.end_of_turn)).findall
        self._begin = functools.partial(begin_of_answer, atoms, opened.text, question=_USER["content"])
        #: Where an answer with content begins in its prompt.
        self._start = self._begin(answered.text)
        after = _after_end(fmt, [*segments_from(answered, self._start)])
        self._next_turn = [*itertools.dropwhile(lambda segment: not segment.text.strip(), after)]
        #: Whether an answer is read as one that begins inside a reasoning block.
        self.thinking = answered.text.startswith(opened.text) and fmt.left_open(opened)

    def answer(self, message: Message) -> Sequence[Segment]:
        """The answer as the template writes it, without its end."""
        rules = self._format.history_rules
        calls = [{"id": call.id, "type": "function", "function": self._function(call)} for call in message.calls]
        content = None if calls and not message.content and rules.null_beside_calls else message.content
        sent = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        answer = [*segments_from(self._render([_USER, sent], TOOLS, False), self._start)]
        turn = len(answer) - len(self._next_turn)
        return _without_end(self._format, answer[:turn] if answer[turn:] == self._next_turn else answer)

    def _function(self, call: Call) -> dict[str, Any]:
        as_object = self._format.history_rules.arguments == "object"
        return {"name": call.name, "arguments": json.loads(call.arguments) if as_object else call.arguments}


def segments_from(prompt: Prompt, start: int) -> Iterator[Segment]:
    """The segments of `prompt` from character `start` on."""
    at = 0
    for text, control in prompt.segments:
        if at + len(text) > start:
            yield Segment(text[max(0, start - at) :], control)
        at += len(text)


def _without_end(fmt: Format, segments: Sequence[Segment]) -> Sequence[Segment]:
    return segments[: end_of_turn(fmt, segments)]


def _after_end(fmt: Format, segments: Sequence[Segment]) -> Sequence[Segment]:
    return segments[end_of_turn(fmt, segments) + 1 :]


def end_of_turn(fmt: Format, segments: Sequence[Segment]) -> int:
    """Where the end of the turn stands in `segments`."""
    ends = (i for i, (text, control) in enumerate(segments) if control and text in fmt.end_of_turn)
    return next(ends, len(segments))


def _without_reasoning(fmt: Format, segments: Sequence[Segment]) -> list[Segment]:
    """The segments after the reasoning block, which is empty if there is one."""
    end = fmt.reader_type.think_end.strip()
    text = "".join(segment.text for segment in segments)
    start = text.find(end) + len(end) if end in text else 0
    while text[start : start + 1] == "\n":
        start += 1
    return list(segments_from(Prompt(segments), start))


def _text(segments: Sequence[Segment]) -> str:
    """The text, without the newlines at its beginning, which readers drop."""
    return "".join(segment.text for segment in segments).lstrip("\n")


def _written(fmt: Format, read: Message, ids: Sequence[Call]) -> Prompt:
    """What was read as the format writes it, with the ids of `ids`."""
    calls = (Call(own.id, call.name, call.arguments) for call, own in zip(read.calls, ids, strict=True))
    return fmt.write(Message(read.content, "", tuple(calls)), thinking=False)


def _difference(sent: Message, read: Message) -> str:
    # Some templates show content beside calls as reasoning.
    shown = read.content or (read.reasoning if sent.calls else "")
    if shown.strip() != sent.content:
        return f"its content is read as {read.content!r:.80}"
    if read.content and read.reasoning.strip():
        return f"reasoning is read: {read.reasoning!r:.80}"
    called = [(call.name, json.loads(call.arguments)) for call in sent.calls]
    try:
        calls = [(call.name, json.loads(call.arguments)) for call in read.calls]
    except ValueError:
        return "the arguments are no JSON"
    if calls != called:
        return f"its calls are read as {calls!r:.80}"
    defects = [defect.kind for defect in read.defects if defect.kind not in _MEANT]
    return f"it reads with the defect {defects[0]}" if defects else ""


def _cuts(text: str, *, single: bool) -> Iterator[Sequence[str]]:
    """`text` in pieces: of several characters, and also of one if `single`."""
    for size in (1, 7) if single else (5,):
        yield [text[at : at + size] for at in range(0, len(text), size)]


# -- the grammar ------------------------------------------------------------------------------------------------------


class _Bytes(Tokenizer):
    """A token for each byte, and control tokens: a grammar is compiled for it in a few milliseconds."""

    def __init__(self, control: Sequence[str]) -> None:
        self.control = {literal: 256 + i for i, literal in enumerate(control)}
        self.vocab_size = 256 + len(control)

    def _encode(self, text: str) -> list[int]:
        return list(text.encode())

    def _bytes(self, token: int) -> bytes:
        return bytes([token])


class _Grammar:
    """The grammar of a request with the tools of the proof."""

    def __init__(self, fmt: Format) -> None:
        from dovetail.grammar import matcher

        self._tokenizer = _Bytes([*dict.fromkeys((*fmt.reader_type.controls, *fmt.end_of_turn))])
        ends = tuple(self._tokenizer.control[end] for end in fmt.end_of_turn)
        grammar = fmt.grammar(TOOLS, thinking=False, silent=True)
        assert grammar is not None
        vocabulary = matcher.Vocabulary(self._tokenizer, ends)
        self._matcher = matcher.Matcher(matcher.Compiled(vocabulary, grammar.lark(self._tokenizer.control)))
        self._ends = ends

    def accepts(self, segments: Sequence[Segment]) -> bool:
        """Whether an answer with these segments may end a turn: some families have another end after calls."""
        matcher = self._matcher.another()
        ids = Prompt(segments).ids(self._tokenizer)
        return all(map(matcher.advance, ids)) and any(map(matcher.advance, self._ends))
