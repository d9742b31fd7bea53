"""The gate's decision: how many tokens each sequence may draft in the next step, and why. Pure functions.

`decide` takes what the gate remembers (`State`), the batch and a forecast, and returns the next state and a `Decision`.
It chooses the counts that make the most tokens per second by the forecast; a policy says which counts to compare. Other
counts are drafted for two reasons only, both rationed over all traffic. While nothing is drafted, single steps draft a
token, to learn whether drafts are accepted now (`State.probe_at`). And where the forecast is in doubt, a few steps
draft a number that may be better, to learn what they cost (`_explore`).
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
#: changes nothing holds twice as long as the one before, up to the longest hold. The first decisions hold shorter, and
#: so does the decision after a probe whose drafts were accepted.
DECIDE_EVERY, _LONGEST_HOLD, FIRST_HOLD = 16, 48, 4
# More drafts must multiply the rate by this, and the tokens. Fewer drafts are chosen even if they divide the rate by
# less than this.
_GAIN, _LOSS = 1.01, 1.005
# In doubt, fewer drafts still save this part of the time that they save by the forecast.
_LEAST_SAVED = 0.25
#: How many standard deviations the forecast may be wrong by when it is asked whether another number may be better.
DOUBT = 1.0
# The steps of a trial, and the share of the steps since the last trial of the same number that it may cost.
_TRIAL_STEPS, _TRIAL_COST = 5, 0.01
# From one trial to the next: `DECIDE_EVERY` steps where the doubt is `_UNKNOWN`, four times as many where it is half of
# that, up to the longest wait; four times as many after each trial that measured nothing, up to `_MOST_IN_VAIN` trials.
# One trial in vain fewer counts where another number is better by the factor `_CLEARLY`, if it were not in doubt.
_UNKNOWN, _LONGEST_WAIT, _MOST_IN_VAIN, _CLEARLY = 0.2, 512, 3, 1.15
# While nothing is drafted, the least and the most steps from one probe to the next, and within these: the share of the
# time that probes may cost, and how often the most drafts would be made for each draft of a probe.
_LEAST_PROBE_WAIT, _MOST_PROBE_WAIT, _PROBE_COST, _PROBE_DRAFTS = 16, 96, 0.006, 72


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
    """Since start: the steps that the gate has decided, those that it has observed, and the comparisons of step times
    that it has learned."""

    steps: int
    observed: int
    compared: int = 0


class Trial(NamedTuple):
    """All sequences draft `drafts` tokens until the gate has observed `end` steps since start.

    A probe is a trial of one step, to learn of acceptance: its `end` is the step after it, since start.
    """

    drafts: int
    end: int
    probe: bool = False

    def runs(self, clock: Clock) -> bool:
        return (clock.steps if self.probe else clock.observed) < self.end


class State(NamedTuple):
    """What one decision leaves for the next.

    `default`: the drafter's own number of draft tokens. `common`: the draft count of most sequences, with which a new
    sequence starts. `next_decision`: the step of the next decision. `hold`: the number of steps for which the last
    decision holds. `batch`: the number of sequences it was made for.

    `trial`: the last trial, None if a decision was made after it. `last_trial`: the step in which the last one began
    that was no probe. `tried[k]`: the same of k drafts. `compared`: the comparisons of step times at the beginning of
    the last trial. `in_vain`: the last trials in a row after which there were no more.

    `probe`: the drafts of the next probe. `probe_at`: its step, None while something is drafted. `last_probe`: the step
    of the last one. `probe_wait`: the steps from one probe to the next.
    """

    default: int
    common: int
    next_decision: int = 0
    hold: int = FIRST_HOLD // 2
    batch: int = 0
    trial: Trial | None = None
    last_trial: int = 0
    tried: Mapping[int, int] = {}
    compared: int = -1
    in_vain: int = 0
    probe: int = 1
    probe_at: int | None = None
    last_probe: int = -_MOST_PROBE_WAIT
    probe_wait: int = _LEAST_PROBE_WAIT

    def must_probe(self, clock: Clock) -> bool:
        """Whether the next step is a probe."""
        return self.probe_at is not None and clock.steps >= self.probe_at

    def stands_until(self, clock: Clock) -> int:
        """The step at which the gate has to decide again, perhaps only to begin or end a probe."""
        if self.trial is not None and self.trial.probe and self.trial.runs(clock):
            return clock.steps + 1
        return self.next_decision if self.probe_at is None else min(self.next_decision, self.probe_at)

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
        probed = state.trial is not None and state.trial.probe
        changed = state.trial is not None
        hold = min(2 * state.hold, DECIDE_EVERY if state.moved(len(counts)) or changed else _LONGEST_HOLD)
        choice = None
        if forecast.depth:
            current = forecast.option(list(map(min, batch.counts, batch.caps)))
            choice = _best(state, current, forecast, policy)
            if choice is not current:
                changed, hold = True, FIRST_HOLD if probed else min(hold, DECIDE_EVERY)
            counts = _without_caps(choice.counts, batch)
        common = state.common if choice is None else _most_common(counts, batch.caps)
        state = state._replace(
            common=common, next_decision=clock.steps + hold, hold=hold, batch=len(counts), trial=None, probe_at=None
        )
        if choice is not None:
            state = _explore(state, clock, forecast, choice)
            if state.trial is None and not any(choice.counts):
                state = _probe_later(state, clock, forecast)
        changed = changed or state.trial is not None
    elif state.must_probe(clock) and not any(counts) and any(batch.caps):
        state, changed = _probe_now(state, clock), True
    elif clock.steps >= state.next_decision and (any(batch.caps) or limits != Limits()):
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
    return [forecast.options[k] for k in forecast.numbers]


def _best(state: State, current: Option, forecast: Forecast, policy: Policy) -> Option:
    """The option with the most tokens per second, or `current` if a change does not pay.

    Great doubt of the costs favours the drafter's own number: fewer drafts save less time than the forecast says, and
    more drafts take more. But fewer drafts always save some. So drafts that are hardly ever accepted are given up
    however much is in doubt.
    """
    default = forecast.options[min(state.default, forecast.depth)]
    less = max(_LEAST_SAVED, 1 - _great_doubt(forecast, forecast.options[0], default))
    more = 1 + _great_doubt(forecast, forecast.options[-1], default)

    def score(option: Option) -> float:
        change = option.seconds - default.seconds
        return option.tokens / (default.seconds + change * (less if change < 0 else more))

    best, size, highest, gain = current, sum(current.counts), score(current), _GAIN
    for option in policy(forecast):
        new, drafts = score(option), sum(option.counts)
        if new > highest * (gain if drafts > size else 1 / _LOSS):
            best, size, highest, gain = option, drafts, new, _LOSS
    return best


def _great_doubt(forecast: Forecast, option: Option, default: Option) -> float:
    """How far the doubt of the difference between the seconds of two options exceeds half of it; 1: it is all of it."""
    if option is default:
        return 0.0
    difference = max(1e-6, abs(math.log(option.seconds / default.seconds)))
    return max(0.0, 2 * DOUBT * forecast.cost_doubt(option, default) / difference - 1)


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


def _probe_later(state: State, clock: Clock, forecast: Forecast) -> State:
    """The state with the next probe, if anything may be drafted."""
    drafts = next((k for k in forecast.numbers if k), 0)
    if not drafts or 0 not in forecast.numbers:
        return state
    cost = forecast.options[drafts].seconds / forecast.options[0].seconds - 1
    share = drafts / forecast.depth
    wait = max(_LEAST_PROBE_WAIT, math.ceil(_PROBE_DRAFTS * share), math.ceil(cost / _PROBE_COST))
    wait = min(wait, _MOST_PROBE_WAIT)
    probe_at = max(clock.steps, state.last_probe + wait)
    # The forecast after the probe knows more than one before it.
    later = max(state.next_decision, probe_at + DECIDE_EVERY)
    return state._replace(probe=drafts, probe_wait=wait, probe_at=probe_at, next_decision=later)


def _probe_now(state: State, clock: Clock) -> State:
    return state._replace(
        trial=Trial(state.probe, clock.steps + 1, probe=True),
        last_probe=clock.steps,
        probe_at=clock.steps + state.probe_wait,
    )


def _explore(state: State, clock: Clock, forecast: Forecast, choice: Option) -> State:
    """The state, with a trial if one is worth its cost: of a number that may be better than `choice`.

    Only numbers that are drafted are measured. If no other number may be better, the best other is tried now and then.
    """
    others = [k for k in forecast.numbers if k < state.common or forecast.options[k].tokens > _GAIN * choice.tokens]
    others = [k for k in others if k != state.common]
    waited = clock.steps - state.last_trial
    if waited < DECIDE_EVERY or not others:
        return state

    def doubt(k: int) -> float:
        return forecast.doubt(forecast.options[k], choice)

    # The doubt grows with the distance between the numbers, so it is greatest at an end.
    greatest = max(doubt(others[0]), doubt(others[-1]))
    in_vain = state.in_vain + 1 if clock.compared == state.compared else 0
    least = min(_LONGEST_WAIT, DECIDE_EVERY * max(1.0, _UNKNOWN / max(greatest, 1e-3)) ** 2)
    if any(forecast.options[k].rate > _CLEARLY * choice.rate for k in others):
        in_vain -= 1
    if waited < least * 4 ** max(0, min(in_vain, _MOST_IN_VAIN)):
        return state
    # By the age of the last trial, so that numbers nearly as good as the chosen one do not take all trials.
    by_age = sorted(
        (state.tried.get(k, 0), -share, k)
        for k in others
        if _affordable(clock.steps - state.tried.get(k, 0), forecast.options[k], choice)
        and (share := forecast.options[k].rate / choice.rate)
        and (waited >= _LONGEST_WAIT or _may_be_better(share, greatest))
    )
    chosen = next((k for _, share, k in by_age if waited >= _LONGEST_WAIT or _may_be_better(-share, doubt(k))), None)
    if chosen is None:
        return state
    trial = Trial(chosen, clock.observed + _TRIAL_STEPS)
    tried = {**state.tried, chosen: clock.steps}
    state = state._replace(trial=trial, last_trial=clock.steps, tried=tried, compared=clock.compared, in_vain=in_vain)
    return state._replace(next_decision=clock.steps + _LONGEST_HOLD)


def _may_be_better(share: float, doubt: float) -> bool:
    """Whether a number may be better whose forecast rate is `share` of the chosen number's, with this doubt."""
    return math.log(_GAIN / share) < DOUBT * doubt


def _affordable(waited: int, option: Option, choice: Option) -> bool:
    """Whether a number may be tried again, `waited` steps after its last trial, by what the trial loses."""
    lost = option.seconds / choice.seconds * (1 - option.rate / choice.rate)
    return waited * _TRIAL_COST >= _TRIAL_STEPS * max(0.0, lost)
