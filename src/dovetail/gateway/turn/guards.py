"""The guards of an answer: it says something, and it does not repeat itself without end. docs/turns.md

`AnswerGuards.batches` are the token batches of one answer: of its completion, and of a second one where a guard
continues the answer (`continuation`). What reads them sees one answer. `AnswerGuards.noted` adds to the steps what the
guards did. An answer that says something and has no loop passes unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from dovetail.completion import Engine, TokenBatch, TokenLogprob
from dovetail.errors import EngineError
from dovetail.events import Defect, is_visible
from dovetail.gateway.turn.continuation import Continuation, Continued
from dovetail.gateway.turn.loops import TOKENS, LoopDetector
from dovetail.gateway.turn.output import GuardKind, OutputReader, Step
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.turn_request import Loops, TurnRequest


def must_speak(request: TurnRequest, allow_silent: bool) -> bool:
    """Whether answers to `request` have to say something. `allow_silent`: the server's own setting.

    Not where the client decides itself when the answer ends, and not if the message that is continued says something.
    """
    if request.extension.allows_silence(allow_silent) or request.prompts or request.ignore_eos or request.min_tokens:
        return False
    if request.continue_final_message:
        return not _says_something(request.messages[-1])
    return request.add_generation_prompt


def _says_something(message: Mapping[str, Any]) -> bool:
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
    return bool(message.get("tool_calls")) or any(map(is_visible, parts))


class AnswerGuards:
    """Guards one answer of `turn`, which `output` reads. An answer is continued once at most.

    `speaks`: whether it has to say something (`must_speak`). `loops`: what becomes of loops.
    `ends`: the model's own tokens that end a turn. `continuation` is called where an answer is continued.
    """

    def __init__(
        self,
        engine: Engine,
        turn: PreparedTurn,
        number: int,
        output: OutputReader,
        continuation: Callable[[], Continuation],
        *,
        speaks: bool,
        loops: Loops,
        ends: frozenset[int],
    ) -> None:
        self._engine = engine
        self._completion = turn.choices[number].completion
        self._output = output
        self._continuation = continuation
        self._tokenizer = turn.tokenizer
        self._speaks = speaks
        self._loops = loops
        #: Whether loops end the answer, and not only if the client takes every token.
        self._ends_loops = loops in ("stop", "break") and not self._completion.ignore_eos
        self._ends = ends
        self._stops = frozenset(self._completion.stop_token_ids) - ends
        self._ids: list[int] = []
        self._detector: LoopDetector | None = None
        self._continued = False
        #: The guards that have acted, and how many of them the steps have told.
        self._acted: list[GuardKind] = []
        self._told = 0
        #: How many of the last batch's tokens Dovetail inserted.
        self._inserted = 0

    async def batches(self) -> AsyncGenerator[TokenBatch]:
        """The token batches of the answer, up to one with a finish reason. Closing it closes the engine's stream."""
        completion = self._completion
        while True:
            if self._ends_loops:
                completion = msgspec.structs.replace(completion, ends_loops=True)
            continued: Continued | None = None
            # The protocol promises an iterator that can be closed, which is the part of a generator that `aclosing`
            # needs.
            batches = cast(AsyncGenerator[TokenBatch], self._engine.complete(completion))
            async with aclosing(batches):
                async for batch in batches:
                    if self._continued:  # the prompt counts once
                        batch = msgspec.structs.replace(batch, cached=None)
                    if batch.guarded:
                        self._act("silent")
                    if (looped := self._loop_at(batch)) is not None:
                        self._act("loop")
                        yield (batch := self._cut(batch, looped))
                        if batch.finish is not None:
                            return
                        if self._output.in_reasoning:
                            continued = await self._continuation().after_loop(self._ids)
                        if continued is None:
                            yield TokenBatch((), "length", drafted=None, cached=None)
                            return
                        batch = TokenBatch((), drafted=None, cached=None)
                        break
                    if (said_nothing := self._end_of_silence(batch)) is not None:
                        kept = batch.ids[:said_nothing]
                        continued = await self._continuation().after_silence([*self._ids, *kept])
                        if continued is not None:
                            batch = msgspec.structs.replace(
                                batch,
                                ids=kept,
                                finish=None,
                                accepted=min(batch.accepted, len(kept)),
                                logprobs=batch.logprobs[: len(kept)],
                            )
                            self._ids += kept
                            self._act("silent")
                            break
                    self._ids += batch.ids
                    yield batch
            if continued is None:
                raise EngineError("the engine's output ended without a finish reason")
            self._continued = True
            completion = continued.completion
            yield self._with_inserted(batch, continued.inserted)
            self._inserted = 0

    def noted(self, step: Step) -> Step:
        """`step`, which `output` made of the last batch, with what the guards did."""
        acted, self._told = self._acted[self._told :], len(self._acted)
        defects = [] if step.finish is None else [*self._defects(step)]
        if not (acted or defects or self._inserted):
            return step
        events = [*step.events, *defects]
        return msgspec.structs.replace(step, events=events, guards=tuple(acted), inserted=self._inserted)

    def _act(self, guard: GuardKind) -> None:
        if guard not in self._acted:
            self._acted.append(guard)

    def _defects(self, last: Step) -> Iterator[Defect]:
        """What is wrong with the whole answer."""
        for period, count in self._detector.finish() if self._detector is not None else ():
            yield Defect("loop", f"a period of {period} tokens, {count} times")
        stopped = last.stop_string is not None or any(token in self._stops for token in last.ids)
        if self._speaks and last.finish == "stop" and not stopped and not self._output.said:
            yield Defect("silent_turn")

    def _end_of_silence(self, batch: TokenBatch) -> int | None:
        """How many tokens of `batch` come before the model's own end of an answer that may have said nothing."""
        if not self._speaks or self._continued or self._output.said:
            return None
        end = next((i for i, token in enumerate(batch.ids) if token in self._ends or token in self._stops), None)
        if end is None:
            return len(batch.ids) if batch.finish == "stop" else None
        return end if batch.ids[end] in self._ends else None

    def _loop_at(self, batch: TokenBatch) -> int | None:
        """After how many tokens of `batch` the answer is to end because of a loop; None if it is not."""
        if self._loops == "off":
            return None
        if self._detector is None:
            if len(self._ids) + len(batch.ids) < TOKENS:
                return None
            self._detector = self._new_detector()
        found = self._detector.feed(batch.ids)
        if found is None or not self._ends_loops or any(token in self._ends for token in batch.ids[:found]):
            return None
        return found

    def _new_detector(self) -> LoopDetector:
        """A detector that has taken the answer's tokens so far, and none that were cut off."""
        detector = LoopDetector(self._tokenizer)
        detector.feed(self._ids)
        return detector

    def _cut(self, batch: TokenBatch, count: int) -> TokenBatch:
        """The first `count` tokens of `batch`, which end the answer unless it may go on after its reasoning."""
        ids = batch.ids[:count]
        self._ids += ids
        self._detector = self._new_detector()
        goes_on = self._loops == "break" and not self._continued
        return msgspec.structs.replace(
            batch,
            ids=ids,
            finish=None if goes_on else "length",
            accepted=min(batch.accepted, count),
            logprobs=batch.logprobs[:count],
        )

    def _with_inserted(self, batch: TokenBatch, inserted: tuple[int, ...]) -> TokenBatch:
        """`batch` and then the tokens that Dovetail inserts. Nothing else could come, so their probability is 1."""
        self._ids += inserted
        self._inserted = len(inserted)
        self._detector = None
        certain = () if self._completion.logprobs is None else tuple(TokenLogprob(token, 0.0) for token in inserted)
        return msgspec.structs.replace(batch, ids=batch.ids + inserted, logprobs=batch.logprobs + certain)
