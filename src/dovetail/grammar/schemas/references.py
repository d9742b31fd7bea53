"""Places in a JSON Schema, and the targets of its references (JSON Schema 2020-12 core, 8.2; RFC 6901).

References lead only to places in the schema itself. Nothing is ever fetched.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

#: The keys from the root of a schema to a place in it.
Path = tuple[str, ...]


class Place(NamedTuple):
    """A schema within a schema. `base` is the URI that its references are relative to."""

    schema: Any
    path: Path
    base: str


def pointer(path: Path) -> str:
    """A path as a JSON pointer in the fragment of a URI, not percent-encoded: `#/properties/a~1b`."""
    return "/".join(("#", *map(step, path)))


def shortened_pointer(path: Path) -> str:
    """A path as a JSON pointer for an error message: at most 80 characters of each key, and 300 in all."""
    text = pointer(tuple(str(key)[:80] for key in path))
    return text if len(text) <= 300 else f"{text[:150]}...{text[-147:]}"


def step(key: str) -> str:
    """A key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def steps(pointer: str) -> Path:
    """The path of a JSON pointer: the inverse of `pointer`."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def placed(inner: str, at: str) -> str:
    """A pointer into the schema at `at`, as a pointer into the whole field. Definitions belong to the whole field."""
    return inner if inner.startswith("#/$defs/") else at + inner[1:]


def encoded(schema: Any) -> bytes:
    """A schema as JSON, for the key of a cache. Ten times as fast as `json.dumps`."""
    try:
        return msgspec.json.encode(schema)
    except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits; half a surrogate pair
        return json.dumps(schema).encode()


class References:
    """The places of one schema, with the targets of its references."""

    def __init__(self, root: Any) -> None:
        self.root = _entered(root, (), "")
        self._resources: dict[str, Place] | None = None
        self._anchors: dict[tuple[str, str], Place] = {}

    def below(self, place: Place, *keys: str | int) -> Place:
        """The place under `keys` of `place`. Raises `LookupError` or `TypeError` if there is none."""
        schema, path, base = place
        for key in keys:
            schema, path, base = _entered(schema[key], (*path, str(key)), base)
        return Place(schema, path, base)

    def resolved(self, place: Place, reference: Any) -> Place | None:
        """The target of a `$ref` at `place`; None if the target is not in the schema."""
        try:
            uri, fragment = urldefrag(urljoin(place.base, reference))
            fragment = unquote(fragment, errors="strict")
        except (TypeError, ValueError, AttributeError):
            return None
        target = self._resource(uri)
        if target is None or not fragment:
            return target
        if not fragment.startswith("/"):
            self._index()
            return self._anchors.get((target.base, fragment))
        for step in steps(fragment):
            try:
                target = self.below(target, int(step) if isinstance(target.schema, list) else step)
            except (LookupError, TypeError, ValueError):
                return None
        return target

    def _resource(self, uri: str) -> Place | None:
        return self.root if uri in ("", self.root.base) else self._index().get(uri)

    def _index(self) -> dict[str, Place]:
        """Every schema with an identifier of its own, by its URI. This fills `_anchors` too."""
        if self._resources is None:
            self._resources = {}
            pending = [self.root]
            while pending:
                place = pending.pop()
                schema = place.schema
                if isinstance(schema, Mapping):
                    named = schema.get("$id"), schema.get("$anchor"), schema.get("$dynamicAnchor")
                    identifier, *anchors = (name for name in named)
                    if isinstance(identifier, str) and identifier.startswith("#"):  # before 2019-09
                        anchors.append(identifier[1:])
                    elif isinstance(identifier, str):
                        self._resources.setdefault(place.base, place)
                    for anchor in anchors:
                        if isinstance(anchor, str):
                            self._anchors.setdefault((place.base, anchor), place)
                    pending += (self.below(place, key) for key in schema)
                elif isinstance(schema, list):
                    pending += (self.below(place, i) for i in range(len(schema)))
        return self._resources


def _entered(schema: Any, path: tuple[str, ...], base: str) -> Place:
    identifier = schema.get("$id") if isinstance(schema, Mapping) else None
    if isinstance(identifier, str) and not identifier.startswith("#"):
        with contextlib.suppress(ValueError):  # not a URI, so nothing can refer to it
            base = urldefrag(urljoin(base, identifier)).url
    return Place(schema, path, base)
