"""A draft model: a smaller model of its own with the target's vocabulary.

It reads no hidden states of the target, so it can compute a sequence at any time: a prompt in parts, while the target
computes it; new tokens when it drafts next, except for accepted drafts, which are in its cache already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Chooser, Draft, Observed
from dovetail.engine.drafting.chain import drafts
from dovetail.engine.models.base import Model, collate
from dovetail.engine.request import Request

# How many tokens the model may have to compute before it drafts, and how many it computes in `observe` at most, or as
# many as the target computed in that step. Without a bound, a prompt that only the target has cached would delay the
# other requests.
_TAIL = 16
_CHUNK = 512


@dataclass(slots=True)
class _Sequence:
    """A sequence in the model's cache: its first `computed` tokens, then the drafts in `guesses`."""

    computed: int
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """A `Drafter` around a model with positions below `context`."""

    def __init__(self, model: Model, tables: Tables, choose: Chooser, context: int) -> None:
        self.aux_layers: tuple[int, ...] = ()
        self._model = model
        self._tables = tables
        self._choose = choose
        self._context = context
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: Request, cached: int) -> int:
        """Returns `cached`: the model needs no features, and computes the tokens that its own cache does not have."""
        begun = self._tables.begin(request.id, request.tokens, salt=request.cache_salt)
        self._sequences[request.id] = _Sequence(begun)
        return cached

    def observe(self, observed: Sequence[Observed]) -> None:
        """Compute prompts that the model is far behind with."""
        late: list[tuple[Request, int]] = []
        for item in observed:
            sequence = self._sequences.get(item.request.id)
            if sequence is None:
                continue
            self._settle(item.request, sequence)
            missing = min(item.start + item.count, self._context) - sequence.computed
            if missing > _TAIL and self._tables.reserve(item.request.id, sequence.computed + missing):
                late.append((item.request, min(missing, max(_CHUNK, item.count))))
        if late:
            self._run(late)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        alive = [i for i, request in enumerate(requests) if self._ready(request, counts[i])]
        if not alive:
            return drafts(tokens, probs)
        hidden = self._run([(requests[i], len(requests[i].tokens) - self._of(requests[i]).computed) for i in alive])
        while True:
            own = [requests[i] for i in alive], [probs[i] for i in alive]
            for i, token in zip(alive, self._choose(self._model, hidden, *own), strict=True):
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
            hidden = self._model.forward(collate(parts))[0]

    def matched(self, request: Request) -> int | None:
        return None

    def release(self, request: Request) -> None:
        self._sequences.pop(request.id, None)
        self._tables.release(request.id)

    def check_integrity(self, requests: set[str]) -> None:
        """As `Drafter.check_integrity`: exactly the requests that started have blocks."""
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
        """Count accepted guesses as computed, but never the last token, because its logits are needed."""
        for guess in sequence.guesses:
            if sequence.computed + 1 >= len(request.tokens) or request.tokens[sequence.computed] != guess:
                break
            sequence.computed += 1
        sequence.guesses.clear()
        self._tables.publish(request.id, request.tokens, sequence.computed)

    def _run(self, parts: Sequence[tuple[Request, int]]) -> Tensor:
        """Compute as many next tokens of each request as `parts` gives; returns the hidden state of each last one."""
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
        return hidden[[span.start + span.length - 1 for span in batch.spans]]
