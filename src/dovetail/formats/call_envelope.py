"""The grammar of a family's calls, taken from how the family writes them: one declaration for both.

A format writes two calls whose id, name and arguments are placeholders. What stands around and between them is the
envelope. Where it writes arguments one parameter at a time, it writes calls with none, one and two of those too, whose
keys and values are placeholders, and one with a value of each type.

Calls have to begin with a control token, but for text right in front of it: where they begin with text alone, nothing
stops a model from writing them as content, outside the grammar.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.conversation import Call, Message
from dovetail.errors import RenderError
from dovetail.events import fold
from dovetail.formats import parameter_grammar
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
from dovetail.reading.tags import ParameterReader
from dovetail.tokens import Prompt, Segment

#: Stand for a call's id, name and arguments, for a parameter's key and value, and for the number of a call among
#: others. Private-use characters: no family's own text holds them.
ID, NAME, ARGUMENTS, KEY, VALUE, INDEX = map(chr, range(0xE000, 0xE006))
_SLOTS = (ID, NAME, ARGUMENTS)
_STRING = f'"{VALUE}"'
_SAMPLES = {"string": _STRING, "number": "0", "boolean": "true", "null": "null", "object": "{}", "array": "[]"}

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_KEPT_TOOLS, _KEPT_BYTES = 2_048, 16 * 2**20
#: What is written, as characters and control tokens.
_Written = list[str | ControlToken]


class Family(NamedTuple):
    """What is to be known of a family: how it writes a message, in which the number of a call may be `INDEX`; its ends
    of a turn; a reader of its outputs for some tools; and how it writes a name in a tag."""

    write: Callable[[Message], Prompt]
    end_of_turn: Iterable[str]
    reader: Callable[[Sequence[Mapping[str, Any]]], Reader]
    attribute: Callable[[str], str]

    def stops(self) -> Iterable[str]:
        """What ends a parameter's value too early."""
        reader = self.reader(())
        return reader.value_stops if isinstance(reader, ParameterReader) else ()

    def reads_back(self, name: str) -> bool:
        """Whether a parameter of this name is read as one. Plain names are."""
        if _PLAIN.fullmatch(name):
            return True
        arguments = json.dumps({name: ""}, ensure_ascii=False)
        parameters = {"type": "object", "properties": {name: {"type": "string"}}}
        reader = self.reader([{"type": "function", "function": {"name": "a", "parameters": parameters}}])
        written = self.write(Message(calls=(Call("0", "a", arguments),)))
        segments = [Segment(text.replace(INDEX, "1"), control) for text, control in written.segments]
        read = fold([*reader.feed_segments(segments), *reader.finish()])
        return [call.arguments for call in read.calls] == [arguments] and not read.defects


class CallEnvelope:
    """What stands around the arguments of calls, and how parameters are written if they come one at a time."""

    def __init__(self, family: Family) -> None:
        """Raises `NoGrammarError`, and `RenderError` for a family that writes no calls at all."""
        ends = frozenset(family.end_of_turn)

        def written(*arguments: str) -> _Written:
            return _written(family.write(Message(calls=tuple(Call(ID, NAME, each) for each in arguments))), ends)

        self._markup: parameter_grammar.Markup | None = None
        self._cache: cache.Cache[Node] = cache.Cache(_KEPT_TOOLS, _KEPT_BYTES)
        try:
            two = written(ARGUMENTS, ARGUMENTS)
        except RenderError:  # arguments are not written as they are
            one = _Parameters(written)
            self._markup = one.markup(family, ends)
            two = one.as_arguments(written(_object(_STRING), _object(_STRING)))
        marks = [i for i, piece in enumerate(two) if piece in _SLOTS]
        if two.count(ARGUMENTS) != 2 or not any(isinstance(piece, ControlToken) for piece in two[: marks[0]]):
            raise NoGrammarError
        half = len(marks) // 2
        (first, last), (second, end) = (marks[0], marks[half - 1]), (marks[half], marks[-1])
        head, between, tail = _begun(two[:first]), two[last + 1 : second], two[end + 1 :]
        # What stands between two calls is the end of one, perhaps a separator, and the beginning of another.
        after = _common(between, tail)
        before = _common(between[len(after) :][::-1], head[::-1])[::-1]
        self._call = two[first : last + 1]
        self._before, self._after = _nodes(before), _nodes(after)
        self._separator = _nodes(between[len(after) : len(between) - len(before)])
        self._opening, self._closing = _nodes(head[: len(head) - len(before)]), _nodes(tail[len(after) :])

    def section(self, tools: Iterable[Mapping[str, Node]], *, parallel: bool) -> Node:
        """A section of calls to any of `tools`, each of which says what its placeholders stand for.

        It may begin with text: see `after_text`. Raises `SchemaRefused`.
        """
        named = tuple(Concat(_nodes(self._call, self._filled(tool))) for tool in tools)
        call: Node = Concat((*self._before, Choice(named), *self._after))
        calls = call
        if parallel and any(not isinstance(it, ExactText) or it.text.strip() for it in self._separator):
            calls = Concat((call, Repeat(Concat((*self._separator, call)), 0)))
        elif parallel:  # new lines between calls may be there or not
            calls = Repeat(Concat((Maybe(Concat(self._separator)), call)) if self._separator else call)
        return Concat((*self._opening, calls, *self._closing))

    def _filled(self, tool: Mapping[str, Node]) -> Mapping[str, Node]:
        markup, schema = self._markup, tool[ARGUMENTS]
        if markup is None or not isinstance(schema, JsonSchema):
            return tool
        # Taking a schema apart takes a tenth of a millisecond, and the same tools come with every turn.
        key = json.dumps((schema.origin, schema.schema))
        make = functools.partial(parameter_grammar.arguments, schema, markup)
        return {**tool, ARGUMENTS: self._cache.get(key, len(key), make)}


