"""Sources of models and results, and for each command the least that it can be asked of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.conftest import REPO

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.conv = nn.Conv2d(1, int(width), 3)
        self.norm = nn.BatchNorm2d(int(width))
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Conv2d(int(width), 3, 3)
        self.fc = nn.Linear(48, 3)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        return self.fc(self.drop(self.act(self.last(x))).flatten(1))

    def halves(self, x):
        return self.forward(x) / 2

class Small(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 3), nn.Tanh())

def hook(module, input, output):
    return output * 2
"""
PROGRAM = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item(), int(torch.randint(10**9, ())))
"""


class Source(NamedTuple):
    """What a command is asked about: as it is typed, the options of its input, and a layer."""

    spec: str
    input: str = ""
    layer: str = "conv1"


SOURCES = {
    "python": Source("net.py:Net", "--input pair.npy", "conv"),
    "scripted": Source("sample_models/digits_scripted.pt", "--input image.npy"),
    "exported": Source("sample_models/digits_exported.pt2", "--input image.npy"),
    "onnx": Source("sample_models/digits.onnx", "--input image.npy"),
    "transformers": Source("hf:sample_models/capitals", "--input ids.npy", "lm_head"),
    "program": Source("program.py", "", "0"),
    "weights": Source("sample_models/digits.safetensors"),
    "capture": Source("sample_models/five.safetensors"),
    "features": Source("sample_models/features", "", "fc"),
    "run": Source("sample_models/run", "", "fc1"),
    "fingerprint": Source("sample_models/digits.fp"),
    "nothing": Source(""),
}

_PYTORCH = "python scripted exported transformers"
_MODELS = f"{_PYTORCH} onnx"
_IMAGES = "python scripted exported"
_DATASET = "--input sample_models/digits --workers 0 --size 8"
# By command, and by the sources that it accepts: the words after its name.
_TABLE = {
    "models": {"nothing": "resnet*"},
    "tree": {f"{_MODELS} program weights": "{spec}"},
    "trace": {_MODELS: "{spec} {input}"},
    "memory": {f"{_PYTORCH} program": "{spec} {input}"},
    "filters": {f"{_MODELS} weights": "{spec} {layer} -o out.png"},
    "capture": {_MODELS: "{spec} {input} -o out.safetensors"},
    "grads": {_PYTORCH: "{spec} {input} --loss sum -o out.safetensors"},
    "fingerprint": {_MODELS: "{spec} {input} -o out.fp"},
    "step": {_PYTORCH: "{spec} {input} --loss sum --lr 0.1 -o out.safetensors"},
    "extract": {
        "python scripted onnx": f"{{spec}} {_DATASET} -o out/",
        "transformers": "{spec} --input sentences.txt --layer lm_head --workers 0 -o out/",
    },
    "run": {"program": "-o out {spec}"},
    "check": {f"{_MODELS} weights run": "{spec} {input}"},
    "gradcheck": {"python": "net.py:Small --shape 1x2"},
    "ablate": {_PYTORCH: "{spec} {input} -o out.json"},
    "sweep": {_PYTORCH: "{spec} {input} -o out.json"},
    "lens": {"transformers": "{spec} {input} -o out.json"},
    "attribute": {"transformers": "{spec} {input} --steps 4 -o out.json"},
    "cam": {_IMAGES: "{spec} {input} -o out.png"},
    "diff": {f"{_MODELS} weights capture features run fingerprint": "{spec} {spec} {input}"},
    "similar": {"features": "{spec}"},
    "probe": {"features": "{spec} --labels sample_models/odd.csv --test 0.4"},
    "top": {"features": "{spec} --layer {layer}"},
    "show": {"weights capture features run": "{spec}"},
    "plot": {
        "weights capture run": "{spec} -o out.png",
        "features": "{spec} --layer {layer} -o out.json",
    },
    "report": {"weights capture run": "{spec} -o out.html"},
    "export": {"capture features": "{spec} -o out.npz", "run": "{spec} -o out.csv"},
    "verify": {"features": "{spec}"},
    "config": {"nothing": ""},
    "completion": {"nothing": "bash"},
    "help": {"nothing": "keys"},
}
# They do run, and take minutes: as many passes as there are inputs.
TOO_SLOW = {("gradcheck", "scripted"), ("gradcheck", "exported")}


def _filled(words: str, source: Source) -> str:
    return " ".join(words.format(**source._asdict()).split())


# By command and source: the words after the name of the command.
REQUESTS = {
    (command, source): _filled(words, SOURCES[source])
    for command, groups in _TABLE.items()
    for sources, words in groups.items()
    for source in sources.split()
}


def other_requests() -> dict[tuple[str, str], str]:
    """The same of sources that the command does not accept."""
    return {
        (command, source): _filled(next(iter(groups.values())), about)
        for command, groups in _TABLE.items()
        for source, about in SOURCES.items()
        if (command, source) not in {*REQUESTS, *TOO_SLOW}
        and "{spec}" in next(iter(groups.values()))
        and "nothing" not in (source, *groups)
    }


def write_sources(folder: Path) -> None:
    """Write all sources, and the files that their requests name, to a folder."""
    shutil.copytree(REPO / "sample_models", folder / "sample_models")
    (folder / "net.py").write_text(MODELS, encoding="utf-8")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "sentences.txt").write_text("the capital of Peru\nthe capital of France\n")
    chance = np.random.default_rng(5)
    np.save(folder / "pair.npy", chance.random((2, 1, 8, 8), dtype=np.float32))
    np.save(folder / "image.npy", chance.random((1, 1, 8, 8), dtype=np.float32))
    np.save(folder / "ids.npy", chance.integers(0, 20, (1, 4)))
