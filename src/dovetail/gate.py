"""How many tokens to draft now, if any: where drafting does not pay it is off (law 13, *never slower*).

`best` is the decision, a pure function: given how likely each sequence's drafts are to stand and what steps take, the
numbers of drafts that make the most tokens per second. `Gate` is what surrounds it: acceptance as it is seen (by
position and context; in `Track`, of one request), a `CostTable` that learns, and calm: it decides every few steps,
changes only for a gain, and now and then tries something else for a moment, since what is never done is never measured.
It knows neither tokens nor tensors, so any scheduler can ask it.
"""

from __future__ import annotations

import operator
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from dovetail.costs import CONTEXTS, CostTable

Reason = Literal["draft", "cost", "context", "batch", "request", "probe"]
"""Of a sequence's drafts in a step: as many as pay; none, which pays more; at or beyond the limit of context; more
sequences than the limit of batch; the request's own cap allows none; to measure."""

#: A decision stands for so many steps, unless the batch changes by more than an eighth before.
DECIDE_EVERY = 16
#: What a change must gain by a forecast.
GAIN = 1.01

# Before anything was seen a draft stands with this probability, and so many drafts must be seen to say otherwise.
_PRIOR, _PRIOR_WEIGHT = 0.7, 8.0
# The latest drafts count most: as many as these, over all requests and of one.
_MEMORY, _OWN_MEMORY = 2048.0, 48.0
# How many drafts of a request must be tested at a position to outweigh what all requests say.
_OWN_WEIGHT = 6.0
_SUREST = 0.995

