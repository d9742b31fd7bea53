"""The gate: it decides before every step how much to draft, and observes the step afterwards.

`Gate` keeps what the pure `decision.decide` needs between steps: the last state and decision, acceptance, and the cost
model. While a decision stands it is returned as it is, and steps are only noted; what they say is learned when the next
decision is made. So most steps cost a few microseconds.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from dovetail.gate.acceptance import Acceptance, Track
from dovetail.gate.costs import CONTEXTS, CostModel, features
from dovetail.gate.decision import (
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

# A step of more seconds than this counts as several: otherwise a slow engine would wait long for the next decision.
_SLOW = 0.04
# Drafts from a grammar take no drafter. Where fewer than one in this many sequences has them, the time of the step is
# still that of a drafted step.
_FEW = 4

_NOTHING = Decision()
_ASKED, _MADE = operator.itemgetter(1), operator.itemgetter(2)

Drafted = tuple[Track | None, int, int, int]
"""The drafts of one sequence in a step: its track, or None where a grammar made some of them, which says nothing about
the drafter; how many draft tokens were asked for; how many were made; how many were accepted."""


class Gate:
    """Decides before every step and observes it afterwards.

    `drafts`: the most tokens that a sequence drafts; `home`: the drafter's own number (None: `drafts`), which the gate
    begins with. Without `costs`, every sequence drafts `drafts`, within `limits`. `acceptance`: how likely each draft
    is to be accepted, where that is known before; what `costs` have of it comes first.
    """

    policy: Policy = staticmethod(best_counts)

    def __init__(
        self,
        costs: CostModel | None,
        limits: Limits,
        drafts: int,
        *,
        home: int | None = None,
        acceptance: Sequence[float] = (),
    ) -> None:
        self.costs = costs
        self.limits = limits
        self._drafts = drafts
        own = drafts if costs is None or home is None else min(home, drafts)
        if costs is not None and costs.acceptance:
            acceptance = costs.acceptance
        self._acceptance = Acceptance(drafts, acceptance)
        self._times = None if costs is None else StepTimes(costs)
        self._state = State(home=own, usual=own)
        self._due = self._steps = self._observed = 0
        # The standing decision and the batch it is for.
        self._decision = _NOTHING
        self._tracks: list[Track] = []
        self._caps: list[int] = []
        self._contexts: list[int] = []
        # How many steps it was returned for, and whether the time of the next step is a measure of it.
        self._stood = 0
        self._timed = False
        # The steps that are not learned yet: drafts, and seconds where these are a measure of the standing decision.
        self._noted: list[tuple[Sequence[Drafted], float | None]] = []
        self._reasons: Counter[Reason] = Counter()

    def decide(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        """How many tokens the sequences that decode in the next step may draft.

        ``contexts[i]``: how many tokens sequence i has; ``caps[i]``: the most that its request lets it draft.
        """
        if not tracks:
            self._timed = False  # the time of such a step says nothing about the batch before it
            return _NOTHING
        self._steps += 1
        too_long = too_long_in(contexts, self.limits) if self.limits.below_context is not None else ()
        if self._steps < self._due and self._stands(tracks, caps, too_long):
            self._timed = True
            if too_long != self._decision.too_long:
                self._decision = self._decision._replace(too_long=too_long)
        else:
            self._learn()
            self._decision = self._new_decision(tracks, contexts, caps)
            self._timed = not self._decision.changed
            self._tracks, self._caps, self._contexts = list(tracks), list(caps), list(contexts)
        self._stood += 1
        return self._decision

    def observe(self, drafted: Sequence[Drafted], seconds: float | None) -> None:
        """Take in a step: the drafts of each sequence that was allowed some, and how long the step took.

        `seconds` is None where the step did other things besides. Draft tokens that were asked for and not made
        (lookups often find nothing) count as not accepted. The gate keeps `drafted`.
        """
        if drafted or self._timed:
            self._noted.append((drafted, seconds if self._timed else None))
        self._observed += 1
        if seconds is not None and seconds >= _SLOW:
            self._due -= int(seconds / _SLOW)
        trial = self._state.trial
        if trial is not None and trial.end == self._observed:
            self._due = self._steps

    @property
    def expected_acceptance(self) -> list[float]:
        """By position, how likely a draft is to be accepted when those before it were, as learned so far."""
        return self._acceptance.overall

    def learned(self) -> CostModel | None:
        """The costs with the acceptance, for the next start."""
        if self.costs is not None and any(map(any, self._acceptance.made)):
            self._acceptance.learn()
            self.costs.acceptance = self._acceptance.overall
        return self.costs

    def counts(self, drafter: str) -> dict[str, float]:
        """Totals since start, named as in `Engine.gauges`."""
        reasons = self._reasons.copy()
        for reason in self._decision.reasons:
            reasons[reason] += self._stood
        counts: dict[str, float] = {
            f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in reasons.items() if count
        }
        allowed = self._decision.allowed
        counts["gate_draft_tokens"] = sum(allowed) / max(1, len(allowed))
        noted = [row for drafted, _ in list(self._noted) for row in drafted if row[0] is not None]
        for i, context in enumerate(CONTEXTS):
            drafted, accepted = self._acceptance.totals(i)
            for track, _, made, stood in noted:
                if track is not None and track.context == i:
                    for position in range(made):
                        drafted[position] += 1
                        accepted[position] += position < stood
            for position in range(self._drafts):
                if drafted[position]:
                    labels = f'{{position="{position}",drafter="{drafter}",context="{context}"}}'
                    counts[f"drafted_per_position_total{labels}"] = drafted[position]
                    counts[f"accepted_per_position_total{labels}"] = accepted[position]
        return counts

    def _stands(self, tracks: Sequence[Track], caps: Sequence[int], too_long: tuple[int, ...]) -> bool:
        """Whether the standing decision is right for this batch too."""
        standing = self._decision
        if tracks != self._tracks or (too_long and any(standing.allowed[i] for i in too_long)):
            return False
        return caps == self._caps or (not standing.capped and all(map(operator.le, standing.allowed, caps)))

    def _new_decision(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        state, clock = self._state._replace(due=self._due), Clock(self._steps, self._observed)
        for track, context in zip(tracks, contexts, strict=True):
            track.context = bisect_right(CONTEXTS, context) - 1
        counts = [state.usual if track.drafts is None else track.drafts for track in tracks]
        batch = Batch(counts, contexts, limited(caps, contexts, self.limits))
        forecast: Forecast | None = None
        if not self.limits.too_many(len(tracks)) and state.is_due(clock, len(tracks)):
            forecast = self._forecast(tracks, batch)
        self._state, decision = decide(state, clock, batch, self.limits, forecast, self.policy)
        self._due = self._state.due
        for track, count in zip(tracks, decision.counts, strict=True):
            track.drafts = count
        return decision

    def _forecast(self, tracks: Sequence[Track], batch: Batch) -> Forecast | None:
        if self.costs is None:
            return None
        self._acceptance.learn()
        likely = self._acceptance.likely
        for track in tracks:
            track.forget()
        survivals = [
            track.survivals(likely[track.context][:cap]) for track, cap in zip(tracks, batch.caps, strict=True)
        ]
        return Forecast(survivals, batch.contexts, self.costs, self._acceptance.doubts)

    def _learn(self) -> None:
        """Learn from the steps with the standing decision."""
        times: list[tuple[int, float]] = []
        asked_for = sum(self._decision.allowed)
        rows = Counter(chain.from_iterable(drafted for drafted, _ in self._noted))
        all_made = all(asked == made for _, asked, made, _ in rows)
        for drafted, seconds in self._noted:
            if seconds is not None and sum(map(_ASKED, drafted)) == asked_for and not self._by_grammar(drafted):
                times.append((asked_for if all_made else sum(map(_MADE, drafted)), seconds))
        self._acceptance.count(rows)
        for reason, count in Counter(self._decision.reasons).items():
            self._reasons[reason] += count * self._stood
        if self._times is not None and times:
            step = features(self._decision.allowed, self._contexts)
            self._times.learn(step, times, self._observed)
        self._noted, self._stood = [], 0

    def _by_grammar(self, drafted: Sequence[Drafted]) -> bool:
        """Whether a grammar made all drafts, and these are not few."""
        forced = 0
        for track, asked, _, _ in drafted:
            if track is not None:
                return False
            forced += asked
        return forced * _FEW > len(self._tracks)


class UniformGate(Gate):
    """A `Gate` that allows the same number of draft tokens for all sequences that may draft at all."""

    policy: Policy = staticmethod(one_count)
