"""Runs a grammar against a vocabulary: compile, then mask, advance, roll back.

1. `compile(grammar, tokenizer, eos_ids)` returns a `Matcher` for one sequence, which is a `Constraint` to an engine.
2. `fill(row)` writes the mask of the tokens that may come next.
3. `advance(token)` accepts the sampled token.
4. `rollback(n)` removes the last n tokens, after drafts were rejected.

`forced(limit)` returns the tokens that have to come next, for an engine that drafts.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence

import llguidance
import msgspec

from dovetail.errors import CheckpointError, EngineError, SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.grammar import Grammar
from dovetail.grammar.lark_schema import complaint, first_line, spell
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.check import Checker
from dovetail.tokens import Tokenizer

_CACHED_GRAMMARS = 64
_CACHED_BYTES = 8 << 20  # of encoded grammars
_CACHED_VOCABULARIES = 4
_CACHED_APART = 8
_CACHED_SPELLINGS = 4096
_MAX_CACHED_SPELLING = 256  # bytes
_MAX_COPIES = 8
#: A state of the lexer takes one to two kB, and stays with its grammar. A row has four items for each key that may come
#: next.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, max_items_in_row=5_000)


class Matcher:
    """The `Constraint` of one sequence (see `completion`), on top of llguidance's matcher.

    The library's errors are sticky, and copies of a matcher share its compiled state. An error in one copy (a regex
    that grew past its limit, perhaps on a draft that was never accepted) is therefore an error in all. A matcher in
    error is built again and advances over its tokens again. If that fails too, or too often, the request fails.
    """

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._vocabulary = compiled.vocabulary
        self._original, self._matcher = compiled.copy()
        self._copies = 1
        self._tokens: list[int] = []
        self._ended = False
        # The library's answer to `forced` after the first `_forced_at` tokens; None if there is none.
        self._forced: list[int] | None = None
        self._forced_at = 0

    @property
    def lark(self) -> str:
        """The grammar as the library has it."""
        return self._compiled.lark

    def another(self) -> Matcher:
        """A matcher of the same grammar for another sequence, from its beginning."""
        return Matcher(self._compiled)

    def apart(self) -> Matcher:
        """As `another`, for work outside of the engine: it shares nothing with the matchers of running sequences, so
        that it cannot make them wait or fail. Such matchers share their compiled state with each other."""
        return Matcher(_compiled_apart(self._vocabulary, self._compiled.lark))

    def fill(self, row: memoryview) -> None:
        """As `Constraint.fill`. Raises `EngineError` if the library gives up on the grammar."""
        self._compute(row)
        if self._matcher.is_error():
            self._rebuild()
            self._compute(row)
            if self._matcher.is_error():
                raise EngineError(f"the constraint cannot go on: {first_line(self._matcher.get_error())}")

    def _compute(self, row: memoryview) -> None:
        """Write the mask directly into `row` if it fits, because a mask in bytes of its own costs four times as
        much."""
        size, own = row.nbytes, self._vocabulary.mask_bytes
        if size < own:
            row.cast("B")[:] = self._matcher.compute_bitmask()[:size]
            return
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(ctypes.c_char.from_buffer(row)), own)
        if size > own:  # the model's vocabulary is padded
            row.cast("B")[own:] = bytes(size - own)

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids:
            # The library does not get this token: where nothing can follow, it has stopped and refuses every token.
            self._ended = self._matcher.is_accepting()
            return self._ended
        # A model's vocabulary may be padded beyond the tokenizer's, and the library does not survive such an id.
        if token >= self._vocabulary.size or self._matcher.try_consume_tokens([token]) != 1:
            return False
        self._tokens.append(token)
        return True

    @property
    def may_end(self) -> bool:
        """Whether the turn may end here, or has ended."""
        return self._ended or self._matcher.is_accepting()

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        if not count:
            return
        del self._tokens[-count:]
        if len(self._tokens) < self._forced_at:
            self._forced = None
        if self._matcher.is_error():
            self._rebuild()
        else:
            self._matcher.rollback(count)

    def forced(self, limit: int) -> Sequence[int]:
        """As `Constraint.forced`, in the tokenizer's spelling. A token that may continue past the forced text is left
        out, and so is the end of the turn.

        The library's answer takes about 3 us a byte, so it is reused until the sequence has all its tokens. If the
        sequence has other tokens instead, nothing is forced until then.
        """
        if self._ended:
            return ()
        followed = len(self._tokens) - self._forced_at
        if self._forced is None or followed >= max(1, len(self._forced)):
            self._forced = self._matcher.compute_ff_tokens()
            self._forced_at, followed = len(self._tokens), 0
        elif self._tokens[self._forced_at :] != self._forced[:followed]:
            return ()
        return self._forced[followed : followed + limit]

    def _rebuild(self) -> None:
        if self._copies == _MAX_COPIES:
            return  # the error stays, and the caller raises it
        self._copies += 1
        self._original, self._matcher = self._compiled.copy(broken=self._original)
        self._matcher.try_consume_tokens(self._tokens)


class Compiled:
    """A compiled grammar over a vocabulary, which every matcher copies. Safe to share between threads.

    `lark`: the grammar in the library's dialect.

    Raises `ValueError` with the library's complaint.
    """

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        self.vocabulary = vocabulary
        self.lark = lark
        self._lock = threading.Lock()
        self._original = self._built()

    def copy(self, broken: llguidance.LLMatcher | None = None) -> tuple[llguidance.LLMatcher, llguidance.LLMatcher]:
        """The library's matcher, and a copy of it. If the matcher is the `broken` one, it is built again, once for
        all."""
        with self._lock:
            if self._original is broken:
                self._original = self._built()
            return self._original, self._original.deep_copy()

    def _built(self) -> llguidance.LLMatcher:
        grammar = llguidance.LLMatcher.grammar_from_lark(self.lark)
        matcher = llguidance.LLMatcher(self.vocabulary.library, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


@functools.lru_cache(_CACHED_APART)
def _compiled_apart(vocabulary: Vocabulary, lark: str) -> Compiled:
    return Compiled(vocabulary, lark)


#: A slice of the vocabulary: all tokens that match. In a text without tags, the library allows a whole slice at once,
#: as it does with its own slices in a JSON string: 0.05 ms a mask instead of 1.3 ms, with 160,000 tokens.
_OUTSIDE_TAGS = r'[^"\\\x00-\x1F\x7F<]+'


class Vocabulary:
    """A tokenizer's tokens as llguidance needs them, with the ids that end a turn.

    Raises `CheckpointError` for an end id that the tokenizer does not have.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.size = tokenizer.vocab_size
        self.mask_bytes = (self.size + 31) // 32 * 4
        beyond = [token for token in eos_ids if token >= self.size]
        if beyond:
            raise CheckpointError(
                f"eos_token_id {beyond[0]} of the checkpoint is not among its tokenizer's {self.size} tokens"
            )
        wrapper = llguidance.TokenizerWrapper(_Wrapped(tokenizer, eos_ids[0]))
        whitespace, *strings = llguidance.LLTokenizer.general_slices()
        slices = [whitespace, _OUTSIDE_TAGS, *strings]
        self.library = llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids), slices=slices)


