"""One step of the engine on one screen: schedule, draft, run, verify, postprocess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dovetail.completion import TokenBatch
from dovetail.engine.drafting.base import NO_DRAFT, Draft, Drafter
from dovetail.engine.masks import MaskRows
from dovetail.engine.models.base import Model, collate
from dovetail.engine.request import Request
from dovetail.engine.sampling import probabilities
from dovetail.engine.scheduler import Scheduler
from dovetail.engine.verify import verify_greedy, verify_sampled
from dovetail.errors import EngineError
from dovetail.tokens import Tokenizer


@dataclass(slots=True)
class Counters:
    """Totals since start. `accepted_at[i]` counts accepted drafts at position i of a window."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Window:
    """A sequence's part of one step: its tokens that the target has not computed, then the drafts to verify.

    `drafts` are those that the constraint lets stand, of `proposed`. `logit_row` is the first of its
    ``len(drafts) + 1`` rows of logits.
    """

    request: Request
    proposed: int
    drafts: list[int]
    draft_probs: Tensor | None
    logit_row: int


Outcome = tuple[str, TokenBatch | EngineError]


class StepLoop:
    """Runs the target over whatever the scheduler hands it. `draft_tokens` is the most a window may hold."""

    def __init__(
        self,
        model: Model,
        drafter: Drafter | None,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        *,
        eos_ids: frozenset[int],
        max_batch: int,
        draft_tokens: int,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._masks = MaskRows(max_batch * (draft_tokens + 1), model.vocab_size)
        self.counters = Counters(accepted_at=[0] * draft_tokens)

    def step(self) -> list[Outcome]:
        """Add at least one token to every running sequence. Sequences that ended are gone when this returns."""
        batch = self._scheduler.schedule()
        drafts = self._draft(batch)
        windows, outcomes = self._windows(batch, drafts)
        if windows:
            logits, aux = self._run(windows)
            self._masks.apply(logits)
            for window, new, features in zip(windows, _verify(windows, logits), aux, strict=True):
                outcomes.append(self._postprocess(window, new, features))
            self.counters.steps += 1
        for request_id, outcome in outcomes:
            if isinstance(outcome, EngineError) or outcome.finish is not None:
                self._scheduler.remove(request_id)
        return outcomes

    def _draft(self, batch: Sequence[Request]) -> list[Draft]:
        """Drafts for the sequences that have been prefilled and have room; an empty draft for the others."""
        drafts = [NO_DRAFT] * len(batch)
        wanted = [i for i, request in enumerate(batch) if request.computed and request.draft_room() > 0]
        if self._drafter is not None and wanted:
            requests = [batch[i] for i in wanted]
            proposed = self._drafter.propose(requests, [request.draft_room() for request in requests])
            for i, draft in zip(wanted, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _windows(self, batch: Sequence[Request], drafts: Sequence[Draft]) -> tuple[list[Window], list[Outcome]]:
        """Cut drafts to what each constraint allows; a sequence whose constraint allows nothing at all ends."""
        self._masks.clear()
        windows: list[Window] = []
        failed: list[Outcome] = []
        row = 0
        for request, draft in zip(batch, drafts, strict=True):
            kept: int | None = len(draft.tokens)
            probs = draft.probs
            if request.constraint is not None:
                try:
                    kept = self._masks.fill(request.constraint, draft.tokens, row)
                except Exception as error:  # a caller's code, which must not end the others' requests
                    failed.append((request.id, _constraint_failed(error)))
                    continue
                if kept is None:
                    failed.append((request.id, EngineError("the constraint allows no token here")))
                    continue
                # The row after the last kept draft is the refused one's: verify_sampled draws from what it leaves.
                probs = None if probs is None else probs[: kept + 1]
            windows.append(Window(request, len(draft.tokens), draft.tokens[:kept], probs, row))
            row += len(windows[-1].drafts) + 1
        return windows, failed

    def _run(self, windows: Sequence[Window]) -> tuple[Tensor, list[Tensor | None]]:
        """Logits at every position of every window; each window's auxiliary hidden states, if a drafter reads any."""
        parts = [
            (w.request.tokens[w.request.computed :] + w.drafts, w.request.computed, w.request.rows) for w in windows
        ]
        batch = collate(parts)
        hidden, aux = self._model.forward(batch)
        rows = [
            row
            for span, window in zip(batch.spans, windows, strict=True)
            for row in range(span.start + span.length - len(window.drafts) - 1, span.start + span.length)
        ]
        if len(rows) < hidden.shape[0]:
            hidden = hidden[rows]
        split = [None if aux is None else aux[span.start : span.start + span.length] for span in batch.spans]
        return self._model.logits(hidden), split

    def _postprocess(self, window: Window, new: list[int], features: Tensor | None) -> Outcome:
        """Take the new tokens up to the one that ends the sequence, and keep what the next step needs."""
        request = window.request
        accepted = len(new) - 1
        computed = len(request.tokens) - request.computed + accepted
        taken, finish = request.extend(new, self._eos_ids, self._tokenizer)
        accepted = min(accepted, len(taken))
        self._count(window.proposed, accepted)
        if request.constraint is not None:
            try:
                refused = next((token for token in taken if not request.constraint.advance(token)), None)
            except Exception as error:  # as above
                return request.id, _constraint_failed(error)
            if refused is not None:
                return request.id, EngineError(f"the constraint refused token {refused}, which its own mask allowed")
        if finish is None:
            request.computed += computed
            if features is not None and request.draft_tokens:
                request.features.append(features[:computed])
        return request.id, TokenBatch(tuple(taken), finish, window.proposed, accepted)

    def _count(self, drafted: int, accepted: int) -> None:
        self.counters.drafted += drafted
        self.counters.accepted += accepted
        for i in range(accepted):
            self.counters.accepted_at[i] += 1


def _constraint_failed(error: Exception) -> EngineError:
    return error if isinstance(error, EngineError) else EngineError(f"the constraint failed: {error}")


def _verify(windows: Sequence[Window], logits: Tensor) -> list[list[int]]:
    """Each window's new tokens: the drafts that stand and one more."""
    best: list[int] = []
    if any(window.request.greedy for window in windows):
        best = logits.argmax(-1).tolist()
    verdicts: list[list[int]] = []
    for window in windows:
        request, first = window.request, window.logit_row
        rows = slice(first, first + len(window.drafts) + 1)
        if request.greedy:
            verdicts.append(verify_greedy(best[rows], window.drafts))
        else:
            target = probabilities(logits[rows], request.sampling)
            verdicts.append(verify_sampled(target, window.drafts, window.draft_probs, request.generator))
    return verdicts
