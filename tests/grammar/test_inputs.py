"""A client's grammar allows exactly its texts, in every format and every cut, as Lark itself reads it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dovetail.custom_tools import InputGrammar
from dovetail.events import Call, Message, fold
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.grammar import Grammar
from dovetail.grammar.inputs import check, spelling
from dovetail.grammar.inputs.check import InputChecker
from dovetail.grammar.inputs.language import language
from dovetail.grammar.matcher import Matcher, compile
from dovetail.grammar.schemas.check import checker
from tests.examples import seeds
from tests.grammar import random_grammars
from tests.grammar.test_matcher import allowed, allows
from tests.reading import families

#: One of each way in which a family writes a string.
FAMILIES = (
    *("kimi_k25", "deepseek_v32", "qwen3_coder", "glm45", "gemma4", "minimax_m3", "kimi_k3", "llama3_json"),
    *("pythonic", "harmony", "functionary", "muse", "gigachat3", "inkling"),
)
#: Those whose strings end with ordinary text.
TEXT_TAGS = ("deepseek_v32", "qwen3_coder", "muse")
#: Tokens that begin or end in the middle of an escape, of a terminal, and of what is around the input.
PIECES = families.PieceTokenizer(
    ("<end>",), ('"', "\\", "\\n", '\\"', "n", '": "', '"}', '{"', "ab", 'a"', "\\\\", "b\\", "</", "\n</", "é1", "((")
)
END = (PIECES.control["<end>"],)


def tool(definition: str, syntax: str = "lark") -> dict[str, Any]:
    grammar = {"syntax": syntax, "definition": definition}
    return {"type": "custom", "custom": {"name": "t", "format": {"type": "grammar", "grammar": grammar}}}


def constraint(name: str, definition: str, syntax: str = "lark") -> Matcher | None:
    """The matcher of a required call to a tool with this grammar; None if it is listed as not enforced."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    grammar = fmt.grammar([tool(definition, syntax)], tool_choice="required", thinking=False)
    assert grammar is not None
    if [*grammar.unenforced("lark")] == [("tools[0].custom.format.grammar.definition", "")]:
        return None
    return compile(grammar, tokenizer, [tokenizer.control[literal] for literal in fmt.end_of_turn])


def call_ids(name: str, text: str) -> list[int]:
    """The call of the tool with this input, as the family writes it."""
    fmt = families.format_of(name)
    arguments = json.dumps({"input": text}, ensure_ascii=False)
    message = Message(calls=(Call("functions.t:0", "t", arguments),))
    return fmt.write(message, thinking=False).ids(families.tokenizer_of(name))


def accepts(matcher: Matcher, name: str, text: str) -> bool:
    return allows(matcher.another(), call_ids(name, text))


def texts_of(grammar: str, draw: Any, rng: random.Random, count: int) -> list[str]:
    members = [draw(rng) for _ in range(count)]
    return [*members, *(random_grammars.mutated(text, rng, "()#") for text in members for _ in range(2))]


@pytest.mark.parametrize("kind", ["regular", "nested"])
@pytest.mark.parametrize("seed", seeds(25, quick=5))
def test_exactly_the_texts_are_allowed_in_every_format(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind}{seed}")
    grammar, draw = getattr(random_grammars, kind)(rng)
    texts = texts_of(grammar, draw, rng, 4)
    members = {text: random_grammars.is_member(grammar, text) for text in texts}
    assert all(members[text] for text in texts[:4]), grammar
    for name in FAMILIES:
        matcher = constraint(name, grammar)
        if matcher is None:
            assert kind == "nested" and name in TEXT_TAGS and ("<" in grammar or "\\n" in grammar)
            continue
        for text, member in members.items():
            assert accepts(matcher, name, text) == member, (name, grammar, text)


@pytest.mark.parametrize("kind", ["regular", "nested"])
@pytest.mark.parametrize("seed", seeds(25, quick=10))
def test_exactly_the_texts_are_allowed_in_every_cut(kind: str, seed: int) -> None:
    rng = random.Random(f"cut {kind}{seed}")
    grammar, draw = getattr(random_grammars, kind)(rng)
    client = ClientGrammar(InputGrammar("lark", grammar), "here")
    raw = Grammar(spelling.node(language(InputGrammar("lark", grammar)), lambda expression: expression))
    quoted = Grammar(client.in_json())
    compiled = [compile(each, PIECES, END) for each in (raw, quoted)]
    for text in texts_of(grammar, draw, rng, 4):
        member = random_grammars.is_member(grammar, text)
        for matcher, written in zip(compiled, (text, json.dumps({"input": text}, ensure_ascii=False)), strict=True):
            assert allows(matcher.another(), [*cut(written, rng), *END]) == member, (grammar, written)


