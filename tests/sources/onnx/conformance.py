"""Runs the conformance tests of the package onnx, each with hookscope and with onnxruntime alone.

``python -m tests.sources.onnx.conformance KIND START`` prints two lines of JSON for each test from
number ``START`` on: its name before it runs, and then a ``Finding``. A process of its own shows a
fault that ends it.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from torch import Tensor

import hookscope
from hookscope.errors import ForwardError, HookscopeError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
_SILENT = 4
_NODE_FAILED = RuntimeError  # what hookscope raises for a node that onnxruntime cannot compute
# Types of torch that numpy lacks.
_OTHER = {
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: torch.float8_e8m0fnu,
}
_FOUR_BITS = [f"tensor({kind})" for kind in ("int4", "uint4", "int2", "uint2")]
_WITHOUT_TORCH = ["tensor(string)", *_FOUR_BITS]


@dataclass
class Finding:
    """What a test showed.

    Attributes:
        name: the test.
        problems: what is wrong, as texts.
        equal: the number of tensors that onnxruntime returned and that hookscope recorded.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    equal: int = 0


def examine(case: Any, folder: Path) -> Finding:
    """Open the graph of a test, list it, infer its shapes, and run it on the inputs of the test."""
    found = Finding(case.name)
    path = str(folder / "net.onnx")
    data, values = _graph_and_inputs(case)
    Path(path).write_bytes(data)
    _attempt(found, hookscope.tree, path)
    _attempt(found, hookscope.tree, path, shapes=True)
    infos = {value.name: value.type for value in onnx.load_from_string(data).graph.input}
    tensors = {
        name: _tensor(value, infos[name].tensor_type.elem_type) for name, value in values.items()
    }
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(feeds) < len(values):
        _attempt(found, hookscope.capture, path)
        return found
    shot = _attempt(found, hookscope.capture, path, input=feeds if feeds else ())
    try:
        expected = _outputs_alone(path, feeds)
    except Exception as error:  # onnxruntime lacks an operator, or a node fails
        if shot is not None:
            found.problems.append(f"runs although onnxruntime raises {error}")
        return found
    if shot is None:
        found.problems.append("onnxruntime runs it")
        return found
    recorded = shot.output if len(expected) > 1 else dict.fromkeys(expected, shot.output)
    for name, output in expected.items():
        got = recorded.get(name) if isinstance(recorded, dict) else None
        if output is not None and (not isinstance(got, Tensor) or _bits(got) != output):
            found.problems.append(f"{name} differs from that of onnxruntime")
        found.equal += output is not None
    return found


def _attempt(found: Finding, function: Any, *args: Any, **options: Any) -> Any:
    """The result of a call; None after an error, which is a problem if it is not one for users."""
    try:
        return function(*args, **options)
    except HookscopeError as error:
        if isinstance(error, ForwardError) and type(error.exception) is not _NODE_FAILED:
            found.problems.append(f"{function.__name__}: {error}")
    except Exception as error:
        found.problems.append(f"{function.__name__}: {type(error).__name__}: {error}")
    return None


def _graph_and_inputs(case: Any) -> tuple[bytes, Mapping[str, Any]]:
    """The file of a test, and its inputs by name."""
    if case.model is not None:
        data, values = case.model.SerializeToString(), case.data_sets[0][0]
    elif case.model_dir is not None:
        data = Path(case.model_dir, "model.onnx").read_bytes()
        folder = Path(case.model_dir, "test_data_set_0")
        count = len(list(folder.glob("input_*.pb")))
        values = [(folder / f"input_{n}.pb").read_bytes() for n in range(count)]
    else:  # a large model, which makes its weights when it runs
        data = (Path(onnx.__file__).parents[1] / case.url).read_bytes()
        graph = onnx.load_from_string(data).graph
        given = {tensor.name for tensor in graph.initializer}
        shapes = {
            value.name: [length.dim_value for length in value.type.tensor_type.shape.dim]
            for value in graph.input
            if value.name not in given
        }
        return data, {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    names = [value.name for value in onnx.load_from_string(data).graph.input]
    return data, dict(zip(names, values, strict=False))


def _tensor(value: Any, dtype: int) -> Tensor | None:
    """An input of a test; None if it is not a tensor of a type of torch."""
    if isinstance(value, bytes) and dtype:
        value = TensorProto.FromString(value)
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not dtype or not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.array(value)
    if dtype in _OTHER:
        bits = torch.from_numpy(array.reshape(-1).view(f"u{array.itemsize}"))
        return bits.view(_OTHER[dtype]).reshape(array.shape)
    is_known = dtype <= TensorProto.COMPLEX128 and array.dtype.kind in "biufc"
    return torch.from_numpy(array) if is_known else None


def _outputs_alone(path: str, feeds: Mapping[str, Tensor]) -> dict[str, Any]:
    """Shape and bits of each output of a bare session; None for those that torch cannot hold."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _SILENT
    session = onnxruntime.InferenceSession(path, options)
    names = [value.name for value in session.get_outputs()]
    values = {name: _for_runtime(tensor) for name, tensor in feeds.items()}
    results = session.run_with_ort_values(names, values)
    return {name: _bits_alone(value) for name, value in zip(names, results, strict=True)}


def _for_runtime(tensor: Tensor) -> onnxruntime.OrtValue:
    number = next((n for n, dtype in _OTHER.items() if dtype is tensor.dtype), None)
    if number is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
    bits = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16).numpy()
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def _bits_alone(value: onnxruntime.OrtValue) -> tuple[tuple[int, ...], bytes] | None:
    if not value.has_value() or not value.is_tensor() or value.data_type() in _WITHOUT_TORCH:
        return None
    size = value.tensor_size_in_bytes()
    return tuple(value.shape()), ctypes.string_at(value.data_ptr(), size) if size else b""


def _bits(tensor: Tensor) -> tuple[tuple[int, ...], bytes]:
    tensor = tensor.contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return tuple(tensor.shape), data


def examine_in_processes(kind: str) -> list[Finding]:
    """Examine all tests of a kind. One that ends the process is found, and the others go on."""
    found: list[Finding] = []
    while True:
        command = [sys.executable, "-m", __name__, kind, str(len(found))]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found += [Finding(**line) for line in lines if "problems" in line]
        if not done.returncode:
            return found
        if not lines or "problems" in lines[-1]:
            raise RuntimeError(done.stderr)
        found.append(Finding(lines[-1]["name"], [f"it ended the process: {done.returncode}"]))


def main(kind: str, start: int) -> None:
    """Print what the tests of a kind show, from a number on."""
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(_SILENT)
    with tempfile.TemporaryDirectory() as folder:
        for case in load_model_tests(kind=kind)[start:]:
            print(json.dumps({"name": case.name}), flush=True)
            print(json.dumps(asdict(examine(case, Path(folder)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
