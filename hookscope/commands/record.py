"""Record the layers of a module that runs in a ``with`` block."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from hookscope.errors import LayerError, RequestError
from hookscope.execution.prepare import usable_device
from hookscope.execution.provenance import versions
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import select
from hookscope.hooks.op_recorder import is_graph, record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import DeviceSink
from hookscope.sources.live import check_model, hookable
from hookscope.sources.structure import unchanged_structure
from hookscope.sources.wrappers import unwrapped
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.onnx_limits import check_onnx_ops
from hookscope.specs.patterns import as_texts
from hookscope.specs.program_options import ProgramOptions
from hookscope.specs.request import LayerSelection
from hookscope.specs.tensor_key import OP, PARAM_GRAD, VALUE_KINDS, resolve_kinds
from hookscope.training.followed_models import FollowedModels

log = logging.getLogger("hookscope")


@signal_safe_contextmanager
def record(
    module: nn.Module | torch.export.ExportedProgram | None = None,
    layers: str | Iterable[str] = (),
    what: str | Iterable[str] = ("output",),
    grads: bool = False,
    ops: bool = False,
    device: str | torch.device | None = None,
) -> Iterator[Capture]:
    """Record the layers of ``module`` whenever it runs in the ``with`` block.

    Every call of every selected layer is recorded, as copies on the module's device, or on
    ``device``. All hooks are removed at the end of the block. With ``grads=True`` a backward pass
    in the block adds the gradients: at each value named in ``what``, and at the parameters of the
    selected layers. A parameter's gradient is that of one backward pass; the second pass is call 2.
    The model works on its own tensors, and its gradients are bit-identical to those without
    recording.

    Args:
        module: the model, in any mode and on any device; also a scripted or traced model, or an
            exported program, which is run through the result of its ``module()``. None records the
            models that the block calls, whatever they are: their layers are ``MODEL.LAYER``, with
            the name of the variable that holds the model, and are in the capture when the block
            has ended.
        layers: layer patterns; none means all.
        what: ``output``, ``input`` or both.
        grads: also record gradients.
        ops: also record the results of functions that the selected layers call between modules.
        device: where the copies are kept. With "cpu" the memory of a GPU does not grow: each value
            goes to pinned memory of the host while the model runs on.

    Raises:
        LayerError: a pattern matches nothing.
        RequestError: ``device`` is no device, or there is no module for which it is chosen.
        EnvironmentFault: this torch cannot use the device.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Linear(4, 1)
        >>> with hookscope.record(net, grads=True) as capture:
        ...     net(torch.ones(2, 4)).sum().backward()
        >>> capture["./weight.grad"]
        tensor([[2., 2., 2., 2.]])
    """
    selection = LayerSelection(layers)
    kinds = resolve_kinds(what, VALUE_KINDS) | ({OP} if ops else set())
    if grads:
        kinds |= {f"{kind}.grad" for kind in kinds} | {PARAM_GRAD}
    if module is None:
        if device is not None:
            raise RequestError(
                "device is for the layers of one module, and no module was passed.",
                "Pass the module to record(), or leave out device.",
            )
        with _recorded_block(as_texts(selection.layers), kinds) as capture:
            yield capture
        return
    check_model(module)
    with ExitStack() as stack:
        with unchanged_structure(module):
            open_module = stack.enter_context(hookable(module))
            check_onnx_ops(is_graph(open_module), ops)
            spec = type(unwrapped(open_module)).__name__
            selected = select(open_module, selection.layers, spec=spec)
            sink = None if device is None else DeviceSink(usable_device(device))
            recorder = Recorder(open_module, selected, kinds, sink=sink, caches=True)
            capture = stack.enter_context(recorder)
        if ops:
            stack.enter_context(record_ops(recorder))
        capture.metadata = {"command": "record", "model": {"spec": spec}, "versions": versions()}
        yield capture
    if not capture and "torch._dynamo" in sys.modules:  # what torch.compile imports
        log.warning(
            "nothing was recorded: %s was not called, or was called from compiled code, which calls"
            " no hooks. Pass what torch.compile returned to record(), or run the block with"
            " torch.compiler.set_stance('force_eager').",
            spec,
        )
    for name in recorder.modified_inputs:
        log.warning(
            "%s: an input that shares memory with another input was changed in place. While"
            " the gradients at the model's inputs are recorded, the other does not change with it."
            " Record only what='output', or pass inputs that require grad.",
            name,
        )


@contextmanager
def _recorded_block(patterns: Sequence[str], kinds: set[str]) -> Iterator[Capture]:
    """Record the models that the block calls; the capture is filled at the end of the block."""
    options = ProgramOptions(capture=True, what=sorted(kinds))
    followed, capture = FollowedModels(options, patterns, Interventions()), Capture()
    followed.start()
    try:
        yield capture
    finally:
        followed.end()
        followed.fill(capture, sys.argv[0] or "python", "record")
    if not followed.called.models:
        log.warning("nothing was recorded: no module was called in the block")
    elif unmatched := followed.unmatched():
        raise LayerError(" ".join(unmatched), "Name a layer as MODEL.LAYER.")
