"""Runs a grammar against a vocabulary: compile, then mask, advance, roll back.

1. `compile(grammar, tokenizer, eos_ids)` gives a `Matcher` for one sequence (a `Constraint` to an engine).
2. `fill(row)` writes which tokens may come next.
3. `advance(token)` takes the one that was chosen; 4. `rollback(n)` takes the last n back when a draft was rejected.

`forced(limit)`, at any time, gives the tokens of what has to come, for an engine that drafts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import llguidance

from dovetail.errors import CheckpointError, EngineError, SchemaRefused
from dovetail.grammar import bounds
from dovetail.grammar.grammar import Grammar
from dovetail.tokens import Tokenizer

_CACHED_GRAMMARS = 64
_CACHED_VOCABULARIES = 4


class Matcher:
    """llguidance's matcher as the `Constraint` that engines ask for (see `completion`).

    The library's errors are sticky, and copies of a matcher share what it has compiled, so an error met by one (a regex
    that grew past its limit, perhaps on a draft that was never accepted) is met by all. A matcher in error is therefore
    built anew and takes its tokens again; only when that fails too is it this request's own.
    """

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        self._vocabulary = vocabulary
        self._lark = lark
        self._matcher = _compiled(vocabulary, lark).deep_copy()
        self._taken: list[int] = []
        self._ended = False
        # What had to come after the first `_asked_at` tokens.
        self._answer: list[int] = []
        self._asked_at = 0

    def another(self) -> Matcher:
        """One for another sequence, from the beginning: what `compile` does before has been done."""
        return Matcher(self._vocabulary, self._lark)

    def fill(self, row: memoryview) -> None:
        """As `Constraint.fill`. Raises `EngineError` when the library gives up on the grammar."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self._rebuild()
            mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise EngineError(f"the constraint cannot go on: {_first_line(self._matcher.get_error())}")
        size = row.nbytes
        # The library's mask may be a word longer than the vocabulary; a model's vocabulary may be longer still.
        row.cast("B")[:] = mask[:size] if len(mask) >= size else mask.ljust(size, b"\0")

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids:
            # Kept from the library: where nothing can follow it has stopped, and then takes not even this token.
            self._ended = self._matcher.is_accepting()
            return self._ended
        # A model's vocabulary may be padded beyond the tokenizer's; the library does not survive such an id.
        if token >= self._vocabulary.size or self._matcher.is_stopped():
            return False
        if self._matcher.try_consume_tokens([token]) != 1:
            return False
        self._taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        if not count:
            return
        del self._taken[-count:]
        if len(self._taken) < self._asked_at:
            self._answer, self._asked_at = [], 0
        if self._matcher.is_error():
            self._rebuild()
        else:
            self._matcher.rollback(count)

    def forced(self, limit: int) -> Sequence[int]:
        """As `Constraint.forced`, spelled as the tokenizer would. A token that may go on past what is forced is left
        out, and so is the end of the turn.

        The library is asked once for as many tokens as it answered with, since its answer can be long and takes some
        3 us a byte; where another spelling was taken, nothing is forced until then.
        """
        if self._ended:
            return ()
        followed = len(self._taken) - self._asked_at
        if followed >= len(self._answer):
            self._answer = self._matcher.compute_ff_tokens()
            self._asked_at, followed = len(self._taken), 0
        elif self._taken[self._asked_at :] != self._answer[:followed]:
            return ()
        return self._answer[followed : followed + limit]

    def _rebuild(self) -> None:
        _compiled.cache_clear()
        self._matcher = _compiled(self._vocabulary, self._lark).deep_copy()
        self._matcher.try_consume_tokens(self._taken)


class Vocabulary:
    """A tokenizer's tokens as llguidance sees them, with the ids that may end a turn. Raises `CheckpointError`."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.size = tokenizer.vocab_size
        beyond = [token for token in eos_ids if token >= self.size]
        if beyond:
            told = f"eos_token_id {beyond[0]} of the checkpoint is not among its tokenizer's {self.size} tokens"
            raise CheckpointError(told)
        wrapper = llguidance.TokenizerWrapper(_Wrapped(tokenizer, eos_ids[0]))
        self.library = llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids))


class _Wrapped:
    """A tokenizer as the library asks for one."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.control.values())

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def compile(grammar: Grammar, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> Matcher:
    """A fresh matcher of `grammar` over the tokenizer's vocabulary; `eos_ids` (at least one) end a satisfied turn.

    Takes about a millisecond for a new grammar. Raises `SchemaRefused`, naming the request's field, for a schema that
    is not valid, has a keyword that cannot be enforced, or is out of `bounds`.
    """
    bounds.check(grammar.schemas())
    try:
        return Matcher(_vocabulary(tokenizer, tuple(eos_ids)), grammar.lark(tokenizer.control))
    except ValueError as error:
        for schema in grammar.schemas():
            _check_schema(json.dumps(schema.schema), schema.origin)
        told = f"the tools cannot be compiled into a grammar: {_first_line(str(error))}"
        raise SchemaRefused(told, param="tools") from error


@functools.lru_cache(_CACHED_VOCABULARIES)
def _vocabulary(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> Vocabulary:
    """Made once: about a second for 160,000 tokens."""
    return Vocabulary(tokenizer, eos_ids)


@functools.lru_cache(_CACHED_GRAMMARS)
def _compiled(vocabulary: Vocabulary, lark: str) -> llguidance.LLMatcher:
    grammar = llguidance.LLMatcher.grammar_from_lark(lark)
    matcher = llguidance.LLMatcher(vocabulary.library, grammar, log_level=0)
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
