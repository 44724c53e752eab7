"""The error that each part of an ONNX file makes by itself, with A's values everywhere else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.prepare import Prepared
from hookscope.model_analysis.diff.own_errors import CallId, OwnErrors
from hookscope.model_analysis.diff.record_stream import list_records
from hookscope.results.records import Record
from hookscope.sources.onnx.graph_modules import GraphModel
from hookscope.specs.tensor_key import OUTPUT

_INTEGERS = "its output is quantized in B, to integers"


def own_errors_of_graph(
    teacher: Prepared, student: Prepared, pairs: Iterable[tuple[Record, Record]]
) -> dict[CallId, OwnErrors]:
    """Return what the parts of an ONNX file do by themselves, from one run of its graph.

    The graph is cut at the outputs of ``pairs``, records of the teacher and of the file. A value
    that several parts return, one inside the other, is that of the innermost.
    """
    graph = student.module
    assert isinstance(graph, GraphModel)
    values = graph.outputs_of_calls()
    depth = {call: number for number, call in enumerate(values)}
    found: dict[CallId, OwnErrors] = defaultdict(OwnErrors)
    innermost: dict[str, tuple[Record, Record]] = {}
    for a, b in sorted(pairs, key=lambda pair: depth[pair[1].module, pair[1].call]):
        own = found[a.module, a.call]
        if holds_codes(a, b):
            own.reason = _INTEGERS
        elif math.prod(a.shape) != math.prod(b.shape):
            own.errors[a.key] = math.inf
            own.unmatched.append(a.key)
        elif b.what in values[b.module, b.call]:
            innermost[values[b.module, b.call][b.what]] = a, b
    keys = {a.key for a, _ in innermost.values()}
    tensors: dict[str, Tensor] = {}

    def keep(record: Record, tensor: Tensor) -> None:
        if record.key in keys:
            tensors[record.key] = tensor.clone()

    list_records(teacher, {OUTPUT}, 0, keep)
    given = {
        value: tensors[a.key].to("cpu", getattr(torch, b.dtype)).reshape(b.shape)
        for value, (a, b) in innermost.items()
        if a.key in tensors
    }
    for value, result in _run_apart(student, graph, given).items():
        a, _ = innermost[value]
        found[a.module, a.call].add(a.key, tensors[a.key], result.reshape(a.shape))
    return dict(found)


def holds_codes(a: Record, b: Record) -> bool:
    """Return whether B has plain integers where A has floating-point numbers: codes of them."""
    return "float" in a.dtype and b.dtype.startswith(("int", "uint"))


def _run_apart(
    student: Prepared, graph: GraphModel, given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    args, kwargs = student.fresh_call()
    try:
        return graph.run_apart(args, kwargs, given)
    except RuntimeError as error:
        raise RequestError(
            f"B: onnxruntime cannot run the graph in parts: {error}",
            "Leave out --local and --floor; diff names the first module that differs.",
        ) from error
