"""The modules of an ONNX file: a tree with a module for each part of the graph.

When the model is called, onnxruntime runs the graph. Each part with hooks is then called with its
inputs and returns its outputs, nested and in order, so hooks fire with the values of the graph.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EditError, InputError, RequestError
from hookscope.escapes import visible
from hookscope.files.words import shape_text
from hookscope.sources.onnx.dtypes import torch_dtype
from hookscope.sources.onnx.graph import Graph, GraphCall
from hookscope.sources.onnx.input_contract import GraphContract
from hookscope.sources.onnx.session import GraphSession, NodeFailed
from hookscope.sources.onnx.value_shapes import RecordedValues, ValueShapes
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.torch_internals import (
    GLOBAL_FORWARD_HOOKS,
    GLOBAL_FORWARD_PRE_HOOKS,
    parse_to,
)

_GIVE_SOURCE = "Give the model that was exported: FILE.py:NAME."


class GraphPart(nn.Module):
    """A part of the graph. Its own attributes have names that no model uses."""

    _hookscope_format = "ONNX"
    _hookscope_source = ""

    def __init__(self) -> None:
        super().__init__()
        self._onnx_operators: list[str] = []
        self._hookscope_unavailable = self._hookscope_note = self._onnx_cut = ""

    def forward(self, *args: Any) -> Any:
        """Return the outputs of the call that the running model makes."""
        if not _running.calls:
            raise RequestError(
                "A part of an ONNX model cannot be called by itself.", "Call the whole model."
            )
        return _running.calls[-1].complete(args)

    def extra_repr(self) -> str:
        """The operators of its own nodes, and the shapes of its own parameters."""
        operators = list(dict.fromkeys(self._onnx_operators))
        if len(operators) > 3 or operators == [type(self).__name__]:
            operators = [f"{len(self._onnx_operators)} nodes"] if len(operators) > 1 else []
        own = self.named_parameters(recurse=False)
        shapes = [f"{name}={shape_text(p.shape, '1')}" for name, p in own]
        return ", ".join([*operators, *shapes])

    def raise_failure(self, message: str) -> None:
        """Raise the error of a node of this part, so that the part is known as what was running."""
        raise RuntimeError(message)


@dataclass(frozen=True)
class GraphProgram:
    """What a model needs to run. Copies of the model share it."""

    graph: Graph
    call: GraphCall
    contract: GraphContract
    session: GraphSession
    shapes: ValueShapes
    absent: Mapping[str, str] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphProgram:
        return self


class GraphModel(GraphPart):
    """The whole graph as a module."""

    _onnx_program: GraphProgram
    _hookscope_keeps_dtypes = True  # the file names a dtype for each input
    _hookscope_computes_shapes = True  # for inputs on the meta device
    _hookscope_is_graph = True
    _onnx_by_depth = False

    @property
    def _hookscope_absent(self) -> Mapping[str, str]:
        """Modules that are not in the file, and what became of each."""
        return self._onnx_program.absent

    @property
    def _hookscope_takes(self) -> str:
        """Its inputs, as a sentence."""
        return self._onnx_program.contract.takes()

    @property
    def _hookscope_variation(self) -> str:
        """Why its output may depend on what is recorded, as two sentences; empty if it does not."""
        level = self._onnx_program.session.optimize
        if level == "none":
            return ""
        return (
            f"With --onnx-optimize {level}, onnxruntime joins nodes, but not across a recorded"
            " value, so the last bits depend on what is recorded. Leave out --onnx-optimize."
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; the output is its only output, or a dict of its outputs by name."""
        program = self._onnx_program
        feeds = program.contract.feeds(args, kwargs)
        parts = {name: part for name, part in self.named_modules() if isinstance(part, GraphPart)}
        hooked = {name for name, part in parts.items() if _has_hooks(part)}
        run = _GraphRun(parts, hooked - {""})
        depths = dict.fromkeys(program.call.outputs, 0)
        order = []
        for name, depth in run.names_within(program.call):
            order.append(name)
            depths[name] = min(depth, depths.get(name, depth))
        order += program.call.outputs
        _running.calls.append(run)
        try:
            if any(tensor.is_meta for tensor in feeds.values()):
                run.take = _without_values(program.shapes, feeds, order)
            else:
                by_depth = depths if self._onnx_by_depth else {}
                values = RecordedValues(program.session, program.shapes, feeds, order, by_depth)
                run.take = values.take
            run.enter(program.call)
            outputs = {name: run.take(name) for name in program.call.outputs}
        except NodeFailed as error:
            parts[self._part_of(error.node)].raise_failure(str(error))
            raise
        finally:
            _running.calls.pop()
        return outputs if len(outputs) != 1 else next(iter(outputs.values()))

    def outputs_of_calls(self) -> dict[tuple[str, int], dict[str, str]]:
        """Return the outputs of each call of a part: the values of the graph by their names here.

        The keys are the name of the part and the number of its call, those inside others last.
        """
        program = self._onnx_program
        calls: Counter[str] = Counter()
        found = {(ROOT, 1): _named_outputs(program.call.outputs, program.call.outputs)}
        for call in program.call.walk():
            if call is not program.call:
                calls[call.module] += 1
                numbers = [str(number) for number in range(len(call.outputs))]
                found[call.module, calls[call.module]] = _named_outputs(call.outputs, numbers)
        return found

    def run_apart(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Compute each of the ``given`` values, while the nodes after it get the tensor given."""
        program = self._onnx_program
        try:
            return program.session.run_apart(program.contract.feeds(args, kwargs), given)
        except NodeFailed as error:
            raise RuntimeError(f"{self._part_of(error.node)}: {error}") from error

    def separate_depths(self) -> None:
        """From now on, compute the values of each depth in a run of its own."""
        # onnxruntime joins no operators if the value between them is asked for.
        self._onnx_by_depth = True

    def _part_of(self, node_name: str) -> str:
        """The name of the innermost part that a node belongs to."""
        for node in self._onnx_program.graph.nodes:
            if node_name and node.name == node_name and node.scope and node.scope.levels:
                return node.scope.levels[-1].name
        return ""

    def train(self, mode: bool = True) -> GraphModel:
        """Raise RequestError for training mode: the graph has the mode of the export."""
        if mode:
            raise RequestError(
                "An ONNX model stays in the mode it was exported in and cannot be switched to"
                " training mode.",
                "Leave out --train.",
            )
        super().train(False)
        return self

    def compute_on(self, device: torch.device) -> None:
        """Compute on a device, as ``GraphSession.compute_on`` does; values stay on the CPU."""
        self._onnx_program.session.compute_on(device)

    def to(self, *args: Any, **kwargs: Any) -> GraphModel:
        """Return itself, or raise RequestError for another dtype or device."""
        device: Any
        dtype: Any
        device, dtype, _, _ = parse_to(*args, **kwargs)
        if dtype is not None or (device is not None and device.type != "cpu"):
            return self._apply(None)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> GraphModel:
        """Raise RequestError: this is what changes dtype and device of a module."""
        raise RequestError(
            "An ONNX model gives values on the CPU, in the dtypes of its file.",
            f"Do not move or convert it. {_GIVE_SOURCE}",
        )


def _named_outputs(values: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The values by the names that their records have."""
    if len(values) == 1:
        return {OUTPUT: values[0]}
    return {f"{OUTPUT}.{name}": value for name, value in zip(names, values, strict=True)}


def accepts(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a model of an ONNX file can be called with these inputs."""
    assert isinstance(model, GraphModel)
    try:
        model._onnx_program.contract.feeds(args, kwargs)
    except InputError:
        return False
    return True


@cache
def part_class(name: str, base: type[GraphPart] = GraphPart) -> type[GraphPart]:
    """Return a class of parts with the name of the class that was exported."""
    members = {"__module__": __name__, "__doc__": base.__doc__, "_hookscope_class": name}
    return type(visible(name.rpartition(".")[2]), (base,), members)


def _has_hooks(part: nn.Module) -> bool:
    everywhere = GLOBAL_FORWARD_HOOKS or GLOBAL_FORWARD_PRE_HOOKS
    return bool(part._forward_hooks or part._forward_pre_hooks or everywhere)


class _GraphRun:
    """One run of the model: the calls of its parts, those with hooks and what is above them."""

    take: Callable[[str], Any]

    def __init__(self, parts: Mapping[str, GraphPart], hooked: set[str]) -> None:
        self._parts, self._hooked = parts, hooked
        prefixes = (name.split(".") for name in hooked)
        self._reached = {".".join(p[: n + 1]) for p in prefixes for n in range(len(p))}
        self._pending: list[tuple[GraphCall, tuple[Any, ...]]] = []
        self._returned: Any = None
        self._returned_versions: list[int] = []

    def names_within(self, call: GraphCall, depth: int = 1) -> Iterator[tuple[str, int]]:
        """Yield the values that ``enter`` takes, in order, and how deep they are in the model."""
        for child in call.children:
            if child.module in self._reached:
                is_hooked = child.module in self._hooked
                yield from ((name, depth) for name in child.inputs if is_hooked)
                yield from self.names_within(child, depth + 1)
                yield from ((name, depth) for name in child.outputs if is_hooked)

    def enter(self, call: GraphCall) -> None:
        """Make the calls within a call."""
        for child in call.children:
            if child.module in self._hooked:
                self._call(child)
            elif child.module in self._reached:
                self.enter(child)

    def _call(self, call: GraphCall) -> None:
        inputs = tuple(self.take(name) for name in call.inputs)
        self._pending.append((call, inputs))
        depth = len(self._pending)
        before = _versions(inputs)
        try:
            output = self._parts[call.module](*inputs)
        finally:
            del self._pending[depth - 1 :]
        unchanged = (before, self._returned_versions) == (_versions(inputs), _versions(output))
        if output is not self._returned or not unchanged:
            raise _changed(call.module)

    def complete(self, args: Sequence[Any]) -> Any:
        """Make the calls within the innermost open call and return its outputs."""
        call, inputs = self._pending[-1]
        if len(args) != len(inputs) or any(a is not b for a, b in zip(args, inputs, strict=True)):
            raise _changed(call.module)
        self.enter(call)
        outputs = tuple(self.take(name) for name in call.outputs)
        self._returned = outputs[0] if len(outputs) == 1 else outputs
        self._returned_versions = _versions(self._returned)
        return self._returned


class _RunningGraph(threading.local):
    """The runs on this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[_GraphRun] = []


_running = _RunningGraph()


def _versions(value: Any) -> list[int]:
    """How often each tensor was changed in place, as far as torch counts it."""
    tensors = value if isinstance(value, tuple) else (value,)
    return [t._version for t in tensors if isinstance(t, Tensor) and not t.is_inference()]


def _changed(name: str) -> EditError:
    return EditError(
        f"A hook changed a value of {name}, which belongs to an ONNX model: onnxruntime computes"
        " the whole graph, so a change has no effect.",
        "Use hooks that return None and leave the tensors as they are. " + _GIVE_SOURCE,
    )


def _without_values(
    shapes: ValueShapes, feeds: Mapping[str, Tensor], order: Sequence[str]
) -> Callable[[str], Tensor]:
    """Return tensors on the meta device of the shapes that are inferred."""
    known = shapes.of(order, {name: tuple(tensor.shape) for name, tensor in feeds.items()})

    def take(name: str) -> Tensor:
        if name in feeds:
            return feeds[name]
        dtype = torch_dtype(known[name][0]) if name in known else None
        if dtype is None:
            raise NotImplementedError(f"the shape of {name!r} is not known before a run")
        return torch.empty(known[name][1], dtype=dtype, device="meta")

    return take
