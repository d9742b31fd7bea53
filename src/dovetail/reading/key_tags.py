"""`KeyTagReader`: calls whose parameters have a tag for the key and a tag for the value, as GLM writes them.

<tool_call>search
<arg_key>query</arg_key>
<arg_value>words</arg_value>
</tool_call>
"""

from __future__ import annotations

import functools
import re
from typing import ClassVar, Final

from dovetail.reading.alphabet import any_control
from dovetail.reading.arguments import malformed
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import FARTHEST, Script
from dovetail.reading.two_languages import JsonAfterNames

#: Characters. Longer text after the opener of a call is no key.
LONGEST_KEY: Final = 128
#: What no name has in it, and what may go on with a name.
_NO_NAME: Final = re.compile(r"[\s<>(){}\[\]=\"'`,;]")
_OF_NAMES: Final = re.compile(r"[\w./-]|:\w")
#: Signs that stand between a name or a key and what follows, where nothing belongs.
_SIGNS: Final = ":=>,;-() \t\r\n"
#: A tag of another family with a name in it, and one of a parameter; and what may become such a tag.
_NAME_TAG: Final = re.compile(r"""<\w+(?:\s+name)?\s*=\s*["']?([\w.-]+)["']?\s*>""")
_PARAMETER_TAG: Final = re.compile(r"""<(?:(\w+)(?:\s+name)?\s*=\s*["']?([^\s<>"'=]+)["']?|([^\s<>/="']+))\s*>""")
_MAY_BE_TAG: Final = re.compile(r"(?:<[^<>\ud800-\udfff]{0,128})?")
_CLOSING_TAG: Final = re.compile(r"</\w{1,32}>")
_MAY_BE_CLOSING_TAG: Final = re.compile(r"(?:<(?:/\w{0,32})?)?")


