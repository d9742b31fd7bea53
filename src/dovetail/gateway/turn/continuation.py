"""The completion that continues an answer which ended too early: its tokens so far, the end of reasoning, and on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec

from dovetail.completion import Completion, EngineInfo
from dovetail.gateway.turn.output import says_something
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.grammar import Grammar
from dovetail.tokens import Segment
from dovetail.tokens.segment_stop import SegmentStop


class Continued(NamedTuple):
    """The completion that goes on, and the tokens before it that the model did not write."""

    completion: Completion
    inserted: tuple[int, ...]


class Continuation:
    """Continues one answer of `turn`, for an engine with this `info`.

    `ends`: the model's tokens that end a turn. `plain_grammar` makes the grammar of an answer without reasoning.
    """

    def __init__(
        self,
        turn: PreparedTurn,
        number: int,
        info: EngineInfo,
        ends: frozenset[int],
        plain_grammar: Callable[[], Grammar | None],
    ) -> None:
        self._turn = turn
        self._choice = turn.choices[number]
        self._info = info
        self._ends = ends
        self._plain_grammar = plain_grammar

    async def after_silence(self, ids: Sequence[int]) -> Continued | None:
        """How the answer `ids`, which the model ended, goes on; None if it says something, or cannot go on."""
        return await asyncio.to_thread(self._after_silence, ids)

    async def after_loop(self, ids: Sequence[int]) -> Continued | None:
        """How an answer goes on whose reasoning is to end after `ids`; None if it cannot."""
        return await asyncio.to_thread(self._after, ids, in_reasoning=True)

    def _after_silence(self, ids: Sequence[int]) -> Continued | None:
        # What the reader that the client listens to still withholds is known only at its end, and then it is over.
        reader, stop = self._choice.new_reader(), SegmentStop(self._choice.completion.stop)
        pieces = self._turn.tokenizer.pieces(ids)
        segments = stop.feed(Segment(piece, bool(i % 2)) for i, piece in enumerate(pieces) if piece)
        segments += stop.finish()
        events = reader.feed_segments(segments)
        in_reasoning = reader.in_reasoning
        events += reader.finish("stop")
        if stop.matched is not None or says_something(events):
            return None
        return self._after(ids, in_reasoning=in_reasoning)

    def _after(self, ids: Sequence[int], *, in_reasoning: bool) -> Continued | None:
        first = self._choice.completion
        if first.picture_token in ids:  # a place without a picture, which an engine refuses
            return None
        closing = self._turn.language.format.end_of_reasoning(self._turn.tokenizer)
        inserted = closing if in_reasoning else ()
        constraint, grammar, least = None, None, 1
        if self._info.enforces == "constraint":
            if self._turn.constraint is not None:
                constraint = self._turn.constraint.another()
                if not all(map(constraint.advance, ids)):
                    return None
                inserted = tuple(takewhile(constraint.advance, inserted))
                if in_reasoning and not inserted:
                    return None
        elif first.grammar is not None and first.grammar_required:
            # A grammar begins with an answer. This one begins where an answer without reasoning would.
            if tuple([*ids, *inserted][-len(closing) :]) != closing:
                return None
            grammar, least = self._plain_grammar(), 0
        answered = (*ids, *inserted)
        room = first.max_tokens - len(answered)
        if room < 1:
            return None
        completion = msgspec.structs.replace(
            first,
            prompt=first.prompt + answered,
            max_tokens=room,
            min_tokens=least,
            stop_token_ids=(*first.stop_token_ids, *sorted(self._ends.difference(first.stop_token_ids))),
            constraint=constraint,
            grammar=grammar,
            request_id=f"{first.request_id}-continued",
        )
        return Continued(completion, inserted)
