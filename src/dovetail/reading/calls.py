"""`CallReader`: what the readers of all families share.

An output is reasoning, content and sections of calls. Here are the walk over these, the ids and indices of calls, JSON
arguments that stream, misplaced text, and calls whose end is missing.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from dovetail.reading.arguments import JsonArguments
from dovetail.reading.reader import Reader, ReaderOptions, Script
from dovetail.tokens import Tokenizer

#: Characters. Longer text is no header of a call.
LONGEST_HEADER = 1024
#: Characters of whitespace that are buffered until the next text shows whether they are markup.
MOST_SPACE = 16


class CallReader(Reader):
    """Reads reasoning, content and sections of calls. A family's subclass reads one section."""

    #: The markers around reasoning. Newlines that the family's template writes before a marker are part of it; the
    #: marker is also recognized without them.
    think, think_end = "<think>", "</think>"
    #: What opens a section of calls, with leading newlines as above.
    openers: tuple[str, ...]
    #: What ends a turn.
    ends: tuple[str, ...] = ()
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
    #: The markers around content, in families that have them.
    answer: str = ""
    answer_end: str = ""
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
        self._stray = False  # whether misplaced text has begun, so that its defect is reported once
        super().__init__(options, tokenizer)

    # -- a whole output -----------------------------------------------------------------------------------------------

    def _read(self) -> Script[None]:
        place: type[Reasoning] | type[Content] = Reasoning if self._options.thinking else Content
        think, think_end, *openers = (marker.lstrip() for marker in (self.think, self.think_end, *self.openers))
        # Each marker with its newlines, and without them. A dict, because the order matters.
        answers = tuple(filter(None, (self.answer, self.answer_end)))
        own = (think, think_end, self.think_end, *answers, *openers, *self.openers, *self.ends, *self.inner)
        marks = dict.fromkeys(own)
        stops = [mark for mark in marks if mark not in self.text_openers]
        # Ordinary text opens calls only if the answer may contain calls.
        in_content = list(marks) if self._options.calls and not self._options.structured else stops
        if place is Reasoning:
            yield from self._skip("\n", 0 if self.prompted_after_think else self.after_think)
        else:
            yield from self._content_begins()
        while True:
            marker = yield from self._prose(place, *(stops if place is Reasoning else in_content))
            if marker is None:
                return
            if marker == think:
                place = Reasoning
                yield from self._skip("\n", self.after_think)
            elif marker == think_end:
                if place is Content:
                    self._stray_marker(marker)
                place = Content
                yield from self._skip("\n", self.after_think_end)
                yield from self._content_begins()
            elif marker in self.ends:
                place = Content
            elif marker in answers:
                if place is Reasoning:
                    self._defect("reasoning_not_closed")
                place = Content
            elif not self._options.calls:
                self._defect("call_not_allowed", marker)
                place = Content
            elif marker in openers:
                if place is Reasoning:
                    self._defect("reasoning_not_closed")
                yield from self._section(marker)
                place = Content
            else:
                self._stray_marker(marker)

    def _content_begins(self) -> Script[None]:
        """Read the beginning of the content, in families where it has a meaning."""
        yield from self._skip("\n", self.before_content)

    def _section(self, opener: str) -> Script[None]:
        """Read the section that `opener` opened. A marker that does not belong to it is put back."""
        raise NotImplementedError

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
        """`text` began like a call and is none, because of `defect`: it is content."""
        self._defect(defect, text[:80])
        if text := text.lstrip():
            self._events.append(Content(text))

    # -- one call -----------------------------------------------------------------------------------------------------

    def _open_call(self, name: str, call_id: str | None = None) -> None:
        """Start a call. `call_id`: the id that the model wrote, if it wrote one."""
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
        self._arguments = JsonArguments()
        self._events.append(CallStart(self._index, call_id, name))

    def _emit_fragment(self, fragment: str) -> None:
        self._events.append(CallArguments(self._index, fragment))

    def _end_call(self) -> None:
        self._events.append(CallEnd(self._index))

    def _json_arguments(self, *stops: str) -> Script[str | None]:
        """Pass on the open call's JSON arguments up to one of `stops`. Text after the JSON is misplaced."""
        arguments = self._arguments

        def write(text: str) -> None:
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
        return self._pass(write, write_marker, stops)

    def _take_arguments(self, text: str) -> int | None:
        """Pass on the open call's JSON arguments; the offset in `text` where they end, or None."""
        fragment, rest = self._arguments.feed(text)
        if fragment:
            self._emit_fragment(fragment)
        return len(text) - len(rest) if self._arguments.complete else None

    def _close_call(self, marker: str | None, *ends: str | None) -> None:
        """End the call whose JSON arguments stopped at `marker`. One of `ends` was expected there.

        None in `ends` means that the end of the output is as good.
        """
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
