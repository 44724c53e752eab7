"""Script and trace torchvision's models, open the files, and compare everything with the original.

python -m tools.scripted_models resnet18 swin_t   # these, one line a file
python -m tools.scripted_models --write           # all, into docs/torchscript-models.md: 40 minutes
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hookscope
from hookscope.execution.verification import first_difference
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.meta import meta_copy
from hookscope.specs.catalog import ModelInfo
from hookscope.specs.patterns import ROOT
from hookscope.tensors.nested import as_call, map_tensors, walk

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torchscript-models.md"
PREFACE = """\
# Scripted and traced torchvision models, compared

Written by `python -m tools.scripted_models --write`; not edited by hand. {models} were
scripted and traced, saved, opened by hookscope, and compared with the model they were made from,
both on one input: outputs of all modules, gradients at those outputs, shares at the inputs,
gradients of the parameters ({versions}, CPU).

- *output bit-equal*: files whose output equals, bit for bit, that of PyTorch's own call of them.
- *modules*: those of the originals that ran; *absent*: those that do not run in the file. Tracing
  leaves out what does nothing, such as StochasticDepth.
- *tensors equal*, *different*: bit for bit.
- *of the file*: gradients of parameters that differ because the file computes them in another way:
  PyTorch's own backward pass through it gives the bits that hookscope gives.
- *otherwise*: tensors without a partner of their name and shape, since the module takes or gives
  another structure in the file. A traced module takes and gives what the rest of the trace uses:
  attention one tensor instead of a pair. A scripted detector returns losses beside detections.
