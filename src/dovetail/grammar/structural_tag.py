"""Writes a grammar as a structural tag for xgrammar 0.2 (vLLM's and SGLang's default).

Control tokens are named by their ids, so that their spelling in ordinary tokens is none, and text takes any token but
those. Arguments are JSON with white space and keys in the declared order, as the Lark writer has them.

What becomes of a schema is said by `tag_schema`.

One thing a tag cannot say: no control token inside a JSON string. There xgrammar takes a token for what it spells, so
`<think>` the token may stand for `<think>` the text, unless its vocabulary hides that (docs/decisions/0015).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.grammar import ebnf, patterns, tag_schema
from dovetail.grammar.nodes import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Index,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherName,
    OtherSyntax,
    Regex,
    Repeat,
    RuleRef,
    Rules,
    TextUntil,
)

#: In a regex: boundaries, properties of characters, what looks around or has a name.
_REFUSED = re.compile(r"\\[bBpPk0-9]|\(\?[^:]")
#: Of white space in a row: as pretty printers write it, a new line and 32. A model may be fond of it.
_SPACE = {"max_whitespace_cnt": 33}
#: What never ends, and so never matches. (A class of no characters is one of all beyond ASCII to xgrammar 0.2.7.)
_NOTHING = {"type": "grammar", "grammar": 'root ::= root "x"\n'}


def write(root: Node, control: Mapping[str, int]) -> dict[str, Any]:
    """The tag, as JSON data. `control` are all control tokens of the tokenizer with their ids.

    Raises `ValueError` for a control token without an id.
    """
    return {"type": "structural_tag", "format": _sequence(_optional(_roll_call(control)), _format(root, control))}


def _roll_call(control: Mapping[str, int]) -> dict[str, Any]:
    """What never matches, and names all that `_format` names tokens by, in an order that is always the same.

    xgrammar 0.2.8 keeps masks of parts of grammars by their shape, in which a token is its place among those that the
    grammar names: without this it takes the masks of one grammar for another's (tests/grammar/test_xgrammar_cache.py).
    """
    tokens = [{"type": "token", "token": token} for token in sorted(control.values())]
    return _sequence(_NOTHING, *tokens, _format(FreeText(), control))


def unenforced(schema: Any) -> tuple[str, ...]:
    """JSON pointers of the keywords in a schema that a tag does not keep, or not all of it."""
    return tag_schema.written(schema).unenforced


def _format(node: Node, control: Mapping[str, int]) -> dict[str, Any]:
    match node:
        case ExactText(text):
            return {"type": "const_string", "value": text}
        case ControlToken(literal):
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no id")
            return {"type": "token", "token": control[literal]}
        case FreeText():
            return {"type": "any_tokens", "exclude_tokens": sorted(control.values())}
        case Index():
            return {"type": "regex", "pattern": "0|[1-9][0-9]{0,8}"}
        case TextUntil():
            return {"type": "regex", "pattern": _text_before(node)}
        case OtherName(known):
            return {"type": "regex", "pattern": patterns.other_names(known)}
        case JsonSchema(schema):
            return {"type": "json_schema", "json_schema": tag_schema.written(schema).schema} | _SPACE
        case Regex(regex):
            return {"type": "regex", "pattern": regex}
        case Rules() | RuleRef():
            return {"type": "grammar", "grammar": ebnf.write(node)}
        case Loosened(item) | OtherSyntax(item):
            return _format(item, control)
        case Choice() | Concat() | Maybe() | Repeat() if (whole := _regular(node)) is not None:
            return {"type": "regex", "pattern": whole}
        case Choice(options):
            return _choice([_format(option, control) for option in options])
        case Concat(items):
            return _sequence(*(_format(item, control) for item in items or (ExactText(""),)))
        case Maybe(item):
            return _optional(_format(item, control))
        case Repeat(item, least, most):
            repeated: dict[str, Any] = {"content": _format(item, control)}
            if most is not None or least > 1:
                return repeated | {"type": "repeat", "min": least, "max": -1 if most is None else most}
            return repeated | {"type": "plus" if least else "star"}


def _text_before(node: TextUntil) -> str:
    """As a regex, and not as `any_text`, which takes control tokens for text even where they are hidden."""
    kept = _kept_pattern(node)
    text = patterns.without(node.without) if kept is None else kept
    return f"(?:{'|'.join((*map(patterns.quoted, node.words), text))}){patterns.quoted(node.end)}"


def _kept_pattern(node: TextUntil) -> str | None:
    """The pattern that the text has to match; None: any. Two cannot be kept at once, and that the text holds none of
    `without` goes before. Of what xgrammar refuses in patterns, nothing is kept."""
    found = patterns.of_strings(node.schema)
    if len(found) != 1 or _REFUSED.search(found[0]) or (node.without and patterns.may_hold(found[0], "<")):
        return None
    return found[0]


def unenforced_of_text(node: TextUntil) -> Iterator[str]:
    """As `unenforced`, for the schema of a text."""
    kept = _kept_pattern(node) is not None
    yield from (f"#/{key}" for key in node.schema if key not in ("pattern", "format") or not kept)


def _regular(node: Node) -> str | None:
    """A regex for what patterns and literals make up, since engines bound how deep a tag may be; None if there is more
    in it, or no pattern."""
    found = _regex(node)
    return found[0] if found is not None and found[1] else None


def _regex(node: Node) -> tuple[str, bool] | None:
    """A regex of `node`, and whether there is a pattern in it."""
    match node:
        case Regex(regex):
            return f"(?:{regex})", True
        case ExactText(text):
            return patterns.quoted(text), False
        case Maybe(item):
            return _times(item, "?")
        case Repeat(item, least, most):
            return _times(item, f"{{{least},{'' if most is None else most}}}")
        case Choice(children) | Concat(children):
            found = [_regex(child) for child in children]
            regexes = [each[0] for each in found if each is not None]
            if len(regexes) < len(found):
                return None
            between = "|" if isinstance(node, Choice) else ""
            return f"(?:{between.join(regexes)})", any(each is not None and each[1] for each in found)
    return None


def _times(item: Node, times: str) -> tuple[str, bool] | None:
    found = _regex(item)
    return None if found is None else (f"(?:{found[0]}){times}", found[1])


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    """Without a sequence in it, or of one element: engines bound how deep a tag may be."""
    flat: list[dict[str, Any]] = []
    for element in elements:
        flat += element["elements"] if element["type"] == "sequence" else [element]
    return {"type": "sequence", "elements": flat} if len(flat) > 1 else flat[0]


def _optional(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"type": "star"} if content["type"] == "plus" else {"type": "optional", "content": content}


def _choice(options: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": options} if len(options) > 1 else options[0]
