"""Whole datasets: hookscope beside the same by hand, by torchlens, and in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from bench import photos
from bench.processes import HOOKSCOPE, Cost, cost

Command = tuple[str, ...]

PAIRS = 3
STAGES = "layer1,layer2,layer3,layer4,avgpool"
JOB = "bench.dataset_job"
ONE: Command = (sys.executable,)
RANKS: Command = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")

TINY = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)

def example_input():
    return torch.zeros(1, 3, 16, 16)
"""


def jobs(
    count: int, model: str, layers: str, plain: str, ours: Command = ONE
) -> list[tuple[float, float]]:
    """Run the job of ``bench.dataset_job`` as hookscope does it and otherwise, in turn.

    Args:
        count: how many photos.
        model: name of a model.
        layers: names of layers, with commas.
        plain: the other way.
        ours: how hookscope's processes are started.

    Returns:
        Seconds of each pair.
    """
    with tempfile.TemporaryDirectory() as room:
        source = photos.write(Path(room, "photos"), count)
        measured = []
        for pair in range(PAIRS):
            targets = [Path(room, f"{side}-{pair}") for side in ("ours", "plain")]
            both = zip((ours, ONE), ("hookscope", plain), targets, strict=True)
            mine, theirs = (
                _seconds((*how, "-m", JOB, way, model, layers, str(source), str(target)))
                for how, way, target in both
            )
            measured.append((mine, theirs))
            if pair == 0:
                _demand_same(count, layers.split(","), *targets)
        return measured


def _seconds(command: Command) -> float:
    """What the processes of a command say that it took, from when the last of them was ready.

    They end together. What an earlier one says has its waiting for the others in it.
    """
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return min(float(line) for line in done.stdout.split())


def _demand_same(count: int, layers: Sequence[str], ours: Path, plain: Path) -> None:
    """Demand the same values of two folders; threads of another number may round otherwise."""
    import torch

    for layer in layers:
        mine, theirs = _rows(ours, layer), _rows(plain, layer)
        atol = 1e-5 * float(theirs.abs().max())  # a sum near zero rounds as its addends do
        if mine.shape[0] != count or not torch.allclose(mine, theirs, rtol=1e-3, atol=atol):
            sys.exit(f"{layer} differs between {ours.name} and {plain.name}")


def _rows(folder: Path, layer: str):  # type: ignore[no-untyped-def]
    """What the files of a folder hold of a layer, in their order."""
    import torch
    from safetensors.torch import load_file

    files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    names = [key for file in files for key in file if key.split("/")[0].split(":")[0] == layer]
    return torch.cat([file[key] for file in files for key in file if key in set(names)])


def growing() -> Iterator[tuple[Cost, Cost]]:
    """Measure a run over 20,000 small images against one over 2,000, once."""
    with tempfile.TemporaryDirectory() as room:
        Path(room, "tiny.py").write_text(TINY)
        model = str(Path(room, "tiny.py"))
        costs = []
        for count in (20_000, 2_000):
            source = photos.write(Path(room, str(count)), count, 24, 24)
            target = str(Path(room, f"features-{count}"))
            words = ("extract", model, "--layer", "conv", "--batch", "64", "--input", str(source))
            costs.append(cost((*HOOKSCOPE, *words, "-o", f"{target}/")))
        yield costs[0], costs[1]


def main() -> None:
    """Write a gigabyte as shards with their checksums and as one file, in turn; print seconds.

    Both times end when the bytes are on the disk.
    """
    import torch

    from hookscope.extraction.shard_writer import (
        BackgroundWriter,
        PendingBatch,
        Shard,
        ShardFile,
        StoredColumn,
    )
    from hookscope.stores.features.location import Location

    batch, shard, rows = 64, 256, 1280
    stored = [StoredColumn(f"layer{i}/output", (64, 28, 28), torch.float32) for i in range(4)]
    values = {one.key: torch.rand(batch, *one.shape) for one in stored}

    def ours(folder: Path) -> None:
        with BackgroundWriter(
            Location(str(folder)), lambda place, s: ShardFile(place, s, stored)
        ) as writing:
            for row in range(0, rows, batch):
                first = row // shard * shard
                lines = [{"row": i} for i in range(row, row + batch)]
                numbers = range(row, row + batch)
                writing.put(PendingBatch(Shard(first, first + shard), numbers, values, lines))

    def plain(folder: Path) -> None:
        with (folder / "values").open("wb") as file:
            for _ in range(0, rows, batch):
                for tensor in values.values():
                    file.write(tensor.numpy().data)

    for pair in range(-1, 11):
        took = []
        for write in (ours, plain):
            with tempfile.TemporaryDirectory() as folder:
                begun = perf_counter()
                write(Path(folder))
                for path in Path(folder).glob("*"):
                    _sync(path)
                took.append(perf_counter() - begun)
        if pair >= 0:
            print(*took)


def _sync(path: Path) -> None:
    if path.is_file():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
