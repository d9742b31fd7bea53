"""Both writers spell the same grammar: xgrammar allows with the tag what llguidance allows with the Lark text.

Each known difference of the libraries has a test of its own, which fails when the difference goes away.
"""

from __future__ import annotations

import functools
import json
import random
import re
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.events import Call, Message, fold
from dovetail.formats.base import Format
from dovetail.grammar import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Grammar,
    Index,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherName,
    Regex,
    Repeat,
    TextUntil,
    VisibleText,
)
from dovetail.grammar.matcher import compile
from dovetail.tokens import Tokenizer
from tests.conftest import SHARED
from tests.examples import examples, proof_but
from tests.grammar.test_formats import WITH
from tests.grammar.test_matcher import tool
from tests.grammar.test_parameters import TAGGED
from tests.reading import families
from tests.reading.test_vectors import READ_BY

pytestmark = pytest.mark.slow

xgrammar = pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")

#: Without lengths of strings, which a tag does not enforce.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [tool("get_weather", SCHEMA), tool("ns.do-it", None)]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@functools.cache
def compiler(tokenizer: Tokenizer, ends: tuple[int, ...], hidden: bool) -> Any:
    """xgrammar's compiler with its cache, as engines make it. `hidden`: it does not see the characters of control
    tokens."""
    return xgrammar.GrammarCompiler(vocabulary(tokenizer, ends, hidden))


def vocabulary(tokenizer: Tokenizer, ends: tuple[int, ...], hidden: bool) -> Any:
    spelled = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    if hidden:
        for token in tokenizer.control_literals:
            spelled[token] = b"\xff" + spelled[token]
    return xgrammar.TokenizerInfo(spelled, stop_token_ids=list(ends))


class Both:
    """A matcher of each library for one grammar."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, ends: tuple[int, ...], *, hidden: bool = True) -> None:
        self.ends = ends
        self.first = compile(grammar, tokenizer, ends)
        tag = json.dumps(grammar.structural_tag(tokenizer.control, tokenizer.blanks))
        # Engines read a tag before they have a tokenizer.
        xgrammar.Grammar.from_structural_tag(tag)
        self.second = xgrammar.GrammarMatcher(compiler(tokenizer, ends, hidden).compile_structural_tag(tag))

    def advance(self, token: int) -> tuple[bool, bool]:
        return self.first.advance(token), self.second.accept_token(token)

    def rollback(self, first: bool, second: bool) -> None:
        self.first.rollback(int(first))
        self.second.rollback(int(second))

    def accepted_counts(self, ids: list[int]) -> tuple[int, int]:
        """How many of `ids` each matcher accepts."""
        counts = [0, 0]
        for i, take in enumerate((self.first.advance, self.second.accept_token)):
            while counts[i] < len(ids) and take(ids[counts[i]]):
                counts[i] += 1
        return counts[0], counts[1]


def of_format(name: str, **options: Any) -> Both:
    fmt, tokenizer, ends = parts(name)
    grammar = fmt.grammar(options.pop("tools", TOOLS), **options)
    assert grammar is not None
    return Both(grammar, tokenizer, ends)


def parts(name: str) -> tuple[Format, Tokenizer, tuple[int, ...]]:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    return fmt, tokenizer, tuple(tokenizer.control[literal] for literal in fmt.end_of_turn)


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text in which a control token's literal is that token."""
    literals = re.compile(f"({'|'.join(map(re.escape, sorted(tokenizer.control, key=len, reverse=True)))})")
    ids: list[int] = []
    for i, piece in enumerate(literals.split(text)):
        ids += [tokenizer.control[piece]] if i % 2 else tokenizer.encode(piece)
    return ids


# -- node by node -----------------------------------------------------------------------------------------------------

SMALL = families.PieceTokenizer(("<A>", "<B>", "<end>"), ("ab", "<A>"))
A, B, SOME_TEXT, CALL = (
    ControlToken("<A>"),
    ControlToken("<B>"),
    FreeText(),
    Concat((ControlToken("<A>"), ExactText("a"))),
)


