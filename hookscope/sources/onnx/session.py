"""Runs the graph of an ONNX file with onnxruntime, and returns the chosen values on the CPU."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from hookscope.errors import EnvironmentFault, ModelError
from hookscope.files.signal_safety import uninterrupted
from hookscope.sources.onnx.dtypes import (
    is_numpy_dtype,
    numpy_dtype,
    onnx_dtype,
    torch_dtype,
)
from hookscope.sources.onnx.file_tensors import ExternalTensor
from hookscope.sources.onnx.graph import Graph
from hookscope.sources.onnx.model_file import SILENT, OnnxFile, first_line, import_onnxruntime

COUNT = "hookscope.size.{}"  # the number of entries of a value
_GIVEN = "hookscope.given.{}"  # the input in the place of a value
_RECORDED = "hookscope.value.{}"  # a value of float16 that is recorded
_HALF = 10  # FLOAT16 in TensorProto.DataType
_DTYPES = ("to", "dtype", "output_dtype")  # attributes that are a type
_INT = 2  # in AttributeProto.AttributeType
# Not a part of what onnxruntime needs.
_UNUSED = ("functions", "metadata_props", "training_info")

_SESSIONS = 2  # kept: one with recorded values and one without, for a check of the output
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_LAST_NODE = 60  # seconds that a node may take after Ctrl-C
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_SPINNING = "session.intra_op.allow_spinning"
_NO_PREPACKING = "session.disable_prepacking"
_HALF_TENSOR = "tensor(float16)"
_FOLDER = "session.model_external_initializers_file_folder_path"
# "[ONNXRuntimeError] : 1 : FAIL : " and "Non-zero status code returned while running ... node."
# It may stand within the message too, after a line of the source.
_CODE = re.compile(r"^(.*onnxruntime_src.*)?\[ONNXRuntimeError\] : \d+ : \w+ : ")
# The line of its source and the function there, or the condition that was false.
_SOURCE = re.compile(
    r"(/onnxruntime_src/\S+ (.*? was false\. |.*?\)(?: const)? (?=[A-Z]))|\b\w+\.(h|cc):\d+ \w+ )"
)
_RUNNING = re.compile(r"while running \w+ node\. Name:'(?P<name>[^']*)' Status Message: ?")


def graph_with_outputs(
    file: OnnxFile, graph: Graph, names: Collection[str], half: Collection[str]
) -> tuple[Any, list[str]]:
    """Return a model that computes these values, and the names of its outputs for them.

    onnxruntime computes most nodes of float16 in float32, and rounds where another kind of node, or
    an output of the graph, needs it. An output between two such nodes would change the values after
    it. So it becomes a sum of one value, a node of that kind, with all other nodes and outputs as
    in the file.
    """
    source = file.proto
    counted = {COUNT.format(name): name for name in graph.producers}
    targets = frozenset(counted.get(name, name) for name in names)
    kept = targets | frozenset(graph.outputs if half else ())
    needed = set(range(len(graph.nodes))) if half else graph.ancestors(kept)
    by_output = {name: node.index for node in graph.nodes for name in node.outputs}
    proto = type(source)()
    for field, value in source.ListFields():
        if field.name not in ("graph", *_UNUSED):
            _set(proto, field, value)
    for field, value in source.graph.ListFields():
        if field.name not in ("node", "output", "initializer", "value_info", "metadata_props"):
            _set(proto.graph, field, value)
    nodes = [
        node
        for node in source.graph.node
        if any(by_output.get(name) in needed for name in node.output)
    ]
    proto.graph.node.extend(nodes)
    used = {name for index in needed for name in graph.nodes[index].inputs} | kept
    unused = {t.name for t in source.graph.initializer if t.name not in used}
    proto.graph.initializer.extend(t for t in source.graph.initializer if t.name in used)
    # Old files list them as inputs too. Without its tensor, such an input would have to be given.
    inputs = [value for value in proto.graph.input if value.name not in unused]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    types = {value.name: value for value in source.graph.output}
    outputs = [
        _RECORDED.format(name) if name in half and name not in types else name for name in names
    ]
    for name in dict.fromkeys([*outputs, *(graph.outputs if half else ())]):
        if name in types:
            proto.graph.output.append(types[name])
        else:
            proto.graph.output.add(name=name)
    for name, output in zip(names, outputs, strict=True):
        if name in counted:
            proto.graph.node.add(op_type="Size", input=[counted[name]], output=[name])
        elif name != output:
            proto.graph.node.add(op_type="Sum", name=output, input=[name], output=[output])
    return proto, outputs


def _read_given(graph: Any, given: Collection[str]) -> None:
    """Let the nodes of a ``GraphProto``, and those in its branches and loops, read the inputs."""
    for node in graph.node:
        for number, name in enumerate(node.input):
            if name in given:
                node.input[number] = _GIVEN.format(name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _read_given(inner, given)


def mentions_float16(graph: Any) -> bool:
    """Whether a ``GraphProto`` has a value of float16, as far as can be seen without inference."""
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(value.type.tensor_type.elem_type == _HALF for value in values)
        or any(tensor.data_type == _HALF for tensor in graph.initializer)
        or any(_makes_float16(attribute) for node in graph.node for attribute in node.attribute)
    )


def _makes_float16(attribute: Any) -> bool:
    """Whether an attribute is the type float16, or has a tensor or a graph with it."""
    is_type = attribute.type == _INT and attribute.name in _DTYPES and attribute.i == _HALF
    graphs = (attribute.g, *attribute.graphs)
    tensors = (attribute.t, *attribute.tensors)
    return (
        is_type
        or any(tensor.data_type == _HALF for tensor in tensors)
        or any(map(mentions_float16, graphs))
    )


def _set(message: Any, field: Any, value: Any) -> None:
    if isinstance(value, str | int | float | bytes):
        setattr(message, field.name, value)
    elif hasattr(value, "extend") or hasattr(value, "__len__"):
        getattr(message, field.name).extend(value)
    else:
        getattr(message, field.name).CopyFrom(value)


class NodeFailed(Exception):
    """onnxruntime could not compute a node."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message)
        self.node = node


