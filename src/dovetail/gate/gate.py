"""The gate: it decides before every step how much to draft, and observes the step afterwards.

`Gate` keeps what the pure `decision.decide` needs between steps: the last state and decision, acceptance, and the cost
model. While a decision holds, the gate returns it again and only stores what it observes. It learns from these steps
when it makes the next decision. So most steps cost a few microseconds.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import NamedTuple

from dovetail.gate.acceptance import LONG_MATCH, Acceptance, Track
from dovetail.gate.costs import CONTEXTS, CostModel, features
from dovetail.gate.decision import (
    FIRST_HOLD,
    Batch,
    Clock,
    Decision,
    Limits,
    Policy,
    Reason,
    State,
    best_counts,
    decide,
    limited,
    one_count,
    too_long_in,
)
from dovetail.gate.forecast import Forecast
from dovetail.gate.step_times import StepTimes

# A step of more seconds than this counts as several, so that a slow engine does not wait long for the next decision.
_SLOW = 0.04
# Drafts from a grammar need no drafter. If fewer than one in this many sequences has them, the step still takes about
# as long as a step in which the drafter made all drafts.
_FEW = 4

_NOTHING = Decision()
_ASKED, _MADE = operator.itemgetter(1), operator.itemgetter(2)

Drafted = tuple[Track | None, int, int, int]
"""The drafts of one sequence in a step: its track, and how many draft tokens were asked for, made and accepted.

