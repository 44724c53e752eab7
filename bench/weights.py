"""Two files of weights of some gigabytes, compared."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.processes import Cost, pairs

BY_HAND = Path(__file__).with_name("weights_by_hand.py")
BLOCK = (1024, 4096)  # entries of a tensor of float32: 16 MiB
LARGE, SMALL = 120, 6  # tensors: 2 GB, 100 MB
DIFF = (sys.executable, "-c", "import sys, hookscope; hookscope.diff(*sys.argv[1:])")


def write(path: Path, count: int, change: float) -> None:
    """Write ``count`` tensors of normally distributed numbers, each with a little added."""
    size = BLOCK[0] * BLOCK[1] * 4
    table = {
        f"layers.{n}.weight": {
            "dtype": "F32",
            "shape": BLOCK,
            "data_offsets": [n * size, (n + 1) * size],
        }
        for n in range(count)
    }
    header = json.dumps(table).encode()
    values = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for n in range(count):
            file.write((np.roll(values, n) * np.float32(1 + n * change)).tobytes())


def comparing(count: int) -> list[tuple[Cost, Cost]]:
    """Compare two files of 2 GB with ``hookscope.diff`` and by hand, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(_written(folder, LARGE, change)) for change in (0.0, 1e-4)]
        return pairs((*DIFF, *files), (sys.executable, str(BY_HAND), *files), count)


def growing(count: int) -> list[tuple[Cost, Cost]]:
    """Compare two files of 2 GB, and two of 100 MB, with ``hookscope.diff``, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = (
            [str(_written(folder, size, change)) for change in (0.0, 1e-4)]
            for size in (LARGE, SMALL)
        )
        return pairs((*DIFF, *large), (*DIFF, *small), count)


def _written(folder: str, count: int, change: float) -> Path:
    path = Path(folder, f"{count}-{change:g}.safetensors")
    write(path, count, change)
    return path
