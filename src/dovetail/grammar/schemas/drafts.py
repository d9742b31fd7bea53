"""The drafts of JSON Schema: which of them a schema is of, whether it is one, and older ones in the newest words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import jsonschema_rs

from dovetail.grammar.schemas.keywords import BY_NAME, VALUES
from dovetail.grammar.schemas.references import pointer, steps

NEWEST = "draft/2020-12"
OLDEST = "draft-04"
_NAMES = re.compile(r"https?://json-schema\.org/(draft/2019-09|draft/2020-12|draft-0[467])/schema#?")
#: What a schema of a draft has to be.
_DRAFTS = {
    draft: validator({"$ref": f"{'https' if '/' in draft else 'http'}://json-schema.org/{draft}/schema"}, offline=True)
    for draft, validator in (
        (NEWEST, jsonschema_rs.Draft202012Validator),
        ("draft/2019-09", jsonschema_rs.Draft201909Validator),
        ("draft-07", jsonschema_rs.Draft7Validator),
        ("draft-06", jsonschema_rs.Draft6Validator),
        (OLDEST, jsonschema_rs.Draft4Validator),
    )
}
_REFERENCES = ("$ref", "$dynamicRef")

Path = tuple[str, ...]


def named(schema: Mapping[str, Any]) -> str | None:
    """The draft that `$schema` names, None without one. Raises `ValueError` for another name."""
    name = schema.get("$schema")
    if name is None:
        return None
    known = _NAMES.fullmatch(name) if isinstance(name, str) else None
    if known is None:
        raise ValueError("no known draft")
    return known[1]


def is_of(schema: Any, draft: str) -> bool:
    """Whether it is a schema of a draft. Takes some microseconds, and lets no other thread run meanwhile."""
    return bool(_DRAFTS[draft].is_valid(schema))


def newest(schema: Any) -> Any:
    """A schema that names no draft, in the words of 2020-12: `items` as a list, with `additionalItems`, and
    `exclusiveMinimum` as a word about `minimum` are older. What is no schema stays so, and a schema that names a draft
    stays as it is."""
    return _newest(schema, schema) if _names_none(schema) else schema


def as_sent(schema: Any, path: Path) -> Path:
    """The path in `schema` of what has this one in `newest(schema)`, where that is in it."""
    return (*_renamed(schema, path, _BACK),) if _names_none(schema) else path


def in_newest_words(said: dict[str, Any]) -> None:
    """As `newest`, for the keywords of one schema, in place."""
    if isinstance(said.get("items"), list):
        said["prefixItems"] = said.pop("items")
        if "additionalItems" in said:
            said["items"] = said.pop("additionalItems")
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(said.get(exclusive), bool):
            is_meant = said.pop(exclusive) and isinstance(said.get(bound), int | float)
            if is_meant and not isinstance(said[bound], bool):
                said[exclusive] = said.pop(bound)


def _names_none(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "$schema" not in schema


def _newest(schema: Any, resource: Any) -> Any:
    """`resource`: what pointers in references start from."""
    if isinstance(schema, list):
        return [_newest(each, resource) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if isinstance(identifier := schema.get("$id"), str) and not identifier.startswith("#"):
        resource = schema
    said: dict[str, Any] = {}
    for keyword, held in schema.items():
        if keyword in BY_NAME and isinstance(held, Mapping):
            said[keyword] = {name: _newest(it, resource) for name, it in held.items()}
        elif keyword in _REFERENCES and isinstance(held, str) and held.startswith("#/"):
            said[keyword] = _moved(held, resource)
        elif keyword != "$schema":  # a part's own draft is that of the whole
            said[keyword] = held if keyword in VALUES else _newest(held, resource)
    in_newest_words(said)
    return said


def _moved(reference: str, resource: Any) -> str:
    """A pointer to the same place in the newest words, with everything escaped that a URI may not have."""
    try:
        path = steps(unquote(reference[1:], errors="strict"))
        return "#" + quote(pointer((*_renamed(resource, path, _FORTH),))[1:], safe="/~!$&'()*+,;=:@?")
    except ValueError:  # half a character
        return reference


_FORTH = {"items": "prefixItems", "additionalItems": "items"}
#: The keyword in the schema as it was sent, by that in the newest words.
_BACK = {"prefixItems": "items", "items": "additionalItems"}


def _renamed(schema: Any, path: Path, names: Mapping[str, str]) -> Iterator[str]:
    """`path` with other names for the keywords beside a tuple as `items`. `schema` is as it was sent."""
    held, is_named = schema, False
    for i, step in enumerate(path):
        if isinstance(held, list):
            yield step
            held = held[int(step)] if step.isdecimal() and int(step) < len(held) else None
        elif not isinstance(held, Mapping):
            yield from path[i:]
            return
        elif is_named:
            yield step
            held, is_named = held.get(step), False
        else:
            said = names.get(step, step) if isinstance(held.get("items"), list) else step
            yield said
            if step in VALUES:
                yield from path[i + 1 :]
                return
            held = held.get(said if names is _BACK else step)
            is_named = step in BY_NAME and isinstance(held, Mapping)
