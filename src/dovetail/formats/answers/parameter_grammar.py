"""The grammar of arguments that a family writes one parameter at a time.

The grammar allows the texts that our reader (`reading.parameters`) turns into valid values. A string is the text itself
and any other value is JSON. If a value may be either, a text is a string unless it is something else. A parameter's tag
may declare which of the two it is.

Parameters come in the order of the schema. Undeclared parameters come last, if the schema allows them. A keyword that
the grammar does not enforce is listed by its JSON pointer (`Loosened`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dovetail.errors import SchemaRefused
from dovetail.formats.answers import flat_schemas as schemas
from dovetail.formats.answers.flat_schemas import NotSimpleError
from dovetail.grammar import (
    Choice,
    Concat,
    ExactText,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherName,
    Repeat,
    TextUntil,
    patterns,
)
from dovetail.grammar.schemas.keywords import ABOUT, ASSERTIONS, COMPOUND
from dovetail.grammar.schemas.references import Place, References, step, steps
from dovetail.reading.parameters import Parameters
from dovetail.reading.values import STRING, ParameterTypes

Nodes = tuple[Node, ...]

#: The key of all undeclared parameters. No schema declares it.
_UNDECLARED = "\ue000"
_ANY: Mapping[str, Any] = {}
_ENFORCED = frozenset(("type", "properties", "required", "additionalProperties"))
_ABOUT_STRINGS = frozenset((*ABOUT["string"], "not", "if", "$dynamicRef", "$recursiveRef"))
_WORDS = {"null": ("null",), "boolean": ("true", "false")}


class Markup(NamedTuple):
    """How a family writes parameters."""

    #: Before all parameters; and in place of them, if there are none.
    opening: Nodes
    empty: Nodes
    #: Before a key; between the key and a value, by the value's type; after the value.
    before: Nodes
    between: Mapping[str, Nodes]
    after: Nodes
    #: The markers that end a value too early.
    stops: tuple[str, ...]
    #: Writes a name as it stands in a tag.
    attribute: Callable[[str], str]
    #: Whether the reader reads back a parameter of this name.
    reads_back: Callable[[str], bool]
    #: Text that may surround a string, or "" twice. The first is one of `stops`.
    quotes: tuple[str, str] = ("", "")


def arguments(schema: JsonSchema, markup: Markup) -> Node:
    """Arguments that are valid for `schema`, which is within `bounds`. Raises `SchemaRefused` if none are."""
    return _Arguments(schema, markup).node()


class _Arguments:
    def __init__(self, schema: JsonSchema, markup: Markup) -> None:
        self._root, self._origin = schema.schema, schema.origin
        self._references = References(self._root)
        self._markup = markup
        self._types = ParameterTypes(self._root)
        #: Pointers to each `oneOf` that is treated as the weaker `anyOf`.
        self._overlapping: dict[str, None] = {}
        #: The pointer to the part of the schema that makes it impossible, if it is.
        self._culprit = "#"
        #: The types whose values have the same text before them.
        self._kinds: dict[Nodes, set[str]] = {}
        for kind, between in markup.between.items():
            self._kinds.setdefault(between, set()).add(kind)
        first = markup.after[0]
        self._end, self._rest = (first.text, markup.after[1:]) if isinstance(first, ExactText) else ("", markup.after)

    def node(self) -> Node:
        root = self._root
        try:
            flats = self._alternatives("#", root)
            nodes = self._objects(flats)
            lost = [key for flat in flats for key in flat if key in ASSERTIONS and key not in _ENFORCED]
        except NotSimpleError:
            self._types = ParameterTypes(None)
            nodes = self._objects([{}])
            lost = [key for key in root if key in ASSERTIONS and key != "type"]
        if not nodes:
            message = f"{self._origin} cannot be enforced: {self._culprit}: no arguments validate against it"
            raise SchemaRefused(message, param=self._origin)
        node = nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))
        node = self._wider(node, "#", root, lost)
        return Loosened(node, self._origin, tuple(self._overlapping)) if self._overlapping else node

    def _alternatives(self, at: str, schema: Any) -> list[dict[str, Any]]:
        """`flat_schemas.alternatives` of the schema at a pointer. Raises `NotSimpleError`."""
        flats = schemas.alternatives(schema, self._references)
        place = Place(schema, steps(at), self._references.root.base)
        self._overlapping |= dict.fromkeys(schemas.overlapping(place, self._references))
        return flats

    def _objects(self, flats: Iterable[Mapping[str, Any]]) -> list[Node]:
        return [node for flat in flats if (node := self._object(flat)) is not None]

    def _object(self, flat: Mapping[str, Any]) -> Node | None:
        """Parameters that are valid for a flat schema; None if there are none."""
        markup = self._markup
        properties, required = schemas.properties_of(flat), schemas.required_of(flat)
        other = flat.get("additionalProperties", not properties or "patternProperties" in flat)
        names = dict.fromkeys((*properties, *required))
        items: list[Node] = []
        for name in names:
            schema = properties.get(name, flat.get("additionalProperties", True))
            at = f"#/properties/{step(name)}"
            item = self._parameter(ExactText(markup.attribute(name)), name, at, schema)
            if item is not None and not markup.reads_back(name):
                item = Loosened(item, self._origin, (at,))
            if item is not None:
                items.append(item if name in required else Maybe(item))
            elif name in required:
                self._culprit = at if name in properties else "#/required"
                return None
        others = OtherName(tuple(map(markup.attribute, names)))
        if (item := self._parameter(others, _UNDECLARED, "#/additionalProperties", other)) is not None:
            items.append(Maybe(Repeat(item)))
        some = Concat((*markup.opening, *items))
        if markup.empty == markup.opening or required:
            return some
        none = Concat(markup.empty)
        return Choice((some, none)) if items else none

    def _parameter(self, name: Node, key: str, at: str, schema: Any) -> Node | None:
        options: list[Node] = []
        for between, kinds in self._kinds.items():
            if len(self._kinds) == 1:
                value = self._undeclared(key, at, schema)
            elif "string" in kinds:
                value = self._string(at, schema)
            else:
                value = self._json(at, self._of_kinds(key, at, schema, kinds))
            if value is not None:
                options.append(Concat((*between, value)))
        if not options:
            return None
        return Concat((*self._markup.before, name, options[0] if len(options) == 1 else Choice(tuple(options))))

    # -- one value and the text after it ------------------------------------------------------------------------------

    def _undeclared(self, key: str, at: str, schema: Any) -> Node | None:
        """A value in a tag that does not declare whether it is a string."""
        types = self._types[key]
        if schema is False:
            return None
        if types == STRING:
            return self._string(at, schema)
        if "string" not in types:
            return self._json(at, schema)
        try:
            flats = self._alternatives(at, schema)
        except NotSimpleError:
            return self._wider(self._text(), at, schema, _keywords(schema))
        if not flats:
            return None
        free = {kind for kind in types for flat in flats if schemas.is_free(flat, kind)}
        if free == types:
            return self._text()
        if all("enum" in flat for flat in flats):
            values = [value for flat in flats for value in flat["enum"]]
            texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
            possible = [text for text in texts if schemas.is_among(_read(text, types), values)]
            return self._words(possible, [value for value in values if isinstance(value, str)])
        words = [word for kind, spelled in _WORDS.items() if kind in types for word in spelled]
        if types - STRING <= {"null", "boolean"} & free:
            return self._string(at, schema, words)
        return self._wider(self._text(), at, schema, [key for key in _keywords(schema) if key != "type"] or ["type"])

    def _json(self, at: str, schema: Any) -> Node | None:
        if schema is None or schema is False:
            return None
        alone = {} if schema is True else schemas.carrying(schema, self._references)
        return Concat((JsonSchema(alone, self._origin, at), *self._markup.after))

    def _of_kinds(self, key: str, at: str, schema: Any, kinds: Iterable[str]) -> Any:
        """The schema of the values that have one of the types `kinds`; None if there are none."""
        if {"number" if kind == "integer" else kind for kind in self._types[key]} <= {*kinds}:
            return schema
        try:
            flats = [schemas.of_kinds(flat, kinds) for flat in self._alternatives(at, schema)]
        except NotSimpleError:
            return schema  # as JSON, a string in quotes is a valid value, too
        some = [flat for flat in flats if flat is not None]
        return {"anyOf": some} if len(some) > 1 else some[0] if some else None

    def _string(self, at: str, schema: Any, words: Iterable[str] = ()) -> Node | None:
        """Texts that are strings of a schema, or one of `words`."""
        try:
            flats = self._alternatives(at, schema)
        except NotSimpleError:
            return self._wider(self._text(), at, schema, _keywords(schema))
        flats = [flat for flat in flats if "string" in schemas.kinds_of(flat)]
        strings = [word for flat in flats for word in flat.get("enum", ()) if isinstance(word, str)]
        words = [*words, *strings]
        plain = [flat for flat in flats if "enum" not in flat]
        enforced = [{key: flat[key] for key in flat if _is_enforced(flat, key)} for flat in plain]
        lost = [key for flat in flats for key in flat if key in _ABOUT_STRINGS and not _is_enforced(flat, key)]
        texts = [each for each in enforced if each.get("minLength", 0) <= each.get("maxLength", float("inf"))]
        if not texts:
            node = self._words(words, strings)
        elif {} in texts:
            node = self._text()
        else:
            options = [self._text(each, at, words, strings) for each in texts]
            node = options[0] if len(options) == 1 else Choice(tuple(options))
        return None if node is None else self._wider(node, at, schema, lost)

    def _text(
        self,
        schema: Mapping[str, Any] = _ANY,
        at: str = "#",
        words: Iterable[str] = (),
        strings: Iterable[str] = (),
    ) -> Node:
        """Texts that are strings of a schema, or one of `words`. `strings`: the words that are strings."""
        markup = self._markup
        text: Node = TextUntil(self._end, markup.stops, schema, self._origin, at, tuple(self._possible(words)))
        opener, closer = markup.quotes
        if opener:
            stops = tuple(stop for stop in markup.stops if stop != opener)
            inside = TextUntil(closer + self._end, stops, schema, self._origin, at, tuple(strings))
            text = Choice((text, Concat((ExactText(opener), inside))))
        return Concat((text, *self._rest))

    def _words(self, words: Iterable[str], strings: Iterable[str]) -> Node | None:
        """One of `words`. `strings`: the words that are strings."""
        opener, closer = self._markup.quotes
        quoted = (f"{opener}{word}{closer}" for word in strings if opener)
        options = tuple(map(ExactText, (*self._possible(words), *quoted)))
        return Concat((Choice(options), *self._markup.after)) if options else None

    def _possible(self, words: Iterable[str]) -> list[str]:
        """The words that contain no marker, so that a reader takes them for a value."""
        return [word for word in dict.fromkeys(words) if not any(stop in word for stop in self._markup.stops)]

    def _wider(self, node: Node, at: str, schema: Any, lost: Iterable[str]) -> Node:
        """`node`, which does not enforce the keywords `lost` of the flat forms of `schema`."""
        present = _keywords(schema)
        named: dict[str, None] = {}
        for key in lost:
            here = [each for each in present if each == key or (each, key) == ("const", "enum")]
            named |= dict.fromkeys(here or (each for each in present if each in COMPOUND))
        return Loosened(node, self._origin, tuple(f"{at}/{key}" for key in named)) if named else node


def _is_enforced(flat: Mapping[str, Any], key: str) -> bool:
    """Whether the grammar of a text can enforce a keyword of a flat schema."""
    value = flat[key]
    match key:
        case "minLength" | "maxLength":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0 and "enum" not in flat
        case "pattern" | "format":
            return bool(patterns.of_strings({key: value})) and "enum" not in flat
    return False


def _keywords(schema: Any) -> list[str]:
    return [key for key in schema if key in ASSERTIONS] if isinstance(schema, Mapping) else []


def _read(text: str, types: frozenset[str]) -> Any:
    """The value that our reader reads from a text, given the types that it may have."""
    fragments: list[str] = []
    parameters = Parameters(ParameterTypes(None), fragments.append, lambda *_: None)
    parameters.open("", types)(text)
    parameters.close()
    parameters.end()
    return json.loads("".join(fragments))[""]