"""
WAYS = {"script": "scripted", "trace": "traced"}
LARGE = 150_000_000  # parameters, of which several copies are held at once
KINDS = ("output", "output.grad", "input.grad", "param.grad")
RESIZING = (
    "fasterrcnn_",
    "maskrcnn_",
    "keypointrcnn_",
    "retinanet_",
    "fcos_",
)  # what they are given
SIDES = (64, 96, 128)  # tried before the side that the model is made for, as small images are quick


@dataclass(frozen=True)
class Comparison:
    """How a scripted or traced file compares with the model it was made from.

    Attributes:
        name: the model.
        task: what it is for.
        way: ``script`` or ``trace``.
        refused: why PyTorch cannot make the file; empty where it can.
        same_output: the output is bit-equal to that of ``torch.jit.load`` and its call.
        modules: how many of the original's modules ran.
        absent: modules that ran in the original and do not in the file.
        equal: tensors (outputs of modules, and gradients) bit-equal to those of the original.
        different: keys of those that are not, nor ``of_the_file``.
        of_the_file: keys of gradients of parameters that differ from the original's, and equal
            those of PyTorch's own backward pass through the file. A trace may call another overload
            of an operator, whose sums are rounded in another way.
        otherwise: keys of the original that the file, though the module runs, has under others: it
            takes or gives another structure.
    """

    name: str
    task: str
    way: str
    refused: str = ""
    same_output: bool = False
    modules: int = 0
    absent: tuple[str, ...] = ()
    equal: int = 0
    different: tuple[str, ...] = ()
    of_the_file: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()

    def __str__(self) -> str:
        start = f"{self.name} {self.way}"
        if self.refused:
            return f"{start}: no file: {self.refused}"
        return (
            f"{start}: output {'equal' if self.same_output else 'DIFFERENT'},"
            f" {self.modules} modules, absent {_some(self.absent)}; {self.equal} tensors equal,"
            f" different {_some(self.different)}, of the file {_some(self.of_the_file)},"
            f" otherwise {_some(self.otherwise)}"
        )


def _some(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({', '.join(names[:2])})" if names else "0"


def compare(name: str, way: str, folder: Path) -> Comparison:
    """Make a file of the model ``name`` in ``folder``, open it, and compare."""
    small = {"min_size": 192, "max_size": 256} if name.startswith(RESIZING) else {}
    loaded = hookscope.load_model(name, model_args=small)
    value, task = small_example(loaded), loaded.task
    file = folder / f"{name}.{way}.pt"
    try:
        save(loaded.module, way, value, file)
    except Exception as error:  # anything, from the compiler
        return Comparison(name, task, way, refused=_gist(error))
    original = record(loaded.module, value)
    del loaded
    ours = hookscope.load_model(file).module
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        same = not first_difference(run(torch.jit.load(file), value), run(ours, value))
    opened = record(ours, value)
    ran, runs = (set(map(_module, tensors)) for tensors in (original, opened))
    shapes = {key: shape for key, (shape, _) in opened.items()}
    shared = {key for key, (shape, _) in original.items() if shapes.get(key) == shape}
    equal = {key for key in shared if original[key] == opened[key]}
    absent = ran - runs
    different = {key: opened[key][1] for key in shared - equal}
    native = parameter_gradients(torch.jit.load(file), value) if different else {}
    file.unlink()
    of_the_file = {key for key, bits in different.items() if native.get(key) == bits}
    return Comparison(
        name,
        task,
        way,
        same_output=same,
        modules=len(ran),
        absent=tuple(sorted(absent)),
        equal=len(equal),
        different=tuple(key for key in original if key in different.keys() - of_the_file),
        of_the_file=tuple(key for key in original if key in of_the_file),
        otherwise=tuple(
            key for key in original if key not in shared and _module(key) not in absent
        ),
    )


def _module(key: str) -> str:
    return key.partition("/")[0].partition(":")[0]


def _gist(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:90] if lines else type(error).__name__


def save(module: nn.Module, way: str, value: Any, file: Path) -> None:
    """Script or trace ``module`` into ``file``."""
    args, _ = as_call(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "script":
            made = torch.jit.script(module)
        else:
            made = torch.jit.trace(module, args, strict=False, check_trace=False)
        made.save(str(file))


def small_example(loaded: LoadedModel) -> Any:
    """An input for the model, of the smallest side it takes; detectors get what they always get."""
    frames = {"video": (8,)}.get(loaded.task, ())
    for side in SIDES if loaded.task in ("classification", "segmentation", "video") else ():
        value = loaded.layout.noise((1, 3, *frames, side, side), 0)
        try:
            meta_copy(loaded.module)(value.to("meta"))
        except Exception:  # of whatever the model says to images that small
            continue
        return value
    return loaded.example_input


def run(module: nn.Module, value: Any) -> Any:
    """Call ``module`` from the same seed each time, on a copy of the input."""
    args, kwargs = as_call(map_tensors(value, lambda path, tensor: tensor.clone()))
    torch.manual_seed(0)
    return module(*args, **kwargs)


def record(module: nn.Module, value: Any) -> dict[str, tuple[torch.Size, str]]:
    """Shape and hash of the outputs and gradients of every module; the loss sums the output."""
    module.zero_grad()
    sink = DigestSink()
    with Recorder(module, layers_of(module), KINDS, model_input=True, sink=sink):
        run_backward(module, value)
    module.zero_grad()
    return sink.digests


class DigestSink(CaptureSink):
    """Keeps the shape and the hash of each tensor: the tensors of a large model take 10 GB.

    Attributes:
        digests: by the key of the tensor.
    """

    adds_gradients = False  # there is one backward pass, so each gradient arrives once

    def __init__(self) -> None:
        super().__init__()
        self.digests: dict[str, tuple[torch.Size, str]] = {}

    def _store_clone(
        self, key: RecordKey, tensor: Tensor, weight_norm: float | None = None
    ) -> Tensor:
        without_data = torch.empty_like(tensor, device="meta")
        record = self.capture.put(without_data, **key.origin(), weight_norm=weight_norm)
        self.digests[record.key] = tensor.shape, digest(tensor)
        return without_data


def parameter_gradients(module: nn.Module, value: Any) -> dict[str, str]:
    """The hashes of the gradients that PyTorch computes without hookscope, by their keys."""
    module.zero_grad()
    run_backward(module, value)
    named = {key_of_parameter(name): weight.grad for name, weight in module.named_parameters()}
    return {key: digest(grad) for key, grad in named.items() if grad is not None}


def key_of_parameter(name: str) -> str:
    """The key of a parameter's gradient in a capture.

    >>> key_of_parameter("fc.weight")
    'fc/weight.grad'
    """
    layer, _, last = name.rpartition(".")
    return f"{layer or ROOT}/{last}.grad"


def run_backward(module: nn.Module, value: Any) -> None:
    """Call ``module``, and differentiate the sum of what it returns."""
    parts = [part for _, part in walk(run(module, value)) if part.is_floating_point()]
    sums = [part.double().sum() for part in parts if part.numel()]
    total = torch.stack(sums).sum() if sums else None
    if total is not None and total.requires_grad:
        total.backward()


def digest(tensor: Tensor) -> str:
    """The hash of a tensor's bits."""
    return sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def compare_all(models: Sequence[ModelInfo]) -> Iterator[Comparison]:
    """Compare each of the models both ways, two files at a time; the largest come last, alone."""
    both = [
        [(m.name, way) for m in models if ((m.parameters or 0) > LARGE) is large for way in WAYS]
        for large in (False, True)
    ]
    context = get_context("spawn")  # a fork of a process with threads may stand still
    for given, workers in zip(both, (2, 1), strict=True):
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            yield from pool.map(_compare_alone, *zip(*given, strict=True)) if given else ()


