"""Our grammars beside xgrammar's own tags for the same models, on valid and invalid answers.

Where the two differ, `DIFFERENCES` says why; a difference that goes away is noticed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.constraint.model_tags import MODEL_TAGS
from dovetail.errors import RenderError
from dovetail.events import Call, Message
from dovetail.grammar.matcher import compile
from dovetail.tokens import Prompt, Segment
from tests.grammar.test_structural_tag import TOOLS, compiler, ids_of, parts

pytestmark = pytest.mark.slow

xgrammar = pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")

_GOOD = {"city": "Paris", "days": 3}


def _call(i: int = 0, name: str = "get_weather", arguments: Mapping[str, Any] = _GOOD, **layout: Any) -> Call:
    return Call(f"functions.{name}:{i}", name, json.dumps(arguments, ensure_ascii=False, **layout))


def _said(*calls: Call, content: str = "", reasoning: str = "") -> Message:
    return Message(content, reasoning, calls)


_TEXT = "I look it up."
#: What a model may say. Calls that stand alone stand first, as some families have them.
VALID: dict[str, Message] = {
    "text": _said(content=_TEXT),
    "nothing": _said(),
    "a call": _said(_call()),
    "two calls": _said(_call(), _call(1, arguments={"city": "Rom", "days": 0, "unit": "c"})),
    "text and a call": _said(_call(), content=_TEXT),
    "text and two calls": _said(_call(), _call(1), content=_TEXT),
    "all keys": _said(_call(arguments={"city": "x", "days": 9, "tags": [True, False], "unit": "f"})),
    "a list that is empty": _said(_call(arguments={"city": "x", "days": 9, "tags": []})),
    "quotes and lines": _said(_call(arguments={"city": 'a "b"\n<c> & é\\', "days": 1})),
    "no white space": _said(_call(separators=(",", ":"))),
    "lines and indents": _said(_call(indent=2)),
    "a tool without parameters": _said(_call(name="ns.do-it", arguments={})),
    "any arguments": _said(_call(name="ns.do-it", arguments={"a": {"b": [1, "x", None]}})),
    "reasoning": _said(content=_TEXT, reasoning="Hm."),
    "reasoning and a call": _said(_call(), reasoning="Hm."),
}
#: And what not.
INVALID: dict[str, Message] = {
    "an unknown name": _said(_call(name="rm")),
    "a name that goes on": _said(_call(name="get_weather_now")),
    "a missing key": _said(_call(arguments={"city": "x"})),
    "an undeclared key": _said(_call(arguments={**_GOOD, "zone": 1})),
    "a key twice": _said(Call("functions.get_weather:0", "get_weather", '{"city": "x", "city": "y", "days": 1}')),
    "a number for a string": _said(_call(arguments={"city": 3, "days": 3})),
    "a word for a number": _said(_call(arguments={"city": "x", "days": "three"})),
    "a number out of bounds": _said(_call(arguments={"city": "x", "days": 10})),
    "a value that is not listed": _said(_call(arguments={**_GOOD, "unit": "k"})),
    "too long a list": _said(_call(arguments={**_GOOD, "tags": [True] * 3})),
    "keys in another order": _said(_call(arguments={"days": 3, "city": "x"})),
    "arguments that are not JSON": _said(Call("functions.get_weather:0", "get_weather", '{"city": "x" "days": 3}')),
    "arguments that are no object": _said(Call("functions.get_weather:0", "get_weather", "[]")),
}

_TYPES_FROM_THE_SCHEMA = "qwen3_coder glm47 minimax_m2"
_STRAIGHT_AFTER = " ".join(it for it in MODEL_TAGS if it not in ("kimi_k3", "minimax_m2", "harmony"))
_CALLS_OF_HARMONY = [it for it, message in VALID.items() if message.calls and "two" not in it]

#: (outputs, formats, (do we take it, does xgrammar's own tag), why).
DIFFERENCES: list[tuple[list[str], str, tuple[bool, bool], str]] = [
    (["nothing"], " ".join(MODEL_TAGS), (False, True), "an answer says something"),
    (["a number for a string"], _TYPES_FROM_THE_SCHEMA, (True, True), "it is the string of these digits"),
    (["two calls", "text and two calls"], "harmony", (False, False), "the end of a call is the end of the turn"),
    (_CALLS_OF_HARMONY, "harmony", (True, False), "its tag has no space behind the recipient; the model's library has"),
    (
        ["a tool without parameters"],
        "qwen3_coder",
        (True, False),
        "its tag wants an empty line, which the template lacks",
    ),
    (
        ["a line after calls"],
        "hermes qwen3 qwen3_coder llama3_json",
        (True, True),
        "a model writes the line before it decides whether another call comes",
    ),
    (
        ["text after calls", "a line after calls"],
        _STRAIGHT_AFTER,
        (False, True),
        "no template writes it; a turn ends here",
    ),
    (["text after calls", "a line after calls"], "minimax_m2", (False, True), "the same"),
]


def expected(name: str, output: str) -> tuple[bool, bool]:
    return next(
        (verdict for outputs, formats, verdict, _ in DIFFERENCES if output in outputs and name in formats.split()),
        (output in VALID,) * 2,
    )


def thinks(name: str, message: Message) -> bool:
    """Whether the prompt left room for reasoning. MiniMax's tag takes an answer without for one that has to close an
    empty block, which its prompts have done."""
    return bool(message.reasoning) or name == "minimax_m2"


@functools.cache
def own_tag(name: str, thinking: bool) -> Any:
    """xgrammar's tag for the model, compiled."""
    fmt, tokenizer, ends = parts(name)
    # "enabled" is for prompts that open the block.
    reasoning = "disabled" if not thinking else "auto" if fmt.reasoning == "written" else "enabled"
    tag = xgrammar.get_model_structural_tag(MODEL_TAGS[name], TOOLS, reasoning=reasoning)
    # Harmony's tag has the ends of turns in it.
    return compiler(tokenizer, () if name == "harmony" else ends, False).compile_structural_tag(tag)


