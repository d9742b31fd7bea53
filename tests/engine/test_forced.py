"""Forced tokens are drafted, with and without a drafter, and change nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dovetail.completion import Completion, Constraint, Sampling, TokenBatch, total
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Draft, Drafter, Observed
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.request import Request
from dovetail.engine.settings import LOOKUP
from dovetail.engine.verify import verify_sampled
from dovetail.errors import EngineError
from dovetail.gate import Gate, Limits
from tests.engine.checkpoints import load_core, write_target
from tests.engine.constraints import Automaton
from tests.engine.drafters import Nothing

#: 5, then 6, then 7 or 8.
FIVE_SIX = [{5: 1}, {6: 2}, {7: 3, 8: 3}, {}]


def request(name: str, tokens: list[int], constraint: Constraint | None = None) -> Request:
    completion = Completion(tuple(tokens), 100, constraint=constraint)
    return Request(name, completion, context=1000, vocab_size=10, draft_tokens=5)


class Fixed:
    """Says the same of every request, and notes for which it was asked."""

    aux_layers: tuple[int, ...] = (1, 2)

    def __init__(self, tokens: list[int], probs: Tensor | None = None) -> None:
        self._draft = Draft(tokens, probs)
        self.asked: list[tuple[str, int]] = []

    def start(self, request: Request, cached: int) -> int:
        return cached - 1

    def observe(self, observed: Sequence[Observed]) -> None:
        self.asked += [(item.request.id, -item.count) for item in observed]

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        self.asked += [(request.id, count) for request, count in zip(requests, counts, strict=True)]
        return [
            Draft(self._draft.tokens[:n], None if self._draft.probs is None else self._draft.probs[:n]) for n in counts
        ]

    def release(self, request: Request) -> None: ...

    def matched(self, request: Request) -> int | None:
        return None

    def check_integrity(self, requests: set[str]) -> None: ...


def drafted(drafter: Drafter, *asked: tuple[Request, int]) -> list[list[int]]:
    drafts = drafter.propose([request for request, _ in asked], [count for _, count in asked])
    return [draft.tokens for draft in drafts]


def test_alone() -> None:
    drafter = Forced(Nothing())
    free, bound = request("a", [1, 2, 1, 2]), request("b", [1, 2], Automaton(FIVE_SIX))
    assert drafter.aux_layers == ()
    assert drafter.start(bound, 1) == 1
    drafter.observe([Observed(bound, 0, 1, None)])
    assert drafted(drafter, (free, 3), (bound, 3), (bound, 1)) == [[], [5, 6], [5]]
    drafter.release(bound)
    drafter.check_integrity(set())


@pytest.mark.parametrize(
    ("proposed", "count", "expected", "asked"),
    [
        ([], 3, [5, 6], True),
        ([5], 3, [5, 6], True),
        ([5, 9, 7], 3, [5, 6], True),
        ([5, 6, 7], 3, [5, 6, 7], True),
        ([5, 6, 7], 2, [5, 6], False),
        ([9], 1, [5], False),
    ],
)
def test_a_drafter_that_agrees_goes_on(proposed: list[int], count: int, expected: list[int], asked: bool) -> None:
    inner = Fixed(proposed)
    drafter = Forced(inner)
    free, bound = request("a", [1]), request("b", [1], Automaton(FIVE_SIX))
    assert drafted(drafter, (bound, count), (free, 2)) == [expected, proposed[:2]]
    assert inner.asked == [("b", count)] * asked + [("a", 2)]


@pytest.mark.parametrize("probs", [None, torch.full((3, 10), 0.1)])
def test_a_draft_says_how_much_of_it_is_forced(probs: Tensor | None) -> None:
    free, bound = request("a", [1]), request("b", [1], Automaton(FIVE_SIX))
    for proposed, forced in (([5, 6, 7], [0, 2]), ([5, 9, 7], [0, 2]), ([], [0, 2])):
        drafter = Forced(Fixed(proposed, None if not proposed else probs))
        assert [draft.forced for draft in drafter.propose([free, bound], [3, 3])] == forced
    assert [draft.forced for draft in Forced(Nothing()).propose([free, bound], [3, 1])] == [0, 1]


def test_everything_else_is_the_drafters() -> None:
    inner = Fixed([])
    drafter = Forced(inner)
    bound = request("b", [1], Automaton(FIVE_SIX))
    assert drafter.aux_layers == (1, 2)
    assert drafter.start(bound, 7) == 6
    drafter.observe([Observed(bound, 0, 4, None)])
    assert inner.asked == [("b", -4)]


def test_with_lookup_and_its_integrity() -> None:
    drafter = Forced(Lookup())
    bound = request("b", [3, 5, 6, 7, 9, 9, 3, 5, 6], Automaton(FIVE_SIX[2:]))
    forced = request("c", [4, 4], Automaton(FIVE_SIX))
    assert drafted(drafter, (bound, 2), (forced, 3)) == [[7, 9], [5, 6]]
    with pytest.raises(EngineError, match=": c"):
        drafter.check_integrity({"b"})
    drafter.release(forced)
    drafter.check_integrity({"b"})


class Broken(Automaton):
    def forced(self, limit: int) -> list[int]:
        raise ZeroDivisionError


def test_a_constraint_that_fails_forces_nothing_and_the_others_are_drafted_for() -> None:
    broken, bound = request("a", [1], Broken(FIVE_SIX)), request("b", [1], Automaton(FIVE_SIX))
    assert drafted(Forced(Nothing()), (broken, 3), (bound, 3)) == [[], [5, 6]]
    assert drafted(Forced(Fixed([8])), (broken, 3), (bound, 3)) == [[8], [5, 6]]


def test_sampled_drafts_stay_exact_beside_forced_ones() -> None:
    """ "Forced" is one spelling of several: the target gives token 5 a half. A drafter that draws it a half of the time
    must not double it."""
    generator = torch.Generator().manual_seed(3)
    p = torch.tensor([[0, 0, 0, 0, 0, 0.5, 0.3, 0.2, 0, 0], [0, 0, 0, 0, 0, 0.1, 0.2, 0, 0.7, 0.0]])
    p = torch.cat((p, p[:1]))
    q = torch.tensor([[0, 0, 0, 0, 0, 0.5, 0, 0, 0, 0.5], [0, 0, 0, 0, 0, 0.6, 0.2, 0, 0.2, 0.0]])
    seen: Counter[tuple[int, ...]] = Counter()
    samples = 4000
    for _ in range(samples):
        drawn = torch.multinomial(q, 1, generator=generator).squeeze(1).tolist()
        (draft,) = Forced(Fixed(drawn, q)).propose([request("a", [1], Automaton([{5: 1}, {5: 1, 6: 1}]))], [2])
        new = verify_sampled(p[: len(draft.tokens) + 1], draft.tokens, draft.probs, generator)
        if len(new) == 1:
            new += torch.multinomial(p[1], 1, generator=generator).tolist()
        seen[tuple(new[:2])] += 1
    for first in (5, 6, 7):
        for second in (5, 6, 8):
            expected = float(p[0, first] * p[1, second])
            assert abs(seen[first, second] / samples - expected) < 4 * math.sqrt(expected / samples)


#: 5, 6, 7, 5, …
ROUND = [{5: 1}, {6: 2}, {7: 0}]


def looking_up(folder: Path, drafts: int = 3) -> LLMCore:
    return load_core(write_target(folder, eos_token_id=0), LOOKUP, draft_tokens=drafts)


def batches(core: LLMCore, **completions: Completion) -> dict[str, list[TokenBatch]]:
    outcomes: dict[str, list[TokenBatch]] = {name: [] for name in completions}
    for name, completion in completions.items():
        core.add(name, completion)
    while core.live:
        for name, outcome in core.step():
            assert isinstance(outcome, TokenBatch)
            outcomes[name].append(outcome)
    return outcomes


def greedy(tokens: int, constraint: Constraint | None = None, draft_tokens: int | None = None) -> Completion:
    sampling = Sampling(temperature=0)
    return Completion((2, 3), tokens, sampling=sampling, constraint=constraint, draft_tokens=draft_tokens)


def test_forced_tokens_are_counted_separately_from_the_drafters(tmp_path: Path) -> None:
    core = looking_up(tmp_path)
    outcomes = batches(core, bound=greedy(41, Automaton(ROUND)), free=greedy(60))
    assert [token for batch in outcomes["bound"] for token in batch.ids] == [5, 6, 7] * 13 + [5, 6]
    assert [batch.forced for batch in outcomes["bound"]] == [0, *[3] * 10]
    assert all(batch.forced == batch.drafted == batch.accepted for batch in outcomes["bound"])
    assert not any(batch.forced for batch in outcomes["free"])
    gauges, found = core.gauges(), sum(batch.drafted or 0 for batch in outcomes["free"])
    assert total(gauges, "forced_total") == total(gauges, "forced_accepted_total") == 30 and found > 0
    assert total(gauges, "drafted_total") == 30 + found
    # The gate observes what was looked up, except in the last step.
    seen = total(gauges, "drafted_per_position_total")
    assert 0 < seen <= found


@pytest.mark.parametrize(("moves", "accepted"), [(ROUND, 0), ([{7: 1}, {5: 2}, {6: 0}], 2)])
def test_refused_forced_tokens_are_not_counted_as_accepted(
    tmp_path: Path, moves: list[dict[int, int]], accepted: int
) -> None:
    """As where the same text has another spelling."""

    class Otherwise(Automaton):
        def forced(self, limit: int) -> list[int]:
            return [5, 6, 9][:limit] if len(self._states) == 2 else []

    core = looking_up(tmp_path)
    outcomes = batches(core, bound=greedy(6, Otherwise(moves)))["bound"]
    assert [(batch.drafted, batch.forced, batch.accepted) for batch in outcomes if batch.forced] == [(3, 3, accepted)]
    gauges = core.gauges()
    assert (total(gauges, "forced_total"), total(gauges, "forced_accepted_total")) == (3, accepted)


@pytest.mark.parametrize(
    ("limits", "own", "forced"),
    [
        (Limits(), None, 3),
        (Limits(up_to_batch=2, below_context=500), 2, 2),
        (Limits(), 0, 0),
        (Limits(up_to_batch=1), None, 0),
        (Limits(below_context=2), None, 0),
    ],
)
def test_it_is_drafted_where_a_drafter_does_not_pay_but_within_limits(
    tmp_path: Path, limits: Limits, own: int | None, forced: int
) -> None:
    core = looking_up(tmp_path)
    core.scheduler.gate = Gate(None, limits, 0)
    outcomes = batches(core, a=greedy(33, Automaton(ROUND), own), b=greedy(33, Automaton(ROUND), own), c=greedy(9))
    most = {name: max(batch.forced for batch in its) for name, its in outcomes.items()}
    # Of three sequences more decode than two may, until one of them has ended.
    assert most == {"a": forced, "b": forced, "c": 0}
    assert sum(batch.drafted or 0 for batch in outcomes["c"]) == 0
