"""What is forced is drafted, beside a drafter and without one, and changes nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dovetail.completion import Completion, Constraint
from dovetail.engine.drafting.base import Draft, Drafter, Observed
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.request import Request
from dovetail.engine.verify import verify_sampled
from dovetail.errors import EngineError
from tests.engine.constraints import Automaton

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

    def check_integrity(self, requests: set[str]) -> None: ...


def drafted(drafter: Drafter, *asked: tuple[Request, int]) -> list[list[int]]:
    drafts = drafter.propose([request for request, _ in asked], [count for _, count in asked])
    return [draft.tokens for draft in drafts]


def test_alone() -> None:
    drafter = Forced(None)
    free, bound = request("a", [1, 2, 1, 2]), request("b", [1, 2], Automaton(FIVE_SIX))
    assert drafter.aux_layers == ()
    assert drafter.start(bound, 1) == 1
    drafter.observe([Observed(bound, 0, 1, None)])
    assert drafted(drafter, (free, 3), (bound, 3), (bound, 1)) == [[], [5, 6], [5]]
    drafter.release(bound)
    drafter.check_integrity(set())


@pytest.mark.parametrize(
    ("said", "count", "expected", "asked"),
    [
        ([], 3, [5, 6], True),
        ([5], 3, [5, 6], True),
        ([5, 9, 7], 3, [5, 6], True),
        ([5, 6, 7], 3, [5, 6, 7], True),
        ([5, 6, 7], 2, [5, 6], False),
        ([9], 1, [5], False),
    ],
)
def test_a_drafter_that_agrees_goes_on(said: list[int], count: int, expected: list[int], asked: bool) -> None:
    inner = Fixed(said)
    drafter = Forced(inner)
    free, bound = request("a", [1]), request("b", [1], Automaton(FIVE_SIX))
    assert drafted(drafter, (bound, count), (free, 2)) == [expected, said[:2]]
    assert inner.asked == [("b", count)] * asked + [("a", 2)]


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
    assert drafted(Forced(None), (broken, 3), (bound, 3)) == [[], [5, 6]]
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
