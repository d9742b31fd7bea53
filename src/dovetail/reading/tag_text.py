"""The text of one opening tag: its attributes, with the mistakes of models, and what is no attribute."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

ATTRIBUTE = re.compile(r"""(?<![\w.:-])([\w.:-]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]++))""")
_AS_WRITTEN = re.compile(r'\s*name="(?P<name>[^=]*?)"?(?:\s+string="(?P<string>true|false)")?\s*')
_WORD = re.compile(r"""=?\s*(["']?)([\w.-]+)\1""")
_UNQUOTED = re.compile(r"=\s*+[^\s\"']++")


class Attributes(NamedTuple):
    """The attributes of a tag."""

    values: dict[str, str]
    #: The fault that was forgiven, if there was one.
    defect: str | None
    #: Text of the tag that is no attribute.
    stray: str
    #: Where the attributes end.
    end: int


class Tag(NamedTuple):
    """An opening tag."""

    attributes: Mapping[str, str]
    #: All of its text.
    text: str
    #: The part of the text that is no attribute.
    stray: str
    #: Text that was read after the tag.
    rest: str
    #: Whether the tag closes itself.
    empty: bool


def read_attributes(text: str, *, takes_string: bool, is_declared: Callable[[str | None], bool]) -> Attributes:
    """The attributes in `text`, which may be misspelled.

    `takes_string`: whether `string` is one, beside `name`. `is_declared`: whether a name is known.
    """
    values: dict[str, str] = {}
    others: list[str] = []
    extra, quotes = False, True
    end = 0
    for match in ATTRIBUTE.finditer(text):
        others.append(text[end : match.start()])
        end = match.end()
        name, value = match[1], match[match.lastindex or 0]
        if name in values or not (name == "name" or (name == "string" and takes_string)):
            extra = True
        else:
            values[name] = value
            quotes = quotes and match[2] is not None
    stray = ("".join(others) + text[end:]).strip()
    exact = None
    if (extra or stray) and not is_declared(values.get("name")):
        exact = _AS_WRITTEN.fullmatch(text)
    if exact is not None and (takes_string or exact["string"] is None):
        # Models do not escape names, so that a name with a quote in it looks like several attributes.
        values = {key: value for key, value in exact.groupdict("").items() if value or key == "name"}
        return Attributes(values, None if exact["name"] + '"' in text else "attribute_quotes", "", len(text))
    if "name" not in values and (word := _WORD.fullmatch(stray)):
        return Attributes({**values, "name": word[2]}, "missing_attribute", "", len(text))
    defect = "extra_attributes" if extra else None if quotes else "attribute_quotes"
    return Attributes(values, defect, stray, end)


def in_quotes(text: str) -> bool:
    """Whether a tag's text so far ends inside a quoted value. A bracket there is part of the value."""
    text = text.rstrip().removesuffix("/").rstrip()
    quotes = text.count('"') + text.count("'")
    if not quotes:
        return False
    if text[-1] in "\"'":
        return quotes == 1
    value = text[text.rfind("=") :]
    return _UNQUOTED.fullmatch(value) is None
