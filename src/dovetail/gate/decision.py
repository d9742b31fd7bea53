"""The gate's decision: how many tokens each sequence may draft in the next step, and why. Pure functions.

`decide` takes what the gate remembers (`State`), the batch, and the forecast's inputs, and returns the next state and a
`Decision`. It calls a policy, `best_counts` or `uniform.one_count`, when a new decision is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from dovetail.gate.costs import CostTable
from dovetail.gate.forecast import Forecast, weights

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
#: changes nothing stands for twice as long as the one before, up to the longest hold.
DECIDE_EVERY, LONGEST_HOLD = 16, 64
# A change must gain this much by the forecast.
GAIN = 1.01
# A cell of the cost table that was corrected by fewer steps than this is unknown.
UNKNOWN = 1.5
# A rate above these shares of the current rate is level with it, or near it.
_LEVEL, _NEAR = 0.95, 0.8
# Kind of trial -> how many steps it takes, and how many steps after the last trial it begins at the earliest. Trials
# of level numbers are long, because it takes many drafts to tell such numbers apart.
_TRIALS = {"unknown": (3, 16), "level": (8, 128), "near": (6, 128), "far": (3, 512)}


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


@dataclass(frozen=True, slots=True)
class Trial:
    """All sequences draft `drafts` tokens until the gate has observed `end` steps since start; None: until replaced."""

    drafts: int
    end: int | None

    def runs(self, clock: Clock) -> bool:
        return self.end is None or clock.observed < self.end


@dataclass(frozen=True, slots=True)
class State:
    """What one decision leaves for the next.

    `usual`: how many tokens most sequences draft; a new sequence begins with as many. `due`: the step of the next
    decision. `hold`: how many steps the last decision stands. `batch`: how many sequences it was made for. `trial`: the
    last trial if no decision was made since. `last_trial`: the step in which the last trial began.
    """

    usual: int
    due: int = 0
    hold: int = DECIDE_EVERY
    batch: int = 0
    trial: Trial | None = None
    last_trial: int = 0

    def trying(self, clock: Clock) -> bool:
        """Whether a trial is running."""
        return self.trial is not None and self.trial.runs(clock)

    def moved(self, batch: int) -> bool:
        """Whether `batch` differs from the batch of the last decision by more than an eighth."""
        return abs(batch - self.batch) * 8 > self.batch

    def is_due(self, clock: Clock, batch: int) -> bool:
        """Whether a batch of this many sequences needs a new decision."""
        return self.moved(batch) or (clock.steps >= self.due and not self.trying(clock))

    def held(self, clock: Clock, steps: int) -> State:
        """The state when the next decision is due in this many steps."""
        return replace(self, due=clock.steps + steps, hold=steps)


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences that decode in the next step, in order.

    `counts[i]`: how many tokens sequence i drafts by the last decision. `contexts[i]`: its tokens. `caps[i]`: the most
    tokens it may draft, by the request and by `Limits`.
    """

    counts: Sequence[int]
    contexts: Sequence[int]
    caps: Sequence[int]

    @property
    def mean_context(self) -> float:
        return sum(self.contexts) / len(self.contexts)


@dataclass(frozen=True, slots=True)
class Decision:
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


Policy = Callable[
    [State, Clock, Batch, Sequence[Sequence[float]], CostTable],
    tuple[State, Sequence[int], bool],
]
"""A new decision: (state, clock, batch, survivals, table) -> the next state, counts, and whether something changed.

``survivals[i][j]``: the probability that drafts 0 to j of sequence i are all accepted, for as many drafts as its cap
allows. At least one sequence may draft.
"""


def limited(caps: Sequence[int], contexts: Sequence[int], limits: Limits) -> Sequence[int]:
    """The caps of requests, 0 where a limit forbids drafting."""
    if limits.too_many(len(caps)):
        return [0] * len(caps)
    if limits.below_context is None or max(contexts) < limits.below_context:
        return caps
    return [0 if limits.too_long(context) else cap for context, cap in zip(contexts, caps, strict=True)]