NODES: list[Node] = [
    ExactText("ab"),
    ExactText(""),
    ExactText("a<A>"),
    A,
    SOME_TEXT,
    Index(),
    Concat(()),
    Concat((SOME_TEXT, A, SOME_TEXT)),
    Concat((SOME_TEXT, Maybe(Concat((A, ExactText("a"), B))))),
    Concat((Maybe(Concat((SOME_TEXT, A))), SOME_TEXT)),
    VisibleText(),
    VisibleText(("<A>",)),
    Choice((Concat((Maybe(Regex("[ ]+")), A)), Concat((VisibleText(), Maybe(A))))),
    Choice((A, Concat((A, B)), ExactText("ab"))),
    Repeat(CALL),
    Concat((Repeat(CALL), B)),
    Concat((A, Repeat(Concat((Maybe(B), ExactText("a")))))),
    Concat((A, JsonSchema({"type": "integer", "minimum": 1}, "x"), B)),
    Concat((A, JsonSchema({"enum": ["a", 1, 10, True]}, "x"), B)),
    Concat((TextUntil("b"), A)),
    Concat((TextUntil(""), A)),
    Choice((SOME_TEXT, Concat((TextUntil("a"), A, ExactText("b"))))),
    Concat((TextUntil("<A>", ("<A>",)), A)),
    Concat((TextUntil("b<A>", ("<A>",)), ExactText("b"))),
    TextUntil("", ("<A>",)),
    Concat((TextUntil("b", schema={"pattern": "^a+b?$"}), A)),
    Concat((TextUntil("", schema={"pattern": "0|^a"}, words=("b", "1")), A)),
    Concat((TextUntil("<A>", ("<A>",), {"pattern": "^[a-b]*$"}), B)),
    Concat((TextUntil("<A>", ("<A>",), words=("a",)), B)),
    Concat((OtherName(), A)),
    Concat((OtherName(("a", "ab", "b0")), ExactText('"'))),
    Choice((Concat((ExactText("ab"), ExactText('"'))), Concat((OtherName(("ab",)), ExactText('"'))))),
    Loosened(Concat((A, B)), "x", ("#/not",)),
    Choice(tuple(map(ExactText, ("a", "ab", "0", "")))),
]


@pytest.mark.parametrize("root", NODES, ids=repr)
def test_both_writers_of_every_node_allow_the_same(root: Node) -> None:
    """Every short sequence of tokens, as far as a library accepts it."""
    tokens = [*(SMALL.encode(text)[0] for text in ("a", "b", "ab", "<A>", "0", "1", '"', " ")), *SMALL.control.values()]
    end = SMALL.control["<end>"]
    both = Both(Grammar(root), SMALL, (end,))
    accepted = 0

    def walk(depth: int) -> None:
        nonlocal accepted
        for token in tokens:
            first, second = both.advance(token)
            assert first == second
            if first:
                accepted += token == end
                if depth and token != end:
                    walk(depth - 1)
                both.rollback(first, second)

    walk(4)
    assert accepted


def test_a_control_token_needs_an_id() -> None:
    with pytest.raises(ValueError, match="'<A>' has no id"):
        Grammar(A).structural_tag({})


# -- every family -----------------------------------------------------------------------------------------------------

_words = st.text(st.sampled_from("abz 09_-.,:;!/{}[]()'<>&é🙂"), max_size=8)
_arguments = st.fixed_dictionaries(
    {"city": _words, "days": st.integers(0, 9)},
    optional={"tags": st.lists(st.booleans(), max_size=2), "unit": st.sampled_from("cf")},
)
_options = st.fixed_dictionaries(
    {
        "thinking": st.booleans(),
        "strict": st.sampled_from(("off", "names", "schema")),
        "tool_choice": st.sampled_from(("auto", "none", "required", NAMED)),
        "parallel_tool_calls": st.booleans(),
    }
).filter(lambda drawn: drawn["strict"] != "off" or drawn["tool_choice"] != "auto")
_layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4, "separators": (" ,", " : ")}])


