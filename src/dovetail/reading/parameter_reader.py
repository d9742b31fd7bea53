"""`ParameterReader`: what the readers of calls share whose parameters stand between tags: it reads one value."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal

from dovetail.events import Event
from dovetail.reading.calls import CallReader
from dovetail.reading.json_end import string_goes_on
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.parameters import Parameters
from dovetail.reading.reader import FARTHEST, Abandoned, ReaderOptions, Script
from dovetail.reading.value_ends import REST, REST_BEGUN, Closer, OpenValue, ValueEnds, value_ends
from dovetail.reading.values import ParameterTypes
from dovetail.tokens import Tokenizer

#: Closing tags up to the last bracket that are shorter begin other words.
_SHORTEST_STEM = 7
#: What models call a parameter in the tag that closes one.
_NAMES = ("parameter", "Parameter", "paramter", "param", "argument", "arg", "arg_value", "value")
_CLOSER = re.compile(r"</(.*\W|)(\w+)>")
#: Of a tool's parameters, how many names are looked for in closing tags.
_MOST_KEYS = 32
_PLAIN_KEY = re.compile(r"\w{2,64}", re.ASCII)


class ParameterReader(CallReader):
    #: What ends a section of calls, and what ends a parameter's value.
    section_end: str
    parameter_end: str
    #: What may follow `parameter_end` and belongs to it.
    after_parameter_end: ClassVar[str] = ""
    #: Other spellings of the family's markers, each with the marker that it means.
    other_marks: ClassVar[Mapping[str, str]] = {}
    #: Whether a newline after a parameter's opening tag belongs to the tag.
    newline_before_value = False
    #: Whether nothing stands between the end of a value and what follows it.
    one_line = False
    #: What may surround a value, if it is a string; "" for nothing.
    quotes = ("", "")

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._parameters = Parameters(ParameterTypes(None), self._emit_fragment, self._defect)
        self.value_stops, self._closers, self._value_marks, self._ends = _ends_of_values(type(self))
        self._open_value = OpenValue(self._ends, (), self._is_foreign, self._opens_next)
        self._plain_keys: list[str] = []  # of the tool, those that may be the name of a tag
        self._other_closers: tuple[str, ...] = ()  # that are no spelling of the family's, or named after a key
        self._indent = ""  # of the last tag of a parameter
        self._tag_cut = False  # whether the output is cut off in a tag
        #: What the script is looking for: the end of a value, the next marker of a section, or neither.
        self._looks_for: Literal["", "end", "mark"] = ""
        super().__init__(options, tokenizer)

    @classmethod
    def stops_of_values(cls) -> tuple[str, ...]:
        """The markers that end a value: its own end, and those that should not come before it."""
        raise NotImplementedError

    @classmethod
    def marks_after_values(cls) -> tuple[str, ...]:
        """The markers that may come after a value."""
        raise NotImplementedError

    @classmethod
    def nested_tags(cls) -> tuple[str, ...]:
        """What opens another parameter, where it stands in a value."""
        raise NotImplementedError

    # -- a marker that the end of the output cuts off ------------------------------------------------------------------

    def finish(self, reason: str = "stop") -> list[Event]:
        if not self._over:
            trial = self._trial
            came = self._input + self._alphabet.buffered
            with contextlib.suppress(Abandoned):  # by a trial with many mistakes, which is given up below
                if self._cut_marker() and trial is not None:
                    trial.mended = came[trial.start :], self._input[trial.start :]
        return super().finish(reason)

    def _cut_marker(self) -> bool:
        """Complete or drop the beginning of a marker with which the output ends; whether there is one."""
        end = self.parameter_end + self.after_parameter_end
        begun = (self._alphabet.spell(self._input[self._at :]) + self._alphabet.buffered).lstrip(WHITESPACE)
        if self._looks_for != "end" or not begun or begun == end or not end.startswith(begun):
            return False
        spelled = self._exact and self._is_control(end)
        if self._is_control(begun) or (2 * len(begun) > len(end) and not spelled):
            self._defect("unclosed_tag", begun)
            self._input += self._alphabet.from_text(end[len(begun) :])
        return True

    @classmethod
    def _is_control(cls, literal: str) -> bool:
        return any(control in literal for control in cls.controls)

    def _begin_call(self, name: str) -> None:
        name = self._open_call(name)
        types = self._types_of(name)
        self._parameters = Parameters(types, self._emit_fragment, self._defect)
        self._plain_keys = [key for key in types.own_keys()[:_MOST_KEYS] if _PLAIN_KEY.fullmatch(key)]
        closers = (*_foreign_closers(self.parameter_end), *(f"</{key}>" for key in self._plain_keys))
        self._other_closers = tuple(c for c in dict.fromkeys(closers) if not c.startswith(self._value_marks))

    def _is_early_end(self, marker: str | None, end: str, opener: str) -> Script[bool]:
        """Whether `marker`, the last one, is the call's `end`, although its first parameter's `opener` follows."""
        early = marker == end and self._parameters.empty and (yield from self._after_space(opener))
        if early:
            self._unread()
        return bool(early)

    def _only_tool(self) -> str | None:
        """The request's only tool, which a call without a name must mean; None if there are several."""
        return next(iter(self._options.tools)) if len(self._options.tools) == 1 else None

    def _is_foreign(self, tag: str) -> bool:
        """Whether a nested tag, of which `tag` is all up to its bracket, is no parameter of the tool."""
        return False

    def _opens_next(self, text: str, at: int, tag: int) -> bool:
        """Whether a nested tag is a parameter that the call lacks, or one of another call: see `OpenValue`."""
        raise NotImplementedError

    def _sees_end(self, text: str, at: int) -> bool:
        """Whether the model ended its turn so soon behind `at` that the value's own end would have been seen."""
        return self._over and not self._cut_off and len(text) < at + FARTHEST

    def _lacks(self, key: str, text: str, at: int) -> bool:
        """Whether the call lacks the parameter `key`. Without the end in sight, only a required one counts.

        A long value, or one that was cut off, may hold an optional one as text.
        """
        return self._parameters.lacks(key, required=not self._sees_end(text, at))

    def _parameter_value(
        self, key: str, types: frozenset[str] | None = None, begun: str = "", *, lenient: bool = False
    ) -> Script[None]:
        """Read one value, of which `begun` was read before. A marker that ends it too early is put back.

        `lenient`: whether the value was not opened as the family does.
        """
        write = self._parameters.open(key, types)
        newlines: tuple[str, ...] = ()
        dedented = None
        if begun:
            write(begun)
        elif self.newline_before_value:
            line = yield from self._next_is("\n", "\r\n", ">\n")
            if line == ">\n":
                self._defect("stray_bracket", ">")
            elif line == "\r\n":
                self._defect("carriage_return", key)
                newlines = ("\r\n",)
            if self._indent:
                self._defect("indented_value", key)
                newlines = (*newlines, "\n" + self._indent)
                if (yield from self._next_is(self._indent)) is not None:
                    write = dedented = _Dedented(write, self._indent)
        closers, others = self._closers, self._other_closers
        stops = (*self._value_marks, *others)
        stops = (*stops, *(newline + other for newline in (*newlines, "\n") for other in others))
        stops = (*stops, *(newline + closer for newline in newlines for closer in closers))
        self._open_value = OpenValue(
            self._ends, map(self.in_alphabet, others), self._is_foreign, self._opens_next, lenient=lenient
        )
        marker = yield from self._up_to_end(write, *stops)
        if marker is None:
            return
        if dedented is not None:
            dedented.end()
        self._parameters.close()
        marker = marker.strip(WHITESPACE)
        if marker in others:
            self._defect("misspelled_marker", marker)
        elif marker in closers:
            yield from self._end_of_closer(marker, self.parameter_end)
        else:
            self._defect("missing_parameter_end", key)
            self._unread()

    def _up_to_end(self, write: Callable[[str], None], *stops: str) -> Script[str | None]:
        """Pass a value to `write`, up to one of `stops`, which is returned."""
        try:
            self._looks_for = "end"
            return (yield from self._value(write, *stops, weigh=self._weigh_stop))
        finally:
            self._looks_for = ""

    def _end_of_closer(self, closer: str, end: str) -> Script[None]:
        """Read the rest of the last marker, `closer`, which begins the closing tag `end` or another spelling of it."""
        if closer == end:
            return
        length = self._at - self._mark
        self._unread()
        while (rest := REST.match(self._input, self._at + length)) is None:
            begun = REST_BEGUN.fullmatch(self._input, self._at + length)
            if self._over or begun is None:
                rest = begun
                break
            yield
        self._mark = self._at
        self._at += length if rest is None else rest.end() - self._at
        if rest is None or closer + rest.group() != end:
            self._defect("misspelled_marker", self._last_marker().strip())

    def _weigh_stop(self, text: str, at: int) -> int | None:
        """Whether a stop in a value, which ends at `at`, only spells a marker: see `reading.reader.Weigh`."""
        if text[self._at] not in "\r\n" and self._parameters.in_json_string:
            return string_goes_on(text, at)
        if not self._parameters.is_text:
            return -1
        return self._open_value.weigh(text, self._at, at, over=self._over)

    def _close_parameters(self, marker: str | None, end: str) -> None:
        """End the call whose parameters stopped at `marker`. `end` was expected there."""
        parameters = self._parameters
        if marker is None and (parameters.unfinished or self._cut_off):
            if parameters.unfinished or self._tag_cut or not parameters.has_required:
                self._truncated_call(parameters.cut())
                return
            self._defect("truncated_call", self._id)
        elif marker != end:
            self._defect("missing_call_end", self._id)
        parameters.end()
        self._end_call()

    def _abandon(self, text: str, defect: str) -> None:
        self._tag_cut = defect == "truncated_call"
        super()._abandon(text, defect)


