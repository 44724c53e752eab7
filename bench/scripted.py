"""A scripted file beside the model it was made from: recording it, and opening it.

Prints the two times of each pair, in seconds, one pair a line.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

import hookscope
from bench.in_process import by_hookscope, seconds
from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.module_builder import build_module
from hookscope.sources.torchscript.script_archive import ScriptArchive


def scripted(model: nn.Module, folder: Path) -> Path:
    """Write ``model`` as a scripted file."""
    file = folder / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.script(model).save(str(file))
    return file


def recording(folder: Path) -> None:
    """Record 23 layers of resnet50, opened from a scripted file and as it was built."""
    eager = hookscope.load_model("resnet50").module
    opened = hookscope.load_model(scripted(eager, folder)).module
    images = torch.randn(1, 3, 224, 224)
    ours, plain = by_hookscope(opened, images), by_hookscope(eager, images)
    if list(ours) != list(plain) or not all(map(torch.equal, ours.values(), plain.values())):
        sys.exit("the two recordings differ")
    for pair in range(-3, 20):
        both = seconds(by_hookscope, opened, images), seconds(by_hookscope, eager, images)
        if pair >= 0:
            print(*both)


def opening(folder: Path, name: str) -> None:
    """Build the modules of a model, once its file is loaded, and load that file twice."""
    file = scripted(hookscope.load_model(name).module, folder)
    device = torch.device("cpu")

    def load() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.load(file)

    for pair in range(-1, 3):
        loaded = private.open_archive(str(file), device)
        building = timed(partial(build_module, loaded, archive=ScriptArchive(str(file))))
        twice = timed(load) + timed(load)
        if pair >= 0:
            print(building, twice)


def timed(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if sys.argv[1] == "recording":
            recording(Path(made))
        else:
            opening(Path(made), sys.argv[2])
