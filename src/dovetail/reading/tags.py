"""Calls whose parameters are tags. `TagReader` reads tags with attributes:
`<invoke name="search">`, `<parameter name="query" string="true">`. `EqualsTagReader` reads `<function=search>`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from dovetail.events import Content
from dovetail.reading.arguments import malformed
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.parameter_reader import ParameterReader, closing_tags
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import Abandoned, ReaderOptions, Script
from dovetail.reading.tag_text import ATTRIBUTE, Attributes, Tag, in_quotes, read_attributes
from dovetail.reading.values import STRING, VALUES, ParameterTypes
from dovetail.tokens import Tokenizer


class TagReader(ParameterReader):
    #: The opening tags of a call and of a parameter, up to the name or the attributes.
    call: str
    call_end: str
    parameter: str
    #: The same, in values and outside of sections, where ordinary text may look like a tag: as much of the tag as the
    #: model always writes.
    call_in_text: str
    parameter_in_text: str
    #: Whether an opening tag may span several lines.
    tags_span_lines = True
    #: Whether a parameter's tag declares if its value is a string.
    declares_string = False

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._marks, self._marks_in_text, self._closing, self._others = _marks_of_sections(type(self))
        self._misspelled = False  # whether the last tag was in another spelling
        self._key_tags: dict[str, str] = {}  # tags that are no more than the name of a parameter, and these names
        self._space_before = ""  # the whitespace before the last marker
        super().__init__(options, tokenizer)

    @classmethod
    def stops_of_values(cls) -> tuple[str, ...]:
        own = ("\n" + cls.parameter_end,) if cls.newline_before_value else ()
        stops = [*own, cls.parameter_end, *cls.ends]
        for other in (cls.section, cls.section_end, cls.parameter_in_text, cls.call_end, cls.call_in_text):
            stops.append("\n" + other)
            if cls._is_control(other):  # text within a line is the value's own
                stops.append(other)
        return tuple(stops)

    @classmethod
    def marks_after_values(cls) -> tuple[str, ...]:
        sections = {other for other, mark in cls.other_marks.items() if mark == cls.section}
        return tuple(mark for mark in _marks_of_sections(cls)[0] if mark not in sections)

    @classmethod
    def nested_tags(cls) -> tuple[str, ...]:
        # A newline may belong to the end of the value.
        return tuple(cls.parameter + after for after in cls.after_tag(cls.parameter) if after not in ("\r", "\n"))

    def _is_early_end(self, marker: str | None, end: str, opener: str) -> Script[bool]:
        if not (yield from super()._is_early_end(marker, end, opener)):
            return False
        tag = yield from self._look(_NEXT_TAG, _MAY_BE_NEXT_TAG)
        return tag is not None and not self._is_foreign(tag[1])

    def _begin_call(self, name: str) -> None:
        super()._begin_call(name)
        if (again := self.parameter + ">") in self.nested_tags():
            self._other_closers += (again,)
        whole = _whole_tags(self._marks)
        tags = {f"<{key}>": key for key in self._plain_keys}
        self._key_tags = {tag: key for tag, key in tags.items() if not tag.startswith(self._marks) and tag not in whole}

    def _is_foreign(self, tag: str) -> bool:
        name = self._attributes(tag.removeprefix(self.in_alphabet(self.parameter))).values.get("name")
        return name is not None and self._parameters.excludes(name)

    def _opens_next(self, text: str, at: int, tag: int) -> bool:
        if (call := text.find(self.in_alphabet(self.call), at, tag)) >= 0:
            return self._sees_end(text, at) and self._named(text, call, self.call) in self._options.tools
        return self._lacks(self._named(text, tag, self.parameter), text, at)

    def _named(self, text: str, at: int, tag: str) -> str:
        """The name in the first opening `tag` from `at` on."""
        tag = self.in_alphabet(tag)
        begin = text.find(tag, at) + len(tag)
        return self._attributes(text[begin : text.find(">", begin, begin + LONGEST_HEADER)]).values.get("name", "")

    # -- a marker that the end of the output cuts off ------------------------------------------------------------------

    def _cut_marker(self) -> bool:
        if super()._cut_marker():
            return True
        held = self._alphabet.buffered
        at = len(self._input) if held[:1] == "<" else self._input.rfind("<", self._at)
        if at < 0:
            return False
        begun = self._alphabet.spell(self._input[at:]) + held
        space = not self._input[self._at : at].strip(WHITESPACE)
        if not (self._is_control(begun) if not self._looks_for else not space or self._looks_for == "mark"):
            return False
        marks = self._marks if self._looks_for else self.openers
        cut = any(mark.lstrip().startswith(begun) and mark.lstrip() != begun for mark in marks)
        if cut:
            self._defect("unclosed_tag", begun)
            self._tag_cut = not begun.startswith("</")
            self._input = self._input[: self._at if space else at]
            self._alphabet.end()
        return cut

    # -- sections -----------------------------------------------------------------------------------------------------

    def _section(self, opener: str) -> Script[None]:
        if self.section == self.call:
            yield from self._calls_alone()
            return
        in_section = opener == self.section
        before = self._index
        if self.other_marks.get(opener) == self.section:
            self._defect("misspelled_marker", opener)
            in_section = True
        elif not in_section:
            if opener != self.call_in_text or self._is_control(self.call):
                self._defect("missing_section")
                self._unread()
            elif not (yield from self._call_in_text()):
                return
        if in_section and (yield from self._other_language()):
            return
        markers, last = 0, self._index
        while True:
            marker = yield from (self._next_mark() if in_section else self._mark_at_once())
            markers = markers + 1 if self._index == last else 0
            last = self._index
            if markers > _MOST_MARKERS and self._trial is not None:
                raise Abandoned
            if marker == self.call:
                yield from self._call()
            elif marker == self.parameter:
                yield from self._parameter_without_call(in_section)
            elif marker == self.section:
                if in_section:
                    self._defect("missing_section_end")
                in_section = True
            elif marker == self.section_end:
                if self._index == before:
                    self._defect("empty_section")
                before = self._index
                in_section = yield from self._another_section(self.section)
                if not in_section or (yield from self._other_language()):
                    return
            elif marker in (self.call_end, self.parameter_end):
                self._stray_marker(marker)
            else:
                if in_section and (marker is None or marker in self.ends):
                    self._defect("missing_section_end")
                if marker:
                    self._unread()
                return

    def _other_language(self) -> Script[bool]:
        """Read the open section, if it is not in tags; whether it was not."""
        return False
        yield

    def _calls_alone(self) -> Script[None]:
        """Read calls that nothing surrounds."""
        yield from self._call()
        while (yield from self._another_section(self.call)):
            yield from self._call()

    @classmethod
    def after_tag(cls, tag: str) -> str | tuple[str]:
        """The characters that may follow a tag's name. They tell a tag from a word that begins like it: `<parameters>`
        is text."""
        return ("",) if cls._is_control(tag) else " \t\r\n=>/"

    def _begun(self, marker: str | None) -> Script[str | None]:
        """The marker that `marker` is or begins. Of an opening tag, what follows its name is put back."""
        if marker is None:
            return None
        self._misspelled = False
        for tag in (self.call, self.parameter):
            if marker.startswith(tag) and marker not in self._others:
                self._unread()
                return (yield from self._next_is(tag))
        if (end := self._closing.get(marker)) is not None:
            yield from self._end_of_closer(marker, end)
            return end
        meant = self._others.get(marker)
        if meant is None:
            return marker
        self._misspelled = True
        self._defect("misspelled_marker", marker)
        if meant in (self.call, self.parameter):
            self._at -= len(_NAME) if marker.endswith(_NAME) else marker.endswith((">", "="))
        return meant

    def _next_mark(self, *others: str) -> Script[str | None]:
        """Read up to the next marker, or one of `others`, where no text belongs."""
        try:
            self._looks_for = "mark"
            marker = yield from self._between(*self._marks, *others)
        finally:
            self._looks_for = ""
        return (yield from self._begun(marker))

    def _stray_text(self, text: str) -> None:
        self._space_before = (self._space_before + text)[-MOST_SPACE:] if text.isspace() else ""
        super()._stray_text(text)

    def _mark_at_once(self) -> Script[str | None]:
        """The marker that comes next, after whitespace at most; None if text comes, or nothing."""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        marker = yield from self._next_is(*self._marks_in_text)
        if marker is None and space and (yield from self._peek()):
            self._events.append(Content(space))
        return (yield from self._begun(marker))

    def _call_in_text(self) -> Script[bool]:
        """Read the call that ordinary text seems to open outside of a section; False if it is only text.

        It is a call if its tag is complete and names one of the tools.
        """
        yield from self._begun(self.call_in_text)
        header, marker = yield from self._read_up_to(LONGEST_HEADER, ">", "<", "\n", *self.controls)
        attributes, defect, stray, _ = self._attributes(header)
        name = attributes.get("name", "")
        if marker != ">" or name not in self._options.tools:
            self._unread()
            self._events.append(Content(self.call + header))
            return False
        self._defect("missing_section")
        if defect:
            self._defect(defect, header)
        self._begin_call(name)
        self._arguments_in_tag(header)
        self._misplaced(stray)
        yield from self._body()
        return True

    # -- one call -----------------------------------------------------------------------------------------------------

    def _call(self) -> Script[None]:
        tag = yield from self._tag()
        if tag is None:
            return
        name = tag.attributes.get("name", "").strip()
        if not name and not tag.text:
            name = yield from self._name_in_tags()
        if not name:
            self._defect("missing_name", tag.text)
            name = self._only_tool() or ""
            if not name:
                self._misplaced(tag.text + tag.rest)
                return
        self._begin_call(name)
        self._arguments_in_tag(tag.text.rstrip().removesuffix("/") if tag.empty else tag.text)
        self._stray_in_tag(tag)
        self._misplaced(tag.rest)
        if tag.empty:
            self._close_parameters(self.call_end, self.call_end)
        else:
            yield from self._body()

    def _stray_in_tag(self, tag: Tag) -> None:
        """Report text inside of a tag, which makes the tag no mention."""
        if tag.stray:
            self._defect("text_in_section")
            self._events.append(Content(tag.stray))

    def _name_in_tags(self) -> Script[str]:
        """Read the name of a call from tags of its own, if it is there: `<function><name>search</name>`."""
        yield from self._skip(WHITESPACE, MOST_SPACE)
        if (yield from self._next_is("<name>")) is None:
            return ""
        return (yield from self._read_up_to(LONGEST_HEADER, "</name>"))[0].strip()

    def _arguments_in_tag(self, text: str) -> None:
        """Read the attributes of a call's tag that are parameters of the tool."""
        for match in ATTRIBUTE.finditer(text):
            if match[1] != "name" and self._parameters.declares(match[1]):
                self._parameters.open(match[1])(match[match.lastindex or 0])
                self._parameters.close()

    def _skip_doubled(self, tag: Tag) -> Script[None]:
        """Drop the tag of a parameter if it comes again at once."""
        again = self.in_alphabet(self.parameter) + tag.text + ">"
        while again.startswith(following := self._input[self._at : self._at + len(again)]):
            if following == again:
                self._at += len(again)
                self._stray_marker(self.parameter + tag.text + ">")
            elif self._over:
                return
            else:
                yield

    def _parameter_without_call(self, in_section: bool) -> Script[None]:
        """Read a parameter outside of a call. With a tool's name it opens the call; else the call's tag is missing."""
        lenient = self._misspelled
        tag = yield from self._tag(in_section=in_section)
        if tag is None:
            return
        only = self._only_tool() if in_section else None
        if self._names_tool(tag, self._types_of(only) if only else None):
            self._begin_misspelled(tag)
        else:
            self._defect("missing_name", self.parameter)
            if not only:
                self._misplaced(tag.text + tag.rest)
                return
            self._begin_call(only)
            yield from self._parameter(tag, lenient)
        yield from self._body()

    def _names_tool(self, tag: Tag, types: ParameterTypes | None) -> bool:
        """Whether a parameter's tag has the name of a tool, and of no parameter of the tool with these types."""
        name = tag.attributes.get("name", "")
        return self._tool(name) in self._options.tools and not (types and types.declares(name))

    def _opens_call(self, tag: Tag) -> bool:
        """Whether a parameter's tag has the name of a tool, and the open call's tool has no such parameter."""
        return self._parameters.excludes(tag.attributes.get("name", "")) and self._names_tool(tag, None)

    def _begin_misspelled(self, tag: Tag) -> None:
        """Begin a call whose tag is a parameter's."""
        self._defect("misspelled_marker", self.parameter + tag.text)
        self._begin_call(tag.attributes["name"])
        self._misplaced(tag.stray + tag.rest)

    def _body(self) -> Script[None]:
        """Read the open call, from the end of its tag to the end of the call."""
        while (tag := (yield from self._rest_of_call())) is not None:
            self._begin_misspelled(tag)

    def _rest_of_call(self) -> Script[Tag | None]:
        """Read the same. If the tag of a parameter ends it that opens another call, return that."""
        self._space_before = (yield from self._skip(WHITESPACE))[-MOST_SPACE:]
        if (yield from self._peek()) == "{":
            self._defect("json_arguments", self._id)
            stops = (self.section, self.section_end, self.call_in_text, self.call_end, *self.ends)
            marker = yield from self._json_arguments(*stops)
            self._close_call(marker, self.call_end)
        elif (yield from self._is_plain_text()):
            marker = self.call_end
        else:
            while True:
                marker = yield from self._next_mark(*self._key_tags)
                self._indent = self._space_before.rpartition("\n")[2] if "\n" in self._space_before else ""
                self._space_before = ""
                if marker == self.parameter:
                    lenient = self._misspelled
                    tag = yield from self._tag(in_section=True)
                    if tag is not None and self._opens_call(tag):
                        self._close_parameters(marker, self.call_end)
                        return tag
                    yield from self._parameter(tag, lenient)
                elif marker == self.parameter_end:
                    self._stray_marker(marker)
                elif (yield from self._is_early_end(marker, self.call_end, self.parameter)):
                    self._stray_marker(self.call_end)
                elif marker in self._key_tags:
                    yield from self._element(self._key_tags[marker])
                else:
                    break
            self._close_parameters(marker, self.call_end)
        if marker not in (None, self.call_end):
            self._unread()
        return None

    def _is_plain_text(self) -> Script[bool]:
        """Read a call that has text in place of parameters; False for other text."""
        if (yield from self._peek()) in ("", *self.controls):
            return False
        try:
            self._looks_for = "mark"
            text, marker = yield from self._read_up_to(LONGEST_HEADER, *self._marks, *self._key_tags)
        finally:
            self._looks_for = ""
        if text and marker is not None and self._ends_call(marker):
            yield from self._begun(marker)
            self._malformed(malformed(text.rstrip()), closed=True)
            self._end_call()
            return True
        if text:
            self._misplaced(text)
        if marker:
            self._unread()
        return False

    def _ends_call(self, marker: str) -> bool:
        return self._closing.get(marker) == self.call_end

    def _element(self, key: str) -> Script[None]:
        """Read a parameter that has its name in place of a tag: `<query>words</query>`."""
        self._defect("foreign_markup", f"<{key}>")
        write, end = self._parameters.open(key), f"</{key}>"
        if self.newline_before_value:
            yield from self._next_is("\n")
        ends = (end, self.call_end, self.section_end)
        marker = yield from self._value(write, *ends, *("\n" + each for each in ends), *self.ends)
        if marker is None:
            return
        self._parameters.close()
        if marker != end:
            self._defect("missing_parameter_end", key)
            self._unread()

    def _parameter(self, tag: Tag | None, lenient: bool) -> Script[None]:
        """Read a parameter after its tag. `lenient`: whether that was in another spelling."""
        if tag is None:
            return
        key = tag.attributes.get("name")
        if key is None:
            self._defect("missing_key", tag.text)
            self._misplaced(tag.text + tag.rest)
            return
        types = None
        if self.declares_string:
            types = _DECLARED_TYPES.get(tag.attributes.get("string", "").strip().lower())
            if types is None:
                self._defect("missing_attribute", key)
        self._stray_in_tag(tag)
        if tag.empty:
            self._parameters.open(key, types)
            self._parameters.close()
        elif (value := tag.attributes.get("value")) is not None:
            yield from self._value_in_tag(key, value)
        else:
            if self._exact and self._is_control(self.parameter):
                yield from self._skip_doubled(tag)
            yield from self._parameter_value(key, types, tag.rest, lenient=lenient)

    def _value_in_tag(self, key: str, value: str) -> Script[None]:
        """Read a value that begins in the tag of its parameter: `<parameter=city=Paris</parameter>`."""
        bracket = ">" if self._input[self._at - 1] == ">" else ""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        marker = yield from self._next_is(*self._marks)
        if marker is None and (yield from self._peek()):
            yield from self._parameter_value(key, begun=value + bracket + space, lenient=True)
            return
        self._parameters.open(key)(value)
        self._parameters.close()
        if marker is not None and self._closing.get(marker) == self.parameter_end:
            yield from self._end_of_closer(marker, self.parameter_end)
        elif marker is not None:
            self._defect("missing_parameter_end", key)
            self._unread()

    # -- one tag ------------------------------------------------------------------------------------------------------

    def _tag(self, *, in_section: bool = False) -> Script[Tag | None]:
        """Read the rest of a tag. None if it has no end; it is content then, unless it was cut off in a section."""
        line = () if self.tags_span_lines else ("\n",)
        text, marker = yield from self._read_up_to(LONGEST_HEADER, ">", *line, *self._marks)
        if marker is None and in_section and self._cut_off:
            self._defect("unclosed_tag", text)
            self._tag_cut = True
            return None
        if not marker:
            self._abandon(text, "truncated_call" if marker is None else "endless_header")
            return None
        if marker != ">":
            self._defect("unclosed_tag", text)
            self._unread()
            end = self._attributes(text).end
            attributes, _, stray, _ = self._attributes(text[:end])
            return Tag(attributes, text[:end], stray, text[end:].removeprefix("\n"), False)
        first, rest = text, ""
        while marker == ">" and in_quotes(text):
            more, marker = yield from self._read_up_to(LONGEST_HEADER - len(text), ">", "<", "\n", *self.controls)
            text += ">" + more
            if marker != ">":  # the quote has no end, so the tag ended at the first bracket
                self._unread()
                text, rest = first, text[len(first) + 1 :]
        bare = text.rstrip()
        empty = bare.endswith("/")
        if empty:
            self._defect("self_closing_tag", text)
        attributes, defect, stray, _ = self._attributes(bare[:-1] if empty else text)
        if defect:
            self._defect(defect, text)
        return Tag(attributes, text, stray, rest, empty)

    def _attributes(self, text: str) -> Attributes:
        return read_attributes(text, takes_string=self.declares_string, is_declared=self._is_declared)

    def _is_declared(self, name: str | None) -> bool:
        return name is not None and (name in self._options.tools or self._parameters.declares(name))