@functools.cache
def _foreign_closers(end: str) -> tuple[str, ...]:
    """Closing tags that models write for `end`, and that do not begin as it does."""
    match = _CLOSER.fullmatch(end)
    if match is None:
        return ()
    token, name = match.groups()
    tag = token + name
    return (*(f"</{token}{other}>" for other in _NAMES), f"</ {tag}>", f"<//{tag}>", f"<\\/{tag}>")


@functools.lru_cache(256)
def _ends_of_values(kind: type[ParameterReader]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], ValueEnds]:
    """The stops of a family's values as the grammar has them; its closing tags up to the last bracket; what its reader
    looks for in values; and what it compares that with."""
    end, stops = kind.parameter_end, kind.stops_of_values()
    others = [stop for stop in stops if stop.lstrip("\n") != end]
    closers: dict[str, Closer] = {}
    for each in (end, *(other for other, mark in kind.other_marks.items() if mark == end)):
        closers |= closing_tags(kind, each, own=each == end, others=others)
    nested = kind.nested_tags()
    searched = [*closers, *others, *(tag for tag in nested if tag not in others)]
    if kind.newline_before_value:
        searched += ("\n" + closer for closer in closers)
    in_text = [stop for stop in others if not kind._is_control(stop)]
    nested = (*nested, *(tag for stop in others if (tag := stop.lstrip("\n")).startswith(nested)))
    ends = value_ends(
        kind.in_alphabet(end),
        {kind.in_alphabet(closer): own for closer, own in closers.items()},
        map(kind.in_alphabet, nested),
        in_text,
        map(kind.in_alphabet, kind.marks_after_values()),
        kind.after_parameter_end and kind.in_alphabet(kind.after_parameter_end),
        one_line=kind.one_line,
    )
    return stops, tuple(closers), tuple(dict.fromkeys(searched)), ends


