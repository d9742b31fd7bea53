"""The forecast: tokens per second of a batch for any draft counts, its uncertainty, and the best counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from dovetail.gate.costs import CostModel, Features, features, of_totals


class Option(NamedTuple):
    """Draft counts of a batch, and what a step with these counts is expected to do.

    `counts[i]`: drafts of sequence i. `step`: its features. `accepted[j]`: accepted drafts at position j, over all
    sequences. `tokens`: all tokens that the step makes. `rate`: tokens per second.
    """

    counts: list[int]
    step: Features
    seconds: float
    accepted: list[float]
    tokens: float
    rate: float


class Forecast:
    """The forecast for one batch.

    ``survivals[i][j]``: the probability that drafts 0 to j of sequence i are all accepted. It has an entry for each
    draft that the sequence may make. ``contexts[i]``: the tokens of sequence i. ``doubts[j]``: the standard deviation
    of the logarithm of the number of drafts that are accepted at position j. ``options[k]``: k drafts for each
    sequence, or its cap if that is lower. `numbers`: the k that may be chosen for all sequences (None: any).
    """

    def __init__(
        self,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[float],
        costs: CostModel,
        doubts: Sequence[float] = (),
        numbers: Collection[int] | None = None,
    ) -> None:
        self._survivals, self._contexts, self._costs, self._doubts = survivals, contexts, costs, doubts
        caps = list(map(len, survivals))
        self.depth, batch, context = max(caps), len(survivals), sum(contexts)
        # If every sequence drafts up to its cap, by position: how many draft there, their rows, the accepted drafts.
        uniform = min(caps) == self.depth
        if uniform:
            drafting, rows = [batch] * self.depth, [context / 1024] * self.depth
            accepted = [float(sum(column)) for column in zip(*survivals, strict=True)]
        else:
            drafting = [sum(cap > j for cap in caps) for j in range(self.depth)]
            pairs = list(zip(survivals, contexts, strict=True))
            rows = [sum(c for survival, c in pairs if len(survival) > j) / 1024 for j in range(self.depth)]
            accepted = [sum(survival[j] for survival in survivals if len(survival) > j) for j in range(self.depth)]
        self.numbers = [k for k in range(self.depth + 1) if numbers is None or k in numbers] or [self.depth]
        self.options: list[Option] = []
        totals = zip(accumulate(drafting, initial=0), accumulate(rows, initial=0.0), strict=True)
        for k, (drafts, draft_rows) in enumerate(totals):
            step = of_totals(batch, context, k, drafts, draft_rows)
            counts = [k] * batch if uniform else [min(k, cap) for cap in caps]
            self.options.append(self._option(counts, step, accepted[:k]))

    def option(self, counts: list[int]) -> Option:
        """The option with ``counts[i]`` drafts for sequence i."""
        uniform = self.options[max(counts)]
        if uniform.counts == counts:
            return uniform
        accepted = [0.0] * max(counts)
        for survival, count in zip(self._survivals, counts, strict=True):
            for j in range(count):
                accepted[j] += survival[j]
        step = features(counts, self._contexts)
        return self._option(counts, step, accepted)

    def _option(self, counts: list[int], step: Features, accepted: list[float]) -> Option:
        seconds, tokens = self._costs.seconds(step), len(counts) + sum(accepted)
        return Option(counts, step, seconds, accepted, tokens, tokens / seconds)

    def doubt(self, one: Option, other: Option) -> float:
        """The standard deviation of the logarithm of the ratio of their rates."""
        if one is other:
            return 0.0
        tokens, others = one.tokens, other.tokens
        # Errors at one position repeat at the next one, so the doubts of all positions add up.
        gained = (
            sum(map(mul, self._doubts, one.accepted)) / tokens - sum(map(mul, self._doubts, other.accepted)) / others
        )
        return math.hypot(gained, self.cost_doubt(one, other))

    def cost_doubt(self, one: Option, other: Option) -> float:
        """The standard deviation of the logarithm of the ratio of their seconds."""
        return self._costs.spread(one.step, other.step, one.seconds, other.seconds)

    def best(self) -> Option:
        """The draft counts that make the most tokens per second.

        By Dinkelbach's method (https://doi.org/10.1287/mnsc.13.7.492): a draft pays if it gains more tokens than the
        best rate so far makes in the draft's time. Drafts cost the same at every position, and so does each further
        pass of the drafter. So for each number of passes, the best counts have exactly the drafts that pay.
        """
        best = max(self.options, key=lambda option: option.rate)
        while True:
            better = self.option(self._best_counts(best.rate, len(best.counts) + sum(best.counts)))
            if better.rate <= best.rate * (1 + 1e-9):
                return best
            best = better

    def _best_counts(self, rate: float, size: int) -> list[int]:
        """The counts with the most tokens minus `rate` times seconds, if a step has about `size` tokens."""
        start, one_pass = self._costs.parameters[3:5]
        draft, rows = self._costs.marginal(len(self._survivals), size)
        values, paying = [-rate * start] + [-rate * one_pass] * self.depth, list[int]()
        for survival, context in zip(self._survivals, self._contexts, strict=True):
            cost, count = rate * (draft + rows * context / 1024), 0
            for probability in survival:
                if probability <= cost:
                    break
                count += 1
                values[count] += probability - cost
            paying.append(count)
        totals = list(accumulate(values))
        depth = max(range(1, len(totals)), key=totals.__getitem__, default=0)
        if not depth or totals[depth] <= 0:
            return [0] * len(paying)
        return [min(depth, count) for count in paying]
