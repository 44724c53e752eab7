"""The tree of a model's modules, with the shapes of a pass if they are wanted."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hookscope.errors import ForwardError, HookscopeError, InputError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward_error
from hookscope.execution.isolation import frozen
from hookscope.execution.prepare import Prepared, select_layers
from hookscope.files.shell_words import quote_word
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.words import shape_text
from hookscope.hooks.layers import Layer, check_not_lazy, describe_model, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.inputs.input_checks import check_noise_shape
from hookscope.model_analysis.receptive.field_run import add_fields
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.sources.live import check_model
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.meta import meta_copy
from hookscope.sources.model_loader import load, wrap
from hookscope.sources.model_weights import model_weights
from hookscope.specs.model_spec import ONNX
from hookscope.specs.module_names import parent_of
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import ModelRequest, Request
from hookscope.specs.tensor_key import OUTPUT
from hookscope.specs.weight_options import TreeOptions
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors
from hookscope.tensors.torch_internals import (
    cpu_attention,
    len_dispatch_stack,
    pop_dispatch_mode,
    push_dispatch_mode,
)

log = logging.getLogger("hookscope")


def describe_request(request: Request, options: TreeOptions) -> ModuleTree:
    """Return the modules that a request selects."""
    load_again = partial(load, request.model) if request.model.named else None
    loaded = load_modules(request.model, meta=True)
    selected = select_layers(request.layers, loaded.module, loaded.spec)
    whole = describe_model(loaded.module, loaded.spec)
    known = {node.name for node in whole.modules}
    names = {layer.name for layer in selected}
    if options.shapes or (request.input.shape is not None and not options.receptive):
        try:
            whole = add_shapes(whole, loaded, request.input.shape, load_again)
        except ForwardError as error:
            error.tree = _select_nodes(error.tree, names)
            raise
    if options.receptive:
        whole = add_fields(whole, loaded, request.input.shape, load_again)
    for node in whole.modules:  # modules that ``forward`` added are selected with their parent
        if node.name not in known and parent_of(node.name) in names:
            names.add(node.name)
    return _select_nodes(whole, names)


def initial_weights(request: Request) -> WeightSet:
    """Return the parameters and saved buffers of a model as it is loaded, with random weights."""
    loaded = load_modules(request.model, meta=False)
    return model_weights(loaded.module, loaded.spec, f"weights {loaded.weights.name}")


def load_modules(model: ModelRequest, *, meta: bool, inputs: bool = False) -> LoadedModel:
    """Load a model; one that is given by name without values, if ``meta``; see ``LoadRequest``."""
    if model.named:
        loaded = load(model, meta=meta, inputs=inputs)
    else:
        check_model(model.model)
        loaded = wrap(model.model)
    check_not_lazy(loaded.module)
    return loaded


def _select_nodes(whole: ModuleTree, names: Container[str]) -> ModuleTree:
    return replace(whole, modules=tuple(node for node in whole.modules if node.name in names))


def add_shapes(
    tree: ModuleTree,
    loaded: LoadedModel,
    shape: Sequence[int] | None = None,
    reload: Callable[[], LoadedModel] | None = None,
) -> ModuleTree:
    """Return ``tree`` with the shapes, calls and FLOPs of each module, of a meta pass if possible.

    FLOPs are those of ``torch.utils.flop_counter``: matrix products, convolutions and attention,
    two for each multiply-add; none if PyTorch cannot count an operation, as on nested tensors.
    """
    if shape is not None:
        check_noise_shape(loaded, tuple(shape))
    value = loaded.example(0) if shape is None else loaded.layout.make_noise(tuple(shape), 0)
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
    with explain_forward_errors(prepared), prepared.preserved():
        try:
            run = _with_runs(tree, module, prepared.value)
        except _Stopped:
            try:  # the counter fails where the model does not
                run = _with_runs(tree, module, prepared.value, count=False)
            except _Stopped as stopped:
                if loaded.source == ONNX and shape is None:
                    raise _unfit_example(loaded, stopped.reason) from meta_error
                failed = forward_error(module, value, stopped.reason)
                failed.tree = stopped.tree
                raise failed from meta_error
            log.info("FLOPs: not counted (PyTorch cannot count the operations of %s)", loaded.spec)
    log.info("shapes: from a real run (%s cannot run on the meta device)", loaded.spec)
    return run


def _unfit_example(loaded: LoadedModel, reason: Exception) -> HookscopeError:
    """The error of a graph that fails on an input that was made up for it."""
    if isinstance(reason, HookscopeError):
        return reason
    takes = getattr(loaded.module, "_hookscope_takes", "")
    return InputError(
        f"{loaded.spec} does not run on the input that was made up for it"
        f" ({loaded.example_text}): {str(reason).strip()}",
        f"It needs an input of yours, which capture takes: hookscope capture"
        f" {quote_word(loaded.spec)} --input FILE. Its table has the shapes. With several inputs,"
        f" write --input NAME=FILE for each. {takes}".rstrip(),
    )


@signal_safe_contextmanager
def _counting_flops() -> Iterator[FlopCounterMode]:
    """Count the FLOPs of the block, in which attention is not one operation of transformers."""
    counter = FlopCounterMode(display=False, custom_mapping={cpu_attention: _attention_flops})
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
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
        torch.backends.mha.set_fastpath_enabled(fused)


def _attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **others: Any
) -> int:
    """The FLOPs of the products of queries with keys, and of these with values, by their shapes."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


