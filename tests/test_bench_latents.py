"""What `benchmarks.latents` counts."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.latents import answers, change, logits, text


def test_no_change_is_none() -> None:
    reference = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    assert change(reference, reference) == (0, pytest.approx(0, abs=1e-7), 0)


def test_change_by_hand() -> None:
    reference, found = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]]), torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    error, kl, flips = change(found, reference)
    assert flips == 500
    # One of two places goes from (1/4, 3/4) to (3/4, 1/4).
    assert kl == pytest.approx((0.25 * math.log(1 / 3) + 0.75 * math.log(3)) / 2)
    assert error == pytest.approx(math.sqrt(math.log(3) ** 2 / 2) / reference.std().item())


@pytest.mark.slow
def test_rounding_is_seen_and_small() -> None:
    tokens = text(600)
    reference = list(logits("float32", tokens, (300, 600)))
    assert [part.shape[0] for part in reference] == [300, 600]
    for kind, most in (("bfloat16", 0.02), ("fp8_ds_mla", 0.2), ("fp8", 0.3)):
        for found, expected in zip(logits(kind, tokens, (300, 600)), reference, strict=True):  # type: ignore[arg-type]
            assert 0 < change(found, expected).error < most
    texts, accepted = answers("fp8_ds_mla", 1, 8)
    assert len(texts) == 1 and 0 <= accepted <= 1