class KeyTagReader(ParameterReader, JsonAfterNames):
    """All of the tags are control tokens, and each call is a section."""

    key: ClassVar[str]
    key_end: ClassVar[str]
    value: ClassVar[str]
    #: What ends the name of a call, in families that have a marker for that.
    name_end: ClassVar[str] = ""

    @classmethod
    def stops_of_values(cls) -> tuple[str, ...]:
        others = (cls.key, cls.key_end, cls.value, *cls.around_calls())
        return (cls.parameter_end, *others, *("\n" + other for other in others), *cls.ends)

    @classmethod
    def marks_after_values(cls) -> tuple[str, ...]:
        return (
            cls.key,
            cls.value,
            cls.parameter_end,
            *cls.around_calls(),
            cls.think,
            cls.think_end.lstrip(),
            *cls.ends,
        )

    @classmethod
    def nested_tags(cls) -> tuple[str, ...]:
        return (cls.value,)

    def _opens_next(self, text: str, at: int, tag: int) -> bool:
        *before, key, _ = ("", *any_control.split(text[at:tag]))
        if len(before) > 2:  # another call, its name and the key
            return self._sees_end(text, at) and self._tool(before[-1].strip()) in self._options.tools
        return self._lacks(key.strip(), text, at)

    @classmethod
    def around_calls(cls) -> tuple[str, ...]:
        """The markers that stand before and after calls."""
        return cls.section, cls.section_end

    def _section(self, opener: str) -> Script[None]:
        while True:
            yield from self._call()
            if not (yield from self._another_section(self.section)):
                return

    def _call(self) -> Script[None]:
        if (yield from self._json_section()):
            return
        if (tag := (yield from self._look(_NAME_TAG, _MAY_BE_TAG))) and self._tool(tag[1]) in self._options.tools:
            self._at = tag.end()
            yield from self._tagged_call(tag[1])
            return
        header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", "<", *self.controls)
        name, rest, key = *self._name_and_rest(header), ""
        if not marker and (not rest or (marker is None and self._cut_off)):
            self._abandon(header, "truncated_call" if marker is None else "endless_header")
            return
        self._unread()
        if marker == self.name_end:
            yield from self._next_is(self.name_end)
        around = self.around_calls()
        if marker == self.key_end and (name := self._begins_with_tool(header)):
            key = header.strip()[len(name) :].strip()
        elif rest and (marker not in (self.key, self.name_end) or rest.strip(_SIGNS)):
            yield from self._unreadable_arguments(name, rest)
            return
        elif marker == "<" and self._tool(name) in self._options.tools:
            if (yield from self._look(_PARAMETER_TAG, _MAY_BE_TAG)) is not None:
                yield from self._tagged_call(name)
                return
        elif rest:
            self._defect("stray_separator", rest.strip())
        if self._tool(name) not in self._options.tools and (not name or _NO_NAME.search(name)):
            self._abandon(header, "missing_name")
            name = "" if name or marker not in (self.key, self.value) else self._only_tool() or ""
        if not name:
            marker = yield from self._between(*around, self.think, self.think_end, *self.ends)
        else:
            self._begin_call(name)
            if marker == "{":
                self._defect("json_arguments", self._id)
                marker = yield from self._json_arguments(*around, *self.ends)
                self._close_call(marker, self.section_end)
            else:
                if key:
                    yield from self._unopened_key(key)
                # Some calls without arguments end like a value does.
                ended = marker == self.parameter_end
                marker = yield from self._body()
                if ended and marker is None and self._parameters.empty and not self._cut_off:
                    self._defect("missing_arguments", self._id)
                    self._parameters.end()
                    self._end_call()
                else:
                    self._close_parameters(marker, self.section_end)
        if marker not in (None, self.section_end):
            self._unread()

    def _name_and_rest(self, header: str) -> tuple[str, str]:
        """The name in a call's header, and text behind the name of a tool that belongs to no name."""
        name = header.strip()
        if self._tool(name) in self._options.tools:
            return name, ""
        tool = self._begins_with_tool(header)
        rest = name[len(tool) :]
        return (name, "") if not tool or rest[0].isspace() or _OF_NAMES.match(rest) else (tool, rest)

    def _unreadable_arguments(self, name: str, begun: str) -> Script[None]:
        """Read a call with text in place of arguments, of which `begun` was read."""
        self._begin_call(name)
        pieces, closer = [begun], _closer(type(self))
        marker = yield from self._value(pieces.append, *self.around_calls(), *closer, *self.ends)
        if marker in closer:
            yield from self._end_of_closer(marker or "", self.section_end)
            marker = self.section_end
        text = "".join(pieces).strip()
        if text == "()" and not self._types_of(name).own_keys():
            self._defect("wrong_bracket", text)
            self._close_parameters(marker, self.section_end)
        elif marker is None and self._cut_off:
            self._emit_fragment(malformed(text))
            self._truncated_call("")
        else:
            self._malformed(malformed(text), closed=marker == self.section_end)
            self._end_call()
        if marker not in (None, self.section_end):
            self._unread()

    def _tagged_call(self, name: str) -> Script[None]:
        """Read a call to `name` whose parameters stand in the tags of another family."""
        self._defect("other_syntax", name)
        self._begin_call(name)
        stops = (*self.around_calls(), *_closer(type(self)), *self.ends)
        while True:
            yield from self._skip(WHITESPACE)
            tag = yield from self._look(_PARAMETER_TAG, _MAY_BE_TAG)
            if tag is None or (tag[3] and not self._parameters.declares(tag[3])):
                break
            self._at = tag.end()
            end = f"</{tag[1] or tag[3]}>"
            yield from self._next_is("\n", "\r\n")
            marker = yield from self._value(self._parameters.open(tag[2] or tag[3]), "\n" + end, end, *stops)
            if marker is None:
                break
            self._parameters.close()
            if self._last_marker().strip() != end:
                self._defect("missing_parameter_end", tag[2] or tag[3])
                self._unread()
        closing = yield from self._look(_CLOSING_TAG, _MAY_BE_CLOSING_TAG)
        if closing is not None and not closing.group().startswith(_closer(type(self))):
            self._at = closing.end()
        yield from self._rest_of_call()

    def _rest_of_call(self) -> Script[None]:
        marker = yield from self._body()
        self._close_parameters(marker, self.section_end)
        if marker not in (None, self.section_end):
            self._unread()

    def _body(self) -> Script[str | None]:
        self._stray = False
        closer = _closer(type(self))
        while True:
            text, marker = yield from self._read_up_to(LONGEST_HEADER, *closer, *self.controls)
            if marker == self.key_end and (key := text.strip()):
                yield from self._unopened_key(key, read=True)
                continue
            if (
                marker in (*self.around_calls()[::2], self.value)
                and not text.strip()
                and (yield from self._stands_for_another(marker, *_key_after_opener(type(self))))
            ):
                self._defect("missing_key_start", marker)
                yield from self._parameter()
                continue
            (self._stray_text if self._stray else self._misplaced)(text)
            self._stray = self._stray and marker == ""
            if marker == "":
                continue
            if marker in closer:
                yield from self._end_of_closer(marker, self.section_end)
                return self.section_end
            if (yield from self._is_early_end(marker, self.section_end, self.key)):
                self._stray_marker(self.section_end)
                continue
            if marker == self.key:
                yield from self._parameter()
            elif marker == self.value and (key := self._parameters.only_key):
                self._defect("missing_key", key)
                yield from self._parameter_value(key)
            elif marker in (self.key_end, self.value, self.parameter_end):
                self._stray_marker(marker)
            else:
                return marker

    def _stands_for_another(self, marker: str, pattern: re.Pattern[str], begun: re.Pattern[str]) -> Script[bool]:
        """Whether `marker`, the last one, stands for another: it and what follows match `pattern`. See `_look`."""
        self._unread()
        found = (yield from self._look(pattern, begun)) is not None
        yield from self._next_is(marker)
        return found

    def _parameter(self) -> Script[None]:
        key, marker = yield from self._read_up_to(LONGEST_HEADER, *self.controls)
        if marker is None and self._cut_off:
            if not self._parameters.begins_key(key):
                self._defect("unclosed_tag", key)
                self._tag_cut = True
            return
        if not marker:
            self._abandon(key, "truncated_call" if marker is None else "endless_header")
            return
        yield from self._after_key(key, marker)

    def _begins_with_tool(self, header: str) -> str:
        """The tool whose name begins a header that goes on with something else; "" if there is none."""
        text = header.strip()
        return max((name for name in self._options.tools if name and text.startswith(name)), key=len, default="")

    def _unopened_key(self, key: str, *, read: bool = False) -> Script[None]:
        """Read an argument whose name was not opened. `read`: whether the end of the name was read."""
        self._defect("missing_key_start", key)
        marker = self.key_end if read else (yield from self._next_is(self.key_end))
        yield from self._after_key(key, marker)

    def _after_key(self, key: str, marker: str | None) -> Script[None]:
        """Read an argument after its name, which `marker` ended."""
        between = ""
        if marker in (self.key, self.parameter_end):
            self._unread()
            match = yield from self._look(*_value_after_end(type(self)))
            if match is not None:  # the marker stands for the key's end
                self._at = match.end()
                self._defect("missing_key_end", key)
                yield from self._parameter_value(key.strip())
                return
            yield from self._next_is(marker)
        if marker == self.key_end:
            between, marker = yield from self._read_up_to(LONGEST_HEADER, *self.controls)
            while marker == self.key_end and not between.strip():
                self._stray_marker(marker)
                between, marker = yield from self._read_up_to(LONGEST_HEADER, *self.controls)
        else:
            self._defect("missing_key_end", key)
        key = self._plain_key(key)
        misplaced = marker if marker in self.around_calls()[::2] and not between.strip() else None
        if misplaced and (yield from self._stands_for_another(misplaced, *_value_after_opener(type(self)))):
            self._defect("missing_value_start", misplaced)
            marker = self.value
        if marker == self.value:
            if between.strip(_SIGNS):
                self._misplaced(between)
            elif between.strip():
                self._defect("stray_separator", between)
            # Only tokens: in text, a second tag is the beginning of the value.
            if len((yield from self._peek())) > 1 and self._exact and (yield from self._next_is(self.value)):
                self._stray_marker(self.value)
            yield from self._parameter_value(key)
            return
        if marker is None and self._cut_off and self.value.startswith(between.strip()):
            return
        self._unread()
        if marker == self.parameter_end:
            self._defect("missing_value_start", key)
            yield from self._parameter_value(key, begun=between.removeprefix("\n"))
        else:
            self._abandon(key + between, "missing_value")

    def _plain_key(self, written: str) -> str:
        """The parameter that is meant: a name may stand in quotes."""
        key = written.strip()
        plain = key.strip("\"'`").strip()
        if plain == key or self._parameters.declares(key) or not self._parameters.declares(plain):
            return key
        self._defect("attribute_quotes", key)
        return plain


