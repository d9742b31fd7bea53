"""Writes a grammar as a structural tag for xgrammar 0.2, the default of vLLM and SGLang.

Control tokens are written by their ids, so ordinary tokens that spell the same characters are text. Free text is any
token that is not a control token. `tag_schema` writes the JSON Schemas.

A tag cannot forbid control tokens inside a JSON string. There xgrammar reads a token as the characters that it spells,
so the control token `<think>` may be written as text, unless the engine hides control tokens in xgrammar's vocabulary
(docs/decisions/0015).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.grammar import ebnf, numbers, patterns, tag_schema
from dovetail.grammar.nodes import (
    Choice,
    ClientText,
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
    VisibleText,
)

#: What xgrammar refuses in a regex: boundaries, character properties, look-arounds and named groups.
_REFUSED = re.compile(r"\\[bBpPk0-9]|\(\?[^:]")
#: A new line and 32 blanks, as pretty printers write. Without a bound, a model may write blanks until its context is
#: full.
_SPACE = {"max_whitespace_cnt": 33}
#: A rule that never ends, and so never matches. (xgrammar 0.2.7 reads an empty class as all characters beyond ASCII.)
_NOTHING = {"type": "grammar", "grammar": 'root ::= root "x"\n'}


def write(root: Node, control: Mapping[str, int | str], blanks: Sequence[int] = ()) -> dict[str, Any]:
    """The tag, as JSON data. `control`: the ids of all the tokenizer's control tokens, or their literals.
    `blanks`: the ids of the tokens that show nothing, if they are known.

    Raises `ValueError` for a control token without an id.
    """
    return {
        "type": "structural_tag",
        "format": _sequence(_optional(_all_tokens(control)), _format(root, control, blanks)),
    }


def _all_tokens(control: Mapping[str, int | str]) -> dict[str, Any]:
    """A format that never matches and lists all control tokens in a fixed order. Every tag begins with it.

    xgrammar 0.2.8 caches the masks of grammar parts by their shape, in which a token is a number in the order of first
    use. Without this list two grammars of the same shape and with other tokens would share masks
    (tests/grammar/test_xgrammar_cache.py).
    """
    tokens = [{"type": "token", "token": token} for token in sorted(control.values())]
    return _sequence(_NOTHING, *tokens, _format(FreeText(), control, ()))


def _format(node: Node, control: Mapping[str, int | str], blanks: Sequence[int]) -> dict[str, Any]:
    match node:
        case ExactText(text):
            return {"type": "const_string", "value": text}
        case ControlToken(literal):
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no id")
            return {"type": "token", "token": control[literal]}
        case FreeText():
            return {"type": "any_tokens", "exclude_tokens": sorted(control.values())}
        case VisibleText((), ()) if blanks:
            # A text format would read a control token as the characters that it spells.
            others = {"type": "exclude_token", "exclude_tokens": [*sorted(control.values()), *blanks]}
            any_text = _format(FreeText(), control, blanks)
            return _sequence(any_text, others, any_text)
        case VisibleText(without, unlike):
            return {"type": "regex", "pattern": patterns.visible(without, unlike)}
        case Index():
            return {"type": "regex", "pattern": "0|[1-9][0-9]{0,8}"}
        case TextUntil():
            return {"type": "regex", "pattern": _text_before(node)}
        case OtherName(known):
            return {"type": "regex", "pattern": patterns.other_names(known)}
        case JsonSchema(schema):
            spelled = tag_schema.spell(schema)
            if not spelled.unenforced and (regex := numbers.of_schema(spelled.schema)) is not None:
                return {"type": "regex", "pattern": regex}
            return {"type": "json_schema", "json_schema": spelled.schema} | _SPACE
        case Regex(regex):
            return {"type": "regex", "pattern": regex}
        case Rules() | RuleRef():
            return {"type": "grammar", "grammar": ebnf.write(node, control)}
        case ClientText(text, otherwise, end=end):
            if not enforces(node):
                return _format(otherwise, control, blanks)
            return _format(Concat((text, ExactText(end))) if end else text, control, blanks)
        case Loosened(item) | OtherSyntax(item):
            return _format(item, control, blanks)
        case Choice() | Concat() | Maybe() | Repeat() if (whole := _regular(node)) is not None:
            return {"type": "regex", "pattern": whole}
        case Choice(options):
            return _choice([_format(option, control, blanks) for option in options])
        case Concat(items):
            return _sequence(*(_format(item, control, blanks) for item in items or (ExactText(""),)))
        case Maybe(item):
            return _optional(_format(item, control, blanks))
        case Repeat(item, least, most):
            repeated: dict[str, Any] = {"content": _format(item, control, blanks)}
            if most is not None or least > 1:
                return repeated | {"type": "repeat", "min": least, "max": -1 if most is None else most}
            return repeated | {"type": "plus" if least else "star"}


def enforces(node: ClientText) -> bool:
    """Whether a tag can enforce a client's grammar. It cannot leave strings out of it."""
    if not node.is_portable:
        return False
    match node.text:
        case Regex(regex) | Maybe(Regex(regex)) if node.without:
            return not patterns.may_contain(regex, "<")
    return True


def _text_before(node: TextUntil) -> str:
    """A regex, and not `any_text`, because `any_text` allows control tokens even where the engine hides them."""
    pattern = _pattern(node)
    text = patterns.without(node.without) if pattern is None else pattern
    return f"(?:{'|'.join((*map(patterns.quoted, node.words), text))}){patterns.quoted(node.end)}"


def _pattern(node: TextUntil) -> str | None:
    """The pattern of the schema of a text, if a tag can enforce it. A tag has one regex for a text: it cannot combine
    two patterns, and it cannot combine a pattern with `without` unless no matching text has a `<`."""
    regexes = patterns.of_strings(node.schema)
    if len(regexes) != 1 or _REFUSED.search(regexes[0]) or (node.without and patterns.may_contain(regexes[0], "<")):
        return None
    return regexes[0]


def unenforced_in_text(node: TextUntil) -> Iterator[str]:
    """As `unenforced`, for the schema of a text."""
    has_pattern = _pattern(node) is not None
    yield from (f"#/{key}" for key in node.schema if key not in ("pattern", "format") or not has_pattern)


def _regular(node: Node) -> str | None:
    """One regex for a node that is made of regexes and exact texts; None for other nodes, and for one without a regex.
    One regex in place of several formats, because engines bound the depth of a tag."""
    regex = _regex(node)
    return regex[0] if regex is not None and regex[1] else None


def _regex(node: Node) -> tuple[str, bool] | None:
    """A regex for `node`, and whether there is a `Regex` in it; None if the node has other parts."""
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
            regexes = [part for child in children if (part := _regex(child)) is not None]
            if len(regexes) < len(children):
                return None
            between = "|" if isinstance(node, Choice) else ""
            return f"(?:{between.join(each for each, _ in regexes)})", any(has_regex for _, has_regex in regexes)
    return None


def _times(item: Node, times: str) -> tuple[str, bool] | None:
    regex = _regex(item)
    return None if regex is None else (f"(?:{regex[0]}){times}", regex[1])


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    """A sequence without sequences in it, because engines bound the depth of a tag. One element stays alone."""
    flat: list[dict[str, Any]] = []
    for element in elements:
        flat += element["elements"] if element["type"] == "sequence" else [element]
    return {"type": "sequence", "elements": flat} if len(flat) > 1 else flat[0]


def _optional(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"type": "star"} if content["type"] == "plus" else {"type": "optional", "content": content}


def _choice(options: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": options} if len(options) > 1 else options[0]
