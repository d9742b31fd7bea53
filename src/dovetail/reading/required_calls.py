"""`RequiredCalls`: the events of an answer that has to be calls (`tool_choice` "required", or a named tool).

Text after a call ends the answer: a model that has called and wants to go on in words is done. The same call once more,
right after itself, ends it too: without that, a model that cannot stop repeats its call up to the limit. Both leave a
`Defect`. White space around calls is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Reasoning


class RequiredCalls:
    """Takes the events of one answer. A call is buffered only as long as it is spelled like the call before it.

    `ended`: the answer is over, and what the model still writes is dropped.
    """

    def __init__(self) -> None:
        self.ended = False
        self._called = False  # a call has ended
        self._before = ("", "")  # the name and the arguments of the last call
        self._name = self._arguments = ""  # the same of the open call
        self._blank = ""  # white space that is dropped unless text follows
        self._buffered: list[Event] = []  # the events of a call that is spelled like the last one so far

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
        match event:
            case Content(text):
                text = self._blank + text
                shown = text.rstrip()
                self._blank = text[len(shown) :]
                if not shown:
                    return
                event = Content(shown)
            case _:
                self._blank = ""
        match event:
            case Content() | Reasoning() if self._called and not self._name:
                self.ended = True
                kept.append(Defect("text_after_calls"))
                return
            case CallStart(_, _, name):
                self._name, self._arguments = name, ""
                if self._called and name == self._before[0]:
                    self._buffered.append(event)
                    return
            case CallArguments(_, fragment):
                self._arguments += fragment
            case CallEnd(index):
                if self._buffered and self._arguments == self._before[1]:
                    self.ended = True
                    kept.append(Defect("repeated_call", f"call {index}: {self._name}"))
                    return
                self._before, self._name, self._called = (self._name, self._arguments), "", True
            case _:
                pass
        if self._buffered:
            self._buffered.append(event)
            if not isinstance(event, CallEnd) and self._before[1].startswith(self._arguments):
                return
            kept += self._buffered
            self._buffered = []
            return
        kept.append(event)
