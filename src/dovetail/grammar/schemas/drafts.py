"""The drafts of JSON Schema: which draft a schema names, whether it is valid in a draft, and the translation of older
words into the words of 2020-12."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import jsonschema_rs

from dovetail.grammar.schemas.keywords import BY_NAME, VALUES
from dovetail.grammar.schemas.references import Path, pointer, steps

NEWEST = "draft/2020-12"
OLDEST = "draft-04"
_NAMES = re.compile(r"https?://json-schema\.org/(draft/2019-09|draft/2020-12|draft-0[467])/schema#?")
#: By draft, the validator of its schemas.
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


def named(schema: Mapping[str, Any]) -> str | None:
    """The draft that `$schema` names, None without one. Raises `ValueError` for an unknown one."""
    name = schema.get("$schema")
    if name is None:
        return None
    known = _NAMES.fullmatch(name) if isinstance(name, str) else None
    if known is None:
        raise ValueError("no known draft")
    return known[1]


def is_of(schema: Any, draft: str) -> bool:
    """Whether a schema is valid in a draft. Takes some microseconds, and lets no other thread run meanwhile."""
    return bool(_DRAFTS[draft].is_valid(schema))


def newest(schema: Any) -> Any:
    """A schema that names no draft, in the words of 2020-12. Older words are a list as `items`, with `additionalItems`,
    and a boolean as `exclusiveMinimum` or `exclusiveMaximum`. A schema that names a draft stays as it is."""
    return _newest(schema, schema) if _names_no_draft(schema) else schema


def as_sent(schema: Any, path: Path) -> Path:
    """The path in `schema` of a place that has the path `path` in `newest(schema)`."""
    return (*_renamed(schema, path, TO_OLD),) if _names_no_draft(schema) else path


def in_newest_words(keywords: dict[str, Any]) -> None:
    """As `newest`, for the keywords of one schema, in place."""
    if isinstance(keywords.get("items"), list):
        keywords["prefixItems"] = keywords.pop("items")
        if "additionalItems" in keywords:
            keywords["items"] = keywords.pop("additionalItems")
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(keywords.get(exclusive), bool):
            applies = keywords.pop(exclusive) and isinstance(keywords.get(bound), int | float)
            if applies and not isinstance(keywords[bound], bool):
                keywords[exclusive] = keywords.pop(bound)


def _names_no_draft(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "$schema" not in schema


def _newest(schema: Any, resource: Any) -> Any:
    """`resource`: the schema that the JSON pointers of references start from."""
    if isinstance(schema, list):
        return [_newest(each, resource) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if isinstance(identifier := schema.get("$id"), str) and not identifier.startswith("#"):
        resource = schema
    keywords: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, Mapping):
            keywords[keyword] = {name: _newest(inner, resource) for name, inner in value.items()}
        elif keyword in _REFERENCES and isinstance(value, str) and value.startswith("#/"):
            keywords[keyword] = _moved(value, resource)
        elif keyword != "$schema":  # the draft of the whole applies to its parts
            keywords[keyword] = value if keyword in VALUES else _newest(value, resource)
    in_newest_words(keywords)
    return keywords


def _moved(reference: str, resource: Any) -> str:
    """A pointer to the same place in the translated schema, with escapes for what a URI may not contain."""
    try:
        path = steps(unquote(reference[1:], errors="strict"))
        return "#" + quote(pointer((*_renamed(resource, path, _TO_NEW),))[1:], safe="/~!$&'()*+,;=:@?")
    except ValueError:  # half a surrogate pair
        return reference


#: Keywords beside a list as `items`: by the old word the new one, and the other way round.
_TO_NEW = {"items": "prefixItems", "additionalItems": "items"}
TO_OLD = {"prefixItems": "items", "items": "additionalItems"}


def _renamed(schema: Any, path: Path, names: Mapping[str, str]) -> Iterator[str]:
    """`path` with the `names` of the keywords beside a list as `items`. `schema` is the one that the client sent."""
    part, by_name = schema, False
    for i, step in enumerate(path):
        if isinstance(part, list):
            yield step
            part = part[int(step)] if step.isdecimal() and int(step) < len(part) else None
        elif not isinstance(part, Mapping):
            yield from path[i:]
            return
        elif by_name:
            yield step
            part, by_name = part.get(step), False
        else:
            renamed = names.get(step, step) if isinstance(part.get("items"), list) else step
            yield renamed
            if step in VALUES:
                yield from path[i + 1 :]
                return
            part = part.get(renamed if names is TO_OLD else step)
            by_name = step in BY_NAME and isinstance(part, Mapping)
