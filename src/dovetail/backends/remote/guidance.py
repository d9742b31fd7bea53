"""Grammars for vLLM's guidance backend, which is llguidance: another version than ours, with less room, and one end.

vLLM 0.32 brings llguidance 1.7.6 and vLLM 0.33 brings 1.9.1; both give it its own limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.backends.remote.dialect import lark
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.errors import SchemaRefused
from dovetail.grammar import Choice, Control, Grammar, Optional, Sequence
from dovetail.grammar.schemas.references import placed, pointer

#: Of all lists together: 1.7.6 makes as many rules before it counts them. With 100,000 it fails, and for 10^8 it takes
#: more memory than there is, in the process that answers everybody.
MOST_ITEMS = 10_000
#: In one object: four entries for each are in one row of its parser, which has room for 2,000 of them.
MOST_OPTIONAL = 450


def write(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The grammar in Lark, with the end of the turn behind it: vLLM tells llguidance of the tokenizer's own end and no
    other, and models have several. Raises `InvalidRequest`, and `SchemaRefused` for what it cannot take.

    Ends are optional, though an answer has one: 1.7.6 cannot roll the tokenizer's own back where it has to come.
    """
    _check(grammar)
    ends = {f"[{token}]": token for token in vocabulary.eos_ids}
    whole = Sequence((grammar.root, Optional(Choice(tuple(map(Control, ends))))))
    return lark(Grammar(whole), {**vocabulary.control, **ends})


def _check(grammar: Grammar) -> None:
    items = 0.0
    for held in grammar.schemas():
        for schema, path in _objects(held.schema):
            items += max(_number(schema.get(key)) for key in ("minItems", "maxItems"))
            if items > MOST_ITEMS:
                why = f"is where lists get to have more than {MOST_ITEMS:,} items"
            elif _optional(schema) > MOST_OPTIONAL:
                why = f"has more than {MOST_OPTIONAL} properties that are not required"
            else:
                continue
            told = (
                f"{held.origin} cannot be enforced by vLLM's guidance backend: {placed(pointer(path), held.at)} {why}"
            )
            raise SchemaRefused(told, param=held.origin)


def _objects(schema: Any) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """All objects in it, each with its path: schemas, and what looks like one."""
    pending: list[tuple[Any, tuple[str, ...]]] = [(schema, ())]
    while pending:
        value, path = pending.pop()
        if isinstance(value, Mapping):
            yield value, path
            pending += ((inner, (*path, key)) for key, inner in value.items())
        elif isinstance(value, list):
            pending += ((inner, (*path, str(i))) for i, inner in enumerate(value))


def _number(value: Any) -> float:
    return min(value, MOST_ITEMS + 1) if isinstance(value, int | float) else 0


def _optional(schema: Mapping[str, Any]) -> int:
    names, required = schema.get("properties"), schema.get("required")
    if not isinstance(names, Mapping):
        return 0
    needed = required if isinstance(required, list) else []
    return len(names.keys() - {name for name in needed if isinstance(name, str)})