def cut(text: str, rng: random.Random) -> list[int]:
    """Tokens that spell the text, drawn at random at each place."""
    ids: list[int] = []
    left = text.encode()
    while left:
        token = rng.choice([t for t in range(PIECES.vocab_size - 1) if left.startswith(PIECES.token_bytes(t))])
        ids.append(token)
        left = left[len(PIECES.token_bytes(token)) :]
    return ids


@pytest.mark.parametrize("seed", range(30))
def test_the_check_after_a_call_is_the_same_matcher(seed: int) -> None:
    rng = random.Random(f"check {seed}")
    grammar, draw = (random_grammars.regular if seed % 2 else random_grammars.nested)(rng)
    checked = InputChecker(InputGrammar("lark", grammar), checker(ANY_INPUT, "here"), "here")
    for text in texts_of(grammar, draw, rng, 6):
        fault = checked.fault(json.dumps({"input": text}))
        assert (fault is None) == random_grammars.is_member(grammar, text), (grammar, text)
        assert fault is None or fault.kind == "schema_mismatch"


def test_a_check_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_CHECK_SECONDS", -1)
    checked = InputChecker(InputGrammar("regex", "a*"), checker(ANY_INPUT, "here"), "here")
    fault = checked.fault('{"input": "aa"}')
    assert fault is not None and fault.kind == "unchecked_arguments"
    assert checked.is_quick('{"input": "aa"}') and not checked.is_quick("a" * 1_000)


ANY_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@pytest.mark.parametrize("seed", seeds(12, quick=4))
@pytest.mark.parametrize("name", FAMILIES)
def test_an_allowed_walk_ends_in_a_text_of_the_grammar(name: str, seed: int) -> None:
    rng = random.Random(f"walk {name}{seed}")
    grammar, _ = (random_grammars.regular if seed % 2 else random_grammars.nested)(rng)
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    ends = {tokenizer.control[literal] for literal in fmt.end_of_turn}
    matcher, ids = constraint(name, grammar), []
    if matcher is None:
        return
    while not ends & {*ids[-1:]} and len(ids) < 300:
        options = sorted(allowed(matcher, tokenizer))
        controls = [token for token in options if token in tokenizer.control_literals]
        shown = [token for token in options if tokenizer.token_bytes(token) not in (b" ", b"\t", b"\r")] or options
        token = rng.choice(controls if controls and rng.random() < 0.6 else shown)
        assert matcher.advance(token)
        ids.append(token)
    if not ends & {*ids}:
        return
    reader = fmt.reader([tool(grammar)], thinking=False, tokenizer=tokenizer)
    message = fold([*reader.feed("", ids), *reader.finish()])
    for call in message.calls:
        text = json.loads(call.arguments)["input"]
        assert random_grammars.is_member(grammar, text), (grammar, text)
    assert message.calls


@pytest.mark.parametrize("seed", seeds(40, quick=20))
def test_no_other_text_is_allowed_where_terminals_cannot_be_told_apart(seed: int) -> None:
    """The library takes the longest terminal, so it may refuse texts of such a grammar, but it allows no others."""
    rng = random.Random(f"tangled {seed}")
    grammar, draw = random_grammars.tangled(rng)
    matcher = constraint("kimi_k25", grammar)
    assert matcher is not None
    for text in texts_of(grammar, draw, rng, 6):
        assert random_grammars.is_member(grammar, text) or not accepts(matcher, "kimi_k25", text), (grammar, text)


#: The tool of a coding agent. Of the same shape as Codex's, but for `/(.*)/`, which Lark itself does not take.
PATCH = r"""
start: begin change+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

change: add | delete | update
add: "*** Add File: " name LF added+
delete: "*** Delete File: " name LF
update: "*** Update File: " name LF moved? hunks?
name: /(.+)/
added: "+" /(.*)/ LF -> line
moved: "*** Move to: " name LF
hunks: (context | line)+ last?
context: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF

%import common.LF
"""
PATCHES = (
    '*** Begin Patch\n*** Add File: a.py\n+print("hi\\n")\n+\n*** End Patch\n',
    "*** Begin Patch\n*** Delete File: dir/é 🌦.txt\n*** End Patch",
    "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ def f():\n-\t<b>\\d</b>\n+</p> *** End Patch\n \n@@\n"
    "*** End of File\n*** Delete File: c\n*** End Patch\n",
)


