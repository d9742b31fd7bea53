"""`CallEnvelope`: the grammar of a family's calls, derived from how the family writes calls.

The family writes two calls whose id, name and arguments are placeholders. The text around and between the placeholders
is the envelope. A family that writes each parameter on its own also writes calls with none, one and two parameters,
whose keys and values are placeholders, and one call with a value of each type.

A section of calls has to begin with a marker: a control token, perhaps after some text, or ordinary text that the
family's reader takes for the beginning of calls wherever it stands in content. Without either, nothing stops a model
from writing calls as content, where the grammar does not apply.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.errors import RenderError
from dovetail.events import Call, Message, fold
from dovetail.formats.answers import parameter_grammar
from dovetail.grammar import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    Index,
    JsonSchema,
    Maybe,
    Node,
    Repeat,
    TextUntil,
    cache,
)
from dovetail.reading import Reader
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.tokens import Prompt, Segment

#: Placeholders for a call's id, name and arguments, for a parameter's key and value, and for a call's index. They are
#: private-use characters, which no family's own text contains.
ID, NAME, ARGUMENTS, KEY, VALUE, INDEX = map(chr, range(0xE000, 0xE006))
_SLOTS = (ID, NAME, ARGUMENTS)
_STRING = f'"{VALUE}"'
_SAMPLES = {"string": _STRING, "number": "0", "boolean": "true", "null": "null", "object": "{}", "array": "[]"}

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_CACHED_TOOLS, _CACHED_BYTES = 2_048, 16 * 2**20
#: A written text as characters and control tokens.
_Pieces = list[str | ControlToken]


class Family(NamedTuple):
    """The facts about a family from which the grammar of its calls is derived."""

    #: Writes a message, with `INDEX` for the index of a call.
    write: Callable[[Message], Prompt]
    end_of_turn: Iterable[str]
    #: Makes a reader for some tools.
    reader: Callable[[Sequence[Mapping[str, Any]]], Reader]
    #: Writes a name as it stands in a tag.
    attribute: Callable[[str], str]
    #: The ordinary texts that begin calls wherever they stand in content.
    text_openers: tuple[str, ...] = ()

    def stops(self) -> Iterable[str]:
        """The markers that end a parameter's value too early."""
        reader = self.reader(())
        return reader.value_stops if isinstance(reader, ParameterReader) else ()

    @property
    def quotes(self) -> tuple[str, str]:
        """What may surround a parameter's value, if it is a string; "" twice for nothing."""
        reader = self.reader(())
        return reader.quotes if isinstance(reader, ParameterReader) else ("", "")

    def reads_back(self, name: str) -> bool:
        """Whether the reader reads back a parameter of this name."""
        if _PLAIN.fullmatch(name):
            return True
        arguments = json.dumps({name: ""}, ensure_ascii=False)
        parameters = {"type": "object", "properties": {name: {"type": "string"}}}
        reader = self.reader([{"type": "function", "function": {"name": "a", "parameters": parameters}}])
        prompt = self.write(Message(calls=(Call("0", "a", arguments),)))
        segments = [Segment(text.replace(INDEX, "1"), control) for text, control in prompt.segments]
        read = fold([*reader.feed_segments(segments), *reader.finish()])
        return [call.arguments for call in read.calls] == [arguments] and not read.defects


