"""Law 19, an answer says something: no text of a grammar ends before there is a call or content that can be seen."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.events import Message, fold, is_visible
from dovetail.grammar import patterns
from dovetail.grammar.guard import Guarded
from dovetail.grammar.matcher import Matcher, compile
from dovetail.tokens import Tokenizer
from tests.examples import proof_but
from tests.grammar.test_formats import WITH
from tests.grammar.test_matcher import TOOLS, allowed, allows
from tests.reading import families

#: What a turn may ask: the tools, and OpenAI's `tool_choice`.
ASKED: list[tuple[Any, Any]] = [(TOOLS, "auto"), (TOOLS, "none"), (None, "none")]
_BLANK = (b" ", b"\n", b"\t")
_TEXT = (*_BLANK, b"a", b"<", b"[", b"{", b">")
_CLOSERS = (b'"', b"}", b"]", b")", b"1", b"e", b">", b"/")


def ends_of(name: str) -> list[int]:
    return [families.tokenizer_of(name).control[literal] for literal in families.format_of(name).end_of_turn]


def matcher_of(name: str, tools: Any, choice: Any, *, thinking: bool, silent: bool) -> Matcher:
    grammar = families.format_of(name).grammar(tools, tool_choice=choice, thinking=thinking, silent=silent)
    assert grammar is not None
    return compile(grammar, families.tokenizer_of(name), ends_of(name))


def read(name: str, ids: Sequence[int], tools: Any, choice: Any, *, thinking: bool) -> Message:
    reader = families.format_of(name).reader(
        tools, thinking=None if thinking else False, tool_choice=choice, tokenizer=families.tokenizer_of(name)
    )
    return fold([*reader.feed("", [*ids]), *reader.finish()])


def marks_of(name: str) -> list[str]:
    """The marks of reasoning, which a model may spell in ordinary tokens. Where calls begin with ordinary text they are
    left to the gateway, which continues an answer that ends silent."""
    reader = families.format_of(name).reader_type
    marks = (reader.think.strip(), reader.think_end.strip())
    return [mark for mark in marks if mark and not reader.text_openers]


def walk(
    name: str, matcher: Any, rng: random.Random, longest: int = 160, marks: Sequence[str] = ()
) -> list[int] | None:
    """An answer of a model that wants to end: its tokens with the end, or None if it does not end.

    `marks`: what it now and then spells in ordinary tokens.
    """
    tokenizer, ends = families.tokenizer_of(name), ends_of(name)
    ids: list[int] = []
    while len(ids) < longest:
        if marks and rng.random() < 0.1:
            ids += itertools.takewhile(matcher.advance, tokenizer.encode(rng.choice(marks)))
        options = sorted(allowed(matcher, tokenizer))
        spelled = {token: tokenizer.token_bytes(token) for token in options}
        last = [token for token in options if token in ends]
        controls = [token for token in options if token in tokenizer.control_literals and token not in ends]
        few = [[token for token in options if spelled[token] in kind] for kind in (_BLANK, _TEXT, _CLOSERS)]
        pools = [pool for pool in (last, last, last, controls, controls, *few) if pool] or [options]
        ids.append(token := rng.choice(rng.choice(pools)))
        assert matcher.advance(token)
        if token in ends:
            return ids
    return None


def walks(name: str, count: int, *, silent: bool) -> Iterator[tuple[list[int], Message, Matcher]]:
    """The answers of random walks that end, as they are read, with a matcher under which no answer is silent.

    `silent`: whether the answers themselves may be silent.
    """
    rng = random.Random(f"{name} {count} {silent}")
    for _ in range(count):
        thinking = rng.random() < 0.6
        tools, choice = rng.choice(ASKED)
        matcher, speaking = (matcher_of(name, tools, choice, thinking=thinking, silent=it) for it in (silent, False))
        ids = walk(name, matcher, rng, marks=() if silent else marks_of(name))
        if ids is not None:
            yield ids, read(name, ids, tools, choice, thinking=thinking), speaking


def some_or_many(*names: str) -> list[Any]:
    """For each family, few walks, and as a proof 2,000."""
    many = (pytest.mark.slow, pytest.mark.proof)
    return [pytest.param(name, 24, marks=pytest.mark.untraced) for name in names] + [
        pytest.param(name, 2_000, marks=many) for name in names
    ]


@pytest.mark.parametrize(("name", "count"), some_or_many(*WITH))
def test_no_answer_ends_silent(name: str, count: int) -> None:
    ended = 0
    for ids, message, _ in walks(name, count, silent=False):
        ended += 1
        assert message.says_something, (families.tokenizer_of(name).decode(ids), message)
    assert ended > count // 4


@pytest.mark.parametrize(("name", "count"), some_or_many(*WITH))
def test_an_answer_that_says_something_is_allowed(name: str, count: int) -> None:
    """One that may be silent and is not is allowed too where it may not be."""
    spoken = [(ids, speaking) for ids, message, speaking in walks(name, count, silent=True) if message.says_something]
    assert spoken
    for ids, speaking in spoken:
        assert allows(speaking, ids), families.tokenizer_of(name).decode(ids)


@pytest.mark.parametrize("name", ["kimi_k25", "qwen3_coder", "harmony", "pythonic", "command_a"])
def test_a_guarded_matcher_is_the_speaking_one(name: str) -> None:
    """It allows the same after every token and every roll-back, and beside it what the silent one does."""
    tokenizer, rng = families.tokenizer_of(name), random.Random(name)
    silent_ends = 0
    for thinking in (False, True) * 3:
        speaking, silent = (matcher_of(name, TOOLS, "auto", thinking=thinking, silent=it) for it in (False, True))
        ids = walk(name, speaking.another(), rng) or []
        guarded = Guarded(speaking.another(), silent.another()).another()
        for place in range(len(ids)):
            expected = allowed(speaking, tokenizer)
            assert allowed(guarded, tokenizer) == expected
            row = bytearray(4 * ((tokenizer.vocab_size + 31) // 32))
            if guarded.fill_unguarded(memoryview(row)):
                more = {token for token in range(tokenizer.vocab_size) if row[token // 8] >> (token % 8) & 1}
                assert more == allowed(silent, tokenizer) >= expected
                silent_ends += bool(more - expected)
                assert not any(map(guarded.advance, more - expected))
            for token in {rng.randrange(tokenizer.vocab_size), ids[place]}:
                taken = [each.advance(token) for each in (guarded, speaking, silent)]
                assert taken[0] == taken[1]
                for each, is_taken in zip((guarded, speaking, silent), taken, strict=True):
                    each.rollback(int(is_taken))
            back = rng.randrange(place + 1) if rng.random() < 0.2 else 0
            for each in (guarded, speaking, silent):
                each.rollback(back)
                assert all(map(each.advance, ids[place - back : place + 1]))
            assert list(guarded.forced(4)) == list(speaking.forced(4))
    assert silent_ends


@given(st.text("a \n\u200b\u00a0<xé", max_size=8))
def test_visible_text(text: str) -> None:
    """As a regex, with and without words that it may not contain, it is what `is_visible` says."""
    words = ("<x", "<ax")
    assert bool(re.fullmatch(patterns.visible(()), text)) == is_visible(text)
    expected = is_visible(text) and not any(word in text for word in words)
    assert bool(re.fullmatch(patterns.visible(words), text)) == expected


def test_a_word_that_visible_text_may_not_contain_begins_with_a_bracket() -> None:
    with pytest.raises(ValueError, match="has to begin with '<'"):
        patterns.visible(("\n\n",))


@pytest.mark.slow
@pytest.mark.parametrize("name", proof_but(WITH, "kimi_k25", "qwen3_coder", "harmony", "functionary", "kimi_k3"))
def test_no_answer_ends_silent_in_a_structural_tag(name: str) -> None:
    """As xgrammar takes it, with the ids of tokens that show nothing."""
    xgrammar = pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")
    tokenizer, ends, rng = families.tokenizer_of(name), ends_of(name), random.Random(name)
    spelled = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    for token in tokenizer.control_literals:  # as engines hide them
        spelled[token] = b"\xff" + spelled[token]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(spelled, stop_token_ids=ends))
    ended = 0
    for thinking, (tools, choice) in itertools.product((False, True), ASKED):
        grammar = families.format_of(name).grammar(tools, tool_choice=choice, thinking=thinking)
        assert grammar is not None
        tag = json.dumps(grammar.structural_tag(tokenizer.control, tokenizer.blanks))
        compiled = compiler.compile_structural_tag(tag)
        for _ in range(15):
            ids = walk(name, Tagged(xgrammar.GrammarMatcher(compiled), tokenizer), rng, marks=marks_of(name))
            if ids is not None:
                ended += 1
                message = read(name, ids, tools, choice, thinking=thinking)
                assert message.says_something, (tokenizer.decode(ids), choice, thinking)
    assert ended > 20


class Tagged:
    """xgrammar's matcher, as a matcher of ours."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer) -> None:
        self._matcher, self._size = matcher, tokenizer.vocab_size
        self.advance = matcher.accept_token

    def fill(self, row: memoryview) -> None:
        bitmask = np.zeros((1, (self._size + 31) // 32), dtype=np.int32)
        self._matcher.fill_next_token_bitmask(bitmask)
        row[:] = bitmask.tobytes()