class _Wrapped:
    """A tokenizer with the attributes that the library reads."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.control.values())
        # The library encodes the same forced texts again and again: envelopes, names and keys.
        self._short = functools.lru_cache(_CACHED_SPELLINGS)(self._encode)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._short(text) if len(text) <= _MAX_CACHED_SPELLING else self._encode(text)

    def _encode(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def compile(grammar: Grammar, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> Matcher:
    """A new matcher of `grammar` over the tokenizer's vocabulary. `eos_ids` (at least one) end a turn.

    A new grammar takes about a millisecond, the worst within `bounds` half a second, and a cached one a few tens of
    microseconds. Threads that need the same grammar compile it once. Raises `SchemaRefused`, with the field of the
    request and a JSON pointer, for a schema that is invalid, contradicts itself or is out of bounds.
    """
    tokens = vocabulary(tokenizer, tuple(eos_ids))
    key = _encoded(grammar)
    compiled = COMPILED.get((tokens, key), len(key), lambda: _compile(grammar, tokens, tokenizer.control))
    if isinstance(compiled, _Refused):
        raise SchemaRefused(compiled.message, param=compiled.param)
    return Matcher(compiled)


class _Refused(msgspec.Struct, frozen=True):
    """Why a grammar is refused. It is cached too, because finding the reason takes time."""

    message: str
    param: str | None


#: By vocabulary and encoded grammar.
COMPILED: Cache[Compiled | _Refused] = Cache(_CACHED_GRAMMARS, _CACHED_BYTES)


def _encoded(grammar: Grammar) -> bytes:
    """A grammar as bytes, for the key of the cache. A hundred times as fast as writing it for the library."""
    try:
        return msgspec.msgpack.encode(grammar)
    except (OverflowError, RecursionError, ValueError):
        bounds.check(grammar.schemas())
        return repr(grammar).encode(
            errors="backslashreplace"
        )  # an integer of more than 64 bits, or half a surrogate pair


def _compile(grammar: Grammar, vocabulary: Vocabulary, control: Mapping[str, int]) -> Compiled | _Refused:
    try:
        bounds.check(grammar.schemas())
        try:
            return Compiled(vocabulary, grammar.lark(control))
        except ValueError as error:
            return _Refused(*_reason(grammar, str(error)))
    except SchemaRefused as refusal:
        return _Refused(refusal.message, refusal.param)


def _reason(grammar: Grammar, error: str) -> tuple[str, str]:
    """Why the library refuses a grammar, and the field of the request that is at fault.

    Raises `SchemaRefused` with the JSON pointer of a keyword that JSON Schema does not allow.
    """
    for schema in grammar.schemas():
        Checker(schema.schema, schema.origin, schema.at)
        if reason := complaint(spell(schema.schema).schema):
            return f"{schema.origin} cannot be enforced: {schema.at}: {first_line(reason)}", schema.origin
    for text in grammar.client_texts():
        alone = llguidance.LLMatcher.grammar_from_lark(Grammar(text).lark())
        if reason := llguidance.LLMatcher.validate_grammar(alone):
            return f"{text.origin} cannot be enforced: {first_line(reason)}", text.origin
    return f"the tools cannot be compiled into a grammar: {first_line(error)}", "tools"


@functools.lru_cache(_CACHED_VOCABULARIES)
def vocabulary(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> Vocabulary:
    """The vocabulary of a tokenizer, from a cache. The first time takes about a second for 160,000 tokens."""
    return Vocabulary(tokenizer, eos_ids)