def verdicts(name: str, ids: list[int], thinking: bool) -> tuple[bool, bool]:
    """Whether we take all of it, and whether xgrammar's own tag does."""
    fmt, tokenizer, ends = parts(name)
    grammar = fmt.grammar(TOOLS, thinking=thinking)
    assert grammar is not None
    ours = compile(grammar, tokenizer, ends)
    theirs = xgrammar.GrammarMatcher(own_tag(name, thinking), terminate_without_stop_token=name == "harmony")
    return all(map(ours.advance, ids)), all(map(theirs.accept_token, ids))


@pytest.mark.parametrize("output", [*VALID, *INVALID])
@pytest.mark.parametrize("name", MODEL_TAGS)
def test_tags_on_written_calls(name: str, output: str) -> None:
    fmt, tokenizer, _ = parts(name)
    message = {**VALID, **INVALID}[output]
    if message.reasoning and fmt.reasoning == "none":
        return
    thinking = thinks(name, message)
    try:
        ids = fmt.write(message, thinking=thinking).ids(tokenizer)
    except RenderError:
        assert output.startswith("arguments that are no")  # tags have no words for them
        return
    assert verdicts(name, ids, thinking) == expected(name, output)


@pytest.mark.parametrize(("output", "text"), [("text after calls", " Done."), ("a line after calls", "\n")])
@pytest.mark.parametrize("name", MODEL_TAGS)
def test_tags_on_text_after_calls(name: str, output: str, text: str) -> None:
    fmt, tokenizer, _ = parts(name)
    thinking = thinks(name, VALID["a call"])
    segments = list(fmt.write(VALID["a call"], thinking=thinking).segments)
    segments[-1:-1] = [Segment(text, False)]
    assert verdicts(name, Prompt(segments).ids(tokenizer), thinking) == expected(name, output)


#: A call spelled another way: what is written, what instead, and as above.
SPELLINGS: list[tuple[str, str, str, tuple[bool, bool], str]] = [
    ("kimi_k25", ":0<", ":00<", (False, True), "calls are counted, not padded"),
    ("kimi_k25", "functions.get", "get", (False, False), "the id has its prefix"),
    ("kimi_k3", 'index="1"', 'index="01"', (False, True), "calls are counted, not padded"),
    ("kimi_k25", '"Paris"', '"Par\\u0069s"', (False, True), "llguidance has only the escapes that JSON needs"),
    ("kimi_k25", '"Paris"', '"a\\/b"', (False, True), "the same"),
    ("qwen3", '{"name"', '{ "name"', (False, False), "the envelope has one spelling"),
    ("qwen3", "\n</tool_call>", "</tool_call>", (False, False), "the same"),
    ("llama3_json", "; ", "; ; and ", (False, True), "its tag takes any text between calls"),
    ("deepseek_v32", 'string="true"', 'string="false"', (False, False), "the schema says which"),
    ("deepseek_v32", 'name="days" string="false"', 'name="days" string="true"', (False, False), "the same"),
    ("deepseek_v32", "\n\n<", "<", (True, True), "white space in front of calls is free"),
    ("qwen3_coder", "\nParis\n", "Paris", (False, True), "the template has a value on lines of its own"),
    ("glm47", "get_weather<", "get_weather\n<", (False, True), "4.7 has no newlines between its tags"),
    ("minimax_m2", ">Paris<", ">\nParis\n<", (True, True), "newlines of a string"),
    ("harmony", " <|constrain|>", "<|constrain|>", (False, True), "the library of the model writes a space"),
    (
        "harmony",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        (True, True),
        "the recipient may stand in front of the channel",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
        (True, True),
        "the chat template's way",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary to=functions.ns.do-it <|constrain|>json",
        (False, False),
        "there is one recipient",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "verdict", "why"), SPELLINGS)
def test_tags_on_other_spellings(name: str, old: str, new: str, verdict: tuple[bool, bool], why: str) -> None:
    fmt, tokenizer, _ = parts(name)
    output = VALID["two calls" if name == "llama3_json" else "a call"]
    thinking = thinks(name, output)
    text = fmt.write(output, thinking=thinking).text
    assert old in text
    assert verdicts(name, ids_of(text.replace(old, new, 1), tokenizer), thinking) == verdict, why


#: Families that have all calls of an answer in one section. xgrammar's tags take another one behind it.
_ONE_SECTION = (
    "kimi_k2 kimi_k2_thinking kimi_k25 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 minimax_m2"
)


@pytest.mark.parametrize("name", [name for name in MODEL_TAGS if name not in ("harmony", "kimi_k3")])
def test_tags_on_two_sections(name: str) -> None:
    fmt, tokenizer, _ = parts(name)
    thinking = thinks(name, VALID["a call"])
    first = fmt.write(VALID["a call"], thinking=thinking).segments
    second = fmt.write(VALID["a call"], thinking=False).segments
    ids = Prompt([*first[:-1], *second]).ids(tokenizer)
    assert verdicts(name, ids, thinking) == (name not in _ONE_SECTION.split(), True)
