"""The delimiters of a `response_template` as templates: literals with slots, and a mark where white space may stand.

Taken is what a declaration can express: literals, white space, named groups, alternatives and optional groups. No
pattern runs, so that none can take exponential time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.formats.declared.declaration_checks import SLOT

#: White space, or nothing.
BLANK = "\ufdd2"
_MAX_PATTERN, _MAX_ALTERNATIVES = 1000, 16

#: Escapes, classes, the openings of groups, and single characters.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?<[\w!=]+>?|\(\?[:=!>]|.", re.DOTALL)
_GROUP = re.compile(r"(?<!\\)\(\?:((?:\\.|[^()\\])*)\)(\?(?![?+]))?(?![*+?{])", re.DOTALL)
_SPACE = r"(?:\\[snrt]|[ \n\r\t]|\[(?:\\[snrt]|[ \n\r\t])+\])"
_CLASS = r"(?:\\[wdS]|\.|\[\^?(?:\\.|[^\]\\])+\])"
_ITEM = re.compile(
    rf"\(\?P<(?P<slot>[a-z_]+)>{_CLASS}[*+][?+]?\)"
    rf"|(?P<blank>{_SPACE}[*+?][?+]?|\\s)"
    r"|(?:\\(?P<control>[nrt])|\\(?P<escaped>\W)|(?P<plain>[^\\()\[\]{}|*+?.^$]))(?![*+?{])",
    re.DOTALL,
)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
EXPLODES = " may take exponential time, because it repeats what has a repeat or alternatives"


class Refused(ValueError):
    """A `response_template` that is not valid, or more than a declaration expresses. The message says why."""


def anchors(field: Mapping[str, Any], side: str) -> list[str]:
    """The alternatives of a field's `open` or `close` as templates; empty if it has none.

    A pattern that may also match nothing at the beginning of an answer has "" as an alternative. Raises `Refused`.
    """
    literal, pattern = field.get(side), field.get(f"{side}_pattern")
    if literal is not None and pattern is not None:
        raise Refused(f"it has both {side} and {side}_pattern")
    if pattern is not None:
        return templates(pattern, f"{side}_pattern")
    literals = [literal] if isinstance(literal, str) else [] if literal is None else literal
    if not isinstance(literals, list) or not all(isinstance(each, str) and each for each in literals):
        raise Refused(f"{side} must be a text, or a list of texts")
    if literal == [] or any(SLOT.search(each) for each in literals):
        raise Refused(f"{side} has no markup: {literal!r:.80}")
    if len(literals) > _MAX_ALTERNATIVES or any(len(each) > _MAX_PATTERN for each in literals):
        raise Refused(f"{side} is too long")
    return list(dict.fromkeys(literals))


def templates(pattern: Any, where: str) -> list[str]:
    """The alternatives of a regex, each with `{name}` for a group called `name`. Raises `Refused`."""
    if not isinstance(pattern, str):
        raise Refused(f"{where} must be a text")
    if len(pattern) > _MAX_PATTERN:
        raise Refused(f"{where} has more than {_MAX_PATTERN:,} characters")
    if may_explode(pattern):
        raise Refused(where + EXPLODES)
    made = list(dict.fromkeys(itertools.islice(_expanded(pattern, where), _MAX_ALTERNATIVES + 1)))
    if len(made) > _MAX_ALTERNATIVES:
        raise Refused(f"{where} has more than {_MAX_ALTERNATIVES} alternatives")
    return made


def may_explode(pattern: str) -> bool:
    """Whether a regex repeats a group that has repeats, optional parts or alternatives.

    Without such groups the time that a match takes is bounded by a polynomial.
    """
    pieces = _PIECE.findall(pattern)
    ambiguous = [False]
    for i, piece in enumerate(pieces):
        if piece.startswith("("):
            ambiguous.append(False)
        elif piece == ")" and len(ambiguous) > 1:
            inside = ambiguous.pop()
            if inside and pieces[i + 1 : i + 2] in (["*"], ["+"], ["{"]):
                return True
            ambiguous[-1] = ambiguous[-1] or inside
        elif piece in ("*", "+", "?", "{", "|"):
            ambiguous[-1] = True
    return False


def backtracking(spec: Any) -> str:
    """Which pattern of a response template may take exponential time; "" if none may."""
    waiting = [spec]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            patterns = ((key, value) for key, value in node.items() if str(key).endswith("pattern"))
            for key, value in patterns:
                if isinstance(value, str) and may_explode(value):
                    return f"{key}{EXPLODES}"
        if isinstance(node, Mapping | list):
            waiting.extend(node.values() if isinstance(node, Mapping) else node)
    return ""


def _expanded(pattern: str, where: str) -> Iterator[str]:
    for branch in _branches(pattern):
        group = _GROUP.search(branch)
        if group is None:
            yield _template(branch, where)
            continue
        for inside in (*_branches(group[1]), *([""] if group[2] else [])):
            yield from _expanded(branch[: group.start()] + inside + branch[group.end() :], where)


def _branches(pattern: str) -> list[str]:
    """The alternatives of a regex outside of its groups."""
    branches, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += piece.startswith("(") - (piece == ")")
        if piece == "|" and depth == 0:
            branches.append("")
        else:
            branches[-1] += piece
    return branches


def _template(branch: str, where: str) -> str:
    """A regex without alternatives as a template."""
    at, made = len(branch) - len(branch.removeprefix("^")), ""
    while at < len(branch):
        item = _ITEM.match(branch, at)
        if item is None:
            raise Refused(f"{where} has more than literals, white space and named groups: {branch[at : at + 40]!r}")
        if item["slot"]:
            made += f"{{{item['slot']}}}"
        elif item["blank"]:
            made += BLANK
        else:
            made += _CONTROL.get(item["control"], "") or item["escaped"] or item["plain"]
        at = item.end()
    return made
