"""One step of the engine on one screen: schedule, draft, run, verify, postprocess, observe.

While the model runs, masks are filled and the next step is prepared, in a second thread where that is worth it; which
state belongs to whom at what time is in ahead.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dovetail.completion import Constraint, TokenBatch
from dovetail.engine.ahead import Ahead
from dovetail.engine.drafting.base import NO_DRAFT, Draft, Drafter, Observed
from dovetail.engine.greedy import Offered
from dovetail.engine.masks import Entry, MaskRows, constraint_failed
from dovetail.engine.models.base import ForwardBatch, Model, collate
from dovetail.engine.request import Request
from dovetail.engine.sampling import logprobs, probabilities
from dovetail.engine.scheduler import Scheduler, Turn
from dovetail.engine.verify import verify_greedy, verify_sampled
from dovetail.errors import EngineError, guarded
from dovetail.gate import Track
from dovetail.tokens import Tokenizer

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Totals since start. `forced` of those drafted, and `forced_accepted` of those accepted, are what constraints
    forced; `failed` counts steps in which the drafter failed."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    forced_accepted: int = 0
    failed: int = 0


@dataclass(slots=True)
class Window:
    """A sequence's part of one step: its next `length` tokens that the target has not computed, then drafts to verify.

    `drafts` are those that the constraint lets stand, of `proposed`, of `asked`; the first `forced` of those proposed
    are what it forces. `logit_row` is the first of its ``len(drafts) + 1`` rows of logits; None for a part of a prompt
    that others follow. What the constraint allows, `masks` says; of a greedy request, `offered`. `raw` are these rows
    as the model made them, where log probabilities are asked for. `closed`: nothing may be drawn behind the last of
    `drafts`; `sick`: nothing at all, since what the model computed is no number.
    """

    request: Request
    length: int
    asked: int
    proposed: int
    forced: int
    drafts: list[int]
    draft_probs: Tensor | None
    logit_row: int | None
    masks: Entry | None = None
    offered: Offered | None = None
    closed: bool = False
    raw: Tensor | None = None
    sick: bool = False

    def end_before(self, row: int) -> None:
        """Nothing is drawn from its row `row`, which is not the first."""
        self.closed = True
        self.drafts = self.drafts[:row]
        self.draft_probs = None if self.draft_probs is None else self.draft_probs[:row]

    @property
    def rows(self) -> slice:
        """Its rows of logits."""
        return slice(0, 0) if self.logit_row is None else slice(self.logit_row, self.logit_row + len(self.drafts) + 1)


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
        ahead: Ahead,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self.scheduler = scheduler
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._masks = MaskRows(max_batch * (draft_tokens + 1), model.vocab_size)
        self._ahead = ahead
        self.draft_tokens = draft_tokens
        self.vocab_size = model.vocab_size
        self.counters = Counters()
        # What the gate is told: of each request, how much was asked for in this step, drafted, and stood; whose it was
        # only where that says something of the drafter.
        self._drafted: list[tuple[Track | None, int, int, int]] = []

    def step(self) -> list[Outcome]:
        """Bring running sequences on: by a part of a prompt, or by at least one token each. Those that ended are gone
        when this returns."""
        started = time.perf_counter()
        self._drafted.clear()
        turns = self.scheduler.schedule()
        windows = self._windows(turns, self._draft(turns))
        outcomes: list[Outcome] = []
        observed: list[Observed] = []
        if windows:
            batch = self._collate(windows)
            logits, features = self._ahead.during(
                lambda: self._run(windows, batch),
                self._masks.fill,
                lambda: self.scheduler.prepare(turns),
                self._masks.seconds + self.scheduler.seconds,
            )
            self._shape(windows, logits)
            for window, new, own in zip(windows, _verify(windows, logits, self._eos_ids), features, strict=True):
                start = window.request.computed
                outcomes += self._postprocess(window, new)
                if (count := window.request.computed - start) and window.request.draft_tokens:
                    observed.append(Observed(window.request, start, count, None if own is None else own[:count]))
            self.counters.steps += 1
        if self._drafter is not None and observed:
            try:
                guarded(self._drafter.observe, observed)
            except Exception as error:
                self._give_up([item.request for item in observed], error)
        # Drafts of those that ended are no measure, so this step's time is none either.
        plain = self.scheduler.plain
        for request_id, outcome in outcomes:
            if isinstance(outcome, EngineError) or outcome.finish is not None:
                self.scheduler.remove(request_id)
                plain = False
        self.scheduler.gate.observe(self._drafted, time.perf_counter() - started if plain else None)
        return outcomes

    def _draft(self, turns: Sequence[Turn]) -> list[Draft]:
        """Drafts for the sequences that have room for them; an empty draft for the others."""
        drafts = [NO_DRAFT] * len(turns)
        wanted = [i for i, turn in enumerate(turns) if turn.room > 0]
        if self._drafter is not None and wanted:
            requests = [turns[i].request for i in wanted]
            try:
                proposed = guarded(self._drafter.propose, requests, [turns[i].room for i in wanted])
            except Exception as error:
                self._give_up(requests, error)
                return drafts
            for i, draft in zip(wanted, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _give_up(self, requests: Sequence[Request], error: Exception) -> None:
        """A drafter that fails costs `requests` their drafts, and nobody an answer."""
        _log.error("drafting failed for %d requests, which go on without", len(requests), exc_info=error)
        self.counters.failed += 1
        for request in requests:
            self.scheduler.undraft(request)

    def _windows(self, turns: Sequence[Turn], drafts: Sequence[Draft]) -> list[Window]:
        """Cut drafts to what each constraint allows."""
        self._masks.clear()
        windows: list[Window] = []
        row = 0
        for turn, draft in zip(turns, drafts, strict=True):
            request, tokens, probs = turn.request, draft.tokens, draft.probs
            if turn.length < request.pending:
                windows.append(Window(request, turn.length, 0, 0, 0, [], None, None))
                continue
            masks = offered = None
            if request.constraint is not None and request.greedy:
                offered = Offered(request.constraint, tokens, self.vocab_size)
                tokens = tokens[: offered.drafts]
            elif request.constraint is not None:
                masks = self._masks.enter(request.constraint, tokens, row)
                tokens = tokens[: masks.drafts]
                # The row after the last kept draft is the refused one's: verify_sampled draws from what it leaves.
                probs = None if probs is None else probs[: masks.drafts + 1]
            counts = turn.length, turn.room, len(draft.tokens), draft.forced
            windows.append(Window(request, *counts, tokens, probs, row, masks, offered))
            row += len(tokens) + 1
        return windows

    def _collate(self, windows: Sequence[Window]) -> ForwardBatch:
        tables, parts = self.scheduler.tables, []
        for window in windows:
            request, end = window.request, window.request.computed + window.length
            parts.append((request.tokens[request.computed : end] + window.drafts, request.computed, tables[request.id]))
        return collate(parts)

    def _run(self, windows: Sequence[Window], batch: ForwardBatch) -> tuple[Tensor, list[Tensor | None]]:
        """Logits at the positions of every window that are looked at; its auxiliary hidden states, if a drafter reads
        any."""
        hidden, aux = self._model.forward(batch)
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
        """What requests want done to their rows of logits, in place: penalties, then constraints' masks. Windows end
        before a row where the constraint allows nothing, and before one that holds something that is no number, from
        which a token would be drawn, and fed, that is none.
        """
        sound = logits.amax(-1).isfinite().tolist()
        for window in windows:
            masks = window.masks
            if masks is not None and 0 < masks.rows <= len(window.drafts):
                window.end_before(masks.rows)
            if not all(own := sound[window.rows]):
                if first := own.index(False):
                    window.end_before(first)
                else:
                    window.sick = True
            if window.request.logprobs is not None:
                window.raw = logits[window.rows].clone()
            if window.request.penalties is not None:
                window.request.penalties.apply_(logits[window.rows], window.drafts)
        self._masks.apply(logits)

    def _postprocess(self, window: Window, new: list[int]) -> list[Outcome]:
        """Take the new tokens up to the one that ends the sequence; nothing for a prompt of which more is to come."""
        request = window.request
        if window.logit_row is None:
            self._computed(request, window.length)
            return []
        if window.masks is not None and window.masks.error is not None:
            return [(request.id, window.masks.error)]
        if window.sick and window.offered is not None:
            window.offered.forget()
            if window.offered.error is not None:
                return [(request.id, window.offered.error)]
        if window.sick and window.drafts:
            # In attention a draft that is no number spoils the rows before it too: once more, without.
            self.scheduler.undraft(request)
            return []
        if window.sick:
            return [(request.id, EngineError("the model computed something that is no number"))]
        accepted = len(new) - 1
        if window.offered is not None:
            accepted = _alike(new, window.drafts)
        elif window.closed and accepted == len(window.drafts):
            new = new[:-1]  # of a row without a mask: what may follow, if anything, the next step asks
        computed = window.length + len(new) - 1
        taken, finish = request.extend(new, self._eos_ids, self._tokenizer)
        accepted = min(accepted, len(taken))
        self.counters.drafted += window.proposed
        self.counters.accepted += accepted
        self.counters.forced += window.forced
        self.counters.forced_accepted += min(window.forced, accepted)
        if window.asked and finish is None:
            track = None if window.forced else request.track
            self._drafted.append((track, window.asked, window.proposed, accepted))
        if request.penalties is not None:
            request.penalties.add(taken)
        failed: list[Outcome] = []
        if window.offered is not None:
            if window.offered.error is not None and finish is None:
                failed = [(request.id, window.offered.error)]
        elif request.constraint is not None:
            stood, error = _advanced(request.constraint, taken)
            if error is not None:
                # What came before is delivered, as it would have been step by step.
                failed, taken, finish = [(request.id, error)], taken[:stood], None
        if finish is None and not failed:
            self._computed(request, computed)
        said = () if window.raw is None else logprobs(window.raw, taken, request.logprobs or 0)
        found, request.found = request.found or 0, 0
        accepted = min(accepted, len(taken))
        batch = TokenBatch(tuple(taken), finish, window.proposed, accepted, said, found, window.forced)
        return [(request.id, batch), *failed] if taken else failed

    def _computed(self, request: Request, count: int) -> None:
        request.computed += count
        self.scheduler.tables.publish(request.id, request.tokens, request.computed)


def _alike(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many of their first tokens are the same."""
    count = 0
    while count < min(len(tokens), len(others)) and tokens[count] == others[count]:
        count += 1
    return count


