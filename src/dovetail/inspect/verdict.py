"""What a recording shows, in words: why the answer ended where it did, and what is unusual about the request.

`misfits` says where an answer does not fit its schema: "prose at the schema's `city`".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Reasoning
from dovetail.gateway.observe.recording import RecordedOptions, Recording
from dovetail.inspect.answer_text import call_in, is_json, loop_at_the_end
from dovetail.reading import MALFORMED
from dovetail.reading.defects import KINDS

#: The details of defects, as `validation` and `grammar.schemas.check` write them.
_WHERE = re.compile(
    r"(?:call (?P<call>[0-9]{1,9}(?![0-9]))|content)(?:: (?P<pointer>/\S*|the arguments) against (?P<schema>\S+))?"
)
#: What the kinds of defects mean that the guards of a turn report.
_GUARDED = {
    "silent_turn": "the answer ended without content and without a call",
    "loop": "the answer repeats itself",
}
#: Characters of a text that repeats.
_SHOWN = 60
_INDEX = re.compile(r"[0-9]{1,9}")
#: A word, and the beginning of another one.
_PROSE = re.compile(r"[^\W\d_][^\s]*+\s++\S")
#: A string of JSON; group 2: it is a key.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"(\s*+:)?')


class Finding(msgspec.Struct, frozen=True):
    """One thing that a recording shows: a stable word for programs, and a sentence. `problem`: it may be why an answer
    is not what was wanted."""

    kind: str
    text: str
    problem: bool = False


def verdict(recording: Recording) -> list[Finding]:
    """The findings of `recording`: its end first."""
    return [
        *_error(recording),
        *_answers(recording),
        *_prompt(recording),
        *_prefix(recording),
        *_figures(recording),
    ]


def _error(recording: Recording) -> Iterator[Finding]:
    error = recording.error
    if error is None:
        return
    if error.type == "disconnected":
        where = "" if recording.steps else ", before its first token"
        yield Finding("disconnected", f"the client left before the end of the answer{where}", True)
    elif recording.prompt is None:
        yield Finding("refused", f"the request was refused: {error.type}: {error.message}", True)
    else:
        steps = len(recording.steps)
        yield Finding("failed", f"the answer failed after {_count(steps, 'step')}: {error.type}: {error.message}", True)


def _answers(recording: Recording) -> Iterator[Finding]:
    options = recording.options
    choices = sorted({step.choice for step in recording.steps})
    for choice in choices:
        answer = _Answer(recording, choice)
        prefix = f"choice {choice}: " if len(choices) > 1 else ""
        in_reasoning = recording.prompt is not None and recording.prompt.in_reasoning
        for finding in answer.findings(options, in_reasoning):
            yield msgspec.structs.replace(finding, text=prefix + finding.text)


class _Answer:
    """The answer of one choice: its calls, where it was when it ended, and how it ended."""

    def __init__(self, recording: Recording, choice: int) -> None:
        self._recording = recording
        steps = [step for step in recording.steps if step.choice == choice]
        self._last = steps[-1]
        self._checks = [check for step in steps for check in step.checks]
        self._tokens = sum(len(step.tokens) for step in steps)
        self._events: list[Event] = [event for step in steps for event in step.events]
        self._starts = [event for event in self._events if isinstance(event, CallStart)]
        ended = {event.index for event in self._events if isinstance(event, CallEnd)}
        self._guards = [guard for step in steps for guard in step.guards]
        written = [token for step in steps for token in step.tokens[len(step.tokens) - step.inserted :]]
        self._inserted = "".join(token.text for token in written)
        self._open = [call for call in self._starts if call.index not in ended]
        self._content = "".join(event.text for event in self._events if isinstance(event, Content))

    def findings(self, options: RecordedOptions | None, in_reasoning: bool) -> Iterator[Finding]:
        match self._last.finish:
            case None:
                pass  # the error says why
            case "length" if "loop" in self._guards and not self._fills(options):
                yield Finding("loop", f"ended because it repeats itself {self._place(in_reasoning)}", True)
            case "length":
                most = "" if options is None else f" ({options.max_tokens})"
                yield Finding("cut", f"cut at max_tokens{most} {self._place(in_reasoning)}", True)
            case _ if self._last.stop_string is not None:
                text = f"ended by the stop string {self._last.stop_string!r} {self._place(in_reasoning)}"
                yield Finding("stop_string", text, bool(self._open))
            case _:
                yield self._ended(options)
        if "silent" in self._guards:
            text = "the model would have ended its turn without a word, and had to go on"
            yield Finding("guard", f"{text}, behind {self._inserted!r}" if self._inserted else text)
        elif self._inserted:
            yield Finding("guard", f"the reasoning repeated itself, and was ended with {self._inserted!r}")
        if self._last.finish != "length" and self._last.stop_string is None:
            for call in self._open if self._last.finish is not None else ():
                yield Finding("open_call", f"{_call(call)} did not end: its arguments are not whole JSON", True)
        for number, check in enumerate(self._checks, 1):
            if check.fault is not None:
                text = f"check {number}, of a call of {check.tool or 'an unknown tool'}: {check.fault}"
                yield Finding("invalid_call", text, True)
        for text in misfits(self._events):
            yield Finding("misfit", text, True)
        yield from self._repeated()
        defects = Counter(event.kind for event in self._events if isinstance(event, Defect))
        for kind, count in defects.items():
            times = f" ({count} times)" if count > 1 else ""
            reported = f"the reader reports {kind}{times}: {KINDS.get(kind, 'a check failed')}"
            yield Finding("defect", _GUARDED[kind] + times if kind in _GUARDED else reported, True)

    def _fills(self, options: RecordedOptions | None) -> bool:
        """Whether the answer has as many tokens as it may have."""
        return options is not None and self._tokens >= options.max_tokens

    def _ended(self, options: RecordedOptions | None) -> Finding:
        """How an answer ended whose last token ends the turn."""
        if self._starts:
            return Finding("called", "the model called " + ", ".join(call.name for call in self._starts))
        if self._content.strip():
            return self._answered(options)
        if any(isinstance(event, Reasoning) for event in self._events):
            return Finding("ended_in_reasoning", "the model ended its turn in reasoning: no content, no call", True)
        return Finding("empty", f"the model ended its turn without any text, after {self._tokens} tokens", True)

    def _answered(self, options: RecordedOptions | None) -> Finding:
        """What the content of an answer without calls is."""
        name = call_in(self._content, _tools(self._recording))
        if name is not None:
            text = f"the model wrote a call of {name} as text, not as calls of this model are read: it stays content"
            return Finding("call_in_text", text, True)
        how = "in JSON" if is_json(self._content) else "in words"
        if options is not None and options.structured:
            asked = "as response_format asks" if how == "in JSON" else "although response_format is set"
            return Finding("answered", f"the model answered {how}, {asked}, and ended its turn")
        if options is not None and options.tools:
            return Finding("no_call", f"the model answered {how}, and called none of {_count(options.tools, 'tool')}")
        return Finding("answered", f"the model answered {how}, and ended its turn")

    def _repeated(self) -> Iterator[Finding]:
        """A loop in which the answer ends, unless a guard has reported one."""
        found = any(isinstance(event, Defect) and event.kind == "loop" for event in self._events)
        if found or "loop" in self._guards or self._recording.redacted:
            return
        reasoning = "".join(event.text for event in self._events if isinstance(event, Reasoning))
        for where, text in (("content", self._content), ("reasoning", reasoning)):
            loop = loop_at_the_end(text)
            if loop is not None:
                shown = loop.text if len(loop.text) <= _SHOWN else f"{loop.text[:_SHOWN]} …"
                yield Finding("repeats", f"the {where} ends in a loop: {shown!r} {loop.times} times", True)

    def _place(self, in_reasoning: bool) -> str:
        """Where the answer was when it ended."""
        if self._open:
            return f"inside {_call(self._open[-1])}"
        last = next((e for e in reversed(self._events) if isinstance(e, Content | Reasoning | CallEnd)), None)
        match last:
            case CallEnd(index):
                return f"after call {index + 1}"
            case Content():
                return "in content"
            case Reasoning():
                return "in reasoning"
            case _:
                return "in reasoning, before any text" if in_reasoning else "before any text"


def _tools(recording: Recording) -> list[str]:
    """The names of the request's tools, in any API; none where the request was left out."""
    try:
        tools = msgspec.json.decode(recording.request)["tools"]
        functions = [tool.get("function", tool) for tool in tools]
        return [name for function in functions if isinstance(name := function.get("name"), str)]
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return []


