"""The measurement of decoding with a constraint: the same tokens everywhere, and counts that add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.constraint import decode

pytestmark = [pytest.mark.slow, pytest.mark.proof]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_row_for_every_batch_and_way_of_drafting() -> None:
    notes: list[str] = []
    rows = decode.measure(batches=(1, 2), drafts=3, answers=2, repeats=2, note=notes.append)
    assert [(row["batch"], row["drafting"]) for row in rows] == [
        (batch, drafting) for batch in (1, 2) for drafting in ("off", "K=3", "gated")
    ]
    assert len(notes) == 3 * len(rows)
    for row in rows:
        assert row["answers"] == 2 and 0 < row["same"] <= 1
        assert min(row["without"], row["again"], row["new"]) > 0
        assert len(row["again_ratios"]) == len(row["new_ratios"]) == 2
        assert min(row["again_ratios"]) <= row["again_ratio"] <= max(row["again_ratios"])
        lengths = row["tokens_per_step"]
        assert lengths["again"] == lengths["new"] or row["drafting"] == "gated"
        assert (max(lengths.values()) == 1) is (row["drafting"] == "off")
    (speeds, _) = decode.sheets(rows, [])
    assert len(speeds[2]) == len(rows) and {len(line) for line in speeds[2]} == {len(speeds[1])}


def test_forced_strings_save_steps() -> None:
    rows = {row["drafter"]: row for row in decode.forced(drafts=3, answers=6)}
    assert list(rows) == ["eagle3", "lookup", "none"]
    for row in rows.values():
        assert 0 < row["stood"] <= row["forced"] < row["tokens"] <= row["steps"] * 4
        assert row["steps_forced"] < row["steps"] or row["drafter"] == "eagle3"  # which knows most of them
    assert rows["none"]["steps"] == rows["none"]["tokens"]
    assert rows["none"]["steps_forced"] == rows["none"]["tokens"] - rows["none"]["stood"]
    (_, strings) = decode.sheets([], list(rows.values()))
    assert {len(line) for line in strings[2]} == {len(strings[1])}
