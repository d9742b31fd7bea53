"""Finds what answers with calls have in common: what is written around each call, and between two of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dovetail.formats.answers.call_envelope import ARGUMENTS, ID, INDEX, KEY, NAME, VALUE
from dovetail.formats.declared.declared import Declaration, JsonCalls, TagCalls
from dovetail.formats.declared.named_calls import KeyedCalls, NamedCalls
from dovetail.formats.derived.sample_answers import CONTENT, EMPTY, FIRST, LONG, SECOND, SampleAnswers, common

SLOTS = {NAME: "{name}", ARGUMENTS: "{arguments}", ID: "{id}", INDEX: "{index}", KEY: "{key}", VALUE: "{value}"}
ANY_SLOT = re.compile(f"[{''.join(SLOTS)}]")
#: What a slot is replaced by to parse the object around it.
_AS_JSON = str.maketrans({NAME: "n", ARGUMENTS: "0", ID: "i", INDEX: "0"})
#: The first tag of a call, with the newlines after it, and the last tag.
_FIRST_TAG = re.compile(r"\s*(?:<[^<>=\s]+>|\[[^\]\s]+\])\n*")
_LAST_TAG = re.compile(r"(?:<[^<>]+>|\[[^\]\s]+\])\s*\Z")


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


class _Calls(NamedTuple):
    """One answer or two, cut into the texts around calls.

    `before`, `after`: what surrounds the calls. `between`: what separates two; None if there is only one.
    """

    before: str
    call: str
    after: str
    between: str | None


def json_declaration(samples: SampleAnswers, answers: Mapping[str, str]) -> Declaration:
    calls = _cut(answers["a call"], answers.get("two calls"))
    if _object(calls.call) is None:
        return _named(samples, calls, answers)
    kind = KeyedCalls if f'{{"{NAME}":' in calls.call.replace(" ", "") else JsonCalls
    more = after_content(answers, calls.before, lambda text: (_object(text) or (0, 0))[0])
    call, (before, _, after, between) = in_template(calls.call), calls
    if between is None:
        return kind(f"{before}{{call}}{after}", call, after_content=more)
    own_section = before.strip() and between.startswith(after) and between.endswith(before)
    if own_section and len(between) >= len(before + after):
        return kind(f"{before}{{call}}{after}", call, between[len(after) : len(between) - len(before)], more)
    return kind(f"{before}{{calls}}{after}", call, between, more)


def _named(samples: SampleAnswers, calls: _Calls, answers: Mapping[str, str]) -> Declaration:
    """Calls whose names stand before their arguments."""
    before, call, after, between = calls
    begin, end, separator = before, after, ""
    if between is not None:
        begin, end, separator = split_between(samples, before, between, after)
    before, after = before[: len(before) - len(begin)], after[len(end) :]
    more = after_content(answers, before + begin, lambda text: slots(text)[0])
    slot = "calls" if before.strip() or after.strip() or between is not None else "call"
    return NamedCalls(f"{before}{{{slot}}}{after}", in_template(begin + call + end), separator, more)


def _cut(one: str, two: str | None) -> _Calls:
    start, stop = _object(one) or slots(one)
    before, call, after = one[:start], one[start:stop], one[stop:]
    if two is None:
        return _Calls(before, call, after, None)
    first = _object(two) or slots(two, half=0)
    second = _object(two, first[1]) or slots(two, half=1)
    between, calls = two[first[1] : second[0]], [two[slice(*place)] for place in (first, second)]
    if calls[0] != calls[1]:
        calls = [called.replace(f'"{i}"', f'"{INDEX}"') for i, called in enumerate(calls)]
        call = call.replace('"0"', f'"{INDEX}"')
    if calls != [call, call]:
        raise NoLayoutError("two calls look different")
    if two[: first[0]] != before or two[second[1] :] != after:
        raise NoLayoutError("what surrounds two calls differs from what surrounds one")
    return _Calls(before, call, after, between)


def _object(text: str, at: int = 0) -> tuple[int, int] | None:
    """Where the first JSON object from `at` on that has a name and arguments begins and ends."""
    decoder, parsable = json.JSONDecoder(), text.translate(_AS_JSON)
    for match in re.finditer(r"\{", parsable[at:]):
        start = at + match.start()
        try:
            _, stop = decoder.raw_decode(parsable, start)
        except ValueError:
            continue
        if NAME in text[start:stop] and ARGUMENTS in text[start:stop]:
            return start, stop
    return None


def tag_declaration(samples: SampleAnswers, answers: Mapping[str, str]) -> Declaration:
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
    calls = (json_declaration if ARGUMENTS in one else tag_declaration)(samples, shown)
    return Layout(calls, tuple(shown.items()))