def _advanced(constraint: Constraint, tokens: Sequence[int]) -> tuple[int, EngineError | None]:
    """Let `constraint` take `tokens`: how many it took, and why not the next."""
    for count, token in enumerate(tokens):
        try:
            taken = guarded(constraint.advance, token)
        except Exception as error:  # a caller's code, which must not end the others' requests
            return count, constraint_failed(error)
        if not taken:
            return count, EngineError(f"the constraint refused token {token}, which its own mask allowed")
    return len(tokens), None


def _verify(windows: Sequence[Window], logits: Tensor, eos_ids: frozenset[int]) -> list[list[int]]:
    """Each window's new tokens: the drafts that stand and one more; none for a prompt of which more is to come."""
    best: list[int] = []
    if any(window.request.greedy and window.logit_row is not None for window in windows):
        best = logits.argmax(-1).tolist()
    verdicts: list[list[int]] = []
    for window in windows:
        request = window.request
        if window.logit_row is None or window.sick:
            verdicts.append([])
        elif window.offered is not None:
            first, drafts = window.logit_row, len(window.drafts)
            verdicts.append(window.offered.choose(best[window.rows], logits, first, drafts, window.closed, eos_ids))
        elif request.greedy:
            verdicts.append(verify_greedy(best[window.rows], window.drafts))
        else:
            target = probabilities(logits[window.rows], request.sampling)
            verdicts.append(verify_sampled(target, window.drafts, window.draft_probs, request.generator))
    return verdicts
