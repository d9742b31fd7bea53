"""`CallReader`: what the readers of all families share about calls.

Here are the names, ids and indices of calls, JSON arguments that stream, and calls whose end is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from dovetail.reading import bare_json
from dovetail.reading.arguments import JsonArguments, Unwraps
from dovetail.reading.json_mending import MendedJson
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import FARTHEST_CALL, MOST_SPACE, CallTrial, ProseReader
from dovetail.reading.reader import Abandoned, ReaderOptions, Script
from dovetail.reading.values import ParameterTypes
from dovetail.tokens import Tokenizer

#: Characters. Longer text is no header of a call.
LONGEST_HEADER = 1024
#: A longer answer is not read as a call without markup.
_LONGEST_BARE_CALL = 1 << 16

#: What a name may have in front of it, and what is written in its place.
_PREFIXED = re.compile(r"\s*(?:(?:functions?|tools?)[.:/])*")
_BRACKETS = re.compile(r"[ \t\r\n]{0,16}[}\]]")
#: What may stand between arguments and the same arguments once more, apart from markers.
_GAP = WHITESPACE + ",;"
_FENCE = "```"
_OPEN_FENCE = re.compile(rf"[ \t\r\n]{{0,16}}{_FENCE}(?:json)?[ \t\r\n]{{0,16}}(?=\{{)")
_MAY_BE_FENCE = re.compile(r"[ \t\r\n]{0,16}(?:`{1,3}|```j(?:s(?:o(?:n[ \t\r\n]{0,16})?)?)?|```[ \t\r\n]{0,16})?")
#: An object behind an empty one, up to its first key; and every beginning of that.
_AFTER_EMPTY = re.compile(
    r"""[ \t\r\n,;]{0,16}(\{)[ \t\r\n]{0,16}(?:\}|(["']?)([^"'\\:{}\s]{1,128})\2[ \t\r\n]{0,16}:)"""
)
_CUT_OFF_AFTER_EMPTY = re.compile(r"""[ \t\r\n,;]{0,16}(\{)[ \t\r\n]{0,16}(?:["'][^"'\\:{}\s]{0,128}["']?)?\s*""")
_MAY_BE_AFTER_EMPTY = re.compile(
    r"""[ \t\r\n,;]{0,16}(?:\{[ \t\r\n]{0,16}(?:["']?[^"'\\:{}\s]{0,128}["']?[ \t\r\n]{0,16})?)?"""
)
_MAY_BE_BRACKETS = re.compile(r"[ \t\r\n]{0,16}")
#: The same, or the beginning of a tag's attribute.
_BEGUN_NAME = re.compile(r"""\s*(?:functions?[.:])*(?:\w*\s*=\s*["']?)?""")
_DASHES = str.maketrans("", "", "-. _")
_TOOL_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_MOST_NAMES = 128
#: Characters. No control token is longer.
_LONGEST_MARK = 64


def _plain(name: str) -> str:
    return _PREFIXED.sub("", name, count=1).strip().casefold().translate(_DASHES)


class CallReader(ProseReader):
    """Reads one call after another: their names, ids and arguments. A family's subclass reads a section of them."""

    #: What begins a call whose opener is missing, with `{name}` for the name of a tool.
    unopened: ClassVar[tuple[str, ...]] = ()
    #: The control tokens in front of JSON arguments.
    before_arguments: ClassVar[tuple[str, ...]] = ()
    #: Other spellings of the family's markers, each with the marker that it means; "" for nothing.
    other_marks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._index = -1  # of the open or last call
        self._id = ""
        self._ids: set[str] = set()
        self._number = 0  # of the next id for a call without one
        self._longest_name = max(map(len, options.tools), default=0)
        self._arguments = JsonArguments()
        self._fenced = False  # whether the open call's JSON arguments stand in a code fence
        self._types_by_tool: dict[str, ParameterTypes] = {}  # filled when a tool is called
        super().__init__(options, tokenizer)

    def _unopened(self) -> tuple[str, ...]:
        """The literals that begin a call to one of the tools, if its opener is missing."""
        if not self.unopened or len(self._options.tools) > _MOST_NAMES:
            return ()
        names = [name for name in self._options.tools if _TOOL_NAME.fullmatch(name)]
        literals = (template.replace("{name}", name) for template in self.unopened for name in names)
        return tuple(dict.fromkeys(literals))

    def _bare_call(self) -> Script[None]:
        options = self._options
        if not (options.bare_calls and options.calls and options.tools) or options.structured:
            return
        if self._shown or self._index >= 0:
            return
        match = yield from self._look(bare_json.BEGIN, bare_json.MAY_BEGIN)
        if match is not None:
            yield from self._try(self._tried_bare_call(match), CallTrial(self._at, Content), _LONGEST_BARE_CALL)

    def _tried_bare_call(self, match: re.Match[str]) -> Script[None]:
        """Read an answer that `match` begins. Raises `Abandoned` if it is not a call, or a list of calls."""
        self._at = match.end()
        texts, begun, mended = [], match["object"], ["list_of_calls"] if match["list"] else []
        while True:
            texts.append((yield from self._bare_object(begun, mended.append)))
            following = (yield from self._look(bare_json.NEXT, bare_json.MAY_BE_NEXT)) if match["list"] else None
            if following is None:
                break
            self._at, begun = following.end() + 1, "{"
        yield from self._skip(WHITESPACE)
        if match["list"] and not (yield from self._next_is("]")):
            mended.append("missing_bracket")
        while (yield from self._after_space("}", "]")):
            mended.append("stray_bracket")
        yield from self._skip(WHITESPACE)
        if match["fence"] and (yield from self._next_is("```")):
            yield from self._skip(WHITESPACE)
        ends = dict.fromkeys(filter(None, (self.answer_end.strip(), self.wrapper_end)))
        if (yield from self._next_is(*ends)) is not None:
            self._unread()
        elif (yield from self._peek()) not in ("", *self.controls):
            raise Abandoned
        calls = [bare_json.bare_call(text, self._options.tools) for text in texts]
        if None in calls:
            raise Abandoned
        for call in filter(None, calls):
            self._defect("unmarked_call", call.name)
            self._open_call(call.name)
            for kind in dict.fromkeys((*mended, *call.mended)):
                self._mended(kind)
            mended.clear()
            self._emit_fragment(call.arguments)
            self._end_call()

    def _bare_object(self, begun: str, report: Callable[[str], None]) -> Script[str]:
        """Read an object, which `begun` begins and which may be a call, and return it mended.

        `report` receives the kind of each fault. Raises `Abandoned` if it cannot be a call to one of the tools.
        """
        mended = MendedJson(ParameterTypes(None), report)
        out, head = [mended.feed(begun)[0]], begun  # as much of the object as may have the name

        def take(text: str) -> int | None:
            nonlocal head
            fragment, at = mended.feed(text)
            out.append(fragment)
            if mended.malformed:
                raise Abandoned
            if len(head) < LONGEST_HEADER:
                head += text[:at]
                if (name := bare_json.NAME.search(head)) and name[2] not in self._options.tools:
                    raise Abandoned
            return at if mended.complete else None

        marker = yield from self._until(take, *self.controls, weigh=mended.weigh)
        if marker != "":
            out.append(mended.flush())
            brackets = mended.brackets()
            if not brackets or mended.malformed or (marker is None and self._cut_off):
                raise Abandoned
            report("missing_bracket")
            out.append(brackets)
            if marker is not None:
                self._unread()
        return "".join(out)

    def _forget_calls(self, ids: Sequence[str]) -> None:
        self._index -= len(ids)
        self._number = min(self._number, self._index + 1)
        self._ids.difference_update(ids)

    def _begins_call(self, text: str) -> bool:
        begun = _BEGUN_NAME.sub("", self._without_begun_mark(text), count=1).strip().rstrip("\"'")
        return begun[:1] in "{[" or any(name.startswith(begun) for name in self._options.tools)

    def _without_begun_mark(self, text: str) -> str:
        """`text` without the beginning of a control token at its end."""
        for at in range(max(0, len(text) - _LONGEST_MARK), len(text)):
            if any(control.startswith(text[at:]) for control in self.controls):
                return text[:at]
        return text

    def _meant_mark(self, marker: str | None) -> str | None:
        """The marker that `marker` means, with a Defect if it is another spelling."""
        meant = self.other_marks.get(marker or "")
        if meant is None:
            return marker
        self._defect("misspelled_marker", marker or "")
        return meant

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
        known = not self._options.tools or name in self._options.tools
        if not known:
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
        if self._trial is not None:
            self._trial.begin_call(call_id, known=known, takes_none=not self._types_of(name).own_keys())
        self._arguments = JsonArguments(self._types_of(name), self._mended, self._unwraps(name))
        self._fenced = False
        self._events.append(CallStart(self._index, call_id, name))
        return name

    def _types_of(self, name: str) -> ParameterTypes:
        """The types of the parameters of the tool called `name`."""
        types = self._types_by_tool.get(name)
        if types is None:
            types = self._types_by_tool[name] = ParameterTypes(self._options.tools.get(name))
        return types

    def _unwraps(self, name: str) -> Unwraps | None:
        """See `JsonArguments`, for the tool called `name`."""

        def unwraps(key: str, first: str, named: tuple[str, str] | None) -> bool:
            types = self._types_of(name)
            wrapped = types.is_wrapper(key) and (not first or types.declares(first))
            if wrapped and named is not None:
                wrapped = self._tool(named[1]) == name and types.excludes(named[0])
            if wrapped:
                self._defect("wrapped_arguments", key)
            return wrapped

        return unwraps

    def _emit_fragment(self, fragment: str) -> None:
        if self._trial is not None:
            self._argument_on_trial(fragment, self._arguments.complete and not self._arguments.empty_object)
        self._events.append(CallArguments(self._index, fragment))

    def _end_call(self) -> None:
        self._events.append(CallEnd(self._index))
        if self._trial is not None:
            self._call_ended_on_trial()

    def _mended(self, kind: str) -> None:
        self._defect(kind, self._id)

    def _json_arguments(self, *stops: str) -> Script[str | None]:
        """Pass on the open call's JSON arguments up to one of `stops`. Text after the JSON is misplaced."""
        marker = yield from self._only_arguments(*stops)
        if marker == "":
            self._stray = False
            marker = yield from self._pass(self._stray_text, self._stray_marker, stops)
        return marker

    def _only_arguments(self, *stops: str, brackets: bool = True) -> Script[str | None]:
        """Pass on the open call's JSON arguments. Returns "" after them, or the one of `stops` that came before.

        `brackets`: whether brackets after them are surplus.
        """
        yield from self._fence()
        while True:
            marker = yield from self._until(self._take_arguments, *stops, weigh=self._arguments.weigh)
            if marker != "":
                return marker
            if not (yield from self._empty_before_others()):
                break
        if self._fenced:
            yield from self._after_space(_FENCE)
        yield from self._surplus(brackets=brackets)
        return ""

    def _fence(self) -> Script[bool]:
        """Read what opens a code fence around JSON arguments, if that comes next."""
        match = yield from self._look(_OPEN_FENCE, _MAY_BE_FENCE)
        if match is not None:
            self._at = match.end()
            self._fenced = True
            self._defect("fenced_arguments", self._id)
        return match is not None

    def _empty_before_others(self) -> Script[bool]:
        """Whether the arguments so far are an empty object in front of the real ones, of which the bracket is read."""
        if not self._arguments.empty_object:
            return False
        match = yield from self._look(_AFTER_EMPTY, _MAY_BE_AFTER_EMPTY)
        if match is None and self._cut_off:
            match = _CUT_OFF_AFTER_EMPTY.fullmatch(self._input, self._at)
        elif match is not None and match[3] is not None and not self._arguments.takes(match[3]):
            return False
        if match is None:
            return False
        self._defect("repeated_arguments", self._id)
        self._at = match.end(1)
        self._arguments.reopen()
        return True

    def _repeated(self, raw: str) -> Script[bool]:
        """Read `raw` once more if it comes next, perhaps behind a comma or a marker."""
        gap = _GAP + "".join(map(self.in_alphabet, self.before_arguments))
        while True:
            text = self._input[self._at : self._at + MOST_SPACE + len(raw)]
            bare = text.lstrip(gap)
            if bare.startswith(raw):
                self._at += len(text) - len(bare) + len(raw)
                return True
            if self._over or len(text) - len(bare) > MOST_SPACE or not raw.startswith(bare):
                return False
            yield

    def _surplus(self, *, brackets: bool = True) -> Script[None]:
        """Drop what models write once more after JSON arguments: all of the object, or `brackets`."""
        raw = self._arguments.raw
        while 0 < len(raw) <= FARTHEST_CALL and (yield from self._repeated(raw)):
            self._defect("repeated_arguments", self._id)
        while brackets and (match := (yield from self._look(_BRACKETS, _MAY_BE_BRACKETS))) is not None:
            self._at = match.end()
            self._defect("stray_bracket", match.group().strip())

    def _flush_arguments(self) -> None:
        """Pass on what waited for more of the arguments."""
        if rest := self._arguments.flush(cut_off=self._over and self._cut_off):
            self._emit_fragment(rest)

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
        arguments = self._arguments
        if marker is None and self._is_cut():
            self._truncated_call()
            return
        if marker not in ends:
            self._defect("missing_call_end", self._id)
        if arguments.empty:
            self._defect("missing_arguments", self._id)
            self._emit_fragment("{}")
        elif not arguments.valid():
            self._mend_end(closed=bool(marker) and marker in ends)
        self._end_call()

    def _is_cut(self) -> bool:
        """Whether the output, which is over, ends inside the arguments of the open call."""
        arguments = self._arguments
        if arguments.complete or (self._cut_off and arguments.malformed):
            return False
        ended = arguments.broken or arguments.brackets() or arguments.raw.rstrip(WHITESPACE).endswith(("}", "]"))
        return self._cut_off or arguments.empty or not ended

    def _mend_end(self, *, closed: bool = False) -> None:
        """Pass on the end of arguments that are not JSON yet, although the call is over.

        `closed`: whether its own marker ended it.
        """
        arguments = self._arguments
        if brackets := arguments.brackets():
            self._defect("missing_bracket", self._id)
            self._emit_fragment(brackets)
        elif (held := arguments.held()) is not None:
            kind, fragment = held
            self._defect(kind, self._id)
            self._emit_fragment(fragment)
        elif self._options.repair_arguments and (closing := arguments.closing()):
            self._defect("repaired_arguments", self._id)
            self._emit_fragment(closing)
        else:
            self._malformed(arguments.as_malformed(), closed=closed)

    def _malformed(self, rest: str, *, closed: bool) -> None:
        """The open call cannot be read. `rest`: the end of arguments that say so. `closed`: see `_mend_end`."""
        trial = self._trial
        as_text = self._options.on_malformed_call == "text"
        if trial is not None and (as_text or not trial.known or (trial.kind is Reasoning and not closed)):
            if as_text and closed:
                self._all_is_text(self._at - trial.start)
            raise Abandoned
        if trial is not None and not trial.argument:
            if self._cut_in_call():
                self._certain()
            elif trial.unended or self._mentioned or (trial.in_line and not closed):
                raise Abandoned
            trial.known = False  # it is a call only if nothing follows
        self._defect("malformed_call", self._id)
        self._emit_fragment(rest)

    def _truncated_call(self, closing: str | None = None) -> None:
        """The output ended inside the call's arguments, which stay as they are.

        `closing`: the text that would make them valid JSON, or ""; None: compute it from `self._arguments`.
        """
        self._defect("truncated_call", self._id)
        if closing is None:
            self._arguments.flush(cut_off=self._cut_off)
            closing = self._arguments.closing()
        self._repair(closing)

    def _repair(self, closing: str) -> None:
        """End the call with the text that completes its arguments, if there is one and the request wants a repair."""
        if self._options.repair_arguments and closing:
            self._defect("repaired_arguments", self._id)
            self._emit_fragment(closing)
            self._end_call()
