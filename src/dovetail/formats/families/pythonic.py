"""Calls as a list of Python calls, as Llama 4 and others write them: `pythonic`.

    [get_weather(city="Paris"), get_time()]

The list is the whole output, or is between `<|python_start|>` and `<|python_end|>`, with text around these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from dovetail.conversation import Tool
from dovetail.custom_tools import INPUT
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Content, Message, Reasoning
from dovetail.formats.answers import plain_text, value_grammar
from dovetail.formats.answers.answer_grammar import BLANKS, Asked
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.formats.declared import python_values
from dovetail.formats.declared.declared import parameters
from dovetail.formats.declared.python_values import PYTHON
from dovetail.formats.declared.value_syntax import Syntax
from dovetail.grammar import (
    Choice,
    Concat,
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
from dovetail.reading import ReaderOptions, Script
from dovetail.reading.bare_json import bare_call
from dovetail.reading.json_end import JsonEnd
from dovetail.reading.json_text import closing
from dovetail.reading.prose import FARTHEST_CALL, MOST_SPACE, CallTrial
from dovetail.reading.python_literals import SPACE, PythonReader
from dovetail.reading.reader import Abandoned
from dovetail.tokens import Prompt, Segment, Tokenizer

CALLS, CALLS_END, TAG = "<|python_start|>", "<|python_end|>", "<|python_tag|>"
TURN_ENDS = ("<|eot|>", "<|eom|>", "<|eot_id|>", "<|eom_id|>")
THINK, THINK_END = "<think>", "</think>"

#: The most tools whose calls are looked for outside of a list.
_MOST_NAMES = 128
#: The most characters of a name, and one more.
_LONGEST_NAME = 128 + 1
_GAP = rf"[ \t\r\n]{{0,{MOST_SPACE}}}"
_NAME = re.compile(r"[^\W\d][\w.-]*")
#: The characters that end a name. A call's name ends at `(`.
_AFTER_NAME = tuple("( \t\r\n\f,:;=!?'\"`*/\\|<>[]{})&%$#@^~+")
_SPACE = re.compile(rf"[{SPACE}]{{0,{MOST_SPACE}}}")
_SPACED = re.compile(_SPACE.pattern + r"\(")
#: More words of a name, up to its bracket, and what may become that.
_WORDS = re.compile(r"(?:[ \t]{1,4}[\w.-]{1,64}){1,4}\(")
_MAY_BE_WORDS = re.compile(r"(?:[ \t]{1,4}[\w.-]{1,64}){0,4}(?:[ \t]{1,4})?")
#: A bracket too many in front of the next call or the end of the list, and one behind the list; and what may become it.
_STRAY = re.compile(rf"{_GAP}[)}}]{_GAP}(?=[\],)}}])")
_MAY_BE_STRAY = re.compile(rf"{_GAP}(?:[)}}]{_GAP})?")
_STRAY_END = re.compile(rf"{_GAP}\]{_GAP}(?=[\]\ud800-\udfff])")
_MAY_BE_STRAY_END = re.compile(rf"{_GAP}(?:\]{_GAP})?")
#: Blanks, and what follows them.
_BLANKS = re.compile(rf"[ \t]{{0,{MOST_SPACE}}}")
_FOLLOWS = re.compile(_BLANKS.pattern + r"([^ \t])")
#: Calls in JSON, up to their first bracket, and what may become that.
_JSON_CALLS = re.compile(rf"{_GAP}(?:\[{_GAP})?\{{")
_MAY_BE_JSON_CALLS = re.compile(rf"{_GAP}(?:\[{_GAP})?")
_NEXT_JSON_CALL = re.compile(rf"{_GAP},?{_GAP}\{{")
_BEFORE_JSON_CALL = re.compile(rf"{_GAP},?{_GAP}")
_KEYWORD = re.compile(r"[^\W\d]\w*")


class PythonicReader(PythonReader):
    """Reads lists of calls. A list begins with `[`, a name and `(`.

    Any name opens a list at the beginning of the output, after a marker and after another list. Elsewhere in text, only
    the name of one of the request's tools does, and inside a line, only if no more text follows the list.
    """

    unmarked = r"\["
    layout = r",\s*[\])]"  # Python allows a comma after the last item
    controls: ClassVar[tuple[str, ...]] = (CALLS, CALLS_END, TAG, *TURN_ENDS)
    begin_of_text: ClassVar[tuple[str, ...]] = ("<|begin_of_text|>",)
    ends: tuple[str, ...] = (CALLS_END, *TURN_ENDS)
    #: The markers around a list, and one that comes before a list and has no counterpart after it.
    around_calls = (CALLS, CALLS_END)
    tag = TAG
    think, think_end = THINK, THINK_END
    openers: tuple[str, ...] = (CALLS, TAG)

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._marked = False  # whether the marker before a list is open
        super().__init__(options, tokenizer)

    def _read(self) -> Script[None]:
        place: type[Reasoning] | type[Content] = Reasoning if self._options.thinking else Content
        opener, closer = self.around_calls
        markers = (opener, *filter(None, (self.tag,)), THINK, THINK_END, *self.ends)
        may_be_called = self._options.calls and not self._options.structured
        in_content = (*markers, *("[",) * bool(may_be_called and self._options.tools))
        begins = True  # whether any name opens a list here
        while True:
            if begins and place is Content:
                yield from self._bare_call()
                while (yield from self._first_list()):
                    pass
            marker = yield from self._text(place, *(in_content if place is Content else markers))
            begins = False
            if marker is None:
                return
            if marker == "[":
                begins = yield from self._list_in_text()
            elif marker in (opener, self.tag):
                begins = yield from self._section_or_mention(marker, place)
                if begins:
                    place = Content
                else:
                    self._marked = False
            elif marker == closer and not self._marked:
                yield from self._stray_or_text(marker, place)
            elif (marker == THINK_END and place is Reasoning) or not (yield from self._is_mentioned(marker, place)):
                if marker == THINK_END and place is Content:
                    self._stray_marker(marker)
                place = Reasoning if marker == THINK else Content
                begins, self._marked, self._shown = True, False, ""

    def _is_mentioned(self, marker: str, kind: type[Reasoning] | type[Content]) -> Script[bool]:
        ends_turn = marker in self.ends and marker != self.around_calls[1]
        return (yield from (self._is_mentioned_end(kind) if ends_turn else self._is_mention(kind)))

    def _section(self, opener: str) -> Script[None]:
        """Read the lists after their marker, and the marker after them."""
        expected = True
        while (yield from self._first_list(expected)):
            expected = False
        marked = opener == self.around_calls[0]
        self._marked = marked and (yield from self._next_is(self.around_calls[1])) is None

    def _list_in_text(self) -> Script[bool]:
        """Read a list after its `[`, or the bracket alone. Only a tool's name opens a list inside text.

        In a line that has text before it, nothing but the end of the line or a marker may follow it.
        """
        # No more than the longest tool name is buffered to see whether a list begins.
        longest = self._longest_name + 1
        if self._shown[-1:] in ("", "\n"):
            return (yield from self._list(longest, self._options.tools.__contains__))
        self._unread()
        trial = CallTrial(self._at, Reasoning)
        if (yield from self._try(self._list_in_line(longest), trial, FARTHEST_CALL)):
            return True
        self._forget_calls(trial.ids)
        self._at += 1
        self._show(Content, "[")
        return False

    def _list_in_line(self, longest: int) -> Script[None]:
        yield from self._next_is("[")
        if (yield from self._list(longest, self._options.tools.__contains__)):
            match = yield from self._look(_FOLLOWS, _BLANKS)
            if match is None or match[1] == "\n" or self._alphabet.spell(match[1]) in self.controls:
                self._certain()

    def _first_list(self, expected: bool = False) -> Script[bool]:
        """Read a list and the whitespace before it, which is markup; False if no list comes."""
        space = yield from self._skip(SPACE, MOST_SPACE)
        may_be_called = expected or (self._options.calls and not self._options.structured)
        if expected and (yield from self._json_calls()):
            return True
        bracket = may_be_called and (yield from self._next_is("["))
        if bracket and (yield from self._list(_LONGEST_NAME, _NAME.fullmatch, space, expected)):
            return True
        if expected and not bracket and (yield from self._call_alone()):
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

    def _json_calls(self) -> Script[bool]:
        """Read calls in JSON, alone or in a list, after the marker; False if none comes."""
        begins = yield from self._look(_JSON_CALLS, _MAY_BE_JSON_CALLS)
        while begins is not None:
            self._at += len(begins.group()) - 1
            end, pieces = JsonEnd(), list[str]()

            def take(text: str, end: JsonEnd = end, pieces: list[str] = pieces) -> int | None:
                at = end.feed(text)
                pieces.append(text[:at])
                return at

            marker = yield from self._until(take, *self.controls, weigh=end.weigh)
            call = bare_call("".join(pieces), self._options.tools) if marker == "" else None
            if call is None:
                if marker:
                    self._unread()
                self._abandon("".join(pieces), "unreadable_call")
                return True
            self._defect("json_arguments", call.name)
            self._open_call(call.name)
            for kind in call.mended:
                self._mended(kind)
            self._emit_fragment(call.arguments)
            self._end_call()
            begins = yield from self._look(_NEXT_JSON_CALL, _BEFORE_JSON_CALL)
            if begins is None:
                yield from self._skip(SPACE)
                yield from self._next_is("]")
                return True
        return False

    def _call_alone(self) -> Script[bool]:
        """Read a call without a list around it, after the marker; False if none comes."""
        stops = dict.fromkeys(f"{name}(" for name in self._options.tools)
        call = (yield from self._next_is(*stops)) if len(stops) <= _MOST_NAMES else None
        if call is None:
            return False
        self._defect("missing_list", call[:-1])
        yield from self._call(self._open_call(call[:-1]))
        return True

    def _list(
        self, longest: int, is_name: Callable[[str], object], space: str = "", expected: bool = False
    ) -> Script[bool]:
        """Read the list of calls after a `[`; False if it is no list but text."""
        inside = yield from self._skip(SPACE, MOST_SPACE)
        name, stop = yield from self._read_up_to(longest, *_AFTER_NAME, *self.controls)
        name, stop = yield from self._after_name(name, stop, expected)
        if stop != "(" or not is_name(name):
            self._unread()
            self._show(Content, f"{space}[{inside}{name}")
            return False
        while name:
            name = self._open_call(name)
            yield from self._call(name)
            name = yield from self._next_call()
        return True

    def _after_name(self, name: str, stop: str | None, expected: bool = True) -> Script[tuple[str, str | None]]:
        """`name` and `stop`; or a tool's name, perhaps with blanks in it, and the bracket after it.

        `expected`: whether a call has to come here.
        """
        if not expected or not stop or stop not in SPACE or not name:
            return name, stop
        self._unread()
        if name in self._options.tools:
            if (match := (yield from self._look(_SPACED, _SPACE))) is not None:
                self._at = match.end()
                return name, "("
        elif (match := (yield from self._look(_WORDS, _MAY_BE_WORDS))) is not None:
            words = name + match.group()[:-1]
            if self._tool(words) in self._options.tools:
                self._at = match.end()
                return self._meant(words), "("
        return name, (yield from self._next_is(stop))

    def _next_call(self) -> Script[str]:
        """Read the name of the list's next call and its `(`; "" if the list is over."""
        while (stray := (yield from self._look(_STRAY, _MAY_BE_STRAY))) is not None:
            self._stray_bracket(stray)
        yield from self._skip(SPACE)
        comma = (yield from self._next_is(",")) or ""
        yield from self._skip(SPACE)
        if (yield from self._next_is("]")):
            if self._trial is not None and self._trial.kind is Reasoning:  # in a line, more brackets are text
                return ""
            while (stray := (yield from self._look(_STRAY_END, _MAY_BE_STRAY_END))) is not None:
                self._stray_bracket(stray)
            rest = _MAY_BE_STRAY_END.fullmatch(self._input, self._at) if self._over else None
            if rest is not None and rest.group().strip():
                self._stray_bracket(rest)
            return ""
        name, stop = yield from self._read_up_to(_LONGEST_NAME, *_AFTER_NAME, *self.controls)
        name, stop = yield from self._after_name(name, stop)
        if stop == "(" and _NAME.fullmatch(name):
            if not comma:
                self._defect("missing_comma", name)
            return name
        self._unread()
        self._abandon(comma + name, "truncated_call" if name and stop is None else "missing_section_end")
        return ""

    def _stray_bracket(self, match: re.Match[str]) -> None:
        self._defect("stray_bracket", match.group().strip())
        self._at = match.end()

    def _call(self, name: str) -> Script[None]:
        outcome = yield from self._python_arguments(name)
        if outcome == "ended":
            self._end_call()
            return
        following = yield from self._peek()
        trial = self._trial
        if outcome == "broken" and trial is not None and (trial.kind is Reasoning or following in self.openers):
            raise Abandoned
        self._flush()
        if not following:
            self._write(self._unread_text)
            self._truncated_call(closing("".join(self._written)) or "")
        elif outcome == "between" and following in ("]", *self.ends):
            self._defect("missing_call_end", self._id)
            self._write("}")
            self._end_call()
        else:
            yield from self._malformed_arguments()


