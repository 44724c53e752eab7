"""Random numbers from a seed, whichever generator they are drawn from, within a block."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded_throughout(seed: int, gpus: Sequence[int] = ()) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and put their states back.

    Args:
        seed: for all of them.
        gpus: indices of the CUDA devices whose generators are seeded too.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed idle devices too
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
