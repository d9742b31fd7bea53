"""Law 11 for the matcher: whichever allowed tokens are chosen, the call is valid."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.completion import Constraint
from dovetail.errors import CheckpointError, EngineError, InvalidRequest, SchemaRefused
from dovetail.events import Call, Message
from dovetail.grammar import FreeText, Grammar, JsonSchema
from dovetail.grammar.matcher import compile
from dovetail.grammar.schemas import bounds
from dovetail.tokens import Tokenizer
from tests.examples import examples

FMT = dovetail.format("kimi_k25")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get_weather", SCHEMA), tool("ns.do-it", None)]


def eos(tokenizer: Tokenizer) -> int:
    return tokenizer.control["<|im_end|>"]


def constraint(tokenizer: Tokenizer, tools: list[dict[str, Any]] = TOOLS, **options: Any) -> Constraint:
    grammar = FMT.grammar(tools, **options)
    assert grammar is not None
    return compile(grammar, tokenizer, [eos(tokenizer)])


def allowed(matcher: Constraint, tokenizer: Tokenizer) -> set[int]:
    row = bytearray(4 * ((tokenizer.vocab_size + 31) // 32))
    matcher.fill(memoryview(row))
    return {token for token in range(tokenizer.vocab_size) if row[token // 8] >> (token % 8) & 1}


def allows(matcher: Constraint, ids: list[int]) -> bool:
    return all(matcher.advance(token) for token in ids)


# Keys in the order in which the declaration shows them: required first, each group sorted. llguidance's strings know
# only the escapes that JSON needs, and DEL only as one (docs/decisions/0004).
valid_arguments = st.fixed_dictionaries(
    {"city": st.text(st.characters(exclude_characters="\x7f", codec="utf-8"), max_size=8), "days": st.integers(0, 9)},
    optional={"tags": st.lists(st.booleans(), max_size=2), "unit": st.sampled_from("cf")},
).map(lambda drawn: {key: drawn[key] for key in ("city", "days", "tags", "unit") if key in drawn})


@given(st.lists(valid_arguments, max_size=3), st.booleans(), st.text(max_size=10), st.sampled_from(("names", "schema")))
def test_written_calls_are_accepted_and_read_back(
    small_tokenizer: Tokenizer, made: list[dict[str, Any]], thinking: bool, text: str, strict: str
) -> None:
    calls = tuple(
        Call(f"functions.get_weather:{i}", "get_weather", json.dumps(a, ensure_ascii=False)) for i, a in enumerate(made)
    )
    sent = Message(text, text if thinking else "", calls)
    prompt = FMT.write(sent, thinking=thinking)
    made_of = constraint(small_tokenizer, thinking=thinking, strict=strict)
    assert allows(made_of, prompt.ids(small_tokenizer)) == sent.says_something
    reader = FMT.reader(TOOLS, thinking=thinking, tokenizer=small_tokenizer)
    assert dovetail.fold([*reader.feed("", prompt.ids(small_tokenizer)), *reader.finish()]) == sent


@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(("auto", "required")))
@examples(60)
def test_any_allowed_walk_is_a_valid_message(
    small_tokenizer: Tokenizer, seed: int, thinking: bool, choice: str
) -> None:
    """Random weights: the walk picks among the allowed tokens blindly, but likes control tokens so that it ends."""
    rng = random.Random(seed)
    matcher = constraint(small_tokenizer, thinking=thinking, tool_choice=choice)
    ids: list[int] = []
    while eos(small_tokenizer) not in ids and len(ids) < 600:
        options = sorted(allowed(matcher, small_tokenizer))
        controls = [token for token in options if token in small_tokenizer.control_literals]
        closers = [token for token in options if small_tokenizer.token_bytes(token) in (b'"', b"}", b"]", b"1", b"e")]
        token = rng.choice(rng.choice([pool for pool in (options, controls, closers, closers) if pool]))
        assert matcher.advance(token)
        ids.append(token)
    if eos(small_tokenizer) not in ids:
        return
    reader = FMT.reader(TOOLS, thinking=thinking, tokenizer=small_tokenizer)
    message = dovetail.fold([*reader.feed("", ids), *reader.finish()])
    assert not message.defects or {d.kind for d in message.defects} == {"duplicate_id"}
    assert choice == "auto" or message.calls
    for call in message.calls:
        schema = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}[call.name]
        jsonschema.validate(json.loads(call.arguments), schema or {"type": "object"})


@pytest.mark.parametrize(
    ("name", "arguments", "ok"),
    [
        ("get_weather", '{"city": "x", "days": 3}', True),
        ("get_weather", '{"city":"x","days":3}', True),
        ("get_weather", '{"city": "x"}', False),
        ("get_weather", '{"city": "x", "days": "3"}', False),
        ("get_weather", '{"city": "x", "days": 10}', False),
        ("get_weather", '{"city": "x", "days": 3, "more": 1}', False),
        ("get_weather", "[]", False),
        ("ns.do-it", '{"anything": [1]}', True),
        ("get_weathers", '{"city": "x", "days": 3}', False),
        ("rm", "{}", False),
    ],
)
def test_only_declared_names_and_valid_arguments(
    small_tokenizer: Tokenizer, name: str, arguments: str, ok: bool
) -> None:
    ids = FMT.write(Message("", "", (Call(f"functions.{name}:0", name, arguments),)), thinking=False).ids(
        small_tokenizer
    )
    assert allows(constraint(small_tokenizer, thinking=False), ids) is ok


def test_levels_and_choices(small_tokenizer: Tokenizer) -> None:
    def accepts(name: str, arguments: str, **options: Any) -> bool:
        content = "" if isinstance(options.get("tool_choice"), dict) else "hm"  # a named call comes at once
        sent = Message(content, "", (Call(f"functions.{name}:0", name, arguments),) if name else ())
        ids = FMT.write(sent, thinking=False).ids(small_tokenizer)
        return allows(constraint(small_tokenizer, thinking=False, **options), ids)

    assert accepts("get_weather", '{"wrong": 1}', strict="names")
    assert not accepts("get_weather", '{"wrong": 1}', strict="schema")
    assert not accepts("", "", tool_choice="required")
    assert accepts("", "", tool_choice="none")
    assert not accepts("ns.do-it", "{}", tool_choice="none")
    named = {"type": "function", "function": {"name": "ns.do-it"}}
    assert accepts("ns.do-it", "{}", tool_choice=named)
    assert not accepts("get_weather", '{"city": "x", "days": 3}', tool_choice=named)
    two = Message("", "", tuple(Call(f"functions.ns.do-it:{i}", "ns.do-it", "{}") for i in (0, 1)))
    ids = FMT.write(two, thinking=False).ids(small_tokenizer)
    assert allows(constraint(small_tokenizer, thinking=False), ids)
    assert not allows(constraint(small_tokenizer, thinking=False, parallel_tool_calls=False), ids)


def test_no_grammar_without_a_constraint() -> None:
    assert FMT.grammar([]) is None
    assert FMT.grammar(TOOLS, strict="off") is None
    assert FMT.grammar(TOOLS, strict="off", tool_choice="required") == FMT.grammar(
        TOOLS, strict="names", tool_choice="required"
    )
    with pytest.raises(InvalidRequest, match="required"):
        FMT.grammar([], tool_choice="required")
    with pytest.raises(InvalidRequest, match="'nope'"):
        FMT.grammar(TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}})
    with pytest.raises(InvalidRequest, match="tool_choice must be"):
        FMT.grammar(TOOLS, tool_choice="sometimes")


@given(st.integers(0, 40), st.integers(1, 20))
@examples(40)
def test_rollback_restores_the_state(small_tokenizer: Tokenizer, start: int, count: int) -> None:
    sent = Message("ok", "", (Call("functions.get_weather:0", "get_weather", '{"city": "Paris", "days": 3}'),))
    ids = FMT.write(sent, thinking=False).ids(small_tokenizer)[:-1]
    head, tail = ids[: start % len(ids)], ids[start % len(ids) :][:count]
    matcher = constraint(small_tokenizer, thinking=False)
    assert allows(matcher, head)
    before = allowed(matcher, small_tokenizer)
    assert allows(matcher, tail)
    matcher.rollback(len(tail))
    assert allowed(matcher, small_tokenizer) == before
    assert not matcher.advance(eos(small_tokenizer)) or eos(small_tokenizer) in before


@given(st.randoms(use_true_random=False), st.booleans(), st.sampled_from(("auto", "required")))
@examples(25)
def test_forced_tokens_are_allowed_and_change_nothing(
    small_tokenizer: Tokenizer, rng: random.Random, thinking: bool, choice: str
) -> None:
    constrained = constraint(small_tokenizer, thinking=thinking, tool_choice=choice)
    other = constraint(small_tokenizer, thinking=thinking, tool_choice=choice)
    accepted = 0
    for _ in range(80):
        forced = list(constrained.forced(99))
        assert constrained.forced(1) == forced[:1]
        assert allows(constrained, forced)
        if forced:
            constrained.rollback(len(forced))
        options = sorted(allowed(other, small_tokenizer))
        assert sorted(allowed(constrained, small_tokenizer)) == options
        controls = [token for token in options if token in small_tokenizer.control_literals]
        token = forced[0] if forced and rng.random() < 0.7 else rng.choice(controls or options)
        assert constrained.advance(token)
        assert other.advance(token)
        accepted += 1
        if token == eos(small_tokenizer):
            assert not constrained.forced(5)
            constrained.rollback(1)
            other.rollback(1)
            accepted -= 1
        if accepted and rng.random() < 0.2:
            count = rng.randint(1, min(accepted, 4))
            constrained.rollback(count)
            other.rollback(count)
            accepted -= count


def test_names_keys_and_markers_are_forced(small_tokenizer: Tokenizer) -> None:
    sent = Message("", "", (Call("functions.get_weather:0", "get_weather", '{"city": "x", "days": 3}'),))
    ids = FMT.write(sent, thinking=False).ids(small_tokenizer)
    matcher = constraint(small_tokenizer, thinking=False)
    assert not matcher.forced(9)  # free text, or a call
    right = 0
    for place, token in enumerate(ids):
        forced = list(matcher.forced(9))
        right += bool(forced)
        assert forced == ids[place : place + len(forced)]
        assert matcher.advance(token)
    assert right > len(ids) / 4


def test_nothing_is_forced_after_another_spelling(
    small_tokenizer: Tokenizer,
) -> None:
    def spelled(text: str) -> list[int]:
        return [small_tokenizer.encode(letter)[0] for letter in text]

    matcher = constraint(small_tokenizer, thinking=False)
    head = FMT.write(Message("", "", (Call("functions.get", "", ""),)), thinking=False).ids(small_tokenizer)
    assert allows(matcher, head[: head.index(small_tokenizer.encode("get")[0]) + 1])
    forced = list(matcher.forced(99))
    assert forced == small_tokenizer.encode("_weather:")
    assert len(forced) == 3
    assert allows(matcher, spelled("_"))
    assert matcher.forced(1) == forced[1:2]
    assert allows(matcher, spelled("w"))
    assert not matcher.forced(99)
    assert allows(matcher, spelled("e"))
    assert b"".join(map(small_tokenizer.token_bytes, matcher.forced(99))) == b"ather:"
    matcher.rollback(2)
    assert matcher.forced(99) == forced[1:]


def test_an_end_of_turn_outside_the_tokenizer_is_a_checkpoint_error(small_tokenizer: Tokenizer) -> None:
    size = small_tokenizer.vocab_size
    complaint = f"eos_token_id {size} of the checkpoint is not among its tokenizer's {size} tokens"
    with pytest.raises(CheckpointError, match=complaint):
        compile(Grammar(FreeText()), small_tokenizer, (1, size))


def test_a_row_for_a_larger_vocabulary_forbids_the_rest(small_tokenizer: Tokenizer) -> None:
    row = bytearray(b"\xff" * 4 * 64)
    constraint(small_tokenizer).fill(memoryview(row))
    assert not any(row[small_tokenizer.vocab_size // 8 + 1 :])


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": 3},
        {"properties": {"a": {"type": "string", "pattern": "("}}},
        {"$ref": "#/nowhere"},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(small_tokenizer: Tokenizer, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaRefused, match="cannot be enforced") as caught:
        strict = {"name": "broken", "parameters": schema, "strict": True}
        constraint(small_tokenizer, [TOOLS[0], {"type": "function", "function": strict}])
    assert caught.value.param == "tools[1].function.parameters"
    constraint(small_tokenizer, [TOOLS[0], tool("broken", schema)], strict="names")


def test_the_real_vocabulary(kimi_tokenizer: Tokenizer) -> None:
    sent = Message("é漢", "", (Call("functions.get_weather:0", "get_weather", '{"city": "東京🙂", "days": 3}'),))
    ids = FMT.write(sent, thinking=False).ids(kimi_tokenizer)
    assert allows(constraint(kimi_tokenizer, thinking=False), ids)


POISON = {"type": "object", "properties": {"s": {"type": "string", "pattern": "(.*a.{20}){2}|(.*b.{19}c.*){3}"}}}


@pytest.fixture(scope="module")
def demo_tokenizer() -> Tokenizer:
    return dovetail.tokenizer(Path(dovetail.__file__).parent / "data" / "demo" / "target")


def test_a_grammar_that_outgrows_the_library_fails_alone(demo_tokenizer: Tokenizer) -> None:
    """Its regex grows with every a and b until the library gives up: that must not look like the end of the turn."""
    arguments = json.dumps({"s": "a cab back at the abacus, a bad cab; " * 8})
    sent = Message("", "", (Call("functions.f:0", "f", arguments),))
    matcher = constraint(demo_tokenizer, [tool("f", POISON)], thinking=False)
    with pytest.raises(EngineError, match="cannot go on"):
        for token in FMT.write(sent, thinking=False).ids(demo_tokenizer):
            assert token in allowed(matcher, demo_tokenizer)
            assert matcher.advance(token)
    assert len(allowed(constraint(demo_tokenizer, [tool("f", POISON)], thinking=False), demo_tokenizer)) > 100


def test_a_rejected_draft_that_breaks_the_library_leaves_nothing_behind(demo_tokenizer: Tokenizer) -> None:
    head = FMT.write(Message("", "", (Call("functions.f:0", "f", '{"s": "'),)), thinking=False).ids(demo_tokenizer)[:-3]
    matcher = constraint(demo_tokenizer, [tool("f", POISON)], thinking=False)
    assert allows(matcher, head)
    before = allowed(matcher, demo_tokenizer)
    accepted = 0
    with pytest.raises(EngineError):
        for token in demo_tokenizer.encode("a cab back at the abacus, a bad cab; " * 8):
            accepted += matcher.advance(token)
            allowed(matcher, demo_tokenizer)
    assert not matcher.forced(5)
    matcher.rollback(accepted)
    assert allowed(matcher, demo_tokenizer) == before


def _chain(length: int, deep: int = 1) -> dict[str, Any]:
    """Definitions that refer to each other in a row, each from `deep` objects down."""

    def wrapped(name: str) -> dict[str, Any]:
        schema: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
        for _ in range(deep):
            schema = {"type": "object", "properties": {"a": schema}}
        return schema

    definitions = {f"d{i}": wrapped(f"d{i + 1}") for i in range(length - 1)}
    return {**wrapped("d0"), "$defs": {**definitions, f"d{length - 1}": {"type": "string"}}}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return {"properties": {"a/b~": schema}}


def _named(*counts: int) -> dict[str, Any]:
    properties, required = counts
    return {"properties": {f"p{i}": {} for i in range(properties)}, "required": [f"r{i}" for i in range(required)]}


def _property(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def _both(*divisors: float) -> dict[str, Any]:
    return {"type": "integer", "allOf": [{"multipleOf": divisor} for divisor in divisors]}


BOUNDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (_chain(bounds.MAX_REFERENCES), _chain(2_500), "#/$defs"),
    (_chain(30, 20), _chain(70, 20), "#/$defs"),
    (_nested(50), _nested(120), "#/properties/a~1b~0/items/"),
    (_nested(50), _nested(250), "#/properties/a~1b~0/items/"),
    (_named(900, 2_000), _named(20_000, 0), "# makes more than"),
    (_named(10, 0), _named(10, 20_000), "# makes more than"),
    (_property({"enum": [*range(5_000)]}), _property({"enum": [*range(30_000)]}), "#/properties/a/enum"),
    (_property({"anyOf": [{"const": 1}] * 500}), _property({"anyOf": [{"const": 1}] * 5_000}), "#/properties/a makes"),
    (_property({"multipleOf": 10_007}), _property({"multipleOf": 999_999_937}), "#/properties/a/multipleOf"),
    (_property({"multipleOf": 0.025}), _property({"multipleOf": 1.00003}), "#/properties/a/multipleOf"),
    (_property({"multipleOf": 10**6}), _property({"multipleOf": 10**5_000}), "#/properties/a/multipleOf"),
    (_property(_both(97, 89)), _property(_both(9_973, 9_967)), "#/properties/a/allOf/"),
    (_property(_both(*[3] * 30)), _property({"anyOf": [{"multipleOf": 9_001}] * 200}), "#/properties/a/anyOf/"),
    (_property({"multipleOf": True}), _property({"required": [*range(9)], "multipleOf": 10**9 - 1}), "#/properties/a/"),
]


@pytest.mark.parametrize(("fine", "too_much", "pointer"), BOUNDS)
def test_a_schema_out_of_bounds_is_refused_by_pointer(
    small_tokenizer: Tokenizer, fine: dict[str, Any], too_much: dict[str, Any], pointer: str
) -> None:
    bounds.check([JsonSchema(fine, "here")])
    with pytest.raises(SchemaRefused, match="cannot be enforced") as caught:
        constraint(small_tokenizer, [TOOLS[0], tool("large", too_much)])
    assert caught.value.param == "tools[1].function.parameters"
    assert f"parameters cannot be enforced: {pointer}" in caught.value.message
    assert len(caught.value.message) < 600


def test_constants_are_not_read_as_schemas() -> None:
    values = {"required": [str(i) for i in range(9_000)], "multipleOf": 999_999_937}
    fine = {"default": values, "properties": {"enum": {"const": values}, "multipleOf": {"examples": [values]}}}
    bounds.check([JsonSchema(fine, "here")])


def test_too_many_tools_are_refused(small_tokenizer: Tokenizer) -> None:
    bounds.check(JsonSchema({}, f"tools[{i}]") for i in range(bounds.MAX_TOOLS))
    with pytest.raises(SchemaRefused, match="more than 1000 tools") as caught:
        constraint(small_tokenizer, [tool(f"t{i}", {}) for i in range(bounds.MAX_TOOLS + 1)])
    assert caught.value.param == "tools"


def test_real_schemas_are_within_the_bounds(shared_data: Path) -> None:
    for path in sorted((shared_data / "schemas" / "walle").rglob("valid.jsonl")):
        for line in path.read_text().splitlines():
            bounds.check([JsonSchema({"properties": {"a": json.loads(line)}}, "here")])