class CallEnvelope:
    """The text around the arguments of calls, and the layout of parameters in families that write each on its own."""

    def __init__(self, family: Family) -> None:
        """Raises `NoGrammarError`, and `RenderError` for a family that writes no calls."""
        ends = frozenset(family.end_of_turn)

        def write_calls(*arguments: str) -> _Pieces:
            return _pieces(family.write(Message(calls=tuple(Call(ID, NAME, each) for each in arguments))), ends)

        #: How parameters are written; None if arguments are JSON.
        self.markup: parameter_grammar.Markup | None = None
        self._cache: cache.Cache[Node] = cache.Cache(_CACHED_TOOLS, _CACHED_BYTES)
        try:
            two = write_calls(ARGUMENTS, ARGUMENTS)
        except RenderError:  # the family takes the arguments apart, so that a placeholder is no JSON object
            one = _Parameters(write_calls)
            self.markup = one.markup(family, ends)
            two = one.as_arguments(write_calls(_object(_STRING), _object(_STRING)))
        marks = [i for i, piece in enumerate(two) if piece in _SLOTS]
        if two.count(ARGUMENTS) != 2:
            raise NoGrammarError
        half = len(marks) // 2
        (first, last), (second, end) = (marks[0], marks[half - 1]), (marks[half], marks[-1])
        head, between, tail = _begun(two[:first]), two[last + 1 : second], two[end + 1 :]
        #: How many new lines the family writes before a section.
        self.new_lines_before = first - len(head)
        # Between two calls are the end of one, perhaps a separator, and the beginning of the other.
        after = _common(between, tail)
        before = _common(between[len(after) :][::-1], head[::-1])[::-1]
        self._call = two[first : last + 1]
        self._before, self._after = _nodes(before), _nodes(after)
        self._separator = _nodes(between[len(after) : len(between) - len(before)])
        self._opening, self._closing = _nodes(head[: len(head) - len(before)]), _nodes(tail[len(after) :])
        #: Whether nothing but the end of the turn says that no further call comes.
        self.is_open = not self._closing
        #: What comes before the first call's first placeholder, if that is ordinary text: the opener, and the rest.
        self._head: tuple[Node, ...] = ()
        if not any(isinstance(piece, ControlToken) for piece in head):
            opener = _opener("".join(map(str, head)), family.text_openers)
            self._head = (ExactText(opener), *_nodes(head[len(opener) :]))

    def section(self, tools: Iterable[Mapping[str, Node]], *, parallel: bool) -> Node:
        """A section of calls to any of `tools`, each given as the grammar of each placeholder.

        The section may begin with text: see `after_text`. The new lines that separate calls may also come after the
        last one. Raises `SchemaRefused`.
        """
        named = Choice(tuple(Concat(_nodes(self._call, self.filled(tool))) for tool in tools))
        call = Concat((*self._before, named, *self._after))
        first = (*self._head, named, *self._after) if self._head else (call,)
        calls: tuple[Node, ...] = first
        if parallel and any(not isinstance(it, ExactText) or it.text.strip() for it in self._separator):
            calls = (*first, Repeat(Concat((*self._separator, call)), 0))
        elif parallel:
            # A model writes new lines before it decides whether another call comes. They may be left out, too.
            new_lines = (Maybe(Concat(self._separator)),) if self._separator else ()
            more = Concat((call, *new_lines))
            calls = (*first, *new_lines, Repeat(more, 0)) if self._head else (Repeat(more),)
        return Concat((*(() if self._head else self._opening), *calls, *self._closing))

    def filled(self, tool: Mapping[str, Node]) -> Mapping[str, Node]:
        """The grammar of each placeholder, with parameters in place of a schema. Raises `SchemaRefused`."""
        markup, schema = self.markup, tool[ARGUMENTS]
        if markup is None or not isinstance(schema, JsonSchema):
            return tool
        # Analysing a schema takes 0.1 ms, and the same tools come with every turn.
        key = json.dumps((schema.origin, schema.schema))
        make = functools.partial(parameter_grammar.arguments, schema, markup)
        return {**tool, ARGUMENTS: self._cache.get(key, len(key), make)}


class NoGrammarError(Exception):
    """The family's calls do not have a layout from which a grammar can be derived."""


def after_text(text: Node, section: Node, without: tuple[str, ...] = ()) -> Node:
    """Text, and perhaps a section of calls. Ordinary text at the beginning of the section ends the text before it.

    `without`: what the text must not contain, if the section begins with ordinary text alone.
    """
    match section:
        case Concat((ExactText(end), *rest)):
            return Choice((text, Concat((TextUntil(end, without if end in without else ()), *rest))))
    return Concat((text, Maybe(section)))


def after_visible_text(before: Node, said: Node, section: Node, without: tuple[str, ...]) -> Node:
    """As `after_text`, for an answer that says something: a section, or text that is `said` and perhaps a section.

    `before`: what may stand in front of a section in place of such text.
    """
    match section:
        case Concat((ExactText(end), *rest)):
            return Choice((said, Concat((TextUntil(end, without if end in without else ()), *rest))))
    return Choice((Concat((before, section)), Concat((said, Maybe(section)))))


def _opener(head: str, text_openers: tuple[str, ...]) -> str:
    """The one of `text_openers` with which `head` begins. Raises `NoGrammarError` if there is none."""
    opener = next(filter(head.startswith, text_openers), None)
    if opener is None:
        raise NoGrammarError
    return opener