# What is tried, for how many steps, after how many steps at least: what was told of in fewer steps than `_UNKNOWN`, if
# it is hopeful; what is level by the forecast, so that it takes many drafts to tell; what is near; what is far.
_UNKNOWN = 1.5
_LEVEL, _NEAR = 0.95, 0.8
_TRIALS = {"unknown": (3, 48), "level": (8, 128), "near": (6, 128), "far": (3, 512)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What is never drafted, whatever pays: for sequences of `below_context` tokens or more; for any where more than
    `up_to_batch` decode. None: no limit."""

    below_context: int | None = None
    up_to_batch: int | None = None


@dataclass(slots=True, eq=False)
class Track:
    """What the gate knows of one request: by position, how many drafts were tested lately and how many stood; of each
    step that it has not looked at yet, how many were drafted and how many stood; how many it is to draft, None as many
    as others, and why."""

    tested: list[float] = field(default_factory=list)
    stood: list[float] = field(default_factory=list)
    fresh: list[tuple[int, int]] = field(default_factory=list)
    drafts: int | None = None
    reason: Reason = "draft"
    context: int = 0  # an index into CONTEXTS

    def learn(self) -> None:
        """Take in what is fresh."""
        tested, stood = self.tested, self.stood
        if not self.fresh:
            return
        longest = max(self.fresh)[0]
        tested += [0.0] * (longest - len(tested))
        stood += [0.0] * (longest - len(stood))
        for (drafted, accepted), times in Counter(self.fresh).items():
            for i in range(accepted):
                tested[i] += times
                stood[i] += times
            if accepted < drafted:
                tested[accepted] += times
        self.fresh.clear()
        if tested and tested[0] > _OWN_MEMORY:
            share = _OWN_MEMORY / tested[0]
            tested[:] = [share * count for count in tested]
            stood[:] = [share * count for count in stood]

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """How likely the first so many drafts are to stand, all of them: as its own did, and where few of them were
        tested as `likely`, or by as much less as those before did."""
        survivals, survives, less, known = list[float](), 1.0, 1.0, len(self.tested)
        for i, usual in enumerate(likely):
            stands = less * usual
            if i < known:
                stands = (self.stood[i] + _OWN_WEIGHT * stands) / (self.tested[i] + _OWN_WEIGHT)
            less = min(1.0, stands / usual)
            survives *= min(_SUREST, stands)
            survivals.append(survives)
        return survivals


def best(survivals: Sequence[Sequence[float]], weights: Sequence[float], table: CostTable, context: float) -> list[int]:
    """How many tokens to draft for each of a step's sequences, so that tokens per second are the most.

    ``survivals[i][j]``: how likely drafts 0 to j of sequence i are to stand, all of them; as many as it may draft.
    ``weights[i]``: what drafting for it takes, in relation to a sequence of the mean `context`. See `Forecast`.
    """
    return Forecast(survivals, weights, table, context).best()


class Forecast:
    """Tokens per second of one batch under any numbers of drafts; arguments as for `best`.

    A step yields one token a sequence and the drafts that stand. It takes T without drafts and, for draft j of m
    sequences, what T grows by from j to j + 1 drafts at batch m, or their share of what it grows by at this batch,
    whichever is more: a pass of a drafter takes its time for one sequence too, and the target's for one more token
    among many.
    """

    def __init__(
        self, survivals: Sequence[Sequence[float]], weights: Sequence[float], table: CostTable, context: float
    ) -> None:
        self._count = len(survivals)
        self._survivals = survivals
        self._weights = weights
        self._columns = dict(zip(table.batches, table.columns(context), strict=True))
        self.depth = min(table.drafts, max(map(len, survivals)))
        # Who gains most by what it takes comes first, and drafts furthest.
        gaining = [i for i, own in enumerate(survivals) if own]
        gain = [own[0] / weight if own else 0.0 for own, weight in zip(survivals, weights, strict=True)]
        self._order = order = sorted(gaining, key=gain.__getitem__, reverse=True)
        drafting = len(order)
        # How many may draft: as many as the table knows, or all before whoever gains much less than who comes before.
        drop = max(range(1, drafting), key=lambda m: gain[order[m - 1]] - gain[order[m]], default=drafting)
        self._sizes = sorted({drafting, drop, *(m for m in table.batches if m < drafting)} - {0}, reverse=True)
        # Of the first m of them, for each draft: how many may have it, their weights, and what they gain.
        self._allowed, self._shares, self._gains = list[list[int]](), list[list[float]](), list[list[float]]()
        shortest = min((len(survivals[i]) for i in gaining), default=0)
        for j in range(self.depth):
            if 0 < j < shortest:
                self._allowed.append(self._allowed[0])
                self._shares.append(self._shares[0])
            else:
                self._allowed.append([0, *accumulate(j < len(survivals[i]) for i in self._order)])
                self._shares.append([0.0, *accumulate(weights[i] * (j < len(survivals[i])) for i in self._order)])
            gains = (survivals[i][j] if j < len(survivals[i]) else 0.0 for i in self._order)
            self._gains.append([0.0, *accumulate(gains)])
        self._off = self._column(self._count)[0]
        self._known: dict[tuple[int, int], float] = {}

    def best(self) -> list[int]:
        """The numbers of drafts, by Dinkelbach's method (https://doi.org/10.1287/mnsc.13.7.492): drafts must yield
        what the best rate so far yields in their time."""
        rate, counts = self._count / self._off, list[int]()
        while True:
            better = self._most(rate)
            reached = self._rate(better)
            if reached <= rate * (1 + 1e-9):
                break
            rate, counts = reached, better
        drafts = [0] * self._count
        for rank, i in enumerate(self._order):
            drafts[i] = min(len(self._survivals[i]), sum(rank < count for count in counts))
        return drafts

    def rate(self, drafts: Sequence[int]) -> float:
        """Tokens per second with ``drafts[i]`` drafts for sequence i."""
        drafts = [min(k, len(own), self.depth) for k, own in zip(drafts, self._survivals, strict=True)]
        ranked = sorted(zip(drafts, self._weights, strict=True), reverse=True)
        shares = list(accumulate(weight for _, weight in ranked))
        seconds, count = self._off, len(ranked)
        for j in range(ranked[0][0]):
            while ranked[count - 1][0] <= j:
                count -= 1
            seconds += self._cost(j, count) * shares[count - 1] / count
        gained = sum(sum(own[:k]) for k, own in zip(drafts, self._survivals, strict=True) if k)
        return (self._count + gained) / seconds

    def uniform(self, drafts: int) -> float:
        """Tokens per second with so many drafts for all that may draft at all."""
        return self._rate([len(self._order)] * drafts)

    def _most(self, rate: float) -> list[int]:
        """For each draft by how many sequences it is drafted, so that tokens less `rate` times seconds are the most."""
        most, counts = 0.0, list[int]()
        values = [
            {m: gains[m] - rate * self._seconds(j, m) for m in self._sizes} for j, gains in enumerate(self._gains)
        ]
        for rank, first in enumerate(self._sizes):
            # All of the first so many as far as it pays; or fewer and fewer of them.
            for narrowing in (False, True) if first > 1 else (False,):
                value, own, size, fewer = 0.0, list[int](), first, self._sizes[rank:]
                for j, by_size in enumerate(values):
                    if narrowing and j:
                        size = max(fewer, key=by_size.__getitem__)
                        fewer = fewer[fewer.index(size) :]
                    value += by_size[size]
                    own.append(size)
                    if value > most:
                        most, counts = value, own.copy()
        return counts

    def _rate(self, counts: Sequence[int]) -> float:
        gained = sum(self._gains[j][count] for j, count in enumerate(counts))
        seconds = sum(self._seconds(j, count) for j, count in enumerate(counts))
        return (self._count + gained) / (self._off + seconds)

    def _seconds(self, draft: int, first: int) -> float:
        """What draft `draft` takes for those of the `first` so many that may have it."""
        known = self._known.get((draft, first))
        if known is None:
            count = self._allowed[draft][first]
            known = self._cost(draft, count) * self._shares[draft][first] / count if count else 0.0
            self._known[draft, first] = known
        return known

    def _cost(self, draft: int, count: int) -> float:
        """Seconds that draft `draft` takes for `count` sequences of the mean context."""
        alone, all_of_them = self._column(count), self._column(self._count)
        share = (all_of_them[draft + 1] - all_of_them[draft]) * count / self._count
        return max(0.0, alone[draft + 1] - alone[draft], share)

    def _column(self, batch: int) -> list[float]:
        """T by drafts at `batch`."""
        known = self._columns.get(batch)
        if known is None:
            axis = sorted(self._columns)
            high = bisect_right(axis, batch)
            if high == len(axis):
                return self._columns[axis[-1]]
            low, share = axis[high - 1], (batch - axis[high - 1]) / (axis[high] - axis[high - 1])
            pairs = zip(self._columns[low], self._columns[axis[high]], strict=True)
            known = self._columns[batch] = [a + (b - a) * share for a, b in pairs]
        return known


class Acceptance:
    """How often drafts stood where those before them did, by position and context; the latest count most.

    Where little was seen of a context, all contexts say what is likely; of a position, the one before it does.
    """

    def __init__(self, positions: int) -> None:
        self._positions = positions
        #: Since start, by context: how often so many were drafted and so many stood. And what of it was learned from.
        self.seen = [self._histogram() for _ in CONTEXTS]
        self._learned = [self._histogram() for _ in CONTEXTS]
        self._tested = [[0.0] * positions for _ in CONTEXTS]
        self._stood = [[0.0] * positions for _ in CONTEXTS]
        #: By context and position, how likely a draft is to stand; above 0.
        self.likely: list[list[float]] = []
        self.learn()

    def learn(self) -> None:
        """Take in what was seen since this was last called."""
        for context, (seen, learned) in enumerate(zip(self.seen, self._learned, strict=True)):
            tested, stood = self._tested[context], self._stood[context]
            for drafted, row in enumerate(seen):
                if row == learned[drafted]:
                    continue
                for accepted, count in enumerate(row):
                    times = count - learned[drafted][accepted]
                    for i in range(min(accepted + 1, drafted)):
                        tested[i] += times
                        stood[i] += times * (i < accepted)
                learned[drafted] = row.copy()
            if tested and tested[0] > _MEMORY:
                share = _MEMORY / tested[0]
                tested[:] = [share * count for count in tested]
                stood[:] = [share * count for count in stood]
        prior, overall = _PRIOR, []
        for i in range(self._positions):
            stood_here, tested_here = sum(row[i] for row in self._stood), sum(row[i] for row in self._tested)
            prior = (stood_here + _PRIOR_WEIGHT * prior) / (tested_here + _PRIOR_WEIGHT)
            overall.append(prior)
        self.likely = [
            [(s + _PRIOR_WEIGHT * p) / (t + _PRIOR_WEIGHT) for s, t, p in zip(stood, tested, overall, strict=True)]
            for stood, tested in zip(self._stood, self._tested, strict=True)
        ]

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """How many were drafted and how many stood at each position, since start."""
        drafted, accepted = [0] * self._positions, [0] * self._positions
        for count, row in enumerate(self.seen[context]):
            for stood, times in enumerate(row):
                for i in range(count):
                    drafted[i] += times
                    accepted[i] += times * (i < stood)
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]


class Gate:
    """Chooses before every step, is told after it. `drafts` is the most it chooses; without a `table` always so many,
    within `limits`."""

    def __init__(self, table: CostTable | None, limits: Limits, drafts: int) -> None:
        self.table = table
        self._limits = limits
        self._acceptance = Acceptance(drafts)
        self._drafts = drafts
        self._reasons: Counter[Reason] = Counter()
        # The batch that was chosen for last, for how many steps, and what; how many drafts these had, and seconds.
        self._tracks: list[Track] = []
        self._steps = 0
        self._chosen: list[int] = []
        self._told: list[tuple[int, float]] = []
        self._context = 0.0
        # The numbers have just changed: drafters catch up, or leave something for later, so this step's time is no
        # measure.
        self._changed = True
        # What most sequences draft, for those that come; steps until the next decision; the batch of the last.
        self._usual = drafts
        self._left, self._decided_at = 0, 0
        # What is tried, for how many more steps, and how many steps ago something was.
        self._trial, self._trial_left, self._untried, self._ended = 0, 0, 0, False

    def choose(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> list[int]:
        """How many tokens to draft for each of the sequences that decode in the next step. ``contexts[i]``: how many
        tokens sequence i has; ``caps[i]``: the most that it may draft, 0 or more."""
        if not tracks:
            self._changed = True  # what such a step takes says nothing of the batch before it
            return []
        below = self._limits.below_context
        beyond = below is not None and max(contexts) >= below
        self._left -= 1
        self._untried += 1
        self._changed = False
        held = self._left > 0 and tracks == self._tracks and all(map(operator.le, self._chosen, caps))
        if held and not (beyond and any(k and self.too_long(at) for k, at in zip(self._chosen, contexts, strict=True))):
            self._steps += 1
            return self._chosen
        self._settle()
        self._tracks, self._steps = list(tracks), 1
        self._context = sum(contexts) / len(contexts)
        for track, context in zip(tracks, contexts, strict=True):
            track.context = bisect_right(CONTEXTS, context) - 1
        barred: Reason | None = None
        if self._limits.up_to_batch is not None and len(tracks) > self._limits.up_to_batch:
            caps, barred = [0] * len(caps), "batch"
        elif beyond:
            caps = [0 if self.too_long(context) else cap for context, cap in zip(contexts, caps, strict=True)]
        if self.table is not None:
            if barred is None:
                self._decide_when_due(self.table, tracks, contexts, caps)
            elif self._left <= 0:
                self._left = DECIDE_EVERY
        self._chosen = []
        for track, context, cap in zip(tracks, contexts, caps, strict=True):
            if track.drafts is None:
                track.drafts = self._usual
            drafts = self._trial if self._trial_left else track.drafts
            if cap:
                track.reason = "probe" if self._trial_left else "draft" if drafts else "cost"
            else:
                track.reason = barred or ("context" if self.too_long(context) else "request")
            self._chosen.append(drafts if drafts < cap else cap)
        return self._chosen

    def tell(self, drafted: Iterable[tuple[Track, int, int]], seconds: float | None) -> None:
        """After a step: of each sequence for which something was drafted, how much, and how much of it stood; and how
        long the step took, None where it did other things besides."""
        total, seen = 0, self._acceptance.seen
        for track, count, accepted in drafted:
            total += count
            seen[track.context][count][accepted] += 1
            if self.table is not None:
                track.fresh.append((count, accepted))
        if self.table is not None and seconds is not None and not self._changed:
            self._told.append((total, seconds))
        if self._trial_left:
            self._trial_left -= 1
            if not self._trial_left:
                self._left, self._ended = 0, True

    def too_long(self, context: int) -> bool:
        """Whether nothing is ever drafted for a sequence of `context` tokens."""
        return self._limits.below_context is not None and context >= self._limits.below_context

    def counts(self, drafter: str) -> dict[str, float]:
        """Totals since start, named as in `Engine.gauges`."""
        reasons = self._reasons.copy()
        for track in self._tracks:
            reasons[track.reason] += self._steps
        counts: dict[str, float] = {
            f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in reasons.items()
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

    def _settle(self) -> None:
        """Take in what was told of the steps since the last choice that was another."""
        for track in self._tracks:
            self._reasons[track.reason] += self._steps
        if self.table is not None and self._told:
            by_total: dict[int, list[float]] = {}
            for total, seconds in self._told:
                by_total.setdefault(total, []).append(seconds)
            for total, found in by_total.items():
                batch = len(self._tracks)
                self.table.tell(batch, total / batch, self._context, statistics.median_low(found), len(found))
        self._told.clear()

    def _decide_when_due(
        self, table: CostTable, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]
    ) -> None:
        moved = abs(len(tracks) - self._decided_at) * 8 > self._decided_at
        if not moved and (self._left > 0 or self._trial_left):
            return
        self._changed = self._ended or self._trial_left > 0
        self._trial_left, self._ended = 0, False
        self._left, self._decided_at = DECIDE_EVERY, len(tracks)
        self._acceptance.learn()
        for track in tracks:
            track.learn()
        survivals = [
            track.survivals(self._acceptance.likely[track.context][:cap])
            for track, cap in zip(tracks, caps, strict=True)
        ]
        if not any(survivals):
            return
        forecast = Forecast(survivals, _weights(contexts, table, self._usual), table, self._context)
        drafts = [self._usual if track.drafts is None else track.drafts for track in tracks]
        now, better = forecast.rate(drafts), forecast.best()
        if (then := forecast.rate(better)) > GAIN * now:
            drafts, now, self._changed = better, then, True
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
        hopeful = [k for k in unknown if rates[k] > _NEAR * now]
        trial = max(hopeful or rates, key=rates.__getitem__)
        share = rates[trial] / now
        kind = "unknown" if hopeful else "level" if share > _LEVEL else "near" if share > _NEAR else "far"
        steps, every = _TRIALS[kind]
        if self._untried >= every:
            self._trial, self._trial_left, self._untried, self._changed = trial, steps, 0, True


def _weights(contexts: Sequence[int], table: CostTable, drafts: int) -> list[float]:
    """What drafting takes for each sequence, in relation to one of the mean context; all alike where contexts are."""
    mean = sum(contexts) / len(contexts)
    if max(contexts) <= 2 * mean + CONTEXTS[1]:
        return [1.0] * len(contexts)
    drafts = max(1, drafts)
    usual = table.at(1, drafts, mean) - table.at(1, 0, mean)
    if usual <= 0:
        return [1.0] * len(contexts)
    return [max(0.1, (table.at(1, drafts, own) - table.at(1, 0, own)) / usual) for own in contexts]
