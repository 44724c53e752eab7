"""Seeding of all random generators within a block."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.tensors.threads import exclusive_run

T = TypeVar("T")


@signal_safe_contextmanager
def seeded_torch(seed: int, gpus: Sequence[int] = ()) -> Iterator[None]:
    """Seed torch's generators of the CPU and ``gpus``, which threads share; restore them."""
    with exclusive_run():
        generators = [torch.default_generator]
        if gpus:
            torch.cuda.init()  # creates the generators of GPUs
            generators += [torch.cuda.default_generators[gpu] for gpu in gpus]
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:  # torch.manual_seed would seed idle devices too
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


@signal_safe_contextmanager
def seeded_throughout(seed: int, gpus: Sequence[int] = ()) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python; restore their states."""
    with seeded_torch(seed, gpus):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class SeededCalls:
    """Calls a function with a seed for each call, as in a block of ``seeded_throughout``.

    To seed the generators of Python and numpy takes longer than to read a small item, and few
    functions use them. So they are seeded once for several calls; if one of these used them, all
    are repeated with a seed each, and later calls too have a seed each.
    """

    def __init__(self) -> None:
        self._each = False

    def map(self, call: Callable[[int], T], seeds: Sequence[int]) -> list[T]:
        """Return what ``call`` returns for each of the seeds."""
        if not seeds:
            return []
        with seeded_throughout(0):
            if not self._each:
                results = [_call_with_torch(call, seed) for seed in seeds]
                if _is_unused(random.getstate(), np.random.get_state(legacy=False)):
                    return results
                self._each = True
            results = []
            for seed in seeds:
                random.seed(seed)
                np.random.seed(seed % 2**32)
                results.append(_call_with_torch(call, seed))
            return results


def _call_with_torch(call: Callable[[int], T], seed: int) -> T:
    torch.default_generator.manual_seed(seed)
    return call(seed)


def _is_unused(python: object, numpy: Any) -> bool:
    """Whether these are the states of the generators after they were seeded with 0."""
    first_python, first_numpy = _first_states()
    keys = (numpy["state"].pop("key"), first_numpy["state"]["key"])
    rest = {**first_numpy, "state": {"pos": first_numpy["state"]["pos"]}}
    return python == first_python and numpy == rest and np.array_equal(*keys)


@cache
def _first_states() -> tuple[object, Any]:
    generator = np.random.RandomState(0)
    return random.Random(0).getstate(), generator.get_state(legacy=False)
