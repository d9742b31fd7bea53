"""One chat turn: render -> complete -> parse, as one stream of `Step`s, whoever reads it and however.

`Chat.prepare` turns a request into a `Turn` (it computes, so it is run off the event loop); `Chat.steps` runs the turn:
each of its choices is a sequence of its own in the engine, and their steps come as they are made. A whole answer is the
fold of the same steps, so streaming and not streaming cannot disagree.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Literal, cast

import msgspec

from dovetail.completion import Completion, Engine, Sampling, TokenBatch
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.events import CallEnd, CallStart, Event
from dovetail.formats.base import Format
from dovetail.formats.history import Repair
from dovetail.gateway import prompt as prompting
from dovetail.gateway.apis.chat_request import ChatRequest
from dovetail.gateway.logprobs import ContentLogprob, Speller
from dovetail.gateway.settings import Settings
from dovetail.gateway.stop_strings import SegmentStop
from dovetail.gateway.streams import merged
from dovetail.gateway.validation import CheckedCall, Checking, Checks, checks
from dovetail.grammar import FreeText, Grammar, matcher
from dovetail.grammar.grammar import Writer
from dovetail.grammar.matcher import Matcher
from dovetail.reading import Reader
from dovetail.tokens import Detokenizer, Prompt, Tokenizer

_LOG = logging.getLogger("dovetail.gateway")

FinishReason = Literal["stop", "length", "tool_calls"]


class Step(msgspec.Struct, frozen=True):
    """What one engine step added to choice number `choice`. `finish` is set on the last one of each.

    `logprobs` has one entry for each of `ids` where they were asked for. `drafted`, `cached` and `forced` are as in
    `TokenBatch`. `checked` are the calls that are over with this step; the last one tells how many `retries` there were
    (see `Settings.retry_invalid`), how many tokens were `dropped` for them, and the calls in these.
    """

    choice: int
    events: list[Event]
    ids: tuple[int, ...]
    drafted: int | None
    accepted: int
    finish: FinishReason | None
    logprobs: tuple[ContentLogprob, ...] = ()
    cached: int | None = 0
    forced: int = 0
    checked: tuple[CheckedCall, ...] = ()
    retries: int = 0
    dropped: int = 0
    dropped_calls: tuple[CheckedCall, ...] = ()


#: (choice, retry, tokens that the client has been shown) -> what is to be completed, and who reads it.
Attempt = Callable[[int, int, Sequence[int]], tuple[Completion, Reader]]


class Turn(msgspec.Struct, frozen=True):
    """A request that is ready to run. `id` names the answer.

    There is a completion and a reader for each choice; the completions differ in request id, seed and matcher. `again`
    makes others for a choice that is asked for again, up to `retries` times. `checks` is what answers are checked
    against, and `unenforced` names what the grammar leaves to that, though it was to be enforced.
    """

    id: str
    created: int
    request: ChatRequest
    completions: tuple[Completion, ...]
    repairs: tuple[Repair, ...]
    readers: tuple[Reader, ...]
    again: Attempt
    retries: int
    checks: Checks
    unenforced: tuple[str, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.completions[0].prompt


class Chat:
    """Answers requests for one model: its format, its tokenizer, and an engine that runs it."""

    def __init__(self, engine: Engine, fmt: Format, tokenizer: Tokenizer, settings: Settings) -> None:
        self._engine = engine
        self._format = fmt
        self._tokenizer = tokenizer
        self._settings = settings
        self._speller = Speller(tokenizer)

    def warm_up(self) -> None:
        """Builds the grammar library's view of the vocabulary, once: about a second for 160,000 tokens."""
        matcher.compile(Grammar(FreeText()), self._tokenizer, self._engine.info.eos_ids)
        _ = self._tokenizer.longest_token

    def prepare(self, request: ChatRequest) -> Turn:
        """Everything before the engine. Takes milliseconds; raises `InvalidRequest` or `RenderError`."""
        try:
            return self._prepare(request)
        except RecursionError as error:
            raise InvalidRequest("messages or tools are nested too deeply") from error

    def _prepare(self, request: ChatRequest) -> Turn:
        extension = request.extension
        declared = prompting.DeclaredTools(request, self._format)
        strict = extension.strict or self._settings.strict
        off = extension.repairs_off(self._settings.no_repair)
        messages, repairs = self._format.repair(request.messages, request.tools, off=off)
        prompt = prompting.rendered(request, self._format, messages)
        self._check_length(prompt)
        ids = tuple(prompt.ids(self._tokenizer))
        max_tokens = self._max_tokens(request, len(ids))
        # The prompt is asked and not the request: a template may ignore the switch, or an answer be gone on with.
        left_open = self._format.left_open(prompt)
        with declared.named():
            grammar = self._format.grammar(
                declared.tools,
                tool_choice=request.tool_choice,
                strict=strict,
                thinking=prompting.may_reason(request, self._format, left_open),
                parallel_tool_calls=request.parallel_tool_calls is not False,
                response_format=request.response_format,
            )
            eos_ids = self._engine.info.eos_ids
            constraint = matcher.compile(grammar, self._tokenizer, eos_ids) if grammar else None
            checked = checks(request, declared.tools)
        if grammar is not None and not prompting.can_follow(grammar, request, self._format, left_open):
            raise InvalidRequest(
                f"where this prompt ends, what {self._format.name} says next cannot be constrained yet: leave out "
                "response_format, and the tools or set dovetail.strict to off",
                param="continue_final_message" if request.continue_final_message else "dovetail.strict",
            )
        choices = range(request.n or 1)
        turn_id = f"chatcmpl-{uuid.uuid4().hex}"
        names = [turn_id if choice == 0 else f"{turn_id}-{choice}" for choice in choices]

        def attempt(choice: int, retry: int, shown: Sequence[int]) -> tuple[Completion, Reader]:
            completion = Completion(
                prompt=(*ids, *shown),
                max_tokens=max_tokens - len(shown),
                sampling=_for_choice(request.sampling, choice + retry * len(choices)),
                stop=request.stop_strings,
                logprobs=request.likeliest,
                constraint=_behind(constraint, shown) if constraint else None,
                grammar=None if shown else grammar,
                draft_tokens=extension.draft_tokens,
                request_id=f"{names[choice]}-retry{retry}" if retry else names[choice],
            )
            reader = self._format.reader(
                declared.tools,
                thinking=left_open,
                # An answer may look like a call and be none.
                tool_choice=request.tool_choice if declared.tools else "none",
                tokenizer=self._tokenizer,
                call_prefix=f"call_{turn_id.removeprefix('chatcmpl-')[:16]}_{f'{choice}_' if choice else ''}",
                structured=request.structured,
            )
            return completion, reader

        completions, readers = zip(*(attempt(choice, 0, ()) for choice in choices), strict=True)
        # The likeliest tokens would be the same again.
        retries = self._settings.retry_invalid if declared.tools and request.sampling.temperature else 0
        writer: Writer = "structural_tag" if self._engine.info.enforces == "structural_tag" else "lark"
        unenforced = [origin + pointer for origin, pointer in grammar.unenforced(writer)] if grammar else []
        unenforced = list(map(declared.placed, dict.fromkeys((*unenforced, *checked.unchecked))))
        return Turn(
            id=turn_id,
            created=int(time.time()),
            request=request,
            completions=completions,
            repairs=tuple(repairs),
            readers=readers,
            again=attempt,
            retries=retries,
            checks=checked,
            unenforced=tuple(unenforced),
        )

    def _check_length(self, prompt: Prompt) -> None:
        """Refuse what cannot fit before it is tokenized: that takes a second for a megabyte, and nobody else runs."""
        context = self._engine.info.context
        least = len(prompt.text.encode(errors="replace")) // self._tokenizer.longest_token
        if least >= context:
            raise ContextExceeded(
                f"the prompt is at least {least} tokens, which exceeds the context of {context}", param="messages"
            )

    def _max_tokens(self, request: ChatRequest, prompt: int) -> int:
        context = self._engine.info.context
        room = context - prompt
        if room < 1:
            raise ContextExceeded(
                f"the prompt is {prompt} tokens, which leaves no room for an answer in the context of {context}",
                param="messages",
            )
        asked, field = request.max_new_tokens
        if asked is None:
            return min(room, self._settings.default_max_tokens or room)
        if asked > room:
            raise ContextExceeded(
                f"{field} is {asked} and the prompt is {prompt} tokens, which exceeds the context of {context}: "
                f"ask for at most {room}, or for no {field}",
                param=field,
            )
        return asked

    def steps(self, turn: Turn) -> AsyncGenerator[Step]:
        """The answer, one engine step of one choice at a time, to the last of every choice. Closing the generator
        closes the engine's, which frees their blocks; so does a choice that fails.

        Nothing is read ahead here, but for a step of each other choice. An engine may run on meanwhile, as far as
        `max_tokens` and no further.
        """
        choices = [self._choice(turn, choice) for choice in range(len(turn.completions))]
        return choices[0] if len(choices) == 1 else merged(choices)

    async def _choice(self, turn: Turn, choice: int) -> AsyncGenerator[Step]:
        completion, reader = turn.completions[choice], turn.readers[choice]
        shown: list[int] = []
        held: list[Step] = []  # of the last attempt that came to an end, what the client has not seen
        dropped: list[Step] = []
        for retry in range(turn.retries + 1):
            may_retry = retry < turn.retries
            # A retry may fail, and then it is the attempt before that goes on from what is shown. And what an engine is
            # given as a grammar is that of a whole answer, and cannot be gone on with.
            holding = retry > 0 or (may_retry and self._engine.info.enforces != "constraint")
            attempt: list[Step] = []
            try:
                if retry:  # in threads, as thousands of tokens may have been shown
                    completion, reader = await asyncio.to_thread(turn.again, choice, retry, shown)
                detokenizer = Detokenizer(self._tokenizer)
                output = _Output(turn, choice, completion, reader, detokenizer, self._end_ids, self._speller)
                if shown:
                    await output.replay(shown)
                # The protocol only promises an iterator that can be closed; that is the part of a generator used here.
                batches = cast(AsyncGenerator[TokenBatch], self._engine.complete(completion))
                async with aclosing(batches):
                    async for batch in batches:
                        step = await output.take(batch)
                        if retry and shown:  # what the cache had of the prompt has been told, and that it has this
                            step = msgspec.structs.replace(step, cached=None)
                        over = step.finish is not None or (may_retry and output.invalid)
                        if over or holding or (may_retry and output.called):
                            attempt.append(step)
                        else:
                            shown += step.ids
                            yield step
                        if over:
                            break
                    else:
                        raise EngineError("the engine's output ended without a finish reason")
            except Exception as error:
                if not retry:
                    raise
                _LOG.warning("%s failed, and the answer before it is passed on: %r", completion.request_id, error)
                dropped += attempt
                break
            dropped += held
            held = attempt
            if not (may_retry and output.invalid):
                break
        # After the engine is closed, so that a slow client keeps no blocks for its last step.
        *before, last = held
        for each in before:
            yield each
        tokens = sum(len(each.ids) for each in dropped)
        calls = tuple(call for each in dropped for call in each.checked)
        yield msgspec.structs.replace(_ended(last), retries=retry, dropped=tokens, dropped_calls=calls)

    @functools.cached_property
    def _end_ids(self) -> frozenset[int]:
        control = self._tokenizer.control
        named = (control[literal] for literal in self._format.end_of_turn if literal in control)
        return frozenset((*self._engine.info.eos_ids, *named))


