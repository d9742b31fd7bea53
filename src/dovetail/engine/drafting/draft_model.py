"""Drafting by a smaller model that stands alone and has the target's vocabulary.

It reads nothing of the target, so it catches up with a sequence whenever it likes: with a prompt as the target computes
it, in parts; with what a window added when it drafts next, where the guesses that stood are in its cache already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Draft, Observed
from dovetail.engine.drafting.chain import drafts
from dovetail.engine.drafting.choose import Chooser
from dovetail.engine.models.base import Model, collate
from dovetail.engine.request import Request

# As many tokens a sequence may be behind when it drafts, and as many it catches up with in a step at most (or with all
# that the target computed in that step): a prompt that only the target's cache still knew would hold up all others.
_TAIL = 16
_CHUNK = 512


@dataclass(slots=True)
class _Sequence:
    """The model's cache holds the first `computed` tokens of the sequence, then `guesses`."""

    computed: int
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """The `Drafter` around a model. Positions from `context` on it does not know."""

    def __init__(self, model: Model, tables: Tables, choose: Chooser, context: int) -> None:
        self.aux_layers: tuple[int, ...] = ()
        self._model = model
        self._tables = tables
        self._choose = choose
        self._context = context
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: Request, cached: int) -> int:
        """Whatever the target need not compute, this can."""
        self._sequences[request.id] = _Sequence(self._tables.begin(request.id, request.tokens))
        return cached

    def observe(self, observed: Sequence[Observed]) -> None:
        """Catch up with prompts."""
        late: list[tuple[Request, int]] = []
        for item in observed:
            sequence = self._sequences.get(item.request.id)
            if sequence is None:
                continue
            self._settle(item.request, sequence)
            behind = min(item.start + item.count, self._context) - sequence.computed
            if behind > _TAIL and self._tables.reserve(item.request.id, sequence.computed + behind):
                late.append((item.request, min(behind, max(_CHUNK, item.count))))
        if late:
            self._run(late)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        alive = [i for i, request in enumerate(requests) if self._ready(request, counts[i])]
        if not alive:
            return drafts(tokens, probs)
        logits = self._run([(requests[i], len(requests[i].tokens) - self._of(requests[i]).computed) for i in alive])
        while True:
            for i, token in zip(
                alive, self._choose(logits, [requests[i] for i in alive], [probs[i] for i in alive]), strict=True
            ):
                tokens[i].append(token)
            alive = [i for i in alive if counts[i] > len(tokens[i])]
            if not alive:
                return drafts(tokens, probs)
            parts = []
            for i in alive:
                sequence = self._of(requests[i])
                position = sequence.computed + len(sequence.guesses)
                parts.append(([tokens[i][-1]], position, self._tables[requests[i].id]))
                sequence.guesses.append(tokens[i][-1])
            logits = self._model.logits(self._model.forward(collate(parts))[0])

    def release(self, request: Request) -> None:
        self._sequences.pop(request.id, None)
        self._tables.release(request.id)

    def check_integrity(self, requests: set[str]) -> None:
        """Of `requests`, exactly those that started hold blocks."""
        self._tables.check_integrity(set(self._sequences) & requests)

    def _of(self, request: Request) -> _Sequence:
        return self._sequences[request.id]

    def _ready(self, request: Request, count: int) -> bool:
        sequence = self._sequences.get(request.id)
        if sequence is None:
            return False
        self._settle(request, sequence)
        length = len(request.tokens)
        if length - sequence.computed > _TAIL + 1 or length + count - 1 > self._context:
            return False
        return self._tables.reserve(request.id, length + count - 1)

    def _settle(self, request: Request, sequence: _Sequence) -> None:
        """Of the guesses, those that came true count as computed; never the last token, whose logits are wanted."""
        for guess in sequence.guesses:
            if sequence.computed + 1 >= len(request.tokens) or request.tokens[sequence.computed] != guess:
                break
            sequence.computed += 1
        sequence.guesses.clear()
        self._tables.publish(request.id, request.tokens, sequence.computed)

    def _run(self, parts: Sequence[tuple[Request, int]]) -> Tensor:
        """Compute the next so many tokens of each; returns the logits at the last of each."""
        batch = collate(
            [
                (request.tokens[(start := self._of(request).computed) : start + count], start, self._tables[request.id])
                for request, count in parts
            ]
        )
        hidden = self._model.forward(batch)[0]
        for request, count in parts:
            self._of(request).computed += count
            self._tables.publish(request.id, request.tokens, self._of(request).computed)
        return self._model.logits(hidden[[span.start + span.length - 1 for span in batch.spans]])