@st.composite
def _written(draw: st.DrawFn, name: str, thinking: bool) -> list[int]:
    """The ids of what the family writes for valid calls."""
    fmt, tokenizer, _ = parts(name)
    order = list(fmt.shown_order(SCHEMA)["properties"])
    layout = draw(_layouts)
    calls = []
    for i, made in enumerate(draw(st.lists(_arguments, max_size=1 if name in families.ONE_CALL else 3))):
        arguments = {key: made[key] for key in order if key in made}
        spelling = json.dumps(arguments, ensure_ascii=False, **layout)
        calls.append(Call(f"functions.get_weather:{i}", "get_weather", spelling))
    reasoning = draw(_words) if thinking and fmt.reasoning != "none" else ""
    return fmt.write(Message(draw(_words), reasoning, tuple(calls)), thinking=thinking).ids(tokenizer)


@pytest.mark.parametrize("name", WITH)
@given(data=st.data(), options=_options)
@examples(15)
def test_both_allow_what_a_format_writes(name: str, data: st.DataObject, options: dict[str, Any]) -> None:
    ids = data.draw(_written(name, options["thinking"]))
    first, second = of_format(name, **options).accepted_counts(ids)
    assert first == second
    if options["tool_choice"] == "auto" and options["parallel_tool_calls"]:
        assert first == len(ids)


@pytest.mark.parametrize("name", WITH)
@given(data=st.data(), options=_options)
@examples(20)
def test_both_stop_where_it_goes_wrong(name: str, data: st.DataObject, options: dict[str, Any]) -> None:
    """Written outputs with tokens dropped, doubled, put elsewhere or made others. ASCII: free text in a tag takes any
    bytes, those of half a character too. Without tokens in which a tag ends and text begins, and without two new lines
    or five blanks in a row: the dialects differ there (docs/constraint.md)."""
    _, tokenizer, _ = parts(name)
    plain = {
        token
        for token in range(tokenizer.vocab_size)
        if token in tokenizer.control_literals or re.fullmatch(rb"[\0-=?-\x7f]*>?", tokenizer.token_bytes(token))
    }
    ids = [token for token in data.draw(_written(name, options["thinking"])) if token in plain]
    others = st.sampled_from(ids) | st.sampled_from(sorted(tokenizer.control_literals)) | st.integers(32, 91)
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = data.draw(st.integers(0, len(ids) - 1)), data.draw(others)
        ids[at : at + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from(([], [other], [ids[at]] * 2)))
        if not ids:
            return
    text = b"".join(b"|" if token in tokenizer.control_literals else tokenizer.token_bytes(token) for token in ids)
    assume(not re.search(rb"\n\s*\n|\s{5}", text))
    first, second = of_format(name, **options).accepted_counts(ids)
    assert first == second


#: Parameters that both keep whole, with values.
_PARAMETERS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({}, _words | st.integers(0, 9)),
    ({"type": "string", "pattern": "^[a-b]+$"}, st.sampled_from(("a", "ab", "c", ""))),
    ({"type": "string", "format": "date"}, st.sampled_from(("2024-02-29", "2023-02-29"))),
    ({"type": ["string", "null"]}, _words | st.none()),
    ({"type": ["string", "integer"]}, _words | st.integers(0, 9)),
    ({"anyOf": [{"type": "string", "pattern": "^[a-b]+$"}, {"type": "null"}]}, st.sampled_from(("a", "n", None))),
    ({"enum": ["a", 3, None, "3", ""]}, st.sampled_from(("a", 3, None, "3", "", "b"))),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, st.sampled_from((3, None))),
    ({"type": "array", "items": {"$ref": "#/$defs/x"}}, st.sampled_from(([], ["a"], [{"a": ["b"]}], [1]))),
]
_X = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "array"}}}]}


