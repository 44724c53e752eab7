"""Seeding of all random generators within a block."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from hookscope.tensors.signal_safety import signal_safe_contextmanager
from hookscope.tensors.threads import exclusive_run


@signal_safe_contextmanager
def seeded_torch(seed: int, gpus: Sequence[int] = ()) -> Iterator[None]:
    """Seed torch's generators, of the CPU and of GPUs by their index; restore their states.

    All threads share the generators: another thread that seeds them waits until the block ends.
    """
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
    """Seed the generators of torch, numpy and Python; restore their states.

    Another thread that seeds them waits until the block ends.

    Args:
        seed: for all of them.
        gpus: indices of the CUDA devices whose generators are seeded too.
    """
    with seeded_torch(seed, gpus):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
