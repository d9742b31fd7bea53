"""The gate's decision: how many tokens each sequence may draft in the next step, and why. Pure functions.

`decide` takes what the gate remembers (`State`), the batch and a forecast, and returns the next state and a `Decision`.
Under doubt it prefers the drafter's own number, `State.default`: other counts are chosen only if they make more tokens
per second even when the forecast errs by `DOUBT` standard deviations. A policy says which counts to compare.
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
"""The reason for the draft count of a sequence:

- draft: this count makes the most tokens per second.
- cost: drafting does not pay, so the count is 0.
- context: the sequence has reached `Limits.below_context`, so the count is 0.
- batch: more sequences decode than `Limits.up_to_batch`, so the count is 0.
- request: the request allows no drafts, so the count is 0.
- probe: a trial of this count, to measure it.
"""

#: A decision holds for this many steps, unless the batch grows or shrinks by more than an eighth. A decision that
#: changes nothing holds twice as long as the one before, up to the longest hold. The first decisions hold shorter.
DECIDE_EVERY, _LONGEST_HOLD, _FIRST_HOLD = 16, 64, 4
# A change must gain this much by the forecast.
_GAIN = 1.01
#: How many standard deviations the evidence against the drafter's own number must be away from chance.
DOUBT = 1.0
# The steps of a trial, and the share of the steps since the last trial of the same number that it may cost.
_TRIAL_STEPS, _TRIAL_COST = 5, 0.01
# A trial begins at most this many steps after the last one. A doubt of `_UNKNOWN` halves the wait.
_LONGEST_WAIT, _UNKNOWN = 512, 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """Where drafting is off even if it pays. None: no limit.

    `below_context`: a sequence of this many tokens or more drafts nothing. `up_to_batch`: no sequence drafts while more
    sequences than this decode.
    """

    below_context: int | None = None
    up_to_batch: int | None = None

    def too_long(self, context: int) -> bool:
        """Whether a sequence of `context` tokens never drafts again."""
        return self.below_context is not None and context >= self.below_context

    def too_many(self, batch: int) -> bool:
        """Whether drafting is off for a batch of `batch` sequences."""
        return self.up_to_batch is not None and batch > self.up_to_batch


class Clock(NamedTuple):
    """Steps since start: those that the gate has decided, and those that it has observed."""

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

    `default`: the drafter's own number of draft tokens. `common`: the draft count of most sequences, with which a new
    sequence starts. `next_decision`: the step of the next decision. `hold`: the number of steps for which the last
    decision holds. `batch`: the number of sequences it was made for. `trial`: the last trial, None if a decision was
    made after it. `last_trial`: the step in which the last trial began. `tried[k]`: the step in which the last trial of
    k drafts began.
    """

    default: int
    common: int
    next_decision: int = 0
    hold: int = _FIRST_HOLD // 2
    batch: int = 0
    trial: Trial | None = None
    last_trial: int = -DECIDE_EVERY
    tried: Mapping[int, int] = {}

    def moved(self, batch: int) -> bool:
        """Whether `batch` differs from the batch of the last decision by more than an eighth."""
        return abs(batch - self.batch) * 8 > self.batch

    def must_decide(self, clock: Clock, batch: int) -> bool:
        """Whether a batch of `batch` sequences needs a new decision."""
        return self.moved(batch) or clock.steps >= self.next_decision


class Batch(NamedTuple):
    """The sequences that decode in the next step, in order.

    `counts[i]`: the draft count of sequence i by the last decision. `contexts[i]`: its tokens. `caps[i]`: the most
    tokens that its request and `Limits` let it draft.
    """

    counts: Sequence[int]
    contexts: Sequence[int]
    caps: Sequence[int]


