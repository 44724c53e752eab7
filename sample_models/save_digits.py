"""Writes the trained digits CNN as files of the kinds that other people hand out. Try:

    hookscope tree digits_scripted.pt -v
    hookscope capture digits_traced.pt --layer "conv*"
    hookscope grads digits_exported.pt2 --loss kl --target 5
    hookscope tree digits.onnx

They were made by: python save_digits.py

The files say in which source file each line of their code stood. What that file's folder was called
is nobody's business, so it is taken out.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from digits import HERE, example_input, trained
from torch.jit._pickle import build_intlist

PATH = re.compile(r"(?:[A-Za-z]:)?[\\/][^\s\"'()]+[\\/](?=[^\s\"'()]+\.py\b)")  # of a source file
KEPT = re.compile(r".*?(?:[\\/]site-packages[\\/]|(?=[\\/]sample_models[\\/]))[\\/]?")


def main() -> None:
    """Write the files beside this one."""
    model, images = trained(), example_input()
    warnings.simplefilter("ignore")  # torch calls TorchScript deprecated; its files will stay
    torch.jit.script(model).save(str(HERE / "digits_scripted.pt"))
    torch.jit.trace(model, images).save(str(HERE / "digits_traced.pt"))
    torch.export.save(torch.export.export(model, (images,)), HERE / "digits_exported.pt2")
    for file in ("digits_scripted.pt", "digits_traced.pt", "digits_exported.pt2"):
        forget_folders(HERE / file)
    write_onnx(HERE / "digits.onnx")


def write_onnx(path: Path) -> None:
    """Write the trained model as one ONNX file for any number of images."""
    program = torch.onnx.export(
        trained(),
        (example_input(),),
        dynamic_shapes=({0: "batch"},),
        input_names=["image"],
        output_names=["scores"],
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    for owner in (proto, proto.graph, *proto.graph.node):
        for entry in owner.metadata_props:
            entry.value = shortened(entry.value)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def forget_folders(path: Path) -> None:
    """Write an archive anew with shortened paths where it says from which code it was made."""
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            if name.endswith(".debug_pkl"):
                data = pickle.dumps(shortened(pickle.loads(data)), 2)
            elif name.endswith(".json"):
                data = shortened(data.decode()).encode()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


class Numbers(list[int]):
    """A list that PyTorch's own reader takes for one of integers."""

    def __reduce__(self) -> Any:
        return build_intlist, (list(self),)


def shortened(value: Any) -> Any:
    """The value with every path in it cut down to what is the same on every machine."""
    if isinstance(value, list):
        return Numbers(value)
    if isinstance(value, tuple):
        return tuple(map(shortened, value))
    if isinstance(value, str):
        return PATH.sub(lambda found: KEPT.sub("", found[0], count=1), value)
    return value


if __name__ == "__main__":
    main()
