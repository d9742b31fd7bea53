"""Every kernel that multiplies by weights equals the plain product, on each processor that has it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.linear import Linear
from dovetail.engine.settings import Quantization
from tests.engine.processors import EVERY, for_all_sizes, needs
from tests.examples import examples

# Odd sizes, sizes that take the plain product for few rows, one that never does, and one of several tiles.
SIZES = [(30, 31), (97, 48), (384, 96), (1000, 700)]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """To 255 levels an output, the naive way."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("processor", EVERY)
def test_equals_the_plain_product(size: tuple[int, int], quantization: Quantization | None, processor: str) -> None:
    kernels = needs(processor, "float32", quantization)
    weight, bias, x = torch.randn(size), torch.randn(size[0]), torch.randn(70, size[1])
    # As in real models, some channels are a hundred times the others.
    x[:, 3] *= 100
    stored = rounded(weight) if quantization else weight
    for some_bias in (None, bias):
        product = Linear(weight, some_bias, quantization, kernels)
        exact = x.double() @ stored.double().T + (0 if some_bias is None else some_bias)
        for rows in (1, 4, 70):
            assert (product(x[:rows]) - exact[:rows]).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("size", [(1000, 700), (301, 3000)])
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("processor", EVERY)
def test_bfloat16(size: tuple[int, int], quantization: Quantization | None, processor: str) -> None:
    kernels = needs(processor, "bfloat16", quantization)
    weight, bias, x = (torch.randn(each).bfloat16() for each in (size, size[:1], (5, size[1])))
    for some_bias in (None, bias):
        product = Linear(weight, some_bias, quantization, kernels)
        exact = x.double() @ weight.double().T + (0 if some_bias is None else some_bias)
        for rows in (1, 2, 5):
            found = product(x[:rows])
            assert found.dtype == torch.bfloat16
            assert (found - exact[:rows]).norm() < 0.02 * exact[:rows].norm()


@pytest.mark.parametrize("processor", EVERY)
@given(rows=st.integers(1, 40), start=st.integers(0, 39), scale=st.floats(1e-6, 1e6), extreme=st.booleans())
@examples(30)
def test_int8_gives_a_row_the_same_whatever_comes_with_it(
    processor: str, rows: int, start: int, scale: float, extreme: bool
) -> None:
    kernels = for_all_sizes(needs(processor, "float32", "int8"))
    generator = torch.Generator().manual_seed(rows)
    weight, x = torch.randn(257, 130, generator=generator), torch.randn(80, 130, generator=generator) * scale
    if extreme:  # the largest digits by the largest weights: where products of pairs would overflow 16 bits
        weight, x = weight.sign(), x.sign() * scale
    product = Linear(weight, None, "int8", kernels)
    assert torch.equal(product(x[start : start + rows]), product(x)[start : start + rows])
    exact = x.double() @ rounded(weight).double().T
    assert (product(x) - exact).abs().max() <= 1e-5 * exact.abs().max()


@given(
    rows=st.integers(1, 300),
    start=st.integers(0, 99),
    published=st.sampled_from([torch.bfloat16, torch.float16]),
    scale=st.floats(1e-12, 1e12),
    biased=st.booleans(),
)
@examples(30)
def test_weights_published_in_16_bits(
    rows: int, start: int, published: torch.dtype, scale: float, biased: bool
) -> None:
    """Kept in 16 bits, they are the same numbers, and a row's product does not depend on the rows beside it."""
    kernels = for_all_sizes(needs("avx2", "float32", None))
    generator = torch.Generator().manual_seed(rows)
    spread = scale if published == torch.bfloat16 else 1.0
    weight = (torch.randn(130, 600, generator=generator) * spread).to(published).float()
    weight[7] = 0
    bias = torch.randn(130, generator=generator) * spread if biased else None
    x = torch.randn(400, 600, generator=generator)
    product = Linear(weight, bias, None, kernels)
    assert torch.equal(product(x[start : start + rows]), product(x)[start : start + rows])
    exact = x.double() @ weight.double().T + (0 if bias is None else bias)
    assert (product(x) - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1 + 2**-11, 1e-30, 3e38])
def test_weights_that_16_bits_do_not_hold_stay_as_they_are(weight: float) -> None:
    kernels = for_all_sizes(needs("avx2", "float32", None))
    weights = torch.ones(48, 32)
    weights[3, 5] = weight
    product = Linear(weights, None, None, kernels)(torch.eye(32))
    expected = torch.eye(32) @ weights.T
    assert torch.equal(product.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("processor", EVERY)
def test_int8_of_nothing(processor: str) -> None:
    """No weights, no activations: zeros, not a division by zero."""
    weight, x = torch.randn(48, 32), torch.randn(3, 32)
    weight[5] = 0
    x[1] = 0
    product = Linear(weight, None, "int8", needs(processor, "float32", "int8"))(x)
    assert torch.equal(product[1], torch.zeros(48)) and torch.equal(product[:, 5], torch.zeros(3))
