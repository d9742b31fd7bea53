"""A mention is no call: texts that explain markup come out untouched, as an answer and inside open reasoning.

The texts are those of `prose/` in every format, and the project's own pages and sources, each in a few formats.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

import dovetail
from dovetail.formats.registry import FAMILIES
from dovetail.formats.turn import Turn
from tests.drift.corpus import WORDS, around, cases, pieces, prose, reasons_itself
from tests.reading import families

ROOT = Path(__file__).parents[2]
TOOLS = next(case.tools for case in cases() if len(case.tools) > 1)
PAGES = sorted([*(ROOT / "src/dovetail").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "CHANGELOG.md"])
#: How many formats read a page as a whole.
_FORMATS_A_PAGE = 3
#: Every family, as each has markers of its own.
families_all = pytest.mark.parametrize("family", FAMILIES)
#: Slow under a tracer, and the first test runs the same lines.
not_traced = pytest.mark.untraced
reasoning_all = pytest.mark.parametrize("family", [name for name in FAMILIES if families.reasons(name, True)])


@functools.cache
def own() -> dict[str, list[str]]:
    """Paragraphs of the project's pages and sources, and the pages as a whole, by the formats that read them.

    Which formats these are depends on the text alone, so that a change of one page changes nothing about the others.
    """
    names = list(FAMILIES)
    shared: dict[str, list[str]] = {name: [] for name in names}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").strip()
        paragraphs = filter(None, map(str.strip, re.split(r"\n\s*\n", text)))
        for piece, count in ((text, _FORMATS_A_PAGE), *((paragraph, 1) for paragraph in paragraphs)):
            first = zlib.crc32(piece.encode())
            for number in range(count):
                shared[names[(first + number) % len(names)]].append(piece)
    return shared


def untouched(name: str, text: str, *, reasoning: bool, cut: bool) -> str | None:
    """How the text came out, whole or in pieces; None if it is what went in, without a call and without a Defect."""
    before, after = around(name, reasoning=reasoning)
    output = before + text + after
    turn = Turn(families.format_of(name), tools=TOOLS, left_open=reasoning and families.opened(name, True))
    reader = turn.reader()
    parts = pieces(output, len(text)) if cut else [output]
    message = dovetail.fold([*(event for part in parts for event in reader.feed(part)), *reader.finish()])
    meant = (WORDS.content, text) if reasoning else (text, "")
    if (message.content, message.reasoning, message.calls, message.defects) == (*meant, (), ()):
        return None
    return f"{text!r} was read as {message}"


def is_answer(name: str, text: str) -> bool:
    """Whether the whole text is a call, though to no tool of the request, or holds messages of the family."""
    openers = getattr(families.format_of(name).reader_type, "openers", ())
    begins = text.startswith(tuple(opener.strip() for opener in openers)) and text.endswith(">")
    return begins or (name == "muse" and "<|end|><|start|>assistant" in text)


def faults(name: str, texts: Iterable[str], *, reasoning: bool) -> list[str]:
    """How the texts came out that did not come out as they were, each read whole and in pieces."""
    apart = (t for t in texts if not (reasons_itself(name, t, reasoning=reasoning) or is_answer(name, t)))
    read = (untouched(name, text, reasoning=reasoning, cut=cut) for text in apart for cut in (False, True))
    return [fault for fault in read if fault is not None]


@families_all
def test_an_answer_about_markup(family: str) -> None:
    assert not faults(family, (text for _, text in prose()), reasoning=False)


@not_traced
@reasoning_all
def test_reasoning_about_markup(family: str) -> None:
    assert not faults(family, (text for _, text in prose()), reasoning=True)


@not_traced
@families_all
def test_answers_that_are_the_project_itself(family: str) -> None:
    assert not faults(family, own()[family], reasoning=False)


@not_traced
@reasoning_all
def test_reasoning_that_is_the_project_itself(family: str) -> None:
    assert not faults(family, own()[family], reasoning=True)
