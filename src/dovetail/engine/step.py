"""One step of the engine on one screen: schedule, draft, run, verify, postprocess, observe.

While the model runs, a second thread fills the masks and prepares the next step, when that work takes more than 1 ms.
overlap.py lists which thread owns which state at what time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dovetail.completion import Constraint, TokenBatch
from dovetail.engine.drafting.base import NO_DRAFT, Draft, Observed
from dovetail.engine.masks import GreedyConstraint, MaskEntry, MaskRows, constraint_failed
from dovetail.engine.models.base import ForwardBatch, Model, collate
from dovetail.engine.overlap import Overlap
from dovetail.engine.parallel.group import RankLost
from dovetail.engine.request import Request
from dovetail.engine.sampling import draw, logprobs, probabilities
from dovetail.engine.scheduler import ScheduledRequest, Scheduler
from dovetail.engine.verify import verify_greedy, verify_sampled
from dovetail.errors import EngineError, guarded
from dovetail.gate import Drafted
from dovetail.tokens import Tokenizer

_log = logging.getLogger(__name__)
_NOT_FINITE = "the model computed a value that is not a finite number"


@dataclass(slots=True)
class Counters:
    """Totals since start: steps and draft tokens.

    `forced`: how many of `drafted` came from a constraint. `forced_accepted`: how many of these were accepted.
    `failed`: steps in which the drafter failed.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    forced_accepted: int = 0
    failed: int = 0


@dataclass(slots=True)
class Window:
    """One sequence in one step: its next `length` tokens that the target has not computed, and drafts to verify.

    Drafts:

    - `asked`: how many draft tokens the gate allowed.
    - `proposed`: how many tokens the drafter returned.
    - `forced`: how many of these, from the first on, came from the constraint.
    - `drafts`: the proposed tokens that the constraint accepts.
    - `draft_probs`: the distributions that the drafts were drawn from; None where the drafter was certain.
    - `open_ended`: whether a token may be drawn after the last of `drafts`.
    - `reported`: what the drafter returned, for a request that wants the ids of drafts; else None.

    Logits:

    - `logit_row`: the first of the window's ``len(drafts) + 1`` rows of logits; None when it ends inside a prompt.
    - `masks`: what the constraint allows, for a sampled request; `greedy`: the constraint of a greedy request.
    - `raw_logits`: the window's rows before penalties and masks, for a request that wants log probabilities.
    - `finite`: whether the model computed finite numbers for the first row.
    - `guarded`: how many drawn tokens the guard of the constraint refused.
    """

    request: Request
    length: int
    asked: int = 0
    proposed: int = 0
    forced: int = 0
    drafts: list[int] = field(default_factory=list)
    draft_probs: Tensor | None = None
    logit_row: int | None = None
    masks: MaskEntry | None = None
    greedy: GreedyConstraint | None = None
    open_ended: bool = True
    reported: tuple[int, ...] | None = None
    raw_logits: Tensor | None = None
    finite: bool = True
    guarded: int = 0

    def cut(self, row: int) -> None:
        """Drop the drafts from row `row` (1 or later) on, and draw nothing from that row."""
        self.open_ended = False
        self.drafts = self.drafts[:row]
        self.draft_probs = None if self.draft_probs is None else self.draft_probs[:row]

    @property
    def rows(self) -> slice:
        """The window's rows of logits."""
        return slice(0, 0) if self.logit_row is None else slice(self.logit_row, self.logit_row + len(self.drafts) + 1)


Outcome = tuple[str, TokenBatch | EngineError]


