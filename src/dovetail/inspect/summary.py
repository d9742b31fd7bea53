"""A line of the list of recordings: what one recording is about, in a few figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dovetail.events import CallStart, Defect
from dovetail.gateway.observe.recording import Recording

#: Names of calls, and kinds of defects, that a line has at most, and the characters of a text.
_MOST_NAMES = 8
_LONGEST = 200


class Drafts(NamedTuple):
    """How many tokens were drafted, and how many of them were accepted."""

    drafted: int
    accepted: int


def drafts_of(recording: Recording) -> Drafts | None:
    """The drafts of all steps; None if no step reports drafts."""
    counted = [step for step in recording.steps if step.drafted is not None]
    if not counted:
        return None
    return Drafts(sum(step.drafted or 0 for step in counted), sum(step.accepted for step in counted))


class Summary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recording in the list. `name` and `written` (nanoseconds since the epoch) are the file's; `seconds`: until
    the end of the request.

    `finish` has the reason of each choice, or the type of the error. `defects` has the kinds of defects, and the faults
    of calls. `drafted` and `accepted` are None if no step reports drafts. `unreadable`: why the file is no recording;
    then there is nothing else.
    """

    name: str
    written: int
    bytes: int
    id: str = ""
    api: str = ""
    model: str = ""
    began: str = ""
    seconds: float | None = None
    prompt_tokens: int | None = None
    tokens: int = 0
    drafted: int | None = None
    accepted: int | None = None
    finish: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    redacted: bool = False
    unreadable: str | None = None


def summary_of(recording: Recording, name: str, written: int, size: int) -> Summary:
    """The line of `recording`, which the file `name` of `size` bytes has."""
    drafts = drafts_of(recording)
    return Summary(
        name=name,
        written=written,
        bytes=size,
        id=recording.id[:_LONGEST],
        api=recording.api[:_LONGEST],
        model=(recording.model or "")[:_LONGEST],
        began=recording.began[:_LONGEST],
        seconds=recording.times.get("ended"),
        prompt_tokens=None if recording.prompt is None else recording.prompt.tokens,
        tokens=sum(len(step.tokens) for step in recording.steps),
        drafted=None if drafts is None else drafts.drafted,
        accepted=None if drafts is None else drafts.accepted,
        finish=_few(_finish(recording)),
        calls=_few(_calls(recording)),
        defects=_few(_defects(recording)),
        redacted=recording.redacted,
    )


def _few(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(name[:_LONGEST] for name in dict.fromkeys(names))[:_MOST_NAMES]


def _finish(recording: Recording) -> Iterator[str]:
    if recording.error is not None:
        yield recording.error.type
    yield from (step.finish for step in recording.steps if step.finish is not None)


def _calls(recording: Recording) -> Iterator[str]:
    for step in recording.steps:
        yield from (event.name for event in step.events if isinstance(event, CallStart))


def _defects(recording: Recording) -> Iterator[str]:
    for step in recording.steps:
        yield from (event.kind for event in step.events if isinstance(event, Defect))
        yield from (check.fault for check in step.checks if check.fault is not None)