def test_the_patches_of_a_coding_agent() -> None:
    plain = PATCH.replace("/(.*)/", "/.+/?")
    rng = random.Random(0)
    texts = [*PATCHES, *(random_grammars.mutated(text, rng, "*+-@ ") for text in PATCHES for _ in range(12))]
    members = {text: random_grammars.is_member(plain, text) for text in texts}
    assert all(members[text] for text in PATCHES) and not all(members.values())
    checked = InputChecker(InputGrammar("lark", PATCH), checker(ANY_INPUT, "here"), "here")
    for name in sorted(families.NAMES):
        matcher = constraint(name, PATCH)
        assert matcher is not None
        for text, member in members.items():
            assert accepts(matcher, name, text) == member, (name, text)
    for text, member in members.items():
        assert (checked.fault(json.dumps({"input": text})) is None) == member


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "a</parameter>b"),
        ("qwen3_coder", "a\n<parameter=b"),
        ("qwen3_coder", "a\n</function>"),
        ("minimax_m2", "a</parameter>b"),
        ("minimax_m2", '\n<invoke name="b">'),
    ],
)
def test_the_input_contains_no_marker_that_ends_it(name: str, text: str) -> None:
    matcher = constraint(name, r"start: /(.|\n)+/")
    assert matcher is not None
    assert not accepts(matcher, name, text)
    assert accepts(matcher, name, text.replace(">", "").replace("=", "").replace("invoke ", "invoke"))


def test_a_regex_is_about_the_whole_input() -> None:
    for name in FAMILIES:
        matcher = constraint(name, '^[a-z]+ "[0-9]{2}"$|x', "regex")
        assert matcher is not None
        assert [accepts(matcher, name, text) for text in ('ab "12"', "x", 'ab "12" ', 'ab "1"', "xx", "")] == [
            *(True, True),
            *(False,) * 4,
        ]


def test_levels_below_schema_do_not_enforce_the_grammar() -> None:
    fmt = families.format_of("kimi_k25")
    for strict in ("off", "names"):
        grammar = fmt.grammar([tool("start: UNKNOWN")], tool_choice="required", strict=strict, thinking=False)
        assert grammar is not None and "UNKNOWN" not in grammar.lark({})
    assert fmt.grammar([tool("start: UNKNOWN")], strict="off") is None


def test_keywords_that_a_library_cannot_enforce_are_listed() -> None:
    definition = "tools[0].custom.format.grammar.definition"
    for name, syntax, text, unenforced in (
        ("kimi_k25", "regex", "[a-z]+", ()),
        ("kimi_k25", "regex", r"\w+", ("structural_tag",)),
        ("kimi_k25", "regex", "a{101}", ("structural_tag",)),
        ("qwen3_coder", "regex", "[a-z]+", ()),
        ("qwen3_coder", "regex", "[a-z<]+", ("structural_tag",)),
        ("glm45", "regex", "[a-z<]+", ()),
        ("pythonic", "regex", "[a-z]+", ("structural_tag",)),
        ("kimi_k25", "lark", 'start: "(" start ")" | "<"', ()),
        ("deepseek_v32", "lark", 'start: "(" start ")" | "<"', ("lark", "structural_tag")),
        ("deepseek_v32", "lark", 'start: "(" start ")" | "a"', ()),
    ):
        grammar = families.format_of(name).grammar([tool(text, syntax)], tool_choice="required", thinking=False)
        assert grammar is not None
        for writer in ("lark", "structural_tag"):
            listed = [*grammar.unenforced(writer)]
            assert listed == ([(definition, "")] if writer in unenforced else []), (name, text, writer)


@pytest.mark.parametrize("kind", ["regular", "nested"])
@pytest.mark.parametrize("seed", seeds(6, quick=2))
def test_both_libraries_allow_the_same_texts(kind: str, seed: int) -> None:
    pytest.importorskip("xgrammar")
    from tests.grammar.test_structural_tag import Both

    rng = random.Random(f"both {kind}{seed}")
    grammar, draw = getattr(random_grammars, kind)(rng)
    texts = texts_of(grammar, draw, rng, 3)
    for name in FAMILIES:
        fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
        answers = fmt.grammar([tool(grammar)], tool_choice="required", thinking=False)
        assert answers is not None
        if [*answers.unenforced("structural_tag")]:
            continue
        ends = tuple(tokenizer.control[literal] for literal in fmt.end_of_turn)
        for text in texts:
            ids = [token for token in call_ids(name, text) if token not in ends]
            ours, others = Both(answers, tokenizer, ends).accepted_counts(ids)
            assert (ours == len(ids)) == (others == len(ids)), (name, grammar, text)