@pytest.mark.parametrize("name", TAGGED)
@given(data=st.data())
@examples(20)
def test_both_allow_the_same_parameters(name: str, data: st.DataObject) -> None:
    """Written, and with one token dropped, doubled or made another."""
    fmt, tokenizer, ends = parts(name)
    declared = data.draw(st.dictionaries(st.sampled_from(("a", "ab", "b.c")), st.sampled_from(_PARAMETERS)))
    others = data.draw(st.sampled_from((False, True, {"type": "string"}, {"type": "integer"})))
    schema = {
        "type": "object",
        "properties": {key: schema for key, (schema, _) in declared.items()},
        "required": data.draw(st.sampled_from(([], list(declared)[:1], ["c"]))) if others else [],
        "additionalProperties": others,
        "$defs": {"x": _X},
    }
    grammar = fmt.grammar([tool("act", schema)], thinking=False)
    assert grammar is not None and not [*grammar.unenforced("structural_tag")]
    arguments = {key: data.draw(values) for key, (_, values) in declared.items() if data.draw(st.integers(0, 3))}
    arguments |= data.draw(st.sampled_from(({}, {"c": "x"}, {"c": 3}, {"abc": "y"})))
    sent = Message("", "", (Call("x", "act", json.dumps(arguments, ensure_ascii=False)),))
    ids = fmt.write(sent, thinking=False).ids(tokenizer)
    both = Both(grammar, tokenizer, ends)
    first, second = both.accepted_counts(ids)
    assert first == second
    plain = [token for token in ids if tokenizer.token_bytes(token).isascii()]
    at = data.draw(st.integers(0, len(plain) - 1))
    wrong = data.draw(st.sampled_from(([], [plain[at]] * 2, [data.draw(st.sampled_from(plain))], [*b"<"])))
    first, second = Both(grammar, tokenizer, ends).accepted_counts([*plain[:at], *wrong, *plain[at + 1 :]])
    assert first == second


@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("thinking", [True, False])
def test_both_allow_the_same_answers_of_a_response_format(name: str, thinking: bool) -> None:
    fmt, tokenizer, _ = parts(name)
    json_content = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    valid = '{"city": "P\\n\\"", "days": 3}'
    calls = (Call("functions.get_weather:0", "get_weather", '{"city": "x", "days": 1}'),)
    for content, made in ((valid, ()), ('{"days": 3}', ()), ("It is 3.", ()), ("", ()), ("", calls), ("So.", calls)):
        reasoning = "{" if thinking and fmt.reasoning != "none" else ""
        ids = fmt.write(Message(content, reasoning, made), thinking=thinking).ids(tokenizer)
        for choice in ("auto", "required", "none"):
            both = of_format(name, thinking=thinking, tool_choice=choice, response_format=json_content)
            first, second = both.accepted_counts(list(ids))
            assert first == second
            if content == valid:
                assert (first == len(ids)) is (choice != "required")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(READ_BY.values()) & set(WITH)))
def test_both_allow_as_much_of_what_models_wrote(name: str) -> None:
    path = SHARED / "vectors"
    if not path.is_dir():
        pytest.skip(f"the vectors of other engines ({path}) are not beside this checkout")
    _, tokenizer, ends = parts(name)
    whole = 0
    for source in sorted(kind for kind, reader in READ_BY.items() if reader == name):
        for case in json.loads((path / f"{source}.json").read_text()):
            text = case.get("model_text")
            tools = list({it["function"]["name"]: it for it in case.get("tools") or TOOLS}.values())
            if not text:
                continue
            ids = ids_of(text, tokenizer)
            if ids[-1] not in ends:
                ids.append(ends[0])
            for thinking, strict in product((True, False), ("names", "schema")):
                first, second = of_format(name, tools=tools, thinking=thinking, strict=strict).accepted_counts(ids)
                assert first == second, (case["name"], thinking, strict)
                whole += first == len(ids)
    assert whole


