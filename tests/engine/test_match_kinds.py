"""The gate and a drafter that continues matches: acceptance by the length of the match (F14: chats, then an edit)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dovetail.completion import Completion, Sampling
from dovetail.engine.request import Request
from dovetail.engine.settings import LOOKUP
from dovetail.gate import LONG_MATCH, CostModel, Gate, Limits, Rounds, Track
from tests.engine.checkpoints import batches_of, load_core, write_target
from tests.engine.constraints import Automaton

K = 5


def request(prompt: list[int], **more: object) -> Request:
    return Request("r", Completion(tuple(prompt), 50, **more), context=200, vocab_size=99, draft_tokens=K)  # type: ignore[arg-type]


def test_a_request_has_a_track_for_each_length_of_match() -> None:
    one = request([1, 2, 3])
    kinds = [one.track_for(matched).kind for matched in (None, 0, 2, 3, 4, 7, 8, 32)]
    assert kinds == ["", *["short match"] * 3, *["match"] * 2, *[LONG_MATCH] * 2]
    assert one.track_for(2) is one.track_for(3) and one.track is one.track_for(None)
    assert request([1], kind="after a tool result").track.kind == "after a tool result"
    assert request([1], constraint=Automaton([{2: 0}]), kind="after a tool result").track.kind == "constrained"


def _costs() -> CostModel:
    """Of a model on a processor, where each of five drafts takes a fifteenth of a step."""
    row = tuple(1 + 0.07 * k for k in (0, 1, K))
    return CostModel.fit([Rounds(1, 100, (0, 1, K), (row,) * 4)])


def _serve(gate: Gate, chance: random.Random, *, edits: bool) -> list[int]:
    """One request of 68 tokens, its drafts by step: chat has short matches that fail, an edit long ones that stand."""
    tracks, left, asked = {}, 68, list[int]()
    while left > 0:
        long = edits and chance.random() < 0.8
        kind = LONG_MATCH if long else "short match"
        track = tracks.setdefault(kind, Track(kind))
        matched = 20 if long else chance.choice((0, 0, 2, 3))
        [drafts] = gate.decide([track], [100], [min(K, matched)]).allowed
        stood = 0
        while stood < drafts and chance.random() < (0.95 if long else 0.1):
            stood += 1
        gate.observe(
            [(track, drafts, drafts, stood)] if drafts else [], chance.uniform(0.95, 1.1) * (1 + 0.07 * drafts)
        )
        left -= 1 + stood
        asked.append(drafts)
    return asked


@pytest.mark.parametrize("seed", range(3))
def test_the_first_edit_after_ninety_chats_gets_its_drafts(seed: int) -> None:
    gate, chance = Gate(_costs(), Limits(), K), random.Random(seed)
    chats = [_serve(gate, chance, edits=False) for _ in range(90)]
    late = [drafts for chat in chats[40:] for drafts in chat]
    assert sum(late) < 0.02 * K * len(late)
    steps = _serve(gate, chance, edits=True)
    assert 68 / len(steps) > 2.5, steps


def test_long_matches_that_fail_are_given_up_for_the_request_that_has_them() -> None:
    gate, track = Gate(_costs(), Limits(), K), Track(LONG_MATCH)
    asked = []
    for _ in range(200):
        [drafts] = gate.decide([track], [100], [K]).allowed
        gate.observe([(track, drafts, drafts, 0)] if drafts else [], 1 + 0.07 * drafts)
        asked.append(drafts)
    assert asked[0] == K and sum(asked[60:]) < 0.05 * K * 140


def test_a_core_drafts_where_there_is_a_match_and_no_more_than_it_is_long(tmp_path: Path) -> None:
    """A request whose answer is one token again and again, even after requests whose matches failed."""
    core = load_core(write_target(tmp_path / "target"), LOOKUP, draft_tokens=K, max_draft_tokens=K, gate="measured")
    circle = tuple(range(2, 12))
    for number in range(4):
        batches_of(core, {f"chat {number}": Completion(circle * 3, 40, Sampling(temperature=1.0, seed=number))})
    same = Sampling(temperature=0.0, logit_bias={7: 100.0})
    batches = batches_of(core, {"same": Completion((3, 4, 5), 60, same)})["same"]
    assert [token for batch in batches for token in batch.ids] == [7] * 60
    length = 0
    for batch in batches:
        assert batch.drafted == batch.accepted <= max(0, length - 1)
        length += len(batch.ids)
    assert all(batch.drafted == K for batch in batches[10:-2]) and len(batches) < 25
