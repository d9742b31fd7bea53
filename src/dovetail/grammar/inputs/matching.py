"""The matcher of a client's grammar over single bytes, and the test that matching a text takes bounded time.

A grammar that is ambiguous in every bracket takes time that grows with the cube of the text. Whether a grammar is
ambiguous cannot be decided, so random texts of it are matched, and it is refused if that takes too many parser items.
"""

from __future__ import annotations

import random
import time

import llguidance

from dovetail.custom_tools import InputGrammar
from dovetail.grammar import lark
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs import spelling
from dovetail.grammar.inputs.expressions import Alt, Expression, Ref, Seq, Times, references, size
from dovetail.grammar.inputs.language import InputGrammarError, Language, language
from dovetail.grammar.lark_schema import first_line

_CACHED, _CACHED_BYTES = 64, 2**20
_BYTES = llguidance.LLTokenizer("byte")
_MOST_STATES = 50_000
#: Parser items after any byte, beside the rules' own: in the texts of clients' tools, and in the random texts.
_MOST_ITEMS, _MOST_SAMPLED_ITEMS = 2_000, 300
#: Random texts, the characters of each, how many of them are matched at once, and seconds of CPU for all.
_SAMPLES, _LENGTH, _PIECE, _SECONDS = 4, 300, 8, 2.0
#: How often a part that refers to a rule is preferred to one that does not.
_INWARD = 0.8
_TOO_LONG = "it is so ambiguous that matching a text takes too long"


def matcher(grammar: InputGrammar) -> llguidance.LLMatcher:
    """The library's matcher, from a cache. Raises `InputGrammarError` for a grammar that cannot be used.

    Copies of a matcher share its state, so an error in one is an error in all. Then the matcher is made again.
    """
    compiled = _COMPILED.get(grammar, len(grammar.definition), lambda: _checked(grammar))
    if isinstance(compiled, str):
        raise InputGrammarError(compiled)
    return _compiled(language(grammar), _MOST_ITEMS) if compiled.is_error() else compiled.deep_copy()


_COMPILED: Cache[llguidance.LLMatcher | str] = Cache(_CACHED, _CACHED_BYTES)


def _checked(grammar: InputGrammar) -> llguidance.LLMatcher | str:
    """The matcher, or why there is none, which is cached too."""
    try:
        read = language(grammar)
    except InputGrammarError as error:
        return str(error)
    return _refusal(read) or _compiled(read, _MOST_ITEMS)


def _refusal(read: Language) -> str | None:
    """Why random texts of a language cannot be matched in bounded time, or at all; None if they can."""
    most_items = min(_MOST_SAMPLED_ITEMS + 4 * sum(map(size, read.rules.values())), _MOST_ITEMS // 2)
    limited = _compiled(read, most_items)
    until = time.thread_time() + _SECONDS
    for sample in (_Sample(read, seed).text().encode() for seed in range(_SAMPLES)):
        limited.reset()
        limited.compute_bitmask()
        for start in range(0, len(sample), _PIECE):
            limited.try_consume_tokens([*sample[start : start + _PIECE]])
            if time.thread_time() > until:
                return _TOO_LONG
        if limited.is_error():
            complaint = first_line(limited.get_error())
            return _TOO_LONG if "Current row" in complaint else complaint
    return None


def _compiled(read: Language, most_items: int) -> llguidance.LLMatcher:
    text = lark.write(spelling.node(read, lambda expression: expression), {})
    limits = llguidance.LLParserLimits(max_lexer_states=_MOST_STATES, max_items_in_row=most_items)
    return llguidance.LLMatcher(_BYTES, llguidance.LLMatcher.grammar_from_lark(text), log_level=0, limits=limits)


class _Sample:
    """The beginning of a random text of a language, which goes into its rules as often as it can."""

    def __init__(self, read: Language, seed: int) -> None:
        self._language = read
        self._random = random.Random(seed)
        self._letters: list[str] = []

    def text(self) -> str:
        pending: list[Expression] = [self._language.start]
        while pending and len(self._letters) < _LENGTH:
            pending += reversed(self._parts(pending.pop()))
        return "".join(self._letters)

    def _parts(self, expression: Expression) -> list[Expression]:
        """Expressions of which a text is one of `expression`; the text of a character is written at once."""
        match expression:
            case Ref(name):
                return [self._language.rules[name]]
            case Seq(items):
                return [*items]
            case Alt(options):
                inward = [option for option in options if references(option)]
                return [self._random.choice(inward if inward and self._random.random() < _INWARD else options)]
            case Times(item, least, most):
                more = self._random.randint(1 if references(item) else 0, 2)
                return [item] * (least + more if most is None else min(most, least + more))
        first, last = self._random.choice(expression.ranges or ((0xE9, 0xE9),))
        code = self._random.randint(first, min(last, first + 0x60))
        self._letters.append(chr(code) if not 0xD800 <= code <= 0xDFFF else " ")
        return []
