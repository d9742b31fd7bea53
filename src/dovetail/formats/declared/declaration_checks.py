"""Refuses a declared format that contradicts itself, when it is made. The message names the attribute."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Set
from typing import TYPE_CHECKING, get_args

from dovetail.formats.base import ReasoningBlock

if TYPE_CHECKING:
    from dovetail.formats.declared.declared import Declaration, DeclaredFormat

#: A slot of a template.
SLOT = re.compile(r"\{([a-z_]+)\}")


def check_slots(where: str, template: str, required: Set[str], optional: Set[str] = frozenset()) -> None:
    """Raise `ValueError` unless `template`, which is called `where`, has each slot once and no others."""
    slots = SLOT.findall(template)
    if not required <= set(slots) <= required | optional or len(slots) > len(set(slots)):
        needed = ", ".join(f"{{{slot}}}" for slot in sorted(required))
        more = ", ".join(f"{{{slot}}}" for slot in sorted(optional))
        raise ValueError(f"{where} must have {needed} once{more and f' and may have {more}'}: {template!r}")


def check_attributes(fmt: type[DeclaredFormat]) -> None:
    """Raise `TypeError` or `ValueError` that names the attribute for one that cannot be meant."""
    declared = {name for base in fmt.__mro__[1:] for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    for name in vars(fmt):
        if not name.startswith("_") and name not in declared:
            near = difflib.get_close_matches(name, declared, 1)
            meant = f"; {near[0]}?" if near else ""
            raise TypeError(f"{fmt.__name__}.{name}: a format has no such attribute{meant}")
    for name in ("name", "controls", "end_of_turn", "calls"):
        if not hasattr(fmt, name):
            raise TypeError(f"{fmt.__name__} needs the attribute {name}")
    for name in ("controls", "end_of_turn", "other_ends", "begin_of_text"):
        literals = getattr(fmt, name)
        if not isinstance(literals, tuple) or not all(isinstance(literal, str) and literal for literal in literals):
            raise TypeError(f"{fmt.__name__}.{name} must be a tuple of literals, such as ('<|end|>',)")
    if fmt.reasoning not in get_args(ReasoningBlock):
        raise ValueError(f"{fmt.__name__}.reasoning must be one of {', '.join(get_args(ReasoningBlock))}")
    check_slots(f"{fmt.__name__}.reasoning_block", fmt.reasoning_block, {"reasoning"})
    check_slots(f"{fmt.__name__}.answer", fmt.answer, {"content"})
    check_slots(f"{fmt.__name__}.wrapped_answer", fmt.wrapped_answer, {"answer"})
    if fmt.end_after_calls and fmt.end_after_calls not in fmt.end_of_turn:
        raise ValueError(f"{fmt.__name__}.end_after_calls must be one of end_of_turn: {fmt.end_after_calls!r}")


def check_calls(calls: Declaration) -> None:
    """Raise `ValueError` for a section that has wrong slots or is a list without commas."""
    check_slots("section", calls.section, {"call"} if "{call}" in calls.section else {"calls"})
    if calls.in_list and "," not in calls.between:
        raise ValueError(f"between must have a comma, because the section is a list: {calls.between!r}")


def check_markers(fmt: type[DeclaredFormat]) -> None:
    """Raise `ValueError` for markers that no reader could tell apart, or after which it reads no call."""
    name, kind = fmt.__name__, fmt.reader_type
    openers = getattr(kind, "openers", ())
    if not all(openers) or (not openers and fmt.script is None):
        raise ValueError(f"{name}.calls: nothing opens them: the section, or the call, must begin with markup")
    for calls, part in itertools.product((fmt.calls, *fmt.other_calls), ("section", "call", "after_content")):
        if end := next((end for end in fmt.end_of_turn if end in getattr(calls, part)), ""):
            raise ValueError(
                f"{name}.calls: {end!r} ends a turn, so that it cannot stand in the {part} of calls;"
                " if it stands between two messages of one turn, it belongs in inside_turns and not in end_of_turn"
            )
    marks = {mark.strip() for mark in (kind.think, kind.think_end, *openers, *kind.ends)}
    for group in (kind.controls, sorted(marks)):
        for mark, other in itertools.permutations(group, 2):
            if other.startswith(mark):
                raise ValueError(f"{name}: the marker {mark!r} is also the beginning of {other!r}")
    if kind.think.strip() == kind.think_end.strip():
        raise ValueError(f"{name}.reasoning_block must end in another tag than it begins with: {fmt.reasoning_block!r}")
