"""Reads the YAML files that people write: config files and recipes.

Values follow YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema) without hexadecimal and octal
numbers, infinities and NaN: null, true and false, whole and decimal numbers, and text. `strict: off` is the text "off".
Keys are text. The safe loader of PyYAML builds the values. What it would expand without limit or read in two ways is
refused first: files above 1 MiB, deep nesting, anchors and aliases, tags, repeated keys and a second document.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]

from dovetail.errors import PlanError

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader follows YAML 1.1, where `off` is false; this one resolves plain words as YAML 1.2 does."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key must be text", key)
            if key.value in mapping:
                raise _refusal(f"the key {key.value!r:.80} is repeated", key)
            mapping[key.value] = self.construct_object(value, deep=deep)
        return mapping


_DIGITS = "(?:0|[1-9][0-9]{0,99})"  # longer numbers stay text
for _tag, _pattern in (
    ("null", "~|null|Null|NULL|"),
    ("bool", "true|True|TRUE|false|False|FALSE"),
    ("int", rf"[-+]?{_DIGITS}"),
    ("float", rf"[-+]?(?:{_DIGITS}\.[0-9]*|\.[0-9]+|{_DIGITS}(?=[eE]))(?:[eE](?:-[0-9]{{1,3}}|\+?[0-9]{{1,2}}))?"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)


def read_yaml(file: Path, what: str) -> Any:
    """Return the value in `file`, None if the file is empty. Raises `PlanError`, which begins with `what`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{what} {file} cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise PlanError(f"{what} {file} is larger than {_MAX_BYTES >> 20} MiB, the limit for such a file")
    try:
        _check_events(content)
        return yaml.load(content, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise PlanError(f"{what} {file} is not valid YAML: {' '.join(str(error).split())}") from error


def _check_events(content: bytes) -> None:
    """Raise `ValueError` for what the loader must not see. Events come one by one, so nesting costs no stack here."""
    depth = documents = 0
    for event in yaml.parse(content, Loader=_BASE):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not supported"
        elif getattr(event, "tag", None) is not None:
            problem = f"the tag {event.tag:.40} is not supported"
        elif documents > 1:
            problem = "the file has more than one document"
        elif depth > _MAX_DEPTH:
            problem = f"it is nested deeper than {_MAX_DEPTH}"
        if problem is not None:
            raise _refusal(problem, event)


def _refusal(problem: str, at: Any) -> ValueError:
    """`at` is the event or the node with the problem."""
    return ValueError(f"{problem} (line {at.start_mark.line + 1})")