The track is None if a grammar made some of the drafts, because their acceptance is not the drafter's.
"""


class Counts(NamedTuple):
    """Totals since start.

    `decisions`: for each reason, how many decisions were made for it. `draft_tokens`: the draft tokens of a sequence in
    the last decision, on average. `by_position`: drafted and accepted tokens, by context (the lower end of a range) and
    position in a step.
    """

    decisions: dict[Reason, int]
    draft_tokens: float
    by_position: dict[tuple[int, int], tuple[int, int]]


class Gate:
    """Decides before every step and observes it afterwards.

    `drafts`: the most tokens that a sequence drafts. `default`: the drafter's own number, with which the gate starts
    (None: `drafts`). Without `costs`, every sequence drafts `drafts`, within `limits`. `acceptance`: the probability of
    acceptance by position, as far as it is known at start; the acceptance in `costs` takes precedence. `numbers`: for a
    number of sequences, the draft counts that may be chosen (None: any up to `drafts`).
    """

    policy: Policy = staticmethod(best_counts)

    def __init__(
        self,
        costs: CostModel | None,
        limits: Limits,
        drafts: int,
        *,
        default: int | None = None,
        acceptance: Sequence[float] = (),
        numbers: Callable[[int], Collection[int]] | None = None,
    ) -> None:
        self.costs = costs
        self.limits = limits
        self._drafts = drafts
        start = drafts if costs is None or default is None else min(default, drafts)
        if costs is not None and costs.acceptance:
            acceptance = costs.acceptance
        self._numbers = numbers
        self._acceptance = Acceptance(drafts, acceptance)
        self._times = None if costs is None else StepTimes(costs)
        self._state = State(default=start, common=start)
        self._starts: dict[str, int] = {}
        self._surprised = False
        self._next_decision = self._stands_until = self._steps = self._observed = 0
        # The current decision and its batch.
        self._decision = _NOTHING
        self._tracks: list[Track] = []
        self._caps: list[int] = []
        self._contexts: list[int] = []
        # The number of steps for which the current decision was returned, and whether to learn the next step's time.
        self._decided_steps = 0
        self._timed = False
        # Observed steps that are not learned yet: drafts, and seconds if the time is to be learned.
        self._unlearned: list[tuple[Sequence[Drafted], float | None]] = []
        self._reasons: Counter[Reason] = Counter()

    def decide(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        """The draft tokens of the sequences that decode in the next step.

        ``contexts[i]``: the tokens of sequence i. ``caps[i]``: the most tokens that its request lets it draft.
        """
        if not tracks:
            self._timed = False  # this step decodes nothing, so its time belongs to no decision
            return _NOTHING
        self._steps += 1
        too_long = too_long_in(contexts, self.limits) if self.limits.below_context is not None else ()
        if self._steps < self._stands_until and self._still_valid(tracks, caps, too_long):
            self._timed = True
            if too_long != self._decision.too_long:
                self._decision = self._decision._replace(too_long=too_long)
        else:
            self._learn()
            self._decision = self._new_decision(tracks, contexts, caps)
            self._timed = not self._decision.changed
            self._tracks, self._caps, self._contexts = list(tracks), list(caps), list(contexts)
        self._decided_steps += 1
        return self._decision

    def observe(self, drafted: Sequence[Drafted], seconds: float | None) -> None:
        """Observe a step: the drafts of each sequence that was allowed some, and the seconds of the step.

        `seconds` is None if the step did other work too. Draft tokens that were asked for and not made (lookups often
        find nothing) count as not accepted. The gate keeps the object `drafted`.
        """
        if drafted or self._timed:
            self._unlearned.append((drafted, seconds if self._timed else None))
        self._observed += 1
        if seconds is not None and seconds >= _SLOW:
            self._next_decision -= int(seconds / _SLOW)
            self._stands_until -= int(seconds / _SLOW)
        trial = self._state.trial
        if trial is not None and (drafted if trial.probe else trial.end == self._observed):
            self._next_decision = self._stands_until = self._steps

    @property
    def expected_acceptance(self) -> list[float]:
        """The learned probability that a draft is accepted if the drafts before it were, by position."""
        return self._acceptance.overall

    def learned(self) -> CostModel | None:
        """The costs with the acceptance, for the next start."""
        if self.costs is not None and any(map(any, self._acceptance.made)):
            self._acceptance.learn()
            self.costs.acceptance = self._acceptance.overall
        return self.costs

    def counts(self) -> Counts:
        """Totals since start."""
        reasons = self._reasons.copy()
        for reason in self._decision.reasons:
            reasons[reason] += self._decided_steps
        allowed = self._decision.allowed
        unlearned = [row for drafted, _ in list(self._unlearned) for row in drafted if row[0] is not None]
        by_position: dict[tuple[int, int], tuple[int, int]] = {}
        for i, context in enumerate(CONTEXTS):
            drafted, accepted = self._acceptance.totals(i)
            for track, _, made, passed in unlearned:
                if track is not None and track.context == i:
                    for position in range(made):
                        drafted[position] += 1
                        accepted[position] += position < passed
            for position in range(self._drafts):
                if drafted[position]:
                    by_position[context, position] = drafted[position], accepted[position]
        return Counts(dict(+reasons), sum(allowed) / max(1, len(allowed)), by_position)

    def _still_valid(self, tracks: Sequence[Track], caps: Sequence[int], too_long: tuple[int, ...]) -> bool:
        """Whether the current decision is valid for this batch."""
        decision = self._decision
        if tracks != self._tracks or (too_long and any(decision.allowed[i] for i in too_long)):
            return False
        return caps == self._caps or (not decision.capped and all(map(operator.le, decision.allowed, caps)))

    def _new_decision(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        state = self._state._replace(next_decision=self._next_decision)
        clock = Clock(self._steps, self._observed, 0 if self._times is None else self._times.compared)
        for track, context in zip(tracks, contexts, strict=True):
            track.context = bisect_right(CONTEXTS, context) - 1
        counts = [self._start(track) if track.drafts is None else track.drafts for track in tracks]
        numbers = None if self._numbers is None else self._numbers(len(tracks))
        if numbers is not None:
            counts = [max((k for k in numbers if k <= count), default=min(numbers)) for count in counts]
        batch = Batch(counts, contexts, limited(caps, contexts, self.limits))
        forecast: Forecast | None = None
        if any(batch.caps) and state.must_decide(clock, len(tracks)):
            forecast = self._forecast(tracks, batch, numbers)
            if self._surprised:
                state = state._replace(hold=FIRST_HOLD // 2)
        self._state, decision = decide(state, clock, batch, self.limits, forecast, self.policy)
        self._next_decision, self._stands_until = self._state.next_decision, self._state.stands_until(clock)
        for track, count in zip(tracks, decision.counts, strict=True):
            track.drafts = count
        if forecast is not None and forecast.depth:
            self._starts.update((track.kind, track.drafts) for track in tracks if track.drafts is not None)
        return decision

    def _start(self, track: Track) -> int:
        """The draft count with which a request begins."""
        if track.kind == LONG_MATCH:
            return self._state.default
        return self._starts.get(track.kind, self._state.common)

    def _forecast(self, tracks: Sequence[Track], batch: Batch, numbers: Collection[int] | None) -> Forecast | None:
        if self.costs is None:
            return None
        self._surprised = self._acceptance.learn()
        likely = self._acceptance.likely
        survivals = list[list[float]]()
        for track, cap in zip(tracks, batch.caps, strict=True):
            track.learn()
            survivals.append(track.survivals(likely(track.kind, track.context, tried=track.tried)[:cap]))
        return Forecast(survivals, batch.contexts, self.costs, self._acceptance.doubts, numbers)

    def _learn(self) -> None:
        """Learn from the steps with the current decision."""
        times: list[tuple[int, float]] = []
        asked_for = sum(self._decision.allowed)
        rows = Counter(chain.from_iterable(drafted for drafted, _ in self._unlearned))
        all_made = all(asked == made for _, asked, made, _ in rows)
        for drafted, seconds in self._unlearned:
            if seconds is not None and sum(map(_ASKED, drafted)) == asked_for and not self._by_grammar(drafted):
                times.append((asked_for if all_made else sum(map(_MADE, drafted)), seconds))
        self._acceptance.count(rows)
        for reason, count in Counter(self._decision.reasons).items():
            self._reasons[reason] += count * self._decided_steps
        if self._times is not None and times:
            step = features(self._decision.allowed, self._contexts)
            self._times.learn(step, times, self._observed)
        self._unlearned, self._decided_steps = [], 0

    def _by_grammar(self, drafted: Sequence[Drafted]) -> bool:
        """Whether a grammar made all drafts of the step, and more than a few."""
        forced = 0
        for track, asked, _, _ in drafted:
            if track is not None:
                return False
            forced += asked
        return forced * _FEW > len(self._tracks)


class UniformGate(Gate):
    """A `Gate` that allows the same number of draft tokens for all sequences that may draft."""

    policy: Policy = staticmethod(one_count)
