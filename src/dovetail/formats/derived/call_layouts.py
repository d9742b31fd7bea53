"""Derives the declaration of a family's calls from answers that a chat template writes.

The answers have one call, two calls, no parameter, two parameters, and content before a call (`sample_answers`). What
they have in common is the layout of a section, of a call, and of a parameter.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail.formats.answers.call_envelope import ARGUMENTS, NAME
from dovetail.formats.declared.declared import Declaration
from dovetail.formats.derived import json_layouts, tag_layouts
from dovetail.formats.derived.layout_parts import NoLayoutError
from dovetail.formats.derived.sample_answers import CONTENT, EMPTY, FIRST, LONG, SECOND, SampleAnswers


class Layout(NamedTuple):
    """What the answers show.

    `calls`: the declaration.
    `answers`: (what was rendered, the answer with slots) of each answer that was compared.
    """

    calls: Declaration
    answers: tuple[tuple[str, str], ...]

    @property
    def opening(self) -> str:
        """The text before a call's name."""
        first = self.answers[0][1]
        return first[: first.index(NAME)].strip()


def layout(samples: SampleAnswers, *, both: bool) -> Layout:
    """The layout of the calls. `both`: whether content stands beside them in one turn.

    Raises `NoLayoutError`, and `ValueError` for a layout that no declaration expresses.
    """
    one = samples.calling(FIRST)
    if one is None:
        raise NoLayoutError("what it writes is not made of a name, and of arguments as JSON or as keys and values")
    answers = {
        "a call": one,
        "two calls": samples.calling(FIRST, SECOND),
        "content and a call": samples.calling(FIRST, content=CONTENT) if both else None,
    }
    if ARGUMENTS not in one:
        answers |= {"two parameters": samples.calling(LONG), "no parameter": samples.calling(EMPTY)}
    shown = {name: answer for name, answer in answers.items() if answer is not None}
    calls = (json_layouts if ARGUMENTS in one else tag_layouts).declaration(samples, shown)
    return Layout(calls, tuple(shown.items()))