class PythonicAnswers(plain_text.PlainTextAnswers):
    format: Pythonic
    #: How values are written.
    syntax: ClassVar[Syntax] = PYTHON

    def call_marker(self) -> str:
        return self.format.reader_type.around_calls[0]

    def answer(self, asked: Asked) -> Grammar:
        text = self._text([*(tool.name for tool in asked.tools.values()), *asked.others])
        calls = self.calls(asked.tools, asked.parallel)
        listed: Node = Concat((self.mark(self.call_marker()), calls, self.closer()))
        if not self.format.always_marked:
            listed = Choice((Concat((Maybe(self.mark(TAG)), calls)), listed))
        said = Concat((text, Maybe(listed)))
        called = Concat((Maybe(BLANKS), listed))
        answer = listed if asked.required else Choice((called, plain_text.perhaps(said) if asked.silent else said))
        return Grammar(Concat((*self.reasoning(asked.thinking), answer)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        rules = self.syntax.anything()
        called: list[Node] = []
        for index, tool in tools.items():
            if not _NAME.fullmatch(tool.name):
                where = tool.name_field
                raise InvalidRequest(f"{where} {tool.name!r} cannot be the name of a Python function", param=where)
            arguments = self.arguments(index, tool)
            if isinstance(arguments, JsonSchema):
                arguments, own_rules = value_grammar.arguments(
                    arguments.schema, arguments.origin, f"t{index}_", self.syntax
                )
                rules |= own_rules
            opening = Regex(rf"{_GAP}{quoted(tool.name)}\({_GAP}")
            called.append(Concat((opening, arguments, Regex(rf"{_GAP}\)"))))
        rules["call"] = Choice(tuple(called))
        return Rules(self.listed(RuleRef("call"), parallel), rules)

    def closer(self) -> Node:
        """The marker after a list."""
        return Maybe(self.mark(self.format.reader_type.around_calls[1]))

    def listed(self, call: Node, parallel: bool) -> Node:
        """A list of `call`, of several if `parallel`."""
        more = (Repeat(Concat((Regex(f"{_GAP},"), call)), 0),) if parallel else ()
        return Concat((ExactText("["), call, *more, Regex(rf"{_GAP}\]")))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        closed = None if calls is None else Concat((calls, self.closer()))
        return super().calls_or_structured(closed, content, thinking)

    def after_calls(self) -> None:
        """None: the list of calls is closed."""

    def custom_input(self, grammar: ClientGrammar) -> Node:
        gap = python_values.GAP
        plain = Concat((Regex(f"{INPUT}{gap}={gap}"), python_values.string()))
        return grammar.quoted(f'{INPUT}{gap}={gap}"', '"', plain)

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
    end_of_turn: tuple[str, ...] = TURN_ENDS
    reader_type: type[PythonicReader] = PythonicReader
    _answers = PythonicAnswers
    #: Whether a list has markers around it even if it is the whole output.
    always_marked = False
    #: The quotes around strings that need no escapes.
    quotes = '"'

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """Calls after content get markers, so that any name can be told from text."""
        segments = []
        if thinking and message.reasoning:
            segments.append(Segment(f"{THINK}{message.reasoning}{THINK_END}", False))
        segments.append(Segment(message.content, False))
        if message.calls:
            listed = Segment(self.listed([f"{call.name}({self.arguments(call)})" for call in message.calls]), False)
            opener, closer = self.reader_type.around_calls
            marked = message.content or self.always_marked
            segments += [Segment(opener, True), listed, Segment(closer, True)] if marked else [listed]
        return Prompt([*segments, Segment(self.end_of_turn[0], True)])

    def listed(self, calls: Sequence[str]) -> str:
        return f"[{', '.join(calls)}]"

    def arguments(self, call: Call) -> str:
        """A call's arguments in Python. A key that is no Python name is written as `**{"key": value}`."""
        written = []
        for key, value, is_string in parameters(call):
            python = self.value(value, is_string)
            named = _KEYWORD.fullmatch(key)
            written.append(f"{key}={python}" if named else f"**{{{json.dumps(key, ensure_ascii=False)}: {python}}}")
        return ", ".join(written)

    def value(self, value: str, is_string: bool) -> str:
        plain = is_string and value.isprintable() and "\\" not in value and self.quotes not in value
        json_text = json.dumps(value, ensure_ascii=False) if is_string else value
        return f"{self.quotes}{value}{self.quotes}" if plain else python_values.python(json_text)


def _no_call(stops: str) -> Regex:
    """Text up to the next of `stops` that is not a name with a `(` after it."""
    space = plain_text.BLANK
    name = f"[^{plain_text.in_class(''.join(_AFTER_NAME) + stops)}]+"
    after_name = plain_text.in_class("".join(stop for stop in _AFTER_NAME if stop not in "(" + stops))
    no_name = plain_text.in_class("".join(stop for stop in _AFTER_NAME if stop not in SPACE + stops))
    rest = f"[^{plain_text.in_class(stops)}]*"
    text = f"{name}(?:[{after_name}]{rest})?|[{no_name}]{rest}"
    return Regex(f"[{space}]*(?:{text})|[{space}]+")
