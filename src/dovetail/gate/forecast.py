"""The forecast: tokens per second of a batch for any draft counts, how sure that is, and the counts that make most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from dovetail.gate.costs import CostModel, Features, features, of_totals


class Option(NamedTuple):
    """Draft counts of a batch, what a step with them is, its seconds, the accepted drafts by position, all tokens that
    it makes, and tokens per second."""

    counts: list[int]
    step: Features
    seconds: float
    accepted: list[float]
    tokens: float
    rate: float


class Forecast:
    """Of one batch.

    ``survivals[i][j]``: the probability that drafts 0 to j of sequence i are all accepted, for as many drafts as it may
    have. ``contexts[i]``: its tokens. ``doubts[j]``: the standard deviation of the logarithm of how many drafts at
    position j are accepted. ``options[k]``: k drafts for all sequences, or as many as each may have.
    """

    def __init__(
        self,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[float],
        costs: CostModel,
        doubts: Sequence[float] = (),
    ) -> None:
        self._survivals, self._contexts, self._costs, self._doubts = survivals, contexts, costs, doubts
        caps = list(map(len, survivals))
        self.depth, batch, context = max(caps), len(survivals), sum(contexts)
        # With as many drafts as possible, by position: how many sequences draft there, their rows, what is accepted.
        alike = min(caps) == self.depth
        if alike:
            drafting, rows = [batch] * self.depth, [context / 1024] * self.depth
            accepted = [float(sum(own)) for own in zip(*survivals, strict=True)]
        else:
            drafting = [sum(cap > j for cap in caps) for j in range(self.depth)]
            pairs = list(zip(survivals, contexts, strict=True))
            rows = [sum(c for own, c in pairs if len(own) > j) / 1024 for j in range(self.depth)]
            accepted = [sum(own[j] for own in survivals if len(own) > j) for j in range(self.depth)]
        self.options: list[Option] = []
        totals = zip(accumulate(drafting, initial=0), accumulate(rows, initial=0.0), strict=True)
        for k, (drafts, draft_rows) in enumerate(totals):
            step = of_totals(batch, context, k, drafts, draft_rows)
            self.options.append(self._made([k] * batch if alike else [min(k, cap) for cap in caps], step, accepted[:k]))

    def option(self, counts: list[int]) -> Option:
        """``counts[i]`` drafts for sequence i."""
        alike = self.options[max(counts)]
        if alike.counts == counts:
            return alike
        accepted = [0.0] * max(counts)
        for own, count in zip(self._survivals, counts, strict=True):
            for j in range(count):
                accepted[j] += own[j]
        step = features(counts, self._contexts)
        return self._made(counts, step, accepted)

    def _made(self, counts: list[int], step: Features, accepted: list[float]) -> Option:
        seconds, tokens = self._costs.seconds(step), len(counts) + sum(accepted)
        return Option(counts, step, seconds, accepted, tokens, tokens / seconds)

    def doubt(self, one: Option, other: Option) -> float:
        """The standard deviation of the logarithm of how their rates relate."""
        if one is other:
            return 0.0
        tokens, others = one.tokens, other.tokens
        # Doubts of one position are those of the next one too, so they add up.
        gained = (
            sum(map(mul, self._doubts, one.accepted)) / tokens - sum(map(mul, self._doubts, other.accepted)) / others
        )
        return math.hypot(gained, self._costs.spread(one.step, other.step, one.seconds, other.seconds))

    def best(self) -> Option:
        """The draft counts that make the most tokens per second.

        By Dinkelbach's method (https://doi.org/10.1287/mnsc.13.7.492): a draft must gain as many tokens as the best
        rate so far makes in its time. A draft costs the same at every position, and each further pass of the drafter
        the same; so for each number of passes the best counts are those whose drafts gain more than they cost.
        """
        best = max(self.options, key=lambda option: option.rate)
        while True:
            better = self.option(self._most(best.rate, len(best.counts) + sum(best.counts)))
            if better.rate <= best.rate * (1 + 1e-9):
                return best
            best = better

    def _most(self, rate: float, size: int) -> list[int]:
        """The counts with the most tokens minus `rate` times seconds, if a step has about `size` tokens."""
        start, one_pass = self._costs.parameters[3:5]
        draft, rows = self._costs.marginal(len(self._survivals), size)
        values, wanted = [-rate * start] + [-rate * one_pass] * self.depth, list[int]()
        for own, context in zip(self._survivals, self._contexts, strict=True):
            cost, count = rate * (draft + rows * context / 1024), 0
            for survives in own:
                if survives <= cost:
                    break
                count += 1
                values[count] += survives - cost
            wanted.append(count)
        totals = list(accumulate(values))
        depth = max(range(1, len(totals)), key=totals.__getitem__, default=0)
        if not depth or totals[depth] <= 0:
            return [0] * len(wanted)
        return [min(depth, count) for count in wanted]
