"""`CallReader`: what the readers of all families share.

An output is reasoning, content and sections of calls. Here are the walk over these, the ids and indices of calls, JSON
arguments that stream, misplaced text, and calls whose end is missing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import ClassVar

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from dovetail.reading.arguments import WHITESPACE, JsonArguments
from dovetail.reading.reader import Reader, ReaderOptions, Script
from dovetail.reading.values import ParameterTypes
from dovetail.tokens import Tokenizer

#: Characters. Longer text is no header of a call.
LONGEST_HEADER = 1024
#: Characters of whitespace that are buffered until the next text shows whether they are markup.
MOST_SPACE = 16


#: What a name may have in front of it, and what is written in its place.
_PREFIXED = re.compile(r"\s*(?:functions?[.:])*")
_DASHES = str.maketrans("-. ", "___")
_TOOL_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_MOST_NAMES = 128


def _plain(name: str) -> str:
    return _PREFIXED.sub("", name, count=1).strip().casefold().translate(_DASHES)


class CallReader(Reader):
    """Reads reasoning, content and sections of calls. A family's subclass reads one section."""

    #: The markers around reasoning. Newlines that the family's template writes before a marker are part of it; the
    #: marker is also recognized without them.
    think, think_end = "<think>", "</think>"
    #: What opens a section of calls, with leading newlines as above.
    openers: tuple[str, ...]
    #: The same, for families in which one marker opens every section.
    section: str
    #: What ends a turn.
    ends: tuple[str, ...] = ()
    #: What begins a call whose opener is missing, with `{name}` for the name of a tool.
    unopened: ClassVar[tuple[str, ...]] = ()
    #: The openers that are ordinary text. They open calls in content only, because reasoning may mention them.
    text_openers: tuple[str, ...] = ()
    #: Markers that have a meaning inside a section only. Outside, they are dropped with a `Defect`.
    inner: tuple[str, ...] = ()
    #: A regex for what begins a call without any marker, in families that have such calls.
    unmarked: ClassVar[str] = "(?!)"
    #: A regex for layout inside a call that means nothing and is dropped without a `Defect`.
    layout: ClassVar[str] = "(?!)"
    #: How many newlines the template writes before `<think>`, after it and after `</think>`. They are markup.
    before_think = after_think = after_think_end = 0
    #: Whether an answer without reasoning begins with `think_end`.
    lone_think_end = False
    #: The markers around content, in families that have them. Newlines in front of the closing one are part of it.
    answer: str = ""
    answer_end: str = ""
    #: How many newlines the family's template writes after each of these.
    after_answer = after_answer_end = 0
    #: Ordinary text that some models write around all that follows their reasoning: at its beginning and at its end.
    wrapper: str = ""
    wrapper_end: str = ""
    #: How many newlines the family's template writes before content.
    before_content = 0
    #: Whether a prompt that opens the reasoning block writes the newlines after the opening tag as well.
    prompted_after_think = False

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._index = -1  # of the open or last call
        self._id = ""
        self._ids: set[str] = set()
        self._number = 0  # of the next id for a call without one
        self._longest_name = max(map(len, options.tools), default=0)
        self._arguments = JsonArguments()
        self._types_by_tool: dict[str, ParameterTypes] = {}  # filled when a tool is called
        self._stray = False  # whether misplaced text has begun, so that its defect is reported once
        self._wrapped = False  # whether the wrapper is open
        super().__init__(options, tokenizer)

    # -- a whole output -----------------------------------------------------------------------------------------------

    def _read(self) -> Script[None]:
        place: type[Reasoning] | type[Content] = Reasoning if self._options.thinking else Content
        think, think_end, openers, answers, marks, stops = _marks_of_answers(type(self))
        # Ordinary text opens calls only if the answer may contain calls.
        in_content = (*marks, *self._unopened()) if self._options.calls and not self._options.structured else stops
        if self.wrapper_end:
            in_content = (*in_content, self.wrapper_end, "\n" + self.wrapper_end)
        answer_ended = False
        if place is Reasoning:
            yield from self._skip("\n", 0 if self.prompted_after_think else self.after_think)
        else:
            if self.lone_think_end:
                yield from self._next_is(think_end)
            yield from self._content_begins()
        while True:
            marker = yield from self._prose(place, *(stops if place is Reasoning else in_content))
            if marker is None:
                return
            if marker == think:
                place = Reasoning
                self.in_reasoning = True
                yield from self._skip("\n", self.after_think)
            elif marker == think_end:
                if place is Content:
                    self._stray_marker(marker)
                place = Content
                yield from self._skip("\n", self.after_think_end)
                yield from self._content_begins()
            elif marker in self.ends:
                yield from self._end_passed(marker, place is Reasoning)
                place = Content
            elif marker in answers:
                if place is Reasoning:
                    self._defect("reasoning_not_closed")
                elif marker == answers[-1] and answer_ended:
                    self._stray_marker(marker)
                answer_ended = marker == answers[-1]
                place = Content
                yield from self._skip("\n", self.after_answer if marker == self.answer else self.after_answer_end)
            elif marker == self.wrapper_end and place is Content:
                yield from self._wrapper_ends()
            elif not self._options.calls:
                self._defect("call_not_allowed", marker)
                place = Content
            elif marker in openers:
                if place is Reasoning:
                    self._defect("reasoning_not_closed")
                yield from self._section(marker)
                place = Content
            elif marker not in marks:
                self._defect("missing_section")
                self._unread()
                yield from self._section(marker)
            else:
                self._stray_marker(marker)

    def _unopened(self) -> tuple[str, ...]:
        """The literals that begin a call to one of the tools, if its opener is missing."""
        if not self.unopened or len(self._options.tools) > _MOST_NAMES:
            return ()
        names = [name for name in self._options.tools if _TOOL_NAME.fullmatch(name)]
        literals = (template.replace("{name}", name) for template in self.unopened for name in names)
        return tuple(dict.fromkeys(literals))

    def _content_begins(self) -> Script[None]:
        """Read the beginning of the content, in families where it has a meaning."""
        yield from self._skip("\n", self.before_content)
        if (self.answer or self.wrapper) and not self._wrapped:
            yield from self._open_answer()
        if self._options.structured and self._options.calls and self.text_openers:
            yield from self._calls_or_structured()

    def _open_answer(self) -> Script[None]:
        """Read what opens the content, if it comes next. Newlines before a marker are layout."""
        space = yield from self._skip("\n", MOST_SPACE)
        self._wrapped = (yield from self._next_is(self.answer or self.wrapper)) is not None
        if self._wrapped:
            yield from self._skip("\n", 1 if self.wrapper else self.after_answer)
        elif space and self._options.calls and (yield from self._next_is(*self._unindented_openers())) is not None:
            self._unread()
        elif space and len((yield from self._peek())) < 2:
            self._events.append(Content(space))

    def _calls_or_structured(self) -> Script[None]:
        """Read calls that begin with ordinary text. No content of a response format begins like that."""
        space = yield from self._skip("\n", MOST_SPACE)
        opener = yield from self._next_is(*self._unindented_openers())
        if opener is not None:
            yield from self._section(opener)
        elif space:
            self._events.append(Content(space))

    def _unindented_openers(self) -> Iterable[str]:
        return dict.fromkeys(opener.lstrip() for opener in self.text_openers)

    def _end_passed(self, end: str, in_reasoning: bool) -> Script[None]:
        """Read what may follow `end`, one of `ends`, in families where a turn goes on after it.

        `in_reasoning`: whether reasoning was open before it.
        """
        yield from ()

    def _wrapper_ends(self) -> Script[None]:
        """The end of the wrapper was read. It is text unless the answer ends there."""
        text = self._alphabet.spell(self._input[self._mark : self._at])
        text += yield from self._skip("\n", MOST_SPACE)
        after = yield from self._peek()
        if not self._wrapped or not (after == "" or after in self.ends):
            self._events.append(Content(text))

    def _section(self, opener: str) -> Script[None]:
        """Read the section that `opener` opened. A marker that does not belong to it is put back."""
        raise NotImplementedError

    def _another_section(self, opener: str) -> Script[bool]:
        """Whether `opener` opens another section after this one. Whitespace is markup before a marker or the end."""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        marker = yield from self._next_is(opener, *self.ends)
        if marker == opener:
            return True
        if marker is not None:
            self._unread()
        elif space and (yield from self._peek()):
            self._events.append(Content(space))
        return False

    def _between(self, *stops: str) -> Script[str | None]:
        """Read up to one of `stops` where no text belongs: whitespace is markup, other text is content."""
        self._stray = False
        return self._pass(self._stray_text, self._stray_marker, stops)

    def _stray_text(self, text: str) -> None:
        if not self._stray:
            text = text.lstrip()
            if not text:
                return
            self._stray = True
            self._defect("text_in_section")
        self._events.append(Content(text))

    def _abandon(self, text: str, defect: str) -> None:
        """`text` began like a call, but is content, because of `defect`."""
        self._defect(defect, text[:80])
        if text := text.lstrip():
            self._events.append(Content(text))

    # -- one call -----------------------------------------------------------------------------------------------------

    def _tool(self, name: str) -> str:
        """The tool that must be meant by `name`; `name` if there is none, or are several."""
        tools = self._options.tools
        if name in tools:
            return name
        plain = _plain(name)
        alike = [tool for tool in tools if _plain(tool) == plain]
        return alike[0] if len(alike) == 1 else name

    def _meant(self, name: str) -> str:
        """The same, with a Defect if `name` is not quite the tool's."""
        tool = self._tool(name)
        if tool != name:
            self._defect("misspelled_name", name)
        return tool

    def _open_call(self, name: str, call_id: str | None = None) -> str:
        """Start a call, and return its name. `call_id`: the id that the model wrote, if it wrote one."""
        name = self._meant(name)
        if self._options.tools and name not in self._options.tools:
            self._defect("unknown_name", name)
        self._index += 1
        if call_id is not None and call_id in self._ids:
            self._defect("duplicate_id", call_id)
            call_id = None
        # A number that was taken once is not tried again, so that the cost of a call does not grow.
        self._number = max(self._number, self._index)
        while call_id is None or call_id in self._ids:
            call_id = f"{self._options.call_prefix}{self._number}"
            self._number += 1
        self._id = call_id
        self._ids.add(call_id)
        self._arguments = JsonArguments(self._unwraps(name))
        self._events.append(CallStart(self._index, call_id, name))
        return name

    def _types_of(self, name: str) -> ParameterTypes:
        """The types of the parameters of the tool called `name`."""
        types = self._types_by_tool.get(name)
        if types is None:
            types = self._types_by_tool[name] = ParameterTypes(self._options.tools.get(name))
        return types

    def _unwraps(self, name: str) -> Callable[[str, str], bool] | None:
        """See `JsonArguments`, for the tool called `name`."""

        def unwraps(key: str, first: str) -> bool:
            types = self._types_of(name)
            wrapped = types.is_wrapper(key) and (not first or types.declares(first))
            if wrapped:
                self._defect("wrapped_arguments", key)
            return wrapped

        return unwraps

    def _emit_fragment(self, fragment: str) -> None:
        self._events.append(CallArguments(self._index, fragment))

    def _end_call(self) -> None:
        self._events.append(CallEnd(self._index))

    def _json_arguments(self, *stops: str) -> Script[str | None]:
        """Pass on the open call's JSON arguments up to one of `stops`. Text after the JSON is misplaced."""
        arguments = self._arguments

        def write(text: str) -> None:
            if arguments.goes_on(text):
                self._events.append(CallArguments(self._index, text))
                return
            fragment, rest = arguments.feed(text)
            if fragment:
                self._emit_fragment(fragment)
            if rest:
                self._stray_text(rest)

        def write_marker(literal: str) -> None:
            if arguments.complete:
                self._stray_marker(literal)
            else:
                write(literal)  # inside the arguments it is its characters

        self._stray = False
        return self._pass(write, write_marker, stops, arguments.weigh)

    def _flush_arguments(self) -> None:
        """Pass on the beginning of arguments that broke off before it was known whether they are wrapped."""
        if begun := self._arguments.flush():
            self._emit_fragment(begun)

    def _take_arguments(self, text: str) -> int | None:
        """Pass on the open call's JSON arguments; the offset in `text` where they end, or None."""
        if self._arguments.goes_on(text):
            self._events.append(CallArguments(self._index, text))
            return None
        fragment, rest = self._arguments.feed(text)
        if fragment:
            self._emit_fragment(fragment)
        return len(text) - len(rest) if self._arguments.complete else None

    def _close_call(self, marker: str | None, *ends: str | None) -> None:
        """End the call whose JSON arguments stopped at `marker`. One of `ends` was expected there.

        None in `ends` means that the end of the output is as good.
        """
        self._flush_arguments()
        if marker is None and not self._arguments.complete and (self._cut_off or not self._arguments.valid()):
            self._truncated_call()
            return
        if marker not in ends:
            self._defect("missing_call_end", self._id)
        if self._arguments.empty:
            self._defect("missing_arguments", self._id)
            self._emit_fragment("{}")
            self._end_call()
        elif self._arguments.valid():
            self._end_call()
        else:
            self._defect("invalid_arguments", self._id)
            self._repair(self._arguments.closing())

    def _truncated_call(self, closing: str | None = None) -> None:
        """The output ended inside the call's arguments, which stay as they are.

        `closing`: the text that would make them valid JSON, or ""; None: compute it from `self._arguments`.
        """
        self._defect("truncated_call", self._id)
        self._repair(self._arguments.closing() if closing is None else closing)

    def _repair(self, closing: str) -> None:
        """End the call with the text that completes its arguments, if there is one and the request wants a repair."""
        if self._options.repair_arguments and closing:
            self._defect("repaired_arguments", self._id)
            self._emit_fragment(closing)
            self._end_call()


@functools.lru_cache(256)
def _marks_of_answers(
    kind: type[CallReader],
) -> tuple[str, str, list[str], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The markers of a family outside of sections: of reasoning, those that open calls, those around content, all, and
    those that mean something in reasoning too."""
    think, think_end, *openers = (marker.lstrip() for marker in (kind.think, kind.think_end, *kind.openers))
    # Each marker with its newlines, and without them. A dict, because the order matters.
    answers = tuple(filter(None, (kind.answer, kind.answer_end.lstrip())))
    own = (think, think_end, kind.think_end, *filter(None, (kind.answer, kind.answer_end)), *answers)
    marks = tuple(dict.fromkeys((*own, *openers, *kind.openers, *kind.ends, *kind.inner)))
    return think, think_end, openers, answers, marks, tuple(mark for mark in marks if mark not in kind.text_openers)
