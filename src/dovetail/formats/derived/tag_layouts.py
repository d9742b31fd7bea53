"""The declaration of calls whose parameters are tags, from answers that a chat template writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dovetail.formats.answers.call_envelope import KEY, NAME, VALUE
from dovetail.formats.declared.declared import Declaration, TagCalls
from dovetail.formats.derived.layout_parts import NoLayoutError, after_content, in_template, split_between
from dovetail.formats.derived.sample_answers import SampleAnswers

#: The first tag of a call, with the newlines after it, and the last tag.
_FIRST_TAG = re.compile(r"\s*(?:<[^<>=\s]+>|\[[^\]\s]+\])\n*")
_LAST_TAG = re.compile(r"(?:<[^<>]+>|\[[^\]\s]+\])\s*\Z")


def declaration(samples: SampleAnswers, answers: Mapping[str, str]) -> Declaration:
    one, two_parameters = answers["a call"], answers.get("two parameters")
    if two_parameters is None or one.count(NAME) != 1 or two_parameters.count(KEY) != 2:
        raise NoLayoutError("its calls have neither JSON arguments nor a tag for each parameter")
    begin, between_names, end = _parameter(samples, two_parameters)
    parameter = in_template(f"{begin}{KEY}{between_names}{VALUE}{end}")
    before, rest = one.split(NAME)
    opening = rest[: rest.index(KEY)].removesuffix(begin)
    after = rest[rest.index(VALUE) + 1 :].removeprefix(end)
    call_begin, call_end, separator = before, after, ""
    two = answers.get("two calls")
    if two is not None:
        call_begin, call_end, separator = split_between(samples, before, _between(two, opening, end), after)
    section_begin, section_end = before[: len(before) - len(call_begin)], after[len(call_end) :]
    slot = "calls"
    if not section_begin.strip() and not section_end.strip():
        slot = "call"
        section_begin, call_begin = _wrapper(call_begin)
        call_end, section_end = _wrapper_end(call_end)
        if not section_begin or not section_end:
            raise NoLayoutError("nothing surrounds its calls, whose parameters are tags")
    call = f"{call_begin}{{name}}{opening}{{parameters}}{call_end}"
    empty = answers.get("no parameter", "").partition(NAME)[2]
    nothing = empty.removeprefix(opening).removesuffix(after) if empty.startswith(opening) else ""
    more = after_content(answers, before, lambda text: text.find(NAME))
    return TagCalls(f"{section_begin}{{{slot}}}{section_end}", call, parameter, separator, more, nothing)


def _parameter(samples: SampleAnswers, two: str) -> tuple[str, str, str]:
    """What stands before a key, between a key and its value, and after the value."""
    first, second = two.index(VALUE), two.index(KEY, two.index(VALUE))
    before, between, after = (
        two[two.index(NAME) + 1 : two.index(KEY)],
        two[first + 1 : second],
        two[two.rindex(VALUE) + 1 :],
    )
    begin, end, separator = split_between(samples, before, between, after)
    if separator:
        raise NoLayoutError(f"its parameters are separated by {separator!r}")
    return begin, two[two.index(KEY) + 1 : first], end


def _between(two: str, opening: str, parameter_end: str) -> str:
    """What stands between two calls."""
    start = two.index(VALUE) + 1 + len(parameter_end)
    return two[start : two.index(NAME, start)]


def _wrapper(text: str) -> tuple[str, str]:
    """The tag that opens a section of one call, and the rest of `text`."""
    match = _FIRST_TAG.match(text)
    return (text[: match.end()], text[match.end() :]) if match else ("", text)


def _wrapper_end(text: str) -> tuple[str, str]:
    """`text` up to the tag that ends a section of one call, and that tag."""
    match = _LAST_TAG.search(text)
    return (text[: match.start()], text[match.start() :]) if match else (text, "")
