"""One walk over a JSON Schema, for all dialects.

The walk decides what a schema says: its keywords in the words of 2020-12, what a reference leads to, whether a `oneOf`
means `anyOf`, and which schemas have a finite value. A dialect (`lark_schema`, `tag_schema`, `gbnf_json`) extends the
walk and spells each schema for its library. Keywords that the library cannot enforce are dropped and listed. Dropping a
keyword only ever allows more values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.grammar.schemas.drafts import TO_OLD, in_newest_words
from dovetail.grammar.schemas.exclusive import are_exclusive
from dovetail.grammar.schemas.finite import FiniteSchemas
from dovetail.grammar.schemas.keywords import is_old
from dovetail.grammar.schemas.references import Place, References, pointer

#: In draft 4 these are true or false, and apply to the bound beside them.
_DRAFT_4 = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


class SpelledSchema(msgspec.Struct, frozen=True):
    """A schema as a library takes it, as JSON data, and JSON pointers (`#/properties/a/not`) to the keywords of the
    original that are not enforced, or only in part."""

    schema: Any
    unenforced: tuple[str, ...]


class SchemaWalk:
    """The walk over one schema. A dialect implements `spell`, which may call itself through `below`."""

    def __init__(self, root: Any) -> None:
        self.references = References(root)
        self._is_old = is_old(root)
        #: The spelling of the root, and of the definitions that are referred to, by their new names.
        self.root: Any = None
        self.definitions: dict[str, Any] = {}
        #: Every spelled schema, with the place of the original.
        self.spelled: list[tuple[dict[str, Any], Place]] = []
        #: Whether a reference leads to nothing.
        self.has_dangling = False
        #: JSON pointers, in order, each once.
        self.unenforced: dict[str, None] = {}
        self._names: dict[tuple[str, ...], str] = {}  # of definitions, by path
        self._pending: list[Place] = []

    def spell(self, place: Place) -> Any:
        """The schema at `place` in the words of the library."""
        raise NotImplementedError

    def walk(self) -> None:
        """Spell the root, and every definition that something refers to."""
        self.root = self.spell(self.references.root)
        while self._pending:
            place = self._pending.pop()
            self.definitions[self._names[place.path]] = self.spell(place)

    def keywords(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a schema in the words of 2020-12, in their order."""
        keywords = {**schema}
        if self._is_old and not isinstance(keywords.get("items"), list):
            keywords.pop("prefixItems", None)  # it says nothing in older drafts
        in_newest_words(keywords)
        return keywords

    def drop(self, place: Place, *keywords: str) -> None:
        """List as not enforced the `keywords` that the schema at `place` has."""
        for keyword in keywords:
            if (original := _original(place, keyword)) in place.schema:
                self.unenforced[pointer((*place.path, original))] = None
            if place.schema.get(keyword) is True and keyword in _DRAFT_4:
                self.drop(place, _DRAFT_4[keyword])

    def below(self, place: Place, keyword: str) -> Any:
        """The spelling of the schema under a keyword, of the list of schemas, or of the schemas by name."""
        original = _original(place, keyword)
        value = place.schema[original]
        if keyword in ("properties", "patternProperties") and isinstance(value, Mapping):
            return {name: self.spell(self.references.below(place, original, name)) for name in value}
        if isinstance(value, list):
            return [self.spell(self.references.below(place, original, i)) for i in range(len(value))]
        return self.spell(self.references.below(place, original))

    def reference(self, place: Place) -> Any:
        """The `$ref` at `place` as a pointer to the root or to a definition. A dangling one stays as it is."""
        target = self.references.resolved(place, place.schema["$ref"])
        if target is None:
            self.has_dangling = True
            return place.schema["$ref"]
        if not target.path:
            return "#"
        if target.path not in self._names:
            self._names[target.path] = str(len(self._names))
            self._pending.append(target)
        return f"#/$defs/{self._names[target.path]}"

    def target(self, spelled: Mapping[str, Any]) -> Any:
        """The spelled schema that the `$ref` of a spelled schema leads to; None if it is dangling."""
        reference = spelled["$ref"]
        return self.root if reference == "#" else self.definitions.get(str(reference).removeprefix("#/$defs/"))

    def is_any_of(self, place: Place) -> bool:
        """Whether `oneOf` at `place` means what `anyOf` would mean, because no value fits two of its branches."""
        branches = place.schema["oneOf"]
        return isinstance(branches, list) and are_exclusive(self.references, place, branches)

    def finite(self) -> FiniteSchemas:
        """The spelled schemas that have a finite value."""
        return FiniteSchemas((schema for schema, _ in self.spelled), self.target)


def _original(place: Place, keyword: str) -> str:
    """The keyword of the schema at `place` that has this one in the words of 2020-12."""
    return TO_OLD.get(keyword, keyword) if isinstance(place.schema.get("items"), list) else keyword
