"""A few images of a model in memory: what ``extract`` does before and after it runs the model.

``python -m bench.small_dataset`` prints the seconds of ``extract`` and of a loop by hand, pair by
pair. Both have run once before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookscope

COUNT, PAIRS = 16, 5


def _by_hand(model: nn.Module, images: TensorDataset, target: Path) -> None:
    rows: list[Tensor] = []
    handle = model.get_submodule("avgpool").register_forward_hook(
        lambda module, inputs, output: rows.append(output.clone())
    )
    with torch.inference_mode():
        for (batch,) in DataLoader(images, COUNT, num_workers=1):
            model(batch)
    handle.remove()
    save_file({"avgpool": torch.cat(rows)}, target)


def main() -> None:
    """Print the seconds of both, after a first pair that is not counted."""
    model = torchvision.models.resnet18().eval()
    images = TensorDataset(torch.randn(COUNT, 3, 224, 224))
    with tempfile.TemporaryDirectory() as room:
        for pair in range(-1, PAIRS):
            begun = perf_counter()
            folder = Path(room, f"ours{pair}")
            hookscope.extract(model, folder, layers="avgpool", input=images, batch=COUNT, workers=1)
            between = perf_counter()
            _by_hand(model, images, Path(room, f"plain{pair}"))
            if pair >= 0:
                print(between - begun, perf_counter() - between)


if __name__ == "__main__":
    main()