class Decision(NamedTuple):
    """The draft tokens that each sequence of a batch may make in a step, in the order of the batch.

    `allowed[i]`: draft tokens of sequence i. `reasons[i]`: the reason. `too_long`: the indices of the sequences that
    have reached `Limits.below_context`. `counts[i]`: draft tokens before caps and trials, for the next decision.
    `capped`: whether a cap lowered a count. `changed`: whether the counts differ from the step before. The time of such
    a step is not learned, because drafters catch up in it or postpone work.
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
    """The next state and the decision for a step of `batch`. `forecast` is None if the counts stay as they are."""
    changed, counts = False, batch.counts
    if forecast is not None:
        changed = state.trial is not None
        hold = min(2 * state.hold, DECIDE_EVERY if state.moved(len(counts)) or changed else _LONGEST_HOLD)
        choice = None
        if forecast.depth:
            current, choice = _best(state, batch, forecast, policy)
            if choice is not current:
                changed, hold = True, min(hold, DECIDE_EVERY)
            counts = _without_caps(choice.counts, batch)
        common = state.common if choice is None else _most_common(counts, batch.caps)
        state = state._replace(
            common=common, next_decision=clock.steps + hold, hold=hold, batch=len(counts), trial=None
        )
        if choice is not None:
            state = _explore(state, clock, forecast, choice)
            changed = changed or state.trial is not None
    elif clock.steps >= state.next_decision:
        state = state._replace(next_decision=clock.steps + DECIDE_EVERY)
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
        too_many = limits.too_many(len(counts))
        for i, (cap, context) in enumerate(zip(batch.caps, batch.contexts, strict=True)):
            if not cap:
                reasons[i] = "batch" if too_many else "context" if limits.too_long(context) else "request"
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
    """The indices of the sequences that have reached `Limits.below_context`."""
    if limits.below_context is None or max(contexts) < limits.below_context:
        return ()
    return tuple(i for i, context in enumerate(contexts) if limits.too_long(context))


def best_counts(forecast: Forecast) -> Iterable[Option]:
    """A `Policy`: the counts that make the most tokens per second over the batch, and each single count for all."""
    return [forecast.best(), *forecast.options]


def one_count(forecast: Forecast) -> Iterable[Option]:
    """A `Policy`: one count for all sequences that may draft."""
    return forecast.options


_rate = operator.attrgetter("rate")


def _best(state: State, batch: Batch, forecast: Forecast, policy: Policy) -> tuple[Option, Option]:
    """The current counts, and the best option: one that is better than they are even under doubt, else themselves."""
    default = forecast.options[min(state.default, forecast.depth)]

    def score(option: Option) -> float:
        return math.log(option.rate) - DOUBT * forecast.doubt(option, default)

    current = forecast.option(list(map(min, batch.counts, batch.caps)))
    best, highest = current, score(current) + math.log(_GAIN)
    # Doubt only lowers a score, so most options need no score.
    for option in sorted(policy(forecast), key=_rate, reverse=True):
        if math.log(option.rate) <= highest:
            break
        if (new := score(option)) > highest:
            best, highest = option, new
    return current, best


def _without_caps(counts: Sequence[int], batch: Batch) -> Sequence[int]:
    """`counts`, but a count that equals its cap does not fall below the sequence's count before.

    A request near its end has low caps, and its sequence must not remember them as a decision.
    """
    if not any(map(operator.eq, counts, batch.caps)):
        return counts
    triples = zip(counts, batch.counts, batch.caps, strict=True)
    return [max(count, before) if count == cap else count for count, before, cap in triples]


def _most_common(counts: Sequence[int], caps: Sequence[int]) -> int:
    """The draft count of most sequences that may draft."""
    drafting = counts if all(caps) else [count for count, cap in zip(counts, caps, strict=True) if cap]
    return Counter(drafting).most_common(1)[0][0]


def _explore(state: State, clock: Clock, forecast: Forecast, choice: Option) -> State:
    """The state, with a trial if one is worth its cost: of a number that may be better than `choice`.

    Only numbers that are drafted are measured. If no other number may be better, the best other is tried now and then.
    """
    waited = clock.steps - state.last_trial
    others = [k for k in range(forecast.depth + 1) if k != state.common]
    if waited < DECIDE_EVERY or not others:
        return state

    def doubt(k: int) -> float:
        return forecast.doubt(forecast.options[k], choice)

    # The doubt grows with the distance between the numbers, so it is greatest at an end.
    greatest = max(doubt(others[0]), doubt(others[-1]))
    # By the age of the last trial, so that numbers nearly as good as the chosen one do not take all trials.
    by_age = sorted(
        (state.tried.get(k, 0), -share, k)
        for k in others
        if _may_be_better(share := forecast.options[k].rate / choice.rate, greatest)
        and _affordable(clock.steps - state.tried.get(k, 0), share)
    )
    chosen = next((k for _, share, k in by_age if _may_be_better(-share, doubt(k))), None)
    if chosen is None:
        if waited < _LONGEST_WAIT / (1 + (greatest / _UNKNOWN) ** 2):
            return state
        chosen = max(others, key=lambda k: math.log(forecast.options[k].rate) + DOUBT * doubt(k))
    trial = Trial(chosen, clock.observed + _TRIAL_STEPS)
    tried = {**state.tried, chosen: clock.steps}
    return state._replace(next_decision=clock.steps + _LONGEST_HOLD, trial=trial, last_trial=clock.steps, tried=tried)


def _may_be_better(share: float, doubt: float) -> bool:
    """Whether a number may be better whose forecast rate is `share` of the chosen number's, with this doubt."""
    return math.log(_GAIN / share) < DOUBT * doubt


def _affordable(waited: int, share: float) -> bool:
    """Whether a number with this share of the chosen rate may be tried again, `waited` steps after its last trial."""
    return waited * _TRIAL_COST >= _TRIAL_STEPS * max(0.0, 1 - share)
