"""`--retry-invalid`: a choice with an invalid call is generated again, while the client has not seen that call."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from dovetail.events import CallEnd, CallStart
from dovetail.gateway.turn.output import Step

_LOG = logging.getLogger("dovetail.gateway")


class Attempt(Protocol):
    """One completion of a choice, as it runs. `called`: a call has begun. `invalid`: an invalid call has ended."""

    request_id: str

    @property
    def called(self) -> bool: ...

    @property
    def invalid(self) -> bool: ...

    def steps(self) -> AsyncGenerator[Step]:
        """Its steps, up to the one with a finish reason. Closing the generator ends the completion."""


#: (retry, tokens that the client has) -> the attempt that continues from them. Retry 0 is the first attempt.
NewAttempt = Callable[[int, Sequence[int]], Awaitable[Attempt]]


async def with_retries(new_attempt: NewAttempt, retries: int, *, buffer_all: bool) -> AsyncGenerator[Step]:
    """The steps of a choice, of which at most `retries` attempts were dropped for an invalid call.

    Steps are buffered from the first call on, and from the beginning with `buffer_all`; the client gets the others at
    once, and each later attempt continues after them. When a retry fails, the attempt before it is the answer.
    """
    shown: list[int] = []
    buffered: list[Step] = []  # the last complete attempt, except for the steps that the client has
    dropped: list[Step] = []
    for retry in range(retries + 1):
        may_retry = retry < retries
        steps: list[Step] = []
        attempt: Attempt | None = None
        try:
            attempt = await new_attempt(retry, shown)
            async with aclosing(attempt.steps()) as running:
                async for step in running:
                    broken_off = may_retry and attempt.invalid
                    if step.finish is not None or broken_off or retry or (may_retry and (buffer_all or attempt.called)):
                        steps.append(step)
                    else:
                        shown += step.ids
                        yield step
                    if broken_off:
                        break
        except Exception as error:
            if not retry:
                raise
            name = f"retry {retry}" if attempt is None else attempt.request_id
            _LOG.warning("%s failed; the client gets the attempt before it: %r", name, error)
            dropped += steps
            break
        dropped += buffered
        buffered = steps
        if not (may_retry and attempt.invalid):
            break
    # The attempt is closed before its last steps are yielded, so that a slow client does not keep its cache blocks.
    *earlier, last = buffered
    for step in earlier:
        yield step
    yield msgspec.structs.replace(
        _finished(last),
        retries=retry,
        dropped_tokens=sum(len(step.ids) for step in dropped),
        dropped_calls=tuple(call for step in dropped for call in step.calls),
    )


def _finished(step: Step) -> Step:
    """The last step of the answer. If its attempt was broken off at an invalid call, the answer ends with that call:
    the beginning of another call in the same step is left out."""
    if step.finish is not None:
        return step
    events = step.events
    start = max((i for i, event in enumerate(events) if isinstance(event, CallStart)), default=len(events))
    if not any(isinstance(event, CallEnd) for event in events[start:]):
        events = events[:start]
    return msgspec.structs.replace(step, events=events, finish="tool_calls")
