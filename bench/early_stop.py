"""Capturing an early layer of a model from one's own file, which ends the run after it.

``python -m bench.early_stop PAIRS`` prints the two times of each pair, in seconds of the processor
on one thread, one pair a line, after making sure that the two do the same.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

import hookscope

CODE = """
import torchvision


def net():
    return torchvision.models.resnet50(weights=None)
"""


@contextmanager
def own_file() -> Iterator[str]:
    """Yield the spec of a model in a file of its own, which names no classes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.py"
        path.write_text(CODE, encoding="utf-8")
        yield f"{path}:net"


def by_hand(spec: str, images: Tensor) -> Tensor:
    """Return the output of layer1, cloned as it was returned; the whole model runs."""
    members: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(Path(spec.removesuffix(":net")).read_text(encoding="utf-8"), members)
    torch.manual_seed(0)
    model = members["net"]().eval()
    kept: list[Tensor] = []
    module = model.get_submodule("layer1")
    module.register_forward_hook(lambda module, inputs, output: kept.append(output.clone()))
    with torch.no_grad():
        model(images)
    return kept[0]


def by_hookscope(spec: str, images: Tensor) -> Tensor:
    """Return the same by the capture of the command line."""
    return hookscope.capture(spec, layers="layer1", input=images, stop=None)["layer1"]


def main(pairs: int) -> None:
    """Measure ``pairs`` pairs after one of each that does not count."""
    torch.set_num_threads(1)
    images = torch.randn(28, 3, 224, 224)  # 17 MB: for smaller inputs the model runs whole
    with own_file() as spec:
        if not torch.equal(by_hookscope(spec, images), by_hand(spec, images)):
            sys.exit("the two differ")
        for _ in range(pairs):
            took = []
            for work in (by_hookscope, by_hand):
                begun = process_time()
                work(spec, images)
                took.append(process_time() - begun)
            print(*took)


if __name__ == "__main__":
    main(int(sys.argv[1]))