@pytest.mark.parametrize("name", proof_but(WITH, "kimi_k2", "hermes", "deepseek_v32", "harmony"))
def test_masks_do_not_depend_on_grammars_compiled_before(name: str) -> None:
    """Side by side with a compiler that keeps nothing, along what the masks allow."""
    fmt, tokenizer, ends = parts(name)
    cached, draws = compiler(tokenizer, ends, False), random.Random(0)
    forgets = xgrammar.GrammarCompiler(vocabulary(tokenizer, ends, False), cache_enabled=False)
    for thinking, strict, choice in product((True, False), ("names", "schema"), ("auto", "required", NAMED)):
        grammar = fmt.grammar(TOOLS, thinking=thinking, strict=strict, tool_choice=choice)
        assert grammar is not None
        tag = json.dumps(grammar.structural_tag(tokenizer.control, tokenizer.blanks))
        both = [xgrammar.GrammarMatcher(each.compile_structural_tag(tag)) for each in (cached, forgets)]
        masks = [xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size) for _ in both]
        for _ in range(60):
            for matcher, mask in zip(both, masks, strict=True):
                matcher.fill_next_token_bitmask(mask)
            assert masks[0].tolist() == masks[1].tolist(), (thinking, strict, choice)
            allowed = [i for i in range(tokenizer.vocab_size) if masks[0][0, i // 32].item() >> i % 32 & 1]
            controls = [token for token in allowed if token in tokenizer.control_literals]
            token = draws.choice(controls if controls and draws.random() < 0.5 else allowed)
            assert all(matcher.accept_token(token) for matcher in both)
            if token in ends:
                break


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
    ],
)
@pytest.mark.parametrize("reasoning", ["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"])
def test_both_allow_a_recipient_of_harmony_in_either_place(header: str, reasoning: str) -> None:
    fmt, tokenizer, _ = parts("harmony")
    arguments = '{"city": "x", "days": 1}'
    ids = ids_of(f"{reasoning}{header}<|message|>{arguments}<|call|>", tokenizer)
    assert of_format("harmony", thinking=True).accepted_counts(ids) == (len(ids), len(ids))
    reader = fmt.reader(TOOLS, tokenizer=tokenizer)
    read = fold([*reader.feed("", ids), *reader.finish()])
    assert [(call.name, call.arguments) for call in read.calls] == [("get_weather", arguments)]
    assert not read.defects
    for wrong in ("get_weathe", "rm", "get_weather_"):
        foreign = ids_of(f"{reasoning}{header.replace('get_weather', wrong)}<|message|>{arguments}<|call|>", tokenizer)
        first, second = of_format("harmony", thinking=True).accepted_counts(foreign)
        assert first == second < len(foreign)


@pytest.mark.parametrize("name", WITH)
def test_a_tag_is_no_deeper_than_engines_allow(name: str) -> None:
    """vLLM 0.32 takes 80 levels in all: room for a schema of 54, and one of 62 in the families that write it whole."""

    def depth(value: Any) -> int:
        """Levels around the deepest schema in it; 0 where there is none."""
        if isinstance(value, dict) and value.get("type") == "json_schema":
            return 1
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        deepest = max(map(depth, inner), default=0)
        return deepest and deepest + 1

    fmt, tokenizer, _ = parts(name)
    grammar = fmt.grammar(TOOLS)
    assert grammar is not None
    around = depth(grammar.structural_tag(tokenizer.control))
    assert around <= (18 if any(schema.at == "#" for schema in grammar.schemas()) else 26)


# -- JSON Schema ------------------------------------------------------------------------------------------------------

_BYTES = families.PieceTokenizer(("<end>", "<A>"), ("{}",))
_END = (_BYTES.control["<end>"],)
_OBJECT = {"type": "object"}
_INTEGER = {"type": "integer"}
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_A = {"properties": {"a": _INTEGER}}

