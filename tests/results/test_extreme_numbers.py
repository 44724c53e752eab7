"""Norms, deviations and distances over all of float64, compared with exact fractions.

The square of 1e200 is beyond the largest float64 and that of 1e-200 below the smallest. Results
that are computed from squares must not depend on that.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope
from hookscope.execution.edit_effect import relative_change, tensor_change
from hookscope.execution.loss import compute_loss
from hookscope.execution.objective import gradient_penalty
from hookscope.extraction.channel_statistics import DatasetStatistics
from hookscope.file_analysis.error_sums import measure_errors
from hookscope.model_analysis.cams.layer_methods import GradCamPlusPlus
from hookscope.results import numpy_stats as arrays
from hookscope.results import stats
from hookscope.results.stats import Stats
from hookscope.tensors.tensor_stats import deviation, euclidean_norm, summarize

LARGEST, LEAST = 1.7976931348623157e308, 5e-324
EDGES = [0.0, -0.0, LARGEST, -LARGEST, LEAST, -LEAST, 2.2250738585072014e-308, 1e154, -1.4e154]
EDGES += [1e-162, -1e-170, 1e200, 1e-200, 1.0]
ANY = st.floats() | st.sampled_from([*EDGES, math.nan, math.inf])
FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EDGES)


def root(square: Fraction) -> float:
    """The square root of a fraction, correct to the last digits of float64; inf beyond it."""
    if not square:
        return 0.0
    shift = 2 * (1200 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    scaled = square * Fraction(2) ** shift
    exact = Fraction(math.isqrt(int(scaled)), 1) / Fraction(2) ** (shift // 2)
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def close(found: float | None, true: float) -> bool:
    """Equal up to rounding, including subnormal numbers and numbers near the largest."""
    if found is None:
        return False
    if math.isinf(true) or math.isinf(found):
        return min(found, true) > LARGEST * (1 - 1e-9)
    return math.isclose(found, true, rel_tol=1e-9, abs_tol=4 * LEAST)


def demand_exact(found: Stats, numbers: list[float]) -> None:
    finite = [Fraction(x) for x in numbers if math.isfinite(x)]
    assert found.nan == sum(math.isnan(x) for x in numbers)
    assert found.inf == sum(math.isinf(x) for x in numbers)
    if not finite:
        assert found.norm is found.std is found.mean is None
        return
    mean = sum(finite) / len(finite)
    assert close(found.norm, root(sum(x * x for x in finite)))
    std = root(sum((x - mean) ** 2 for x in finite) / len(finite))
    assert found.std is not None and math.isfinite(found.std)
    assert found.mean is not None and math.isfinite(found.mean)
    size = float(max(abs(x) for x in finite))
    # A sum of opposite numbers is as precise as the largest of them.
    assert abs(Fraction(found.mean) - mean) <= Fraction(size) * Fraction(1e-14) + Fraction(LEAST)
    assert abs(found.std - std) <= size * 1e-9 + 4 * LEAST


@settings(deadline=None)
@given(st.lists(ANY, max_size=9))
def test_statistics_of_any_float64_are_those_of_exact_fractions(numbers: list[float]) -> None:
    array = np.array(numbers, np.float64)
    demand_exact(summarize(torch.tensor(array)), numbers)
    demand_exact(arrays.summarize(arrays.blocks(array)), numbers)


@settings(deadline=None)
@given(st.lists(ANY, min_size=1, max_size=9), st.integers(1, 3))
def test_blocks_of_different_size_are_merged_exactly(numbers: list[float], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookscope.tensors.tensor_stats.BLOCK", block)
        demand_exact(summarize(torch.tensor(numbers, dtype=torch.float64)), numbers)
    pieces = np.array_split(np.array(numbers), range(block, len(numbers), block))
    demand_exact(arrays.summarize(piece for piece in pieces if piece.size), numbers)


@pytest.mark.parametrize("number", [LARGEST, 1e200, 1e-200, 1e-310, LEAST])
def test_a_long_tensor_of_one_size_has_its_norm_and_deviation(number: float) -> None:
    count = 2 * stats.BLOCK + 8
    signs = torch.ones(count, dtype=torch.float64)
    signs[1::2] = -1
    for found in (summarize(signs * number), arrays.summarize([(signs * number).numpy()])):
        assert close(found.std, number)
        assert close(found.norm, root(Fraction(number) ** 2 * count))
        assert found.mean == 0 and found.inf == 0


def test_blocks_whose_means_are_farther_apart_than_the_largest_number_are_merged() -> None:
    blocks = [np.full(2, LARGEST), np.full(3, -LARGEST)]
    demand_exact(arrays.summarize(blocks), [*blocks[0].tolist(), *blocks[1].tolist()])
    known = DatasetStatistics()
    for rows, block in ((range(2), blocks[0]), (range(2, 5), blocks[1])):
        known.update("a", torch.from_numpy(block).reshape(-1, 1, 1), rows)
    assert known.channels["a"].mean.item() == pytest.approx(LARGEST * -0.2, rel=1e-9)
    assert known.channels["a"].std.item() == pytest.approx(LARGEST * math.sqrt(0.96), rel=1e-9)


@pytest.mark.parametrize("size", [LARGEST, 1e200, 1.0, 1e-200, LEAST])
def test_sums_of_squares_and_of_squared_distances_are_those_of_exact_fractions(size) -> None:
    a, b = np.array([size, -size, 0.0]), np.array([-size, size, size])
    value, exponent = arrays.sum_of_squares(a)
    assert close(root(Fraction(value) * Fraction(2) ** exponent), root(2 * Fraction(size) ** 2))
    with np.errstate(over="ignore"):
        gap = np.abs(a - b)
    value, exponent = arrays.squared_distance(a, b, gap)
    true = sum((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(a, b, strict=True))
    # Without the root: the distance itself may be beyond the largest number.
    assert abs(Fraction(value) * Fraction(2) ** exponent / true - 1) < Fraction(1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_bounds_of_every_floating_type_have_statistics(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for values in ([info.max, info.min, info.max], [info.tiny, -info.tiny], [info.smallest_normal]):
        tensor = torch.tensor(values, dtype=dtype)
        demand_exact(summarize(tensor), tensor.double().tolist())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("size", [3e38, 1e200, 1e-30, 1e-200])
def test_finite_complex_numbers_have_a_finite_norm(dtype: torch.dtype, size: float) -> None:
    size = size if dtype is torch.complex128 else max(min(size, 3e38), 1e-44)
    tensor = torch.full((4,), complex(size, size), dtype=dtype)
    real = tensor.real.double()[0].item()
    true = root(8 * Fraction(real) ** 2)
    for found in (summarize(tensor), arrays.summarize(arrays.blocks(tensor.numpy()))):
        assert found.inf == 0
        assert close(found.norm, true)
        assert close(found.max, true / 2)
        assert close(found.std / found.norm, 0.0)


@settings(deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=6), st.booleans())
def test_cosine_noise_and_largest_ratio_are_those_of_exact_fractions(pairs, split) -> None:
    a, b = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    cut = 1 if split else len(a)
    found = measure_errors([a[:cut], a[cut:]], [b[:cut], b[cut:]], 0, 0)
    one, two = ([Fraction(float(x)) for x in column] for column in (a, b))
    aa, bb = sum(x * x for x in one), sum(x * x for x in two)
    noise = sum((x - y) ** 2 for x, y in zip(one, two, strict=True))
    if aa and bb:
        product = sum(x * y for x, y in zip(one, two, strict=True))
        true = root(product**2 / (aa * bb)) * (1 if product >= 0 else -1)
        assert found.cosine == pytest.approx(true, abs=1e-9)
    else:
        assert found.cosine is None
    if noise and aa:
        ratio = aa / noise
        logarithm = math.log10(ratio.numerator) - math.log10(ratio.denominator)
        assert found.snr == pytest.approx(10 * logarithm, abs=1e-6)
    ratios = [abs(x - y) / abs(x) for x, y in zip(one, two, strict=True) if x]
    if all(one):
        assert close(found.max_rel, root(max(ratios) ** 2))
    if noise and aa:
        true = root(noise / aa)
        assert close(tensor_change(torch.tensor(a), torch.tensor(b))["relative"], true)
        assert close(relative_change((torch.tensor(a),), (torch.tensor(b),)), true)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=8), st.integers(1, 8))
def test_channels_of_a_dataset_have_the_deviation_of_exact_fractions(numbers, cut) -> None:
    values = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 1, 1)
    values = torch.cat([values, -values], 1)
    known = DatasetStatistics()
    for part in (range(min(cut, len(values))), range(cut, len(values))):
        if part:
            known.update("a", values[list(part)], part)
    channels = known.channels["a"]
    exact = [Fraction(x) for x in numbers]
    mean = sum(exact) / len(exact)
    true = root(sum((x - mean) ** 2 for x in exact) / len(exact))
    size = float(max(abs(x) for x in exact))
    assert channels.std.isfinite().all() and channels.mean.isfinite().all()
    assert (channels.std - true).abs().max() <= size * 1e-7 + 8 * LEAST
    assert abs(channels.mean[0] - float(mean)) <= size * 1e-12 + 8 * LEAST
    both = root(sum(x * x for x in exact) / len(exact))
    assert abs(channels.summary()["std"] - both) <= size * 1e-7 + 8 * LEAST


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-20, 1e-3, 1.0, 1e20, 1e37])
def test_norms_of_float32_and_their_gradients_are_those_of_float64(size: float) -> None:
    x = (torch.tensor([[3.0, -4.0, 0.0], [1.0, 1.0, 2.0]]) * size).requires_grad_()
    wide = x.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(euclidean_norm(x, dim=1).sum(), x)
    (true,) = torch.autograd.grad(torch.linalg.vector_norm(wide, dim=1).sum(), wide)
    assert torch.allclose(found.double(), true, rtol=1e-2 if size < 1e-40 else 1e-5)
    x, wide = x.detach(), wide.detach()
    for norm in (euclidean_norm(x), compute_loss("norm", x).value):
        assert math.isclose(norm, torch.linalg.vector_norm(wide), rel_tol=1e-3)
    assert math.isclose(deviation(x), wide.std(correction=0), rel_tol=1e-3)


def test_an_ordinary_norm_is_that_of_pytorch_bit_for_bit() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        y = x.to(dtype)
        assert torch.equal(euclidean_norm(y), torch.linalg.vector_norm(y))
        assert torch.equal(euclidean_norm(y, dim=1), torch.linalg.vector_norm(y, dim=1))
        assert torch.equal(deviation(y), y.std(correction=0))
    assert euclidean_norm(torch.zeros(3)) == 0
    assert euclidean_norm(torch.tensor([1.0, math.nan])).isnan()
    assert euclidean_norm(torch.tensor([1.0, math.inf])).isinf()


def test_the_norm_of_a_parameter_may_be_beyond_single_precision() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, 3e38)
    with hookscope.record(model, grads=True) as capture:
        model(torch.zeros(1, 2)).sum().backward()
    [record] = [record for record in capture.records if record.kind == "param.grad"]
    assert record.weight_norm == pytest.approx(6e38, rel=1e-6)
    assert record.ratio == 0


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_a_penalty_of_large_and_small_gradients_has_a_gradient(size: float) -> None:
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    weight = torch.tensor(size, requires_grad=True)
    penalty = gradient_penalty((weight * x**2 / 2).sum(), [((), x)])  # of norm 5 * weight
    assert penalty.norms[0] == pytest.approx(5 * size, rel=1e-5)
    if size < 1:
        (grad,) = torch.autograd.grad(penalty.value, weight)
        assert grad.item() == pytest.approx(-10, rel=1e-5)  # of (5 w - 1)^2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_grad_cam_plus_plus_does_not_lose_small_gradients(dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    activations = torch.rand(1, 3, 4, 4, generator=source, dtype=torch.float64)
    small = torch.finfo(dtype).tiny * 2
    gradients = torch.randn(1, 3, 4, 4, generator=source, dtype=torch.float64).abs() * 8
    found = GradCamPlusPlus.heat_map(activations.to(dtype), (gradients * small).to(dtype))
    true = GradCamPlusPlus.heat_map(activations, gradients * small)
    assert found.max() > 0
    assert torch.allclose(found.double() / small, true / small, rtol=0.1)
