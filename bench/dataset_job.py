"""One way of taking what layers give for a folder of photos to a folder of files.

``python -m bench.dataset_job WAY MODEL LAYER,LAYER PHOTOS FOLDER`` prints the seconds that it took
once everything was imported, from the name of the model to the last file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hookscope

BATCH, WORKERS = 8, 1


class Photos(Dataset[Tensor]):
    """The photos of a folder, as the model wants them."""

    def __init__(self, model: str, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())
        self.prepare = torchvision.models.get_model_weights(model).DEFAULT.transforms()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        prepared: Tensor = self.prepare(Image.open(self.paths[i]).convert("RGB"))
        return prepared


def by_hookscope(model: str, layers: Sequence[str], photos: Path, folder: Path) -> None:
    """As hookscope does it."""
    hookscope.extract(
        model,
        folder,
        layers=layers,
        input=str(photos),
        batch=BATCH,
        workers=WORKERS,
    )


def by_hand(model: str, layers: Sequence[str], photos: Path, folder: Path) -> None:
    """As one would write it: worker processes, no graph, no copies, a file for each batch."""
    network = _network(model)
    kept: dict[str, Tensor] = {}
    for layer in layers:
        network.get_submodule(layer).register_forward_hook(
            lambda module, inputs, output, layer=layer: kept.update({layer: output})
        )
    folder.mkdir()
    with torch.no_grad():
        for i, images in enumerate(DataLoader(Photos(model, photos), BATCH, num_workers=WORKERS)):
            network(images)
            save_file(kept, folder / f"{i:05d}.safetensors")


def by_torchlens(model: str, layers: Sequence[str], photos: Path, folder: Path) -> None:
    """As torchlens does it, which leaves reading to its caller: the same worker process."""
    import torchlens

    stimuli = DataLoader(Photos(model, photos), batch_size=None, num_workers=WORKERS)
    torchlens.extract_dataset(
        _network(model), stimuli, list(layers), BATCH, output_dir=folder, progress=False
    )


def _network(model: str) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = torchvision.models.get_model(model, weights=None)
    return network.eval()


WAYS = {"hookscope": by_hookscope, "hand": by_hand, "torchlens": by_torchlens}

if __name__ == "__main__":
    way, name, names, source, target = sys.argv[1:]
    if way == "torchlens":
        import torchlens  # noqa: F401
    hookscope.extract  # noqa: B018 - which imports it
    begun = perf_counter()
    WAYS[way](name, names.split(","), Path(source), Path(target))
    sys.stdout.write(f"{perf_counter() - begun}\n")  # at once: several processes write here
