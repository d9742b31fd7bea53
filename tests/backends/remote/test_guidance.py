"""Schemas for vLLM's llguidance, and those that it cannot compile although ours can."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import llguidance
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import dovetail
from dovetail.backends.remote import Vocabulary, guidance
from dovetail.errors import SchemaRefused
from dovetail.formats.registry import FAMILIES
from dovetail.grammar import Grammar, JsonSchema, matcher
from tests.grammar.test_matcher import TOOLS, allowed
from tests.reading.families import controls

ORIGIN = "tools[3].function.parameters"
VOCABULARY = Vocabulary(100, (2,), {"[end]": 2})


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_masks_are_those_of_our_matcher(name: str, tmp_path: Path) -> None:
    """Along what is drawn and rolled back, ends included, for a tokenizer as vLLM gives it to the library."""
    fmt = dovetail.format(name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    literals = dict.fromkeys((*controls(name), *fmt.end_of_turn, "[EOS]"))
    tokens.add_tokens([AddedToken(literal, special=True, normalized=False) for literal in literals])
    tokens.save(str(tmp_path / "tokenizer.json"))
    tokenizer = dovetail.tokenizer(tmp_path)
    size, own = tokens.get_vocab_size(), tokenizer.control["[EOS]"]
    ends = tuple(tokenizer.control[literal] for literal in fmt.end_of_turn)
    library = llguidance.LLTokenizer(tokens.to_str(), n_vocab=size, eos_token=own)

    for thinking in (True, False):
        grammar = fmt.grammar(TOOLS, thinking=thinking)
        assert grammar is not None
        text = guidance.write(grammar, Vocabulary(size, ends, tokenizer.control))
        theirs = llguidance.LLMatcher(library, llguidance.grammar_from("grammar", text), log_level=0)
        ours, rng, taken = matcher.compile(grammar, tokenizer, ends), random.Random(0), 0
        for _ in range(150):
            row = theirs.compute_bitmask()
            options = {token for token in range(size) if row[token // 8] >> token % 8 & 1}
            expected = allowed(ours, tokenizer)
            assert options - {own} == expected - {own}
            assert own not in options or expected & {own, *ends}, "the tokenizer's own end is none elsewhere"
            marked = sorted(expected & tokenizer.control_literals.keys())
            token = rng.choice(marked if marked and rng.random() < 0.4 else sorted(expected))
            assert ours.advance(token) and theirs.consume_tokens([token])
            taken += 1
            back = rng.randint(1, taken) if token in ends else rng.choice((0, 0, 0, min(2, taken)))
            ours.rollback(back)
            assert theirs.rollback(back)
            taken -= back


def lark_of(schema: Any) -> str:
    return guidance.write(Grammar(JsonSchema(schema, ORIGIN)), VOCABULARY)


def lists(*lengths: float, key: str = "maxItems") -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "array", key: most} for i, most in enumerate(lengths)}}


def keys(count: int, *required: str, start: str = "p") -> dict[str, Any]:
    named = {f"{start}{i}": {"type": "null"} for i in range(count)}
    return {"type": "object", "properties": named, "required": [*required]}


def many(objects: int, count: int) -> list[dict[str, Any]]:
    return [keys(count, start=f"k{i}_") for i in range(objects)]


def nested(key: str, inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: inner}, "required": [key], "additionalProperties": False}


LIST = {"type": "array", "maxItems": 9_000}
REFERRED = {"$ref": "#/$defs/a", "default": None}
#: As many as there is room for: 7 entries for an open object, and 4 for each.
MOST = (guidance.MOST_ENTRIES - 7) // 4
#: In a row of llguidance 1.7.6 they have 2,484, 4,140, 4,821, 4,807, 3,207, 16,220, 3,621, 3,000 and 3,600 entries.
TOO_MANY: list[Any] = [
    {"anyOf": many(12, 50)},
    {"oneOf": many(20, 50)},
    {"anyOf": many(3, 400)},
    {"allOf": many(3, 400)},
    {**REFERRED, "$defs": {"a": keys(400)}, **keys(400, start="k")},
    {**keys(200), "anyOf": [{"properties": {f"z{i}": {}}} for i in range(20)]},
    {"anyOf": [nested("a", inner) for inner in many(3, 300)]},
    {"anyOf": many(200, 2)},
    {"anyOf": [{"type": "array", "items": {"const": i}} for i in range(600)]},
]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (lists(guidance.MOST_ITEMS + 1), "#/properties/p0 makes lists"),
        (lists(10**9, key="minItems"), "#/properties/p0 makes lists"),
        (lists(1e9), "#/properties/p0 makes lists"),
        (lists(*[guidance.MOST_ITEMS // 2] * 3), "# makes lists"),
        ({"anyOf": [{"items": {"a/b": 1}}, lists(10**300)]}, "#/anyOf/1/properties/p0 makes lists"),
        (
            {"$defs": {"a/b": lists(10**5)}, "items": {"$ref": "#/$defs/a~1b"}},
            "#/$defs/a~1b/properties/p0 makes lists have",
        ),
        ({"$defs": {"a": LIST}, "prefixItems": [LIST, REFERRED]}, "# makes lists"),
        ({**lists(5000, -5000), "maxItems": 6000, "minItems": -6000}, "# makes lists"),
        ({"maxItems": 5000, "anyOf": [{"items": {"const": i}} for i in range(20)]}, "# makes lists"),
        ({"$defs": {"a": LIST}, "anyOf": [{**REFERRED, "minItems": i} for i in range(20)]}, "# makes lists"),
        (keys(MOST + 1), "# has too many optional properties"),
        ({"items": keys(MOST + 3, "p0")}, "#/items has too many optional properties"),
        *((schema, "# has too many optional properties") for schema in TOO_MANY),
    ],
)
def test_a_schema_beyond_the_bounds_is_refused_by_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        lark_of(schema)
    assert f"{ORIGIN} cannot be enforced by vLLM's guidance backend: {pointer}" in caught.value.message
    assert caught.value.param == ORIGIN


@pytest.mark.parametrize(
    "schema",
    [
        lists(guidance.MOST_ITEMS // 2, guidance.MOST_ITEMS // 2),
        lists(9_000, -9_000, 900),
        {"$defs": {"a": LIST}, "prefixItems": [REFERRED] * 20},
        {"$defs": {"unused": lists(10**9)}, "default": {"maxItems": 10**9}},
        keys(MOST),
        keys(MOST + 2, "p0", "p1"),
        {"anyOf": many(9, 50)},
        {"anyOf": [nested(f"a{i}", inner) for i, inner in enumerate(many(12, 50))]},
        {"$defs": {"a": {**keys(3), "anyOf": [{"items": REFERRED}, REFERRED]}}, "anyOf": [REFERRED, *many(1, 300)]},
        {"anyOf": [{"const": f"v{i}"} for i in range(1_900)]},
        {"properties": {"maxItems": {"type": "null"}, "properties": {"type": "null"}}, "required": 7},
        True,
    ],
)
def test_a_schema_within_the_bounds_is_written(schema: Any) -> None:
    assert lark_of(schema).startswith("start: ")


def test_every_tool_of_a_request_counts() -> None:
    tools = [
        {"type": "function", "function": {"name": f"t{i}", "parameters": lists(guidance.MOST_ITEMS // 2)}}
        for i in range(3)
    ]
    for name in ("kimi_k25", "glm45", "pythonic"):
        grammar = dovetail.format(name).grammar(tools)
        assert grammar is not None
        control = {literal: number for number, literal in enumerate(("[end]", "<|python_start|>", "<|python_end|>"))}
        with pytest.raises(SchemaRefused, match="makes lists have more than 10,000 items in all"):
            guidance.write(grammar, Vocabulary(100, (0,), control))