def _call(call: CallStart) -> str:
    return f"call {call.index + 1} ({call.name})"


def _prompt(recording: Recording) -> Iterator[Finding]:
    options = recording.options
    if options is not None:
        if options.continue_final_message:
            text = "the prompt lacks a generation prompt: `continue_final_message` was set"
            yield Finding("no_generation_prompt", text)
        elif not options.add_generation_prompt:
            text = "the prompt lacks a generation prompt: `add_generation_prompt` was false"
            yield Finding("no_generation_prompt", text, True)
        if options.omitted:
            yield Finding("omitted", "fields of the request that were left out: " + ", ".join(options.omitted))
        if options.unenforced:
            text = "no grammar enforces " + ", ".join(options.unenforced)
            yield Finding("unenforced", text)
    if recording.repairs:
        kinds = Counter(repair.kind for repair in recording.repairs)
        text = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in kinds.items())
        yield Finding("repaired", f"{_count(len(recording.repairs), 'repair')} of the history: {text}")


class Drafts(NamedTuple):
    """How many tokens were drafted, and how many of them were accepted."""

    drafted: int
    accepted: int


def drafts_of(recording: Recording) -> Drafts | None:
    """The drafts of all steps; None if no step reports drafts."""
    counted = [step for step in recording.steps if step.drafted is not None]
    if not counted:
        return None
    return Drafts(sum(step.drafted or 0 for step in counted), sum(step.accepted for step in counted))


