"""`JsonObjectReader`: reads one call that is a JSON object, `{"name": …, "arguments": {…}}`, while it comes.

The keys may come in any order. Arguments stream as soon as the name is known; arguments that come first wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from dovetail.events import Content
from dovetail.reading.calls import LONGEST_HEADER, CallReader
from dovetail.reading.json_end import JsonEnd, appending, to_end
from dovetail.reading.json_string import StringDecoder, decode
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import Abandoned, Script

#: An id that a model may have written itself.
CALL_ID_TEXT = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_ARGUMENTS = ("", "null", "None")
#: More keys that models write for a call's name and its arguments.
_OTHER_NAMES = ("tool", "tool_name")
_OTHER_ARGUMENTS = ("args", "input")


class Keys(NamedTuple):
    """The keys of a call's object in one family. OpenAI's are always read, as models fall back to them."""

    name: tuple[str, ...] = ("name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    type: tuple[str, ...] = ("type",)

    def quoted(self) -> tuple[str, ...]:
        return tuple(f'"{key}"' for keys in self for key in keys)


class Envelope:
    """The object around one call, as far as it was read."""

    def __init__(self, raw: list[str], certain: bool) -> None:
        #: All text of the object until the call starts: it becomes content if the object turns out to be no call.
        self.raw = raw
        #: Whether the object can only be a call.
        self.certain = certain
        #: The text of the current member until it is known to be markup.
        self.member: list[str] = []
        #: Members that a call does not have, each after its key.
        self.extras: list[tuple[str, str]] = []
        self.depth = 1
        self.name = ""
        self.id: str | None = None
        #: Arguments that came before the name.
        self.early: list[str] = []
        self.has_arguments = False
        #: Whether a key lacks its quotes. Without arguments, such an object is text.
        self.bare = False
        #: Whether the call has started.
        self.started = False
        #: What came last in the innermost bracket: the bracket "{", a "member" or a comma.
        self.last = "{"
        #: Defects of an object that is not certain to be a call, until it is.
        self.defects: list[tuple[str, str]] = []


class _Interrupted(Exception):
    """The object breaks off: at a marker, at the end of the output (None) or at text that is no JSON ("")."""

    def __init__(self, marker: str | None) -> None:
        self.marker = marker


class JsonObjectReader(CallReader):
    keys: ClassVar[Keys] = Keys()
    #: Whether one of the family's templates writes the id after the arguments: too late to be used, but no defect.
    id_comes_last: ClassVar[bool] = False

    def _object(self, raw: list[str], *stops: str, certain: bool = True) -> Script[str | None]:
        """Read one object, of which `raw` was read before. Returns "" after its end, or the stop that came instead.

        An object that is not `certain` to be a call is one if it names a tool of the request, or names any tool and has
        arguments.
        """
        envelope = Envelope(raw, certain)
        try:
            while envelope.depth:
                raw.append((yield from self._space(envelope)))
                match (yield from self._peek()):
                    case "}" | "," as mark:
                        self._punctuation(envelope, mark)
                        raw.append((yield from self._skip(mark, 1)))
                    case '"' | "'":
                        if envelope.last == "member":
                            self._fault(envelope, "missing_comma", envelope.name)
                        envelope.last = "member"
                        yield from self._member(envelope, stops)
                        raw += envelope.member
                        envelope.member = []
                    case first if first.isalpha() and certain and envelope.last != "member":
                        envelope.last = "member"
                        yield from self._member(envelope, stops)
                        raw += envelope.member
                        envelope.member = []
                    case "{" if certain and not envelope.started:
                        self._defect("stray_bracket", "{")
                        envelope.depth += 1
                        raw.append((yield from self._skip("{", 1)))
                    case _:
                        yield from self._interrupt(stops)
        except _Interrupted as interrupted:
            return (yield from self._broken_off(envelope, interrupted.marker, stops))
        if envelope.started:
            if envelope.bare and not envelope.has_arguments and self._trial is not None:
                raise Abandoned
            self._close_call("}", "}")
        else:
            if certain:
                self._defect("missing_name")
            self._events.append(Content("".join(raw)))
        return ""

    def _punctuation(self, envelope: Envelope, mark: str) -> None:
        """Take a bracket or a comma between the members of an object."""
        if envelope.last == "," or (mark == "," and envelope.last == "{"):
            self._fault(envelope, "stray_separator", ",")
        envelope.last = "," if mark == "," else "member"
        envelope.depth -= mark == "}"

    def _fault(self, envelope: Envelope, kind: str, detail: str) -> None:
        """Report a defect of an object, as soon as it is a call."""
        if envelope.certain or envelope.started:
            self._defect(kind, detail)
        else:
            envelope.defects.append((kind, detail))

    def _space(self, envelope: Envelope) -> Script[str]:
        """Whitespace between the parts of an object. An object that may still be content delays little of it."""
        return self._skip(WHITESPACE, None if envelope.certain or envelope.started else MOST_SPACE)

    # -- members ------------------------------------------------------------------------------------------------------

    def _member(self, envelope: Envelope, stops: tuple[str, ...]) -> Script[None]:
        member = envelope.member
        key = yield from self._member_key(envelope, stops)
        if not key.endswith(":"):
            member.append((yield from self._space(envelope)))
            if (yield from self._peek()) != ":":
                yield from self._interrupt(stops)
            member.append((yield from self._skip(":", 1)))
        key = key.removesuffix(":")
        member.append((yield from self._space(envelope)))
        yield from self._member_value(envelope, key, (yield from self._peek()), stops)

    def _member_key(self, envelope: Envelope, stops: tuple[str, ...]) -> Script[str]:
        """Read a member's key. If it lacks its last quote, it ends with its colon, and the value comes next."""
        known = (*_OTHER_NAMES, *_OTHER_ARGUMENTS, *(key for keys in self.keys for key in keys))
        if (yield from self._peek()) not in ('"', "'"):
            word: list[str] = []
            yield from self._whole_value("", stops, word, envelope.member)
            if (key := "".join(word)) not in known:
                raise _Interrupted("")
            self._defect("unquoted_key", key)
            envelope.bare = True
            envelope.member += yield from self._skip("\"'", 1)
            return key
        key = yield from self._string(envelope.member, stops)
        if envelope.certain and (begun := key.rstrip(WHITESPACE)).endswith(":") and begun[:-1].rstrip() in known:
            self._defect("unquoted_key", key)
            self._at -= 1  # the quote opens the value
            return f"{begun[:-1].rstrip()}:"
        return key

    def _member_value(self, envelope: Envelope, key: str, first: str, stops: tuple[str, ...]) -> Script[None]:
        """Read the value of the current member, which begins with `first`."""
        member, keys = envelope.member, self.keys
        quoted = first in ('"', "'")
        sure = envelope.certain or envelope.started
        foreign = sure and key not in (*keys.name, *keys.arguments)
        if foreign and not envelope.has_arguments and key in _OTHER_ARGUMENTS and first == "{":
            if not (envelope.started and self._takes(envelope, key)):
                self._defect("foreign_markup", key)
                key = keys.arguments[0]
        elif foreign and not envelope.name and key in _OTHER_NAMES and quoted:
            self._defect("foreign_markup", key)
            key = keys.name[0]
        if key in keys.arguments and not envelope.has_arguments:
            envelope.has_arguments = True
            if envelope.name:
                self._start(envelope)
                member.clear()
                yield from self._stream_arguments(first, stops)
            else:
                yield from self._whole_value(first, stops, envelope.early, member)
        elif key in keys.name and not envelope.name and (quoted or (sure and first.isalpha())):
            envelope.name = yield from self._name_value(envelope, first, stops)
            if envelope.name and (
                envelope.certain or envelope.has_arguments or self._tool(envelope.name) in self._options.tools
            ):
                before, is_new = [*envelope.extras], not (envelope.started or envelope.has_arguments)
                if before and is_new and all(self._takes(envelope, before_key) for before_key, _ in before):
                    envelope.extras = []
                    self._start(envelope)
                    yield from self._arguments_beside(envelope, ", ".join(text for _, text in before), stops)
                else:
                    self._start(envelope)
        elif key == "function" and not envelope.name and first == "{":
            envelope.depth += 1  # OpenAI's: {"type": "function", "function": {"name": …, "arguments": …}}
            envelope.last = "{"
            member.append((yield from self._skip("{", 1)))
        elif key in (*keys.id, *keys.type) and quoted:
            value = yield from self._string(member, stops)
            if key in keys.type and value == "function":
                return
            if key in keys.type or not CALL_ID_TEXT.fullmatch(value):
                self._extra(envelope, key)
            elif not envelope.started:
                envelope.id = value
            elif not self.id_comes_last:
                self._defect("late_id", value)
        elif envelope.started and not envelope.has_arguments and self._takes(envelope, key):
            yield from self._arguments_beside(envelope, "".join(member), stops)
        else:
            if sure:
                yield from self._whole_value(first, stops, member)
            self._extra(envelope, key)

    def _takes(self, envelope: Envelope, key: str) -> bool:
        """Whether the tool that is called has a parameter of this name."""
        return self._types_of(self._tool(envelope.name)).declares(key)

    def _name_value(self, envelope: Envelope, first: str, stops: tuple[str, ...]) -> Script[str]:
        """Read a tool's name, which begins with `first` and may lack a quote or both."""
        tools = self._options.tools
        if first not in ('"', "'"):
            word: list[str] = []
            yield from self._whole_value(first, stops, word, envelope.member)
            name = "".join(word)
            if self._tool(name) not in tools:
                raise _Interrupted("")
            self._defect("unquoted_value", name)
            envelope.member += yield from self._skip("\"'", 1)
            return name
        name = (yield from self._string(envelope.member, stops)).strip()
        if envelope.certain and name.endswith(",") and self._tool(name) not in tools and self._tool(name[:-1]) in tools:
            name = name[:-1]
            self._defect("unquoted_value", name)
            self._at -= 1  # the quote opens the next key
            envelope.last = ","
        return name

    def _arguments_beside(self, envelope: Envelope, begun: str, stops: tuple[str, ...]) -> Script[None]:
        """Read arguments that stand beside the call's name, of which `begun` was read, and the end of the object."""
        self._defect("unwrapped_arguments", envelope.name)
        envelope.has_arguments = True
        envelope.member.clear()
        if self._take_arguments("{" + begun) is None:
            marker = yield from self._until(self._take_arguments, *stops, weigh=self._arguments.weigh)
            if marker != "":
                raise _Interrupted(marker)
        envelope.depth -= 1

    def _extra(self, envelope: Envelope, key: str) -> None:
        """Keep the current member as text: calls do not have its key."""
        if not (envelope.certain or envelope.started):
            raise _Interrupted("")
        self._defect("extra_key", key)
        if envelope.started:
            self._events.append(Content("".join(envelope.member)))
        else:
            envelope.extras.append((key, "".join(envelope.member)))

    def _start(self, envelope: Envelope) -> None:
        if envelope.started:
            return
        envelope.started = True
        for kind, detail in envelope.defects:
            self._defect(kind, detail)
        if envelope.extras:
            self._events.append(Content("".join(text for _, text in envelope.extras)))
        self._open_call(envelope.name, envelope.id)
        self._write_arguments("".join(envelope.early))
        envelope.raw.clear()
        envelope.member.clear()

    # -- values -------------------------------------------------------------------------------------------------------

    def _string(self, member: list[str], stops: tuple[str, ...]) -> Script[str]:
        """Read a key or a name in quotes and return it decoded; its raw text is appended to `member`."""
        raw: list[str] = []
        append = appending((yield from self._peek()), raw, member)
        left = LONGEST_HEADER

        def take(text: str) -> int | None:
            nonlocal left
            at = append(text[:left])
            if at is None and len(text) >= left:
                at = left
            left -= len(text[:at])
            return at

        def take_control(literal: str) -> int | None:
            nonlocal left
            if len(literal) <= left:
                return take(literal)
            left = 0
            return 0

        marker = yield from self._until(take, *stops, take_control=take_control)
        if marker != "" or not left:
            raise _Interrupted(marker)
        return decode("".join(raw)[1:-1])

    def _whole_value(self, first: str, stops: tuple[str, ...], *into: list[str]) -> Script[None]:
        """Read one JSON value that begins with `first`, and append its raw text to each of `into`."""
        if first in ("{", "["):
            end = JsonEnd()
            marker = yield from self._until(to_end(end.feed, into), *stops, weigh=end.weigh)
        else:
            marker = yield from self._until(appending(first, *into), *stops)
        if marker != "":
            raise _Interrupted(marker)

    def _stream_arguments(self, first: str, stops: tuple[str, ...]) -> Script[None]:
        if first in ("{", "[") or (first == "`" and (yield from self._fence())):
            marker = yield from self._only_arguments(*stops, brackets=False)
        elif first == '"':
            self._defect("string_arguments", self._id)
            yield from self._skip(first, 1)
            marker = yield from self._until(self._string_taker(), *stops)
        else:
            value: list[str] = []
            marker = yield from self._until(appending(first, value), *stops)
            if marker == "" and value != ["null"]:
                marker = yield from self._plain_arguments(value, stops)
            self._write_arguments("".join(value), whole=marker == "")
        if marker != "":
            raise _Interrupted(marker)

    def _plain_arguments(self, value: list[str], stops: tuple[str, ...]) -> Script[str | None]:
        """Read the rest of text in place of arguments, of which `value` was read. Returns the stop after it.

        Returns "" and reads nothing if `value` is all of it.
        """
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if (yield from self._peek()) in (",", "}", "]"):
            return ""
        value.append(space)
        marker = yield from self._until(value.append, *stops)
        value[:] = ["".join(value).rstrip("}]" + WHITESPACE)]
        return marker

    def _string_taker(self) -> Callable[[str], int | None]:
        """Takes the inside of a JSON string and passes on the arguments that are encoded in it."""
        end, decoder = JsonEnd(), StringDecoder()
        end.feed('"')
        self._stray = False

        def take(text: str) -> int | None:
            at = end.feed(text)
            decoded = decoder.feed(text if at is None else text[: at - 1])
            self._write_decoded(decoded if at is None else decoded + decoder.end())
            return at

        return take

    def _write_decoded(self, text: str) -> None:
        fragment, rest = self._arguments.feed(text)
        if fragment:
            self._emit_fragment(fragment)
        if rest:
            self._stray_text(rest)

    def _write_arguments(self, value: str, *, whole: bool = True) -> None:
        """Pass on arguments that were read before. A string holds the arguments as JSON; null means none."""
        if whole and value[:1] in ('"', "'"):
            self._defect("string_arguments", self._id)
            self._stray = False
            value = decode(value[1:-1])
        if value not in _NO_ARGUMENTS:
            self._write_decoded(value)

    def _arguments_alone(self, *stops: str) -> Script[str | None]:
        """Read the arguments of an open call that has no object around it. Returns what `_object` does."""
        if not (yield from self._fence()) and (yield from self._peek()) not in ("{", "[", '"', "'"):
            marker = yield from self._until(self._take_arguments, *stops)
            self._cut_call(marker, between_members=True)
            return marker
        try:
            yield from self._stream_arguments((yield from self._peek()), stops)
        except _Interrupted as interrupted:
            self._cut_call(interrupted.marker, between_members=True)
            return interrupted.marker
        yield from self._surplus()
        self._close_call("", "")
        return ""

    # -- objects that break off ---------------------------------------------------------------------------------------

    def _interrupt(self, stops: tuple[str, ...]) -> Script[None]:
        """Raise `_Interrupted` for what comes next, which no object can go on with."""
        marker = yield from self._next_is(*stops)
        if marker is None and (yield from self._peek()):
            marker = ""
        raise _Interrupted(marker)

    def _broken_off(self, envelope: Envelope, marker: str | None, stops: tuple[str, ...]) -> Script[str | None]:
        text = "".join(envelope.member)
        if envelope.started:
            if text and not any(key.startswith(text.replace("'", '"')) for key in self.keys.quoted()):
                self._events.append(Content(text))
            self._cut_call(marker, between_members=not text)
            return marker
        if envelope.certain:
            self._defect("truncated_call" if marker is None else "unreadable_call")
        if envelope.certain and marker is None and self._cut_off:
            return marker
        self._events.append(Content("".join(envelope.raw) + text))
        if envelope.certain and marker == "":
            marker = yield from self._prose(Content, *stops)
        return marker

    def _cut_call(self, marker: str | None, *, between_members: bool) -> None:
        """End the open call, whose object or arguments broke off at `marker`.

        What is missing at the end is read as if it were there, unless the output is over.
        """
        self._flush_arguments()
        arguments = self._arguments
        if marker is None and self._is_cut():
            self._truncated_call()
            return
        if self._trial is not None and arguments.empty and (marker == "" or not between_members):
            raise Abandoned
        if arguments.empty and between_members:
            self._defect("missing_arguments", self._id)
            self._emit_fragment("{}")
        elif arguments.valid():
            self._defect("missing_bracket", self._id)
        else:
            self._mend_end()
        self._end_call()
