"""The gate's decision: how many tokens each sequence may draft in the next step, and why. Pure functions.

`decide` takes what the gate remembers (`State`), the batch and a forecast, and returns the next state and a `Decision`.
Under doubt it leans to the drafter's own number, `State.home`: other counts are chosen only where they make more tokens
per second even if the forecast errs by `DOUBT` standard deviations. A policy says which counts to compare.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dovetail.gate.forecast import Forecast, Option

Reason = Literal["draft", "cost", "context", "batch", "request", "probe"]
"""Why a sequence drafts as many tokens as it does:

- draft: as many as pay.
- cost: none, since none pay.
- context: none, because the sequence has reached `Limits.below_context`.
- batch: none, because more sequences decode than `Limits.up_to_batch`.
- request: none, because the request allows none.
- probe: as many as the gate tries at the moment, to measure them.
"""

#: A decision stands for this many steps, unless the batch grows or shrinks by more than an eighth. A decision that
#: changes nothing stands for twice as long as the one before, up to the longest hold. The first ones stand shorter.
DECIDE_EVERY, _LONGEST_HOLD, _FIRST_HOLD = 16, 64, 4
# A change must gain this much by the forecast.
_GAIN = 1.01
#: How many standard deviations the evidence against the drafter's own number must be away from chance.
DOUBT = 1.0
# How many steps a trial takes, and which share of the steps since the last trial of the same number it may lose.
_TRIAL_STEPS, _TRIAL_COST = 5, 0.01
# A trial begins this many steps after the last one at the latest, and sooner where there is a doubt as large as this.
_LONGEST_WAIT, _UNKNOWN = 512, 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """When nothing is drafted, however well drafting pays; None is no limit.

    `below_context`: sequences of this many tokens or more draft nothing. `up_to_batch`: nobody drafts while more
    sequences than this decode.
    """

    below_context: int | None = None
    up_to_batch: int | None = None

    def too_long(self, context: int) -> bool:
        """Whether a sequence of `context` tokens never drafts again."""
        return self.below_context is not None and context >= self.below_context

    def too_many(self, batch: int) -> bool:
        """Whether nobody drafts in a batch of this many sequences."""
        return self.up_to_batch is not None and batch > self.up_to_batch


class Clock(NamedTuple):
    """How many steps the gate has decided for since start, and how many steps it has observed."""

    steps: int
    observed: int


class Trial(NamedTuple):
    """All sequences draft `drafts` tokens until the gate has observed `end` steps since start."""

    drafts: int
    end: int

    def runs(self, clock: Clock) -> bool:
        return clock.observed < self.end


class State(NamedTuple):
    """What one decision leaves for the next.

    `home`: the drafter's own number of tokens. `usual`: how many tokens most sequences draft; a new sequence begins
    with as many. `due`: the step of the next decision. `hold`: how many steps the last decision stands. `batch`: how
    many sequences it was made for. `trial`: the last trial if no decision was made since. `last_trial`: the step in
    which the last trial began. `tried[k]`: in which step the last trial of k drafts began.
    """

    home: int
    usual: int
    due: int = 0
    hold: int = _FIRST_HOLD // 2
    batch: int = 0
    trial: Trial | None = None
    last_trial: int = -DECIDE_EVERY
    tried: Mapping[int, int] = {}

    def moved(self, batch: int) -> bool:
        """Whether `batch` differs from the batch of the last decision by more than an eighth."""
        return abs(batch - self.batch) * 8 > self.batch

    def is_due(self, clock: Clock, batch: int) -> bool:
        """Whether a batch of this many sequences needs a new decision."""
        return self.moved(batch) or clock.steps >= self.due


class Batch(NamedTuple):
    """The sequences that decode in the next step, in order.

    `counts[i]`: how many tokens sequence i drafts by the last decision. `contexts[i]`: its tokens. `caps[i]`: the most
    tokens it may draft, by the request and by `Limits`.
    """

    counts: Sequence[int]
    contexts: Sequence[int]
    caps: Sequence[int]


class Decision(NamedTuple):
    """How many tokens the sequences of a batch may draft in a step, in the batch's order.

    `allowed[i]`: draft tokens of sequence i. `reasons[i]`: why. `too_long`: the sequences that have reached
    `Limits.below_context`, by index. `counts[i]`: draft tokens before caps and trials, for the next decision. `capped`:
    whether a cap lowered a count. `changed`: whether the counts differ from those of the step before, so that the
    step's time is no measure: drafters catch up, or leave something for later.
    """

    allowed: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    too_long: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    capped: bool = False
    changed: bool = True


Policy = Callable[[Forecast], Iterable[Option]]
"""The counts to compare, for all sequences of a batch."""


def limited(caps: Sequence[int], contexts: Sequence[int], limits: Limits) -> Sequence[int]:
    """The caps of requests, 0 where a limit forbids drafting."""
    if limits.too_many(len(caps)):
        return [0] * len(caps)
    if limits.below_context is None or max(contexts) < limits.below_context:
        return caps
    return [0 if limits.too_long(context) else cap for context, cap in zip(contexts, caps, strict=True)]


def decide(
    state: State, clock: Clock, batch: Batch, limits: Limits, forecast: Forecast | None, policy: Policy
) -> tuple[State, Decision]:
    """The next state and the decision for a step of `batch`. `forecast` is None where no new decision is due."""
    changed, counts = False, batch.counts
    if forecast is not None:
        changed = state.trial is not None
        hold = min(2 * state.hold, DECIDE_EVERY if state.moved(len(counts)) or changed else _LONGEST_HOLD)
        choice = None
        if forecast.depth:
            standing, choice = _best(state, batch, forecast, policy)
            if choice is not standing:
                changed, hold = True, min(hold, DECIDE_EVERY)
            counts = _without_caps(choice.counts, batch)
        usual = state.usual if choice is None else _most_common(counts, batch.caps)
        state = state._replace(usual=usual, due=clock.steps + hold, hold=hold, batch=len(counts), trial=None)
        if choice is not None:
            state = _explore(state, clock, forecast, choice)
            changed = changed or state.trial is not None
    elif clock.steps >= state.due:
        state = state._replace(due=clock.steps + DECIDE_EVERY)
    return state, _decision(state, clock, batch, limits, counts, changed)


def _decision(
    state: State, clock: Clock, batch: Batch, limits: Limits, counts: Sequence[int], changed: bool
) -> Decision:
    trial = state.trial.drafts if state.trial is not None and state.trial.runs(clock) else None
    drafts = counts if trial is None else [trial] * len(counts)
    reasons: list[Reason] = (
        ["draft" if count else "cost" for count in drafts] if trial is None else ["probe"] * len(drafts)
    )
    if not all(batch.caps):
        barred = limits.too_many(len(counts))
        for i, (cap, context) in enumerate(zip(batch.caps, batch.contexts, strict=True)):
            if not cap:
                reasons[i] = "batch" if barred else "context" if limits.too_long(context) else "request"
    allowed = tuple(map(min, drafts, batch.caps))
    return Decision(
        allowed,
        tuple(reasons),
        too_long_in(batch.contexts, limits),
        tuple(counts),
        capped=allowed != tuple(drafts),
        changed=changed,
    )


def too_long_in(contexts: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """The indices of the sequences that never draft again."""
    if limits.below_context is None or max(contexts) < limits.below_context:
        return ()
    return tuple(i for i, context in enumerate(contexts) if limits.too_long(context))


def best_counts(forecast: Forecast) -> Iterable[Option]:
    """A `Policy`: for each sequence the count that makes the most tokens per second over all, or one for all."""
    return [forecast.best(), *forecast.options]


def one_count(forecast: Forecast) -> Iterable[Option]:
    """A `Policy`: one count for all sequences that may draft at all."""
    return forecast.options


_rate = operator.attrgetter("rate")


def _best(state: State, batch: Batch, forecast: Forecast, policy: Policy) -> tuple[Option, Option]:
    """What stands; and what is surely best, or else what stands."""
    home = forecast.options[min(state.home, forecast.depth)]

    def value(option: Option) -> float:
        return math.log(option.rate) - DOUBT * forecast.doubt(option, home)

    standing = forecast.option(list(map(min, batch.counts, batch.caps)))
    best, least = standing, value(standing) + math.log(_GAIN)
    # Doubt only lowers a value, so most options need none computed.
    for option in sorted(policy(forecast), key=_rate, reverse=True):
        if math.log(option.rate) <= least:
            break
        if (own := value(option)) > least:
            best, least = option, own
    return standing, best


def _without_caps(counts: Sequence[int], batch: Batch) -> Sequence[int]:
    """What a cap cuts is no decision: a request that comes to its end would leave its last numbers to the next one."""
    if not any(map(operator.eq, counts, batch.caps)):
        return counts
    triples = zip(counts, batch.counts, batch.caps, strict=True)
    return [max(count, before) if count == cap else count for count, before, cap in triples]


def _most_common(counts: Sequence[int], caps: Sequence[int]) -> int:
    """The number that most sequences draft of those that may."""
    drafting = counts if all(caps) else [count for count, cap in zip(counts, caps, strict=True) if cap]
    return Counter(drafting).most_common(1)[0][0]


def _explore(state: State, clock: Clock, forecast: Forecast, choice: Option) -> State:
    """The state, with a trial of the number that may be better than `choice`, when that has not cost too much yet.

    What is never drafted is never measured. Where nothing may be better, the best other number is tried now and then.
    """
    waited = clock.steps - state.last_trial
    others = [k for k in range(forecast.depth + 1) if k != state.usual]
    if waited < DECIDE_EVERY or not others:
        return state

    def doubt(k: int) -> float:
        return forecast.doubt(forecast.options[k], choice)

    # The doubt grows with the distance, so it is greatest at an end.
    greatest = max(doubt(others[0]), doubt(others[-1]))
    # The one whose last trial is longest ago, so that numbers nearly as good as this one do not take all trials.
    by_age = sorted(
        (state.tried.get(k, 0), -share, k)
        for k in others
        if _hopeful(share := forecast.options[k].rate / choice.rate, greatest)
        and _affordable(clock.steps - state.tried.get(k, 0), share)
    )
    chosen = next((k for _, share, k in by_age if _hopeful(-share, doubt(k))), None)
    if chosen is None:
        if waited < _LONGEST_WAIT / (1 + (greatest / _UNKNOWN) ** 2):
            return state
        chosen = max(others, key=lambda k: math.log(forecast.options[k].rate) + DOUBT * doubt(k))
    trial = Trial(chosen, clock.observed + _TRIAL_STEPS)
    tried = {**state.tried, chosen: clock.steps}
    return state._replace(due=clock.steps + _LONGEST_HOLD, trial=trial, last_trial=clock.steps, tried=tried)


def _hopeful(share: float, doubt: float) -> bool:
    """Whether a number that makes this share of the tokens may be better, with this doubt about it."""
    return math.log(_GAIN / share) < DOUBT * doubt


def _affordable(waited: int, share: float) -> bool:
    """Whether a number that makes this share of the tokens may be tried again after so many steps."""
    return waited * _TRIAL_COST >= _TRIAL_STEPS * max(0.0, 1 - share)