@functools.lru_cache(256)
def _closer(kind: type[KeyTagReader]) -> tuple[str, ...]:
    """What the closing tag of a call begins with, in other spellings too: `</tool_calls>`."""
    stem = kind.section_end.removesuffix(">")
    return (stem,) if stem.startswith("</") and stem != kind.section_end else ()


@functools.lru_cache(256)
def _value_after_opener(kind: type[KeyTagReader]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A pattern for another opener, a text and the end of a value, and one for what may become that."""
    openers = "|".join(re.escape(kind.in_alphabet(marker)) for marker in kind.around_calls()[::2])
    opened = rf"(?:{openers})[^\ud800-\udfff]{{0,{FARTHEST}}}"
    return re.compile(opened + re.escape(kind.in_alphabet(kind.parameter_end))), re.compile(opened)


@functools.lru_cache(256)
def _key_after_opener(kind: type[KeyTagReader]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The same for a key and the end of a key."""
    openers = "|".join(re.escape(kind.in_alphabet(marker)) for marker in (*kind.around_calls()[::2], kind.value))
    opened, key = rf"(?:{openers})\s{{0,{MOST_SPACE}}}", rf"[^\s\ud800-\udfff][^\ud800-\udfff]{{0,{LONGEST_KEY}}}"
    return re.compile(opened + key + re.escape(kind.in_alphabet(kind.key_end))), re.compile(f"{opened}(?:{key})?")


@functools.lru_cache(256)
def _value_after_end(kind: type[KeyTagReader]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The same for a value after a marker that stands where the end of a key belongs."""
    markers, value = (kind.in_alphabet(kind.key), kind.in_alphabet(kind.parameter_end)), kind.in_alphabet(kind.value)
    ended = rf"(?:{'|'.join(map(re.escape, markers))})[{WHITESPACE}]{{0,{MOST_SPACE}}}"
    return re.compile(ended + re.escape(value)), re.compile(ended)


class SectionKeyTagReader(KeyTagReader):
    """The same, where a section holds several calls, as Hunyuan 3 writes them. `section` is the tag of one call."""

    outer: ClassVar[str]
    outer_end: ClassVar[str]

    @classmethod
    def around_calls(cls) -> tuple[str, ...]:
        return cls.section, cls.section_end, cls.outer, cls.outer_end

    def _section(self, opener: str) -> Script[None]:
        if opener != self.outer:
            if opener == self.section:
                self._defect("missing_section")
            yield from super()._section(opener)
            return
        unopened = self._unopened()
        stops = (self.section, self.outer, self.outer_end, *self.ends, *unopened)
        while True:
            before = self._index
            while (marker := (yield from self._between(*stops))) == self.section or marker in unopened:
                if marker in unopened:
                    self._defect("missing_call_start")
                    self._unread()
                yield from self._call()
            if marker == self.outer:
                self._defect("missing_section_end")
                continue
            if marker != self.outer_end:
                self._defect("missing_section_end")
                if marker is not None:
                    self._unread()
                return
            if self._index == before:
                self._defect("empty_section")
            if not (yield from self._another_section(self.outer)):
                return