def _compare_alone(name: str, way: str) -> Comparison:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of models about themselves
    with tempfile.TemporaryDirectory() as folder:
        return compare(name, way, Path(folder))


def table(found: Iterable[Comparison]) -> list[str]:
    """Return the lines of a Markdown table, a row for each task and way."""
    lines = [
        "| models | way | files | output bit-equal | modules | absent | tensors equal | different"
        " | of the file | otherwise |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for one in found:
        groups.setdefault((one.task, one.way), []).append(one)
    for (task, way), all_of in groups.items():
        made = [one for one in all_of if not one.refused]
        cells = (
            f"{len(made)} of {len(all_of)}",
            sum(one.same_output for one in made),
            sum(one.modules for one in made),
            sum(len(one.absent) for one in made),
            sum(one.equal for one in made),
            sum(len(one.different) for one in made),
            sum(len(one.of_the_file) for one in made),
            sum(len(one.otherwise) for one in made),
        )
        numbers = " | ".join(cell if isinstance(cell, str) else f"{cell:,}" for cell in cells)
        lines.append(f"| {task} | {WAYS[way]} | {numbers} |")
    return lines


def document(found: list[Comparison]) -> str:
    """Return the page: the table, what cannot be made, and where anything differs."""
    refused = [f"- {one.name}, {one.way}: {one.refused}" for one in found if one.refused]
    differ = [f"- {one}" for one in found if one.different or not (one.same_output or one.refused)]
    count = len({one.name for one in found})
    versions = f"torch {torch.__version__.partition('+')[0]}, torchvision"
    parts = (
        PREFACE.format(
            models=f"{count} of torchvision's {len(hookscope.models())} models",
            versions=f"{versions} {metadata.version('torchvision')}",
        ).rstrip(),
        "\n".join(table(found)),
        "## Files that PyTorch does not make\n\n" + "\n".join(refused or ["None."]),
        "## Where a value differs\n\n" + "\n".join(differ or ["Nowhere."]),
    )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Compare the models that are named, or all."""
    parser = argparse.ArgumentParser(description="Compare scripted and traced models.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--millions", type=int, help="only models of so many parameters, no video")
    given = parser.parse_args()
    found = []
    chosen = [info for info in hookscope.models() if not given.names or info.name in given.names]
    if given.millions:  # what a machine of 16 GB does in some minutes
        most = given.millions * 10**6
        chosen = [info for info in chosen if info.parameters <= most and info.task != "video"]
    for one in compare_all(chosen):
        print(one, flush=True)
        found.append(one)
    if given.write:
        PAGE.write_text(document(found), encoding="utf-8")


if __name__ == "__main__":
    main()