class StepLoop:
    """Runs the target over what the scheduler schedules. `draft_tokens`: the most drafts in a window."""

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        *,
        max_batch: int,
        draft_tokens: int,
        overlap: Overlap,
    ) -> None:
        self._model = model
        self.scheduler = scheduler
        self._tokenizer = tokenizer
        self.masks = MaskRows(max_batch * (draft_tokens + 1), model.vocab_size)
        self._overlap = overlap
        self.draft_tokens = draft_tokens
        self.vocab_size = model.vocab_size
        self.counters = Counters()
        # The drafts of this step, for the gate.
        self._drafted: list[Drafted] = []

    def step(self) -> list[Outcome]:
        """Compute a part of a prompt, or at least one new token, for each running sequence.

        Sequences that ended are removed before this returns. Raises `RankLost`, after which no step can run.
        """
        started = time.perf_counter()
        self._drafted = []  # the gate keeps the last one
        turns = self.scheduler.schedule()
        windows = self._windows(turns, self._draft(turns))
        outcomes: list[Outcome] = []
        observed: list[Observed] = []
        if windows:
            batch = self._collate(windows)
            logits, features = self._overlap.during(
                lambda: self._run(windows, batch),
                self.masks.fill,
                lambda: self.scheduler.prepare(turns),
                self.masks.seconds + self.scheduler.seconds,
            )
            self._shape(windows, logits)
            for window, new, own in zip(windows, _verify(windows, logits, self.masks), features, strict=True):
                start = window.request.computed
                outcomes += self._postprocess(window, new)
                if (count := window.request.computed - start) and window.request.draft_tokens:
                    observed.append(Observed(window.request, start, count, None if own is None else own[:count]))
            self.counters.steps += 1
        if self.scheduler.drafter is not None and observed:
            try:
                guarded(self.scheduler.drafter.observe, observed)
            except RankLost:
                raise
            except Exception as error:
                self._give_up([item.request for item in observed], error)
        # The gate does not get the drafts of sequences that ended, so the time of this step would mislead it.
        timed = self.scheduler.only_decoding
        for request_id, outcome in outcomes:
            if isinstance(outcome, EngineError) or outcome.finish is not None:
                self.scheduler.remove(request_id)
                timed = False
        self.scheduler.gate.observe(self._drafted, time.perf_counter() - started if timed else None)
        return outcomes

    def _draft(self, turns: Sequence[ScheduledRequest]) -> list[Draft]:
        """Drafts for the sequences that may have some; an empty draft for the others."""
        drafts = [NO_DRAFT] * len(turns)
        drafting = [i for i, turn in enumerate(turns) if turn.asked > 0]
        if self.scheduler.drafter is not None and drafting:
            requests = [turns[i].request for i in drafting]
            try:
                proposed = guarded(self.scheduler.drafter.propose, requests, [turns[i].asked for i in drafting])
            except RankLost:
                raise
            except Exception as error:
                self._give_up(requests, error)
                return drafts
            for i, draft in zip(drafting, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _give_up(self, requests: Sequence[Request], error: Exception) -> None:
        """Let `requests` go on without drafts, after the drafter failed."""
        _log.error("drafting failed for %d requests, which go on without", len(requests), exc_info=error)
        self.counters.failed += 1
        for request in requests:
            self.scheduler.stop_drafting(request)

    def _windows(self, turns: Sequence[ScheduledRequest], drafts: Sequence[Draft]) -> list[Window]:
        """One window for each turn, with the drafts that its constraint accepts."""
        self.masks.clear()
        windows: list[Window] = []
        row = 0
        for turn, draft in zip(turns, drafts, strict=True):
            request, tokens, probs = turn.request, draft.tokens, draft.probs
            if turn.length < request.pending:
                windows.append(Window(request, turn.length))
                continue
            masks = greedy = None
            if request.constraint is not None and request.greedy:
                greedy = GreedyConstraint(request.constraint, tokens, self.vocab_size)
                tokens = tokens[: greedy.drafts]
            elif request.constraint is not None:
                masks = self.masks.enter(request.constraint, tokens, row)
                tokens = tokens[: masks.drafts]
                # The row after the last accepted draft belongs to the refused one: verify_sampled draws from the rest.
                probs = None if probs is None else probs[: masks.drafts + 1]
            counts = turn.length, turn.asked, len(draft.tokens), draft.forced
            reported = tuple(draft.tokens) if request.report_drafts else None
            windows.append(Window(request, *counts, tokens, probs, row, masks, greedy, reported=reported))
            row += len(tokens) + 1
        return windows

    def _collate(self, windows: Sequence[Window]) -> ForwardBatch:
        tables, parts = self.scheduler.tables, []
        for window in windows:
            request, end = window.request, window.request.computed + window.length
            parts.append((request.tokens[request.computed : end] + window.drafts, request.computed, tables[request.id]))
        return collate(parts)

    def _run(self, windows: Sequence[Window], batch: ForwardBatch) -> tuple[Tensor, list[Tensor | None]]:
        """Logits at the positions where tokens are drawn, and for each window the auxiliary hidden states that the
        drafter reads, if any."""
        hidden, aux = self._model.forward(batch)
        for span, window in zip(batch.spans, windows, strict=True):
            if (scores := window.request.scores) is not None:
                scores.add(window.request.computed, hidden[span.start : span.start + window.length], self._model.logits)
        rows = [
            row
            for span, window in zip(batch.spans, windows, strict=True)
            if window.logit_row is not None
            for row in range(span.start + window.length - 1, span.start + span.length)
        ]
        if len(rows) < hidden.shape[0]:
            hidden = hidden[rows]
        split = [None if aux is None else aux[span.start : span.start + span.length] for span in batch.spans]
        logits = self._model.logits(hidden) if rows else hidden.new_empty(0, self._model.vocab_size)
        return logits, split

    def _shape(self, windows: Sequence[Window], logits: Tensor) -> None:
        """Apply penalties, biases and masks to the logits, in this order and in place.

        A window is cut before a row where the constraint allows no token, and before a row that is not finite: a token
        drawn from such a row could be outside the vocabulary.
        """
        finite = logits.amax(-1).isfinite().tolist()
        for window in windows:
            masks = window.masks
            if masks is not None and 0 < masks.rows <= len(window.drafts):
                window.cut(masks.rows)
            if not all(own := finite[window.rows]):
                if first := own.index(False):
                    window.cut(first)
                else:
                    window.finite = False
            if window.request.logprobs is not None:
                window.raw_logits = logits[window.rows].clone()
            if window.request.penalties is not None:
                window.request.penalties.apply_(logits[window.rows], window.drafts)
            if window.request.biases is not None:
                window.request.biases.apply_(logits[window.rows], window.request.generated)
        self.masks.apply(logits)

    def _postprocess(self, window: Window, new: list[int]) -> list[Outcome]:
        """Append the new tokens, up to the one that ends the sequence; no outcome for a window inside a prompt."""
        request = window.request
        if request.scores is not None and not request.scores.finite:
            return [(request.id, EngineError(_NOT_FINITE))]
        if window.logit_row is None:
            self._computed(request, window.length)
            return []
        if window.masks is not None and window.masks.error is not None:
            return [(request.id, window.masks.error)]
        if not window.finite:
            return self._not_finite(window)
        accepted = len(new) - 1
        if window.greedy is not None:
            accepted = _common_prefix(new, window.drafts)
        elif not window.open_ended and accepted == len(window.drafts):
            new = new[:-1]  # drawn from a row without a mask: the next step asks the constraint what may follow
        computed = window.length + len(new) - 1
        taken, finish = request.extend(new, self._tokenizer)
        accepted = min(accepted, len(taken))
        self._count(window, accepted)
        if window.asked and finish is None:
            track = None if window.forced else request.track
            self._drafted.append((track, window.asked, window.proposed, accepted))
        if request.penalties is not None:
            request.penalties.add(taken)
        failed: list[Outcome] = []
        if window.greedy is not None:
            if window.greedy.error is not None and finish is None:
                failed = [(request.id, window.greedy.error)]
        elif request.constraint is not None:
            advanced, error = _advance(request.constraint, taken)
            if error is not None:
                # The tokens before the error are delivered, as they would be one step at a time.
                failed, taken, finish = [(request.id, error)], taken[:advanced], None
        if finish is None and not failed:
            self._computed(request, computed)
        entries = () if window.raw_logits is None else logprobs(window.raw_logits, taken, request.logprobs or 0)
        cached, request.cached_prompt = request.cached_prompt or 0, 0
        accepted = min(accepted, len(taken))
        scores, request.scores = () if request.scores is None else request.scores.entries(), None
        counts = window.proposed, accepted
        refused = window.guarded if window.greedy is None else window.greedy.guarded
        batch = TokenBatch(
            tuple(taken), finish, *counts, entries, cached, window.forced, scores, window.reported, refused
        )
        return [(request.id, batch), *failed] if taken else failed

    def _not_finite(self, window: Window) -> list[Outcome]:
        """The outcome of a window whose first row of logits is not finite."""
        request = window.request
        if window.greedy is not None:
            window.greedy.forget()
            if window.greedy.error is not None:
                return [(request.id, window.greedy.error)]
        if window.drafts:
            # Attention carries a draft that is not finite into the rows before it, so try again without drafts.
            self.scheduler.stop_drafting(request)
            return []
        return [(request.id, EngineError(_NOT_FINITE))]

    def _count(self, window: Window, accepted: int) -> None:
        self.counters.drafted += window.proposed
        self.counters.accepted += accepted
        self.counters.forced += window.forced
        self.counters.forced_accepted += min(window.forced, accepted)

    def _computed(self, request: Request, count: int) -> None:
        request.computed += count
        self.scheduler.tables.publish(request.id, request.tokens, request.computed)


def _common_prefix(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both sequences begin with."""
    count = 0
    while count < min(len(tokens), len(others)) and tokens[count] == others[count]:
        count += 1
    return count


def _advance(constraint: Constraint, tokens: Sequence[int]) -> tuple[int, EngineError | None]:
    """Advance `constraint` by `tokens`: how many it took, and the error at the next, if any."""
    for count, token in enumerate(tokens):
        try:
            accepted = guarded(constraint.advance, token)
        except Exception as error:  # a caller's code, which must not end the other requests
            return count, constraint_failed(error)
        if not accepted:
            return count, EngineError(f"the constraint refused token {token}, which its own mask allowed")
    return len(tokens), None


def _verify(windows: Sequence[Window], logits: Tensor, masks: MaskRows) -> list[list[int]]:
    """The new tokens of each window: its accepted drafts and one more; none for a window inside a prompt."""
    best: list[int] = []
    if any(window.request.greedy and window.logit_row is not None for window in windows):
        best = logits.argmax(-1).tolist()
    new: list[list[int]] = []
    for window in windows:
        request = window.request
        if window.logit_row is None or not window.finite:
            new.append([])
        elif window.greedy is not None:
            rows = len(window.drafts) + window.open_ended
            new.append(window.greedy.choose(best[window.rows], logits, window.logit_row, rows, request.ends))
        elif request.greedy:
            new.append(verify_greedy(best[window.rows], window.drafts))
        else:
            target = probabilities(logits[window.rows], request.sampling)
            drawn = verify_sampled(target, window.drafts, window.draft_probs, request.generator)
            row = len(drawn) - 1
            kept = window.open_ended or row < len(window.drafts)
            if kept and window.masks is not None and window.masks.refuses(row, drawn[row]):
                window.guarded = 1
                allowed = masks.under_guard(window.masks, row, logits[window.rows][row : row + 1])
                drawn[row] = draw(probabilities(allowed, request.sampling)[0], request.generator)
            new.append(drawn)
    return new
