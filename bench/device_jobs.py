"""Trainings that are watched and photos that are extracted on a device, beside the same by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hookscope
from bench import photos
from bench.dataset_job import Photos
from bench.training import START, mlp

LossOf = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class DeviceTraining:
    """A training, and the goals for its time with default steps, and with each step, sampled."""

    name: str
    make: Callable[[], tuple[nn.Module, Tensor]]
    loss: LossOf
    amp: bool
    goal: float
    goal_of_each: float


def gpt2() -> nn.Module:
    """Return GPT-2 with random weights."""
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def class_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the cross-entropy of a classifier."""
    target = torch.arange(len(batch), device=batch.device) % 10
    return nn.functional.cross_entropy(model(batch), target)


def language_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the loss of a language model."""
    loss: Tensor = model(batch, labels=batch).loss
    return loss


TRAININGS = (
    DeviceTraining(
        "resnet50, 64 images, AMP",
        lambda: (torchvision.models.resnet50(), torch.randn(64, 3, 224, 224)),
        *(class_loss, True, 1.02, 1.5),
    ),
    DeviceTraining(
        "GPT-2, 4x512 tokens, AMP",
        lambda: (gpt2(), torch.randint(50_000, (4, 512))),
        *(language_loss, True, 1.03, 1.5),
    ),
    DeviceTraining("MLP of 40 layers", mlp, class_loss, False, 1.05, 2.0),
)


def on_device(model: nn.Module, batch: Tensor, device: str) -> tuple[nn.Module, Tensor]:
    """Return both on a device; on the CPU, where all of this only shows that it works, less."""
    if device == "cpu":
        model, batch = model.float(), batch[:2] if batch.is_floating_point() else batch[:2, :16]
    return model.to(device), batch.to(device)


def train(work: DeviceTraining, device: str, steps: int, every: int, *, watched: bool) -> float:
    """Return the seconds of some steps; with ``every`` 0 the default ones are sampled."""
    torch.manual_seed(0)
    model, batch = on_device(*work.make(), device)
    optimizer = torch.optim.AdamW(model.parameters())
    kind = torch.device(device).type

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16, enabled=work.amp and kind != "cpu"):
            loss = work.loss(model, batch)
        loss.backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as folder:
        around: AbstractContextManager[object] = nullcontext()
        if watched:
            around = hookscope.watch(model, optimizer, every=every or None, folder=f"{folder}/run")
        with around:
            for _ in range(2 if every or device == "cpu" else START):
                step()
            synchronize(device)
            begun = perf_counter()
            for _ in range(steps):
                step()
            synchronize(device)
            return perf_counter() - begun


def extract_photos(device: str, count: int, workers: int) -> tuple[float, float]:
    """Return the seconds by hand, and by ``extract``, for photos through resnet50 in bfloat16."""
    with tempfile.TemporaryDirectory() as room:
        source = photos.write(Path(room, "photos"), count)
        begun = perf_counter()
        _by_hand(device, source, Path(room, "plain"), workers)
        between = perf_counter()
        hookscope.extract(
            "resnet50",
            Path(room, "ours"),
            layers="avgpool",
            input=str(source),
            batch=64,
            workers=workers,
            device=device,
            dtype=None if device == "cpu" else "bfloat16",
        )
        return between - begun, perf_counter() - between


def _by_hand(device: str, source: Path, target: Path, workers: int) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = torchvision.models.resnet50().eval().to(device, dtype)
    rows: list[Tensor] = []
    model.avgpool.register_forward_hook(lambda module, inputs, output: rows.append(output))
    loader = DataLoader(
        Photos("resnet50", source), 64, num_workers=workers, pin_memory=device != "cpu"
    )
    with torch.no_grad():
        for images in loader:
            model(images.to(device, dtype, non_blocking=True))
    save_file({"avgpool": torch.cat(rows).cpu()}, target)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
