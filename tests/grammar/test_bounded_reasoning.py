"""Reasoning ends at its budget in every format, and a budget that is not reached changes nothing."""

from __future__ import annotations

import random

import pytest

from dovetail.formats.base import Format
from dovetail.grammar import matcher as matchers
from dovetail.grammar.bounded_reasoning import BoundedReasoning, Markers, left_open_since
from dovetail.grammar.matcher import Matcher
from dovetail.tokens import Tokenizer
from tests.grammar.test_matcher import allowed
from tests.reading.families import TOOLS, format_of, tokenizer_of

REASONING = [
    *("kimi_k2_thinking", "kimi_k25", "kimi_k3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "qwen3", "glm45"),
    *("glm47", "minimax_m2", "harmony", "mistral"),
]
#: Two bytes of three, then of four: no text may end there.
CUT = {0xE4: b"\xb8\xad", 0xF0: b"\x9f\x98\x80"}


def markers_of(name: str) -> Markers:
    markers = format_of(name).reasoning_tokens(tokenizer_of(name))
    assert markers is not None
    return markers


def matcher(name: str, tool_choice: str = "required") -> Matcher:
    fmt, tokenizer = format_of(name), tokenizer_of(name)
    grammar = fmt.grammar(TOOLS, tool_choice=tool_choice)
    assert grammar is not None
    return matchers.compile(grammar, tokenizer, [tokenizer.control[fmt.end_of_turn[0]]])


def bounded(name: str, budget: int, inner: Matcher | None) -> BoundedReasoning:
    opened = format_of(name).reasoning == "opened"
    return BoundedReasoning(inner, tokenizer_of(name), markers_of(name), budget, left_open=opened)


def opening(name: str) -> list[int]:
    """What the model writes before its reasoning."""
    return [] if format_of(name).reasoning == "opened" else [*markers_of(name).opening]


@pytest.mark.parametrize(
    ("prompt", "since"),
    [
        ([], None),
        ([1, 8, 1], 1),
        ([8], 0),
        ([8, 9, 1], None),
        ([8, 1, 9, 8, 2, 3], 2),
        ([9, 1, 2], None),
    ],
)
def test_how_many_tokens_of_a_prompt_are_of_an_open_block(prompt: list[int], since: int | None) -> None:
    assert left_open_since(prompt, Markers((8,), (9,))) == since
    twice = [each for token in prompt for each in ((token, 0) if token in (8, 9) else (token,))]
    assert left_open_since(twice, Markers((8, 0), (9, 0))) == since
    assert left_open_since([8, 1], Markers((8, 0), (9,))) is None  # half of a marker


@pytest.mark.parametrize("with_grammar", (True, False))
@pytest.mark.parametrize("budget", (0, 1, 7))
@pytest.mark.parametrize("name", REASONING)
def test_only_the_closing_marker_follows_the_budget(name: str, budget: int, with_grammar: bool) -> None:
    tokenizer, closing = tokenizer_of(name), markers_of(name).closing
    constraint = bounded(name, budget, matcher(name) if with_grammar else None)
    for token in (*opening(name), *b"thought"[:budget]):
        assert constraint.advance(token)
    assert list(constraint.forced(9)) == list(closing)
    assert list(constraint.forced(1)) == [closing[0]]
    for token in closing:
        assert allowed(constraint, tokenizer) == {token}
        assert not constraint.advance(ord("x"))
        assert constraint.advance(token)
    assert len(allowed(constraint, tokenizer)) >= 1
    after = allowed(constraint, tokenizer)
    constraint.rollback(len(closing) + min(budget, 1))
    for token in (*b"thought"[:budget][-1:], *closing):
        assert constraint.advance(token)
    assert allowed(constraint, tokenizer) == after


@pytest.mark.parametrize("name", REASONING)
def test_a_character_is_not_cut(name: str) -> None:
    for first, rest in CUT.items():
        for inner in (matcher(name), None):
            constraint = bounded(name, 1, inner)
            for token in (*opening(name), first, *rest):
                assert markers_of(name).closing[0] not in constraint.forced(1)
                assert constraint.advance(token)
            assert allowed(constraint, tokenizer_of(name)) == {markers_of(name).closing[0]}


@pytest.mark.parametrize("name", REASONING)
def test_a_budget_that_is_not_reached_changes_nothing(name: str) -> None:
    """Along a random walk that ends its reasoning in time, masks and forced tokens are those of the grammar alone."""
    rng, tokenizer = random.Random(name), tokenizer_of(name)
    end = tokenizer.control[format_of(name).end_of_turn[0]]
    constraint, alone = bounded(name, 100, matcher(name, "auto")), matcher(name, "auto")
    walk = [*opening(name), *b"ok.", *markers_of(name).closing]
    for step in range(-len(walk), 60):
        expected = allowed(alone, tokenizer)
        assert allowed(constraint, tokenizer) == expected
        assert list(constraint.forced(8)) == list(alone.forced(8))
        token = walk.pop(0) if walk else rng.choice(sorted(expected - {end}) or [end])
        assert constraint.advance(token) == alone.advance(token)
        if step >= 0 and token != end and rng.random() < 0.1:
            constraint.rollback(1)
            alone.rollback(1)


def spent(tokens: list[int], opened: bool, markers: Markers, tokenizer: Tokenizer) -> int:
    """How many tokens of reasoning there are, counted from the beginning."""
    count = 0
    for i, token in enumerate(tokens):
        if opened:
            opened = token not in tokenizer.control_literals
            count += opened
        else:
            opened = tuple(tokens[max(0, i + 1 - len(markers.opening)) : i + 1]) == markers.opening
    return count


@pytest.mark.parametrize("name", REASONING)
def test_random_walks_never_exceed_the_budget(name: str) -> None:
    """Without a grammar, so that blocks open and close anywhere, and with drafts that are rolled back."""
    tokenizer, markers = tokenizer_of(name), markers_of(name)
    opened = format_of(name).reasoning == "opened"
    pool = [*markers.opening, *markers.closing, *b"abcdef", tokenizer.control["<|unheard|>"]]
    for seed in range(8):
        rng = random.Random(f"{name} {seed}")
        constraint = bounded(name, 6, None).another()
        tokens: list[int] = []
        for _ in range(80):
            if rng.random() < 0.2 and tokens:
                count = rng.randint(0, min(5, len(tokens)))
                constraint.rollback(count)
                del tokens[len(tokens) - count :]
            token = rng.choice(pool)
            accepted = constraint.advance(token)
            assert accepted == (token in allowed_after(constraint, tokenizer, accepted))
            tokens += [token] if accepted else []
            assert spent(tokens, opened, markers, tokenizer) <= 6


def allowed_after(constraint: BoundedReasoning, tokenizer: Tokenizer, accepted: bool) -> set[int]:
    """The mask before the last token."""
    again = constraint.another()
    for token in constraint._tokens[: len(constraint._tokens) - accepted]:
        assert again.advance(token)
    return allowed(again, tokenizer)


def test_a_call_inside_reasoning_ends_the_count() -> None:
    """Without a grammar, a model may call a tool without closing its reasoning; nothing cuts the call then."""
    control = tokenizer_of("kimi_k2_thinking").control
    constraint = bounded("kimi_k2_thinking", 3, None)
    call = [control["<|tool_calls_section_begin|>"], control["<|tool_call_begin|>"], *b"functions.ping:0"]
    assert all(constraint.advance(token) for token in (*opening("kimi_k2_thinking"), *b"ab", *call))


def test_formats_whose_reasoning_no_control_token_ends() -> None:
    unmarked: list[Format] = [format_of(name) for name in ("hermes", "llama3_json", "pythonic", "kimi_k2")]
    assert all(fmt.reasoning_tokens(tokenizer_of(fmt.name)) is None for fmt in unmarked)
    assert format_of("kimi_k25").reasoning_tokens(tokenizer_of("kimi_k25", with_controls=False)) is None
