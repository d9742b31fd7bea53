"""The token batches of one choice as steps: detokenize, cut at stop strings and the end of the turn, read, validate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from dovetail.completion import TokenBatch
from dovetail.errors import EngineError
from dovetail.events import CallStart, Content, Event, is_visible
from dovetail.gateway.turn.custom_inputs import CustomInputs
from dovetail.gateway.turn.logprobs import ContentLogprob, ContentTokens, Speller
from dovetail.gateway.turn.trace import Trace
from dovetail.gateway.turn.validation import AnswerValidator, ValidatedCall
from dovetail.reading import Reader
from dovetail.tokens import Detokenizer, Segment
from dovetail.tokens.segment_stop import SegmentStop

FinishReason = Literal["stop", "length", "tool_calls"]
#: What a guard kept an answer from: to end without a word, or to repeat itself.
GuardKind = Literal["silent", "loop"]


def says_something(events: Iterable[Event]) -> bool:
    """Whether there is visible content or a call in `events`."""
    return any(isinstance(e, CallStart) or (isinstance(e, Content) and is_visible(e.text)) for e in events)


class Step(msgspec.Struct, frozen=True):
    """What one engine step added to one choice.

    `finish` is set on the last step of each choice. `logprobs` has one entry for each of `ids`, where the request asks
    for them, and `content_logprobs` one for each token of the content in `events`. `reasoning_tokens` is how many of
    `ids` belong to reasoning, its markers included. `drafted`, `accepted`, `cached`, `forced`, `drafts` and
    `prompt_tokens` as in `TokenBatch`. `calls` are the calls that ended in this step. `stop_string` is the stop string
    that ended the answer, if one did. `prompt_logprobs` are on the first step, if the request asks for them: one entry
    for each token of the prompt after the first. `guards`: those that act from this step on. `inserted`: how
    many of the last of `ids` the model did not write, because a guard inserted them.
    """

    choice: int
    events: list[Event]
    ids: tuple[int, ...]
    drafted: int | None
    accepted: int
    finish: FinishReason | None
    logprobs: tuple[ContentLogprob, ...] = ()
    content_logprobs: tuple[ContentLogprob, ...] = ()
    cached: int | None = 0
    forced: int = 0
    reasoning_tokens: int = 0
    calls: tuple[ValidatedCall, ...] = ()
    stop_string: str | None = None
    prompt_logprobs: tuple[ContentLogprob, ...] = ()
    drafts: tuple[int, ...] | None = None
    guards: tuple[GuardKind, ...] = ()
    inserted: int = 0
    prompt_tokens: int | None = None


class OutputReader:
    """Turns the token batches of one choice into steps.

    `custom_tools` are the names of the custom tools: the arguments of their calls become their input, which is text.
    `end_ids` are the tokens that end a turn. `speller` is None when the request asks for no log probabilities.
    """

    def __init__(
        self,
        choice: int,
        reader: Reader,
        detokenizer: Detokenizer,
        validator: AnswerValidator,
        *,
        stop: Sequence[str],
        end_ids: frozenset[int],
        speller: Speller | None,
        custom_tools: frozenset[str] = frozenset(),
    ) -> None:
        self._choice = choice
        self._reader = reader
        self._detokenizer = detokenizer
        self._validator = validator
        self._stop = SegmentStop(stop) if stop else None
        self._end_ids = end_ids
        self._speller = speller
        self._inputs = CustomInputs(custom_tools) if custom_tools else None
        self._content_tokens = None if speller is None else ContentTokens()
        self._called = False
        #: Whether there has been visible content or a call.
        self.said = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the last token read is inside reasoning."""
        return self._reader.in_reasoning

    @property
    def ended_early(self) -> bool:
        """Whether the reader ended the answer, so that its last tokens are not in the message."""
        return self._reader.ended

    async def step(self, batch: TokenBatch) -> Step:
        """The step that `batch` makes. Raises `EngineError` if log probabilities are missing from it."""
        ids, finish = batch.ids, batch.finish
        # An end token ends the turn even if the engine does not know that it does.
        end = next((i for i, token in enumerate(ids) if token in self._end_ids), None)
        if end is not None:
            ids, finish = ids[: end + 1], "stop"
        logprobs = self._logprobs(batch, len(ids))
        events, reasoning_tokens, read = self._read(ids[:end], logprobs)
        if self._reader.ended:
            ids, logprobs, finish = ids[:read], logprobs[:read], "stop"
        last: list[Event] = []
        if finish is not None:
            last += self._reader.feed_segments(self._cut(self._detokenizer.finish(), last=True))
        stop_string = self._stop.matched if self._stop is not None else None
        stopped = stop_string is not None
        if stopped:
            finish = "stop"
        if finish is not None:
            # A stop string may cut a call in half, so the reader gets the reason "length": the output is not complete.
            last += self._reader.finish("length" if stopped else finish)
        if self._content_tokens is not None:
            self._content_tokens.finish(last)
        events += last
        self._called = self._called or any(isinstance(event, CallStart) for event in events)
        self.said = self.said or says_something(events)
        events, calls = await self._validated(events, finish, stopped)
        reason: FinishReason | None = finish
        if finish == "stop" and self._called and not stopped:  # after a stop string, the calls are not to be run
            reason = "tool_calls"
        return Step(
            self._choice,
            events,
            ids,
            batch.drafted,
            batch.accepted,
            reason,
            logprobs=logprobs,
            content_logprobs=() if self._content_tokens is None else self._content_tokens.take(),
            cached=batch.cached,
            forced=batch.forced,
            reasoning_tokens=reasoning_tokens,
            calls=calls,
            stop_string=stop_string,
            prompt_logprobs=self._speller.spell(batch.prompt_logprobs) if self._speller is not None else (),
            drafts=batch.drafts,
            prompt_tokens=batch.prompt_tokens,
        )

    def _read(self, ids: Sequence[int], logprobs: Sequence[ContentLogprob]) -> tuple[list[Event], int, int]:
        """The events of `ids`, how many tokens are reasoning, and how many come before the end of the answer.

        A token is reasoning if the reader is in a reasoning block before or after it. So the count does not depend on
        how many tokens come at once. The reader may end the answer at a token, which is then left out.
        """
        events: list[Event] = []
        reasoning = 0
        for i, token in enumerate(ids):
            before = self._reader.in_reasoning
            segments = self._detokenizer.feed((token,))
            new = self._reader.feed_segments(self._cut(segments, last=False))
            events += new
            if self._reader.ended:
                return events, reasoning, i
            reasoning += before or self._reader.in_reasoning
            if self._content_tokens is not None:
                marker = before != self._reader.in_reasoning or any(segment.control for segment in segments)
                self._content_tokens.add(logprobs[i], new, marker=marker)
        return events, reasoning, len(ids)

    def _cut(self, segments: list[Segment], *, last: bool) -> list[Segment]:
        """`segments` up to the first stop string."""
        if self._stop is None:
            return segments
        segments = self._stop.feed(segments)
        if last and self._stop.matched is None:
            segments += self._stop.finish()
        return segments

    async def _validated(
        self, events: list[Event], finish: Literal["stop", "length"] | None, stopped: bool
    ) -> tuple[list[Event], tuple[ValidatedCall, ...]]:
        """The events, with what the validation adds, and the calls that ended."""
        earlier = len(self._validator.calls)
        events = await self._validator.feed(events)
        if finish is not None:
            events += await self._validator.finish("stop_string" if stopped else finish)
        if self._inputs is not None:
            events = self._inputs.feed(events, last=finish is not None)
        return events, tuple(self._validator.calls[earlier:])

    def _logprobs(self, batch: TokenBatch, count: int) -> tuple[ContentLogprob, ...]:
        """The log probabilities of the first `count` tokens."""
        if self._speller is None:
            return ()
        if len(batch.logprobs) != len(batch.ids):
            raise EngineError("the engine returned no log probabilities, though the request asks for them")
        return self._speller.spell(batch.logprobs[:count])


class TimedOutputReader(OutputReader):
    """Times the stages `parse` and `check`. A check of nothing is not one."""

    def __init__(self, trace: Trace, choice: int, *arguments: Any, **options: Any) -> None:
        super().__init__(choice, *arguments, **options)
        self._trace = trace

    def _read(self, ids: Sequence[int], logprobs: Sequence[ContentLogprob]) -> tuple[list[Event], int, int]:
        begin = time.perf_counter()
        try:
            return super()._read(ids, logprobs)
        finally:
            self._trace.add("parse", begin, time.perf_counter())

    async def _validated(
        self, events: list[Event], finish: Literal["stop", "length"] | None, stopped: bool
    ) -> tuple[list[Event], tuple[ValidatedCall, ...]]:
        begin = time.perf_counter()
        checked, calls = await super()._validated(events, finish, stopped)
        if calls or finish is not None:
            self._trace.add("check", begin, time.perf_counter())
        return checked, calls
