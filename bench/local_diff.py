"""``diff(local=True)`` beside one forward pass of each of the two models.

``python -m bench.local_diff NAME FLOOR PAIRS`` prints the seconds of each pair, one pair a line.
NAME is ``resnet50`` or ``llama``; FLOOR is ``none`` or ``float64``. One weight of B differs, and
the comparison must name its module.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope
from hookscope.results.local_diff import LocalDiff

Inputs = dict[str, Tensor]


def resnet50() -> tuple[nn.Module, Inputs, str]:
    """Return the model, 16 images, and the name of the module that will differ."""
    model = torchvision.models.resnet50().eval()
    return model, {"x": torch.randn(16, 3, 224, 224)}, "layer3.2.conv2"


def llama() -> tuple[nn.Module, Inputs, str]:
    """Return a language model of 12 layers, 4 prompts of 256 tokens, and a name."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    return model, {"input_ids": torch.randint(2048, (4, 256))}, "model.layers.7.mlp.up_proj"


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs, str]]] = {
    "resnet50": resnet50,
    "llama": llama,
}


def main(name: str, floor: str, pairs: int) -> None:
    """Measure ``pairs`` pairs after one that does not count."""
    torch.manual_seed(0)
    a, inputs, changed = MODELS[name]()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.get_submodule(changed).get_parameter("weight")[0] *= 1.01

    def by_hand() -> None:
        with torch.no_grad():
            a(**inputs)
            b(**inputs)

    def by_hookscope() -> None:
        found = hookscope.diff(a, b, input=inputs, local=True, floor=floor)
        assert isinstance(found, LocalDiff)
        if found.faults[0].module != changed:
            sys.exit(f"{found.faults[0].key} was named, not {changed}")

    for pair in range(-1, pairs):
        times = []
        for work in (by_hookscope, by_hand):
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        if pair >= 0:
            print(*times)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
