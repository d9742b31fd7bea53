"""The gate: it decides before every step how much to draft, and observes the step afterwards.

`Gate` keeps what the pure `decision.decide` needs between steps: the last state and decision, acceptance, and step
times. While a decision stands it is returned as it is, so most steps cost a few microseconds.
"""

from __future__ import annotations

import operator
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dovetail.gate.acceptance import Acceptance, Track
from dovetail.gate.costs import CONTEXTS, CostTable
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
    too_long_in,
)

# A step of more seconds than this counts as several: otherwise a slow engine would wait long for the next decision.
_SLOW = 0.04
# Drafts from a grammar take no drafter. Where fewer than one in this many sequences has them, the time of the step is
# still that of a drafted step.
_FEW = 4

_NOTHING = Decision()

Drafted = tuple[Track | None, int, int, int]
"""The drafts of one sequence in a step: its track, or None where a grammar made some of them, which says nothing about
the drafter; how many draft tokens were asked for; how many were made; how many were accepted."""


class Gate:
    """Decides before every step and observes it afterwards.

    `drafts`: the most tokens that a sequence drafts. Without a `table`, every sequence drafts as many, within `limits`.
    """

    policy: Policy = staticmethod(best_counts)

    def __init__(self, table: CostTable | None, limits: Limits, drafts: int) -> None:
        self.table = table
        self.limits = limits
        self._drafts = drafts
        self._acceptance = Acceptance(drafts)
        self._state = State(usual=drafts)
        self._steps = 0
        self._observed = 0
        # The standing decision, the batch it is for, and its reasons with their numbers of sequences.
        self._decision = _NOTHING
        self._tracks: list[Track] = []
        self._caps: list[int] = []
        self._context = 0.0
        self._standing_reasons: list[tuple[Reason, int]] = []
        # Whether the time of the step that was decided for last is a measure of the standing decision.
        self._timed = False
        # Of each step with the standing decision: draft tokens asked for, draft tokens made, seconds.
        self._times: list[tuple[int, int, float]] = []
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
        if self._steps < self._state.due and self._stands(tracks, caps, too_long):
            self._timed = True
            if too_long != self._decision.too_long:
                self._decision = replace(self._decision, too_long=too_long)
        else:
            self._correct_table()
            self._decision = self._new_decision(tracks, contexts, caps)
            self._timed = not self._decision.changed
            self._tracks, self._caps = list(tracks), list(caps)
            self._context = sum(contexts) / len(contexts)
            self._standing_reasons = list(Counter(self._decision.reasons).items())
        for reason, count in self._standing_reasons:
            self._reasons[reason] += count
        return self._decision

    def observe(self, drafted: Iterable[Drafted], seconds: float | None) -> None:
        """Take in a step: the drafts of each sequence that was allowed some, and how long the step took.

        `seconds` is None where the step did other things besides. Draft tokens that were asked for and not made
        (lookups often find nothing) count as not accepted.
        """
        asked_in_all, asked_of_grammar, made_in_all = 0, 0, 0
        accepted_counts, made_counts = self._acceptance.accepted, self._acceptance.made
        for track, asked, made, accepted in drafted:
            asked_in_all += asked
            made_in_all += made
            if track is None:
                asked_of_grammar += asked
                continue
            accepted_counts[track.context][asked][accepted] += 1
            made_counts[track.context][made] += 1
            if self.table is not None:
                track.unlearned.append((asked, accepted))
        by_grammar = asked_of_grammar == asked_in_all and asked_of_grammar * _FEW > len(self._tracks)
        state = self._state
        if self.table is not None and seconds is not None and self._timed and not by_grammar:
            self._times.append((asked_in_all, made_in_all, seconds))
            if seconds >= _SLOW:
                state = self._state = replace(state, due=state.due - int(seconds / _SLOW))
        self._observed += 1
        if state.trial is not None and state.trial.end == self._observed:
            self._state = replace(state, due=self._steps)

    def counts(self, drafter: str) -> dict[str, float]:
        """Totals since start, named as in `Engine.gauges`."""
        counts: dict[str, float] = {
            f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in self._reasons.copy().items()
        }
        allowed = self._decision.allowed
        counts["gate_draft_tokens"] = sum(allowed) / max(1, len(allowed))
        for i, context in enumerate(CONTEXTS):
            drafted, accepted = self._acceptance.totals(i)
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
        state, clock = self._state, Clock(self._steps, self._observed)
        for track, context in zip(tracks, contexts, strict=True):
            track.context = bisect_right(CONTEXTS, context) - 1
        counts = [state.usual if track.drafts is None else track.drafts for track in tracks]
        batch = Batch(counts, contexts, limited(caps, contexts, self.limits))
        survivals: list[list[float]] | None = None
        if self.table is not None and not self.limits.too_many(len(tracks)) and state.is_due(clock, len(tracks)):
            survivals = self._survivals(tracks, batch.caps)
        self._state, decision = decide(state, clock, batch, self.limits, self.table, survivals, self.policy)
        for track, count in zip(tracks, decision.counts, strict=True):
            track.drafts = count
        return decision

    def _survivals(self, tracks: Sequence[Track], caps: Sequence[int]) -> list[list[float]]:
        """For each sequence, the probabilities that its first drafts are all accepted, as `Policy` takes them."""
        self._acceptance.learn()
        for track in tracks:
            track.learn()
        return [
            track.survivals(self._acceptance.likely[track.context][:cap])
            for track, cap in zip(tracks, caps, strict=True)
        ]

    def _correct_table(self) -> None:
        """Correct the table by the times of the steps with the standing decision."""
        if self.table is not None and self._times:
            by_asked: dict[int, dict[int, list[float]]] = {}
            for asked, made, seconds in self._times:
                by_asked.setdefault(asked, {}).setdefault(made, []).append(seconds)
            for asked, by_made in by_asked.items():
                # The median of steps that made as many drafts, since some steps meet something else; their mean over
                # the numbers of drafts made, since a lookup finds something only now and then.
                times = [(len(own), statistics.median_low(own)) for own in by_made.values()]
                steps = sum(count for count, _ in times)
                mean = sum(count * seconds for count, seconds in times) / steps
                batch = len(self._tracks)
                self.table.correct(batch, asked / batch, self._context, mean, steps)
        self._times.clear()
