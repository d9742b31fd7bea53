"""The packed product equals the plain one; with 8 bit weights, that with the weights they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import linear
from dovetail.engine.linear import Linear

# Odd sizes, sizes that take the plain product for few rows, and one that never does.
SIZES = [(30, 31), (97, 48), (384, 96), (1000, 700)]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """To 255 levels an output, the naive way."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("packed", [True, False])
def test_equals_the_plain_product(
    size: tuple[int, int], quantization: linear.Quantization | None, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr(linear, "_PACKED_INT8", False)
    weight, bias, x = torch.randn(size), torch.randn(size[0]), torch.randn(70, size[1])
    # As in real models, some channels are a hundred times the others.
    x[:, 3] *= 100
    held = rounded(weight) if quantization else weight
    for given_bias in (None, bias):
        product = Linear(weight, given_bias, quantization)
        exact = x.double() @ held.double().T + (0 if given_bias is None else given_bias)
        for rows in (1, 4, 70):
            assert (product(x[:rows]) - exact[:rows]).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_bfloat16(quantization: linear.Quantization | None) -> None:
    weight, bias, x = (torch.randn(size).bfloat16() for size in ((1000, 700), (1000,), (5, 700)))
    product = Linear(weight, bias, quantization)(x)
    exact = x.double() @ weight.double().T + bias
    assert product.dtype == torch.bfloat16
    assert (product - exact).norm() < 0.02 * exact.norm()


@given(rows=st.integers(1, 40), start=st.integers(0, 39), scale=st.floats(1e-6, 1e6))
@settings(max_examples=60, deadline=None)
def test_int8_gives_a_row_the_same_whatever_comes_with_it(rows: int, start: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    product = Linear(torch.randn(257, 130, generator=generator), None, "int8")
    x = torch.randn(80, 130, generator=generator) * scale
    assert torch.equal(product(x[start : start + rows]), product(x)[start : start + rows])


def test_int8_of_nothing() -> None:
    """No weights, no activations: zeros, not a division by zero."""
    weight, x = torch.randn(48, 32), torch.randn(3, 32)
    weight[5] = 0
    x[1] = 0
    product = Linear(weight, None, "int8")(x)
    assert torch.equal(product[1], torch.zeros(48)) and torch.equal(product[:, 5], torch.zeros(3))