def _prefix(recording: Recording) -> Iterator[Finding]:
    prefix = recording.prefix
    if prefix is None:
        return
    if prefix.cause is None:
        yield Finding("prefix", f"the prompt begins with the last one and its answer: {_count(prefix.kept, 'token')}")
        return
    text = (
        f"the prompt leaves the last one of its conversation after {prefix.kept:,} of {prefix.expected:,} tokens: "
        f"{prefix.explained}" + (f" ({prefix.field})" if prefix.field else "")
    )
    yield Finding("prefix", text, prefix.cause != "template")


def _figures(recording: Recording) -> Iterator[Finding]:
    drafted, accepted = drafts_of(recording) or (0, 0)
    if drafted:
        text = f"{accepted} of {_count(drafted, 'draft')} stood ({accepted / drafted:.0%})"
        yield Finding("speculation", f"{text} in {_count(len(recording.steps), 'step')}")
    yield from _grammar(recording)
    if recording.left_out:
        yield Finding("left_out", "left out of the recording: " + ", ".join(recording.left_out))
    if recording.redacted:
        yield Finding("redacted", "texts are redacted: only their lengths were recorded")


def _grammar(recording: Recording) -> Iterator[Finding]:
    """How narrow the grammar was."""
    counts = [count for step in recording.steps for count in step.allowed or () if count is not None]
    if counts:
        text = f"the grammar allowed one token only at {counts.count(1):,} of {_count(len(counts), 'place')}"
        refused = sum(step.refused_by == "grammar" for step in recording.steps)
        yield Finding("grammar", text + (f", and refused a draft in {_count(refused, 'step')}" if refused else ""))


def _count(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else one + 's'}"


def misfits(events: Sequence[Event]) -> Iterator[str]:
    """A sentence for each call, or content, that is no JSON or does not fit its schema."""
    texts = _texts(events)
    starts = {event.index: event for event in events if isinstance(event, CallStart)}
    indices = {start.id: start.index for start in starts.values()}
    for event in events:
        if not isinstance(event, Defect):
            continue
        index: int | None
        if event.kind == "malformed_call" and event.detail in indices:
            index = indices[event.detail]
            words = _not_json(_malformed(texts.get(index, "")))
        elif event.kind in ("schema_mismatch", "invalid_json") and (where := _WHERE.match(event.detail)) is not None:
            index = None if where["call"] is None else int(where["call"])
            text = texts.get(index, "")
            words = _not_json(text) if where["pointer"] is None else _mismatch(text, where["pointer"], where["schema"])
        else:  # of another kind, or redacted
            continue
        subject = "content" if index is None else f"call {index + 1} ({starts[index].name if index in starts else ''})"
        if words:
            yield f"{subject}: {words}"


def _malformed(arguments: str) -> str:
    """What the model wrote as the arguments of a call that cannot be read."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):  # the input of a custom tool, or cut
        return arguments
    raw = value.get(MALFORMED) if isinstance(value, dict) else None
    return raw if isinstance(raw, str) else arguments


def _texts(events: Sequence[Event]) -> dict[int | None, str]:
    """The arguments of each call by its index, and the content by None."""
    pieces: dict[int | None, list[str]] = {}
    for event in events:
        match event:
            case Content(text):
                pieces.setdefault(None, []).append(text)
            case CallArguments(index, fragment):
                pieces.setdefault(index, []).append(fragment)
            case _:
                pass
    return {index: "".join(texts) for index, texts in pieces.items()}


def _not_json(text: str) -> str:
    """Where `text` stops being JSON, if it has prose there."""
    try:
        json.loads(text)
        return ""
    except json.JSONDecodeError as error:
        at, in_a_value = error.pos, error.msg == "Expecting value"
    except (ValueError, RecursionError):  # a number, or a depth, beyond the library's limits
        return ""
    if _PROSE.match(text, at) is None:
        return ""
    keys = [string[1] for string in _STRING.finditer(text, 0, at) if string[2]] if in_a_value else []
    return f"prose at the schema's `{keys[-1]}`" if keys else "prose where the schema begins"


def _mismatch(text: str, pointer: str, schema: str) -> str:
    keyword = schema.rpartition("/")[2]
    if not pointer.startswith("/"):
        return f"does not fit the schema's `{keyword}`"
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    name = "".join(f"[{part}]" if _INDEX.fullmatch(part) else f".{part}" for part in path).removeprefix(".")
    value = _value(text, path)
    if isinstance(value, str) and _PROSE.match(value):
        return f"prose at the schema's `{name}`"
    return f"`{name}` does not fit the schema's `{keyword}`"


def _value(text: str, path: Sequence[str]) -> Any:
    """The value in `text` at the path of a JSON pointer (RFC 6901); None if there is none, as in redacted texts."""
    try:
        value = msgspec.json.decode(text.encode(errors="replace"))
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
        return None
    return value
