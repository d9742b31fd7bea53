"""Calls as a list of Python calls, as Llama 4 and others write them: `pythonic`.

    [get_weather(city="Paris"), get_time()]

The list is the whole output, or is between `<|python_start|>` and `<|python_end|>`, with text around these. LFM2.5
always writes markers: `<|tool_call_start|>` and `<|tool_call_end|>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from dovetail.conversation import Call, Message, Tool
from dovetail.errors import InvalidRequest
from dovetail.events import Content, Reasoning
from dovetail.formats import call_envelope, plain_text, python_grammar, python_values
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.formats.declared import parameters
from dovetail.grammar import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    Grammar,
    JsonSchema,
    Maybe,
    Node,
    Regex,
    Repeat,
    RuleRef,
    Rules,
)
from dovetail.grammar.patterns import quoted
from dovetail.reading import Script
from dovetail.reading.calls import MOST_SPACE
from dovetail.reading.python_literals import SPACE, PythonReader
from dovetail.tokens import Prompt, Segment

CALLS, CALLS_END, TAG = "<|python_start|>", "<|python_end|>", "<|python_tag|>"
LIQUID, LIQUID_END = "<|tool_call_start|>", "<|tool_call_end|>"  # of LFM2.5
TURN_ENDS = ("<|eot|>", "<|eom|>", "<|eot_id|>", "<|eom_id|>")
THINK, THINK_END = "<think>", "</think>"

#: The most characters of a name, and one more.
_LONGEST_NAME = 128 + 1
_GAP = rf"[ \t\r\n]{{0,{MOST_SPACE}}}"
_NAME = re.compile(r"[^\W\d][\w.-]*")
#: The characters that end a name. A call's name ends at `(`.
_AFTER_NAME = tuple("( \t\r\n\f,:;=!?'\"`*/\\|<>[]{})&%$#@^~+")
_KEYWORD = re.compile(r"[^\W\d]\w*")


class PythonicReader(PythonReader):
    """Reads lists of calls. A list begins with `[`, a name and `(`.

    Any name opens a list at the beginning of the output, after a marker and after another list. Elsewhere in text, only
    the name of one of the request's tools does.
    """

    unmarked = r"\["
    layout = r",\s*[\])]"  # Python allows a comma after the last item
    controls = (CALLS, CALLS_END, LIQUID, LIQUID_END, TAG, *TURN_ENDS)
    ends = (CALLS_END, LIQUID_END, *TURN_ENDS)

    def _read(self) -> Script[None]:
        place: type[Reasoning] | type[Content] = Reasoning if self._options.thinking else Content
        markers = (CALLS, LIQUID, TAG, THINK, THINK_END, *self.ends)
        # In text, no more than the longest tool name is buffered to see whether a list begins.
        longest = self._longest_name + 1
        marked = False  # whether `<|python_start|>` is open
        begins = True  # whether any name opens a list here
        expected = False  # whether a list has to come, after its marker
        while True:
            if begins and place is Content:
                while (yield from self._first_list(expected)):
                    expected = False
                expected = False
            may_be_called = self._options.calls and not self._options.structured
            in_text = place is Content and may_be_called and self._options.tools
            marker = yield from self._prose(place, *markers, *("[",) * bool(in_text))
            begins = marker != "["
            if marker is None:
                return
            if marker == "[":
                begins = yield from self._list(longest, self._options.tools.__contains__)
            elif marker in (THINK, THINK_END):
                if marker == THINK_END and place is Content:
                    self._stray_marker(marker)
                place = Reasoning if marker == THINK else Content
            elif marker in (CALLS, LIQUID, TAG):
                if not self._options.calls:
                    self._defect("call_not_allowed", marker)
                elif place is Reasoning:
                    self._defect("reasoning_not_closed")
                place, marked, expected = Content, marker != TAG, self._options.calls
            else:
                if marker in (CALLS_END, LIQUID_END) and not marked:
                    self._stray_marker(marker)
                place, marked = Content, False

    def _first_list(self, expected: bool) -> Script[bool]:
        """Read a list and the whitespace before it, which is markup; False if no list comes."""
        space = yield from self._skip(SPACE, MOST_SPACE)
        may_be_called = self._options.calls and (expected or not self._options.structured)
        bracket = may_be_called and (yield from self._next_is("["))
        if bracket and (yield from self._list(_LONGEST_NAME, _NAME.fullmatch, space)):
            return True
        following = yield from self._peek()
        if expected and not following and self._cut_off:
            self._defect("truncated_call")
        elif expected:
            empty = not bracket and following in ("", *self.controls)
            self._defect("empty_section" if empty else "unreadable_call")
        after_calls = self._index >= 0 and following in ("", *self.ends)
        if space and not bracket and not after_calls:
            self._events.append(Content(space))
        return False

    def _list(self, longest: int, is_name: Callable[[str], object], space: str = "") -> Script[bool]:
        """Read the list of calls after a `[`; False if it is no list but text."""
        inside = yield from self._skip(SPACE, MOST_SPACE)
        name, stop = yield from self._read_up_to(longest, *_AFTER_NAME, *self.controls)
        if stop != "(" or not is_name(name):
            self._unread()
            self._events.append(Content(f"{space}[{inside}{name}"))
            return False
        while name:
            self._open_call(name)
            yield from self._call(name)
            name = yield from self._next_call()
        return True

    def _next_call(self) -> Script[str]:
        """Read the name of the list's next call and its `(`; "" if the list is over."""
        yield from self._skip(SPACE)
        comma = (yield from self._next_is(",")) or ""
        yield from self._skip(SPACE)
        if (yield from self._next_is("]")):
            return ""
        name, stop = yield from self._read_up_to(_LONGEST_NAME, *_AFTER_NAME, *self.controls)
        if stop == "(" and _NAME.fullmatch(name):
            if not comma:
                self._defect("missing_comma", name)
            return name
        self._unread()
        self._abandon(comma + name, "truncated_call" if name and stop is None else "missing_section_end")
        return ""

    def _call(self, name: str) -> Script[None]:
        outcome = yield from self._python_arguments(name)
        if outcome == "ended":
            self._end_call()
            return
        self._flush()
        following = yield from self._peek()
        if not following:
            self._truncated_call()
        elif outcome == "between" and following in ("]", *self.ends):
            self._defect("missing_call_end", self._id)
            self._write("}")
            self._end_call()
        else:
            if following not in self.ends:
                yield from self._raw_arguments()
            self._defect("invalid_arguments", self._id)


