"""The declaration of calls whose arguments are JSON, from answers that a chat template writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from dovetail.formats.answers.call_envelope import ARGUMENTS, ID, INDEX, NAME
from dovetail.formats.declared.declared import Declaration, JsonCalls
from dovetail.formats.declared.named_calls import KeyedCalls, NamedCalls
from dovetail.formats.derived.layout_parts import NoLayoutError, after_content, in_template, slots, split_between
from dovetail.formats.derived.sample_answers import SampleAnswers

#: What a slot is replaced by to parse the object around it.
_AS_JSON = str.maketrans({NAME: "n", ARGUMENTS: "0", ID: "i", INDEX: "0"})


class _Calls(NamedTuple):
    """One answer or two, cut into the texts around calls.

    `before`, `after`: what surrounds the calls. `between`: what separates two; None if there is only one.
    """

    before: str
    call: str
    after: str
    between: str | None


def declaration(samples: SampleAnswers, answers: Mapping[str, str]) -> Declaration:
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
