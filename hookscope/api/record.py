"""Record what a module runs in a ``with`` block."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from hookscope.execution.provenance import versions
from hookscope.hooks.capture import Capture
from hookscope.hooks.ops.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.selection import select
from hookscope.sources.live import check_model, hookable
from hookscope.sources.wrappers import unwrapped
from hookscope.specs.record_kinds import OP, PARAM_GRAD, VALUE_KINDS, resolve_kinds
from hookscope.specs.request import LayerSelection
from hookscope.tensors.interrupts import signal_safe_contextmanager

log = logging.getLogger("hookscope")


@signal_safe_contextmanager
def record(
    module: nn.Module | torch.export.ExportedProgram,
    layers: str | Iterable[str] = (),
    what: str | Iterable[str] = ("output",),
    grads: bool = False,
    ops: bool = False,
) -> Iterator[Capture]:
    """Record inside your own loop: whatever ``module`` runs within the ``with`` block.

    Every call of every chosen module is kept, as copies on the module's device; no hook stays on
    the module afterwards. With ``grads=True`` a backward pass inside the block adds the gradients:
    at each value named in ``what``, and at the parameters of the chosen layers. A parameter's
    gradient is that of one backward pass; the second pass is its call 2. The model sees its own
    tensors; the gradients are those of a run without recording, bit for bit.

    Args:
        module: the model, in whatever mode and on whatever device it is; a scripted or traced one
            too, or an exported program, which is run through what its ``module()`` returns.
        layers: layer patterns; none means all.
        what: ``output``, ``input`` or both.
        grads: record gradients too.
        ops: record too what functions return that the chosen layers call between modules.

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
        word = type(unwrapped(open_module)).__name__
        recorder = Recorder(open_module, select(open_module, selection.layers, word=word), kinds)
        with recorder as capture, record_ops(recorder):
            run = {"command": "record", "model": {"word": word}, "versions": versions()}
            capture.metadata = run
            yield capture
    for name in recorder.modified_inputs:
        log.warning(
            "%s: an input that shares memory with another input was changed in place. While"
            " the gradients at the model's inputs are recorded, the other does not change with it."
            " Record only what='output', or pass inputs that require grad.",
            name,
        )
