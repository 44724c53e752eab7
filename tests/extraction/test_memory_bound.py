"""A run needs no more memory than its estimate."""

from __future__ import annotations

import gc
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.extraction.shard_writer import ShardFile


class Wide(nn.Module):
    def forward(self, x):
        return x.repeat(1, 77)


def test_the_batches_held_behind_a_slow_disk_fit_into_the_memory(tmp_path, monkeypatch) -> None:
    write, held = ShardFile.write, []

    def slowly(file: ShardFile, first: int, values: dict[str, torch.Tensor]) -> int:
        deadline = time.monotonic() + 300
        while True:  # until the run has waited once because the queue was full
            time.sleep(0.1)
            tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
            wide = [one for one in tensors if one.shape[1:] == (77,) and not one.is_meta]
            results = {one.data_ptr(): one.nbytes for one in wide}
            held.append(sum(results.values()))
            if (
                max(held) >= 4 * sum(one.nbytes for one in values.values())
                or time.monotonic() > deadline
            ):
                break
        return write(file, first, values)

    monkeypatch.setattr(ShardFile, "write", slowly)
    values, memory = torch.rand(64, 1), 7520
    more = {"workers": 0, "layers": ".", "memory": memory}
    done = hookscope.extract(Wide(), tmp_path / "out", input=TensorDataset(values), **more)
    batch = done.manifest["batch"] * 77 * 4
    assert 4 * batch == max(held) <= memory
