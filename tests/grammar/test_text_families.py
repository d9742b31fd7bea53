"""Families whose calls begin with ordinary text: no text that a grammar allows is a call, and every call is valid.

Readers are the judges: what they make of an output is compared with what the grammar took it for.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.completion import Constraint
from dovetail.errors import InvalidRequest
from dovetail.events import Message, is_visible
from dovetail.formats.answers import plain_text
from dovetail.grammar.matcher import compile
from tests.conftest import SHARED
from tests.examples import proof_but
from tests.grammar.test_matcher import SCHEMA, TOOLS, allowed, allows, tool
from tests.reading import families

NAMES = ("llama3_json", "pythonic")
_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
NAMED = {"type": "function", "function": {"name": "ns.do-it"}}
#: The same without what a structural tag leaves to the check after: lengths in JSON, bounds in rules.
UNBOUND = [
    tool("get_weather", SCHEMA | {"properties": SCHEMA["properties"] | {"city": _STRING, "days": _INTEGER}}),
    TOOLS[1],
]
PARAMETERS = {it["function"]["name"]: it["function"]["parameters"] or {} for it in TOOLS}


def tokens(*pieces: str, name: str) -> families.PieceTokenizer:
    return families.PieceTokenizer((*families.controls(name), "<|unheard|>"), pieces)


#: A tokenizer whose tokens are what calls are made of, so that a blind walk comes by them.
HOT = {
    "llama3_json": tokens(
        *('{"', 'name"', '": "', "get_weather", "ns.do-it", "rm", '", "', 'parameters"', ": {", "}}", '{"name": "rm"'),
        *("<think>", "</think>", "<", "; ", 'id"', 'type": "function", "', "hello"),
        name="llama3_json",
    ),
    "pythonic": tokens(
        *(
            "[",
            "get_weather",
            "ns.do-it",
            "rm",
            "(",
            ")",
            "[ ",
            "city=",
            "days=",
            ", ",
            "=",
            ")]",
            "**{",
            "True",
            "'x'",
        ),
        *("<think>", "</think>", "<", "hello", "[rm(", " ns.do-it()", '"'),
        name="pythonic",
    ),
}


def constraint(name: str, tokenizer: families.PieceTokenizer, tools: Any = TOOLS, **options: Any) -> Constraint:
    fmt = dovetail.format(name)
    grammar = fmt.grammar(tools, **options)
    assert grammar is not None
    return compile(grammar, tokenizer, ends_of(name, tokenizer))


def ends_of(name: str, tokenizer: families.PieceTokenizer) -> list[int]:
    return [tokenizer.control[literal] for literal in dovetail.format(name).end_of_turn]


def encoded(text: str, tokenizer: families.PieceTokenizer) -> list[int]:
    """Ids of a text in which the literals of control tokens are control tokens."""
    literal = re.compile("|".join(map(re.escape, sorted(tokenizer.control, key=len, reverse=True))))
    ids = tokenizer.encode(literal.split(text)[0])
    for control, piece in zip(literal.findall(text), literal.split(text)[1:], strict=True):
        ids += [tokenizer.control[control], *tokenizer.encode(piece)]
    return ids


def accepts(name: str, text: str, tools: Any = TOOLS, **options: Any) -> bool:
    tokenizer = HOT[name]
    ids = [*encoded(text, tokenizer), ends_of(name, tokenizer)[0]]
    return allows(constraint(name, tokenizer, tools, **{"thinking": False, **options}), ids)


def read(name: str, ids: list[int], tools: Any = TOOLS, choice: Any = "auto") -> Message:
    reader = dovetail.format(name).reader(tools, thinking=False, tokenizer=HOT[name], tool_choice=choice)
    return dovetail.fold([*reader.feed("", ids), *reader.finish()])


def check(name: str, ids: list[int], strict: str = "schema", callable_: Any = PARAMETERS) -> Message:
    """Check that an allowed output is valid calls, or text without a call."""
    message = read(name, ids)
    assert {defect.kind for defect in message.defects} <= {"duplicate_parameter"}
    for call in message.calls:
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, callable_[call.name] if strict == "schema" else {"type": "object"})
    if not message.calls:
        text = b"".join(map(HOT[name].token_bytes, ids[:-1])).decode()
        assert message.content == re.sub("^<think>.*?</think>", "", text, flags=re.DOTALL)
    return message


# -- what begins like a call ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text", ["", " \n", "hello", "a < b, {x: [1, 2]}", "{", "[", "<", "[[", "{ {", " {<", "\n[<b>"]
)
def test_text_that_is_not_a_call_is_allowed(name: str, text: str) -> None:
    for choice in ("auto", "none"):
        assert accepts(name, text, tool_choice=choice, silent=True)
        assert accepts(name, text, tool_choice=choice) == is_visible(text)
    assert not accepts(name, text, tool_choice="required")


LLAMA_CALL = '{"name": "ns.do-it", "parameters": {}}'


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"a": 1}', True),
        ('{"names": 1}', True),
        ('{"name": "rm", "parameters": {}}', False),
        ('\n { "name"', False),
        ('{"id": 1}', False),
        ('I use {"name": "rm", "parameters": {}}', True),
        ('</think>{"name"', False),
        ('<think>{"name": "rm"}</think>{"a": 1}', True),
        ("<think>no end", False),
        (LLAMA_CALL, True),
        (f"\n{LLAMA_CALL}", True),
        (f"{LLAMA_CALL}; {LLAMA_CALL}", True),
        (f"{LLAMA_CALL}\n{LLAMA_CALL}", True),
        (f"{LLAMA_CALL} and", False),
        (f"; {LLAMA_CALL}", True),  # text: the reader looks for calls where content begins
        (f"<|python_tag|>{LLAMA_CALL}", True),
        (f"I see.<|python_tag|>{LLAMA_CALL};{LLAMA_CALL}", True),
        ("<|python_tag|>hello", False),
        (f"<think>hm</think>{LLAMA_CALL}", True),
        ('{"type": "function", "name": "ns.do-it", "arguments": {}}', True),
        ('{"name": "get_weather", "parameters": {"city": "x"}}', False),
    ],
)
def test_llama_calls_and_text(text: str, accepted: bool) -> None:
    assert accepts("llama3_json", text) is accepted


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("[get_weather] [get_weatherx(1)]", True),
        ("Use [int(x) for x in y]", True),
        ("[int(x) for x in y]", False),  # where an output begins, any name is a call's
        ("[ \n rm(", False),
        ("[rm (", True),
        ("see [ns.do-it](a)", True),
        ("see [ \n ns.do-it(x", False),
        ("<think>[rm()]</think>hm", True),
        ("<think>hm</think>[rm()]", False),
        ("<think>[rm()]", False),
        ("[ns.do-it()]", True),
        (" [ ns.do-it( ) ]", True),
        ("See: [ns.do-it(), ns.do-it()]", True),
        ("[ns.do-it()]]", False),
        ("[ns.do-it()] and", False),
        ("[ns.do-it(),]", False),
        ("[]", True),
        ("Hm <|python_start|>[ns.do-it()]<|python_end|>", True),
        ("<|python_start|>[ns.do-it()]", True),
        ("<|python_tag|>[ns.do-it()]", True),
        ("[ns.do-it()]<|python_end|>", False),
        ("<|python_start|>hm", False),
        ("[ns.do-it(a=[1, {'b': None}], **{\"c d\": True})]", True),
        ("[ns.do-it(1)]", False),
        ("[ns.do-it(a=true)]", False),
        ("[get_weather(unit='c', city='x', days=3)]", True),
        ("[get_weather(unit='k', city='x', days=3)]", False),
        ("[get_weather(city='x', days='3')]", False),
        ("[get_weather(city='123456789', days=3)]", False),
        (r"[get_weather(city='\'\n\x41\u00e9\"', days=3, tags=[True,False])]", True),
    ],
)
def test_pythonic_calls_and_text(text: str, accepted: bool) -> None:
    assert accepts("pythonic", text) is accepted


@pytest.mark.parametrize(("name", "call"), [("llama3_json", LLAMA_CALL), ("pythonic", "[ns.do-it()]")])
def test_levels_and_choices(name: str, call: str) -> None:
    weather = call.replace("ns.do-it", "get_weather")
    assert not accepts(name, weather)
    assert accepts(name, weather, strict="names")
    assert accepts(name, call, tool_choice="required")
    assert accepts(name, call, tool_choice=NAMED)
    assert not accepts(name, weather, tool_choice=NAMED, strict="names")
    assert not accepts(name, call.replace("ns.do-it", "rm"), strict="names")
    two = f"{call}; {call}" if name == "llama3_json" else "[ns.do-it(), ns.do-it()]"
    assert accepts(name, two)
    assert not accepts(name, two, parallel_tool_calls=False)


def test_a_tool_that_may_not_be_called_is_not_written_as_a_call() -> None:
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    assert accepts("pythonic", "see [ns.do-it()]", tool_choice=only)
    assert not accepts("pythonic", "see [get_weather(", tool_choice=only)


def test_a_name_that_python_cannot_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'3d' cannot be the name") as caught:
        dovetail.format("pythonic").grammar([tool("3d", None)])
    assert caught.value.param == "tools[0].function.name"


@pytest.mark.parametrize(("name", "call"), [("llama3_json", LLAMA_CALL), ("pythonic", "[ns.do-it()]")])
def test_a_call_beside_json_content_needs_its_marker(name: str, call: str) -> None:
    json_content = {"response_format": {"type": "json_object"}}
    marker = "<|python_tag|>" if name == "llama3_json" else "<|python_start|>"
    content = '{"name": "rm", "parameters": {"x": "[ns.do-it()]"}}'
    assert accepts(name, content, **json_content)
    assert accepts(name, marker + call, **json_content)
    assert accepts(name, call, **json_content) is (name == "llama3_json")  # which is JSON, and so content
    for text, calls in ((content, 0), (marker + call, 1)):
        reader = dovetail.format(name).reader(TOOLS, thinking=False, tokenizer=HOT[name], structured=True)
        message = dovetail.fold([*reader.feed("", encoded(text, HOT[name])), *reader.finish()])
        assert len(message.calls) == calls
        assert message.content == (content if not calls else "")
        assert not message.defects


_letters = st.text(st.sampled_from("ab(]-^é\n"), min_size=1, max_size=5)


@given(st.lists(_letters, max_size=5), st.lists(st.text("xab(]<[", max_size=4), min_size=1, max_size=8), st.booleans())
def test_a_regex_of_texts_that_are_not_a_word(words: list[str], texts: list[str], whole: bool) -> None:
    regex = re.compile(plain_text.others(words, plain_text.in_class("<["), not_first="x", whole=whole))
    for text in (*texts, *words, *(word + "<" for word in words), *(word[:-1] for word in words)):
        named = text in words if whole else any(map(text.startswith, words))
        free = bool(text) and text[0] != "x" and not {"<", "["} & {*text} and not named
        assert bool(regex.fullmatch(text)) is free


# -- whatever is chosen -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strict", proof_but(["names", "schema"], "schema"))
@pytest.mark.parametrize("name", NAMES)
def test_every_short_output_is_valid_calls_or_text(name: str, strict: Any) -> None:
    tokenizer = HOT[name]
    end = ends_of(name, tokenizer)[0]
    matcher = constraint(name, tokenizer, thinking=False, strict=strict)
    hot = [*range(256, 256 + 15), *(tokenizer.control[it] for it in ("<|python_tag|>",))]
    read_back = 0

    def walk(ids: list[int]) -> None:
        nonlocal read_back
        for token in hot:
            if not matcher.advance(token):
                continue
            longer = [*ids, token]
            if matcher.advance(end):
                check(name, [*longer, end], strict)
                read_back += 1
                matcher.rollback(1)
            if len(longer) < 4:
                walk(longer)
            matcher.rollback(1)

    walk([])
    assert read_back > 1000


@pytest.mark.parametrize("name", NAMES)
def test_walks_end_in_valid_calls_or_text(name: str) -> None:
    tokenizer = HOT[name]
    ends = ends_of(name, tokenizer)
    called = spoken = 0
    for seed in range(120):
        rng = random.Random(seed)
        choice: Any = ("auto", "required", NAMED)[seed % 3]
        strict: Any = ("schema", "names")[seed // 3 % 2]
        matcher = constraint(name, tokenizer, thinking=False, tool_choice=choice, strict=strict)
        ids: list[int] = []
        while not set(ends) & set(ids) and len(ids) < 300:
            options = sorted(allowed(matcher, tokenizer))
            hot = [token for token in options if token >= 256 and token not in ends]
            closers = [
                token for token in options if tokenizer.token_bytes(token) in (b'"', b"'", b"}", b"]", b")", b"1")
            ]
            last = [token for token in options if token in ends] if rng.random() < 0.2 else []
            token = rng.choice(rng.choice([pool for pool in (options, hot, hot, closers, last, last) if pool]))
            assert matcher.advance(token)
            ids.append(token)
        if not set(ends) & set(ids):
            continue
        message = check(name, ids, strict)
        called += bool(message.calls)
        spoken += not message.calls
        assert message.calls or choice == "auto"
        assert choice != NAMED or {call.name for call in message.calls} == {"ns.do-it"}
    assert called > 10
    assert spoken > 5


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_models(name: str) -> None:
    """Where it is calls that are valid, or no call; and then the turn ends."""
    path = SHARED / "vectors" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"the vectors of other engines ({path}) are not beside this checkout")
    seen = 0
    for case in json.loads(path.read_text()):
        tools = list({it["function"]["name"]: it for it in case.get("tools") or ()}.values())
        text = case.get("model_text")
        if not tools or text is None:
            continue
        message = dovetail.format(name).parse(text, tools, thinking=False)
        schemas = {it["function"]["name"]: it["function"].get("parameters") or {} for it in tools}
        # Text after a call, or between two lists of calls, is not allowed in a turn that ends in calls.
        after = bool(message.calls) and not re.search(r"(\}|\]|<\|python_end\|>)$", text)
        between = len(re.findall(r"\)\]|<\|python_tag\|>", text)) > 1
        valid = all(
            call.name in schemas
            and jsonschema.Draft202012Validator(schemas[call.name]).is_valid(json.loads(call.arguments))
            for call in message.calls
            if not message.defects
        )
        # Text that only begins like a call is read as text, and not allowed either.
        begun = not message.calls and re.search(r"<\|python_tag\|>|\[\w+\(", text)
        if message.defects or after or between or begun or not valid or "</|python_tag|>" in text:
            continue
        seen += 1
        assert accepts(name, text, tools, strict="schema" if message.calls else "names", silent=not is_visible(text)), (
            text
        )
    assert seen > 15


# -- both writers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> Any:
    pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")
    from tests.grammar import test_structural_tag

    return test_structural_tag.Both


def _texts(name: str) -> Iterator[str]:
    call = LLAMA_CALL if name == "llama3_json" else "[ns.do-it()]"
    weather = (
        '{"name": "get_weather", "parameters": {"city": "a\\"b", "days": 3}}'
        if name == "llama3_json"
        else "[get_weather(unit='c', city='a\\'b', days=3, tags=[True]), ns.do-it(a={'b': [None]}, **{'c d': 1})]"
    )
    for made in (call, weather, f"Hm. <b>{call}", f"<think>a < b</think>{weather}", f"<|python_tag|>{call}"):
        yield made
        for at in range(len(made)):
            yield made[:at] + made[at + 1 :]
            yield made[:at] + made[at] + made[at:]
            yield made[:at] + '[{("<'[at % 5] + made[at + 1 :]


@pytest.mark.parametrize("strict", ["names", "schema"])
@pytest.mark.parametrize("name", NAMES)
def test_both_writers_stop_at_the_same_place(name: str, strict: Any, both: Any) -> None:
    tokenizer = HOT[name]
    ends = tuple(ends_of(name, tokenizer))
    for choice in ("auto", NAMED):
        grammar = dovetail.format(name).grammar(UNBOUND, thinking=False, strict=strict, tool_choice=choice)
        matchers = both(grammar, tokenizer, ends)
        for text in _texts(name):
            ids = [*encoded(text, tokenizer), ends[0]]
            first, second = matchers.accepted_counts(ids)
            assert first == second, (text, ids[: min(first, second)])
            matchers.first.rollback(first)
            matchers.second.rollback(second)


@pytest.mark.parametrize("name", NAMES)
def test_both_writers_allow_every_short_output(name: str, both: Any) -> None:
    tokenizer = HOT[name]
    end = ends_of(name, tokenizer)[0]
    grammar = dovetail.format(name).grammar(UNBOUND, thinking=False)
    matchers = both(grammar, tokenizer, (end,))
    hot = [*range(256, 256 + 15), tokenizer.control["<|python_tag|>"], end]

    def walk(depth: int) -> None:
        for token in hot:
            first, second = matchers.advance(token)
            assert first == second
            if first:
                if depth and token != end:
                    walk(depth - 1)
                matchers.rollback(first, second)

    walk(3)
