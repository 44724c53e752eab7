"""Rows of a Dataset in a Python file, through ``extract`` and through a loop by hand.

``python -m bench.own_dataset`` prints the seconds of both, pair by pair. An item is an array that
is scaled and made a tensor, as in a Dataset of measurements.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from runpy import run_path
from time import perf_counter

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

import hookscope

COUNT, BATCH, WORKERS, PAIRS = 40_000, 64, 1, 3
OWN = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self):
        self.values = np.random.default_rng(0).normal(size=(40_000, 256)).astype(np.float32)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        row = self.values[i]
        return torch.from_numpy((row - row.mean()) / row.std())

rows = Rows()

def net():
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
"""


def _by_hand(home: Path, target: Path) -> None:
    own = run_path(str(home / "own.py"))
    torch.manual_seed(0)
    kept: dict[str, Tensor] = {}
    network = own["net"]().eval()
    network[0].register_forward_hook(lambda module, inputs, output: kept.update({"0": output}))
    parts = []
    with torch.no_grad():
        for batch in DataLoader(own["rows"], BATCH, num_workers=WORKERS):
            network(batch)
            parts.append(kept["0"])
    save_file({"0": torch.cat(parts)}, target)


def main() -> None:
    """Print the seconds of both, after a first pair that is not counted."""
    with tempfile.TemporaryDirectory() as room:
        home = Path(room)
        (home / "own.py").write_text(OWN)
        file = home / "own.py"
        for pair in range(-1, PAIRS):
            begun = perf_counter()
            hookscope.extract(
                f"{file}:net",
                home / f"ours{pair}",
                layers="0",
                input=f"{file}:rows",
                batch=BATCH,
                workers=WORKERS,
            )
            between = perf_counter()
            _by_hand(home, home / f"plain{pair}")
            if pair >= 0:
                print(between - begun, perf_counter() - between)


if __name__ == "__main__":
    main()