class _Stopped(Exception):
    """A pass that an exception ended: the exception, and the tree of what had run."""

    def __init__(self, reason: Exception, tree: ModuleTree) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.tree = tree


def _to_device(value: Any, device: torch.device | str | None) -> Any:
    return map_tensors(value, lambda path, tensor: tensor.to(device))


def _with_runs(tree: ModuleTree, model: nn.Module, value: Any, *, count: bool = True) -> ModuleTree:
    layers = layers_of(model)
    recorder = Recorder(model, layers, [OUTPUT], sink=ShapeSink())
    failure: Exception | None = None
    with (
        # The counter needs a grad_fn of each parameter that a module is called with and that
        # requires grad.
        frozen(model.parameters()),
        grad_mode(False),
        _counting_flops() if count else nullcontext() as counter,
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
    shapes: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in capture.records:
        shape = shape_text(record.shape)
        shapes[record.module][record.call].append(shape)
    counts = {} if counter is None else counter.get_flop_counts()
    flops = {name: sum(each.values()) for name, each in counts.items()}
    root = type(model).__name__
    # onnxruntime runs the graph of an ONNX file.
    is_counted = counter is not None and not getattr(model, "_hookscope_keeps_dtypes", False)
    runs = {
        x.name: LayerRun(
            calls.get(x.name, 0),
            tuple(shapes[x.name][1]),
            _flops_of(x, root, flops) if is_counted else None,
            _other_outputs(shapes[x.name]),
        )
        for x in layers
    }
    nodes = tuple(replace(node, run=runs[node.name]) for node in tree.modules)
    execution = tuple(executed.module for executed in capture.coverage.executed)
    known = ModuleTree(tree.model, nodes, nodes[0], execution, tree.absent)
    if failure is not None:
        raise _Stopped(failure, known) from failure
    return known


def _other_outputs(shapes: Mapping[int, list[str]]) -> tuple[str, ...]:
    """The shapes of the calls that differ from the first one, each once."""
    texts = dict.fromkeys(",".join(shapes[call]) for call in sorted(shapes))
    return tuple(text for text in texts if text != ",".join(shapes[1]))


def _flops_of(layer: Layer, root: str, flops: Mapping[str, int]) -> int:
    """The FLOPs of a module, which the counter calls by the model's class and one of its names."""
    names = (root if name == ROOT else f"{root}.{name}" for name in (layer.name, *layer.aliases))
    return next((flops[name] for name in names if name in flops), 0)