def decide(
    state: State,
    clock: Clock,
    batch: Batch,
    limits: Limits,
    table: CostTable | None,
    survivals: Sequence[Sequence[float]] | None,
    policy: Policy,
) -> tuple[State, Decision]:
    """The next state and the decision for a step of `batch`. `survivals` (see `Policy`) is None when none is due."""
    changed, counts = False, batch.counts
    if survivals is not None and table is not None:
        changed = state.trial is not None
        hold = DECIDE_EVERY if state.moved(len(counts)) else min(2 * state.hold, LONGEST_HOLD)
        state = State(state.usual, clock.steps + hold, hold, len(counts), None, state.last_trial)
        if any(survivals):
            state, counts, different = policy(state, clock, batch, survivals, table)
            changed = changed or different
    elif clock.steps >= state.due and (table is None or limits.too_many(len(counts))):
        state = replace(state, due=clock.steps + DECIDE_EVERY)
    return state, _decision(state, clock, batch, limits, counts, changed)


def _decision(
    state: State, clock: Clock, batch: Batch, limits: Limits, counts: Sequence[int], changed: bool
) -> Decision:
    trial = state.trial.drafts if state.trial is not None and state.trial.runs(clock) else None
    drafts = counts if trial is None else [trial] * len(counts)
    barred = limits.too_many(len(counts))
    reasons = list[Reason]()
    for count, cap, context in zip(drafts, batch.caps, batch.contexts, strict=True):
        if cap:
            reasons.append("probe" if trial is not None else "draft" if count else "cost")
        else:
            reasons.append("batch" if barred else "context" if limits.too_long(context) else "request")
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


def best_counts(
    state: State, clock: Clock, batch: Batch, survivals: Sequence[Sequence[float]], table: CostTable
) -> tuple[State, Sequence[int], bool]:
    """A `Policy`: for each sequence the count that makes the most tokens per second over all."""
    forecast, state, counts, rate, changed = improve(state, clock, batch, survivals, table)
    state = explore(state, clock, batch, forecast, rate, table)
    return state, counts, changed or state.trial is not None


def improve(
    state: State, clock: Clock, batch: Batch, survivals: Sequence[Sequence[float]], table: CostTable
) -> tuple[Forecast, State, Sequence[int], float, bool]:
    """The forecast, the next state, the best counts or, where those gain too little, the present ones, their rate in
    tokens per second, and whether the counts are new."""
    context = batch.mean_context
    forecast = Forecast(survivals, weights(batch.contexts, table, state.usual), table, context)
    counts, rate, better, changed = batch.counts, forecast.rate(batch.counts), forecast.best(), False
    if (better_rate := forecast.rate(better)) > GAIN * rate:
        counts, rate, changed = better, better_rate, True
        state = state.held(clock, DECIDE_EVERY)
    drafting = (count for count, own in zip(counts, survivals, strict=True) if own)
    return forecast, replace(state, usual=Counter(drafting).most_common(1)[0][0]), counts, rate, changed


def explore(state: State, clock: Clock, batch: Batch, forecast: Forecast, rate: float, table: CostTable) -> State:
    """The state, with a trial of another count than the usual one where it is time for one.

    A count that is never drafted is never measured. `rate`: the forecast of the present counts.
    """
    waited = clock.steps - state.last_trial
    if waited < _TRIALS["unknown"][1]:
        return state
    rates = {k: forecast.uniform(k) for k in range(forecast.depth + 1) if k != state.usual}
    if not rates:
        return state
    size, context = len(batch.counts), batch.mean_context
    unknown = [k for k in rates if table.steps_at(size, k, context) < UNKNOWN]
    hopeful = unknown if len(unknown) == len(rates) else [k for k in unknown if rates[k] > _NEAR * rate]
    count = max(hopeful or rates, key=rates.__getitem__)
    share = rates[count] / rate
    kind = "unknown" if hopeful else "level" if share > _LEVEL else "near" if share > _NEAR else "far"
    steps, every = _TRIALS[kind]
    if hopeful:
        state = state.held(clock, DECIDE_EVERY)
    return begin_trial(state, clock, count, steps) if waited >= every else state


def begin_trial(state: State, clock: Clock, drafts: int, steps: int) -> State:
    """The state with a trial of `drafts` tokens for this many steps."""
    return replace(state, trial=Trial(drafts, clock.observed + steps), last_trial=clock.steps)
