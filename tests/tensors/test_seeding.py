"""Calls with a seed each give what they give in a block with that seed, alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hookscope.tensors.seeding import SeededCalls, seeded_throughout

SEEDS = [5, 6, 7, 2**40, 9]


def from_python_sometimes(seed: int) -> float:
    return random.random() if seed == 7 else float(seed)


def from_numpy_sometimes(seed: int) -> float:
    return float(np.random.randn()) if seed > 6 else float(seed)


CALLS: dict[str, Callable[[int], object]] = {
    "nothing": lambda seed: seed,
    "torch": lambda seed: torch.rand(3).tolist(),
    "torch's seed": lambda seed: torch.initial_seed(),
    "python": lambda seed: random.random(),
    "python, one call": from_python_sometimes,
    "numpy": lambda seed: (np.random.randn(), np.random.randn()),
    "numpy, some calls": from_numpy_sometimes,
    "all": lambda seed: random.gauss(0, 1) + np.random.rand() + float(torch.rand(())),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_draws_what_it_draws_alone(name: str) -> None:
    call, wanted = CALLS[name], []
    for seed in SEEDS:
        with seeded_throughout(seed):
            wanted.append(call(seed))
    seeded = SeededCalls()
    for seeds, values in ((SEEDS, wanted), (SEEDS[3:], wanted[3:]), (SEEDS[:2], wanted[:2])):
        assert seeded.map(call, seeds) == values


def test_the_generators_are_left_as_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    with seeded_throughout(1):
        wanted = [draw(), draw()]
    with seeded_throughout(1):
        found = [draw()]
        SeededCalls().map(CALLS["all"], SEEDS)
        SeededCalls().map(CALLS["nothing"], SEEDS)
        assert [*found, draw()] == wanted


def test_functions_that_draw_nothing_are_called_once_for_each_seed() -> None:
    calls: list[int] = []
    SeededCalls().map(calls.append, SEEDS)
    assert calls == SEEDS
