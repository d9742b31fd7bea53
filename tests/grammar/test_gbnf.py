"""GBNF allows what the other writers allow, without the control tokens in texts, and what it cannot say is listed."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.grammar import (
    Choice,
    ClientText,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Grammar,
    JsonSchema,
    Node,
    Regex,
    Repeat,
    RuleRef,
    Rules,
    TextUntil,
    VisibleText,
    numbers,
)
from dovetail.grammar.gbnf_json import spell
from dovetail.grammar.gbnf_text import MARKS, of_regex
from dovetail.grammar.matcher import compile
from dovetail.grammar.schemas.check import Checker
from tests.examples import examples, proof_but
from tests.grammar import test_lark_schema, test_tag_schema
from tests.grammar.gbnf import GbnfMatcher, accepts
from tests.grammar.test_formats import WITH
from tests.grammar.test_lark_schema import without
from tests.grammar.test_matcher import TOOLS, allows
from tests.grammar.test_silent import ASKED, ends_of, marks_of, read, walk
from tests.grammar.test_structural_tag import NODES, SMALL, _written
from tests.grammar.walks import BYTES, END, blindly
from tests.reading import families

A, B = ControlToken("<A>"), ControlToken("<B>")


def matcher_of(schema: Any) -> GbnfMatcher:
    return GbnfMatcher(Grammar(JsonSchema(schema, "x")), BYTES, END)


def takes(matcher: GbnfMatcher, text: str) -> bool:
    taken = 0
    whole = True
    for token in (*BYTES.encode(text), *END):
        if not matcher.advance(token):
            whole = False
            break
        taken += 1
    matcher.rollback(taken)
    return whole


# -- JSON Schemas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [(schema, valid, invalid) for schema, valid, invalid, *_ in (*test_tag_schema.SCHEMAS, *test_lark_schema.SCHEMAS)],
    ids=lambda it: json.dumps(it)[:60],
)
def test_valid_values_are_allowed_and_unenforced_keywords_listed(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    if spell(schema).schema is False:
        with pytest.raises(ValueError, match="no value is valid"):
            Grammar(JsonSchema(schema, "x")).gbnf({})
        return
    matcher = matcher_of(schema)
    assert [value for value in valid if not takes(matcher, json.dumps(value, ensure_ascii=False))] == []
    accepted = [value for value in invalid if takes(matcher, json.dumps(value, ensure_ascii=False))]
    assert bool(accepted) <= bool(spell(schema).unenforced)


@given(test_lark_schema.schemas, st.lists(test_lark_schema._values, min_size=1, max_size=8))
@examples(100)
def test_valid_values_are_allowed_by_any_schema(schema: dict[str, Any], values: list[Any]) -> None:
    """With one key at most: a grammar has them in one order."""
    valid = [value for value in values if Checker(schema, "here").fault(json.dumps(value)) is None]
    if valid:
        matcher = matcher_of(schema)
        assert [value for value in valid if not takes(matcher, json.dumps(value, ensure_ascii=False))] == []


@given(test_lark_schema.schemas, st.randoms(use_true_random=False))
@examples(60)
def test_keywords_that_are_not_listed_are_enforced_in_any_schema(schema: dict[str, Any], rng: random.Random) -> None:
    if spell(schema).schema is False:
        return
    matcher = matcher_of(schema)

    def allowed() -> list[int]:
        return [token for token in (*range(128), *END) if matcher.advance(token) and matcher.rollback(1) is None]

    text = blindly(allowed, matcher.advance, rng)
    if text is not None:
        remaining = without(schema, spell(schema).unenforced)
        assert Checker(remaining, "here").fault(text) is None, text


@given(st.integers(0, 10**16), st.integers(0, 10**16), st.integers(0, 10**16))
@examples(200)
def test_a_range_of_integers_is_exact(first: int, second: int, other: int) -> None:
    import re

    least, most = sorted((first, second))
    regex = re.compile(numbers.between(least, most))
    for value in (least, most, (least + most) // 2, least - 1, most + 1, other):
        if value >= 0:
            assert bool(regex.fullmatch(str(value))) == (least <= value <= most)


# -- nodes ------------------------------------------------------------------------------------------------------------


#: llama.cpp takes a control token for an exact text that spells it. No format has such a text.
_SPELLS_A = ("end='<A>'", "text='a<A>'", "end='b<A>'")


_EXACT = [
    node for node in NODES if not any(it in repr(node) for it in _SPELLS_A) and not [*Grammar(node).unenforced("gbnf")]
]


@pytest.mark.parametrize("root", _EXACT, ids=repr)
def test_every_node_allows_what_lark_allows(root: Node) -> None:
    """Every short sequence of tokens. Where the characters of a control token are spelled, GBNF may allow less."""
    spelled = SMALL.encode("<A>")[0]
    tokens = [*(SMALL.encode(text)[0] for text in ("a", "b", "ab", "<A>", "0", "1", '"', " ")), *SMALL.control.values()]
    end = SMALL.control["<end>"]
    lark, gbnf = compile(Grammar(root), SMALL, (end,)), GbnfMatcher(Grammar(root), SMALL, (end,))
    accepted = 0

    def visit(depth: int) -> None:
        nonlocal accepted
        for token in tokens:
            first, second = lark.advance(token), gbnf.advance(token)
            assert first == second or (first and token == spelled)
            if first and second:
                accepted += token == end
                if depth and token != end:
                    visit(depth - 1)
            lark.rollback(int(first))
            gbnf.rollback(int(second))

    visit(4)
    assert accepted


def test_a_text_excludes_what_the_grammars_control_tokens_spell() -> None:
    string = JsonSchema({"type": "object", "properties": {"ab": {"type": "string"}}}, "x")
    grammar = Grammar(Concat((FreeText(), A, string)))
    matcher = GbnfMatcher(grammar, SMALL, ())
    assert accepts(matcher, SMALL.encode("ab<AA <A"))
    assert not matcher.advance(SMALL.encode(">")[0])
    assert not matcher.advance(SMALL.control["<B>"])
    matcher = GbnfMatcher(grammar, SMALL, ())
    assert accepts(matcher, (*SMALL.encode("x"), SMALL.control["<A>"], *SMALL.encode('{"ab": "<')))
    assert not matcher.advance(SMALL.control["<A>"])
    assert accepts(matcher, SMALL.encode("A"))
    assert not matcher.advance(SMALL.encode(">")[0])
    matcher.rollback(1)
    assert accepts(matcher, SMALL.encode('\\nA>", "other<b": [], "a": 1}'))
    matcher = GbnfMatcher(grammar, SMALL, ())
    assert accepts(matcher, (SMALL.control["<A>"], *SMALL.encode('{"ab": "x", "')))
    assert accepts(matcher, SMALL.encode("ab"))
    assert not matcher.advance(SMALL.encode('"')[0])  # the declared key, once more


def test_rules_may_refer_to_themselves() -> None:
    rules = {"a_list": Concat((ExactText("["), Repeat(RuleRef("a_list"), 0, 2), ExactText("]")))}
    grammar = Grammar(Rules(RuleRef("a_list"), rules))
    for text, allowed in (("[]", True), ("[[][[]]]", True), ("[[][][]]", False), ("[", False)):
        matcher = GbnfMatcher(grammar, BYTES, END)
        assert accepts(matcher, (*BYTES.encode(text), *END)) == allowed


def test_a_client_grammar_is_a_regular_expression_or_listed() -> None:
    words = ClientText(Regex("[a-c]+"), FreeText(), "tools[0].custom", True, "</x>", ("</x>",))
    rules = ClientText(Rules(RuleRef("r"), {"r": ExactText("a")}), FreeText(), "tools[1].custom", True)
    tags = ClientText(Regex("[a-c<]+"), FreeText(), "tools[2].custom", True, "</x>", ("</x>",))
    grammar = Grammar(Choice((words, Concat((ExactText("1"), rules)), Concat((ExactText("2"), tags)))))
    assert [*grammar.unenforced("gbnf")] == [("tools[1].custom", ""), ("tools[2].custom", "")]
    assert accepts(GbnfMatcher(grammar, BYTES, END), (*BYTES.encode("abc</x>"), *END))
    assert not accepts(GbnfMatcher(grammar, BYTES, END), (*BYTES.encode("abd</x>"), *END))


def test_what_gbnf_cannot_say_is_listed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "b": {"type": "string", "pattern": "^<[a-z]+>$"},
            "c": {"type": "string", "format": "uri"},
            "d": {"type": "integer", "multipleOf": 5, "minimum": 1},
            "e": {
                "type": "array",
                "prefixItems": [{"type": "integer"}],
                "items": {"type": "string"},
                "maxItems": 2_000,
            },
            "f": {"type": "number", "minimum": 0.5},
            "g": {"type": "string", "format": "date"},
        },
        "minProperties": 1,
        "additionalProperties": False,
    }
    pointers = {pointer for _, pointer in Grammar(JsonSchema(schema, "x")).unenforced("gbnf")}
    under = (
        "a/maxLength",
        "b/pattern",
        "c/format",
        "d/multipleOf",
        "e/prefixItems",
        "e/items",
        "e/maxItems",
        "f/minimum",
    )
    assert pointers == {"#/minProperties", *(f"#/properties/{each}" for each in under)}
    many = {"type": "object", "properties": {f"key{i}": {} for i in range(1_200)}, "required": ["key0"]}
    assert set(spell(many).unenforced) == {"#/properties", "#/required"}
    text = TextUntil("</x>", ("</x>",), {"pattern": "^[^a]*$"})
    assert [*Grammar(text).unenforced("gbnf")] == [("", "#/pattern")]


@pytest.mark.parametrize(
    "regex",
    [
        *(r"\bA", r"\p{L}", "a{2000}", "(?:[a-z]{0,100}){100}", "a^", "(a", "a)", "[", "(a|)*b", "(a?b?)+", "(?=a)b"),
        *("(?i)a", "a{100}{100}", "a**", "a*+", "{2}", "*a", "(|*a)", "a{5,2}", r"a[\x00]b", r"[\u0000\x00]"),
        *("(?:" + "".join(f"({letter})?" for letter in "abcdefghij") + "){100}", "(" * 20 + "a" + ")" * 20 + "{100}"),
    ],
)
def test_a_regular_expression_without_a_spelling_is_refused(regex: str) -> None:
    with pytest.raises(ValueError):
        of_regex(regex)


@pytest.mark.parametrize(
    ("regex", "texts", "others"),
    [
        (r"(a|b|)c{2,3}", ["acc", "bccc", "cc"], ["c", "acccc"]),
        (r"[\s\S]x.[^a-c\]]", ["\nxad", "xx-d"], ["xx\nd", "xxab", "xxa]"]),
        (r"\d+\.[-\w]*?", ["1.", "12.a-_9"], ["1", ".a", "1.é"]),
        (r"(?:ab?){2}|[^\x00-\x1f]\u00e9", ["aab", "xé"], ["a", "é", "\té"]),
    ],
)
def test_regular_expressions(regex: str, texts: list[str], others: list[str]) -> None:
    for text in (*texts, *others):
        matcher = GbnfMatcher(Grammar(Regex(regex)), BYTES, END)
        assert accepts(matcher, (*BYTES.encode(text), *END)) == (text in texts), text


# -- what would keep llama.cpp busy for ever --------------------------------------------------------------------------

_REFERENCE = {"$ref": "#/$defs/e"}
_OPERATIONS = [
    {"type": "object", "properties": {"left": _REFERENCE, "op": {"const": op}}, "required": ["left", "op"]}
    for op in "+-*/"
]
_DEEP: dict[str, Any] = {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}] * 11}
for _ in range(2):
    _DEEP = {"anyOf": [{"type": "object", "properties": {f"a{i}": _DEEP}} for i in range(11)]}


@pytest.mark.parametrize(
    ("schema", "listed"),
    [
        (_REFERENCE | {"$defs": {"e": {"anyOf": [*_OPERATIONS, {"type": "integer"}]}}}, {"#/$ref"}),
        (_DEEP, {"#/anyOf"}),
    ],
    ids=["is read in four ways, each in four ways", "is read in 1,331 ways"],
)
def test_of_a_schema_with_too_many_readings_only_the_type_is_enforced(schema: Any, listed: set[str]) -> None:
    assert set(spell(schema).unenforced) == listed
    assert takes(matcher_of(schema), '{"anything": [1]}')


def test_a_schema_that_begins_with_itself_is_what_else_it_says() -> None:
    schema = {"anyOf": [{"$ref": "#"}, {"type": "string"}]}
    assert not spell(schema).unenforced
    assert takes(matcher_of(schema), '"a"') and not takes(matcher_of(schema), "1")


def test_choices_behind_references_have_no_rules_that_begin_with_each_other() -> None:
    """llama.cpp looks for left recursion along every path, which are 2^40 here."""
    definitions: dict[str, Any] = {"d40": {"type": "integer"}}
    for i in range(40):
        following = {"$ref": f"#/$defs/d{i + 1}"}
        definitions[f"d{i}"] = {"anyOf": [{"anyOf": [following, {"const": f"k{i}"}]}, following]}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    assert not spell(schema).unenforced
    matcher = matcher_of(schema)
    assert takes(matcher, '"k7"') and takes(matcher, "12") and not takes(matcher, '"k40"')
    first = next(rule for rule in matcher._rules.values() if len(rule) == 41)
    assert all(len(option) == 1 for option in first)


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 2_500])
def test_long_repetitions_are_exact(count: int) -> None:
    exactly = Grammar(Repeat(ExactText("a"), count, count))
    at_most = Grammar(Repeat(ExactText("a"), 0, count))
    for grammar, text, allowed in (
        (exactly, "a" * count, True),
        (exactly, "a" * (count + 1), False),
        (at_most, "a" * count, True),
        (at_most, "a" * (count // 2), True),
        (at_most, "a" * (count + 1), False),
    ):
        assert accepts(GbnfMatcher(grammar, BYTES, END), (*BYTES.encode(text), *END)) == allowed


# -- what a text is not -----------------------------------------------------------------------------------------------


def test_a_key_comes_once_or_the_object_is_listed() -> None:
    schema = {"type": "object", "properties": {"ab": {"type": "integer"}}, "required": ["abc"]}
    matcher = matcher_of(schema)
    assert takes(matcher, '{"abc": 1, "abd": 2}') and not takes(matcher, '{"abc": 1, "ab": "x"}')
    long = "a" * 1_500
    schema = {"type": "object", "properties": {long: {"type": "integer"}}, "required": ["b" * 600]}
    assert spell(schema).unenforced == ("#/properties",)
    assert takes(matcher_of(schema), json.dumps({"b" * 600: 1, long: "x"}))


def test_a_constant_and_a_key_that_spell_a_control_token_are_written_in_escapes() -> None:
    schema = {"type": "object", "properties": {"<A>": {"enum": ["x<A>"]}}, "additionalProperties": False}
    grammar = Grammar(Concat((JsonSchema(schema, "x"), A)))
    matcher = GbnfMatcher(grammar, SMALL, ())
    written = json.dumps({"<A>": "x<A>"}).replace("<", "\\u003c")
    assert accepts(matcher, (*SMALL.encode(written), SMALL.control["<A>"]))
    for text in ('{"', '{"\\u003cA>": "x'):
        matcher = GbnfMatcher(grammar, SMALL, ())
        assert accepts(matcher, SMALL.encode(text)) and not matcher.advance(SMALL.control["<A>"])


def test_texts_exclude_the_tokens_at_which_a_request_ends() -> None:
    grammar = Grammar(FreeText())
    assert grammar.gbnf(SMALL.control) != grammar.gbnf(SMALL.control, ["<B>"])
    matcher = GbnfMatcher(grammar, SMALL, (SMALL.control["<B>"],))
    assert not accepts(matcher, SMALL.encode("<B>"))
    matcher.rollback(2)
    assert matcher.advance(SMALL.control["<B>"]) and not matcher.allowed()


def test_what_is_seen_may_have_a_word_later_with_which_it_must_not_begin() -> None:
    grammar = Grammar(VisibleText(("<B>",), ("<think>",)))
    for text, allowed in (
        ("Use <think>", True),
        (" \n<thin", True),
        ("\n<think>", False),
        ("<thix", True),
        (" ", False),
    ):
        assert accepts(GbnfMatcher(grammar, BYTES, END), (*BYTES.encode(text), *END)) == allowed, text
    assert not accepts(GbnfMatcher(grammar, BYTES, END), BYTES.encode("a<B>"))


def test_a_pattern_that_may_have_what_begins_a_control_token_is_listed() -> None:
    for mark in MARKS:
        assert spell({"type": "string", "pattern": f"^[a{mark.replace('[', chr(92) + '[')}]+$"}).unenforced
    for name in WITH:
        grammar = families.format_of(name).grammar(TOOLS, thinking=True)
        assert grammar is not None and all(literal[0] in MARKS for literal in grammar.control_tokens()), name


def test_two_rules_have_two_names() -> None:
    one, other = (Rules(RuleRef("r"), {"r": ExactText(text)}) for text in "ab")
    with pytest.raises(ValueError, match="two rules have the name r"):
        Grammar(Concat((one, other))).gbnf({})
    assert Grammar(Concat((one, one))).gbnf({})


def test_nul_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="NUL"):
        Grammar(ExactText("a\0")).gbnf({})
    with pytest.raises(ValueError, match="'<A>' has no id"):
        Grammar(A).gbnf({})


# -- families ---------------------------------------------------------------------------------------------------------

_QUICK = ("kimi_k25", "qwen3_coder", "harmony", "functionary", "deepseek_v32")


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("name", proof_but(WITH, *_QUICK, "pythonic", "minimax_m3", "granite", "llama3_json"))
@given(data=st.data(), thinking=st.booleans(), choice=st.sampled_from(("auto", "required")))
@examples(20)
def test_what_a_format_writes_is_allowed(name: str, data: st.DataObject, thinking: bool, choice: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    ids = data.draw(_written(name, thinking))
    from tests.grammar.test_structural_tag import TOOLS as DECLARED

    grammar = fmt.grammar(DECLARED, tool_choice=choice, thinking=thinking)
    assert grammar is not None
    assert accepts(GbnfMatcher(grammar, tokenizer, ends_of(name)), ids) == allows(
        compile(grammar, tokenizer, ends_of(name)), ids
    )


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("name", proof_but(WITH, "kimi_k25", "qwen3_coder"))
def test_an_allowed_walk_says_something_valid(name: str) -> None:
    tokenizer, ends, rng = families.tokenizer_of(name), ends_of(name), random.Random(name)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in TOOLS}
    ended = 0
    for thinking in (False, True):
        for tools, choice in (*ASKED, (TOOLS, "required")):
            grammar = families.format_of(name).grammar(tools, tool_choice=choice, thinking=thinking)
            assert grammar is not None
            listed = [*grammar.unenforced("gbnf")]
            for _ in range(4):
                ids = walk(name, GbnfMatcher(grammar, tokenizer, ends), rng, marks=marks_of(name))
                if ids is None:
                    continue
                ended += 1
                message = read(name, ids, tools, choice, thinking=thinking)
                assert message.says_something, (tokenizer.decode(ids), choice, thinking)
                assert choice != "required" or message.calls
                for call in message.calls:
                    if not listed:
                        jsonschema.validate(json.loads(call.arguments), schemas[call.name] or {"type": "object"})
    assert ended > 4