def _for_choice(sampling: Sampling, choice: int) -> Sampling:
    """Seeds go up by one, in 64 bits, so that choices differ and can be had again."""
    if sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice + 2**63) % 2**64 - 2**63)


def _ended(step: Step) -> Step:
    """An attempt's last step as an answer's. One that was broken off behind a call that is not valid is over there:
    what came of the next call with the same step is left out."""
    if step.finish is not None:
        return step
    events = step.events
    begun = max((i for i, event in enumerate(events) if isinstance(event, CallStart)), default=len(events))
    if not any(isinstance(event, CallEnd) for event in events[begun:]):
        events = events[:begun]
    return msgspec.structs.replace(step, events=events, finish="tool_calls")


def _behind(constraint: Matcher, shown: Iterable[int]) -> Matcher:
    """A matcher that has taken what was shown."""
    another = constraint.another()
    for token in shown:
        another.advance(token)
    return another


class _Output:
    """A choice's token batches -> steps: detokenize, cut at stop strings and the end of the turn, read, check."""

    def __init__(
        self,
        turn: Turn,
        choice: int,
        completion: Completion,
        reader: Reader,
        detokenizer: Detokenizer,
        end_ids: frozenset[int],
        speller: Speller,
    ) -> None:
        self._choice = choice
        self._detokenizer = detokenizer
        self._end_ids = end_ids
        self._reader = reader
        self._stop = SegmentStop(completion.stop) if completion.stop else None
        self._speller = None if completion.logprobs is None else speller
        self._checking = Checking(turn.checks)
        #: Whether a call has begun.
        self.called = False

    @property
    def invalid(self) -> bool:
        """Whether a call is over that is not valid."""
        return self._checking.invalid

    async def replay(self, shown: Sequence[int]) -> None:
        """Read on behind `shown`, which was read before."""
        events = await asyncio.to_thread(self._read, shown)
        await self._checking.feed(events, last=False, stopped=False, full=False)

    def _read(self, ids: Sequence[int]) -> list[Event]:
        segments = self._detokenizer.feed(ids)
        if self._stop is not None:
            segments = self._stop.feed(segments)
        return self._reader.feed_segments(segments)

    async def take(self, batch: TokenBatch) -> Step:
        ids, finish = batch.ids, batch.finish
        # The end of the turn is the turn's end, even to an engine that has not been told which token that is.
        end = next((i for i, token in enumerate(ids) if token in self._end_ids), None)
        if end is not None:
            ids, finish = ids[: end + 1], "stop"
        segments = self._detokenizer.feed(ids[:end])
        if finish is not None:
            segments += self._detokenizer.finish()
        matched = False
        if self._stop is not None:
            segments = self._stop.feed(segments)
            matched = self._stop.matched
            if matched:
                finish = "stop"
            elif finish is not None:
                segments += self._stop.finish()
        events = self._reader.feed_segments(segments)
        if finish is not None:
            # Cut at a stop string, a call may be half a call, which nothing in it tells.
            events += self._reader.finish("length" if matched else finish)
        self.called = self.called or any(isinstance(event, CallStart) for event in events)
        before = len(self._checking.calls)
        events = await self._checking.feed(events, last=finish is not None, stopped=matched, full=finish == "length")
        reason: FinishReason | None = finish
        # A turn that was cut at a stop string did not end in order to have its calls run.
        if finish == "stop" and self.called and not matched:
            reason = "tool_calls"
        logprobs: tuple[ContentLogprob, ...] = ()
        if self._speller is not None:
            if len(batch.logprobs) != len(batch.ids):
                raise EngineError("the engine gave no log probabilities, though they were asked for")
            logprobs = self._speller.spell(batch.logprobs[: len(ids)])
        counts, checked = (batch.drafted, batch.accepted), tuple(self._checking.calls[before:])
        return Step(self._choice, events, ids, *counts, reason, logprobs, batch.cached, batch.forced, checked)
