"""How a client's grammar is read: as Lark and Python's `re` read it, or refused in bounded time."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.custom_tools import InputGrammar
from dovetail.errors import SchemaRefused
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.grammar import Grammar
from dovetail.grammar.inputs import matching, regex_text, spelling
from dovetail.grammar.inputs.language import InputGrammarError, language
from dovetail.grammar.matcher import compile
from tests.examples import slow_but
from tests.grammar import random_grammars
from tests.grammar.test_inputs import END, PIECES
from tests.grammar.test_matcher import allowed, allows


def allows_input(definition: str, text: str, syntax: Any = "lark") -> bool:
    node = spelling.node(language(InputGrammar(syntax, definition)), lambda expression: expression)
    return allows(compile(Grammar(node), PIECES, END), [*PIECES.encode(text), *END])


# -- regexes ----------------------------------------------------------------------------------------------------------

_ATOMS = st.sampled_from(
    [
        *("a", "b", ".", r"\n", r"\.", r"\\", r"\x61", r"\u00e9", r"\t", "é", r"\"", r"\-", r"\/"),
        *("[ab]", "[^ab]", "[a-c]", r"[\n\\]", "[]a]", "[^]a]", "[-a]", "[a-]", r"[\d]", r"[^\d\"]", "[0-9a-fé]"),
        *(r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"),
    ]
)
_REGEXES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "*?", "+?"])).map(
            lambda each: f"({each[0]}){each[1]}"
        ),
        inner.map(lambda each: f"(?i:{each})"),
        inner.map(lambda each: f"(?P<name>{each})"),
    ),
    max_leaves=5,
).map(lambda regex: re.sub("<name>", lambda match: f"<n{match.start()}>", regex))  # a group's name occurs once


@given(_REGEXES, st.lists(st.text(st.sampled_from('abAc1é \n\t"\\.-/'), max_size=5), max_size=8))
def test_a_regex_means_what_it_means_to_python(regex: str, texts: list[str]) -> None:
    python = re.compile(regex)
    expression = regex_text.parse(regex)
    node = Grammar(spelling.node(language(InputGrammar("regex", regex)), lambda each: each))
    matcher = compile(node, PIECES, END)
    assert spelling.is_nullable(expression) == (python.fullmatch("") is not None)
    for text in texts:
        expected = python.fullmatch(text) is not None
        assert allows(matcher.another(), [*PIECES.encode(text), *END]) == expected, text


@pytest.mark.parametrize(
    ("regex", "flags", "text", "expected"),
    [
        (r"\p{L}+", "", "éa", True),
        (r"\p{L}+", "", "1", False),
        (r"\P{Lu}", "", "a", True),
        (r"\p{^Nd}\pN", "", "a1", True),
        (r"[\p{Lu}\s]+", "", "A É", True),
        (r"[^\p{Lu}\s]+", "", "aé", True),
        (r"[^\p{Lu}é]+", "", "é", False),
        (r"[\s\S]+", "", "a\né", True),
        (r"[\w\W]", "", "🌦", True),
        ("[[:alpha:]_]+", "", "ab_", True),
        ("[[:^digit:]]", "", "1", False),
        ("a.b", "s", "a\nb", True),
        ("a.b", "", "a\nb", False),
        ("ÉA[b-d]", "i", "éaC", True),
        ("[^b]", "i", "B", False),
        ("a b # c\n d", "x", "abd", True),
        ("(?i)ab|CD", "", "cD", True),
        ("((?i)a)b", "", "AB", False),
        ("(?s-i:A.)b", "i", "A\nB", True),
        (r"a{,2}b{2,}c{", "", "aabbc{", True),
        (r"\x{e9}\u{1F326}\U0001F326\a\0", "", "é🌦🌦\a\0", True),
        (r"[\b]", "", "\b", True),
        ("", "", "", True),
        ("a||b", "", "", True),
        (r"[\x00-\ud7ff\ue000-\x{10ffff}]+", "", "aé🌦", True),
        (r"[^\ud7ff]", "", "\ue000", True),
        (r"[^\ue000]", "", "\ud7ff", True),
        (r"[\x{10FFFE}a]", "", "\U0010fffe", True),
        ("()?a", "", "a", True),
        (r"[^\s\S]+|a", "", "a", True),
        ("(a{0,3})?(?:b?)*", "", "aab", True),
    ],
)
def test_syntax_of_regexes(regex: str, flags: str, text: str, expected: bool) -> None:
    written = f"(?{flags}){regex}" if flags else regex
    assert allows_input(written, text, "regex") == expected


@pytest.mark.parametrize(
    "regex",
    [
        *("(a", "a)", "[a", "[", "a**", "*a", "a|+", r"\q", "\\", r"\1", r"(a)\1", r"\b", r"a\B", "(?=a)", "(?<!a)b"),
        *("(?>a)", "a++", "(?P=n)", "(?z)", "(?z:a)", "[b-a]", r"[\d-x]", r"[a-\d]", "[a&&b]", "[a--b]", "a{3,2}"),
        *("a{20000}", "a^b", "(^a)", "a$b", "(a$)", r"\ud800", r"\x{110000}", r"\p{Greek}", "[[:what:]]", "[a-"),
        *("(" * 60 + ")" * 60, "(?"),
    ],
)
def test_a_regex_that_no_grammar_enforces_is_refused(regex: str) -> None:
    with pytest.raises(InputGrammarError) as refused:
        language(InputGrammar("regex", regex))
    assert str(refused.value)


def test_anchors_in_a_lark_terminal_are_refused() -> None:
    with pytest.raises(InputGrammarError, match="line 2: the anchor"):
        language(InputGrammar("lark", "start: A\nA: /^a/"))
    assert allows_input(r"^a$|\Ab\z|^c\Z", "c", "regex")


# -- Lark -------------------------------------------------------------------------------------------------------------

#: Grammars in Lark's notation, with texts. Lark itself says which of the texts are theirs.
GRAMMARS: list[tuple[str, list[str]]] = [
    ('start: "aÉ"i', ["Aé", "aÉ", "ae"]),
    ('start: "a" | "b"\n', ["a", "b", "c", ""]),
    ('// a comment\nstart: A -> x // more\n  | b\n# another\nA.2: /a+/i\n?b.-1: "b"\n', ["aA", "b", "ab"]),
    ('start: [A] B? (A B)* "!"~2 "?"~1..2\nA: "x"\nB: "y"', ["!!?", "xyxy!!??", "!!", "x!!???"]),
    ('start: ("0".."9")+ "\\"" "\\\\" "\\n\\t" "\\x41\\u00e9" "\\d"', ['12"\\\n\tAé\\d', '12"\\\n\tAéd']),
    (
        '%import common.INT\n%import common.WORD -> NAME\n%import common (WS, LF)\nstart: NAME "=" INT LF\n%ignore WS',
        ["a=1\n", " a = 12\n\n ", "a=b\n", "a = 1"],
    ),
    (
        'start: e\ne: e "+" t | t\nt: t "*" f | f\nf: "(" e ")" | /[0-9]+/\n%ignore / +/',
        ["1+2*(3+4)", "1 + ( 2 )", "1+", "(1"],
    ),
    ('start: e\n!e: e e | e "," e | "[" e "]" | "x"', ["x,x", "xx[x,x]x", "[x", "x,,x"]),
    ('start: a\na: "x" b | "y"\nb: a "z" | "w" a', ["xyz", "xwy", "xwxyz", "xy", "xxyz"]),
    ('start: "a" start "b" | "c"', ["aacbb", "c", "aacb"]),
    ('start: _s\n_s: "," _s | "."\n', [",,.", ".", ","]),
    (
        'start: item (";" item)*\nitem: KEY ":" value\nvalue: KEY | "{" [start] "}"\nKEY: /[a-z_]+/',
        ["a:b", "a:{b:c;d:{}}", "a:{b}", "a:b;"],
    ),
    (
        "start: COMMENT* STRING NUMBER\n%import common.C_COMMENT -> COMMENT\n%import common.ESCAPED_STRING -> STRING\n"
        "%import common.SIGNED_NUMBER -> NUMBER",
        ['/* a * b */"x\\"y"-1.5e3', '"a"b"1', '"a".5', '"a\nb"1'],
    ),
    ('start: a~3\na: "x" | "(" a ")"', ["xxx", "x(x)((x))", "xx"]),
    ('start: (A | B)+\nA: B "-" B\nB: "b"', ["b-bb", "bb", "b-"]),
    ('start: "a" \\\n  "b" \\\n  ("c" | "d")\n  | "e"', ["abc", "abd", "ab"]),
]


@pytest.mark.parametrize(("grammar", "texts"), GRAMMARS)
def test_lark_reads_a_grammar_in_the_same_way(grammar: str, texts: list[str]) -> None:
    members = [random_grammars.is_member(grammar, text) for text in texts]
    assert any(members) and not all(members)
    assert [allows_input(grammar, text) for text in texts] == members


def test_what_lark_does_not_have_but_llguidance_has() -> None:
    assert allows_input('start: "a"{2,3} "b"{2} "c"{1,} "d"{,1}', "aabbc")
    assert not allows_input('start: "a"{2,3}', "aaaa")
    assert allows_input("start: A\nA: /a*/", "")
    assert allows_input("start: A*\nA: /a*/", "aa")


SHUFFLED = [f'r{i}: "(" r{i + 1} ")" | "(" r0 ")" r{i + 1}\n' for i in range(400)]
random.Random(0).shuffle(SHUFFLED)


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        ("", "there is no rule 'start'"),
        ('begin: "a"', "there is no rule 'start'"),
        ("start: A", "the terminal A is not defined"),
        ('start: "a"\n%ignore B', "the terminal B is not defined"),
        ("start: A\nA: B", "the terminal B is not defined"),
        ("start: a", "the rule start refers to a, which is not defined"),
        ('start: A\nA: "x" B\nB: A', "refers to itself"),
        ('start: A\nA: b\nb: "x"', "a terminal cannot refer to the rule b"),
        ('start: "a"\nstart: "b"', "line 2: start is defined twice"),
        ("start: A\n%import common.INT -> A\nA: /a/", "defined twice"),
        ("start: INT\nINT: /a/\n%import common.INT", "defined twice"),
        ("start: start", "no text matches it"),
        ('start: "a" start', "no text matches it"),
        (r"start: /[^\s\S]/", "no text matches it"),
        ("start: t{A}\nt{x}: x", "line 1: t is a template"),
        ("t{x}: x", "t is a template"),
        ('%declare A\nstart: "a"', "%declare is not supported"),
        ('%override start: "a"', "%override is not supported"),
        ('%import python.NAME\nstart: "a"', "only terminals of the library"),
        ('%import .x.NAME\nstart: "a"', "only terminals of the library"),
        ('%import common.NO\nstart: "a"', "the library `common` has no NO"),
        ('%import common.\nstart: "a"', "a terminal is missing"),
        ("start: (A", "')' is missing"),
        ("start: [A)", "']' is missing"),
        ("start A", "':' is missing"),
        (': "a"', "the name of a rule or a terminal is missing"),
        ("start: A )", "')' is not expected here"),
        ("start: 3", "is not expected here"),
        ('start: "a" ~', "a number of repetitions is missing"),
        ('start: "a"~3..2', "repetitions are from 0"),
        ('start: "a"~-1', "repetitions are from 0"),
        ('start: "a"{99999}', "repetitions are from 0"),
        ('start: "ab".."c"', "a range is not from one character"),
        ('start: "b".."a"', "a range is not from one character"),
        ('start: "a"..A', "the end of the range is missing"),
        ('start: "a" ->', "an alias is missing"),
        ('start.x: "a"', "a priority is missing"),
        ("start: 'a'", "is not Lark"),
        ('start: "a', "is not Lark"),
        (r'start: "\ud800"', "no character has the code"),
        ("start: /(?=a)b/", "look-arounds"),
        ("start: /a/l", "the flag 'l' is not supported"),
        ("start: /(/", "a group has no end"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "nested more than 50 deep"),
        ("start: " + "a" * 60_000, "more than 50000 characters"),
        ("\n".join(f"r{i}: A" for i in range(600)), "more than 500 rules and terminals"),
        ('start: (("a"~100)~100)~100', "more than 20000 characters"),
        (
            "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(30)) + 'T30: "a"\nstart: T0',
            "more than 20000 characters",
        ),
        ("".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(40)) + 'r40: "a"\nstart: r0', "no text of less than"),
        ("".join(f"r{i}: r{i + 1}\n" for i in range(400)) + 'r400: "a" r0 "b" | "c"\nstart: r0', ""),
        ('start: s\ns: "a" s "a" s | "a" s | "a"', "so ambiguous"),
        (
            "".join(f'r{i}: {" ".join(f"r{j}" for j in range(20))} | "x"\n' for i in range(20)) + "start: r0",
            "ambiguous",
        ),
        pytest.param(
            "".join(f'r{i}: "a" [r{i + 1} "c"]\n' for i in range(450)) + 'r450: "b"\nstart: r0',
            "more than 20000",
            marks=pytest.mark.slow,
        ),
        pytest.param("".join(SHUFFLED) + 'r400: "a"\nstart: r0', "Too many items", marks=pytest.mark.slow),
        ("start: /(a?){500}a{500}/", "too many expressions"),
        (r"start: /[^\p{L}\P{Lu}x]+/", "NoExtensionBias"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_by_its_field(grammar: str, complaint: str) -> None:
    if not complaint:
        ClientGrammar(InputGrammar("lark", grammar), "here")
        return
    with pytest.raises(SchemaRefused) as refused:
        ClientGrammar(InputGrammar("lark", grammar), "tools[3].custom.format.grammar.definition")
    assert complaint in refused.value.message
    assert refused.value.message.startswith("tools[3].custom.format.grammar.definition cannot be enforced: ")
    assert refused.value.param == "tools[3].custom.format.grammar.definition"


#: Grammars that are large or strange, and can be used.
LARGE = {
    "a long terminal": "start: /" + "a" * 9_000 + "/",
    "deep brackets": "start: " + "(" * 40 + '"a"' + ")*" * 40,
    "nested quantifiers": "start: /((((a*)*)*)*)*b/",
    "a large automaton": "start: /(a|b)*a(a|b){18}/",
    "ambiguous at the ends": 'start: e\ne: e e | "a" | e "+" e',
    "ambiguous alternatives": 'start: a\na: "(" b b ")" | b b b | "x"\nb: a | "y" | "(" a ")" a',
    "empty texts": 'start: a a a a a a\na: "x"? ["(" a a a ")"]',
    "left recursion in a circle": 'start: a\na: b "x" | "y"\nb: c "x" | "z"\nc: a "x" | "w"',
    "many words": "start: " + " | ".join(f'"word{i}"' for i in range(1_500)),
    "many rules in a circle": "".join(f'r{i}: "a" r{i + 1} "b" | "c"\n' for i in range(400)) + "r400: start\nstart: r0",
    "wide classes": "start: /" + r"[\w\d\s\p{L}]" * 500 + "/i",
    "repetitions": 'start: ("a"|"(" start ")")~1..500\n%ignore /( |\\t)+/',
}


_QUICK = ("deep brackets", "a large automaton", "left recursion in a circle", "repetitions")


@pytest.mark.parametrize("name", slow_but(LARGE, *_QUICK))
def test_masks_of_large_grammars_are_computed(name: str) -> None:
    grammar = ClientGrammar(InputGrammar("lark", LARGE[name]), "here")
    matcher = compile(Grammar(grammar.in_json()), PIECES, END)
    rng = random.Random(name)
    for _ in range(60):
        options = sorted(allowed(matcher, PIECES) - {*END})
        if not options:
            break
        assert matcher.advance(rng.choice(options))


def test_a_refusal_is_cached() -> None:
    hard = InputGrammar("lark", 'start: s\ns: "b" s "b" s | "b" s | "b"')
    for _ in range(2):
        with pytest.raises(InputGrammarError):
            matching.matcher(hard)
