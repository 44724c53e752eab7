"""layer3 of resnet50 from an ONNX file, by hookscope and by a bare session of onnxruntime.

``python -m bench.onnx_file SUBJECT PAIRS`` prints the two times of each pair, in seconds, one pair
a line, after making sure that the two give the same bits. ``recording`` is a run of an opened file.
``capture`` opens the file, runs it and saves the tensors, which for hookscope includes the hash of
the file and statistics. Both are measured in a process that has imported the packages: a bare
session needs no torch, whose import takes longer than all of this. ``process`` is the command as a
process, against the imports alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torchvision
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import hookscope
from bench.processes import HOOKSCOPE, pairs, python
from hookscope.sources.onnx.model_file import SILENT

Arrays = dict[str, NDArray[Any]]
_FOLDER = "session.model_external_initializers_file_folder_path"


def exported(folder: Path) -> Path:
    """Write resnet50 as an ONNX file with its weights beside it."""
    file = folder / "resnet50.onnx"
    model = torchvision.models.resnet50(weights=None).eval()
    torch.onnx.export(model, (torch.randn(1, 3, 224, 224),), file, verbose=False)
    return file


def names_of_outputs(file: Path) -> dict[str, str]:
    """Return the value of the graph for each output of layer3, by its key in a capture."""
    program: Any = hookscope.load_model(file).module._onnx_program
    calls: dict[str, int] = {}
    names = {}
    for call in program.call.walk():
        calls[call.module] = calls.get(call.module, 0) + 1
        if call.module.startswith("layer3."):
            number = f":{calls[call.module]}" if calls[call.module] > 1 else ""
            names[f"{call.module}{number}/output"] = call.outputs[0]
    return names


def bare_session(file: Path, names: dict[str, str]) -> Any:
    """Open the file with these values added to its outputs."""
    proto = onnx.load(file, load_external_data=False)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in set(names.values()))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry(_FOLDER, str(file.parent))
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def run_bare(session: Any, names: dict[str, str], images: torch.Tensor) -> Arrays:
    """Run a session of ``bare_session``."""
    values = session.run(list(names.values()), {"x": images.numpy()})
    return dict(zip(names, values, strict=True))


def seconds(work: Callable[[], object]) -> float:
    """Return how long one go takes, when the threads of the session before have gone to sleep."""
    sleep(0.1)  # they wait for more work in a loop, which takes a core
    start = perf_counter()
    work()
    return perf_counter() - start


def recording(file: Path, images: torch.Tensor, count: int) -> None:
    """Measure runs of the opened file."""
    names = names_of_outputs(file)
    module, session = hookscope.load_model(file).module, bare_session(file, names)

    def ours() -> hookscope.Capture:
        with hookscope.record(module, layers=["layer3.*"]) as capture:
            module(images)
        return capture

    capture, plain = ours(), run_bare(session, names, images)
    check_equal({key: capture[key].numpy() for key in capture}, plain)
    del capture, plain  # no run has another one's values in memory
    for _ in range(count):
        print(seconds(ours), seconds(lambda: run_bare(session, names, images)))


def capturing(file: Path, images: torch.Tensor, count: int) -> None:
    """Measure captures from the file to a file."""
    names = names_of_outputs(file)
    output, plain = file.with_name("ours.safetensors"), file.with_name("plain.safetensors")

    def ours() -> None:
        hookscope.capture(file, layers=["layer3.*"], input=images).save(output)

    def by_hand() -> None:
        values = run_bare(bare_session(file, names), names, images)
        save_file({key: np.ascontiguousarray(value) for key, value in values.items()}, plain)

    ours()
    by_hand()
    check_equal(load_file(output), load_file(plain))
    for _ in range(count):
        print(seconds(ours), seconds(by_hand))


def process(file: Path, images: torch.Tensor, count: int) -> None:
    """Measure the command as a process."""
    image = file.with_name("image.npy")
    np.save(image, images.numpy())
    command = (*HOOKSCOPE, "capture", str(file), "--layer", "layer3.*", "--input", str(image))
    for ours, plain in pairs(command, python("import torch, onnx, onnxruntime"), count):
        print(ours.seconds, plain.seconds)


def check_equal(ours: Arrays, plain: Arrays) -> None:
    """Exit unless both have the same keys and bits."""
    if ours.keys() != plain.keys() or not all(np.array_equal(ours[k], plain[k]) for k in ours):
        sys.exit("the two differ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        subject = {"recording": recording, "capture": capturing, "process": process}[sys.argv[1]]
        subject(exported(Path(made)), torch.randn(1, 3, 224, 224), int(sys.argv[2]))
