"""Which keywords each library enforces, found by asking it whether it allows valid and invalid values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import llguidance
import xgrammar

from benchmarks.constraint import schemas
from benchmarks.constraint.instances import instances
from benchmarks.constraint.keywords import Case
from dovetail.errors import SchemaRefused
from dovetail.grammar import Grammar, JsonSchema, matcher
from dovetail.grammar.grammar import Writer
from tests.reading import families

Verdict = Literal["enforced", "ignored", "in part", "too narrow", "narrow and ignored", "refused"]
#: Whether a library allows a JSON text.
Takes = Callable[[str], bool]

#: Every byte is a token, so the result does not depend on a vocabulary.
_BYTES = families.PieceTokenizer(("<end>",), ("{}",))
_END = (_BYTES.control["<end>"],)
_INFO = xgrammar.TokenizerInfo([_BYTES.token_bytes(i) for i in range(_BYTES.vocab_size)], stop_token_ids=list(_END))


def verdict(allows: Takes | None, valid: Iterable[str], invalid: Iterable[str]) -> Verdict:
    """What a library makes of a schema; `allows` is None if it refuses it. "in part": it allows some invalid values."""
    if allows is None:
        return "refused"
    narrow = not all(map(allows, valid))
    accepted = [allows(text) for text in invalid]
    if not any(accepted):
        return "too narrow" if narrow else "enforced"
    if narrow:
        return "narrow and ignored"
    return "ignored" if all(accepted) else "in part"


def dovetail_lark(schema: Any) -> Takes | None:
    """The schema as Dovetail spells it for llguidance."""
    try:
        made = matcher.compile(Grammar(JsonSchema(schema, "x")), _BYTES, _END)
    except SchemaRefused:
        return None

    def allows(text: str) -> bool:
        one = made.another()
        return all(one.advance(token) for token in (*_BYTES.encode(text), *_END))

    return allows


def bare_llguidance(schema: Any) -> Takes | None:
    """The schema as it is."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    vocabulary = matcher.vocabulary(_BYTES, _END)
    first = llguidance.LLMatcher(vocabulary.library, grammar, log_level=0)
    if first.is_error():
        return None

    def allows(text: str) -> bool:
        one = first.deep_copy()
        ids = _BYTES.encode(text)
        return one.try_consume_tokens(ids) == len(ids) and bool(one.is_accepting())

    return allows


def dovetail_tag(schema: Any) -> Takes | None:
    """The schema as Dovetail spells it in a structural tag."""
    return _tag(Grammar(JsonSchema(schema, "x")).structural_tag(_BYTES.control))


def bare_xgrammar(schema: Any) -> Takes | None:
    """The schema as it is in a tag, as in xgrammar's own tags for models."""
    return _tag({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def _tag(tag: dict[str, Any]) -> Takes | None:
    try:
        compiled = _COMPILER.compile_structural_tag(json.dumps(tag))
    except Exception:  # whatever the library raises for a schema that it cannot read
        return None

    def allows(text: str) -> bool:
        one = xgrammar.GrammarMatcher(compiled)
        return all(one.accept_token(token) for token in (*_BYTES.encode(text), *_END))

    return allows


_COMPILER = xgrammar.GrammarCompiler(_INFO, max_threads=1)

LIBRARIES: dict[str, Callable[[Any], Takes | None]] = {
    "Dovetail: llguidance": dovetail_lark,
    "llguidance": bare_llguidance,
    "Dovetail: xgrammar": dovetail_tag,
    "xgrammar": bare_xgrammar,
}
WRITERS: dict[str, Writer] = {"Dovetail: llguidance": "lark", "Dovetail: xgrammar": "structural_tag"}


def accepted(schema: Any) -> bool:
    """Whether every library accepts a schema."""
    return all(library(schema) is not None for library in LIBRARIES.values())


def keyword(case: Case) -> dict[str, str]:
    """What each library makes of one case; "listed" if Dovetail's lint lists a keyword as not enforced."""
    verdicts_by_library: dict[str, str] = {
        title: verdict(library(case.schema), case.valid, case.invalid) for title, library in LIBRARIES.items()
    }
    for title in WRITERS:
        if listed(title, case.schema):
            verdicts_by_library[title] += ", listed"
    return verdicts_by_library


def listed(title: str, schema: Any) -> bool:
    """Whether Dovetail's lint lists a keyword of a schema as not enforced by a library."""
    return any(Grammar(JsonSchema(schema, "x")).unenforced(WRITERS[title]))


def collection(data: Path, count: int, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What each library makes of walle's valid schemas below `data`, with up to `count` valid and invalid values of
    each: {"schemas": how many, "verdicts": {library: {verdict: how many}}, "wrong": {library: [which]}}."""
    parameters = schemas.read(data / "schemas" / "walle")
    verdicts = {title: Counter[str]() for title in LIBRARIES}
    wrong: dict[str, list[str]] = {title: [] for title in LIBRARIES}
    for name, schema in parameters.items():
        valid, invalid = ([json.dumps(it, ensure_ascii=False) for it in some] for some in instances(schema, count))
        for title, library in LIBRARIES.items():
            result = verdict(library(schema), valid, invalid)
            verdicts[title][result] += 1
            if result != "enforced":
                known = title in WRITERS and listed(title, schema)
                wrong[title].append(f"{name} {result}{', listed' if known else ''}")
        tick()
    return {"schemas": len(parameters), "verdicts": {k: dict(v) for k, v in verdicts.items()}, "wrong": wrong}
