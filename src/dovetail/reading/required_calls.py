"""`RequiredCalls`: the events of an answer that has to be calls (`tool_choice` "required", or a named tool).

Text after a call ends the answer: a model that has called and wants to go on in words is done. So does the same call
once more, right after itself, and the end of several calls that repeat the ones right before them: without that, a
model that cannot stop repeats itself up to the limit. Each leaves a `Defect`. White space around calls is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Reasoning

_Spelled = tuple[str, str]


class RequiredCalls:
    """Takes the events of one answer. A call is buffered as long as it is spelled like one that would be a repetition.

    `ended`: the answer is over, and what the model still writes is dropped.
    """

    def __init__(self) -> None:
        self.ended = False
        self._calls: list[_Spelled] = []  # the name and the arguments of each call that has ended
        self._name = ""  # of the open call
        self._arguments: list[str] = []  # its fragments
        self._length = 0  # their characters
        self._repetitions: list[_Spelled] = []  # what would be a repetition in place of the open call
        self._blank = ""  # white space that is dropped unless text follows
        self._buffered: list[Event] = []  # the events of a call that is spelled like a repetition so far

    def take(self, events: Iterable[Event]) -> list[Event]:
        """The events that stay."""
        kept: list[Event] = []
        for event in events:
            if not self.ended:
                self._take(event, kept)
        return kept

    def finish(self) -> list[Event]:
        """The events that are still buffered: the output ended inside a call."""
        kept, self._buffered = self._buffered, []
        return [] if self.ended else kept

    def _take(self, event: Event, kept: list[Event]) -> None:
        if isinstance(event, Content):
            text = self._blank + event.text
            shown = text.rstrip()
            self._blank = text[len(shown) :]
            if not shown:
                return
            event = Content(shown)
        elif not isinstance(event, Defect):
            self._blank = ""
        match event:
            case Content() | Reasoning() if self._calls and not self._name:
                self.ended = True
                kept.append(Defect("text_after_calls"))
                return
            case CallStart(_, _, name):
                if self._name:  # the call before this one has no end, and is like no other
                    self._calls.append(("", str(len(self._calls))))
                kept += self._buffered
                self._buffered = []
                self._name, self._arguments, self._length = name, [], 0
                self._repetitions = [call for call in self._would_repeat() if call[0] == name]
            case CallArguments(_, fragment):
                self._arguments.append(fragment)
                at, self._length = self._length, self._length + len(fragment)
                self._repetitions = [call for call in self._repetitions if call[1].startswith(fragment, at)]
            case CallEnd(index):
                call = self._name, "".join(self._arguments)
                if call in self._repetitions:
                    self.ended = True
                    kept.append(Defect("repeated_call", f"call {index}: {self._name}"))
                    return
                self._calls.append(call)
                self._name, self._repetitions = "", []
            case _:
                pass
        self._buffered.append(event)
        if not self._repetitions:
            kept += self._buffered
            self._buffered = []

    def _would_repeat(self) -> list[_Spelled]:
        """The calls with which the last calls of the answer would be the ones right before them once more."""
        calls = self._calls
        lengths = range(1, (len(calls) + 1) // 2 + 1)
        return [calls[-n] for n in lengths if calls[len(calls) - n + 1 :] == calls[len(calls) - 2 * n + 1 : -n]]
