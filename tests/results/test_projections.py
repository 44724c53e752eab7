"""Projections against numpy: the distance of two arrays, whatever their shape and blocks."""

from __future__ import annotations

import numpy as np
import pytest

from hookscope.results.projections import PROJECTIONS, project
from hookscope.results.stats import BLOCK


def blocks(values):
    return [values[i : i + BLOCK] for i in range(0, max(len(values), 1), BLOCK)]


def distance(a, b) -> float:
    return float(np.linalg.norm(project(blocks(a)) - project(blocks(b))))


@pytest.mark.parametrize("size", [1, 63, 127, 1000, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_the_distance_of_projections_is_about_that_of_the_arrays(size: int) -> None:
    source = np.random.default_rng(size)
    a, change = source.normal(size=size), source.normal(size=size)
    wanted = float(np.linalg.norm(change))
    assert 0.6 * wanted < distance(a, a + change) < 1.5 * wanted


def test_the_squared_distance_is_right_on_average() -> None:
    source = np.random.default_rng(0)
    ratios = []
    for _ in range(300):
        change = source.normal(size=2000)
        ratios.append(distance(np.zeros(2000), change) ** 2 / np.sum(change**2))
    assert abs(np.mean(ratios) - 1) < 0.04  # four standard deviations of the mean
    assert np.std(ratios) < 1.3 * np.sqrt(2 / PROJECTIONS)


@pytest.mark.parametrize("gap", [1, 64, 127, 127 * PROJECTIONS, BLOCK])
def test_swapped_entries_and_blocks_are_noticed(gap: int) -> None:
    a = np.random.default_rng(1).normal(size=3 * BLOCK)
    wanted = float(np.linalg.norm(a - np.roll(a, gap)))
    assert 0.6 * wanted < distance(a, np.roll(a, gap)) < 1.5 * wanted


def test_entries_that_are_not_finite_count_as_zero_and_complex_ones_as_pairs() -> None:
    a = np.array([1.0, np.nan, np.inf, -2.0], np.float32)
    assert np.array_equal(project([a]), project([np.array([1.0, 0, 0, -2.0])]))
    z = np.array([1 + 2j, 3 - 4j], np.complex64)
    assert np.array_equal(project([z]), project([np.array([1.0, 2, 3, -4])]))
    assert np.array_equal(project([np.array([True, False])]), project([np.array([1.0, 0.0])]))


def test_the_signs_are_the_same_on_every_machine() -> None:
    sums = project([np.arange(1.0, 11.0)])
    assert sums[:10].tolist() == [-1.0, 2.0, -3.0, 4.0, 5.0, -6.0, -7.0, 8.0, -9.0, 10.0]
    assert not sums[10:].any()
