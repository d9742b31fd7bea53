"""Published models by name: which format reads their calls."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dovetail.errors import UnknownFormat

_FILE = Path(__file__).with_name("published.yaml")


@functools.cache
def published() -> Mapping[str, tuple[str, ...]]:
    """Format -> names of models, in which * stands for any text. `derived` and `generic`: no family reads them."""
    models: Mapping[str, list[str]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: tuple(patterns) for name, patterns in models.items()}


def formats_of(model: str) -> Mapping[str, tuple[str, ...]]:
    """Format -> the names by which it was found for `model`, with or without its owner, in small or large letters.

    Hyphens and blanks may be left out. A whole name has one format; a part of a name has all formats of the models that
    it occurs in. Raises `UnknownFormat`, with names that are near, if there is no such model.
    """
    asked = model.rstrip("/").rpartition("/")[2].lower()
    entries = [(name, pattern) for name, patterns in published().items() for pattern in patterns]
    fitting = [entry for entry in entries if fnmatchcase(asked, entry[1].lower())] or [
        entry for entry in entries if _fits_without_hyphens(asked, entry[1].lower())
    ]
    if fitting:
        name, pattern = max(fitting, key=lambda entry: len(entry[1].rstrip("*")))
        return {name: (pattern,)}
    partly = {name: tuple(p for p in patterns if asked in p.lower()) for name, patterns in published().items()}
    if asked and any(partly.values()):
        return {name: patterns for name, patterns in partly.items() if patterns}
    names = {pattern.rstrip("*-").lower(): pattern.rstrip("*-") for _, pattern in entries}
    near = [names[name] for name in difflib.get_close_matches(asked, names, cutoff=0.7)]
    hint = f"; near are {', '.join(near)}" if near else ""
    raise UnknownFormat(
        f"no format or published model {model!r} is known{hint}. Of any other model, `dovetail formats --of FOLDER` "
        "tells how its chat template is read"
    )


def _fits_without_hyphens(name: str, pattern: str) -> bool:
    name, begun = (re.sub(r"[\s_-]", "", each) for each in (name, pattern.rstrip("*")))
    return name.startswith(begun) if pattern.endswith("*") and not pattern.endswith("-*") else name == begun