def nodes(prompt: Prompt, end_of_turn: Iterable[str]) -> tuple[Node, ...]:
    """Exactly the text of `prompt`, without the end of the turn."""
    return _nodes(_pieces(prompt, frozenset(end_of_turn)))


class _Parameters:
    """The layout of parameters, derived from calls that the family has written."""

    def __init__(self, write_calls: Callable[..., _Pieces]) -> None:
        self._write_calls = write_calls
        one, two = write_calls(_object(_STRING)), write_calls(_object(_STRING, _STRING))
        self._name, self._key = one.index(NAME), one.index(KEY)
        value = one.index(VALUE)
        self._first, self._rest = one[self._name + 1 : self._key], one[value + 1 :]
        # As between calls: the end of one parameter, and the beginning of the other.
        between = two[value + 1 : two.index(KEY, value)]
        self._after = _common(between, self._rest)
        self._before = between[len(self._after) :]
        self._closing = self._rest[len(self._after) :]

    def markup(self, family: Family, ends: Iterable[str]) -> parameter_grammar.Markup:
        empty = self._write_calls("{}")
        between: dict[str, tuple[Node, ...]] = {}
        controls = {*ends}
        for kind, sample in _SAMPLES.items():
            one = self._write_calls(_object(sample))
            controls.update(piece.literal for piece in one if isinstance(piece, ControlToken))
            value = len(one) - len(self._rest) - len(sample if kind != "string" else VALUE)
            between[kind] = _nodes(one[self._key + 1 : value])
        # If the end of a value contains a control token, ordinary text does not end it.
        text_stops = [stop for stop in family.stops() if not any(literal in stop for literal in controls)]
        opener = family.quotes[0]
        stops = (stop for stop in text_stops if not any(other in stop for other in text_stops if other != stop))
        return parameter_grammar.Markup(
            opening=_nodes(self._first[: len(self._first) - len(self._before)]),
            empty=_nodes(empty[self._name + 1 : len(empty) - len(self._closing)]),
            before=_nodes(self._before),
            between=between,
            after=_nodes(self._after),
            stops=(*stops, *((opener,) if opener else ())),
            attribute=family.attribute,
            reads_back=family.reads_back,
            quotes=family.quotes,
        )

    def as_arguments(self, pieces: _Pieces) -> _Pieces:
        """Calls with one parameter each, with `ARGUMENTS` in place of the parameters."""
        calls: _Pieces = []
        while NAME in pieces:
            name, value = pieces.index(NAME), pieces.index(VALUE)
            calls += (*pieces[: name + 1], ARGUMENTS)
            pieces = pieces[value + 1 + len(self._after) :]
        return calls + pieces


def _object(*values: str) -> str:
    """A JSON object with the key `KEY` for each value."""
    return "{" + ", ".join(f'"{KEY}": {value}' for value in values) + "}"


def _pieces(prompt: Prompt, ends: frozenset[str]) -> _Pieces:
    pieces: _Pieces = []
    for text, control in prompt.segments:
        if not control:
            pieces += text
        else:
            pieces.append(ControlToken(text))
    while isinstance(last := pieces[-1], ControlToken) and last.literal in ends:
        pieces.pop()
    return pieces


def _begun(head: _Pieces) -> _Pieces:
    """The beginning of a section, without the newlines that separate it from the text before it."""
    first = (i for i, piece in enumerate(head) if not isinstance(piece, str) or not piece.isspace())
    return head[next(first, len(head)) :]


def _nodes(pieces: _Pieces, stands_for: Mapping[str, Node] | None = None) -> tuple[Node, ...]:
    slots: dict[str, Node] = {INDEX: Index(), **(stands_for or {})}
    nodes: list[Node] = []
    for piece in pieces:
        if isinstance(piece, ControlToken):
            nodes.append(piece)
        elif piece in slots:
            nodes.append(slots[piece])
        elif nodes and isinstance(nodes[-1], ExactText):
            nodes[-1] = ExactText(nodes[-1].text + piece)
        else:
            nodes.append(ExactText(piece))
    return tuple(nodes)


def _common(a: _Pieces, b: _Pieces) -> _Pieces:
    """The longest common beginning of two lists."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:same]
