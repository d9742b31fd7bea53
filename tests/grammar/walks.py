"""Random walks through a grammar: the texts that a model with random weights may write, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.grammar import Grammar, JsonSchema
from dovetail.grammar.matcher import Matcher, compile
from tests.reading import families

BYTES = families.PieceTokenizer(("<end>",), ("{}",))
END = (BYTES.control["<end>"],)

_LIKELY = frozenset(b'"}]0123456789abcdefghijklmnopqrstuvwxyzABCDEFT:.-+/@_,{[')
_CLOSING = frozenset(b'"}]')


def matcher(schema: Mapping[str, Any]) -> Matcher:
    return compile(Grammar(JsonSchema(schema, "here")), BYTES, END)


def allows(schema: Mapping[str, Any], text: str) -> bool:
    """Whether the grammar of a schema allows `text` as a whole answer."""
    constraint = matcher(schema)
    return all(constraint.advance(token) for token in (*BYTES.encode(text), *END))


def walk(schema: Mapping[str, Any], rng: random.Random, longest: int = 160) -> str | None:
    """A random text that the grammar of a schema allows; see `blindly`."""
    constraint, row = matcher(schema), bytearray(4 * ((BYTES.vocab_size + 31) // 32))

    def allowed() -> list[int]:
        constraint.fill(memoryview(row))
        return [token for token in range(BYTES.vocab_size) if row[token // 8] >> (token % 8) & 1]

    return blindly(allowed, constraint.advance, rng, longest)


def blindly(
    allowed: Callable[[], list[int]], advance: Callable[[int], bool], rng: random.Random, longest: int = 160
) -> str | None:
    """A text of randomly chosen `allowed` tokens; None if it does not end within `longest` bytes. White space is
    avoided, and after half the bytes, closing characters are preferred."""
    text = bytearray()
    while len(text) < longest:
        tokens = allowed()
        may_end = END[0] in tokens
        tokens = [token for token in tokens if token < 256]
        tokens = [token for token in tokens if token not in b" \t\n\r"] or tokens
        if may_end and (not tokens or rng.random() < 0.4):
            return text.decode()
        closing = [token for token in tokens if token in _CLOSING] if len(text) > longest / 2 else []
        likely = [token for token in tokens if token in _LIKELY] if rng.random() < 0.95 else []
        token = rng.choice(closing or likely or tokens)
        assert advance(token)
        text.append(token)
    return None
