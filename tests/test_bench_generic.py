"""Calls of models whose templates show no tools: random weights write valid ones under the constraint."""

from __future__ import annotations

import pytest
import torch

from benchmarks.constraint import generic


@pytest.mark.slow
def test_random_weights_make_valid_calls() -> None:
    torch.set_num_threads(1)
    with generic.random_weights() as model:
        assert model.format.reads_calls
        counts = generic.counted(
            model, generic.asked(model, "required", constrained=True, temperature=1.0, asks=100), int
        )
    assert (counts["a call"], counts["valid"]) == (100, 100)
    assert 0 < counts["right tool"] < 100
