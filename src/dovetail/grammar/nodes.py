"""The nodes of a grammar. Each one describes the texts that a model may write at its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ExactText(msgspec.Struct, frozen=True):
    """Exactly this text, in ordinary tokens. `ExactText("<call>")` allows `<call>` and nothing else."""

    text: str


class ControlToken(msgspec.Struct, frozen=True):
    """One control token of the tokenizer. `ControlToken("<|im_end|>")` allows that token, and no ordinary tokens that
    spell the same characters."""

    literal: str


class FreeText(msgspec.Struct, frozen=True, tag=True):
    """Any text in ordinary tokens, or none. It contains no control token, so the next control token ends it."""


class VisibleText(msgspec.Struct, frozen=True, tag=True):
    """Text in ordinary tokens with at least one character that a reader can see (`events.is_visible`).

    The text contains no string of `without`, and what is seen of it begins with none of `unlike`. Each of these starts
    with `<` and has no other `<` and no new line.
    """

    without: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()


class TextUntil(msgspec.Struct, frozen=True):
    """Any text in ordinary tokens, or none, then `end`. `TextUntil("</p>", without=("</p>",))` allows `Paris</p>`.

    The text contains no string of `without`. Each of these starts with `<`, or with a new line and `<`, and has no
    other `<` or new line. If `without` is empty, a control token has to follow, because nothing else ends the text.

    The text has to be valid for `schema`, a schema of strings with at most `pattern`, `format`, `minLength` and
    `maxLength`. A text in `words` is allowed whatever the schema says. `origin` and `at` are as in `JsonSchema`.
    """

    end: str
    without: tuple[str, ...] = ()
    schema: Mapping[str, Any] = {}
    origin: str = ""
    at: str = "#"
    words: tuple[str, ...] = ()


class OtherName(msgspec.Struct, frozen=True):
    """A name that is not in `known`: one or more ASCII letters, digits, `_`, `-` and `.`. `OtherName(("city",))` allows
    `country`, and does not allow `city`."""

    known: tuple[str, ...] = ()


class Regex(msgspec.Struct, frozen=True):
    """Ordinary text of at least one character that matches the whole of a regular expression. `Regex("[0-9]+")` allows
    `42`.

    The expression may use characters, classes, groups, alternatives and repetitions, in the syntax of `patterns`.
    """

    regex: str


class Index(msgspec.Struct, frozen=True, tag=True):
    """A decimal integer from 0 to 999,999,999, without leading zeros. `Index()` allows `7`."""


class JsonSchema(msgspec.Struct, frozen=True):
    """JSON text that is valid for a JSON Schema. `JsonSchema({"type": "integer"}, "tools[0].function.parameters")`
    allows `42`.

    `origin` is the field of the request that the schema came from. `at` is the JSON pointer of the schema inside that
    field. `$defs` in `schema` are the definitions of the whole field.
    """

    schema: Mapping[str, Any]
    origin: str
    at: str = "#"


class Loosened(msgspec.Struct, frozen=True):
    """The texts of `item`, which are more than the schema in the field `origin` allows.

    `pointers` are the JSON pointers of the keywords that `item` does not enforce. A grammar reports them as unenforced.
    """

    item: Node
    origin: str
    pointers: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True):
    """A text of any one of `options`. `Choice((ExactText("yes"), ExactText("no")))` allows `yes` and `no`."""

    options: tuple[Node, ...]


class Concat(msgspec.Struct, frozen=True):
    """A text of each item, one after the other. `Concat((ExactText("id "), Index()))` allows `id 7`."""

    items: tuple[Node, ...]


class Maybe(msgspec.Struct, frozen=True):
    """A text of `item`, or nothing. `Maybe(ExactText(","))` allows `,` and the empty text."""

    item: Node


class Repeat(msgspec.Struct, frozen=True):
    """Texts of `item`, one after the other, `least` to `most` times; `most=None` sets no upper limit.
    `Repeat(ExactText("a"), 1, 3)` allows `a`, `aa` and `aaa`."""

    item: Node
    least: int = 1
    most: int | None = None


class Rules(msgspec.Struct, frozen=True):
    """The texts of `item`, in which `RuleRef(name)` means the texts of `rules[name]`. Rules may refer to themselves and
    to each other, so a grammar can be recursive.

    A `JsonSchema` in `item` and the rules has one of the types string, integer and number. There is no `Index` in them.
    """

    item: Node
    rules: Mapping[str, Node]


class RuleRef(msgspec.Struct, frozen=True):
    """The texts of the rule `name` of the enclosing `Rules`. A name has lower-case letters, digits and `_`."""

    name: str


class OtherSyntax(msgspec.Struct, frozen=True):
    """The texts of `item`, which spell the values of `schema` in a syntax other than JSON, for example Python's.

    The text is whatever `item` allows. `schema` and `origin` are there for the bounds, which count every schema.
    """

    item: Node
    schema: Mapping[str, Any]
    origin: str


class ClientText(msgspec.Struct, frozen=True):
    """The texts of `text`, which say what the grammar in the field `origin` says, and then `end`.

    The text contains no string of `without`, which are as in `TextUntil`. If there are any, or an `end`, `text` is a
    `Regex`, or contains no `<` and `end` begins with one.

    A library that cannot enforce `text` enforces `otherwise` in place of all this, and `origin` is listed.
    `is_portable`: whether xgrammar can.
    """

    text: Node
    otherwise: Node
    origin: str
    is_portable: bool
    end: str = ""
    without: tuple[str, ...] = ()


Node = (
    ExactText
    | ControlToken
    | FreeText
    | VisibleText
    | TextUntil
    | OtherName
    | Index
    | JsonSchema
    | Loosened
    | Choice
    | Concat
    | Maybe
    | Repeat
    | Regex
    | Rules
    | RuleRef
    | OtherSyntax
    | ClientText
)
