"""`roundtrip`: whether a parser of response templates reads what a model's prompts show of random answers.

The messages are random with a fixed seed. The first one that reads otherwise is made as small as it can be, so that it
shows the value that breaks it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from dovetail.errors import DovetailError
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.derived.proof import SEED, TEXTS, TOOLS, Samples, end_of_turn, segments_from
from dovetail.formats.derived.sample_answers import Render, SampleAnswers, Shows, atoms_of, begin_of_answer
from dovetail.formats.response_templates.families import CALLS, CONTENT, REASONING
from dovetail.tokens import Prompt

MESSAGES = 24
_MOST_ATTEMPTS = 200
#: Repairs that are left out, so that an answer stands in a prompt as it was sent.
_AS_SENT = ("unanswered_call", "calls_split")
USER = {"role": "user", "content": "What is it?"}

#: (text of the answer, prompt before it) -> the message. Raises `Unparsed`.
Parse = Callable[[str, str], Mapping[str, Any]]


class Unparsed(Exception):
    """The parser fails. The message says why, for people."""


class Difference(NamedTuple):
    """A message that reads otherwise.

    `part`: the first part that differs: content, reasoning or tool_calls. `sent`, `read`: what it was, and what was
    read, or why it could not be. `text`: the answer as it stands in the prompt. `message`: all of the message.
    """

    part: str
    sent: Any
    read: Any
    text: str
    message: Mapping[str, Any]


class Result(NamedTuple):
    """`messages`: how many were tried. `calling`: how many of them have calls, none if prompts show no calls.

    `differing`: how many messages read otherwise. `difference`: the first one.
    """

    messages: int
    calling: int
    differing: int
    difference: Difference | None


def roundtrip(fmt: Format, parse: Parse, messages: int = MESSAGES) -> Result:
    """Parse the answers in the prompts of `fmt`. Raises a `DovetailError` if it refuses all of them."""
    answers = Answers(fmt)
    samples = Samples(SEED)
    drawn = [
        replace(
            samples.message(i, 3 if answers.shows.parallel else bool(answers.shows.calls), both=answers.shows.both),
            reasoning=TEXTS[i % len(TEXTS)] if i % 2 else "",
        )
        for i in range(messages)
    ]
    differences, tried, refusal = [], [], None
    for message in drawn:
        try:
            found = _difference(answers, parse, message)
        except DovetailError as error:  # a chat template may refuse it
            refusal = error
            continue
        tried.append(message)
        differences += [] if found is None else [(message, found)]
    if refusal is not None and not tried:
        raise refusal
    smallest = _smallest(answers, parse, *differences[0]) if differences else None
    return Result(len(tried), sum(bool(message.calls) for message in tried), len(differences), smallest)


def rendering(fmt: Format) -> Render:
    """Renders with `fmt`, after what it repairs in histories."""

    def render(messages: Any, tools: Any, opens: bool) -> Prompt:
        repaired = fmt.repair(messages, tools, off=_AS_SENT)[0]
        try:
            return fmt.render(repaired, tools, add_generation_prompt=opens)
        except DovetailError:  # DeepSeek V3.2 takes no answer without reasoning, unless the model may not reason
            return fmt.render(repaired, tools, add_generation_prompt=opens, thinking=False)

    return render


class _Shown(NamedTuple):
    calls: bool
    parallel: bool
    both: bool


class Answers:
    """Answers to one question as they stand in prompts.

    `shows`: what prompts show of calls.
    """

    def __init__(self, fmt: Format) -> None:
        self._format, self._render = fmt, rendering(fmt)
        self._opened = self._render([USER], TOOLS, True).text
        self._atoms = atoms_of((*fmt.reader_type.controls, *fmt.end_of_turn)).findall
        samples = SampleAnswers(self._render, fmt.reader_type.controls, json.dumps, lambda text: text, fmt.end_of_turn)
        shows: Shows | None = samples.shows()
        self.shows = _Shown(False, False, False) if shows is None else _Shown(True, *shows)

    def text(self, message: Message) -> tuple[str, str]:
        """The answer up to the end of its turn, and the prompt before it."""
        prompt = self._render([USER, sent(message)], TOOLS, False)
        start = begin_of_answer(self._atoms, self._opened, prompt.text, USER["content"])
        segments = [*segments_from(prompt, start)]
        turn = segments[: end_of_turn(self._format, segments) + 1]
        return "".join(segment.text for segment in turn), prompt.text[:start]

    def shown(self, message: Message) -> Message:
        """`message` without the parts that prompts leave out or refuse."""
        without = replace(message, reasoning="")
        try:
            return without if message.reasoning and self.text(message) == self.text(without) else message
        except DovetailError:  # gpt-oss takes no reasoning beside content and calls
            return without


def sent(message: Message) -> dict[str, Any]:
    """A message as clients send it."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    return {
        "role": "assistant",
        "content": message.content,
        **({"reasoning_content": message.reasoning} if message.reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _difference(answers: Answers, parse: Parse, message: Message) -> Difference | None:
    message = answers.shown(message)
    text, prompt = answers.text(message)
    called = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.calls]
    parts = {"reasoning": message.reasoning, CONTENT: message.content, CALLS: called}
    try:
        parsed = parse(text, prompt)
        reasoning = next((parsed[name] for name in REASONING if parsed.get(name)), "")
        read = {
            "reasoning": _text(reasoning),
            CONTENT: _text(parsed.get(CONTENT) or ""),
            CALLS: [_called(each) for each in parsed.get(CALLS) or ()],
        }
    except Unparsed as error:
        part = next(part for part in (CALLS, CONTENT) if parts[part] or part == CONTENT)
        return Difference(part, parts[part], f"it cannot be read: {error}", text, sent(message))
    for part, value in parts.items():
        if read[part] != value:
            return Difference(part, value, read[part], text, sent(message))
    return None