class NoGrammarError(Exception):
    """The family's calls have no such grammar."""


def after_text(text: Node, section: Node, *, required: bool) -> Node:
    """Text, and a section of calls. What text the section begins with is the end of that text."""
    match section:
        case Concat((ExactText(end), *rest)):
            calls: Node = Concat((TextUntil(end), *rest))
            return calls if required else Choice((text, calls))
    return Concat((text, section if required else Maybe(section)))


def nodes(prompt: Prompt, end_of_turn: Iterable[str]) -> tuple[Node, ...]:
    """Exactly what was written, without the end of the turn."""
    return _nodes(_written(prompt, frozenset(end_of_turn)))


class _Parameters:
    """How a family writes parameters, from calls that it has written."""

    def __init__(self, written: Callable[..., _Written]) -> None:
        self._written = written
        one, two = written(_object(_STRING)), written(_object(_STRING, _STRING))
        self._name, self._key = one.index(NAME), one.index(KEY)
        value = one.index(VALUE)
        self._first, self._rest = one[self._name + 1 : self._key], one[value + 1 :]
        # As with calls: the end of one parameter, and the beginning of another.
        between = two[value + 1 : two.index(KEY, value)]
        self._after = _common(between, self._rest)
        self._before = between[len(self._after) :]
        self._closing = self._rest[len(self._after) :]

    def markup(self, family: Family, ends: Iterable[str]) -> parameter_grammar.Markup:
        empty = self._written("{}")
        between: dict[str, tuple[Node, ...]] = {}
        controls = {*ends}
        for kind, sample in _SAMPLES.items():
            one = self._written(_object(sample))
            controls.update(piece.literal for piece in one if isinstance(piece, ControlToken))
            value = len(one) - len(self._rest) - len(sample if kind != "string" else VALUE)
            between[kind] = _nodes(one[self._key + 1 : value])
        # Where a control token is part of what ends a value, text is not.
        said = [stop for stop in family.stops() if not any(literal in stop for literal in controls)]
        return parameter_grammar.Markup(
            opening=_nodes(self._first[: len(self._first) - len(self._before)]),
            empty=_nodes(empty[self._name + 1 : len(empty) - len(self._closing)]),
            before=_nodes(self._before),
            between=between,
            after=_nodes(self._after),
            stops=tuple(stop for stop in said if not any(other in stop for other in said if other != stop)),
            attribute=family.attribute,
            reads_back=family.reads_back,
        )

    def as_arguments(self, written: _Written) -> _Written:
        """Calls with a parameter each, with `ARGUMENTS` in place of all of them."""
        said: _Written = []
        while NAME in written:
            name, value = written.index(NAME), written.index(VALUE)
            said += (*written[: name + 1], ARGUMENTS)
            written = written[value + 1 + len(self._after) :]
        return said + written


def _object(*values: str) -> str:
    """A JSON object with `KEY` for every key."""
    return "{" + ", ".join(f'"{KEY}": {value}' for value in values) + "}"


def _written(prompt: Prompt, ends: frozenset[str]) -> _Written:
    written: _Written = []
    for text, control in prompt.segments:
        if not control:
            written += text
        else:
            written.append(ControlToken(text))
    while isinstance(last := written[-1], ControlToken) and last.literal in ends:
        written.pop()
    return written


def _begun(head: _Written) -> _Written:
    """The beginning of a section, without the newlines that a family puts between it and the text in front."""
    return head[next(i for i, piece in enumerate(head) if not isinstance(piece, str) or not piece.isspace()) :]


def _nodes(written: _Written, stands_for: Mapping[str, Node] | None = None) -> tuple[Node, ...]:
    slots: dict[str, Node] = {INDEX: Index(), **(stands_for or {})}
    nodes: list[Node] = []
    for piece in written:
        if isinstance(piece, ControlToken):
            nodes.append(piece)
        elif piece in slots:
            nodes.append(slots[piece])
        elif nodes and isinstance(nodes[-1], ExactText):
            nodes[-1] = ExactText(nodes[-1].text + piece)
        else:
            nodes.append(ExactText(piece))
    return tuple(nodes)


def _common(a: _Written, b: _Written) -> _Written:
    """The beginning that two lists share."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:same]