#: Schemas with values that they allow and that they do not.
SCHEMAS: list[tuple[Any, list[Any], list[Any]]] = [
    ({}, [{}, {"a": 1}, [1, {"b": 2}], "x", 1.5, None, True], []),
    (_OBJECT, [{}, {"a": {"b": [1]}}], [1]),
    (_OBJECT | _A, [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2}], [{"a": "x"}, {"b": 1, "a": "x"}]),
    (_OBJECT | _A | {"required": ["b"]}, [{"b": 2}, {"a": 1, "b": 2}], [{}, {"a": 1}]),
    (_OBJECT | {"required": ["b"]}, [{"b": 2}], [{}, {"a": 1}]),
    (_OBJECT | _A | {"additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
    (_OBJECT | _A | {"additionalProperties": {"type": "string"}}, [{"b": "x"}, {"a": 1, "b": "x"}], [{"b": 1}]),
    (_OBJECT | {"properties": {"é": _INTEGER, "a": _INTEGER}}, [{"é": 1}], [{"a": 1, "é": "x"}]),
    (_OBJECT | {"minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    (_OBJECT | {"patternProperties": {"^a": _INTEGER}}, [{}, {"a": 1}], [{"a": "x"}]),
    (_OBJECT | {"patternProperties": {"^x": _INTEGER}} | _A, [{"a": 1}], [{"x": "x"}]),
    (_OBJECT | {"propertyNames": {"pattern": "^a"}}, [{}, {"ab": 1}], [{"b": 1}]),
    (_OBJECT | {"propertyNames": {"pattern": "^a"}, "properties": {"b": {}}}, [{}], [{"b": 1}]),
    (_OBJECT | {"dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}}, [{}], [{"a": 1}]),
    (_OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}} | _A, [{}], [{"a": 1}]),
    (_OBJECT | {"unevaluatedProperties": False} | _A, [{}, {"a": 1}], [{"b": 1}]),
    ({"type": "array"}, [[], [1, "x"]], [1]),
    ({"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
    ({"type": "array", "items": _INTEGER, "minItems": 1}, [[1], [1, 2]], [[], ["x"]]),
    ({"type": "array", "items": _INTEGER, "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    ({"type": "array", "items": _INTEGER, "uniqueItems": False}, [[1, 1]], [["x"]]),
    ({"type": "array", "prefixItems": [_INTEGER]}, [[1], [1, "x"]], [["x"]]),
    ({"type": "array", "prefixItems": [_INTEGER], "items": False}, [[1]], [[1, 2]]),
    ({"$schema": _DRAFT_7, "items": [_INTEGER], "additionalItems": False}, [[1], 1], [[1, 2]]),
    ({"$schema": _DRAFT_7, "items": [_INTEGER], "additionalItems": {"type": "string"}}, [[1, "x"]], [["x"], [1, 2]]),
    ({"type": "array", "contains": {"const": 1}}, [[1], [2, 1]], [[], [2]]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a\n", 'a"b'], ["a", "abcd"]),
    ({"type": "string", "pattern": "a"}, ["a", "xay"], ["b"]),
    ({"type": "string", "pattern": "^a"}, ["a", "ay"], ["ba"]),
    ({"type": "string", "pattern": "a|^b$|[$^]|c\\$$"}, ["xa", "b", "x^", "xc$"], ["bb", "c"]),
    ({"type": "string", "pattern": "x(^a|b)"}, ["xb"], ["xa"]),
    ({"type": "string", "pattern": "^a+$", "minLength": 2}, ["aa"], ["a", "b"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"]),
    ({"type": "integer", "minimum": 2, "exclusiveMaximum": 5}, [2, 4], [1, 5]),
    ({"type": "number", "minimum": 0.5, "maximum": 1.5}, [0.5, 1, 1.5], [0.4, 2]),
    ({"type": "integer", "multipleOf": 5, "minimum": 1}, [5], [7]),
    ({"type": "number", "multipleOf": 0.5}, [1.5], [0.7]),
    ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
    ({"type": "string", "enum": ["a", "b"]}, ["a"], ["c", 1]),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    ({"type": "integer", "const": 1}, [1], [2]),
    ({"minLength": 2, "minimum": 2, "minItems": 2}, ["ab", 2, [1, 2], {}, None], [1, [1]]),
    ({"required": ["a"]}, [{"a": 1}, 1, "x"], [{}]),
    ({"items": _INTEGER}, [[1], 1, "x"], [["x"]]),
    ({"type": ["string", "integer"], "minimum": 3}, ["a", 3], [2, None]),
    ({"anyOf": [{"type": "string"}, _INTEGER]}, ["a", 1], [None]),
    ({"anyOf": [{"type": "string"}, _INTEGER], "minimum": 2}, ["a", 2], [1]),
    (_OBJECT | _A | {"anyOf": [{"required": ["a"]}]}, [{"a": 1}], [{}, {"a": "x"}]),
    ({"oneOf": [{"type": "string"}, _INTEGER]}, ["a", 1], [None]),
    ({"allOf": [_INTEGER]}, [1], ["x"]),
    ({"allOf": [_INTEGER, {"minimum": 3}]}, [3], [1, "x"]),
    (_OBJECT | _A | {"allOf": [{"required": ["a"]}]}, [{"a": 1}], [{}, {"a": "x"}]),
    ({"not": {"type": "string"}}, [1], ["x"]),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, [1, "xx"], ["x"]),
    ({"$ref": "#/$defs/x", "$defs": {"x": _INTEGER}}, [1], ["x"]),
    ({"$ref": "#/$defs/x", "$defs": {"x": _INTEGER}, "minimum": 3}, [3], [1]),
    ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "integer"}}}, [1], ["x"]),
    (_OBJECT | {"properties": {"a": {"$ref": "#"}}}, [{}, {"a": {"a": {}}}], [{"a": 1}]),
    (_OBJECT | {"properties": {"x/y": {"items": {"not": {}}}}}, [{"x/y": []}], []),
]


def with_schema(schema: Any) -> Any:
    tag = Grammar(JsonSchema(schema, "x")).structural_tag(_BYTES.control)
    return compiler(_BYTES, _END, False).compile_structural_tag(json.dumps(tag))


def fits(compiled: Any, value: Any) -> bool:
    matcher = xgrammar.GrammarMatcher(compiled)
    text = json.dumps(value, ensure_ascii=False)
    return all(matcher.accept_token(token) for token in (*_BYTES.encode(text), *_END))


@pytest.mark.parametrize(("schema", "valid", "invalid"), SCHEMAS, ids=lambda it: json.dumps(it)[:60])
def test_keywords_that_a_tag_does_not_enforce_are_listed(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    draft = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = draft(schema, format_checker=jsonschema.FormatChecker())
    assert all(map(validator.is_valid, valid)) and not any(map(validator.is_valid, invalid))
    compiled = with_schema(schema)
    assert all(fits(compiled, value) for value in valid)
    if any(fits(compiled, value) for value in invalid):
        pointers = [pointer for _, pointer in Grammar(JsonSchema(schema, "x")).unenforced("structural_tag")]
        assert pointers


def test_pointers_to_unenforced_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a/b": {"type": "array", "uniqueItems": True, "items": {"anyOf": [{"not": {}}, {}], "title": "x"}},
            "c": {"type": "string", "multipleOf": 3, "format": "date", "pattern": "^2"},
        },
        "$defs": {"d~": {"allOf": [{}, {}]}, "e": {"not": {}}},
        "required": ["d"],
        "additionalProperties": {"$ref": "#/$defs/d~0"},
    }
    choice = Choice((JsonSchema(schema, "first"), JsonSchema({"not": {}}, "second"), JsonSchema(SCHEMA, "third")))
    assert list(Grammar(choice).unenforced("structural_tag")) == [
        ("first", "#/properties/a~1b/items/anyOf/0/not"),
        ("first", "#/properties/a~1b/uniqueItems"),
        ("first", "#/properties/c/pattern"),
        ("first", "#/$defs/d~0/allOf"),
        ("second", "#/not"),
    ]


# -- where they differ ------------------------------------------------------------------------------------------------


def test_a_visible_control_token_passes_for_its_text() -> None:
    root = Concat((JsonSchema({"type": "string"}, "x"), ControlToken("<A>")))
    ids = [*_BYTES.encode('"'), _BYTES.control["<A>"], *_BYTES.encode('"'), _BYTES.control["<A>"], *_END]
    assert Both(Grammar(root), _BYTES, _END, hidden=True).accepted_counts(ids) == (1, 1)
    assert Both(Grammar(root), _BYTES, _END, hidden=False).accepted_counts(ids) == (1, len(ids))
    # The end of the turn never does.
    ended = [*_BYTES.encode('"'), *_END]
    assert Both(Grammar(root), _BYTES, _END, hidden=False).accepted_counts(ended) == (1, 1)


@pytest.mark.parametrize(
    ("schema", "text", "llguidance_takes", "xgrammar_takes"),
    [
        ({}, r'"\u00e9"', False, True),
        ({}, r'"\/"', False, True),
        ({}, '"\x7f"', False, True),
        ({"items": _INTEGER}, "[-0]", True, False),
        ({"type": "string", "pattern": "^a.b$"}, '"b"', False, True),
        ({"type": "string", "pattern": "^[a-z]{0,101}$"}, '"A"', False, True),
        ({"type": "string", "maxLength": 1}, '"aa"', False, True),
        (_OBJECT | _A | {"properties": {"a": {}, "b": {}}}, '{"b": 1, "a": 1}', False, False),
        (_OBJECT | _A, '{"c": 1, "a": 1}', False, False),
    ],
)
def test_known_differences(schema: Any, text: str, llguidance_takes: bool, xgrammar_takes: bool) -> None:
    ids = [*_BYTES.encode(text), *_END]
    first, second = Both(Grammar(JsonSchema(schema, "x")), _BYTES, _END).accepted_counts(ids)
    assert (first == len(ids), second == len(ids)) == (llguidance_takes, xgrammar_takes)


@pytest.mark.parametrize(
    ("node", "text", "llguidance_takes", "xgrammar_takes", "lost"),
    [
        (TextUntil("</x>", ("</x>",), {"pattern": "^a+$", "maxLength": 1}, "x"), "aa</x>", False, True, ["maxLength"]),
        (TextUntil("</x>", ("</x>",), {"pattern": "^.$"}, "x"), "aa</x>", False, True, ["pattern"]),
        (TextUntil("", (), {"pattern": "^a", "format": "date"}, "x"), "b", False, True, ["pattern", "format"]),
        (TextUntil("", (), {"pattern": r"^\p{L}$"}, "x"), "3", False, True, ["pattern"]),
        (OtherName(), "a" * 65, False, True, []),
    ],
)
def test_known_differences_of_text(
    node: Node, text: str, llguidance_takes: bool, xgrammar_takes: bool, lost: list[str]
) -> None:
    ids = [*_BYTES.encode(text), *_END]
    first, second = Both(Grammar(node), _BYTES, _END).accepted_counts(ids)
    assert (first == len(ids), second == len(ids)) == (llguidance_takes, xgrammar_takes)
    assert [*Grammar(node).unenforced("structural_tag")] == [("x", f"#/{keyword}") for keyword in lost]


def test_a_token_that_ends_a_tag_and_begins_text_is_refused() -> None:
    tokenizer = families.PieceTokenizer(("<A>", "<end>"), (">]",))
    grammar = Grammar(Concat((ExactText("<b>"), FreeText(), ControlToken("<A>"))))
    both = functools.partial(Both, grammar, tokenizer, (tokenizer.control["<end>"],))
    straddling = tokenizer.encode("<b>]")
    assert len(straddling) == 3
    assert both().accepted_counts(straddling) == (3, 2)
    assert both().accepted_counts([*b"<b>]", tokenizer.control["<A>"]]) == (5, 5)


def test_half_a_surrogate_pair_passes_for_text() -> None:
    half = "é".encode()[:1]
    assert Both(Grammar(FreeText()), _BYTES, _END).accepted_counts([half[0], *_END]) == (1, 2)
