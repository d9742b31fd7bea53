"""Runs a grammar against a vocabulary: compile, then mask, advance, roll back.

1. `compile(grammar, tokenizer, eos_ids)` gives a `Matcher` for one sequence (a `Constraint` to an engine).
2. `fill(row)` writes which tokens may come next.
3. `advance(token)` takes the one that was chosen; 4. `rollback(n)` takes the last n back when a draft was rejected.

`forced(limit)`, at any time, gives the tokens of what has to come, for an engine that drafts.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence

import llguidance
import msgspec

from dovetail.errors import CheckpointError, EngineError, SchemaRefused
from dovetail.grammar import culprit
from dovetail.grammar.cache import Cache
from dovetail.grammar.culprit import first_line
from dovetail.grammar.grammar import Grammar
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.references import placed
from dovetail.tokens import Tokenizer

_CACHED_GRAMMARS = 64
_CACHED_BYTES = 8 << 20  # of what the grammars say
_CACHED_VOCABULARIES = 4
_CACHED_SPELLINGS = 4096  # of texts up to so many bytes
_SHORT = 256
_MOST_COPIES = 8
#: A state of the lexer takes one to two kB. What a matcher has found of it stays with its grammar. A row has four items
#: for each key that may come next.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, max_items_in_row=5_000)


class Matcher:
    """llguidance's matcher as the `Constraint` that engines ask for (see `completion`).

    The library's errors are sticky, and copies of a matcher share what it has compiled, so an error met by one (a regex
    that grew past its limit, perhaps on a draft that was never accepted) is met by all. A matcher in error is therefore
    built anew and takes its tokens again; only when that fails too, or time and again, is it this request's own.
    """

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._vocabulary = compiled.vocabulary
        self._original, self._matcher = compiled.copy()
        self._copies = 1
        self._taken: list[int] = []
        self._ended = False
        # What had to come after the first `_asked_at` tokens; None where that was not asked.
        self._answer: list[int] | None = None
        self._asked_at = 0

    def another(self) -> Matcher:
        """One for another sequence, from the beginning: what `compile` does before has been done."""
        return Matcher(self._compiled)

    def fill(self, row: memoryview) -> None:
        """As `Constraint.fill`. Raises `EngineError` when the library gives up on the grammar."""
        self._compute(row)
        if self._matcher.is_error():
            self._rebuild()
            self._compute(row)
            if self._matcher.is_error():
                raise EngineError(f"the constraint cannot go on: {first_line(self._matcher.get_error())}")

    def _compute(self, row: memoryview) -> None:
        """The mask, straight into `row` if there is room: as bytes of its own it costs four times as much."""
        size, own = row.nbytes, self._vocabulary.mask_bytes
        if size < own:
            row.cast("B")[:] = self._matcher.compute_bitmask()[:size]
            return
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(ctypes.c_char.from_buffer(row)), own)
        if size > own:  # a model's vocabulary may be padded
            row.cast("B")[own:] = bytes(size - own)

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids:
            # Kept from the library: where nothing can follow it has stopped, and then takes not even this token.
            self._ended = self._matcher.is_accepting()
            return self._ended
        # A model's vocabulary may be padded beyond the tokenizer's; the library does not survive such an id.
        if token >= self._vocabulary.size or self._matcher.try_consume_tokens([token]) != 1:
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
            self._answer = None
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
        if self._answer is None or followed >= max(1, len(self._answer)):
            self._answer = self._matcher.compute_ff_tokens()
            self._asked_at, followed = len(self._taken), 0
        elif self._taken[self._asked_at :] != self._answer[:followed]:
            return ()
        return self._answer[followed : followed + limit]

    def _rebuild(self) -> None:
        if self._copies == _MOST_COPIES:
            return  # in error as it is: whoever looks finds it
        self._copies += 1
        self._original, self._matcher = self._compiled.copy(broken=self._original)
        self._matcher.try_consume_tokens(self._taken)


class Compiled:
    """A grammar over a vocabulary, of which every matcher is a copy. Raises `ValueError` with the library's complaint.

    Safe to share between threads.
    """

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        self.vocabulary = vocabulary
        self._lark = lark
        self._lock = threading.Lock()
        self._original = self._built()

    def copy(self, broken: llguidance.LLMatcher | None = None) -> tuple[llguidance.LLMatcher, llguidance.LLMatcher]:
        """The library's matcher and a copy of it. It is built anew if it is `broken`: once, whoever finds out first."""
        with self._lock:
            if self._original is broken:
                self._original = self._built()
            return self._original, self._original.deep_copy()

    def _built(self) -> llguidance.LLMatcher:
        grammar = llguidance.LLMatcher.grammar_from_lark(self._lark)
        matcher = llguidance.LLMatcher(self.vocabulary.library, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


#: Of tokens that match this the library knows at once whether all may come in a text that holds no tags, as it knows it
#: of its own slices in a JSON string: 0.05 ms a mask instead of 1.3 ms, with 160,000 tokens.
_OUTSIDE_TAGS = r'[^"\\\x00-\x1F\x7F<]+'


class Vocabulary:
    """A tokenizer's tokens as llguidance sees them, with the ids that may end a turn. Raises `CheckpointError`."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.size = tokenizer.vocab_size
        self.mask_bytes = (self.size + 31) // 32 * 4
        beyond = [token for token in eos_ids if token >= self.size]
        if beyond:
            told = f"eos_token_id {beyond[0]} of the checkpoint is not among its tokenizer's {self.size} tokens"
            raise CheckpointError(told)
        wrapper = llguidance.TokenizerWrapper(_Wrapped(tokenizer, eos_ids[0]))
        whitespace, *strings = llguidance.LLTokenizer.general_slices()
        slices = [whitespace, _OUTSIDE_TAGS, *strings]
        self.library = llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids), slices=slices)


class _Wrapped:
    """A tokenizer as the library asks for one."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.control.values())
        # The library asks for what is forced, again and again: envelopes, names and keys.
        self._short = functools.lru_cache(_CACHED_SPELLINGS)(self._encode)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._short(text) if len(text) <= _SHORT else self._encode(text)

    def _encode(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def compile(grammar: Grammar, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> Matcher:
    """A fresh matcher of `grammar` over the tokenizer's vocabulary; `eos_ids` (at least one) end a satisfied turn.

    Takes about a millisecond for a new grammar, a second and a half for the worst that is within `bounds`, and a few
    tens of microseconds for one that was compiled before; what several threads ask for at once is compiled once. Raises
    `SchemaRefused`, naming the request's field and the place in its schema, for a schema that is not valid, has a
    keyword that cannot be enforced, or is out of bounds.
    """
    tokens = vocabulary(tokenizer, tuple(eos_ids))
    key = _said(grammar)
    found = COMPILED.get((tokens, key), len(key), lambda: _compile(grammar, tokens, tokenizer.control))
    if isinstance(found, _Refused):
        raise SchemaRefused(found.message, param=found.param)
    return Matcher(found)


class _Refused(msgspec.Struct, frozen=True):
    """Kept as well: what takes long to be refused shall not take that long again."""

    message: str
    param: str | None


COMPILED: Cache[Compiled | _Refused] = Cache(_CACHED_GRAMMARS, _CACHED_BYTES)


def _said(grammar: Grammar) -> bytes:
    """All that a grammar says, in a hundredth of the time that it takes to write it for the library."""
    try:
        return msgspec.msgpack.encode(grammar)
    except (OverflowError, RecursionError, ValueError):
        bounds.check(grammar.schemas())
        return repr(grammar).encode(errors="backslashreplace")  # a number of more than 64 bits, half a character


def _compile(grammar: Grammar, vocabulary: Vocabulary, control: Mapping[str, int]) -> Compiled | _Refused:
    try:
        bounds.check(grammar.schemas())
        try:
            return Compiled(vocabulary, grammar.lark(control))
        except ValueError as error:
            return _Refused(*_blamed(grammar, str(error)))
    except SchemaRefused as refusal:
        return _Refused(refusal.message, refusal.param)


def _blamed(grammar: Grammar, complaint: str) -> tuple[str, str]:
    """What to tell of a grammar that the library refuses, and the field of the request."""
    for schema in grammar.schemas():
        if (found := culprit.find(schema.schema)) is not None:
            pointer, why = found
            return f"{schema.origin} cannot be enforced: {placed(pointer, schema.at)}: {why}", schema.origin
    return f"the tools cannot be compiled into a grammar: {first_line(complaint)}", "tools"


@functools.lru_cache(_CACHED_VOCABULARIES)
def vocabulary(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> Vocabulary:
    """Made once: about a second for 160,000 tokens."""
    return Vocabulary(tokenizer, eos_ids)
