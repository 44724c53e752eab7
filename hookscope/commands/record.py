"""Record the layers of a module that runs in a ``with`` block."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from hookscope.execution.provenance import versions
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import select
from hookscope.hooks.op_recorder import is_graph, record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.sources.live import check_model, hookable
from hookscope.sources.wrappers import unwrapped
from hookscope.specs.onnx_limits import check_onnx_ops
from hookscope.specs.request import LayerSelection
from hookscope.specs.tensor_key import OP, PARAM_GRAD, VALUE_KINDS, resolve_kinds

log = logging.getLogger("hookscope")


@signal_safe_contextmanager
def record(
    module: nn.Module | torch.export.ExportedProgram,
    layers: str | Iterable[str] = (),
    what: str | Iterable[str] = ("output",),
    grads: bool = False,
    ops: bool = False,
) -> Iterator[Capture]:
    """Record the layers of ``module`` whenever it runs in the ``with`` block.

    Every call of every selected layer is recorded, as copies on the module's device. All hooks are
    removed at the end of the block. With ``grads=True`` a backward pass in the block adds the
    gradients: at each value named in ``what``, and at the parameters of the selected layers. A
    parameter's gradient is that of one backward pass; the second pass is call 2. The model works on
    its own tensors, and its gradients are bit-identical to those without recording.

    Args:
        module: the model, in any mode and on any device; also a scripted or traced model, or an
            exported program, which is run through the result of its ``module()``.
        layers: layer patterns; none means all.
        what: ``output``, ``input`` or both.
        grads: also record gradients.
        ops: also record the results of functions that the selected layers call between modules.

    Raises:
        LayerError: a pattern matches nothing.

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
    check_model(module)
    with hookable(module) as open_module:
        check_onnx_ops(is_graph(open_module), ops)
        spec = type(unwrapped(open_module)).__name__
        selected = select(open_module, selection.layers, spec=spec)
        recorder = Recorder(open_module, selected, kinds, caches=True)
        with recorder as capture, record_ops(recorder):
            run = {"command": "record", "model": {"spec": spec}, "versions": versions()}
            capture.metadata = run
            yield capture
    if not capture.records and "torch._dynamo" in sys.modules:  # what torch.compile imports
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
