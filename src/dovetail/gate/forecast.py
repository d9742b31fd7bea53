"""The forecast: how many tokens per second a batch makes, and the draft counts that make the most. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from dovetail.gate.costs import CONTEXTS, CostTable


def best(survivals: Sequence[Sequence[float]], weights: Sequence[float], table: CostTable, context: float) -> list[int]:
    """For each sequence of a step, how many tokens to draft so that the batch makes the most tokens per second.

    ``survivals[i][j]``: the probability that drafts 0 to j of sequence i are all accepted, for as many drafts as it may
    have. ``weights[i]``: the cost of drafting for sequence i, relative to a sequence of the mean `context`. See
    `Forecast`.
    """
    return Forecast(survivals, weights, table, context).best()


class Forecast:
    """Tokens per second of one batch for any draft counts; arguments as for `best`.

    A step makes one token for each sequence, and the accepted drafts. It takes T without drafts and, for draft j of m
    sequences, the larger of two costs: by how much T grows from j to j + 1 drafts at batch m, and the share of m
    sequences in that growth at the whole batch. The first is larger where a drafter's pass takes as long for one
    sequence as for many, the second where the target's time grows with each token.
    """

    def __init__(
        self, survivals: Sequence[Sequence[float]], weights: Sequence[float], table: CostTable, context: float
    ) -> None:
        self._count = len(survivals)
        self._survivals = survivals
        self._weights = weights
        # The columns that this batch needs.
        self._columns = dict(zip(table.batches, table.columns(context, self._count), strict=False))
        self.depth = min(table.drafts, max(map(len, survivals)))
        # The sequences that may draft, those with the most gain per cost first: these draft most.
        gaining = [i for i, own in enumerate(survivals) if own]
        gain = [own[0] / weight if own else 0.0 for own, weight in zip(survivals, weights, strict=True)]
        self._order = order = sorted(gaining, key=gain.__getitem__, reverse=True)
        drafting = len(order)
        # How many of them may draft: a batch of the table, all, or all before the largest drop in gain.
        drop = max(range(1, drafting), key=lambda m: gain[order[m - 1]] - gain[order[m]], default=drafting)
        self._sizes = sorted({drafting, drop, *(m for m in table.batches if m < drafting)} - {0}, reverse=True)
        # For each draft, by how many of the first sequences: how many may have it, their weights, their gains.
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
        """The best draft counts, by Dinkelbach's method (https://doi.org/10.1287/mnsc.13.7.492): a draft must gain as
        many tokens as the best rate so far makes in its time."""
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
        """Tokens per second with this many drafts for all sequences that may draft."""
        return self._rate([len(self._order)] * drafts)

    def _most(self, rate: float) -> list[int]:
        """For each draft, how many sequences have it, so that tokens minus `rate` times seconds are the most."""
        most, counts = 0.0, list[int]()
        values = [
            {m: gains[m] - rate * self._seconds(j, m) for m in self._sizes} for j, gains in enumerate(self._gains)
        ]
        for rank, first in enumerate(self._sizes):
            # The first sequences, all as far as that pays; or fewer of them with every draft.
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
        """Seconds that draft `draft` takes for those of the `first` sequences that may have it."""
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


def weights(contexts: Sequence[int], table: CostTable, drafts: int) -> list[float]:
    """The cost of drafting for each sequence, relative to one of the mean context; equal where contexts are similar."""
    mean = sum(contexts) / len(contexts)
    if max(contexts) <= 2 * mean + CONTEXTS[1]:
        return [1.0] * len(contexts)
    drafts = max(1, drafts)
    usual = table.at(1, drafts, mean) - table.at(1, 0, mean)
    if usual <= 0:
        return [1.0] * len(contexts)
    return [max(0.1, (table.at(1, drafts, own) - table.at(1, 0, own)) / usual) for own in contexts]
