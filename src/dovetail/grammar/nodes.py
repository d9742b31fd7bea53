"""The pieces that every format's outputs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True):
    """Exactly this text, in ordinary tokens."""

    text: str


class Control(msgspec.Struct, frozen=True):
    """One control token."""

    literal: str


class FreeText(msgspec.Struct, frozen=True):
    """Any ordinary text, perhaps none: no control token can be part of it, so the next one ends it."""


class Index(msgspec.Struct, frozen=True):
    """A decimal integer from 0 to 999,999,999."""


class JsonSchema(msgspec.Struct, frozen=True):
    """JSON text that validates against `schema`. `origin` names the field of the request that it came from."""

    schema: Mapping[str, Any]
    origin: str


class Choice(msgspec.Struct, frozen=True):
    options: tuple[Node, ...]


class Sequence(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Optional(msgspec.Struct, frozen=True):
    item: Node


class Repeat(msgspec.Struct, frozen=True):
    """One or more of `item`."""

    item: Node


Node = Literal | Control | FreeText | Index | JsonSchema | Choice | Sequence | Optional | Repeat
