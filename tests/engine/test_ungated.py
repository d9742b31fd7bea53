"""A request that is not gated drafts its own number in each step, whatever the gate allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.gate import Decision, Gate, Limits, Track
from tests.engine.checkpoints import batches_of, load_core, write_drafter, write_target

GREEDY = Completion((2, 3, 4), 30, Sampling(temperature=0.0))
FIXED = msgspec.structs.replace(GREEDY, gated=False)


class Never(Gate):
    """Allows no drafts, because none pay."""

    def decide(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        decision = super().decide(tracks, contexts, caps)
        reasons = tuple("cost" if reason == "draft" else reason for reason in decision.reasons)
        return decision._replace(allowed=(0,) * len(tracks), reasons=reasons)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ungated")
    return write_target(root / "target"), write_drafter(root / "drafter")


def core(folders: tuple[Path, Path], limits: Limits | None = None) -> LLMCore:
    made = load_core(*folders, draft_tokens=3)
    made.scheduler.gate = Never(None, limits or Limits(), 3)
    return made


def ids(batches: Sequence[TokenBatch]) -> list[int]:
    return [token for batch in batches for token in batch.ids]


def test_it_drafts_beside_one_that_does_not(folders: tuple[Path, Path]) -> None:
    two = msgspec.structs.replace(FIXED, draft_tokens=2)
    batches = batches_of(core(folders), {"gated": GREEDY, "fixed": FIXED, "two": two})
    assert not any(batch.drafted for batch in batches["gated"])
    # Less only where the end is near: a step adds one token beside its drafts.
    assert all(batch.drafted == 3 for batch in batches["fixed"][1:-3])
    assert all(batch.drafted == 2 for batch in batches["two"][1:-2])
    assert ids(batches["gated"]) == ids(batches["fixed"]) == ids(batches["two"])


def test_its_own_number_may_be_more_than_the_drafters_and_at_most_the_servers(folders: tuple[Path, Path]) -> None:
    """Where a measured gate may draft up to 4, and the drafter's own number is 2."""
    made = load_core(*folders, draft_tokens=2, max_draft_tokens=4, gate="measured", threads=1)
    numbers = {"own": None, "four": 4, "nine": 9}
    wanted = {name: msgspec.structs.replace(FIXED, draft_tokens=number) for name, number in numbers.items()}
    batches = batches_of(made, wanted)
    for name, drafted in {"own": 2, "four": 4, "nine": 4}.items():
        assert all(batch.drafted == drafted for batch in batches[name][1:-4]), name
    assert ids(batches["own"]) == ids(batches["four"]) == ids(batches["nine"])


def test_the_limits_of_batch_and_context_hold(folders: tuple[Path, Path]) -> None:
    batches = batches_of(core(folders, Limits(up_to_batch=1)), {"one": FIXED, "other": FIXED})
    assert not any(batch.drafted for each in batches.values() for batch in each)
    long = batches_of(core(folders, Limits(below_context=10)), {"one": FIXED})["one"]
    assert any(batch.drafted for batch in long) and not any(batch.drafted for batch in long[-5:])