class GraphSession:
    """The graph of a file, run with onnxruntime. Copies of a model share it."""

    def __init__(self, file: OnnxFile, graph: Graph, optimize: str) -> None:
        self.file, self._graph, self.optimize = file, graph, optimize
        self._sessions: OrderedDict[tuple[str, ...], tuple[Any, list[str]]] = OrderedDict()
        self._device = torch.device("cpu")

    def compute_on(self, device: torch.device) -> None:
        """Compute on the CPU or on a CUDA device from now on.

        Raises:
            EnvironmentFault: this onnxruntime cannot compute on CUDA devices.
        """
        if device.type == "cuda" and _CUDA not in import_onnxruntime().get_available_providers():
            raise EnvironmentFault(
                "The installed onnxruntime cannot compute on a CUDA device.",
                "Replace it: python -m pip uninstall onnxruntime, then python -m pip install"
                " onnxruntime-gpu. Or leave out --device.",
            )
        if device != self._device:
            self._device = device
            self._sessions.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphSession:
        return self

    def run(self, feeds: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Any]:
        """Return values of the graph for these inputs; one that is not a tensor says what it is."""
        names = tuple(dict.fromkeys(name for name in names if name not in feeds))
        if not names:
            return {}
        runtime = import_onnxruntime()
        session, outputs = self._session(runtime, names)
        return dict(zip(names, _results(runtime, session, outputs, feeds), strict=True))

    def measure(self, feeds: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of entries of values, from a run that returns nothing else of them."""
        counts = self.run(feeds, [COUNT.format(name) for name in names])
        return {name: int(counts[COUNT.format(name)]) for name in names}

    def run_apart(self, feeds: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Any]:
        """Compute each of the ``given`` values, while the nodes after it get the tensor given."""
        runtime = import_onnxruntime()
        proto, names = graph_with_outputs(self.file, self._graph, list(given), ())
        _read_given(proto.graph, given)
        values = {_GIVEN.format(name): tensor for name, tensor in given.items()}
        for name, tensor in values.items():
            kind = proto.graph.input.add(name=name).type.tensor_type
            kind.elem_type = onnx_dtype(tensor.dtype)
            for length in tensor.shape:
                kind.shape.dim.add(dim_value=length)
            kind.shape.SetInParent()
        session = self._open(runtime, proto)
        return dict(zip(given, _results(runtime, session, names, {**feeds, **values}), strict=True))

    def _session(self, runtime: Any, names: tuple[str, ...]) -> tuple[Any, list[str]]:
        """A session that computes these values, and which of its outputs they are."""
        if names in self._sessions:
            self._sessions.move_to_end(names)
            return self._sessions[names]
        own = set(self._graph.outputs)
        half = frozenset() if own.issuperset(names) else self._half
        proto, outputs = graph_with_outputs(self.file, self._graph, names, half)
        self._sessions[names] = self._open(runtime, proto), outputs
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[names]

    @cached_property
    def _half(self) -> frozenset[str]:
        """The values of float16 in the graph, by the rules of onnxruntime."""
        if not mentions_float16(self.file.proto.graph):
            return frozenset()
        names = tuple(self._graph.producers)
        proto, _ = graph_with_outputs(self.file, self._graph, names, ())
        session = self._open(import_onnxruntime(), proto, (_NO_PREPACKING, "1"))
        return frozenset(v.name for v in session.get_outputs() if v.type == _HALF_TENSOR)

    def _open(self, runtime: Any, proto: Any, *entries: tuple[str, str]) -> Any:
        """A session of a model, with these entries of its configuration."""
        options = runtime.SessionOptions()
        options.log_severity_level = SILENT
        level = getattr(runtime.GraphOptimizationLevel, _LEVELS[self.optimize])
        options.graph_optimization_level = level
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        # Threads that wait in a loop for the next run would slow down those of torch.
        options.add_session_config_entry(_SPINNING, "0")
        for key, value in entries:
            options.add_session_config_entry(key, value)
        folder = _data_folder(self.file)
        options.add_session_config_entry(_FOLDER, folder)
        for tensor in proto.graph.initializer:
            if tensor.name in self.file.stored:
                _set_location(tensor, self.file.stored[tensor.name], folder)
        from_memory = [t for t in proto.graph.initializer if t.name in self.file.arrays]
        if from_memory:
            arrays = [
                self.file.arrays[t.name].view(numpy_dtype(t.data_type)).reshape(tuple(t.dims))
                for t in from_memory
            ]
            values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
            options.add_external_initializers([t.name for t in from_memory], values)
        try:
            session = runtime.InferenceSession(
                proto.SerializeToString(), options, providers=self._providers()
            )
        except Exception as error:  # of a type for each of its status codes
            raise ModelError(
                f"onnxruntime cannot run {self.file.path!r}: {_message(error)}",
                "Update it: python -m pip install --upgrade onnxruntime. Or export the model again,"
                " with an older opset_version.",
            ) from error
        if self._device.type == "cuda" and _CUDA not in session.get_providers():
            raise EnvironmentFault(
                "onnxruntime could not load its part for CUDA devices, and would compute on the"
                " CPU.",
                "Install the versions of CUDA and cuDNN that this onnxruntime-gpu was built for,"
                " or leave out --device.",
            )
        return session

    def _providers(self) -> list[Any]:
        """What computes the nodes; the CPU computes those that CUDA has no code for."""
        if self._device.type == "cpu":
            return [_CPU]
        return [(_CUDA, {"device_id": self._device.index or 0, "use_tf32": 0}), _CPU]


def _results(
    runtime: Any, session: Any, names: list[str], feeds: Mapping[str, Tensor]
) -> list[Any]:
    """The named outputs of a session, for those of the feeds that are its inputs."""
    wanted = {value.name for value in session.get_inputs()}
    values = {name: _to_runtime(runtime, t) for name, t in feeds.items() if name in wanted}
    options = runtime.RunOptions()
    options.log_severity_level = SILENT
    try:
        return [_to_torch(value) for value in _run(session, names, values, options)]
    except Exception as error:  # of a type for each of its status codes
        raise _node_failed(error) from error


def _run(session: Any, names: list[str], values: dict[str, Any], options: Any) -> list[Any]:
    """Run a session so that Ctrl-C ends it: Python handles signals on its main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        return list(session.run_with_ort_values(names, values, options))
    results: list[Any] = []
    errors: list[Exception] = []
    # Neither join nor an event: Ctrl-C in their waits can leave a lock held that the thread needs.
    running = threading.Lock()
    running.acquire()

    def work() -> None:
        try:
            results.extend(session.run_with_ort_values(names, values, options))
        except Exception as error:
            errors.append(error)
        finally:
            running.release()

    thread = threading.Thread(target=work, daemon=True)
    try:
        uninterrupted(thread.start)()
        running.acquire()
    except BaseException:
        options.terminate = True  # after the node that runs
        if thread.ident is not None:
            running.acquire(timeout=_LAST_NODE)  # Python must not end while onnxruntime still runs
        raise
    if errors:
        raise errors[0]
    return results


def _data_folder(file: OnnxFile) -> str:
    """The folder of the data files, after links: onnxruntime opens no link out of a folder."""
    folder = os.path.realpath(os.path.dirname(file.path) or ".")
    real = [os.path.realpath(path) for path in file.data_files]
    inside = all(os.path.commonpath((folder, path)) == folder for path in real)
    return folder if inside else os.path.dirname(os.path.realpath(file.path))


def _set_location(tensor: Any, place: ExternalTensor, folder: str) -> None:
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = os.path.relpath(os.path.realpath(place.path), folder)


def _to_runtime(runtime: Any, tensor: Tensor) -> Any:
    tensor = tensor.detach().contiguous()
    number = onnx_dtype(tensor.dtype)
    if is_numpy_dtype(number):
        return runtime.OrtValue.ortvalue_from_numpy(tensor.numpy())
    bits = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16).numpy()
    return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def _to_torch(value: Any) -> Any:
    """A value of onnxruntime as a tensor; None for an optional value that is absent."""
    if not value.has_value():
        return None  # onnxruntime ends the process if it is asked for the type
    if value.is_tensor():
        number = value.element_type()
        if is_numpy_dtype(number):
            array = value.numpy()
            # Of two types of numpy with the size of uint64, torch takes the one of that name.
            array = array.view(numpy_dtype(number))
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        if torch_dtype(number) is not None:
            return from_dlpack(value._ortvalue.to_dlpack()).clone()
    return type(value.data_type(), (), {})()


def _message(error: BaseException) -> str:
    """The message of onnxruntime without its codes and the lines of its source."""
    return first_line(ValueError(_SOURCE.sub("", _CODE.sub("", str(error)))))


def _node_failed(error: Exception) -> NodeFailed:
    text = _CODE.sub("", str(error))
    match = _RUNNING.search(text)
    message = text[match.end() :] if match else text
    return NodeFailed(_message(ValueError(message)), match["name"] if match else "")
