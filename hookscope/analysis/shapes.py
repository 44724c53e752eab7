"""Output shapes, calls and FLOPs of every module, from one forward pass, for the tree."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward_error
from hookscope.execution.isolation import frozen, preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import Layer, describe_model, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.inputs.input_checks import check_noise_shape
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.meta import meta_copy
from hookscope.specs.patterns import ROOT
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors
from hookscope.tensors.signal_safety import signal_safe_contextmanager
from hookscope.tensors.torch_internals import (
    len_dispatch_stack,
    pop_dispatch_mode,
    push_dispatch_mode,
)

log = logging.getLogger("hookscope")


def add_shapes(
    tree: ModuleTree,
    loaded: LoadedModel,
    shape: Sequence[int] | None = None,
    reload: Callable[[], LoadedModel] | None = None,
) -> ModuleTree:
    """Return ``tree`` with the shapes, calls and FLOPs of each module in a forward pass.

    The pass is on the meta device, or with values if the model cannot run there. FLOPs are those
    of ``torch.utils.flop_counter``: matrix products, convolutions and attention, two for each
    multiply-add. Elementwise operations are not counted.

    Args:
        tree: the tree of the model ``loaded``.
        loaded: the model, itself on the meta device or not.
        shape: shape of the noise to run on; None for the model's own input.
        reload: loads the model again, with values, if ``loaded`` is on the meta device.

    Raises:
        InputError: the model's input is not known, or the shape does not fit.
        ForwardError: the pass with values failed too; names the layer.
    """
    if shape is not None:
        check_noise_shape(loaded, tuple(shape))
    value = loaded.example(0) if shape is None else loaded.layout.noise(tuple(shape), 0)
    module = loaded.module
    on_meta = any(parameter.is_meta for parameter in module.parameters())
    try:
        meta_value = _to_device(value, "meta")
        return _with_runs(tree, module if on_meta else meta_copy(module), meta_value)
    except Exception as error:  # code that reads values, such as a detector's, fails there too
        meta_error = error.reason if isinstance(error, _Stopped) else error
    if on_meta and reload:
        module = reload().module
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    prepared = Prepared(
        loaded, module, (), _to_device(value, device), (), 0, device, "", module.training
    )
    with (
        explain_forward_errors(prepared),
        preserve_model_state(module, train=module.training, seed=0),
    ):
        try:
            run = _with_runs(tree, module, prepared.value)
        except _Stopped as stopped:
            failed = forward_error(module, value, stopped.reason)
            failed.tree = stopped.tree
            raise failed from meta_error
    log.info("shapes: from a real run (%s cannot run on the meta device)", loaded.spec)
    return run


@signal_safe_contextmanager
def _counting_flops() -> Iterator[FlopCounterMode]:
    """Count the FLOPs of the block."""
    counter = FlopCounterMode(display=False)
    depth = len_dispatch_stack()
    counter.__enter__()
    mode = counter.mode
    assert mode is not None
    try:
        yield counter
    finally:
        # PyTorch takes a mode off its stack while the mode handles a call. After an interrupt the
        # mode may be missing, and the counter cannot remove it.
        while len_dispatch_stack() > depth:
            pop_dispatch_mode()
        push_dispatch_mode(mode)
        counter.__exit__(None, None, None)


class _Stopped(Exception):
    """A pass that an exception ended: the exception, and the tree of what had run."""

    def __init__(self, reason: Exception, tree: ModuleTree) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.tree = tree


def _to_device(value: Any, device: torch.device | str | None) -> Any:
    return map_tensors(value, lambda path, tensor: tensor.to(device))


def _with_runs(tree: ModuleTree, model: nn.Module, value: Any) -> ModuleTree:
    layers = layers_of(model)
    recorder = Recorder(model, layers, [OUTPUT], sink=ShapeSink())
    failure: Exception | None = None
    with (
        # The counter needs a grad_fn of each parameter that a module is called with and that
        # requires grad.
        frozen(model.parameters()),
        grad_mode(False),
        _counting_flops() as counter,
        recorder as capture,
    ):
        try:
            args, kwargs = as_call(value)
            model(*args, **kwargs)
        except Exception as error:
            failure = error
    if len(recorder.layers) > len(layers):  # ``forward`` added layers
        tree, layers = describe_model(model, tree.model), layers_of(model)
    calls = {executed.module: executed.calls for executed in capture.coverage.executed}
    shapes: dict[str, list[str]] = defaultdict(list)
    for record in capture.records:
        if record.call == 1:
            shapes[record.module].append("x".join(map(str, record.shape)) or "scalar")
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    root = type(model).__name__
    is_counted = not getattr(model, "_hookscope_keeps_dtypes", False)  # a graph of onnxruntime
    runs = {
        x.name: LayerRun(
            calls.get(x.name, 0),
            tuple(shapes[x.name]),
            _flops_of(x, root, flops) if is_counted else None,
        )
        for x in layers
    }
    nodes = tuple(replace(node, run=runs[node.name]) for node in tree.nodes)
    execution = tuple(executed.module for executed in capture.coverage.executed)
    known = ModuleTree(tree.model, nodes, nodes[0], execution, tree.absent)
    if failure is not None:
        raise _Stopped(failure, known) from failure
    return known


def _flops_of(layer: Layer, root: str, flops: Mapping[str, int]) -> int:
    """The FLOPs of a module, which the counter calls by the model's class and one of its names."""
    names = (root if name == ROOT else f"{root}.{name}" for name in (layer.name, *layer.aliases))
    return next((flops[name] for name in names if name in flops), 0)