def closing_tags(
    kind: type[ParameterReader], end: str, *, own: bool = True, others: Iterable[str] = ()
) -> dict[str, Closer]:
    """What a closing tag begins with, up to its last bracket: see `ValueEnds`. `others`: what it must not begin."""
    stem = end.removesuffix(">")
    if len(stem) < _SHORTEST_STEM or stem == end or any(other.lstrip("\n").startswith(stem) for other in others):
        return {end: "whole"} if own else {end: "other"}
    if kind.in_alphabet(end)[-1] == ">":
        return {stem: "own"} if own else {stem: "other"}
    return {end: "whole", stem: "other"}


class _Dedented:
    """Writes a value without the indentation of its lines. The first line's was read before."""

    def __init__(self, write: Callable[[str], None], indent: str) -> None:
        self._write = write
        self._indent = indent
        self._held = ""  # the end of the text, if it may be the beginning of an indentation

    def __call__(self, text: str) -> None:
        text = self._held + text
        line = "\n" + self._indent
        self._held = next((line[:n] for n in range(len(line) - 1, 0, -1) if text.endswith(line[:n])), "")
        if text := text[: len(text) - len(self._held)].replace(line, "\n"):
            self._write(text)

    def end(self) -> None:
        if self._held:
            self._write(self._held)