@functools.lru_cache(256)
def _marks_of_sections(
    kind: type[TagReader],
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, str], Mapping[str, str]]:
    """The markers in a family's sections, and where ordinary text may look like a tag; the closing tag that each of
    them begins; and other spellings, with the marker that each of them means."""
    ends = {end: end for end in (kind.call_end, kind.parameter_end, kind.section_end) if end}
    ends |= {other: end for other, end in kind.other_marks.items() if end in ends}
    token, _ = _split(kind.call)
    stems = tuple(end.removesuffix(">") for end in ends)
    named = (f"</{token}{name}>" for name in _CALLS)
    ends |= {end: kind.call_end for end in named if not end.startswith(stems)}
    closing = {
        stem: end
        for each, end in ends.items()
        for stem in closing_tags(kind, each, own=each == end, others=(other for other in ends if other != each))
    }
    others = (other for other in kind.other_marks if other not in ends)
    marks = (kind.section, kind.think, kind.think_end.lstrip(), *closing, *others, *kind.ends)
    tags = [tag + after for tag in (kind.call, kind.parameter) for after in kind.after_tag(tag)]
    inside = (*tags, *marks)
    openers = {
        opener: tag
        for tag, names in ((kind.call, _CALLS), (kind.parameter, _PARAMETERS))
        for opener in _foreign_openers(tag, names)
        if not any(opener.startswith(mark) or mark.startswith(opener) for mark in inside)
    }
    in_text = (kind.call_in_text, kind.parameter_in_text, *marks)
    return (*inside, *openers), in_text, closing, {**openers, **kind.other_marks}


