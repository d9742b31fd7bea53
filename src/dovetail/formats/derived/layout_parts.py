"""Finds what answers with calls have in common: what is written around each call, and between two of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dovetail.formats.answers.call_envelope import ARGUMENTS, ID, INDEX, KEY, NAME, VALUE
from dovetail.formats.derived.sample_answers import CONTENT, SampleAnswers, common

SLOTS = {NAME: "{name}", ARGUMENTS: "{arguments}", ID: "{id}", INDEX: "{index}", KEY: "{key}", VALUE: "{value}"}
ANY_SLOT = re.compile(f"[{''.join(SLOTS)}]")


class NoLayoutError(Exception):
    """The answers do not have a layout that can be declared. The message says why, for people."""


def in_template(text: str) -> str:
    """`text` with the names of its slots, as a declaration has them."""
    return ANY_SLOT.sub(lambda slot: SLOTS[slot[0]], text)


def after_content(answers: Mapping[str, str], before: str, start: Callable[[str], int]) -> str:
    """What separates calls from the content before them, beside the text `before` each section.

    `start`: finds where a call begins in an answer.
    """
    beside = answers.get("content and a call", "")
    begin = beside.find(CONTENT)
    if begin < 0 or (at := start(beside)) < begin:
        return ""
    between = beside[begin + len(CONTENT) : at]
    return between.removesuffix(before) if between.endswith(before) else ""


def slots(text: str, half: int | None = None) -> tuple[int, int]:
    """Where the slots of a call begin and end: of the only one, or of the first or the second."""
    places = [match.start() for match in ANY_SLOT.finditer(text)]
    if half is not None:
        places = places[len(places) // 2 :] if half else places[: len(places) // 2]
    return places[0], places[-1] + 1


def split_between(samples: SampleAnswers, before: str, between: str, after: str) -> tuple[str, str, str]:
    """The begin of each call, its end, and what separates two, if `between` is all three in the order end, separator,
    begin.

    `before`, `after`: what surrounds all calls.
    """
    atoms = samples.atoms(between)
    end = atoms[: common(atoms, samples.atoms(after))]
    rest = atoms[len(end) :]
    count = common(rest[::-1], samples.atoms(before)[::-1])
    return "".join(rest[len(rest) - count :]), "".join(end), "".join(rest[: len(rest) - count])
