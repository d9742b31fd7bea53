"""Who surrounds the decision with what it needs, and with calm.

`Gate` decides every few steps, seldom where nothing changes, changes only for a gain, and now and then tries something
else for a moment, since what is never done is never measured.
"""

from __future__ import annotations

import operator
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dovetail.gate.acceptance import Acceptance, Track
from dovetail.gate.costs import CONTEXTS, CostTable
from dovetail.gate.forecast import Forecast, weights

Reason = Literal["draft", "cost", "context", "batch", "request", "probe"]
"""Of a sequence's drafts in a step: as many as pay; none, which pays more; at or beyond the limit of context; more
sequences than the limit of batch; the request's own cap allows none; to measure."""

#: A decision stands for so many steps, unless the batch changes by more than an eighth before; twice as many when it
#: was the same again, up to the most.
DECIDE_EVERY, LONGEST_HOLD = 16, 64
# A step that takes more than so many seconds counts as several: few of them are much to learn late from.
_SLOW = 0.04
# Drafts that a grammar made, for so many sequences one, do not change what a step takes.
_FEW = 4
# What a change must gain by a forecast.
_GAIN = 1.01
# What is tried, for how many steps, after how many steps at least: what was told of in fewer steps than `_UNKNOWN`, if
# it is near by the forecast, or if only one number was ever told of at this batch and context; what is level, so that
# it takes many drafts to tell; what is near; what is far.
_UNKNOWN = 1.5
_LEVEL, _NEAR = 0.95, 0.8
_TRIALS = {"unknown": (3, 16), "level": (8, 128), "near": (6, 128), "far": (3, 512)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What is never drafted, whatever pays: for sequences of `below_context` tokens or more; for any where more than
    `up_to_batch` decode. None: no limit."""

    below_context: int | None = None
    up_to_batch: int | None = None


class Gate:
    """Chooses before every step, is told after it. `drafts` is the most it chooses; without a `table` always so many,
    within `limits`."""

    def __init__(self, table: CostTable | None, limits: Limits, drafts: int) -> None:
        self.table = table
        #: Whether the batch that was chosen for last has a sequence that is too long to draft for.
        self.beyond = False
        self._limits = limits
        self._acceptance = Acceptance(drafts)
        self._drafts = drafts
        self._reasons: Counter[Reason] = Counter()
        # The batch that was chosen for last; what, and why; in each step since, how many drafts were asked for, how
        # many made, and seconds.
        self._tracks: list[Track] = []
        # What each of it might have at most, and whether that was less than what pays.
        self._caps: list[int] = []
        self._clipped = False
        self._held: list[tuple[Reason, int]] = []
        self._chosen: list[int] = []
        self._told: list[tuple[int, int, float]] = []
        self._context = 0.0
        # The numbers have just changed: drafters catch up, or leave something for later, so this step's time is no
        # measure.
        self._changed = True
        # What most sequences draft, for those that come; steps until the next decision; the batch of the last.
        self._usual = drafts
        self._left, self._hold, self._decided_at = 0, DECIDE_EVERY, 0
        # What is tried, for how many more steps, and how many steps ago something was.
        self._trial, self._trial_left, self._untried, self._ended = 0, 0, 0, False

    def choose(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> list[int]:
        """How many tokens to draft for each of the sequences that decode in the next step. ``contexts[i]``: how many
        tokens sequence i has; ``caps[i]``: the most that it may draft, 0 or more."""
        if not tracks:
            self._changed = True  # what such a step takes says nothing of the batch before it
            return []
        below = self._limits.below_context
        self.beyond = beyond = below is not None and max(contexts) >= below
        self._left -= 1
        self._untried += 1
        self._changed = False
        same = caps == self._caps or (not self._clipped and all(map(operator.le, self._chosen, caps)))
        held = self._left > 0 and same and tracks == self._tracks
        if held and not (beyond and any(k and self.too_long(at) for k, at in zip(self._chosen, contexts, strict=True))):
            self._count()
            return self._chosen
        self._settle()
        self._tracks, self._caps = list(tracks), list(caps)
        self._context = sum(contexts) / len(contexts)
        for track, context in zip(tracks, contexts, strict=True):
            track.context = bisect_right(CONTEXTS, context) - 1
        barred: Reason | None = None
        if self.too_many(len(tracks)):
            caps, barred = [0] * len(caps), "batch"
        elif beyond:
            caps = [0 if self.too_long(context) else cap for context, cap in zip(contexts, caps, strict=True)]
        if self.table is not None and barred is None:
            self._decide_when_due(self.table, tracks, contexts, caps)
        elif self._left <= 0:
            self._left = DECIDE_EVERY
        chosen, reasons, clipped = list[int](), list[Reason](), False
        for track, context, cap in zip(tracks, contexts, caps, strict=True):
            if track.drafts is None:
                track.drafts = self._usual
            drafts = self._trial if self._trial_left else track.drafts
            if cap:
                reasons.append("probe" if self._trial_left else "draft" if drafts else "cost")
            else:
                reasons.append(barred or ("context" if self.too_long(context) else "request"))
            chosen.append(drafts if drafts < cap else cap)
            clipped = clipped or drafts > cap
        self._clipped = clipped
        self._chosen, self._held = chosen, list(Counter(reasons).items())
        self._count()
        return chosen

    def tell(self, drafted: Iterable[tuple[Track | None, int, int, int]], seconds: float | None) -> None:
        """After a step: of each sequence that was to be drafted for, how many drafts were asked for, made, and stood;
        and how long the step took, None where it did other things besides. No track where a grammar made them, or the
        first of them: that says nothing of the drafter.

        What was asked for and not made (lookups often find nothing) did not stand, and took as long as it took.
        """
        total, others, found, seen, made = 0, 0, 0, self._acceptance.seen, self._acceptance.drafted
        for track, asked, count, accepted in drafted:
            total += asked
            found += count
            if track is None:
                others += asked
                continue
            seen[track.context][asked][accepted] += 1
            made[track.context][count] += 1
            if self.table is not None:
                track.fresh.append((asked, accepted))
        # Without the drafter's own part drafts take less time than others so many; a few among many sequences are none.
        alone = others == total and others * _FEW > len(self._tracks)
        if self.table is not None and seconds is not None and not self._changed and not alone:
            self._told.append((total, found, seconds))
            self._left -= int(seconds / _SLOW)
        if self._trial_left:
            self._trial_left -= 1
            if not self._trial_left:
                self._left, self._ended = 0, True

    def too_long(self, context: int) -> bool:
        """Whether nothing is ever drafted for a sequence of `context` tokens."""
        return self._limits.below_context is not None and context >= self._limits.below_context

    def too_many(self, batch: int) -> bool:
        """Whether nothing is drafted where so many sequences decode."""
        return self._limits.up_to_batch is not None and batch > self._limits.up_to_batch

    def counts(self, drafter: str) -> dict[str, float]:
        """Totals since start, named as in `Engine.gauges`."""
        counts: dict[str, float] = {
            f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in self._reasons.copy().items()
        }
        counts["gate_draft_tokens"] = sum(self._chosen) / max(1, len(self._chosen))
        for i, context in enumerate(CONTEXTS):
            drafted, accepted = self._acceptance.totals(i)
            for position in range(self._drafts):
                if drafted[position]:
                    labels = f'{{position="{position}",drafter="{drafter}",context="{context}"}}'
                    counts[f"drafted_per_position_total{labels}"] = drafted[position]
                    counts[f"accepted_per_position_total{labels}"] = accepted[position]
        return counts

    def _count(self) -> None:
        for reason, count in self._held:
            self._reasons[reason] += count

    def _settle(self) -> None:
        """Take in what was told of the steps since the last choice that was another."""
        if self.table is not None and self._told:
            by_total: dict[int, dict[int, list[float]]] = {}
            for total, found, seconds in self._told:
                by_total.setdefault(total, {}).setdefault(found, []).append(seconds)
            for total, by_found in by_total.items():
                # Of steps alike the median, as some meet something else; of what was found now and then, the mean.
                times = [(len(own), statistics.median_low(own)) for own in by_found.values()]
                steps = sum(count for count, _ in times)
                mean = sum(count * seconds for count, seconds in times) / steps
                batch = len(self._tracks)
                self.table.tell(batch, total / batch, self._context, mean, steps)
        self._told.clear()

    def _decide_when_due(
        self, table: CostTable, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]
    ) -> None:
        moved = abs(len(tracks) - self._decided_at) * 8 > self._decided_at
        if not moved and (self._left > 0 or self._trial_left):
            return
        self._changed = self._ended or self._trial_left > 0
        self._trial_left, self._ended = 0, False
        self._hold = DECIDE_EVERY if moved else min(2 * self._hold, LONGEST_HOLD)
        self._left, self._decided_at = self._hold, len(tracks)
        self._acceptance.learn()
        for track in tracks:
            track.learn()
        survivals = [
            track.survivals(self._acceptance.likely[track.context][:cap])
            for track, cap in zip(tracks, caps, strict=True)
        ]
        if not any(survivals):
            return
        forecast = Forecast(survivals, weights(contexts, table, self._usual), table, self._context)
        drafts = [self._usual if track.drafts is None else track.drafts for track in tracks]
        now, better = forecast.rate(drafts), forecast.best()
        if (then := forecast.rate(better)) > _GAIN * now:
            drafts, now, self._changed = better, then, True
            self._left = self._hold = DECIDE_EVERY
        for track, count in zip(tracks, drafts, strict=True):
            track.drafts = count
        self._usual = Counter(count for count, own in zip(drafts, survivals, strict=True) if own).most_common(1)[0][0]
        self._try(table, forecast, now)

    def _try(self, table: CostTable, forecast: Forecast, now: float) -> None:
        """Perhaps begin a trial of another number of drafts than the usual one, where the rate is `now`."""
        if self._untried < _TRIALS["unknown"][1]:
            return
        rates = {k: forecast.uniform(k) for k in range(forecast.depth + 1) if k != self._usual}
        if not rates:
            return
        unknown = [k for k in rates if table.known(len(self._tracks), k, self._context) < _UNKNOWN]
        hopeful = unknown if len(unknown) == len(rates) else [k for k in unknown if rates[k] > _NEAR * now]
        trial = max(hopeful or rates, key=rates.__getitem__)
        share = rates[trial] / now
        kind = "unknown" if hopeful else "level" if share > _LEVEL else "near" if share > _NEAR else "far"
        steps, every = _TRIALS[kind]
        if hopeful:
            self._left = self._hold = DECIDE_EVERY
        if self._untried >= every:
            self._trial, self._trial_left, self._untried, self._changed = trial, steps, 0, True
