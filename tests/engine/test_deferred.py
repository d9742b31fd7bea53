"""A deferred drafter observes everything later, in order and without gaps, and buffers a bounded amount."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from dovetail.completion import Completion, Sampling
from dovetail.engine.drafting.base import Observed
from dovetail.engine.drafting.deferred import Deferred
from dovetail.engine.request import Request
from dovetail.gate import Limits
from tests.engine.checkpoints import load_core, run, write_drafter, write_target
from tests.engine.drafters import Oracle
from tests.engine.gates import fickle

GREEDY = Sampling(temperature=0)


class Notes(Oracle):
    """Keeps what it observes. What is observed late is behind what is computed."""

    def __init__(self, truth: dict[str, list[int]]) -> None:
        super().__init__(truth, wrong=0.3)
        self.seen: list[tuple[str, int, int, torch.Tensor | None]] = []
        self.fails = False

    def start(self, request: Request, cached: int) -> int:
        self._computed[request.id] = cached
        return cached

    def observe(self, observed: list[Observed]) -> None:  # type: ignore[override]
        if self.fails:
            raise RuntimeError("it fails")
        for item in observed:
            assert item.start == self._computed[item.request.id] and item.count > 0
            assert item.features is None or len(item.features) == item.count
            self._computed[item.request.id] += item.count
            self.seen.append((item.request.id, item.start, item.count, item.features))


def request(name: str, prompt: int) -> Request:
    completion = Completion(tuple(range(2, 2 + prompt)), 2000, sampling=GREEDY)
    return Request(name, completion, context=4000, vocab_size=97, draft_tokens=3)


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_in_order_and_whole(seed: int) -> None:
    rng = random.Random(seed)
    inner = Notes({})
    deferred = Deferred(inner)
    requests = [request(str(i), rng.randint(1, 90)) for i in range(3)]
    place = dict.fromkeys(requests, 0)
    sent: dict[str, list[torch.Tensor]] = {r.id: [] for r in requests}
    for r in requests:
        assert deferred.start(r, 0) == 0
    for _ in range(400):
        items = []
        for r in rng.sample(requests, rng.randint(1, 3)):
            left = r.prompt_length - place[r]
            count = rng.randint(1, left) if left > 0 else rng.randint(1, 4)
            features = torch.rand(count, 2)
            items.append(Observed(r, place[r], count, features))
            sent[r.id].append(features)
            place[r] += count
            r.tokens += [5] * (place[r] + 1 - len(r.tokens))
            r.computed = place[r]
        deferred.observe(items)
        assert all(place[r] - inner._computed[r.id] < 256 for r in requests)
        assert all(inner._computed[r.id] >= min(place[r], r.prompt_length) for r in requests)
        wanting = [r for r in requests if place[r] >= r.prompt_length and rng.random() < 0.02]
        for r in wanting:
            inner._truth[r.id] = []
            deferred.propose([r], [2])
            assert inner._computed[r.id] == place[r]
    for r in requests:
        seen = [features for name, _, _, features in inner.seen if name == r.id and features is not None]
        assert torch.equal(torch.cat(seen), torch.cat(sent[r.id])[: inner._computed[r.id]])
        deferred.release(r)
    deferred.check_integrity(set())
    assert not deferred._buffered and not deferred._bytes


def test_a_buffered_row_does_not_hold_the_memory_of_its_step() -> None:
    """Not the hidden states of the prompts beside it."""
    deferred, one, step = Deferred(Notes({})), request("a", 1), torch.rand(500, 2)
    deferred.start(one, 0)
    deferred.observe([Observed(one, 0, 1, step[:1])])
    deferred.observe([Observed(one, 1, 1, step[7:8])])
    (buffered,) = deferred._buffered["a"]
    assert buffered.features is not None and torch.equal(buffered.features, step[7:8])
    assert buffered.features.untyped_storage().nbytes() == buffered.features.nbytes


def test_a_drafter_that_fails_late_drafts_for_none_of_those_it_lost() -> None:
    inner = Notes({})
    deferred = Deferred(inner)
    a, b = request("a", 1), request("b", 1)
    for r in (a, b):
        deferred.start(r, 0)
        deferred.observe([Observed(r, 0, 1, None)])
        deferred.observe([Observed(r, 1, 2, None)])
    inner.fails = True
    with pytest.raises(RuntimeError, match="it fails"):
        deferred.propose([a], [2])
    assert set(inner._computed) == {"b"}
    with pytest.raises(RuntimeError, match="it fails"):
        deferred.observe([Observed(b, 3, 300, None)])
    assert not inner._computed and not deferred._buffered and not deferred._bytes


def test_a_sequence_that_is_too_long_leaves_nothing_with_its_drafter(tmp_path: Path) -> None:
    """Neither one that grows past the limit, nor one that comes with a longer prompt."""
    target = write_target(tmp_path / "target")
    wanted = {
        "grows": Completion(tuple(range(2, 30)), 40, sampling=GREEDY),
        "is long": Completion(tuple(range(2, 60)), 20, sampling=GREEDY),
        "stays short": Completion((5, 6), 20, sampling=GREEDY),
    }
    plain = load_core(target)
    expected = run(plain, wanted)
    core = load_core(target, write_drafter(tmp_path / "drafter"), draft_tokens=3, speculate_below_context=40)
    slots = []
    step = core.loop.step

    def noted() -> object:
        outcomes = step()
        drafter = core.models.drafter
        while hasattr(drafter, "_drafter"):
            drafter = drafter._drafter
        for r in core.scheduler.running:
            slots.append(r.id in drafter._slots)  # type: ignore[union-attr]
            assert slots[-1] == (len(r.tokens) < 40) or abs(len(r.tokens) - 40) < 5
        return outcomes

    core.loop.step = noted  # type: ignore[method-assign, assignment]
    assert run(core, wanted) == expected
    assert True in slots and False in slots
    reasons = core.scheduler.gate.counts().decisions
    assert reasons["context"] > 20 and reasons["draft"] > 5


def test_coming_and_going_changes_no_output(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    wanted = {str(i): Completion(tuple(range(2, 5 + 7 * i)), 60, sampling=GREEDY) for i in range(5)}
    expected = run(load_core(target), wanted)
    folder = write_drafter(tmp_path / "drafter")
    for seed in range(4):
        core = load_core(target, folder, draft_tokens=4, max_batch=3)
        assert run(fickle(core, seed, Limits(below_context=80, up_to_batch=2)), wanted) == expected
