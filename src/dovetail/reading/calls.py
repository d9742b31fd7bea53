"""`CallReader`: what every family's calls have in common, whatever they are written in.

Names, ids, indices; JSON arguments passed on as they come; text where there should be none; ends that are missing.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from dovetail.reading.arguments import JsonArguments
from dovetail.reading.reader import Asked, Reader, Script
from dovetail.tokens import Tokenizer

#: Characters; what is longer was never the header of a call.
LONGEST_HEADER = 1024
#: Characters of whitespace that wait for what follows them; behind more of it, the text has gone on.
MOST_SPACE = 16


class CallReader(Reader):
    """Reads an output of reasoning, content and sections of calls; a family says how a section is written."""

    #: The markers around reasoning. Newlines in front of a marker are part of it where the family's template writes
    #: them; without them it is read just the same.
    think, think_end = "<think>", "</think>"
    #: What opens a section of calls (with newlines in front as above); and what ends a turn.
    openers: tuple[str, ...]
    ends: tuple[str, ...] = ()
    #: Those of the openers that are ordinary text, which reasoning may well be about: read in content only.
    text_openers: tuple[str, ...] = ()
    #: What means something inside a section only. Outside, it is dropped with a `Defect`.
    inner: tuple[str, ...] = ()
    #: A regex for what begins a call without any marker, in families that have such calls.
    unmarked: ClassVar[str] = "(?!)"
    #: A regex for layout inside a call that means nothing and is dropped without a `Defect`.
    layout: ClassVar[str] = "(?!)"
    #: How many newlines the family's template puts behind `<think>` and `</think>`; they are markup.
    before_think = after_think = after_think_end = 0
    #: The markers around content, in families that have any; and the newlines that their templates put in front of it.
    answer: str = ""
    answer_end: str = ""
    before_content = 0
    #: Whether those behind `<think>` stand in the prompt, when it is the prompt that opens the block.
    prompted_after_think = False

    def __init__(self, asked: Asked, tokenizer: Tokenizer | None = None) -> None:
        self._index = -1  # of the call that is open, or was last
        self._id = ""
        self._ids: set[str] = set()
        self._number = 0  # of the next id that is made up
        self._longest_name = max(map(len, asked.tools), default=0)
        self._arguments = JsonArguments()
        self._stray = False  # text that belongs to no call has begun
        super().__init__(asked, tokenizer)

    # -- a whole output -----------------------------------------------------------------------------------------------

    def _read(self) -> Script[None]:
        place: type[Reasoning] | type[Content] = Reasoning if self._asked.thinking else Content
        think, think_end, *openers = (marker.lstrip() for marker in (self.think, self.think_end, *self.openers))
        # Each marker that newlines belong to, and the same without them; as a dict, because an order has to be kept.
        answers = tuple(filter(None, (self.answer, self.answer_end)))
        own = (think, think_end, self.think_end, *answers, *openers, *self.openers, *self.ends, *self.inner)
        marks = dict.fromkeys(own)
        stops = [mark for mark in marks if mark not in self.text_openers]
        # Text is a call only where there may be calls: with none asked for, it stays as it is.
        in_content = list(marks) if self._asked.calls and not self._asked.structured else stops
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
            elif not self._asked.calls:
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
        """Read what stands at the very beginning of the content, where the family has something to say about that."""
        yield from self._skip("\n", self.before_content)

    def _section(self, opener: str) -> Script[None]:
        """Read what `opener` opened, to its end; a marker that is not its own is put back."""
        raise NotImplementedError

    def _between(self, *stops: str) -> Script[str | None]:
        """Read on to one of `stops` where no text should be: whitespace is markup, anything else content."""
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
        """What began as a call is none: what was read of it is content."""
        self._defect(defect, text[:80])
        if text := text.lstrip():
            self._events.append(Content(text))

    # -- one call -----------------------------------------------------------------------------------------------------

    def _open_call(self, name: str, call_id: str | None = None) -> None:
        """Start a call. `call_id` is the model's own, if it wrote one that is not taken."""
        if self._asked.tools and name not in self._asked.tools:
            self._defect("unknown_name", name)
        self._index += 1
        if call_id is not None and call_id in self._ids:
            self._defect("duplicate_id", call_id)
            call_id = None
        # A number that was found taken once is not tried again, so that many calls cost no more than each one.
        self._number = max(self._number, self._index)
        while call_id is None or call_id in self._ids:
            call_id = f"{self._asked.call_prefix}{self._number}"
            self._number += 1
        self._id = call_id
        self._ids.add(call_id)
        self._arguments = JsonArguments()
        self._events.append(CallStart(self._index, call_id, name))

    def _argue(self, fragment: str) -> None:
        self._events.append(CallArguments(self._index, fragment))

    def _end_call(self) -> None:
        self._events.append(CallEnd(self._index))

    def _json_arguments(self, *stops: str) -> Script[str | None]:
        """Pass on the open call's arguments, which are JSON, up to one of `stops`. What follows the JSON is stray."""
        arguments = self._arguments

        def write(text: str) -> None:
            fragment, rest = arguments.feed(text)
            if fragment:
                self._argue(fragment)
            if rest:
                self._stray_text(rest)

        def write_marker(literal: str) -> None:
            if arguments.complete:
                self._stray_marker(literal)
            else:
                write(literal)  # inside the arguments it is what spells it

        self._stray = False
        return self._pass(write, write_marker, stops)

    def _take_arguments(self, text: str) -> int | None:
        """Pass on the open call's arguments, which are JSON; the offset where they end, if they do."""
        fragment, rest = self._arguments.feed(text)
        if fragment:
            self._argue(fragment)
        return len(text) - len(rest) if self._arguments.complete else None

    def _close_call(self, marker: str | None, *ends: str | None) -> None:
        """End the call whose JSON arguments stopped at `marker`, where one of `ends` should have stood.

        None among them: the output may just as well be over.
        """
        if marker is None and not self._arguments.complete and (self._cut_off or not self._arguments.valid()):
            self._truncated_call()
            return
        if marker not in ends:
            self._defect("missing_call_end", self._id)
        if self._arguments.empty:
            self._defect("missing_arguments", self._id)
            self._argue("{}")
            self._end_call()
        elif self._arguments.valid():
            self._end_call()
        else:
            self._defect("invalid_arguments", self._id)
            self._repair(self._arguments.closing())

    def _truncated_call(self, closing: str | None = None) -> None:
        """The output is over in the middle of the call's arguments, which are left as they are.

        `closing` is what would make JSON of them, if anything would; None where they are `self._arguments`.
        """
        self._defect("truncated_call", self._id)
        self._repair(self._arguments.closing() if closing is None else closing)

    def _repair(self, closing: str) -> None:
        """End the call with what makes JSON of its arguments, if anything does and the request asks for it."""
        if self._asked.repair_arguments and closing:
            self._defect("repaired_arguments", self._id)
            self._argue(closing)
            self._end_call()