@functools.lru_cache(256)
def _whole_tags(marks: tuple[str, ...]) -> frozenset[str]:
    """The tags with which markers begin."""
    return frozenset(mark[: mark.index(">") + 1] for mark in marks if ">" in mark)


def _split(tag: str) -> tuple[str, str]:
    """What stands before the word of an opening tag, and the word."""
    token, word = re.fullmatch(r"<(.*\W|)(\w+)", tag).groups()  # type: ignore[union-attr]  # as every tag is
    return token, word


def _foreign_openers(tag: str, names: Iterable[str]) -> Iterator[str]:
    """What models write for `tag`, an opening tag up to its name: another word for what it is, another sign."""
    token, name = _split(tag)
    for other in names:
        for sign in ("=", ":", _NAME):
            if other != name or sign == ":":
                yield f"<{token}{other}{sign}"


def other_sections(section: str, *names: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Other names of the tags around a section: as in `other_marks`, and what opens a section among them."""
    marks = {f"<{slash}{name}>": f"<{slash}{section}>" for name in names for slash in ("", "/")}
    return marks, tuple(f"{line}<{name}>" for name in names for line in ("", "\n"))


class EqualsTagReader(TagReader):
    """Reads tags whose name follows an equals sign: `<function=search>`, `<parameter=query>`."""

    tags_span_lines = False
    other_openers: tuple[str, ...] = ("<parameter=",)

    def _attributes(self, text: str) -> Attributes:
        equals, name = text.lstrip()[:1], text.lstrip()[1:].strip()
        if equals != "=":
            parsed = super()._attributes(text)
            return parsed._replace(defect=parsed.defect or "missing_attribute") if "name" in parsed.values else parsed
        defect = None
        key, sign, value = name.partition("=")
        if sign and not self._is_declared(name) and self._parameters.declares(key.strip()):
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            return Attributes({"name": key.strip(), "value": value}, "unclosed_tag", "", len(text))
        if not self._is_declared(name) and (longer := _WITH_ATTRIBUTES.fullmatch(name)):
            name, defect = longer[1], "extra_attributes"
        if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
            name, defect = name[1:-1], defect or "attribute_quotes"
        return Attributes({"name": name}, defect, "", len(text))


#: How many markers in a row may open no call, in what is tried as a section.
_MOST_MARKERS = 8
_DECLARED_TYPES = {"true": STRING, "false": VALUES}
_NAME = " name="
#: What models call a call and a parameter in the tags that open them.
_CALLS = ("function", "Function", "functions", "func", "function_call", "tool", "invoke", "Invoke", "call")
_PARAMETERS = ("parameter", "Parameter", "parameters", "param", "argument", "arg")
_WITH_ATTRIBUTES = re.compile(r"""([^\s"']+|"[^"]*"|'[^']*')(?:\s+[\w.:-]+=(?:"[^"]*"|'[^']*'|[^\s"'<>]+))+""")
_NEXT_TAG = re.compile(r"[ \t\r\n]{0,16}(<[^<>]{0,128})>")
_MAY_BE_NEXT_TAG = re.compile(r"[ \t\r\n]{0,16}<[^<>]{0,128}")
