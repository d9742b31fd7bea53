"""A completion that asks for them gets the ids of its drafts, those that were refused too, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Draft, Drafter, DrafterWrapper
from dovetail.engine.request import Request
from dovetail.engine.settings import LOOKUP
from tests.engine.checkpoints import batches_of, load_core, write_target
from tests.engine.constraints import Automaton
from tests.engine.drafters import Peaked, use


class Noted(DrafterWrapper):
    """Notes what is proposed for each request, and after how many of its tokens."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.proposed: dict[tuple[str, int], tuple[int, ...]] = {}

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        drafts = super().propose(requests, counts)
        for request, draft in zip(requests, drafts, strict=True):
            self.proposed[request.id, request.generated] = tuple(draft.tokens)
        return drafts


def completions() -> dict[str, Completion]:
    """One of each kind: greedy and sampled, free and constrained."""
    return {
        f"{'greedy' if greedy else 'sampled'}{' constrained' if constrained else ''}": Completion(
            (2, 3, 4),
            40,
            Sampling(temperature=0.0 if greedy else 1.0, seed=5),
            constraint=Automaton.sample(3) if constrained else None,
        )
        for greedy in (True, False)
        for constrained in (True, False)
    }


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path, eos_token_id=0)


def tokens(batches: list[TokenBatch]) -> list[int]:
    return [token for batch in batches for token in batch.ids]


def noted_core(target: Path) -> tuple[LLMCore, Noted]:
    torch.manual_seed(1)  # greedy requests have no generator of their own, from which drafts would be drawn
    drafter = Noted(Peaked({token: 1 / 32 for token in range(2, 34)}))
    return use(load_core(target, LOOKUP, draft_tokens=3), drafter), drafter


def test_reported_drafts_are_those_of_the_drafter(target: Path) -> None:
    core, drafter = noted_core(target)
    reporting = {
        name: msgspec.structs.replace(each, report_drafts=True)  # type: ignore[type-var]
        for name, each in completions().items()
    }
    refused = 0
    for name, batches in batches_of(core, reporting).items():
        generated = 0
        for batch in batches:
            assert batch.drafts == drafter.proposed.get((name, generated), ())
            assert len(batch.drafts) == batch.drafted
            assert batch.drafts[: batch.accepted] == batch.ids[: batch.accepted]
            refused += len(batch.drafts) - batch.accepted
            generated += len(batch.ids)
    assert refused > 50


def test_without_being_asked_for_they_are_not_gathered_and_the_tokens_are_the_same(target: Path) -> None:
    plain = batches_of(noted_core(target)[0], completions())
    reported = batches_of(
        noted_core(target)[0],
        {name: msgspec.structs.replace(each, report_drafts=True) for name, each in completions().items()},
    )
    assert all(batch.drafts is None for batches in plain.values() for batch in batches)
    for name in plain:
        assert tokens(plain[name]) == tokens(reported[name]), name