class PythonicAnswers(plain_text.PlainTextAnswers):
    format: Pythonic

    def call_marker(self) -> str:
        return self.format.around_calls[0]

    def answer(
        self, tools: Mapping[int, Tool], required: bool, thinking: bool, parallel: bool, others: Sequence[str]
    ) -> Grammar:
        text = self._text([*(tool.name for tool in tools.values()), *others])
        calls = self.calls(tools, parallel)
        opener, closer = self.format.around_calls
        marked = Concat((self.mark(opener), calls, Maybe(self.mark(closer))))
        listed: Node = Choice((Concat((Maybe(self.mark(TAG)), calls)), marked))
        return Grammar(Concat((*self.reasoning(thinking), Maybe(text), listed if required else Maybe(listed))))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        rules = python_values.anything()
        called: list[Node] = []
        for index, tool in tools.items():
            if not _NAME.fullmatch(tool.name):
                where = f"tools[{index}].function.name"
                raise InvalidRequest(f"{where} {tool.name!r} cannot be the name of a Python function", param=where)
            schema = self.slots(index, tool)[call_envelope.ARGUMENTS]
            assert isinstance(schema, JsonSchema)
            arguments, own_rules = python_grammar.arguments(schema.schema, schema.origin, f"t{index}_")
            rules |= own_rules
            opening = Regex(rf"{_GAP}{quoted(tool.name)}\({_GAP}")
            called.append(Concat((opening, arguments, Regex(rf"{_GAP}\)"))))
        rules["call"] = Choice(tuple(called))
        more = (Repeat(Concat((Regex(f"{_GAP},"), RuleRef("call"))), 0),) if parallel else ()
        return Rules(Concat((ExactText("["), RuleRef("call"), *more, Regex(rf"{_GAP}\]"))), rules)

    def _text(self, names: Sequence[str]) -> Node:
        """Content in which the reader finds no list of calls.

        At the beginning, any name would open a list; after that, only one of `names`.
        """
        marks = self.marks()
        stops = plain_text.stops(marks, "[")
        tags = plain_text.pieces(marks, stops)
        called = Regex(plain_text.after_blanks(stops, [f"{name}(" for name in names]))
        first, later = (Concat((ExactText("["), Maybe(rest))) for rest in (_no_call(stops), called))
        return plain_text.text((first, *tags, plain_text.words(stops)), (later, *tags))


class Pythonic(Format):
    """Llama 4, Llama 3.2 and others with templates for Python calls."""

    name = "pythonic"
    vllm_parsers = EngineParsers("pythonic")
    sglang_parsers = EngineParsers("pythonic")
    reasoning: ReasoningBlock = "none"
    end_of_turn = TURN_ENDS
    _reader = PythonicReader
    _answers = PythonicAnswers

    @property
    def around_calls(self) -> tuple[str, str]:
        """The markers around a list of calls in text."""
        liquid = isinstance(self.mark(LIQUID), ControlToken) and not isinstance(self.mark(CALLS), ControlToken)
        return (LIQUID, LIQUID_END) if liquid else (CALLS, CALLS_END)

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """Calls after content get markers, so that any name can be told from text."""
        segments = []
        if thinking and message.reasoning:
            segments.append(Segment(f"{THINK}{message.reasoning}{THINK_END}", False))
        segments.append(Segment(message.content, False))
        if message.calls:
            calls = ", ".join(f"{call.name}({_arguments(call)})" for call in message.calls)
            listed = Segment(f"[{calls}]", False)
            opener, closer = self.around_calls
            marked = message.content or opener == LIQUID
            segments += [Segment(opener, True), listed, Segment(closer, True)] if marked else [listed]
        return Prompt([*segments, Segment(TURN_ENDS[0], True)])


def _no_call(stops: str) -> Regex:
    """Text up to the next of `stops` that is not a name with a `(` after it."""
    space = plain_text.BLANK
    name = f"[^{plain_text.in_class(''.join(_AFTER_NAME) + stops)}]+"
    after_name = plain_text.in_class("".join(stop for stop in _AFTER_NAME if stop not in "(" + stops))
    no_name = plain_text.in_class("".join(stop for stop in _AFTER_NAME if stop not in SPACE + stops))
    rest = f"[^{plain_text.in_class(stops)}]*"
    text = f"{name}(?:[{after_name}]{rest})?|[{no_name}]{rest}"
    return Regex(f"[{space}]*(?:{text})|[{space}]+")


def _arguments(call: Call) -> str:
    """A call's arguments in Python. A key that is no Python name is written as `**{"key": value}`."""
    written = []
    for key, value, is_string in parameters(call):
        python = python_values.python(json.dumps(value, ensure_ascii=False) if is_string else value)
        named = _KEYWORD.fullmatch(key)
        written.append(f"{key}={python}" if named else f"**{{{json.dumps(key, ensure_ascii=False)}: {python}}}")
    return ", ".join(written)
