"""The measures of a change against numpy in extended precision, and at the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hookscope.file_analysis.error_sums import WINDOW, ChangeMeasures, ChangeSums

KINDS = ("f2", "f4", "f8", "i1", "u1", "i4", "i8", "?", "c8")


def measured(
    a: NDArray[Any], b: NDArray[Any], atol: float = 0.0, rtol: float = 0.0, block: int = 50_000
) -> ChangeMeasures:
    sums = ChangeSums(atol, rtol)
    for start in range(0, len(a), block):
        sums.add(a[start : start + block], b[start : start + block])
    return sums.measures()


def by_hand(a: NDArray[Any], b: NDArray[Any]) -> tuple[float, float, float, float, int]:
    """Distance, change of the norm, cosine, largest change and number of changed entries."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    x, y = a.astype(wide), b.astype(wide)
    gap = np.abs(x - y)
    norm_a, norm_b = np.sqrt((np.abs(x) ** 2).sum()), np.sqrt((np.abs(y) ** 2).sum())
    return (
        float(np.sqrt((gap**2).sum()) / norm_a),
        float(norm_b / norm_a - 1),
        float((x * np.conj(y)).real.sum() / norm_a / norm_b),
        float(gap.max()),
        int((a != b).sum()),
    )


def figures(found: ChangeMeasures) -> tuple[float | None, ...]:
    return found.distance, found.norm_change, found.cosine, found.largest, found.changed


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_has_the_figures_of_numpy_by_hand(kind: str) -> None:
    rng = np.random.default_rng(3)
    a = (rng.standard_normal(3 * WINDOW + 17) * 30).astype(kind)
    b = np.where(rng.random(a.size) < 0.3, a, (rng.standard_normal(a.size) * 30).astype(kind))
    expected = by_hand(a, b)
    assert figures(measured(a, b)) == pytest.approx(expected, rel=1e-13, abs=1e-13)
    assert measured(a, b).beyond == expected[-1]


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1.0, 1e6])
def test_small_and_large_changes_of_float32_are_exact_to_twelve_digits(size: float) -> None:
    """Sums in float32 would have six digits, and a cosine near 1 none of its difference to 1."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal(200_003).astype("f4") + 3
    b = (a + size * rng.standard_normal(a.size)).astype("f4")
    found, expected = measured(a, b), by_hand(a, b)
    assert figures(found) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    norms = [float(np.sqrt((x.astype(np.longdouble) ** 2).sum())) for x in (a, b)]
    assert found.norms == pytest.approx(norms, rel=1e-13)


@given(
    hnp.arrays("f4", st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_a_tensor_is_the_same_as_itself_however_it_is_cut(a, block, random) -> None:
    found = measured(a, a.copy(), block=block)
    assert (found.changed, found.beyond, found.distance) == (0, 0, 0.0)
    assert found.largest == (0.0 if a.size else None)
    assert found.cosine == (1.0 if a.any() else None)
    assert found.norm_change == (0.0 if a.any() else None)


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(
            *[hnp.arrays("f8", n, elements=st.floats(allow_nan=True, width=64))] * 2
        )
    )
)
def test_some_measures_do_not_depend_on_which_side_is_a(two) -> None:
    a, b = two
    one, other = measured(a, b), measured(b, a)
    assert (one.changed, one.largest, one.nan_both) == (
        other.changed,
        other.largest,
        other.nan_both,
    )
    assert (one.nan_a, one.nan_b) == (other.nan_b, other.nan_a)
    assert one.norms == other.norms[::-1]
    if one.cosine is None or other.cosine is None:
        assert one.cosine == other.cosine
    else:
        assert one.cosine == pytest.approx(other.cosine, rel=1e-12, abs=1e-12)


@given(
    hnp.arrays("f4", 60, elements=st.floats(-9, 9, width=32)),
    hnp.arrays("f4", 60, elements=st.floats(-1, 1, width=32)),
    st.floats(0, 1),
    st.floats(0, 0.5),
)
def test_beyond_counts_what_numpy_does_not_find_close(a, step, atol, rtol) -> None:
    b = a + step
    gap = np.abs(a.astype("f8") - b)
    far = gap > atol + rtol * np.abs(a.astype("f8"))
    assert measured(a, b, atol, rtol).beyond == int(far.sum())


def test_parts_that_are_merged_give_the_figures_of_the_whole() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 1000))
    parts = [ChangeSums(0.0, 0.0) for _ in range(3)]
    for part, x, y in zip(parts, np.split(a, (10, 600)), np.split(b, (10, 600)), strict=True):
        part.add(x, y)
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    assert figures(parts[0].measures()) == pytest.approx(by_hand(a, b), rel=1e-13)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [  # distance, norm change, cosine, largest, changed, NaN in A, B and both
        ([], [], (0.0, None, None, None, 0, 0, 0, 0)),
        ([0.0, 0.0], [0.0, -0.0], (0.0, None, None, 0.0, 0, 0, 0, 0)),
        ([0.0, 0.0], [3.0, 4.0], (math.inf, None, None, 4.0, 2, 0, 0, 0)),
        ([3.0, 4.0], [0.0, 0.0], (1.0, -1.0, None, 4.0, 2, 0, 0, 0)),
        ([3.0, 4.0], [-3.0, -4.0], (2.0, 0.0, -1.0, 8.0, 2, 0, 0, 0)),
        ([3.0, 4.0], [4.0, -3.0], (math.sqrt(2), 0.0, 0.0, 7.0, 2, 0, 0, 0)),
        ([math.nan, 1.0], [math.nan, 1.0], (0.0, 0.0, 1.0, 0.0, 0, 0, 0, 1)),
        ([math.nan, 2.0], [1.0, 3.0], (0.5, 0.5, 1.0, 1.0, 2, 1, 0, 0)),
        ([1.0, 2.0], [math.nan, 2.0], (0.0, 0.0, 1.0, 0.0, 1, 0, 1, 0)),
        ([math.inf, 2.0], [math.inf, 2.0], (0.0, 0.0, 1.0, 0.0, 0, 0, 0, 0)),
        ([math.inf, 2.0], [-math.inf, 2.0], (0.0, 0.0, 1.0, math.inf, 1, 0, 0, 0)),
        ([1.0, 2.0], [math.inf, 2.0], (0.0, 0.0, 1.0, math.inf, 1, 0, 0, 0)),
        ([math.nan], [math.nan], (0.0, None, None, None, 0, 0, 0, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_the_edges(a: list[float], b: list[float], expected: tuple[Any, ...], dtype: str) -> None:
    found = measured(np.array(a, dtype), np.array(b, dtype))
    actual = (*figures(found), found.nan_a, found.nan_b, found.nan_both)
    for value, wanted in zip(actual, expected, strict=True):
        assert value == (wanted if wanted is None else pytest.approx(wanted, rel=1e-14))


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e-320])
def test_squares_beyond_the_range_of_float64_do_no_harm(size: float) -> None:
    found = measured(np.array([3 * size, 4 * size]), np.array([3 * size, 0.0]))
    expected = (4 / 5, 3 / 5 - 1, 3 / 5, 4 * size, 1)
    assert figures(found) == pytest.approx(expected, rel=1e-3 if size == 1e-320 else 1e-14)


def test_int64_beyond_the_digits_of_float64_is_exact() -> None:
    a = np.array([2**60, 5, -(2**63)])
    b = np.array([2**60 + 1, 5, 2**63 - 1])
    found = measured(a, b)
    assert (found.changed, found.largest) == (2, float(2**64 - 1))
    assert measured(a[:1], b[:1]).largest == 1.0


@pytest.mark.parametrize("kinds", [("f4", "f2"), ("f4", "f8"), ("i1", "f4"), ("?", "u1")])
def test_two_dtypes_are_compared_by_value(kinds: tuple[str, str]) -> None:
    rng = np.random.default_rng(9)
    a = (rng.random(500) * 3).astype(kinds[0])
    b = (rng.random(500) * 3).astype(kinds[1])
    assert figures(measured(a, b)) == pytest.approx(by_hand(a, b), rel=1e-13)
    same = np.array([0, 1, 1, 0])
    assert measured(same.astype(kinds[0]), same.astype(kinds[1])).changed == 0
