"""How an output is cut: into the tokens of a tokenizer or of a stand-in, and those into deltas.

A literal that is one token in the family's own tokenizer is never cut, because no engine could. Every token has an id,
and `Cutter.table` says what the ids spell, so a reader that takes ids needs no tokenizer of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reading.families import Family
from dovetail.tokens import Detokenizer, Tokenizer, tokenizer

#: (text, ids): what an engine gives at once.
Delta = tuple[str, list[int]]

# About what a real tokenizer makes of code: words with the space before them, short runs of everything else.
_WORDS = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}|\s+|[^\w\s]{1,3}|\w", re.DOTALL)
_FOURS = re.compile(r".{1,4}", re.DOTALL)


class Cutter:
    """Cuts outputs of one family. `kind` is "characters" (four at a time), "words", or a tokenizer's path."""

    def __init__(self, family: Family, kind: str | Path) -> None:
        self._pattern = {"characters": _FOURS, "words": _WORDS}.get(str(kind))
        self._library: Tokenizer | None = None if self._pattern is not None else tokenizer(kind)
        self._literals = [*family.control, family.end]
        known = self._library.control if self._library is not None else {}
        self._next = 1 if self._library is None else self._library.vocab_size
        self.control: dict[str, int] = {}
        for literal in self._literals:
            self.control[literal] = known[literal] if literal in known else self._new()
        self.table: dict[int, bytes] = {token: literal.encode() for literal, token in self.control.items()}
        self._ids: dict[str, int] = {}
        self._split = re.compile("|".join(f"({re.escape(literal)})" for literal in self._literals))

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def tokens(self, output: str) -> list[Delta]:
        """The output's tokens, one delta each. A token that ends inside a character has no text yet."""
        cut: list[Delta] = []
        for part in filter(None, self._split.split(output)):
            if part in self.control:
                cut.append((part, [self.control[part]]))
            elif self._pattern is not None:
                cut.extend((piece, [self._id(piece)]) for piece in self._pattern.findall(part))
            else:
                cut.extend(self._encode(part))
        return cut

    def _id(self, piece: str) -> int:
        token = self._ids.get(piece)
        if token is None:
            token = self._ids[piece] = self._new()
            self.table[token] = piece.encode()
        return token

    def _encode(self, text: str) -> list[Delta]:
        assert self._library is not None
        cut: list[Delta] = []
        detokenizer = Detokenizer(self._library)
        for token in self._library.encode(text):
            self.table[token] = self._library.token_bytes(token)
            cut.append(("".join(segment.text for segment in detokenizer.feed([token])), [token]))
        return cut


def join(tokens: Sequence[Delta]) -> Delta:
    """Several tokens as one delta."""
    return "".join(text for text, _ in tokens), [token for _, ids in tokens for token in ids]


def split(tokens: Sequence[Delta], mean: int | None, seed: int) -> list[Delta]:
    """The tokens in deltas of random sizes, 1 to twice `mean` less one; None puts all into one delta."""
    if mean is None:
        return [join(tokens)]
    choose = random.Random(seed)
    cut: list[Delta] = []
    at = 0
    while at < len(tokens):
        size = choose.randint(1, 2 * mean - 1)
        cut.append(join(tokens[at : at + size]))
        at += size
    return cut