def _text(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _called(call: Any) -> Any:
    """A call without what is not compared."""
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        return {"name": name, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
    except (KeyError, TypeError, ValueError):
        return call


# -- the smallest message that differs --------------------------------------------------------------------------------


def _smallest(answers: Answers, parse: Parse, message: Message, difference: Difference) -> Difference:
    attempts = _MOST_ATTEMPTS
    candidates = _smaller(message)
    while attempts and (candidate := next(candidates, None)) is not None:
        attempts -= 1
        try:
            found = _difference(answers, parse, candidate)
        except DovetailError:
            continue
        if found is not None and found.part == difference.part:
            difference, candidates = found, _smaller(candidate)
    return difference


def _smaller(message: Message) -> Iterator[Message]:
    """Messages with less in them than `message`, the smallest ones first."""
    if message.reasoning:
        yield replace(message, reasoning="")
    if message.content and message.calls:
        yield replace(message, content="")
    for i, call in enumerate(message.calls):
        others = (message.calls[:i], message.calls[i + 1 :])
        if len(message.calls) > 1 or message.content:
            yield replace(message, calls=(*others[0], *others[1]))
        arguments = json.loads(call.arguments)
        for fewer in _smaller_values(arguments):
            smaller = Call(call.id, call.name, json.dumps(fewer, ensure_ascii=False))
            yield replace(message, calls=(*others[0], smaller, *others[1]))
    for part in ("content", "reasoning"):
        for text in filter(None, map(str.strip, _smaller_values(getattr(message, part)))):
            yield replace(message, **{part: text})


@functools.singledispatch
def _smaller_values(value: Any) -> Iterator[Any]:
    """Values of the same kind with less in them."""
    return iter(())


@_smaller_values.register
def _(value: str) -> Iterator[str]:
    half = len(value) // 2
    yield from (part for part in (value[:half], value[half:], value[1:], value[:-1]) if part != value)


@_smaller_values.register
def _(value: dict) -> Iterator[dict[str, Any]]:  # type: ignore[type-arg]
    for key, inner in value.items():
        rest = {name: other for name, other in value.items() if name != key}
        yield rest
        yield from ({**value, key: smaller} for smaller in _smaller_values(inner))


@_smaller_values.register
def _(value: list) -> Iterator[list[Any]]:  # type: ignore[type-arg]
    for i, inner in enumerate(value):
        yield [*value[:i], *value[i + 1 :]]
        yield from ([*value[:i], smaller, *value[i + 1 :]] for smaller in _smaller_values(inner))
