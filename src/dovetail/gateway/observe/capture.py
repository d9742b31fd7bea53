"""Gathers what the recording of a request needs while the request runs, and hands it to the folder of recordings.

While the request runs, steps are only collected. The thread that writes the file makes the recording.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect

from dovetail.completion import Picture
from dovetail.errors import DovetailError
from dovetail.events import Call, Event, fold
from dovetail.gateway.observe.captured_bodies import (
    MOST_BODY,
    NO_FILE,
    CapturedBodies,
    CapturedBody,
    CapturedPicture,
    without_pictures,
)
from dovetail.gateway.observe.grammar_replay import Allowed, GrammarReplay, MaskBudget
from dovetail.gateway.observe.recording import (
    MOST_BYTES,
    NOTHING,
    PromptSegment,
    RecordedCall,
    RecordedError,
    RecordedLanes,
    RecordedLogprob,
    RecordedMessage,
    RecordedOptions,
    RecordedPicture,
    RecordedPrompt,
    RecordedRepair,
    RecordedStep,
    RecordedTokenizer,
    Recording,
    RefusedBy,
    Token,
    encode,
    joined,
)
from dovetail.gateway.observe.recording_folder import RecordingFolder, RecordingOptions
from dovetail.gateway.observe.redaction import redacted
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.records.record import model_digest
from dovetail.gateway.turn.logprobs import ContentLogprob
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Observer, PreparedTurn
from dovetail.grammar.guard import Guarded
from dovetail.grammar.matcher import Matcher
from dovetail.tokens import Detokenizer, Tokenizer

#: The most steps of a recording; the last step of each choice comes on top.
_MOST_STEPS = 32_768
#: The most masks that are computed for a recording, and the most seconds that this may take. A mask takes about
#: 0.05 ms, and a hundred times as long for some grammars.
_MOST_MASKS, _MASKS_S = 16_384, 1.0

#: Tokens that are shown before the place where a prompt leaves the last one.
_MOST_SHARED = 20


class Captured(NamedTuple):
    """A request that has ended. `ended` is by `time.perf_counter`."""

    body: CapturedBody
    report: RequestReport
    turn: PreparedTurn | None
    steps: Sequence[tuple[float, Step]]
    steps_left_out: int
    error: BaseException | None
    ended: float
    pictures: Sequence[CapturedPicture] = ()

    def release(self) -> None:
        """Drop what the client sent."""
        for captured in (self.body, *(picture.file for picture in self.pictures)):
            captured.release()


class Capture(Observer):
    """Gathers one request until it ends, and hands it to `captures`."""

    def __init__(self, captures: Captures, body: CapturedBody, report: RequestReport) -> None:
        self._captures = captures
        self._body = body
        self._report = report
        self._turn: PreparedTurn | None = None
        self._pictures: Sequence[CapturedPicture] = ()
        self._steps: list[tuple[float, Step]] = []
        self._left_out = 0

    def prepared(self, turn: PreparedTurn) -> None:
        self._turn = turn
        if not turn.recorded:
            self._body.release()
        elif turn.request.pictures:
            # The files are dropped here, because recordings wait longer than requests run.
            self._pictures = [*map(self._captures.picture, turn.choices[0].completion.pictures)]
            self._turn = _without_files(turn)

    def step(self, step: Step) -> None:
        if self._turn is None or not self._turn.recorded:
            return
        if len(self._steps) < _MOST_STEPS or step.finish is not None:
            self._steps.append((time.perf_counter(), step))
        else:
            self._left_out += 1

    def ended(self, error: BaseException | None) -> None:
        ended = time.perf_counter()
        if self._turn is None or self._turn.recorded:
            self._captures.put(
                Captured(
                    self._body, self._report, self._turn, self._steps, self._left_out, error, ended, self._pictures
                )
            )


class Captures:
    """Captures every request, or those that ask for it. Raises `OSError` without a folder."""

    def __init__(self, options: RecordingOptions) -> None:
        self._folder = RecordingFolder(options.folder, options.limits)
        self._options = options
        self._bodies = CapturedBodies()

    async def begin(self, body: bytes, report: RequestReport) -> Capture | None:
        """The capture of the request with this body; None if nothing is written any more."""
        if self._folder.stopped:
            return None
        if len(body) > MOST_BODY and (self._options.when == "always" or b'"recording"' in body):
            body = await asyncio.to_thread(without_pictures, body)
        return Capture(self, self._bodies.capture(body, MOST_BODY), report)

    def picture(self, picture: Picture) -> CapturedPicture:
        """What is recorded of `picture`."""
        recorded = RecordedPicture(picture.sha256, picture.media_type, len(picture.data))
        file = self._bodies.capture(picture.data, MOST_BYTES) if self._options.pictures else NO_FILE
        return CapturedPicture(recorded, file)

    def wants(self, requested: bool | None) -> bool:
        """Whether a request is recorded whose `dovetail.recording` is `requested`."""
        return self._options.when == "always" if requested is None else requested

    def put(self, captured: Captured) -> None:
        """Write the recording of `captured`, later."""
        report = captured.report
        began = datetime.fromtimestamp(report.began, UTC)
        name = captured.turn.id if captured.turn is not None else f"{report.api}-{time.monotonic_ns():x}"
        make = functools.partial(self._made, captured, name)
        if not self._folder.put(f"{began:%Y%m%dT%H%M%S}.{began.microsecond // 1000:03}Z-{name}", make):
            captured.release()

    def close(self) -> None:
        """Write the recordings that wait."""
        self._folder.close()

    def _made(self, captured: Captured, name: str) -> bytes | None:
        """The file of `captured`; None for a refused request that did not ask for one where only those are recorded."""
        try:
            if captured.turn is None and self._options.when != "always" and not captured.body.asks_for_recording:
                return None
            recording = recording_of(captured, name)
        finally:
            captured.release()
        recording = redacted(recording) if self._options.redact else recording
        return encode(recording, min(MOST_BYTES, self._folder.most_bytes))


@functools.lru_cache(maxsize=16)
def _recorded_tokenizer(tokenizer: Tokenizer) -> RecordedTokenizer:
    return RecordedTokenizer(model_digest("", tokenizer).hex(), tokenizer.vocab_size)


def recording_of(captured: Captured, name: str) -> Recording:
    """The recording of `captured`, whose answer has the id `name`."""
    report, turn = captured.report, captured.turn
    body = captured.body.data if captured.body.data is None else without_pictures(captured.body.data)
    left_out = ["request"] * (body is None)
    if turn is not None and len(turn.choices) > turn.request.choices:
        left_out.append("prompts after the first")
    if captured.steps_left_out:
        left_out.append(f"{captured.steps_left_out} steps")
    budget = MaskBudget(_MOST_MASKS, _MASKS_S)
    steps = () if turn is None else tuple(_steps(captured, turn, budget))
    if budget.exceeded:
        left_out.append("what the grammar allowed at later tokens")
    events = _events(captured)
    messages = tuple(RecordedMessage(choice, *_parts(events[choice])) for choice in sorted(events))
    return Recording(
        id=name,
        request_id=report.id,
        api=str(report.api),
        model=report.model and _clean(report.model),
        began=datetime.fromtimestamp(report.began, UTC).isoformat(timespec="milliseconds"),
        request=NOTHING if body is None else _json(body),
        repairs=() if turn is None else tuple(_repairs(turn)),
        options=None if turn is None else _options(turn),
        prompt=None if turn is None else _prompt(turn),
        grammar=None if turn is None else _grammar(turn),
        steps=steps,
        events=joined(events[min(events)]) if events else (),
        message=messages[0] if messages else None,
        messages=messages,
        error=None if captured.error is None else _error(captured.error),
        times=_times(captured),
        stages={stage: times.busy_s for stage, times in report.trace.stages.items()},
        left_out=tuple(left_out),
        format=None if turn is None else turn.language.format.name,
        pictures=tuple(picture.recorded for picture in captured.pictures),
        prefix=None if turn is None else turn.prefix,
        lanes=None if turn is None else _lanes(turn),
        tokenizer=None if turn is None else _recorded_tokenizer(turn.tokenizer),
    )


def _without_files(turn: PreparedTurn) -> PreparedTurn:
    """`turn` without its pictures, because recordings wait longer than requests run."""
    completions = (msgspec.structs.replace(choice.completion, pictures=()) for choice in turn.choices)
    choices = (choice._replace(completion=each) for choice, each in zip(turn.choices, completions, strict=True))
    request = msgspec.structs.replace(turn.request, pictures=())
    return msgspec.structs.replace(turn, request=request, choices=tuple(choices))


def _clean(text: str) -> str:
    """`text` without lone surrogates, which no JSON file can have."""
    return text.encode(errors="replace").decode()


def _json(body: bytes) -> msgspec.Raw:
    """`body` as it is, or as a string if it is not JSON."""
    try:
        msgspec.json.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(body.decode(errors="replace")))
    return msgspec.Raw(body)


def _repairs(turn: PreparedTurn) -> Iterator[RecordedRepair]:
    for repair in turn.repairs:
        yield RecordedRepair(repair.kind, _clean(repair.where), _clean(repair.detail), repair in turn.new_repairs)


def _options(turn: PreparedTurn) -> RecordedOptions:
    request = turn.request
    sampling = msgspec.to_builtins(request.sampling, str_keys=True)
    return RecordedOptions(
        max_tokens=turn.max_tokens,
        sampling=sampling,
        stop=tuple(map(_clean, request.stop)),
        tools=len(turn.language.tools or ()),
        structured=request.response_format is not None,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        unenforced=tuple(map(_clean, turn.unenforced)),
        omitted=request.omitted,
        most_drafts=turn.most_drafts,
    )


def _prompt(turn: PreparedTurn) -> RecordedPrompt:
    segments = tuple(_segments(turn.prompt, turn.tokenizer))
    return RecordedPrompt(len(turn.prompt), turn.language.left_open, segments, turn.prompt)


def _segments(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[PromptSegment]:
    run: list[int] = []
    for token in ids:
        if (literal := tokenizer.control_literals.get(token)) is None:
            run.append(token)
            continue
        if run:
            yield _text_segment(run, tokenizer)
            run = []
        yield PromptSegment(literal, True, 1)
    if run:
        yield _text_segment(run, tokenizer)


def _text_segment(ids: Sequence[int], tokenizer: Tokenizer) -> PromptSegment:
    detokenizer = Detokenizer(tokenizer)
    text = "".join(segment.text for segment in (*detokenizer.feed(ids), *detokenizer.finish()))
    return PromptSegment(text, False, len(ids))


def _lanes(turn: PreparedTurn) -> RecordedLanes | None:
    if turn.prefix is None or turn.prefix.cause is None or turn.sent is None:
        return None
    tokenizer, at, left = turn.tokenizer, turn.prefix.kept, turn.sent.left
    shared = turn.prompt[max(0, at - _MOST_SHARED) : at]
    lanes = []
    for behind in (left, turn.prompt[at : at + len(left)]):
        detokenizer = Detokenizer(tokenizer)
        lanes.append(tuple(_token(token, detokenizer, tokenizer) for token in (*shared, *behind)))
    return RecordedLanes(lanes[0][: len(shared)], *(lane[len(shared) :] for lane in lanes))


def _grammar(turn: PreparedTurn) -> str | None:
    grammar, constraint = turn.grammar, turn.constraint
    if isinstance(constraint, Matcher | Guarded):
        return _clean(constraint.lark)  # it was written for the library already
    return None if grammar is None else _clean(grammar.lark(turn.tokenizer.control))


def _steps(captured: Captured, turn: PreparedTurn, budget: MaskBudget) -> Iterator[RecordedStep]:
    tokenizer = turn.tokenizer
    detokenizers: dict[int, Detokenizer] = {}
    replays: dict[int, GrammarReplay] = {}
    # Without all tokens, the grammar cannot be taken through them.
    constraint = None if captured.steps_left_out else turn.constraint
    for at, step in captured.steps:
        detokenizer = detokenizers.setdefault(step.choice, Detokenizer(tokenizer))
        accepted = min(step.accepted, len(step.ids))
        drafts = step.drafts or ()
        allowed = None
        if constraint is not None:
            if step.choice not in replays:
                replays[step.choice] = GrammarReplay(constraint, tokenizer.vocab_size, budget)
            allowed = replays[step.choice].step(step.ids, accepted, drafts)
        yield RecordedStep(
            choice=step.choice,
            at=round(at - captured.report.arrived, 6),
            tokens=tuple(_token(token, detokenizer, tokenizer) for token in step.ids),
            drafted=step.drafted,
            accepted=step.accepted,
            forced=step.forced,
            cached=step.cached,
            events=tuple(step.events),
            checks=tuple(RecordedCall(call.tool, call.fault) for call in step.calls),
            finish=step.finish,
            stop_string=None if step.stop_string is None else _clean(step.stop_string),
            refused=None if step.drafts is None else tuple(_alone(each, tokenizer) for each in drafts[accepted:]),
            refused_by=_refused_by(step, drafts[accepted:], allowed),
            allowed=None if allowed is None else allowed.counts,
            logprobs=tuple(map(_logprob, step.logprobs)) or None,
            guards=step.guards,
            inserted=step.inserted,
        )


def _refused_by(step: Step, refused: Sequence[int], allowed: Allowed | None) -> RefusedBy | None:
    if not refused:
        return None
    if step.finish is not None and step.accepted >= len(step.ids):
        return "end"
    return "grammar" if allowed is not None and allowed.refuses else "model"


def _alone(token: int, tokenizer: Tokenizer) -> Token:
    """A token that is part of no text."""
    detokenizer = Detokenizer(tokenizer)
    text = "".join(segment.text for segment in (*detokenizer.feed((token,)), *detokenizer.finish()))
    return Token(token, text, token in tokenizer.control_literals)


def _logprob(entry: ContentLogprob) -> RecordedLogprob:
    return RecordedLogprob(entry.logprob, tuple((_clean(top.token), top.logprob) for top in entry.top_logprobs))


def _token(token: int, detokenizer: Detokenizer, tokenizer: Tokenizer) -> Token:
    text = "".join(segment.text for segment in detokenizer.feed((token,)))
    return Token(token, text, token in tokenizer.control_literals)


def _events(captured: Captured) -> dict[int, list[Event]]:
    """The events of each choice; none if a piece of a message is missing."""
    events: dict[int, list[Event]] = {}
    for _, step in () if captured.steps_left_out else captured.steps:
        events.setdefault(step.choice, []).extend(step.events)
    return events


def _parts(events: Sequence[Event]) -> tuple[str, str, tuple[Call, ...]]:
    message = fold(events)
    return message.content, message.reasoning, message.calls


def _error(error: BaseException) -> RecordedError:
    if isinstance(error, asyncio.CancelledError | ClientDisconnect):
        return RecordedError("disconnected", "the client left before the end of the answer")
    # The message of any other exception is for the server's log only.
    return RecordedError(type(error).__name__, _clean(error.message) if isinstance(error, DovetailError) else "")


def _times(captured: Captured) -> dict[str, float]:
    report = captured.report
    points = {
        "prepared": report.prepared,
        "admitted": report.admitted,
        "first": report.first,
        "last": report.last,
        "ended": captured.ended,
    }
    return {name: round(at - report.arrived, 6) for name, at in points.items() if at is not None}
