"""The grammar of arguments that a family writes one parameter at a time.

What a value is, is for our reader to say (`reading.parameters`), so the grammar takes what the reader makes a valid
value of: a string is the text as it stands; what cannot be a string is JSON; where both may stand, a text is a string
that is nothing else. A parameter's tag may say which it is.

Parameters come in the order in which the schema has them; those that it does not declare come last, where it says
`additionalProperties` or declares none. A `Loosened` node lists the keywords that the grammar does not enforce.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dovetail.errors import SchemaRefused
from dovetail.formats import flat_schemas as schemas
from dovetail.formats.flat_schemas import NotSimpleError
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

#: Stands for every parameter that is not declared: nobody declares it.
_UNDECLARED = "\ue000"
_ANY: Mapping[str, Any] = {}
_KEPT = frozenset(("type", "properties", "required", "additionalProperties"))
_ABOUT_STRINGS = frozenset((*ABOUT["string"], "not", "if", "$dynamicRef", "$recursiveRef"))
_WORDS = {"null": ("null",), "boolean": ("true", "false")}


class Markup(NamedTuple):
    """How a family writes parameters: what stands in front of all of them, in place of them all where there are none,
    in front of a key, between it and a value of each type, and behind a value; what ends a text too early; how a name
    is written in a tag, and whether it reads back."""

    opening: Nodes
    empty: Nodes
    before: Nodes
    between: Mapping[str, Nodes]
    after: Nodes
    stops: tuple[str, ...]
    attribute: Callable[[str], str]
    reads_back: Callable[[str], bool]


def arguments(schema: JsonSchema, markup: Markup) -> Node:
    """Arguments that validate against `schema`, which is within `bounds`. Raises `SchemaRefused` where none would."""
    return _Arguments(schema, markup).node()


class _Arguments:
    def __init__(self, schema: JsonSchema, markup: Markup) -> None:
        self._root, self._origin = schema.schema, schema.origin
        self._references = References(self._root)
        self._markup = markup
        self._types = ParameterTypes(self._root)
        #: Pointers to each `oneOf` that is taken for `anyOf`, and says more.
        self._overlapping: dict[str, None] = {}
        self._culprit = "#"  # what no value validates against, if none does
        self._kinds: dict[Nodes, set[str]] = {}  # the types that are written alike
        for kind, between in markup.between.items():
            self._kinds.setdefault(between, set()).add(kind)
        first = markup.after[0]
        self._end, self._rest = (first.text, markup.after[1:]) if isinstance(first, ExactText) else ("", markup.after)

    def node(self) -> Node:
        root = self._root
        try:
            flats = self._alternatives("#", root)
            found = self._objects(flats)
            lost = [key for flat in flats for key in flat if key in ASSERTIONS and key not in _KEPT]
        except NotSimpleError:
            self._types = ParameterTypes(None)
            found = self._objects([{}])
            lost = [key for key in root if key in ASSERTIONS and key != "type"]
        if not found:
            told = f"{self._origin} cannot be enforced: {self._culprit}: no arguments validate against it"
            raise SchemaRefused(told, param=self._origin)
        node = found[0] if len(found) == 1 else Choice(tuple(found))
        node = self._wider(node, "#", root, lost)
        return Loosened(node, self._origin, tuple(self._overlapping)) if self._overlapping else node

    def _alternatives(self, at: str, schema: Any) -> list[dict[str, Any]]:
        """`schemas.alternatives` of a schema that stands at a pointer. Raises `NotSimpleError`."""
        flats = schemas.alternatives(schema, self._references)
        place = Place(schema, steps(at), self._references.root.base)
        self._overlapping |= dict.fromkeys(schemas.overlapping(place, self._references))
        return flats

    def _objects(self, flats: Iterable[Mapping[str, Any]]) -> list[Node]:
        return [node for flat in flats if (node := self._object(flat)) is not None]

    def _object(self, flat: Mapping[str, Any]) -> Node | None:
        """Parameters that validate against a flat schema; None if there are none."""
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
                value = self._untold(key, at, schema)
            elif "string" in kinds:
                value = self._string(at, schema)
            else:
                value = self._json(at, self._of_kinds(key, at, schema, kinds))
            if value is not None:
                options.append(Concat((*between, value)))
        if not options:
            return None
        return Concat((*self._markup.before, name, options[0] if len(options) == 1 else Choice(tuple(options))))

    # -- one value and what stands behind it --------------------------------------------------------------------------

    def _untold(self, key: str, at: str, schema: Any) -> Node | None:
        """Where only the schema tells whether a value is a string."""
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
            return self._words(text for text in texts if schemas.is_among(_read(text, types), values))
        words = [word for kind, said in _WORDS.items() if kind in types for word in said]
        if types - STRING <= {"null", "boolean"} & free:
            return self._string(at, schema, words)
        return self._wider(self._text(), at, schema, [key for key in _keywords(schema) if key != "type"] or ["type"])

    def _json(self, at: str, schema: Any) -> Node | None:
        if schema is None or schema is False:
            return None
        said = {} if schema is True else schemas.carrying(schema, self._references)
        return Concat((JsonSchema(said, self._origin, at), *self._markup.after))

    def _of_kinds(self, key: str, at: str, schema: Any, kinds: Iterable[str]) -> Any:
        """The schema of those values that have one of some types; None if there are none."""
        if {"number" if kind == "integer" else kind for kind in self._types[key]} <= {*kinds}:
            return schema
        try:
            flats = [schemas.of_kinds(flat, kinds) for flat in self._alternatives(at, schema)]
        except NotSimpleError:
            return schema  # a string in its quotes is one, too
        some = [flat for flat in flats if flat is not None]
        return {"anyOf": some} if len(some) > 1 else some[0] if some else None

    def _string(self, at: str, schema: Any, words: Iterable[str] = ()) -> Node | None:
        """Texts that are strings of a schema, or one of some words."""
        try:
            flats = self._alternatives(at, schema)
        except NotSimpleError:
            return self._wider(self._text(), at, schema, _keywords(schema))
        flats = [flat for flat in flats if "string" in schemas.kinds_of(flat)]
        words = [*words, *(word for flat in flats for word in flat.get("enum", ()) if isinstance(word, str))]
        kept = [{key: flat[key] for key in flat if _is_kept(flat, key)} for flat in flats if "enum" not in flat]
        lost = [key for flat in flats for key in flat if key in _ABOUT_STRINGS and not _is_kept(flat, key)]
        texts = [each for each in kept if each.get("minLength", 0) <= each.get("maxLength", float("inf"))]
        if not texts:
            node = self._words(words)
        elif {} in texts:
            node = self._text()
        else:
            options = [self._text(each, at, words) for each in texts]
            node = options[0] if len(options) == 1 else Choice(tuple(options))
        return None if node is None else self._wider(node, at, schema, lost)

    def _text(self, schema: Mapping[str, Any] = _ANY, at: str = "#", words: Iterable[str] = ()) -> Node:
        markup = self._markup
        text = TextUntil(self._end, markup.stops, schema, self._origin, at, tuple(self._possible(words)))
        return Concat((text, *self._rest))

    def _words(self, words: Iterable[str]) -> Node | None:
        options = tuple(map(ExactText, self._possible(words)))
        return Concat((Choice(options), *self._markup.after)) if options else None

    def _possible(self, words: Iterable[str]) -> list[str]:
        """Those that no reader takes for more than a value."""
        return [word for word in dict.fromkeys(words) if not any(stop in word for stop in self._markup.stops)]

    def _wider(self, node: Node, at: str, schema: Any, lost: Iterable[str]) -> Node:
        """`node`, which does not keep the keywords `lost` of what `schema` comes to."""
        said = _keywords(schema)
        named: dict[str, None] = {}
        for key in lost:
            here = [each for each in said if each == key or (each, key) == ("const", "enum")]
            named |= dict.fromkeys(here or (each for each in said if each in COMPOUND))
        return Loosened(node, self._origin, tuple(f"{at}/{key}" for key in named)) if named else node


def _is_kept(flat: Mapping[str, Any], key: str) -> bool:
    """Whether a text can be held to a keyword of a flat schema."""
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
    """What our reader makes of a value whose types are `types`."""
    said: list[str] = []
    parameters = Parameters(ParameterTypes(None), said.append, lambda *_: None)
    parameters.open("", types)(text)
    parameters.close()
    parameters.end()
    return json.loads("".join(said))[""]
