"""Runs a grammar against a vocabulary: compile, then mask, advance, roll back.

1. `compile(grammar, tokenizer, eos_ids)` gives a `Matcher` for one sequence (a `Constraint` to an engine).
2. `fill(row)` writes which tokens may come next.
3. `advance(token)` takes the one that was chosen; 4. `rollback(n)` takes the last n back when a draft was rejected.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Sequence

import llguidance

from dovetail.errors import SchemaRefused
from dovetail.grammar.grammar import Grammar
from dovetail.tokens import Tokenizer

_CACHED_GRAMMARS = 64


class Matcher:
    """llguidance's matcher as the `Constraint` that engines ask for (see `completion`)."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos_ids = frozenset(eos_ids)
        self._vocab_size = vocab_size
        self._ended = False

    def fill(self, row: memoryview) -> None:
        mask = self._matcher.compute_bitmask()
        size = row.nbytes
        # The library's mask may be a word longer than the vocabulary,
        # and a model's vocabulary longer than the tokenizer's.
        row.cast("B")[:] = mask[:size] if len(mask) >= size else mask.ljust(size, b"\0")

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._eos_ids:
            # Kept from the library: where nothing can follow, it has stopped and takes no token, not even this one.
            self._ended = self._matcher.is_accepting()
            return self._ended
        # A model's vocabulary may be padded beyond the tokenizer's; the library does not survive such an id.
        if token >= self._vocab_size or self._matcher.is_stopped():
            return False
        return self._matcher.try_consume_tokens([token]) == 1

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            self._matcher.rollback(count)


def compile(grammar: Grammar, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> Matcher:
    """A fresh matcher of `grammar` over the tokenizer's vocabulary; `eos_ids` may come where the grammar is satisfied.

    Takes about a millisecond for a new grammar. Raises `SchemaRefused`, naming the request's field, for a schema that
    is not valid or has a keyword that cannot be enforced.
    """
    library = _library_tokenizer(tokenizer, tuple(eos_ids))
    try:
        return Matcher(_compiled(_Key(library), grammar.lark()).deep_copy(), eos_ids, tokenizer.vocab_size)
    except ValueError as error:
        for schema in grammar.schemas():
            _check_schema(json.dumps(schema.schema), schema.origin)
        raise SchemaRefused(
            f"the tools cannot be compiled into a grammar: {_first_line(str(error))}", param="tools"
        ) from error


class _Key:
    """Makes a library tokenizer hashable by identity."""

    def __init__(self, library: llguidance.LLTokenizer) -> None:
        self.library = library

    def __hash__(self) -> int:
        return id(self.library)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.library is self.library


@functools.lru_cache(_CACHED_GRAMMARS)
def _compiled(key: _Key, lark: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(key.library, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def _check_schema(schema: str, origin: str) -> None:
    error = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(f"start: %json {schema}"))
    if error:
        hint = ' (the request can ask for less: "dovetail": {"strict": "names"})' if "Unimplemented" in error else ""
        raise SchemaRefused(f"{origin} cannot be enforced: {_first_line(error)}{hint}", param=origin)


def _first_line(error: str) -> str:
    return error.split("\n", 1)[0].split("JSON schema: ")[-1]


class _Vocabulary:
    """A tokenizer as llguidance asks for one."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.control.values())

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


_LIBRARY_TOKENIZERS: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[int, ...], llguidance.LLTokenizer]]
_LIBRARY_TOKENIZERS = weakref.WeakKeyDictionary()


def _library_tokenizer(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> llguidance.LLTokenizer:
    """The library's view of `tokenizer`, made once (about a second for 160,000 tokens)."""
    made = _LIBRARY_TOKENIZERS.setdefault(tokenizer, {})
    if eos_ids not in made:
        vocabulary = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, eos_ids[0]))
        made[eos_ids] = llguidance.LLTokenizer(vocabulary, eos_token=list(eos_ids))
    return made[eos_ids]
