"""What each library keeps of a schema, found by asking it: does it take values that are valid, and others too?"""

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
#: A text of JSON, whole, is taken or not.
Takes = Callable[[str], bool]

#: Every byte is a token: what a library takes does not hang on the vocabulary.
_BYTES = families.PieceTokenizer(("<end>",), ("{}",))
_END = (_BYTES.control["<end>"],)
_INFO = xgrammar.TokenizerInfo([_BYTES.token_bytes(i) for i in range(_BYTES.vocab_size)], stop_token_ids=list(_END))


def verdict(takes: Takes | None, valid: Iterable[str], invalid: Iterable[str]) -> Verdict:
    """None: the schema was refused. "in part": some of what is invalid is taken, and some is not."""
    if takes is None:
        return "refused"
    narrow = not all(map(takes, valid))
    taken = [takes(text) for text in invalid]
    if not any(taken):
        return "too narrow" if narrow else "enforced"
    if narrow:
        return "narrow and ignored"
    return "ignored" if all(taken) else "in part"


def dovetail_lark(schema: Any) -> Takes | None:
    """As Dovetail has llguidance enforce it."""
    try:
        made = matcher.compile(Grammar(JsonSchema(schema, "x")), _BYTES, _END)
    except SchemaRefused:
        return None

    def takes(text: str) -> bool:
        one = made.another()
        return all(one.advance(token) for token in (*_BYTES.encode(text), *_END))

    return takes


def bare_llguidance(schema: Any) -> Takes | None:
    """The schema as it stands."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    vocabulary = matcher.vocabulary(_BYTES, _END)
    first = llguidance.LLMatcher(vocabulary.library, grammar, log_level=0)
    if first.is_error():
        return None

    def takes(text: str) -> bool:
        one = first.deep_copy()
        ids = _BYTES.encode(text)
        return one.try_consume_tokens(ids) == len(ids) and bool(one.is_accepting())

    return takes


def dovetail_tag(schema: Any) -> Takes | None:
    """As Dovetail's structural tag has xgrammar enforce it."""
    return _tag(Grammar(JsonSchema(schema, "x")).structural_tag(_BYTES.control))


def bare_xgrammar(schema: Any) -> Takes | None:
    """The schema as it stands in a tag, which is how xgrammar's own tags for models have it."""
    return _tag({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def _tag(tag: dict[str, Any]) -> Takes | None:
    try:
        compiled = _COMPILER.compile_structural_tag(json.dumps(tag))
    except Exception:  # whatever the library raises for a schema that it cannot read
        return None

    def takes(text: str) -> bool:
        one = xgrammar.GrammarMatcher(compiled)
        return all(one.accept_token(token) for token in (*_BYTES.encode(text), *_END))

    return takes


_COMPILER = xgrammar.GrammarCompiler(_INFO, max_threads=1)

LIBRARIES: dict[str, Callable[[Any], Takes | None]] = {
    "Dovetail: llguidance": dovetail_lark,
    "llguidance": bare_llguidance,
    "Dovetail: xgrammar": dovetail_tag,
    "xgrammar": bare_xgrammar,
}
WRITERS: dict[str, Writer] = {"Dovetail: llguidance": "lark", "Dovetail: xgrammar": "structural_tag"}


def taken(schema: Any) -> bool:
    """Whether no library refuses it."""
    return all(library(schema) is not None for library in LIBRARIES.values())


def keyword(case: Case) -> dict[str, str]:
    """What each library makes of one case; "listed" where Dovetail's lint says that its grammar does not keep all."""
    found: dict[str, str] = {
        title: verdict(library(case.schema), case.valid, case.invalid) for title, library in LIBRARIES.items()
    }
    for title in WRITERS:
        if listed(title, case.schema):
            found[title] += ", listed"
    return found


def listed(title: str, schema: Any) -> bool:
    """Whether Dovetail's lint says that its grammar for a library does not keep all of a schema."""
    return any(Grammar(JsonSchema(schema, "x")).unenforced(WRITERS[title]))


def collection(data: Path, count: int, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What each library makes of walle's valid schemas below `data`, asked about `count` valid and as many invalid
    values of each: {"schemas": how many, "verdicts": {library: {verdict: how many}}, "wrong": {library: [which]}}."""
    parameters = schemas.read(data / "schemas" / "walle")
    verdicts = {title: Counter[str]() for title in LIBRARIES}
    wrong: dict[str, list[str]] = {title: [] for title in LIBRARIES}
    for name, schema in parameters.items():
        valid, invalid = ([json.dumps(it, ensure_ascii=False) for it in some] for some in instances(schema, count))
        for title, library in LIBRARIES.items():
            said = verdict(library(schema), valid, invalid)
            verdicts[title][said] += 1
            if said != "enforced":
                known = title in WRITERS and listed(title, schema)
                wrong[title].append(f"{name} {said}{', listed' if known else ''}")
        tick()
    return {"schemas": len(parameters), "verdicts": {k: dict(v) for k, v in verdicts.items()}, "wrong": wrong}
